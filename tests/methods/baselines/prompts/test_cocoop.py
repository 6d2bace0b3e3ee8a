import pytest
import torch

from fedcore.methods.baselines.prompts.cocoop import NETWORK
from tests.support.against import assert_predictions, build, naive_clip, train_both
from tests.support.oracles.fedavg import loss_of
from tests.support.oracles.promptfl import scores as scores_of
from tests.support.tiny import drawn_backbone, run_rounds, tiny_federation

SETTINGS = {"lr": 0.05, "batch_size": 4}
FORMS = ("server_coop", "random_meta_net", "all_global")


def shifted(params: dict[str, torch.Tensor], h: torch.Tensor) -> torch.Tensor:
    """The context that an image sees (Section 3.2 of Zhou et al., 2022). Shape: h (d,) -> (M, m)."""
    w1, b1, w2, b2 = (params[name] for name in NETWORK)
    hidden = torch.clamp(w1 @ (h / h.norm()) + b1, min=0)
    return params["context"] + (w2 @ hidden + b2)


@pytest.mark.parametrize(
    "share", ["server_coop", pytest.param("random_meta_net", marks=pytest.mark.slow), "all_global"]
)
def test_agrees_with_the_naive_implementation(share):
    """One pass of the text tower for each image."""
    federation = tiny_federation(samples=(5, 2, 3))
    method, clip = build("cocoop", federation, **SETTINGS, share=share), naive_clip(federation)

    def scores(params, images):
        return [scores_of(clip.texts(shifted(params, h)), h, clip.scale) for h in images]

    loop, owns = train_both(method, federation, loss_of(scores), "uniform")
    shown = federation.pool.values[:6]
    network = {
        "server_coop": None,
        "random_meta_net": method.init(federation.problem.generator).server,
        "all_global": owns[0],
    }[share]
    common = (
        clip.scores(clip.texts(owns[0]["context"]), shown)
        if network is None
        else torch.stack(scores(network | {"context": owns[0]["context"]}, shown))
    )
    assert_predictions(loop, common, [torch.stack(scores(params, shown)) for params in owns])


def test_the_three_forms_start_alike_and_differ_in_what_leaves_a_client(federation):
    states = {
        share: build("cocoop", federation, share=share).init(federation.problem.generator) for share in FORMS
    }
    shared = {share: set(state.shared) for share, state in states.items()}
    assert shared == {
        "server_coop": {"context"},
        "random_meta_net": {"context"},
        "all_global": {"context", *NETWORK},
    }
    assert set(states["random_meta_net"].server) == set(NETWORK) and not states["server_coop"].server
    for name in NETWORK:
        drawn = states["all_global"].shared[name]
        assert torch.equal(states["random_meta_net"].server[name], drawn)
        for share in ("server_coop", "random_meta_net"):
            assert all(torch.equal(value, drawn) for value in states[share].local[name])


@pytest.mark.parametrize("name", ["cocoop", "kgcoop"])
def test_the_first_context_is_the_words_of_the_paper(federation, name):
    backbone, generator = federation.problem.backbone, federation.problem.generator
    ids = backbone.tokenizer.encode("a photo of a")
    first = build(name, federation).init(generator).shared["context"]
    assert torch.equal(first, backbone.model.token_embedding.weight[ids])
    drawn = build(name, federation, init="random", context_length=6).init(generator)
    assert drawn.shared["context"].shape == (6, 16)


def test_memory_of_a_piece_is_measured_and_grows_with_the_classes():
    backbone = drawn_backbone()
    few = build("cocoop", tiny_federation(backbone))
    many = build("cocoop", tiny_federation(backbone, classes=(*"abcdefghijkl", "snow owl")))
    assert few._piece > 2 * many._piece
    assert many.numbers_per_sample() > 2 * few.numbers_per_sample()


def test_features_of_an_image_are_what_its_scores_compare(federation):
    method = build("cocoop", federation, **SETTINGS)
    params = method.models(run_rounds(method, federation, 1).state).global_model
    x = federation.pool.values[None, :5]
    images, classes = method.features(params, {}, x)
    assert classes.shape == (1, 5, 3, 16)
    cosines = torch.nn.functional.cosine_similarity(images[:, :, None], classes, dim=-1)
    scale = federation.problem.backbone.logit_scale
    torch.testing.assert_close(method.logits(params, {}, x), scale * cosines)
    assert (classes[0, 0] - classes[0, 1]).abs().max() > 1e-6  # each image has its own
