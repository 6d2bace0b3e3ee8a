import math

import pytest
import torch

from fedcore.base.files import ASSETS
from fedcore.methods import tensors
from tests.support.against import NEAR, assert_predictions, build, engine_batches, naive_clip, samples
from tests.support.oracles import fedavg
from tests.support.oracles.vision import embedding, prompted_embedding, prompted_texts
from tests.support.tiny import run_rounds, tiny_federation

TEMPLATES = (ASSETS / "templates.txt").read_text(encoding="utf-8").splitlines()
SMALL = {"batch_size": 3, "lr": 0.02, "schedule": "constant", "context_length": 2, "visual_length": 2}


def unit(x: torch.Tensor) -> torch.Tensor:
    return x / x.norm()


def test_agrees_with_the_naive_implementation():
    federation = tiny_federation(reads="layer:0", samples=(4, 3, 2))
    problem = federation.problem
    method = build("promptsrc", federation, **SMALL)
    first = method.init(problem.generator).shared
    model, scale = problem.backbone.model, problem.backbone.logit_scale
    ids = naive_clip(federation).ids("a photo of a {}.")
    anchors = []
    for name in problem.classes:
        texts = model.encode_text(problem.backbone.tokenizer([t.replace("{}", name) for t in TEMPLATES]))
        anchors.append(unit(sum(texts) / 60))

    def scores(values, images):
        params = dict(zip(first, values, strict=True))
        texts = [unit(t) for t in prompted_texts(model, params, ids)]
        embeddings = [unit(prompted_embedding(model, params, tokens)) for tokens in images]
        return embeddings, texts, [torch.stack([scale * h @ t for t in texts]) for h in embeddings]

    def loss(values, received, x, y):
        embeddings, texts, shown = scores(values, x)
        apart = [(t - z).abs().sum() for t, z in zip(texts, anchors, strict=True)]
        total = 25 * sum(apart) / (len(apart) * len(anchors[0]))
        for tokens, label, h, logits in zip(x, y, embeddings, shown, strict=True):
            frozen = unit(embedding(model.visual, tokens, []))
            q = torch.softmax(torch.stack([scale * frozen @ z for z in anchors]), 0)
            p = torch.softmax(logits, 0)
            divergence = sum(a * torch.log(a / b) for a, b in zip(q, p, strict=True)) / len(q)
            distance = (h - frozen).abs().sum() / len(h)
            total = total + (fedavg.nll(logits, label) + 10 * distance + divergence) / len(y)
        return total

    def optimiser(values):
        return torch.optim.SGD(values, lr=0.02, momentum=0.9, weight_decay=5e-4)

    start, rounds = list(first.values()), []
    batches = engine_batches(federation, method, 3)
    for done in (1, 2, 3):
        given = fedavg.run(
            loss,
            start if done == 1 else rounds[-1],
            *samples(federation),
            batches[done - 1 : done],
            optimiser,
            [1.0] * 3,
        )
        rounds.append(given[0])
    loop = run_rounds(method, federation, 3)
    for name, value, before in zip(first, rounds[-1], start, strict=True):
        torch.testing.assert_close(loop.state.shared[name], value, **NEAR)
        assert (value - before).abs().max() > 1e-4, f"{name} did train"

    weights = [math.exp(-((r - 0.75 * 3) ** 2) / (2 * (3 / 20) ** 2)) for r in (1, 2, 3)]
    assert weights[0] < 1e-15 and weights[2] < weights[1]  # round 2 counts for nearly all
    mean = [
        sum(w * value for w, value in zip(weights, of_rounds, strict=True)) / sum(weights)
        for of_rounds in zip(*rounds, strict=True)
    ]
    assert max((a - b).abs().max() for a, b in zip(mean, rounds[-1], strict=True)) > 1e-4
    assert_predictions(loop, torch.stack(scores(mean, federation.pool.values[:3])[2]))


def test_without_its_parts_it_is_ivlp_bit_for_bit():
    federation = tiny_federation(reads="layer:0", samples=(4, 3, 2))
    off = {"text_weight": 0, "image_weight": 0, "logits_weight": 0, "gpa": "none"}
    ours, theirs = (
        run_rounds(build(name, federation, **SMALL, **more), federation, 3)
        for name, more in (("promptsrc", off), ("ivlp", {}))
    )
    for name, value in theirs.state.shared.items():
        assert torch.equal(ours.state.shared[name], value)
    assert [e.cells for e in ours.finished] == [e.cells for e in theirs.finished]


def test_clients_train_from_the_plain_mean_whatever_is_tested():
    federation = tiny_federation(reads="layer:0", samples=(4, 3, 2))
    tested, plain = (
        run_rounds(build("promptsrc", federation, **SMALL, gpa=gpa), federation, 2)
        for gpa in ("rounds", "none")
    )
    for name, value in plain.state.shared.items():
        assert torch.equal(tested.state.shared[name], value)
    assert tested.finished[-1].bytes_down == plain.finished[-1].bytes_down


def test_there_are_60_templates():
    assert len(set(TEMPLATES)) == 60 and all(text.count("{}") == 1 for text in TEMPLATES)


@pytest.mark.parametrize("name", ["promptsrc", "fedmvp"])
def test_the_frozen_tower_reads_each_training_sample_once_in_a_run(name, monkeypatch):
    federation = tiny_federation(reads="layer:0" if name == "promptsrc" else "patches", samples=(4, 3, 2))
    monkeypatch.setattr(tensors, "_READ_AT_ONCE", 3)
    given = {"class_text": "template"} if name == "fedmvp" else {}
    method = build(name, federation, batch_size=2, local_epochs=2, **given)
    once = method._frozen if name == "promptsrc" else method._own
    network, read = once.network, []
    once.network = lambda x: read.append(x.shape[1]) or network(x)
    run_rounds(method, federation, 2)
    assert read == [3, 1, 3, 2]
    everyone = federation.local_data(torch.arange(3))
    expected = network(everyone.x)
    for client, count in enumerate((4, 3, 2)):
        for found in (once(everyone), once(federation.local_data(torch.tensor([client])))[[0, 0, 0]]):
            torch.testing.assert_close(found[client, :count], expected[client, :count])
    assert len(read) == 4


@pytest.mark.parametrize("name", ["promptsrc", "fedmvp"])
def test_clients_without_training_samples_are_not_read(name):
    """Alone in a chunk they take no step, and beside others they have only padding."""
    federation = tiny_federation(reads="layer:0" if name == "promptsrc" else "patches", samples=(4, 0, 0))
    method = build(name, federation, **({"class_text": "template"} if name == "fedmvp" else {}))
    once = method._frozen if name == "promptsrc" else method._own
    alone, together = (once(federation.local_data(torch.arange(start, 3))) for start in (1, 0))
    assert alone.shape == (2, 0, together.shape[-1])
    assert together[0].all() and not together[1:].any()
