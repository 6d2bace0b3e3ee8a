"""Above a number of clients only a sample of them is evaluated, and its cells are those of all clients."""

import pytest
import torch

from fedcore.engine.clients import evaluator as evaluate
from fedcore.engine.clients.evaluator import evaluated_clients
from fedcore.records.codes import AFTER_AGGREGATION, BEFORE_AGGREGATION
from tests.support.own_methods import BiasConfig, BiasMethod
from tests.support.tiny import run_rounds, tiny_backbone, tiny_federation

SAMPLES = (9, 5, 7, 4, 6, 8)


class Global(BiasMethod):
    clients_use_global = True


@pytest.fixture(scope="module")
def backbone():
    return tiny_backbone()


def _cells(cls, backbone, rounds=2):
    federation = tiny_federation(backbone, samples=SAMPLES)
    loop = run_rounds(cls(BiasConfig(), federation.problem), federation, rounds)
    return [{(c.split, c.stage, c.model, c.test_set): c for c in e.cells} for e in loop.finished]


@pytest.mark.parametrize("cls", [BiasMethod, Global])
def test_the_cells_of_a_sample_equal_those_of_all_clients(backbone, monkeypatch, cls):
    everyone = _cells(cls, backbone)
    monkeypatch.setattr(evaluate, "MAX_EVALUATED_CLIENTS", 3)
    sampled = _cells(cls, backbone)
    clients = set(range(1, len(SAMPLES) + 1))
    for full, some in zip(everyone, sampled, strict=True):
        assert some.keys() < full.keys()
        for key, cell in some.items():
            if key[2] or key[1] == BEFORE_AGGREGATION:
                assert (cell.correct, cell.total) == (full[key].correct, full[key].total)
                assert cell.loss == pytest.approx(full[key].loss, abs=1e-12)
        models = {m for _, stage, m, _ in some if stage == AFTER_AGGREGATION and m}
        assert len(models) == 3 and models < clients
        columns = {t for _, stage, _, t in some if stage == AFTER_AGGREGATION and t in clients}
        assert columns == models
        assert {t for *_, t in some} >= {len(SAMPLES) + 1, len(SAMPLES) + 2}, "domains stay in full"
    drawn = [{m for _, stage, m, _ in e if stage == AFTER_AGGREGATION} for e in sampled]
    assert all(d == drawn[0] for d in drawn), "rounds can be compared only if they evaluate the same clients"


def test_participants_are_evaluated_before_aggregation_whether_drawn_or_not(backbone, monkeypatch):
    monkeypatch.setattr(evaluate, "MAX_EVALUATED_CLIENTS", 2)
    last = _cells(BiasMethod, backbone)[-1]
    own = {m for split, stage, m, t in last if stage == BEFORE_AGGREGATION and split == 2 and m == t}
    assert own == set(range(1, len(SAMPLES) + 1))


def test_the_sample_depends_on_names_and_seed_but_not_on_the_order_of_clients(backbone, monkeypatch):
    monkeypatch.setattr(evaluate, "MAX_EVALUATED_CLIENTS", 3)
    problems = [
        tiny_federation(backbone, samples=SAMPLES, order=order).problem
        for order in (None, (5, 2, 0, 1, 4, 3))
    ]
    names = [{p.clients[int(i)] for i in evaluated_clients(p)} for p in problems]
    assert names[0] == names[1]
    seeds = [tiny_federation(backbone, samples=SAMPLES, seed=s).problem for s in range(1, 9)]
    assert len({tuple(evaluated_clients(p).tolist()) for p in seeds}) > 1
    assert torch.equal(evaluated_clients(problems[0]), evaluated_clients(problems[0]).sort().values)
