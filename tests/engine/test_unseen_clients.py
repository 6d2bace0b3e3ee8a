"""Clients that never take part: tested with the final model, and with their own after local training."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedcore.base.errors import FedLensError
from fedcore.base.events import AFTER_AGGREGATION, GLOBAL, TEST, VALIDATION
from fedcore.data.partition import withhold
from fedcore.engine.clients.executor import Chunk, first_adapted_code
from fedcore.engine.federations import adapted_entities, entities
from fedcore.engine.server import Server
from fedcore.engine.train import reason_without_adaptation
from fedcore.methods.federation import Federation, Rows
from tests.support import tiny
from tests.support.against import build, build_small, federation_for
from tests.support.data.partitions import drawn, partition


def some(rows: Rows, owners: list[int]) -> list:
    return [rows.held_by(i).numpy() for i in owners]


def with_newcomer(name: str, samples: tuple[int, ...] = (9, 5, 7)) -> tuple[Federation, Federation]:
    """The tiny federation whose last client never takes part, and the whole one."""
    whole = federation_for(name, backbone=tiny.drawn_backbone(), samples=samples)
    clients = len(samples)

    def problem(owners: list[int]):
        return replace(
            whole.problem,
            clients=tuple(whole.problem.clients[i] for i in owners),
            client_domain=whole.problem.client_domain[owners],
            samples=whole.problem.samples[owners],
            class_counts=whole.problem.class_counts[owners],
        )

    stay, last = list(range(clients - 1)), [clients - 1]
    domains = list(range(clients, len(whole.test.counts)))
    unseen = replace(whole.test_sets[-3], name="unseen client", kind="unseen")
    new = replace(
        whole,
        train=Rows.of(some(whole.train, last)),
        validation=Rows.of([whole.validation.flat[:0].numpy()]),
        test=Rows.of(some(whole.test, last)),
        test_sets=tuple(whole.test_sets[i] for i in last),
        problem=problem(last),
    )
    trained = replace(
        whole,
        train=Rows.of(some(whole.train, stay)),
        validation=Rows.of(some(whole.validation, stay)),
        test=Rows.of([*some(whole.test, [*stay, *domains]), *some(whole.test, last)]),
        test_sets=(*(whole.test_sets[i] for i in [*stay, *domains]), unseen),
        problem=problem(stay),
        newcomers=new,
    )
    return trained, whole


@pytest.mark.parametrize("name", ["promptfl", "fedot", "coop"])
def test_an_unseen_client_trains_as_a_participant_that_begins_now(name):
    """Its model is what a client of the whole federation becomes that begins with the same parameters."""
    held, whole = with_newcomer(name)
    method = build_small(name, held, batch_size=4, local_epochs=2)
    loop = tiny.run_rounds(method, held, 2)
    code, at = first_adapted_code(held), len(held.test_sets)
    (found,) = [c for c in loop.finished[-1].cells if c.model == code]
    assert (found.test_set, found.split, found.stage) == (at, TEST, AFTER_AGGREGATION)
    assert not any(c.model == code for event in loop.finished[:-1] for c in event.cells), "at the end only"

    among_all = build_small(name, whole, batch_size=4, local_epochs=2)
    once = Server(among_all, whole, 1)
    start = {n: v[None] for n, v in loop.state.shared.items()}
    last = torch.tensor([len(whole.problem.clients) - 1])
    local = {n: v[last] for n, v in among_all.init(whole.problem.generator).local.items()}

    given = Chunk(0, last, 1, start, local, {}, among_all.config.lr, True)
    cell = next(c for c in once.worker.train(given).cells if c.model == c.test_set == int(last) + 1)
    assert (found.correct, found.total) == (cell.correct, cell.total)
    assert found.loss == pytest.approx(cell.loss, abs=1e-12)
    before = (
        next(c for c in loop.finished[-1].cells if (c.model, c.test_set) == (GLOBAL, at))
        if (name != "coop")
        else None
    )
    assert before is None or before.loss != pytest.approx(found.loss), "it has trained"


def test_what_others_learn_and_score_does_not_depend_on_unseen_clients():
    held, _ = with_newcomer("promptfl")
    alone = replace(
        held,
        newcomers=None,
        test_sets=held.test_sets[:-1],
        test=Rows.of(some(held.test, list(range(len(held.test_sets) - 1)))),
    )
    ours, theirs = (tiny.run_rounds(build_small("promptfl", f), f, 2) for f in (held, alone))
    last_seen = len(alone.test_sets)
    for one, other in zip(ours.finished, theirs.finished, strict=True):
        assert [c for c in one.cells if max(c.model, c.test_set) <= last_seen] == list(other.cells)
    assert not [c for e in ours.finished for c in e.cells if c.split == VALIDATION and c.test_set > last_seen]


def test_a_method_that_does_not_train_keeps_the_accuracy_of_the_global_model():
    held, _ = with_newcomer("zero-shot")
    last = tiny.run_rounds(build("zero-shot", held), held, 1).finished[-1].cells
    as_is, adapted = (
        next(c for c in last if (c.model, c.test_set) == (model, len(held.test_sets)))
        for model in (GLOBAL, first_adapted_code(held))
    )
    assert adapted == as_is._replace(model=adapted.model)


def test_a_method_that_does_not_train_but_reads_the_clients_data_has_a_model_of_an_unseen_client():
    held, whole = with_newcomer("tip-adapter")
    method, among_all = (build("tip-adapter", f, search="none") for f in (held, whole))
    last = tiny.run_rounds(method, held, 1).finished[-1].cells
    found = next(c for c in last if c.model == first_adapted_code(held))
    cell = next(
        c for c in tiny.run_rounds(among_all, whole, 1).finished[-1].cells if c.model == c.test_set == 3
    )
    assert (found.correct, found.total) == (cell.correct, cell.total)
    assert found.loss == pytest.approx(cell.loss, abs=1e-12)


def test_the_models_are_listed_behind_all_test_sets():
    held, _ = with_newcomer("promptfl")
    listed = (*entities(held), *adapted_entities(held))
    assert [e.code for e in listed] == list(range(len(listed)))
    assert [e.kind for e in listed[-2:]] == ["unseen", "adapted"]
    assert listed[-1].samples == int(held.newcomers.train.counts[0])


@pytest.mark.parametrize(
    ("name", "says"),
    [("fedapt", "a key for each client"), ("feddeap", "domains of"), ("fedalign", "the server makes")],
)
def test_methods_that_know_their_clients_say_why_nobody_else_can_adapt(name, says):
    held, _ = with_newcomer(name)
    assert says in reason_without_adaptation(build_small(name, held), held.newcomers)


def test_clients_are_withheld_by_name_and_share_nothing_with_the_others():
    images = drawn([i % 4 for i in range(200)], [0] * 200)

    marks = np.array([0, 0, 0, 1, 2] * 40)
    every = partition(images, marks, kind="iid", clients=10, seed=1)
    stay, away = withhold(every, 0.2, seed=1)
    assert len(away.clients) == 2 and set(stay.clients) | set(away.clients) == set(every.clients)
    assert not set(np.concatenate(stay.train)) & set(np.concatenate([*away.train, *away.test]))
    assert (stay.counts.sum(1) == [len(rows) for rows in stay.train]).all()
    with pytest.raises(FedLensError, match="leaves none to train") as caught:
        withhold(partition(images, marks, kind="iid", clients=1, seed=1), 0.5, seed=1)
    assert caught.value.field == "partition.unseen"
