"""FedAlign's local performance: each client's model on all test samples of the classes that it trains on."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedcore.base.events import AFTER_AGGREGATION, BEFORE_AGGREGATION, TEST, TRAIN, VALIDATION
from fedcore.data.splits import split as split_of
from fedcore.engine.federations import class_sets, unlabelled_rows
from fedcore.engine.round import all_rounds
from fedcore.engine.server import Server
from fedcore.methods.feddeap import FedDEAP, FedDEAPConfig
from fedcore.methods.federation import ClassSets
from tests.support.data.loading import loaded
from tests.support.data.partitions import drawn, partition
from tests.support.own_methods import BiasConfig, BiasMethod
from tests.support.tiny import drawn_backbone, run_rounds, tiny_federation


@pytest.fixture(scope="module")
def backbone():
    return drawn_backbone()


def _federation(backbone, held):
    federation = tiny_federation(backbone)
    rows = federation.test.index[:3][federation.test.mask[:3]].unique()
    return replace(federation, class_sets=ClassSets(rows, torch.tensor(held)))


HELD = [[True, True, False], [False, True, True], [True, False, False]]


def _by_hand(logits, federation, client):
    """Correct and total over single samples, one after another."""
    correct = total = 0
    for row in federation.class_sets.rows.tolist():
        label = int(federation.pool.labels[row])
        if HELD[client][label]:
            total += 1
            correct += int(logits(federation.pool.values[row])) == label
    return correct, total


@pytest.mark.parametrize("full", [True, False])
def test_counts_are_those_of_single_samples_before_and_after_aggregation(backbone, monkeypatch, full):
    monkeypatch.setattr("fedcore.engine.clients.evaluator.FULL_MATRIX_CLIENTS", 16 if full else 2)
    federation = _federation(backbone, HELD)
    method = BiasMethod(BiasConfig(lr=0.5), federation.problem)
    trained = {}

    class Keeping(BiasMethod):
        def upload(self, params, record, data):
            trained.update({n: v.clone() for n, v in params.items()})
            return super().upload(params, record, data)

    loop = Server(Keeping(method.config, federation.problem), federation, 2)
    finished = [e for e in all_rounds(loop) if hasattr(e, "cells")]
    trained_in_two = dict(trained)
    cells = {(c.stage, c.model): c for c in finished[2].cells if c.test_set > 5}
    assert {(c.model, c.test_set) for c in cells.values()} == {(1, 6), (2, 7), (3, 8)}
    everyone = loop.method.models(loop.state).clients
    for stage, params in ((BEFORE_AGGREGATION, trained_in_two), (AFTER_AGGREGATION, everyone)):
        for i in range(3):
            weight, bias = params["weight"][i], params["bias"][i]
            expected = _by_hand(lambda x, w=weight, b=bias: (w @ x + b).argmax(), federation, i)
            cell = cells[stage, i + 1]
            assert (cell.correct, cell.total) == expected and cell.total > 0
    assert len({cells[p, m].correct for p, m in cells}) > 1, "the case tells models apart"
    in_one = [c for c in finished[1].cells if c.test_set > 5]
    assert (
        [c.stage for c in in_one].count(BEFORE_AGGREGATION)
        == [c.stage for c in in_one].count(AFTER_AGGREGATION)
        == 3
    )


def test_a_client_that_predicts_with_the_global_model_has_its_own_class_set(backbone):
    class Shared(BiasMethod):
        clients_use_global = True

    federation = _federation(backbone, HELD)
    loop = run_rounds(Shared(BiasConfig(lr=0.5), federation.problem), federation, 1)
    weight = loop.state.shared["weight"]
    for cell in loop.finished[-1].cells:
        if cell.test_set > 5 and cell.stage == AFTER_AGGREGATION:
            expected = _by_hand(lambda x: (weight @ x).argmax(), federation, cell.model - 1)
            assert (cell.correct, cell.total) == expected
    assert sum(c.test_set > 5 and c.stage == AFTER_AGGREGATION for c in loop.finished[-1].cells) == 3


def test_batch_dependent_predictions_see_the_class_set_alone(backbone):
    """With the batch's mean in the prompt, what else is in the batch would change the loss."""
    federation = _federation(backbone, HELD)
    config = FedDEAPConfig(prompt_length=2, image_context="batch", batch_size=64, lr=0.1)
    loop = run_rounds(FedDEAP(config, federation.problem), federation, 1)
    models = loop.method.models(loop.state).clients
    for cell in [c for c in loop.finished[-1].cells if c.test_set > 5 and c.stage == AFTER_AGGREGATION]:
        i, rows = cell.model - 1, federation.class_sets.rows
        labels = federation.pool.labels[rows]
        mine = rows[torch.tensor(HELD[i])[labels]]
        params = {n: v[i : i + 1] for n, v in models.items()}
        logits = loop.method.logits(params, {}, federation.pool.values[mine][None])[0]
        loss = torch.nn.functional.cross_entropy(logits, federation.pool.labels[mine])
        assert cell.loss == pytest.approx(float(loss), abs=1e-10) and cell.total == len(mine)


def _images(domains=("photo",), per_class=10, classes=4):
    labels = np.tile(np.repeat(np.arange(classes), per_class), len(domains))
    domain = np.repeat(np.arange(len(domains)), per_class * classes)
    images = replace(drawn(labels.tolist(), domain.tolist()), domains=tuple(domains))
    split = np.tile(np.array([TRAIN] * 6 + [VALIDATION] * 2 + [TEST] * 2), len(labels) // 10)
    return images, split


def test_under_iid_every_client_holds_all_classes_and_is_measured_on_the_whole_test_set():
    images, split = _images()
    found = class_sets(images.labels, partition(images, split, kind="iid", clients=2, seed=1))
    assert found.held.all() and found.rows.tolist() == np.flatnonzero(split == TEST).tolist()


def test_under_dirichlet_a_class_counts_where_it_is_trained_on():
    images, split = _images(per_class=20)
    assignment = partition(images, split, kind="dirichlet", clients=3, alpha=0.2, seed=4)
    found = class_sets(images.labels, assignment)
    assert not found.held.all()
    for i, rows in enumerate(assignment.train):
        assert set(np.flatnonzero(found.held[i])) == set(images.labels[rows].tolist())


def test_test_samples_that_nobody_holds_count_too():
    """Two of four writers take part: the others' test samples are of classes that these two train on."""
    images, split = _images(per_class=20)
    writers = np.arange(len(images)) // 5 % 4
    split = np.tile(np.array([TRAIN, TRAIN, VALIDATION, TEST, TRAIN]), len(images) // 5)
    named = replace(images, owner=tuple(f"writer {w}" for w in writers))
    assignment = partition(named, split, kind="natural", clients=2, seed=1)
    found = class_sets(named.labels, assignment)
    assert found.held.all() and found.rows.tolist() == np.flatnonzero(split == TEST).tolist()
    assert len(found.rows) == 2 * sum(map(len, assignment.test))


def test_disjoint_classes_and_single_domains_need_no_further_test_sets():
    images, split = _images()
    assert (
        class_sets(
            images.labels, partition(images, split, kind="pathological", clients=2, classes_per_client=2)
        )
        is None
    )
    images, split = _images(("photo", "sketch"))
    assert class_sets(images.labels, partition(images, split, kind="domain", clients_per_domain=2)) is None


def test_clients_that_mix_domains_are_measured_on_all_but_the_held_out_one():
    images, split = _images(("photo", "sketch", "art"))
    found = class_sets(images.labels, partition(images, split, kind="iid", clients=2, held_out="art"))
    assert set(images.domain[found.rows.numpy()].tolist()) == {0, 1}
    assert len(found.rows) == int((split == TEST).sum() * 2 / 3)


def test_unlabelled_images_are_the_held_out_domains_outside_its_test_set():
    images = loaded("shapes", domains=["photo", "sketch"])
    marks = split_of(images, "60/20/20", 1)
    held = partition(images, marks, held_out="sketch", seed=1)
    rows = unlabelled_rows(images, held).numpy()
    assert set(images.domain[rows]) == {1} and len(rows) == (images.domain == 1).sum() * 4 // 5
    assert not np.isin(rows, np.concatenate([*held.domain_test, *held.train, *held.validation])).any()
    assert unlabelled_rows(images, partition(images, marks, seed=1)) is None
