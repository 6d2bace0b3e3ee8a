"""What a cell of the accuracy matrix is made from, where a careless evaluation would go wrong."""

import math
from dataclasses import replace

import pytest
import torch

from fedcore.base.events import AFTER_AGGREGATION, BEFORE_AGGREGATION
from fedcore.engine.clients import evaluator, executor
from fedcore.engine.clients.evaluator import evaluated_clients, first_equal, samples_at_once
from fedcore.methods.base import Models
from fedcore.methods.feddeap import FedDEAP, FedDEAPConfig
from fedcore.methods.sdfed.method import SDFed, SDFedConfig
from tests.support.against import build
from tests.support.own_methods import BiasConfig, BiasMethod
from tests.support.tiny import drawn_backbone, run_rounds, tiny_federation


@pytest.fixture(scope="module")
def backbone():
    return drawn_backbone()


def after_aggregation(loop, full):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluator, "FULL_MATRIX_CLIENTS", 0)
        return executor.after_aggregation(
            loop.worker.evaluators, loop.executor, loop.state, not full, loop.chunk, loop.should_stop
        )


def _diagonal(cells, split=2):
    return {
        c.model: (c.correct, c.total, c.loss) for c in cells if c.split == split and c.model == c.test_set
    }


def test_batch_dependent_predictions_see_neither_padding_nor_other_test_sets(backbone):
    """FedDEAP with the test batch's mean: a client's figures are those of its own samples alone."""
    config = FedDEAPConfig(prompt_length=2, image_context="batch", batch_size=3, lr=0.1)
    federation = tiny_federation(backbone, samples=(9, 5, 7))
    loop = run_rounds(FedDEAP(config, federation.problem), federation, 1)
    models = loop.method.models(loop.state)
    full = after_aggregation(loop, full=True)
    diagonal = after_aggregation(loop, full=False)
    assert {k: v[:2] for k, v in _diagonal(full).items()} == {
        k: v[:2] for k, v in _diagonal(diagonal).items()
    }
    domains = [
        {(c.model, c.test_set, c.correct, c.total) for c in cells if c.test_set > 3}
        for cells in (full, diagonal)
    ]
    assert domains[0] == domains[1] and len(domains[0]) == 4 * 2
    for model, (_, _, loss) in _diagonal(full).items():
        assert loss == pytest.approx(_diagonal(diagonal)[model][2], abs=1e-12)
    for c in range(3):
        params = {n: v[c : c + 1] for n, v in models.clients.items()}
        rows = federation.test.held_by(c)
        order = torch.randperm(len(rows), generator=federation.problem.generator("evaluate", len(rows)))
        logits = loop.method.logits(params, {}, federation.pool.values[rows[order]][None])[0]
        loss = torch.nn.functional.cross_entropy(logits, federation.pool.labels[rows[order]])
        assert _diagonal(full)[c + 1][2] == pytest.approx(float(loss), abs=1e-12)


def test_test_images_sorted_by_class_form_batches_as_in_fed_deap_s_code(backbone):
    """The order decides what a batch's mean tells; it changes nothing else, and the run is marked."""
    federation = tiny_federation(backbone, samples=(9, 5, 7), classes=("cat", "owl", "engine"))
    losses = {}
    for order in ("shuffled", "sorted"):
        config = FedDEAPConfig(prompt_length=2, image_context="batch", batch_size=3, lr=0.1, test_order=order)
        loop = run_rounds(FedDEAP(config, federation.problem), federation, 1)
        assert bool(FedDEAP.result_caveat(config, True)) == (order == "sorted")
        models = loop.method.models(loop.state)
        losses[order] = _diagonal(after_aggregation(loop, full=False))
    for c in range(3):
        params = {n: v[c : c + 1] for n, v in models.clients.items()}
        rows = federation.test.held_by(c)
        rows = torch.tensor(sorted(rows.tolist(), key=lambda r: (int(federation.pool.labels[r]), r)))
        logits = loop.method.logits(params, {}, federation.pool.values[rows][None])[0]
        loss = torch.nn.functional.cross_entropy(logits, federation.pool.labels[rows])
        assert losses["sorted"][c + 1][2] == pytest.approx(float(loss), abs=1e-12)
    assert losses["sorted"] != losses["shuffled"], "the case needs batches whose means differ"
    with pytest.raises(ValueError, match="test_order matters only if"):
        FedDEAPConfig(test_order="sorted")


def test_clients_with_the_global_parameters_but_their_own_label_space_are_evaluated_themselves(backbone):
    federation = tiny_federation(backbone, samples=(4, 4, 4), classes=("cat", "owl", "engine", "tree", "car"))
    config = SDFedConfig(components="none", label_space="client", global_length=2, lr=0.1)
    loop = run_rounds(SDFed(config, federation.problem), federation, 1)
    held = federation.problem.class_counts > 0
    assert not held.all(), "the case needs a client that lacks a class"
    for cell in loop.finished[-1].cells:
        if cell.split == 2 and 1 <= cell.model <= 3 and cell.stage == AFTER_AGGREGATION:
            rows = federation.test.held_by(cell.test_set - 1)
            possible = int(held[cell.model - 1][federation.pool.labels[rows]].sum())
            assert cell.correct <= possible
            assert (cell.loss is None) == (possible < cell.total)  # an impossible class has infinite loss
    assert all(c.loss is None or math.isfinite(c.loss) for c in loop.finished[-1].cells)


def test_the_shortcut_for_methods_with_a_global_model_only_gives_the_same_cells(backbone):
    class Global(BiasMethod):
        def models(self, state):
            common = {"weight": state.shared["weight"][None]}
            return Models(common, self.repeat(state.shared))

    class Shortcut(Global):
        clients_use_global = True

    federation = tiny_federation(backbone)
    cells = []
    for cls in (Global, Shortcut):
        loop = run_rounds(cls(BiasConfig(), federation.problem), federation, 2)
        cells.append({(c.split, c.stage, c.model, c.test_set): c for c in loop.finished[-1].cells})
    assert cells[0].keys() == cells[1].keys()
    for key, cell in cells[0].items():
        assert (cell.correct, cell.total) == (cells[1][key].correct, cells[1][key].total)


def test_no_validation_samples_give_no_validation_cells(backbone):
    federation = tiny_federation(backbone)
    empty = replace(federation.validation, counts=torch.zeros_like(federation.validation.counts))
    method = BiasMethod(BiasConfig(), federation.problem)
    loop = run_rounds(method, replace(federation, validation=empty), 1)
    assert {c.split for c in loop.finished[-1].cells} == {2}


@pytest.mark.parametrize("numbers", [0, 16, 2**20])
def test_a_method_that_needs_more_memory_per_sample_predicts_fewer_at_once(backbone, numbers):
    seen = []

    class Costly(BiasMethod):
        def numbers_per_sample(self):
            return numbers

        def logits(self, params, head, x):
            if not torch.is_grad_enabled():  # not training
                seen.append(x.shape[:2])
            return super().logits(params, head, x)

    federation = tiny_federation(backbone)
    method = Costly(BiasConfig(), federation.problem)
    run_rounds(method, federation, 1)
    most = 2**21 // (16 + numbers)
    assert samples_at_once(method, federation.pool) == most
    assert all(samples <= max(1, most // models) for models, samples in seen)
    assert (max(samples for _, samples in seen) > 1) == (numbers < 2**20)


SAMPLES = (9, 5, 7, 4, 6, 8)


class Global(BiasMethod):
    clients_use_global = True


def _cells(cls, backbone, rounds=2):
    federation = tiny_federation(backbone, samples=SAMPLES)
    loop = run_rounds(cls(BiasConfig(), federation.problem), federation, rounds)
    return [{(c.split, c.stage, c.model, c.test_set): c for c in e.cells} for e in loop.finished]


@pytest.mark.parametrize("cls", [BiasMethod, Global])
def test_the_cells_of_a_sample_equal_those_of_all_clients(backbone, monkeypatch, cls):
    everyone = _cells(cls, backbone)
    monkeypatch.setattr(evaluator, "MAX_EVALUATED_CLIENTS", 3)
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
    monkeypatch.setattr(evaluator, "MAX_EVALUATED_CLIENTS", 2)
    last = _cells(BiasMethod, backbone)[-1]
    evaluated = {m for split, stage, m, t in last if stage == BEFORE_AGGREGATION and split == 2 and m == t}
    assert evaluated == set(range(1, len(SAMPLES) + 1))


def test_the_sample_depends_on_names_and_seed_but_not_on_the_order_of_clients(backbone, monkeypatch):
    monkeypatch.setattr(evaluator, "MAX_EVALUATED_CLIENTS", 3)
    problems = [
        tiny_federation(backbone, samples=SAMPLES, order=order).problem
        for order in (None, (5, 2, 0, 1, 4, 3))
    ]
    names = [{p.clients[int(i)] for i in evaluated_clients(p)} for p in problems]
    assert names[0] == names[1]
    seeds = [tiny_federation(backbone, samples=SAMPLES, seed=s).problem for s in range(1, 9)]
    assert len({tuple(evaluated_clients(p).tolist()) for p in seeds}) > 1
    assert torch.equal(evaluated_clients(problems[0]), evaluated_clients(problems[0]).sort().values)


@pytest.fixture(scope="module")
def mostly_untrained(backbone):
    """Models of six clients of which one has trained, with their head, and an evaluator of them."""
    federation = tiny_federation(backbone, "layer:0", samples=(4,) * 6)
    method = build("fedmgp", federation, groups=2, shared_groups=1, batch_size=4, lr=0.05)
    loop = run_rounds(method, federation, 1, participation=0.2)
    everyone = torch.arange(6)
    params = loop.method.models(loop.state).of(everyone)
    (trained,) = loop.participants(1).tolist()
    others = [client for client in range(6) if client != trained]
    equal = [trained if client == trained else others[0] for client in range(6)]
    assert first_equal(list(params.values())).tolist() == equal
    return loop.worker.evaluators[0], params, loop.method.head(params, federation.local_data(everyone))


def scores_and_passes(monkeypatch, given, noise: float = 0.0):
    """Scores of all samples by one sample a pass, and the number of passes."""
    scorer, params, head = given
    predict, rows = scorer.method.logits, torch.arange(6.0)[:, None, None]
    calls = []

    def logits(*args):
        calls.append(args)
        return predict(*args) + noise * rows[: len(args[2])] * args[2].stride(0)

    monkeypatch.setattr(scorer.method, "logits", logits)
    samples = torch.arange(len(scorer.federation.pool.labels))[None]
    return scorer.score(params, head, samples), len(calls)


def test_equal_models_are_scored_once_with_the_same_bits(mostly_untrained, monkeypatch):
    monkeypatch.setitem(evaluator._ELEMENTS, "cpu", 1)
    once, few = scores_and_passes(monkeypatch, mostly_untrained)
    monkeypatch.setattr(evaluator, "FEWEST", 10**6)
    each, many = scores_and_passes(monkeypatch, mostly_untrained)
    assert few <= many / 2 + 1 and all(map(torch.equal, once, each))
    assert len(each[1].unique(dim=0)) == 2, "the case needs models that differ"


def test_scores_that_depend_on_their_row_are_computed_for_every_model(mostly_untrained, monkeypatch):
    monkeypatch.setitem(evaluator._ELEMENTS, "cpu", 1)
    found, passes = scores_and_passes(monkeypatch, mostly_untrained, noise=1e-6)
    monkeypatch.setattr(evaluator, "FEWEST", 10**6)
    each, many = scores_and_passes(monkeypatch, mostly_untrained, noise=1e-6)
    assert passes == many + 1 and all(map(torch.equal, found, each))


def test_a_head_without_the_axis_of_models_is_the_head_of_them_all(mostly_untrained, monkeypatch):
    monkeypatch.setitem(evaluator._ELEMENTS, "cpu", 1)
    scorer, params, head = mostly_untrained
    shared, predict = torch.ones(1, 3), scorer.method.logits
    monkeypatch.setattr(
        scorer.method, "logits", lambda p, h, x: predict(p, {n: v for n, v in h.items() if n != "own"}, x)
    )
    samples = torch.arange(len(scorer.federation.pool.labels))[None]
    plain = scorer.score(params, head, samples)
    assert all(map(torch.equal, plain, scorer.score(params, {**head, "own": shared}, samples)))
