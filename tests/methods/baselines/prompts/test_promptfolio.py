import torch

from fedcore.methods.base import State
from tests.support.against import build, client_logits, engine_batches, global_logits, samples
from tests.support.oracles.fedavg import nll
from tests.support.oracles.promptfl import sgd, text_features, weighted
from tests.support.tiny import run_rounds, tiny_federation

SETTINGS = {"context_length": 3, "lr": 0.05, "batch_size": 4}
NEAR = {"atol": 1e-6, "rtol": 0}


def test_agrees_with_the_naive_implementation():
    federation = tiny_federation()
    problem, backbone = federation.problem, federation.problem.backbone
    model, tokenizer, scale = backbone.model, backbone.tokenizer, backbone.logit_scale
    method = build("promptfolio", federation, **SETTINGS)
    first = method.init(problem.generator)
    context, owns = first.shared["context"], list(first.local["own"])
    assert not torch.equal(owns[0], owns[1])

    def scores(prompt, own, x):
        parts = [text_features(model, tokenizer, p, problem.classes) for p in (prompt, own)]
        return [scale * (0.6 * parts[0] + 0.4 * parts[1]) @ (h / h.norm()) for h in x]

    xs, labels = samples(federation)
    config = {"lr": 0.05, "momentum": 0.9, "weight_decay": 5e-4}
    for steps_of in engine_batches(federation, method, 2):
        sent = []
        for client, steps in enumerate(steps_of):
            values = [v.clone().requires_grad_() for v in (context, owns[client])]
            momenta: list[torch.Tensor | None] = [None, None]
            for chosen in steps:
                found = scores(*values, xs[client][chosen])
                loss = sum(nll(s, y) for s, y in zip(found, labels[client][chosen], strict=True)) / len(found)
                values = sgd(values, list(torch.autograd.grad(loss, values)), momenta, config)
            sent.append(values[0])
            owns[client] = values[1].detach()
        context = weighted(sent, [float(len(y)) for y in labels])

    state = run_rounds(method, federation, 2).state
    torch.testing.assert_close(state.shared["context"], context, **NEAR)
    torch.testing.assert_close(state.local["own"], torch.stack(owns), **NEAR)
    assert (context - first.shared["context"]).abs().max() > 1e-3  # it did train
    assert (state.local["own"] - first.local["own"]).abs().max() > 1e-3
    for ours, own in zip(client_logits(method, state, federation), owns, strict=True):
        expected = torch.stack(scores(context, own, federation.pool.values))
        torch.testing.assert_close(ours, expected, **NEAR)
    text = text_features(model, tokenizer, context, problem.classes)
    images = [h / h.norm() for h in federation.pool.values]
    expected = torch.stack([scale * text @ h for h in images])
    torch.testing.assert_close(global_logits(method, state, federation), expected, **NEAR)


def test_theta_one_is_coop_bit_for_bit():
    federation = tiny_federation()
    alone = build("coop", federation, **SETTINGS)
    folio = build("promptfolio", federation, **SETTINGS, theta=1)
    first = folio.init(federation.problem.generator)
    alone.init = lambda generator: State(local={"context": first.local["own"]})
    ours, theirs = (run_rounds(m, federation, 2).state for m in (folio, alone))
    assert torch.equal(ours.local["own"], theirs.local["context"])
