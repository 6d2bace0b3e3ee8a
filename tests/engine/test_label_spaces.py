"""Test sets of another label space: scored among their own names only, which training never encodes."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedcore.base.events import AFTER_AGGREGATION, GLOBAL, TEST
from fedcore.engine.clients.executor import Chunk
from fedcore.engine.federations import entities, with_transfer
from fedcore.engine.prepare import TransferInputs
from fedcore.engine.round import all_rounds
from fedcore.engine.server import Server
from fedcore.methods.base import Method
from fedcore.methods.federation import Federation, LabelSpace, Rows
from tests.support import tiny
from tests.support.against import build, build_small, federation_for
from tests.support.data.partitions import drawn
from tests.support.own_methods import BiasConfig, BiasMethod

NEW = ("green lamp", "dog")
SAMPLES = 6
"""Samples of the pool that stand for images of the new classes."""


def base_and_new(backbone, name: str = "promptfl") -> Federation:
    """The tiny federation, and a set of new classes made of its first samples."""
    held = federation_for(name, backbone=backbone)
    labels = torch.full_like(held.pool.labels, -1)
    labels[:SAMPLES] = torch.arange(SAMPLES) % len(NEW)
    rows = [held.test.held_by(i).numpy() for i in range(len(held.test.counts))]
    nothing = rows[0][:0]
    problem = replace(
        held.problem, classes=NEW, class_counts=held.problem.class_counts.new_zeros(len(rows[:3]), len(NEW))
    )
    new = torch.arange(SAMPLES).numpy()
    space = LabelSpace(replace(held.pool, labels=labels), Rows.of([nothing] * len(rows) + [new]), problem)
    return replace(
        held,
        test=Rows.of([*rows, nothing]),
        test_sets=(*held.test_sets, replace(held.test_sets[0], name="new classes", kind="new", domain=None)),
        label_spaces=(space,),
    )


@pytest.fixture(scope="module")
def backbone():
    return tiny.drawn_backbone()


def correct(method: Method, state, held: Federation) -> dict[int, int]:
    """Correct predictions on the new classes by model, one sample after another."""
    there = type(method)(method.config, held.label_spaces[0].problem)
    models = there.models(method.retarget(state, there))
    clients = len(held.problem.clients)
    found = {}
    with torch.no_grad():
        for code in range(clients + 1):
            params = (
                models.global_model
                if code == GLOBAL
                else {n: v[code - 1 : code] for n, v in models.clients.items()}
            )
            if params is None:
                continue
            data = None if code == GLOBAL else held.local_data(torch.tensor([code - 1]))
            head = there.head(params, data)
            right = 0
            for row in range(SAMPLES):
                x = held.pool.x(torch.tensor([[row]]))
                right += int(there.logits(params, head, x).argmax(-1)) == row % len(NEW)
            found[code] = right
    return found


@pytest.mark.parametrize("name", ["promptfl", "coop", "fedot", "fedalign", "zero-shot"])
def test_counts_on_new_classes_are_those_of_single_samples_among_their_own_names(backbone, name):
    held = base_and_new(backbone, name)
    method = build_small(name, held)
    loop = tiny.run_rounds(method, held, 2, chunk=2)
    cells = [c for c in loop.finished[-1].cells if c.test_set == len(held.test_sets) and c.split == TEST]
    assert {c.stage for c in cells} == {AFTER_AGGREGATION} and all(c.total == SAMPLES for c in cells)
    assert {c.model: c.correct for c in cells} == correct(method, loop.state, held)


def test_other_test_sets_have_the_same_accuracy_with_and_without_new_classes(backbone):
    held = base_and_new(backbone)
    plain = replace(
        held, test_sets=held.test_sets[:-1], test=Rows(held.test.flat, held.test.counts[:-1]), label_spaces=()
    )
    with_new, without = (
        tiny.run_rounds(build("promptfl", f, context_length=2, lr=0.05), f, 2).finished[-1].cells
        for f in (held, plain)
    )
    assert [c for c in with_new if c.test_set != len(held.test_sets)] == list(without)
    assert entities(held)[-1].kind == "new" and entities(held)[-1].samples == SAMPLES


def test_training_encodes_no_name_of_a_new_class(backbone):
    watched, read = tiny.watched(backbone)
    held = base_and_new(watched)
    method = build("promptfl", held, context_length=2)
    loop = Server(method, held, 1)
    worker, everyone = loop.worker, torch.arange(len(held.problem.clients))
    received = {n: v.expand(len(everyone), *v.shape) for n, v in loop.state.shared.items()}
    worker.train(Chunk(0, everyone, 1, received, {}, {}, 0.1, True))

    def new_names() -> list[str]:
        return [text for text in read if any(name in text for name in NEW)]

    assert any("snow owl" in text for text in read) and not new_names()
    list(all_rounds(loop))
    assert new_names(), "testing on the new classes does"


def test_a_prediction_that_depends_on_its_batch_sees_new_images_only(backbone):
    batches: list[list[int]] = []

    class Batched(BiasMethod):
        class_axes = {"weight": -2, "bias": -1}
        batch_order = "shuffled"

        def logits(self, params, head, x):
            if len(self.problem.classes) == len(NEW):
                batches.append(sorted((held.pool.values == x[0][:, None]).all(-1).int().argmax(1).tolist()))
            return super().logits(params, head, x)

    held = base_and_new(backbone)
    tiny.run_rounds(Batched(BiasConfig(lr=0.5), held.problem), held, 1)
    assert batches and all(batch == list(range(SAMPLES)) for batch in batches)


def test_another_data_set_is_a_label_space_of_its_own_beside_the_new_classes(backbone):
    held = base_and_new(backbone)
    digits = replace(
        drawn([0, 1, 2, 3] * 2, [0] * 8), name="digits", template="the number {}.", classes=tuple("0123")
    )
    values = held.pool.values.flip(0)[:8]
    test = np.array([1, 3, 4, 6])
    both = with_transfer(held, TransferInputs(digits, test), values, None)
    assert [s.kind for s in both.test_sets[-2:]] == ["new", "transfer"]
    assert [c.problem.template for c in both.label_spaces] == [held.problem.template, "the number {}."]

    method = build_small("promptfl", both)
    loop = tiny.run_rounds(method, both, 1)
    column = len(both.test_sets)
    found = next(c for c in loop.finished[-1].cells if (c.model, c.test_set) == (GLOBAL, column))
    there = type(method)(method.config, both.label_spaces[1].problem)
    params = there.models(loop.state).global_model
    with torch.no_grad():
        scores = there.logits(params, there.head(params, None), values[torch.as_tensor(test)][None])
    right = (scores.argmax(-1)[0] == torch.as_tensor(digits.labels[test])).sum()
    assert (found.correct, found.total) == (int(right), len(test))

    without = tiny.run_rounds(build_small("promptfl", held), held, 1).finished[-1].cells
    assert [c for c in loop.finished[-1].cells if c.test_set != column] == list(without)
