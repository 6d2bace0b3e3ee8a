import pytest
import torch

from fedcore.base.errors import FedLensError
from fedcore.methods.baselines.prompts.proda import ProDA, ProDAConfig, places
from tests.support.against import NEAR, build, engine_batches, global_logits, samples
from tests.support.oracles.fedavg import nll
from tests.support.oracles.promptfl import sgd, weighted
from tests.support.tiny import run_rounds, tiny_federation

SETTINGS = {"context_length": 3, "lr": 0.05, "batch_size": 4}


def features(model, tokenizer, prompts: list[tuple[torch.Tensor, str, int]]) -> torch.Tensor:
    """Normalised features of [SOS] context[:before] name context[before:] . [EOT], one row for each prompt.

    Args:
        prompts: contexts (L, m), names, and how many vectors stand before the name.
    """
    ids, embedded = [], []
    for context, name, before in prompts:
        full, name_ids = tokenizer([f"{name}."])[0], tokenizer([name])[0]
        words = name_ids[1 : int(name_ids.argmax())]
        ending = full[1 + len(words) : int(full.argmax()) + 1]
        free = torch.zeros(len(context), dtype=torch.int64)  # any token: its embedding is replaced
        parts = full[:1], free[:before], words, free[before:], ending
        pieces = [model.token_embedding(part) for part in parts]
        pieces[1], pieces[3] = context[:before], context[before:]
        rest = torch.zeros(model.context_length - sum(map(len, parts)), dtype=torch.int64)
        ids.append(torch.cat([*parts, rest]))
        embedded.append(torch.cat([*pieces, model.token_embedding(rest)]))
    hook = model.token_embedding.register_forward_hook(lambda *_: torch.stack(embedded))
    try:
        found = model.encode_text(torch.stack(ids))
    finally:
        hook.remove()
    return torch.stack([row / row.norm() for row in found])


def recorded(monkeypatch) -> list[torch.Tensor]:
    """The prompts of every client's steps, round by round, as the method draws them."""
    drawn, hook = [], ProDA.round_constants

    def note(self, params, data):
        const = hook(self, params, data)
        if len(data.clients) == 3:  # all clients at once, rather than one whose memory is measured
            drawn.append(const["chosen"])
        return const

    monkeypatch.setattr(ProDA, "round_constants", note)
    return drawn


def test_agrees_with_the_naive_implementation(monkeypatch):
    federation = tiny_federation(samples=(6, 3, 4))
    problem, backbone = federation.problem, federation.problem.backbone
    model, tokenizer, s = backbone.model, backbone.tokenizer, backbone.logit_scale
    method = build("proda", federation, **SETTINGS, prompts=8, diversity_weight=0.3)
    drawn = recorded(monkeypatch)
    state = run_rounds(method, federation, 3).state
    first = contexts = method.init(problem.generator).shared["context"]

    def texts(contexts, numbers):
        """Shape: contexts (N, L, m) -> (numbers, K, d)."""
        befores = [0 if n < 2 else 1 if n < 4 else 3 for n in numbers]
        asked = [
            (contexts[n], name, before)
            for n, before in zip(numbers, befores, strict=True)
            for name in problem.classes
        ]
        return features(model, tokenizer, asked).unflatten(0, (len(befores), -1))

    def loss(prompts, numbers, xs, labels):
        t = texts(prompts, numbers)  # (4, K, d)
        mu = t.mean(0)
        covariance = torch.einsum("nkj,nlj->klj", t - mu, t - mu) / 5
        total = 0.0
        for x, y in zip(xs, labels, strict=True):
            h = x / x.norm()
            scores = []
            for k in range(len(mu)):
                spread = covariance[y, y] + covariance[k, k] - 2 * covariance[y, k]
                scores.append(s * h @ mu[k] + s**2 / 2 * (h**2 * spread).sum())
            total = total + nll(torch.stack(scores), y) / len(labels)
        alone = list(features(model, tokenizer, [(p, "", 3) for p in prompts]))
        pairs = [(a @ b).abs() for i, a in enumerate(alone) for j, b in enumerate(alone) if i != j]
        return total + 0.3 * sum(pairs) / len(pairs)

    xs, labels = samples(federation)
    config = {"lr": 0.05, "momentum": 0.9, "weight_decay": 5e-4}
    for round_, steps_of in enumerate(engine_batches(federation, method, 3)):
        sent = []
        for client, steps in enumerate(steps_of):
            values, momenta = [contexts.clone().requires_grad_()], [None]
            for number, chosen in enumerate(steps):
                prompts = drawn[round_][client, number].tolist()
                found = loss(values[0], prompts, xs[client][chosen], labels[client][chosen])
                values = sgd(values, list(torch.autograd.grad(found, values)), momenta, config)
            sent.append(values[0])
        contexts = weighted(sent, [float(len(y)) for y in labels])

    torch.testing.assert_close(state.shared["context"], contexts, **NEAR)
    assert (contexts - first).abs().amax((1, 2)).min() > 1e-3  # every prompt did train
    assert state.local["steps"].tolist() == [6, 3, 3]
    mu = texts(contexts, range(8)).mean(0)
    expected = torch.stack([s * mu @ (x / x.norm()) for x in federation.pool.values])
    torch.testing.assert_close(global_logits(method, state, federation), expected, **NEAR)


def test_a_client_goes_through_all_prompts_in_an_order_of_its_own(federation, monkeypatch):
    method = build("proda", federation, **SETTINGS | {"local_epochs": 2}, prompts=16)
    drawn = recorded(monkeypatch)
    run_rounds(method, federation, 2)
    for of_round in drawn:
        assert of_round.shape == (3, 8, 4)  # two epochs of three steps need two turns of four steps
        for steps in of_round:
            assert (
                sorted(steps[:4].flatten().tolist()) == sorted(steps[4:].flatten().tolist()) == [*range(16)]
            )
            assert all(
                (step.div(4, rounding_mode="floor").clamp(max=2)).tolist() == [0, 1, 2, 2] for step in steps
            )
    orders = {tuple(steps.flatten().tolist()) for of_round in drawn for steps in of_round}
    assert len(orders) == 6


def test_steps_that_cannot_have_the_same_shares_are_refused():
    for prompts, batch in ((32, 5), (8, 2), (32, 64)):
        with pytest.raises(FedLensError, match="choose prompt_batch = "):
            build("proda", tiny_federation(), prompts=prompts, prompt_batch=batch)
    build("proda", tiny_federation(), prompts=6, prompt_batch=6)


def test_a_quarter_of_the_prompts_is_rounded_down_as_the_field_says():
    assert [places(n) for n in (3, 6, 7)] == [(0, 0, 3), (1, 1, 4), (1, 1, 5)]
    assert "in a quarter, rounded down, " in str(ProDAConfig.model_fields["prompts"].description)
