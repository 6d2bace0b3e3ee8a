"""Between the first and the last round, as many samples of a test set as the run asks for are tested."""

from dataclasses import replace

import pytest
import torch

from fedcore.base.events import RoundFinished
from fedcore.engine.parallel import Parallel, Serving
from fedcore.engine.round import all_rounds
from fedcore.engine.server import Server
from fedcore.methods.federation import ClassSets
from tests.support.against import client_logits, counted, counts, global_logits
from tests.support.own_methods import BiasConfig, BiasMethod
from tests.support.tiny import at_once, finished, run_rounds, tiny_federation

SAMPLES = (9, 5, 7, 4, 6, 8)
WANTED, ROUNDS, LAST_CLIENT = 5, 3, len(SAMPLES)


class Global(BiasMethod):
    clients_use_global = True


def federation_with(samples, classes=False, **options):
    federation = tiny_federation(samples=SAMPLES, **options)
    if classes:
        rows = federation.test.select(torch.arange(LAST_CLIENT)).flat.unique()
        held = torch.tensor([[True, i % 2 == 0, i % 3 == 0] for i in range(LAST_CLIENT)])
        federation = replace(federation, class_sets=ClassSets(rows, held))
    return replace(federation, test_sample=samples)


@pytest.mark.parametrize("classes", [False, True], ids=["", "with class sets"])
@pytest.mark.parametrize("cls", [BiasMethod, Global])
def test_counts_in_between_are_those_of_the_sample_and_all_others_are_as_without_it(
    monkeypatch, cls, classes
):
    monkeypatch.setattr("fedcore.engine.clients.evaluator.FULL_MATRIX_CLIENTS", 2)
    whole, sampled = federation_with(None, classes), federation_with(WANTED, classes)
    expected = run_rounds(cls(BiasConfig(), whole.problem), whole, ROUNDS).finished
    loop = Server(cls(BiasConfig(), sampled.problem), sampled, ROUNDS)
    for event in all_rounds(loop):
        if not isinstance(event, RoundFinished):
            continue
        of_all = expected[event.round]
        if event.round in (0, ROUNDS):
            assert event.cells == of_all.cells
            continue
        common = global_logits(loop.method, loop.state, sampled)
        scores = [common, *client_logits(loop.method, loop.state, sampled)]
        found, full = counts(event), counts(of_all)
        assert found.keys() == full.keys()
        for (model, test_set), count in found.items():
            if test_set in (LAST_CLIENT + 1, LAST_CLIENT + 2):
                assert full[model, test_set][1] > WANTED, "the case needs larger test sets"
                rows = sampled.in_between.test.held_by(test_set - 1)
                predicted = common if cls is Global else scores[model]
                assert count == counted(predicted, sampled, rows) and count[1] == WANTED
            else:
                assert count == full[model, test_set], "a client's own test set, or that of its classes"


def test_the_sample_is_of_the_seed_and_the_test_set_whatever_the_order_of_clients():
    def drawn(**options):
        federation = federation_with(WANTED, **options)
        whole = [set(federation.test.held_by(i).tolist()) for i in range(LAST_CLIENT + 2)]
        now = [federation.in_between.test.held_by(i).tolist() for i in range(LAST_CLIENT + 2)]
        assert all(set(rows) <= all_rows for rows, all_rows in zip(now, whole, strict=True))
        assert [len(rows) for rows in now] == [4] * LAST_CLIENT + [WANTED] * 2
        return now[LAST_CLIENT:]

    assert drawn() == drawn(order=(5, 2, 0, 1, 4, 3))
    positions = [drawn(seed=seed) for seed in range(1, 5)]
    assert any(p != positions[0] for p in positions)
    more = federation_with(10**6)
    assert torch.equal(more.in_between.test.flat, more.test.flat), "at most the size of the set"


@pytest.mark.parametrize("cls", [BiasMethod, Global])
def test_a_resumed_run_and_other_processes_give_the_same_rows(tmp_path, monkeypatch, cls):
    monkeypatch.setattr("fedcore.engine.clients.evaluator.FULL_MATRIX_CLIENTS", 2)

    def new_loop(**options):
        federation = federation_with(WANTED)
        return Server(cls(BiasConfig(), federation.problem), federation, ROUNDS, **options)

    def cells(loop):
        return [event.cells for event in finished(all_rounds(loop))]

    expected = cells(new_loop(folder=tmp_path, run_key="k"))
    spread = new_loop()
    servings = [Serving(lambda: new_loop().worker) for _ in range(2)]
    spread.executor = Parallel([at_once(s) for s in servings], torch.device("cpu"))
    assert cells(spread) == expected
    part = new_loop(folder=tmp_path / "part", run_key="k")
    first = next(e for e in all_rounds(part) if isinstance(e, RoundFinished) and e.round == 1)
    resumed = new_loop(folder=tmp_path / "part", run_key="k")
    resumed.resume(first.checkpoint)
    assert cells(resumed) == expected[2:]
