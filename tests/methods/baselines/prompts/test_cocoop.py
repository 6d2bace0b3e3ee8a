import pytest
import torch

from fedcore.methods import tensors
from fedcore.methods.baselines.prompts.cocoop import NETWORK
from tests.support.against import build, client_logits, engine_batches, global_logits, samples
from tests.support.oracles import cocoop as oracle
from tests.support.tiny import drawn_backbone, run_rounds, tiny_federation

SETTINGS = {"lr": 0.05, "batch_size": 4}
FORMS = ("server_coop", "random_meta_net", "all_global")


@pytest.mark.parametrize(
    "share", ["server_coop", pytest.param("random_meta_net", marks=pytest.mark.slow), "all_global"]
)
def test_agrees_with_the_naive_implementation(share):
    federation = tiny_federation(samples=(5, 2, 3))
    problem, model = federation.problem, federation.problem.backbone.model
    method = build("cocoop", federation, **SETTINGS, share=share)
    first = method.init(problem.generator)
    context = first.shared["context"]
    network = [{**first.shared, **{n: v[0] for n, v in first.local.items()}}[n] for n in NETWORK]
    xs, labels = samples(federation)
    scale, tokenizer = problem.backbone.logit_scale, problem.backbone.tokenizer
    batches = engine_batches(federation, method, 2)
    config = {"lr": 0.05, "momentum": 0.9, "weight_decay": 5e-4, "weighting": "uniform", "share": share}
    expected, networks = oracle.run(
        model, tokenizer, problem.classes, xs, labels, context, network, batches, scale, config
    )

    state = run_rounds(method, federation, 2).state
    near = {"atol": 1e-6, "rtol": 0}
    torch.testing.assert_close(state.shared["context"], expected, **near)
    assert (expected - context).abs().max() > 1e-3  # it did train
    for i, name in enumerate(NETWORK):
        ours = state.shared[name] if share == "all_global" else state.local[name]
        theirs = networks[0][i] if share == "all_global" else torch.stack([n[i] for n in networks])
        torch.testing.assert_close(ours, theirs, **near)
    shown = federation.pool.values[:6]

    def scores(own):
        rows = [
            oracle.image_scores(model, tokenizer, problem.classes, expected, own, h, scale) for h in shown
        ]
        return torch.stack(rows)

    server = {"server_coop": None, "random_meta_net": network, "all_global": networks[0]}[share]
    torch.testing.assert_close(global_logits(method, state, federation)[:6], scores(server), **near)
    for own, found in zip(networks, client_logits(method, state, federation), strict=True):
        torch.testing.assert_close(found[:6], scores(own), **near)


def test_the_three_forms_start_alike_and_differ_in_what_leaves_a_client():
    federation = tiny_federation()
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
            assert all(torch.equal(own, drawn) for own in states[share].local[name])


def test_the_first_context_is_the_words_of_the_paper():
    backbone = drawn_backbone()
    federation = tiny_federation(backbone)
    first = build("cocoop", federation).init(federation.problem.generator).shared["context"]
    ids = backbone.tokenizer.encode("a photo of a")
    assert torch.equal(first, backbone.model.token_embedding.weight[ids])
    drawn = build("cocoop", federation, init="random", context_length=6).init(federation.problem.generator)
    assert drawn.shared["context"].shape == (6, 16)


def test_training_in_pieces_gives_the_same_numbers(monkeypatch):
    federation = tiny_federation(samples=(5, 2, 3))
    whole = run_rounds(build("cocoop", federation, **SETTINGS), federation, 1)
    method = build("cocoop", federation, **SETTINGS)
    assert method._piece > 12  # a tiny batch is one piece
    monkeypatch.setattr(tensors, "PIECE_BYTES", {"cpu": 1})
    method = build("cocoop", federation, **SETTINGS)
    assert method._piece == 1
    parts = run_rounds(method, federation, 1)
    for part in ("shared", "local"):
        for name, value in getattr(whole.state, part).items():
            torch.testing.assert_close(getattr(parts.state, part)[name], value, atol=1e-9, rtol=0)


def test_memory_of_a_piece_is_measured_and_grows_with_the_classes():
    backbone = drawn_backbone()
    few = build("cocoop", tiny_federation(backbone))
    many = build("cocoop", tiny_federation(backbone, classes=(*"abcdefghijkl", "snow owl")))
    assert few._piece > 2 * many._piece
    assert many.numbers_per_sample() > 2 * few.numbers_per_sample()


def test_features_of_an_image_are_what_its_scores_compare():
    federation = tiny_federation()
    method = build("cocoop", federation, **SETTINGS)
    params = method.models(run_rounds(method, federation, 1).state).global_model
    x = federation.pool.values[None, :5]
    images, classes = method.features(params, {}, x)
    assert classes.shape == (1, 5, 3, 16)
    cosines = torch.nn.functional.cosine_similarity(images[:, :, None], classes, dim=-1)
    scale = federation.problem.backbone.logit_scale
    torch.testing.assert_close(method.logits(params, {}, x), scale * cosines)
    assert (classes[0, 0] - classes[0, 1]).abs().max() > 1e-6  # each image has its own
