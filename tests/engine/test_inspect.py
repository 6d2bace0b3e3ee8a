"""Analyses of a trained run against its own figures, and by hand."""

from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from fedcore.base.errors import FedLensError
from fedcore.base.lazy import functional as F
from fedcore.base.progress import result_of
from fedcore.clip.backbone import load
from fedcore.engine import inspect
from fedcore.engine.inspect import RunSnapshot
from fedcore.engine.server import Server
from tests.support.against import build, counts
from tests.support.tiny import drawn_backbone, run_rounds, tiny_federation

SMALL = {"batch_size": 4, "lr": 0.05}
COSINE: dict[str, dict[str, object]] = {
    "zero-shot": {},
    "coop": SMALL,
    "promptfl": SMALL,
    "fedpgp": {**SMALL, "rank": 2, "local_epochs": 1},
    "fedclip": SMALL,
    "fedavg-lora": {**SMALL, "rank": 2},
    "sdfed": {**SMALL, "local_length": "2,5,3", "global_length": 4},
    "fedalign": {**SMALL, "rank": 2, "class_text": "template"},
    "feddeap": {**SMALL, "prompt_length": 2},
}
PRODUCT = {"clip-fc": {**SMALL, "bias": False}, "fedot": SMALL}


@cache
def looked_at(name: str) -> tuple[RunSnapshot, Server]:
    """A method after one round on the tiny federation; the tests only read it."""
    backbone = drawn_backbone()
    reads = {"fedavg-lora": "layer:2", "fedalign": "layer:2", "fedotp": "regions", "plot": "regions"}.get(
        name, "embedding"
    )
    federation = tiny_federation(backbone, reads)
    method = build(name, federation, **{**COSINE, **PRODUCT}.get(name, SMALL))
    assert method.reads(method.config, backbone.spec) in (reads, "layer:1", "layer:0"), name
    loop = run_rounds(method, federation, 1)
    return RunSnapshot(loop.cohorts, loop.state, SimpleNamespace(), 1), loop


@pytest.mark.parametrize("name", ["promptfl", "fedot", "sdfed", "feddeap"])
def test_predictions_are_those_that_the_run_has_counted(name):
    at, loop = looked_at(name)
    found = result_of(inspect.predictions(at))
    right = found["label"] == found["predicted"]
    recorded = counts(loop.finished[-1])
    assert sorted(set(found["model"].tolist())) == [0, 1, 2, 3]
    for model, test_set in set(zip(found["model"].tolist(), found["test_set"].tolist(), strict=True)):
        chosen = (found["model"] == model) & (found["test_set"] == test_set)
        assert (int(right[chosen].sum()), int(chosen.sum())) == recorded[model, test_set]
        rows = at.federation.test.held_by(test_set - 1)
        assert set(found["sample"][chosen].tolist()) == set(rows.tolist())


@pytest.mark.parametrize("name", [*COSINE, *PRODUCT])
def test_features_are_what_the_scores_compare(name):
    at, _ = looked_at(name)
    seen = at.model(1)
    x = at.federation.pool.x(at.test_rows(1))
    images, classes = seen.method.features(seen.params, seen.head, x)
    scores = seen.method.logits(seen.params, seen.head, x)
    if name in COSINE:
        images, classes = F.normalize(images, dim=-1), F.normalize(classes, dim=-1)
    elif name == "fedot":
        images = F.normalize(images, dim=-1)
    ratio = scores / (images @ classes.transpose(-1, -2))
    assert float((ratio - ratio.mean()).abs().max()) < 1e-6 * float(ratio.mean().abs())
    more = seen.method.gradcam_scores(seen.params, seen.head, x)
    assert all(score.shape == scores.shape[:2] for score in more.values()) and "prediction" not in more
    assert bool(more) == (name == "feddeap")


def test_feature_space_holds_images_classes_and_centroids_and_repeats():
    at, _ = looked_at("promptfl")
    found, again = (result_of(inspect.feature_space(at, 0, 4)) for _ in range(2))
    images = at.test_rows(4).shape[1]
    present = len(np.unique(found["label"][:images]))
    assert found["kind"].tolist() == [0] * images + [1] * 3 + [2] * present
    assert found["xy"].shape == (images + 3 + present, 2)
    assert np.isfinite(found["xy"]).all()
    assert np.array_equal(found["xy"], again["xy"])
    assert (found["predicted"][images:] == -1).all()
    assert int((result_of(inspect.feature_space(at, 0, 4, most=5))["kind"] == 0).sum()) == 5


def test_class_features_of_each_image_are_drawn_as_their_mean_direction():
    at, _ = looked_at("promptfl")
    model, rows = at.model(0), at.test_rows(4)
    images, classes = model.features(rows)
    noise = torch.randn(rows.shape[1], 3, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    place = {tuple(h.tolist()): i for i, h in enumerate(at.federation.pool.x(rows)[0])}

    class OwnClasses(type(model.method)):
        def features(self, params, head, x):
            chosen = [place[tuple(h.tolist())] for h in x[0]]
            return x, (head["text"][:, None] + noise[chosen])

        def numbers_per_sample(self):
            return 2**20

    object.__setattr__(model, "method", OwnClasses(model.method.config, model.method.problem))
    own_images, own_classes = model.features(rows)
    torch.testing.assert_close(own_images, images)
    each = F.normalize(model.head["text"] + noise, dim=-1)
    torch.testing.assert_close(own_classes, F.normalize(each.mean(0), dim=-1))
    assert (own_classes - classes).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("name", "model", "prompts"),
    [
        ("fedpgp", 1, {"context", "personal"}),
        ("fedpgp", 0, {"context"}),
        ("fedotp", 2, {"context", "own"}),
        ("cocoop", 0, {"context"}),
    ],
)
def test_every_learned_prompt_of_a_model_has_nearest_words(name, model, prompts):
    at, _ = looked_at(name)
    assert {row["prompt"] for row in inspect.nearest_words(at, model, top=1)} == prompts


def test_words_nearest_to_known_vectors_are_those_words():
    at, _ = looked_at.__wrapped__("sdfed")  # its own, whose prompts are changed
    backbone = at.federation.problem.backbone
    ids = backbone.tokenizer.encode("dog cat")
    table = backbone.model.token_embedding.weight
    at.state.local["local_prompt"][0, :2] = table[ids]
    rows = inspect.nearest_words(at, 1, top=3)
    local = [r for r in rows if r["prompt"] == "local prompt"]
    assert [r["words"][0] for r in local] == ["dog", "cat"]
    assert [r["distances"][0] for r in local] == [0.0, 0.0]
    assert [len(r["words"]) for r in rows] == [3] * len(rows)
    assert len([r for r in rows if r["prompt"] == "global prompt"]) == 4
    assert len([r for r in inspect.nearest_words(at, 2) if r["prompt"] == "local prompt"]) == 5


def test_prompts_of_each_class_name_their_class():
    at, _ = looked_at("feddeap")
    rows = inspect.nearest_words(at, 1)
    assert [(r["prompt"], r["class"], r["position"]) for r in rows[:3]] == [
        ("p_s", "cat", 1),
        ("p_s", "cat", 2),
        ("p_s", "snow owl", 1),
    ]
    assert {r["prompt"] for r in rows} == {"p_s", "p_d"}
    assert {r["prompt"] for r in inspect.nearest_words(at, 0)} == {"p_s"}


@pytest.mark.parametrize(
    ("name", "call", "message"),
    [
        ("fedot", lambda at: inspect.nearest_words(at, 1), "learns no prompts"),
        ("coop", lambda at: at.model(0), "no global model; choose a client"),
        ("fedot", lambda at: at.model(7), "clients are 1 to 3"),
        ("fedot", lambda at: at.test_rows(6), "there are 1 to 5"),
        ("promptfl", lambda at: result_of(inspect.feature_space(at, 0, 1, most=1)), "too few"),
        (
            "fedotp",
            lambda at: result_of(inspect.feature_space(at, 0, 4)),
            "FedOTP compares no image features with class features",
        ),
    ],
)
def test_what_there_is_not_is_said(name, call, message):
    at, _ = looked_at(name)
    with pytest.raises(FedLensError, match=message):
        call(at)


def test_a_map_weighs_channels_by_their_mean_gradient():
    hidden = torch.zeros(1, 5, 2)  # class token, then 2 x 2 patches of two channels
    hidden[0, 1:, 0] = torch.tensor([4.0, 0, 0, 0])
    hidden[0, 1:, 1] = torch.tensor([0.0, 0, 0, 8])
    gradient = torch.zeros(1, 5, 2)
    gradient[0, 1:, 0], gradient[0, 1:, 1] = 1.0, -1.0
    gradient[0, 0] = 100.0  # the class token has no place
    found = inspect._map(hidden, gradient, 2)
    assert found[0].tolist() == [[1, 0], [0, 0]]


@pytest.mark.parametrize(
    ("name", "model", "maps"),
    [
        pytest.param("zero-shot", "mini-vit", {"prediction"}, marks=pytest.mark.slow),
        pytest.param("fedot", "mini-rn", {"prediction"}, marks=pytest.mark.slow),
        ("fedavg-lora", "mini-vit", {"prediction"}),
        ("feddeap", "mini-vit", {"prediction", "semantic", "domain"}),
        pytest.param("fedotp", "mini-vit", {"prediction"}, marks=pytest.mark.slow),
        ("fedotp", "mini-rn", {"prediction"}),
    ],
)
def test_evidence_of_every_score_lies_on_the_pixels_that_the_model_saw(name, model, maps):
    backbone = load(model)
    reads = {"fedavg-lora": "layer:1", "fedotp": "regions", "plot": "regions"}.get(name, "embedding")
    federation_of = tiny_federation(backbone, reads, samples=(2, 2, 2))
    config = {"prompt_length": 2} if name == "feddeap" else {}
    method = build(name, federation_of, **config)
    loop = run_rounds(method, federation_of, 0)
    side = backbone.spec.image_size
    pictures = [Image.new("RGB", (side, side), (40 * (i % 5), 200, 90)) for i in range(40)]
    images = SimpleNamespace(read=lambda i: pictures[i])
    at = RunSnapshot(loop.cohorts, loop.state, images, 0)
    found = result_of(inspect.evidence(at, 1, at.test_rows(1)[0, :3]))
    assert {n.removeprefix("map/") for n in found if n.startswith("map/")} == maps
    for i, row in enumerate(found["sample"].tolist()):
        assert found["pixels"][i, side // 2, side // 2].tolist() == [40 * (row % 5), 200, 90]
    for score in maps:
        heat = found[f"map/{score}"].astype(float)
        assert heat.shape == (3, side, side)
        assert (heat >= 0).all()
        assert 0 < heat.max() <= 1


def test_all_clients_features_share_a_plane_and_are_those_of_their_own_models():
    """FedDEAP's Figure 7: every class's text by each client's model, beside the client's own test images."""
    at, _ = looked_at("feddeap")
    embedded = []

    class Flat:
        def __init__(self, *_: object, **__: object) -> None: ...

        def fit_transform(self, points):
            embedded.append(points)
            return points[:, :2]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sklearn.manifold.TSNE", Flat)
        found = result_of(inspect.feature_space(at, None, 0))
    (points,) = embedded
    for client in range(3):
        rows = at.test_rows(client + 1)
        images, classes = at.model(client + 1).features(rows)
        for kind, expected, labels in (
            (0, images, at.federation.pool.y(rows)[0].tolist()),
            (1, classes, [0, 1, 2]),
        ):
            chosen = (found["kind"] == kind) & (found["client"] == client)
            assert found["label"][chosen].tolist() == labels
            np.testing.assert_allclose(points[chosen], expected.numpy(), atol=1e-6)
    assert set(found["kind"].tolist()) == {0, 1}
    assert len(found["sample"]) == (found["kind"] == 0).sum()
    other = inspect.feature_space(at, None, 0, most=9)
    assert ((shown := result_of(other))["kind"] == 0).sum() == 9 and len(shown["xy"]) == 18
