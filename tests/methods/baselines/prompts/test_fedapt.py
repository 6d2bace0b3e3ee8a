from __future__ import annotations

import pytest
import torch

from fedcore.clip.specs import backbone_spec
from fedcore.errors import FedLensError
from fedcore.methods import tensors
from fedcore.methods.base import RunContext
from fedcore.methods.baselines.prompts.fedapt import FedAPT, FedAPTConfig
from tests.support.against import build, cells, client_logits, engine_batches, global_logits, samples
from tests.support.oracles.fedavg import nll
from tests.support.oracles.promptfl import scores, sgd, text_features, weighted

SMALL = {"batch_size": 4, "lr": 0.05, "context_length": 3}
CONFIG = {"lr": 0.05, "momentum": 0.9, "weight_decay": 5e-4}


def texts(problem, context, key):
    prompts = torch.stack([v + v * key for v in context])
    return text_features(problem.backbone.model, problem.backbone.tokenize, prompts, problem.classes)


def test_agrees_with_the_naive_implementation(tiny_backbone, tiny_federation, run_rounds):
    federation = tiny_federation(tiny_backbone(), samples=(5, 3, 4))
    problem = federation.problem
    method = build("fedapt", federation, **SMALL, query_weight=0.7)
    first = method.init(problem.generator)
    scale = problem.backbone.logit_scale
    xs, labels = samples(federation)
    common = [first.shared[name] for name in method.shared]
    keys = list(first.shared["keys"])
    for steps_of in engine_batches(federation, method, 3):
        sent = []
        for k, steps in enumerate(steps_of):
            values = [v.clone().requires_grad_() for v in (*common, keys[k])]
            momenta = [None] * 4
            for chosen in steps:
                text, loss = texts(problem, values[0], values[3]), 0.0
                for i in chosen:
                    h, y = xs[k][i], labels[k][i]
                    query = values[1] @ (h / h.norm()) + values[2]
                    loss = loss + nll(scores(text, h, scale), y) + 0.7 * nll(query, torch.tensor(k))
                gradients = torch.autograd.grad(loss / len(chosen), values)
                values = sgd(values, list(gradients), momenta, CONFIG)
            sent.append(values[:3])
            keys[k] = values[3].detach()
        common = [weighted([s[i].detach() for s in sent], [1.0] * 3) for i in range(3)]

    state = run_rounds(method, federation, 3).state
    near = {"atol": 1e-6, "rtol": 0}
    for name, value in zip(method.shared, common, strict=True):
        torch.testing.assert_close(state.shared[name], value, **near)
    torch.testing.assert_close(state.shared["keys"], torch.stack(keys), **near)
    assert torch.stack(keys).abs().max() > 1e-4, "the keys did train"

    def predicted(h):
        query = common[1] @ (h / h.norm()) + common[2]
        standard = (query - query.mean()) / query.std(unbiased=False)
        share = torch.exp(standard / 0.01 - (standard / 0.01).max())
        key = sum(w * own for w, own in zip(share / share.sum(), keys, strict=True))
        return scores(texts(problem, common[0], key), h, scale)

    shown = torch.stack([predicted(h) for h in federation.pool.values[:6]])
    torch.testing.assert_close(global_logits(method, state, federation)[:6], shown, **near)
    for own in client_logits(method, state, federation):
        torch.testing.assert_close(own[:6], shown, **near)
    params = method.models(state).global_model
    x = federation.pool.values[None, :6]
    images, classes = method.features(params, {}, x)
    cosines = torch.nn.functional.cosine_similarity(images[:, :, None], classes, dim=-1)
    torch.testing.assert_close(scale * cosines[0], shown, **near)


def test_without_a_key_it_is_promptfl_with_a_context_for_each_class(tiny_backbone, tiny_federation):
    federation = tiny_federation(tiny_backbone())
    ours = build("fedapt", federation, **SMALL)
    other = build("promptfl", federation, context_length=3, class_specific=True)
    state = ours.init(federation.problem.generator)
    theirs = other.init(federation.problem.generator)
    theirs.shared["context"] = state.shared["context"]
    torch.testing.assert_close(
        global_logits(ours, state, federation), global_logits(other, theirs, federation)
    )


def test_predicting_in_pieces_gives_the_same_numbers(tiny_backbone, tiny_federation, run_rounds, monkeypatch):
    federation = tiny_federation(tiny_backbone())
    method = build("fedapt", federation, **SMALL)
    loop = run_rounds(method, federation, 1)
    whole = global_logits(method, loop.state, federation)
    monkeypatch.setattr(tensors, "PIECE_BYTES", {"cpu": 1})
    parts = build("fedapt", federation, **SMALL)
    assert (parts._piece, method._piece > 1) == (1, True)
    torch.testing.assert_close(global_logits(parts, loop.state, federation), whole)
    assert cells(loop, stage="before_aggregation")


def test_who_sits_out_keeps_its_key(tiny_backbone, tiny_federation, run_rounds):
    federation = tiny_federation(tiny_backbone())
    loop = run_rounds(build("fedapt", federation, **SMALL), federation, 1, participation=0.4)
    moved = loop.state.shared["keys"].flatten(1).abs().amax(1) > 0
    assert moved.sum() == loop.state.rounds_trained.sum() and moved.sum() in (1, 2)


def test_a_context_without_room_and_a_foreign_text_tower_are_refused_before_anything_is_loaded():
    context = RunContext(backbone_spec("ViT-B-32"), ("fire engine", "x" * 80), 2, ("x",), "a {}")
    with pytest.raises(FedLensError, match="no room for class") as error:
        FedAPT.check(FedAPTConfig(context_length=74), context)
    assert error.value.field == "context_length"
    odd = RunContext(backbone_spec("coca_ViT-B-32"), ("a", "b"), 2, ("x",), "a {}")
    with pytest.raises(FedLensError, match="takes no learned prompts") as error:
        FedAPT.check(FedAPTConfig(), odd)
    assert error.value.field == "backbone.name"
