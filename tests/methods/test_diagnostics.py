"""Recorded values of a round against the formula, sample by sample: loss terms and prototypes.

FedOT's gradients and FedDEAP's networks are in the methods' own files.

With lr = 0 and one batch, a round's mean over steps is the loss of the first parameters.
"""

import pytest
import torch

from tests.support.against import build, diagnostics, engine_batches, samples
from tests.support.oracles import fedalign as aligned
from tests.support.oracles import promptfl as prompts
from tests.support.tiny import run_rounds, tiny_federation

STILL = {"lr": 0.0, "batch_size": 64}


def test_fedalign_s_terms_prototypes_and_uploaded_features():
    federation = tiny_federation(reads="layer:1", samples=(12, 5, 7))
    method = build("fedalign", federation, rank=2, class_text="template", **STILL)
    event = run_rounds(method, federation, 1).finished[-1]
    state = method.init(federation.problem.generator)
    factors = tuple(v for n, v in state.server.items() if n.startswith("global_"))
    tail = aligned.ImageTail(federation.problem.backbone.model.visual, 1)
    seen = []
    for client, (xs, labels) in enumerate(zip(*samples(federation), strict=True)):
        features = [aligned.image_feature(tail, factors, method.config.gamma, x) for x in xs]
        said = [int(prompts.scores(state.shared["text"], f, method.scale).argmax()) for f in features]
        hits = [y for y, k in zip(labels.tolist(), said, strict=True) if y == k]
        seen.append((len(set(hits)), len(hits)))
        expected = {
            "cross_entropy": prompts.mean_loss(
                state.shared["text"], torch.stack(features), labels, method.scale
            ),
            "orthogonality": aligned.orthogonality(
                features, labels.tolist(), True, method.config.orthogonality_norm
            ),
            "prototypes": len(set(hits)),
            "uploaded_features": len(hits),
        }
        for name, value in expected.items():
            assert diagnostics(event, name)[client] == pytest.approx(float(value), abs=1e-8), name
    assert any(classes < found for classes, found in seen), "the case tells classes from features"


def test_terms_are_means_over_a_client_s_own_steps():
    """Two epochs of three, two and two batches, the last of them short: every step weighs the same."""
    federation = tiny_federation(reads="layer:1")
    method = build(
        "fedalign", federation, rank=2, class_text="template", lr=0.0, batch_size=4, local_epochs=2
    )
    event = run_rounds(method, federation, 1).finished[-1]
    assert [c.steps for c in event.clients] == [6, 4, 4]
    state = method.init(federation.problem.generator)
    factors = tuple(v for n, v in state.server.items() if n.startswith("global_"))
    tail = aligned.ImageTail(federation.problem.backbone.model.visual, 1)
    ((*drawn,),) = engine_batches(federation, method, 1)
    for client, (xs, labels) in enumerate(zip(*samples(federation), strict=True)):
        features = torch.stack([aligned.image_feature(tail, factors, method.config.gamma, x) for x in xs])
        text = state.shared["text"]
        steps = [prompts.mean_loss(text, features[i], labels[i], method.scale) for i in drawn[client]]
        expected = float(sum(steps)) / len(steps)
        assert diagnostics(event, "cross_entropy")[client] == pytest.approx(expected, abs=1e-8)
