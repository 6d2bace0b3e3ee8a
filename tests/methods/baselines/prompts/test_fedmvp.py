import pytest
import torch
from torch.nn import functional as F

from fedcore.base.errors import FedLensError
from tests.methods.baselines.prompts.test_fedtpg import layer_norm
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
    """V of one image, one patch and one head at a time. Shape: z (patches, width), e (t, d) -> (p, width)."""

    def norm(name, x):
        return layer_norm(x, values[f"{name}_w"], values[f"{name}_b"])

    def layer(name, x):
        return values[f"{name}_w"] @ x + values[f"{name}_b"]

    asked = [layer("text", one) for one in e]
    rows = []
    for patch in z:
        q, heads = layer("q", norm("norm_query", patch)), []
        keys, given = [layer("k", norm("norm_names", c)) for c in asked], [layer("v", c) for c in asked]
        width = len(q) // 4
        for part in (slice(i * width, (i + 1) * width) for i in range(4)):
            share = torch.softmax(torch.stack([q[part] @ k[part] for k in keys]) / width**0.5, 0)
            heads.append(sum(w * v[part] for w, v in zip(share, given, strict=True)))
        a = layer("out", torch.cat(heads))
        plain, gate = layer("up", norm("norm_feed", a)).chunk(2)
        rows.append(a + layer("down", plain * 0.5 * gate * (1 + torch.erf(gate / 2**0.5))))
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
