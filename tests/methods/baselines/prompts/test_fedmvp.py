import pytest
import torch
from torch.nn import functional as F

from fedcore.base.errors import FedLensError
from tests.methods.baselines.prompts.test_fedtpg import attended, layer, norm
from tests.support.against import assert_predictions, build, train_both
from tests.support.oracles.fedavg import mean_nll
from tests.support.oracles.vision import embedding
from tests.support.tiny import CLASSES, tiny_federation

ATTRIBUTES = {
    "cat": ["a cat, which has whiskers.", "a cat, which has a tail."],
    "snow owl": ["an owl, which is white."],
    "fire engine": ["a red car, which has a ladder.", "a long car.", "a loud car."],
}
STILL = ("k_b", "norm_names_b")
"""A softmax over attributes does not hear what is added to all keys."""


def prompts_of(values: dict[str, torch.Tensor], z: torch.Tensor, e: torch.Tensor, p: int) -> torch.Tensor:
    """V of one image, one patch at a time. Shape: z (patches, width), e (t, d) -> (p, width)."""
    given = [layer(values, "text", one) for one in e]
    asked = [norm(values, "norm_names", one) for one in given]
    rows = [attended(values, patch, asked, given) for patch in z]
    return F.adaptive_avg_pool1d(torch.stack(rows).T[None], p)[0].T


@pytest.mark.parametrize("p", [1, 3])
def test_agrees_with_the_naive_implementation(p):
    federation = tiny_federation(reads="patches", samples=(5, 3, 4), descriptions=ATTRIBUTES)
    backbone = federation.problem.backbone
    settings = {"lr": 0.05, "batch_size": 4, "schedule": "constant", "optimiser_state": "fresh"}
    method = build("fedmvp", federation, **settings, prompt_length=p, weight_decay=5e-4)
    visual = backbone.model.visual
    each = [backbone.model.encode_text(backbone.tokenize(ATTRIBUTES[name])) for name in CLASSES]
    each = [torch.stack([e / e.norm() for e in of_class]) for of_class in each]

    def images(values, x):
        """Embeddings of images with prompts; without, CLIP's own."""
        found = []
        for patches in x:
            z = patches + visual.positional_embedding[1:]
            tokens = [visual.class_embedding[None] + visual.positional_embedding[:1], z]
            if values:
                tokens.append(prompts_of(values, z, torch.cat(each), p))
            f = embedding(visual, visual.ln_pre(torch.cat(tokens)), [])
            found.append(f / f.norm())
        return found

    def scores(fs):
        return [torch.stack([backbone.logit_scale * (e @ f).mean() for e in each]) for f in fs]

    def loss(values, x, y):
        fs, own = images(values, x), images({}, x)
        near = torch.stack([f @ g for f, g in zip(fs, own, strict=True)]).mean()
        return mean_nll(scores(fs), y) + 10 * (1 - near)

    loop, (naive, *_) = train_both(method, federation, loss, "uniform", still=STILL)
    for name, value in naive.items():
        torch.testing.assert_close(loop.state.shared[name], value, rtol=0, atol=1e-10)
    w, d = 24, 16
    assert loop.finished[1].scalars_up == 3 * (w * d + 16 * w**2 + 20 * w)
    assert_predictions(loop, torch.stack(scores(images(naive, federation.pool.values[:5]))))


def test_a_class_without_attributes_is_named_and_the_prompt_may_stand_for_them():
    federation = tiny_federation(reads="patches", descriptions={"cat": ["a cat."], "snow owl": ["an owl."]})
    with pytest.raises(FedLensError, match="class 'fire engine' has none: describe it here"):
        build("fedmvp", federation)
    plain = build("fedmvp", federation, class_text="template")
    torch.testing.assert_close(plain.classes, federation.problem.class_features)
