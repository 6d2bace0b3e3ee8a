import math
from dataclasses import replace

import pytest
import torch

from fedcore.methods.baselines.facmic import FACMIC, FACMICConfig, lmmd
from tests.support.against import NEAR, diagnostics, engine_batches, global_logits, samples
from tests.support.oracles.fedavg import nll
from tests.support.oracles.promptfl import weighted
from tests.support.tiny import run_rounds, tiny_federation

SMALL = {"batch_size": 4, "lr": 0.01}
NAMES = ("w1", "b1", "gamma", "beta", "w2", "b2")


def naive_lmmd(source, labels, target, probabilities):
    """Zhu et al., 2021, one class and one pair of samples at a time."""
    both = [*source, *target]
    squares = [[((a - b) ** 2).sum() for b in both] for a in both]
    width = float(sum(sum(row) for row in squares)) / (len(both) * (len(both) - 1))

    def kernel(i, j):
        return sum(torch.exp(-squares[i][j] / (width * 2.0**p)) for p in range(-2, 3))

    guesses = {int(p.argmax()) for p in probabilities}
    classes = sorted(set(labels.tolist()) & guesses)
    total, n = torch.zeros((), dtype=torch.float64), len(source)
    for c in classes:
        mine = [float(y == c) for y in labels]
        s = [v / sum(mine) for v in mine]
        t = [float(p[c]) / float(probabilities[:, c].sum()) for p in probabilities]
        for i in range(n):
            total = total + sum(s[i] * s[j] * kernel(i, j) for j in range(n))
            total = total - 2 * sum(s[i] * w * kernel(i, n + j) for j, w in enumerate(t))
        for i, wi in enumerate(t):
            total = total + sum(wi * wj * kernel(n + i, n + j) for j, wj in enumerate(t))
    return total / max(1, len(classes))


def adapt(values, x, statistics=None):
    """One client's weighted embeddings, and the mean and variance of its batch."""
    w1, b1, gamma, beta, w2, b2 = values
    hidden = torch.stack([w1 @ h + b1 for h in x])
    mean, var = hidden.mean(0), hidden.var(0, unbiased=False)
    used = (mean, var) if statistics is None else statistics
    unit = (hidden - used[0]) / (used[1] + 1e-5).sqrt() * gamma + beta
    unit = torch.where(unit > 0, unit, 0.01 * unit)
    return torch.stack([(w2 @ u + b2).softmax(0) * h for u, h in zip(unit, x, strict=True)]), mean, var


READINGS = [
    {"loss": "contrastive"},
    {"loss": "ce", "target": "held_out"},
    {"loss": "contrastive", "target": "held_out", "target_features": "adapted"},
    {"loss": "ce", "weighting": "uniform", "optimiser_state": "fresh"},
]


@pytest.mark.parametrize("reading", READINGS, ids=lambda r: "-".join(r.values()))
def test_agrees_with_the_naive_implementation(reading):
    federation = tiny_federation(samples=(5, 4, 7))
    problem = federation.problem
    rows = federation.test.held_by(0)
    federation = replace(federation, unlabelled=rows)
    method = FACMIC(FACMICConfig(**SMALL, **reading), problem)
    loss, target = reading["loss"], reading.get("target", "none")
    raw = reading.get("target_features", "raw") == "raw"
    keeps_state = reading.get("optimiser_state", "kept") == "kept"
    weights = [5.0, 4.0, 7.0] if reading.get("weighting", "samples") == "samples" else [1.0] * 3
    first = method.init(problem.generator).shared
    xs, labels = samples(federation)
    text, scale = problem.class_features, problem.backbone.logit_scale
    unlabelled = federation.pool.x(rows)

    def scores(h):
        return torch.stack([scale * text @ (v / v.norm()) for v in h])

    def objective(values, x, y):
        h, mean, var = adapt(values, x)
        if loss == "ce":
            value = sum(nll(s, one) for s, one in zip(scores(h), y, strict=True)) / len(y)
        else:
            table, diagonal = scores(h)[:, y], range(len(y))
            both = [nll(table[i], torch.tensor(i)) + nll(table[:, i], torch.tensor(i)) for i in diagonal]
            value = sum(both) / (2 * len(y))
        if target == "held_out":
            other = adapt(values, unlabelled)[0]
            guessed = scores(other).softmax(-1).detach()
            unit = [v / v.norm(dim=1, keepdim=True) for v in (h, unlabelled if raw else other)]
            value = value + naive_lmmd(unit[0], y, unit[1], guessed)
        return value, mean.detach(), var.detach() * len(y) / max(1, len(y) - 1)

    common = {name: value.clone() for name, value in first.items()}
    held = [[common[n].clone().requires_grad_() for n in NAMES] for _ in xs]

    def adam(values):
        return torch.optim.Adam(values, lr=0.01, betas=(0.9, 0.98), eps=1e-6, weight_decay=0.02)

    optimisers = [adam(values) for values in held]
    for steps_of in engine_batches(federation, method, 2):
        sent = []
        for k, steps in enumerate(steps_of):
            values = held[k]
            for value, name in zip(values, NAMES, strict=True):
                value.data = common[name].clone()
            running = [common["running_mean"].clone(), common["running_var"].clone()]
            moves = optimisers[k] if keeps_state else adam(values)
            for chosen in steps:
                moves.zero_grad()
                value, *now = objective(values, xs[k][chosen], labels[k][chosen])
                value.backward()
                moves.step()
                if len(chosen) > 1:
                    running = [0.9 * r + 0.1 * v for r, v in zip(running, now, strict=True)]
            sent.append([*(v.detach().clone() for v in values), *running])
        names = (*NAMES, "running_mean", "running_var")
        common = {n: weighted([s[i] for s in sent], weights) for i, n in enumerate(names)}

    loop = run_rounds(method, federation, 2)
    for name, value in common.items():
        torch.testing.assert_close(loop.state.shared[name], value, **NEAR, msg=name)
        assert (value - first[name]).abs().max() > 1e-4, f"{name} did move"
    statistics = common["running_mean"], common["running_var"]
    h = adapt([common[n] for n in NAMES], federation.pool.values, statistics)[0]
    torch.testing.assert_close(global_logits(method, loop.state, federation), scores(h), **NEAR)
    assert bool(diagnostics(loop.finished[-1], "alignment")) == (target == "held_out")


def test_equal_domains_have_no_discrepancy_and_other_classes_do_not_count():
    x = torch.randn(1, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    labels = torch.tensor([[0, 0, 1, 1]])
    mask = torch.ones(1, 4, dtype=torch.bool)
    sure = torch.nn.functional.one_hot(labels, 3).double()
    assert lmmd(x, labels, mask, x, sure).abs().max() < 1e-12
    moved = lmmd(x, labels, mask, x + 1, sure)
    assert moved > 0.1 and math.isfinite(float(moved))
    elsewhere = torch.nn.functional.one_hot(torch.full((1, 4), 2), 3).double()
    assert lmmd(x, labels, mask, x + 1, elsewhere) == 0


def test_alignment_with_a_held_out_domain_is_named_beside_results():
    assert "unlabelled images of the held-out" in FACMIC.result_caveat(FACMICConfig(target="held_out"), True)
    assert FACMIC.result_caveat(FACMICConfig(), True) == ""
