"""Rounds in which only some clients take part, against a textbook loop over these."""

from __future__ import annotations

import pytest
import torch

from fedcore.engine.loop import Loop
from tests.support.own_methods import BiasConfig, BiasMethod
from tests.support.tiny import run_rounds, tiny_backbone, tiny_federation

SAMPLES = (9, 5, 7, 12, 4)


@pytest.fixture(scope="module")
def federation():
    return tiny_federation(tiny_backbone(), samples=SAMPLES)


def textbook(method: BiasMethod, federation, present: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Shared weight and all biases after rounds of which only ``present`` were part, one client at a time."""
    config, problem = method.config, federation.problem
    state = method.init(problem.generator)
    weight, biases = state.shared["weight"], list(state.local["bias"])
    for round_, clients in enumerate(present, start=1):
        total, share = torch.zeros_like(weight), 0
        for c in clients:
            w, b = weight.clone().requires_grad_(), biases[c].clone().requires_grad_()
            sgd = torch.optim.SGD([w, b], config.lr, config.momentum, weight_decay=config.weight_decay)
            draws = problem.generator("batches", round_, 0, problem.clients[c])
            order = torch.randperm(SAMPLES[c], generator=draws)
            for part in federation.train.index[c, : SAMPLES[c]][order].split(config.batch_size):
                sgd.zero_grad()
                scores = federation.pool.values[part] @ w.T + b
                torch.nn.functional.cross_entropy(scores, federation.pool.labels[part]).backward()
                sgd.step()
            own = SAMPLES[c] if config.weighting == "samples" else 1
            total, share = total + own * w.detach(), share + own
            biases[c] = b.detach()
        weight = total / share
    return weight, torch.stack(biases)


@pytest.mark.parametrize("chunk", [1, 32])
@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_who_takes_part_is_averaged_by_its_own_samples_and_alone_moves(federation, weighting, chunk):
    method = BiasMethod(BiasConfig(weighting=weighting), federation.problem)
    loop = run_rounds(method, federation, 4, participation=0.4, chunk=chunk)
    present = [[row.client - 1 for row in event.clients] for event in loop.finished[1:]]
    assert [len(clients) for clients in present] == [2] * 4
    assert any(clients != sorted(range(2)) for clients in present), "not the first two again and again"
    weight, bias = textbook(method, federation, present)
    torch.testing.assert_close(loop.state.shared["weight"], weight, rtol=0, atol=1e-10)
    torch.testing.assert_close(loop.state.local["bias"], bias, rtol=0, atol=1e-10)
    assert loop.state.rounds_trained.tolist() == [sum(c in clients for clients in present) for c in range(5)]


def test_every_round_draws_its_own_participants_until_all_have_taken_part(federation):
    loop = Loop(BiasMethod(BiasConfig(), federation.problem), federation, 1, participation=0.4)
    drawn = [tuple(loop.participants(round_).tolist()) for round_ in range(1, 31)]
    assert drawn == [tuple(loop.participants(round_).tolist()) for round_ in range(1, 31)]
    assert len(set(drawn)) > 5, "of ten pairs"
    assert all(a < b for a, b in drawn)
    assert {c for pair in drawn for c in pair} == set(range(5))


@pytest.mark.parametrize(
    ("share", "expected"), [(0.01, 1), (0.3, 2), (0.49, 2), (0.5, 3), (0.9, 5), (1.0, 5)]
)
def test_a_share_of_the_clients_is_rounded_half_up_and_never_none(federation, share, expected):
    loop = Loop(BiasMethod(BiasConfig(), federation.problem), federation, 1, participation=share)
    assert len(loop.participants(1)) == expected
