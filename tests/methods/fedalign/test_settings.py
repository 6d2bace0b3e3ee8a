"""FedAlign's readings that the oracle does not hold, and the settings that it refuses."""

from dataclasses import replace

import pytest
import torch

from fedcore.base.events import BEFORE_AGGREGATION
from fedcore.clip.adapters import first_adapted_layer, scaled_layer
from fedcore.clip.specs import backbone_spec
from fedcore.engine.server import Transport
from fedcore.methods.fedalign.config import FedAlignConfig
from fedcore.methods.fedalign.method import FedAlign
from fedcore.methods.fedalign.towers import orthogonality
from fedcore.methods.federation import Federation
from tests.support.against import build, cells, diagnostics, engine_batches, samples
from tests.support.oracles import fedalign as oracle
from tests.support.tiny import run_rounds, tiny_federation

SMALL = {
    "rank": 2,
    "batch_size": 4,
    "server_batch_size": 5,
    "lr": 0.01,
    "server_lr": 0.05,
    "class_text": "template",
}


class Listening(Transport):
    """Keeps what crosses."""

    def up(self, sent):
        self.sent = super().up(sent)
        return self.sent

    def down(self, sent):
        self.received = super().down(sent)
        return self.received


def test_before_aggregation_a_model_is_scored_with_the_text_it_received():
    """Own update and the text features of the round before, before aggregation, sample by sample."""
    federation, road = tiny_federation(reads="layer:1"), Listening()
    method = build("fedalign", federation, **SMALL)
    loop = run_rounds(method, federation, 2, transport=road)
    tail = oracle.ImageTail(federation.problem.backbone.model.visual, 1)
    stored = cells(loop.finished[-1], stage=BEFORE_AGGREGATION)
    old, new = road.received["text"][0], loop.state.shared["text"]
    for client in range(3):
        factors = (road.sent["image_a"][client], road.sent["image_b"][client])
        rows = federation.test.held_by(client)
        images = [
            oracle.image_feature(tail, factors, method.config.gamma, x) for x in federation.pool.values[rows]
        ]
        losses = [
            float(oracle.mean_loss(text, torch.stack(images), federation.pool.labels[rows], method.scale))
            for text in (old, new)
        ]
        assert abs(losses[0] - losses[1]) > 1e-4
        assert stored[client + 1, client + 1].loss == pytest.approx(losses[0], abs=1e-9)


def uploaded(method: FedAlign, data, correct: torch.Tensor) -> list[list[int]]:
    """Which of its samples each client uploads: features that are their samples' numbers."""
    state = method.init(data.problem.generator)
    numbers = torch.arange(correct.shape[1], dtype=torch.float64).expand(correct.shape)
    record = {"feature": numbers[..., None].expand(-1, -1, 16), "correct": correct}
    sent = method.upload({n: v.expand(3, *v.shape[1:]) for n, v in state.personal.items()}, record, data)
    return [[int(feature[0]) for feature in features] for features in sent["features"].per_client()]


def test_a_share_of_the_hits_is_drawn_once_by_seed():
    """Not the first of them, not other ones every round; a hit more leaves the others' order as it is."""
    federation = tiny_federation(reads="layer:1", samples=(20, 16, 12))
    data = federation.local_data(torch.arange(3))
    config = FedAlignConfig(**SMALL, upload_ratio=0.5)
    method = FedAlign(config, federation.problem)
    chosen = uploaded(method, data, data.mask)
    assert [len(c) for c in chosen] == [10, 8, 6]
    assert all(c != list(range(len(c))) for c in chosen)
    assert uploaded(method, data, data.mask) == chosen
    other = FedAlign(config, replace(federation.problem, seed=9))
    assert uploaded(other, data, data.mask) != chosen
    fewer = data.mask.clone()
    fewer[0, chosen[0][0]] = False
    assert set(chosen[0][1:]) <= set(uploaded(method, data, fewer)[0])


def test_the_share_of_the_penalty_in_the_gradient():
    """Client by client, from two backward passes of their own; training is the same to the last bit."""
    federation = tiny_federation(reads="layer:1")
    one_batch = {**SMALL, "batch_size": 64, "orthogonality": 0.5}
    plain = build("fedalign", federation, **one_batch)
    measured = build("fedalign", federation, **one_batch, gradient_shares=True)
    first = run_rounds(plain, federation, 1)
    loop = run_rounds(measured, federation, 1)
    assert torch.equal(loop.state.personal["image_a"], first.state.personal["image_a"])
    assert diagnostics(first.finished[-1], "orthogonality_share") == []
    shares = diagnostics(loop.finished[-1], "orthogonality_share")
    state, (xs, ys) = measured.init(federation.problem.generator), samples(federation)
    for client, (x, y) in enumerate(zip(xs, ys, strict=True)):
        parts = {n: state.personal[f"image_{n}"][client : client + 1].clone() for n in "ab"}
        leaves = [value.requires_grad_() for value in parts.values()]
        features = measured.towers.image(parts, x[None])
        logits = measured.scale * features[0] @ state.shared["text"].T
        everything = torch.ones(1, len(y), dtype=torch.bool)
        penalty = orthogonality(features, y[None], everything, len(federation.problem.classes), True)
        sizes = []
        for loss in (0.5 * penalty[0], torch.nn.functional.cross_entropy(logits, y)):
            gradients = torch.autograd.grad(loss, leaves, retain_graph=True)
            sizes.append(sum(float(g.square().sum()) for g in gradients) ** 0.5)
        assert 0 < shares[client] < 1
        assert shares[client] == pytest.approx(sizes[0] / sum(sizes), abs=1e-8)


def first_features(method: FedAlign, federation: Federation) -> list[torch.Tensor]:
    """Each client's features by a naive tower with the first factors; with lr = 0 they stay so."""
    state = method.init(federation.problem.generator)
    factors = tuple(v for n, v in state.server.items() if n.startswith("global_"))
    tail, gamma = oracle.ImageTail(federation.problem.backbone.model.visual, 1), method.config.gamma
    xs, _ = samples(federation)
    return [torch.stack([oracle.image_feature(tail, factors, gamma, x) for x in of_one]) for of_one in xs]


def test_terms_prototypes_and_uploaded_features():
    federation = tiny_federation(reads="layer:1", samples=(12, 5, 7))
    method = build("fedalign", federation, **{**SMALL, "lr": 0.0, "batch_size": 64})
    event = run_rounds(method, federation, 1).finished[-1]
    text, seen = method.init(federation.problem.generator).shared["text"], []
    _, labels = samples(federation)
    for client, (features, y) in enumerate(zip(first_features(method, federation), labels, strict=True)):
        said = [int(oracle.scores(text, f, method.scale).argmax()) for f in features]
        hits = [label for label, k in zip(y.tolist(), said, strict=True) if label == k]
        seen.append((len(set(hits)), len(hits)))
        norm = method.config.orthogonality_norm
        expected = {
            "cross_entropy": oracle.mean_loss(text, features, y, method.scale),
            "orthogonality": oracle.orthogonality(list(features), y.tolist(), True, norm),
            "prototypes": len(set(hits)),
            "uploaded_features": len(hits),
        }
        for name, value in expected.items():
            assert diagnostics(event, name)[client] == pytest.approx(float(value), abs=1e-8), name
    assert any(classes < found for classes, found in seen), "the case tells classes from features"


def test_terms_are_means_over_a_client_s_own_steps():
    """Two epochs of three, two and two batches, the last of them short: every step weighs the same."""
    federation = tiny_federation(reads="layer:1")
    method = build("fedalign", federation, **{**SMALL, "lr": 0.0, "local_epochs": 2})
    event = run_rounds(method, federation, 1).finished[-1]
    assert [c.steps for c in event.clients] == [6, 4, 4]
    text = method.init(federation.problem.generator).shared["text"]
    (drawn,), (_, labels) = engine_batches(federation, method, 1), samples(federation)
    for client, (features, y) in enumerate(zip(first_features(method, federation), labels, strict=True)):
        steps = [oracle.mean_loss(text, features[i], y[i], method.scale) for i in drawn[client]]
        expected = float(sum(steps)) / len(steps)
        assert diagnostics(event, "cross_entropy")[client] == pytest.approx(expected, abs=1e-8)


def test_layers_scale_with_the_depth():
    config = FedAlignConfig()
    assert [first_adapted_layer(config.start_layer, n) for n in (4, 12, 24)] == [1, 2, 4]
    assert [scaled_layer(config.boundary_layer, n) for n in (4, 12, 24)] == [3, 9, 18]
    assert (
        first_adapted_layer(FedAlignConfig(start_layer=11, boundary_layer=12).start_layer, 4) == 3
    )  # something is always adapted
    assert FedAlign.reads(config, backbone_spec("ViT-B-32")) == "layer:2"
    assert FedAlign.reads(FedAlignConfig(trainable="table4"), backbone_spec("ViT-B-32")) == "patches"
