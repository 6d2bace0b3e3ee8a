"""A trained model under other class names: the same names change no bit, their order permutes the scores."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedcore.engine.clients.retarget import entries_by_class
from fedcore.federation import Federation
from fedcore.methods import registry
from fedcore.methods.base import Method, State, overrides
from tests.methods.test_invariances import SMALL, federation, usual
from tests.support import tiny
from tests.support.against import build

OURS = [n for n, cls in registry.load_all().items() if cls.__module__.startswith("fedcore.methods.")]
VARIANTS = {
    "promptfl": {"class_specific": True},
    "clip-fc": {"init": "text"},
    "fedot": {"share": "all_local"},
    "taskres": {"share": "local"},
}
"""Settings that give a method other entries by class than its defaults."""
CASES = [(name, {}) for name in OURS] + list(VARIANTS.items())
NEW = ("green lamp", "dog")
READ_ALL_NAMES = {"fedtpg"}
"""Methods whose prompt depends on the set of names, so that a name scores otherwise beside others."""


def variant(name: str, options: dict[str, object]) -> tuple[Method, Federation, State]:
    """A trained method, its data and its state."""
    if not registry.get(name).trains:
        held = federation(name)
        return build(name, held, **SMALL.get(name, {})), held, State()
    if not options:
        loop = usual(name)
        return loop.method, loop.federation, loop.state
    held = federation(name)
    method = build(name, held, batch_size=4, **SMALL.get(name, {}) | options)
    return method, held, tiny.run_rounds(method, held, 2).state


def among(method: Method, held: Federation, classes: tuple[str, ...]) -> Method:
    """The same method for other class names."""
    counts = held.problem.class_counts.new_zeros(len(held.problem.clients), len(classes))
    return type(method)(method.config, replace(held.problem, classes=classes, class_counts=counts))


def scores(method: Method, state: State, held: Federation) -> list[torch.Tensor]:
    """Class scores of the global model, if there is one, and of all clients' models on some samples."""
    with torch.no_grad():
        models = method.models(state)
        rows = torch.arange(6)[None]
        everyone = torch.arange(len(held.problem.clients))
        kinds = [(models.clients, held.local_data(everyone), len(everyone))]
        if models.global_model is not None:
            kinds.append((models.global_model, None, 1))
        x = held.pool.x(rows)
        return [
            method.logits(params, method.head(params, data), x.expand(n, *x.shape[1:]))
            for params, data, n in kinds
        ]


@pytest.mark.parametrize(("name", "options"), CASES)
def test_the_same_names_change_no_bit(name, options):
    method, held, state = variant(name, options)
    again = among(method, held, held.problem.classes)
    for ours, theirs in zip(
        scores(again, method.retarget(state, again), held), scores(method, state, held), strict=True
    ):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize(("name", "options"), CASES)
def test_another_order_of_the_names_permutes_the_scores(name, options):
    method, held, state = variant(name, options)
    order = [2, 0, 1]
    other = among(method, held, tuple(held.problem.classes[i] for i in order))
    for ours, theirs in zip(
        scores(other, method.retarget(state, other), held), scores(method, state, held), strict=True
    ):
        torch.testing.assert_close(ours, theirs[..., order], atol=1e-9, rtol=0)


@pytest.mark.parametrize(("name", "options"), CASES)
def test_new_names_have_scores_of_their_own_or_the_method_says_why_not(name, options):
    method, held, state = variant(name, options)
    if not overrides(type(method), "retarget"):
        assert set(entries_by_class(method)) == set(method.class_axes()), "all are declared"
    if method.bound_to_classes(method.config):
        return
    new = among(method, held, NEW)
    alone = scores(new, method.retarget(state, new), held)
    assert all(part.shape[-1] == 2 and part.isfinite().all() for part in alone)
    if name in READ_ALL_NAMES:
        return
    # beside the trained names, which keep their entries, a new name has the same text or entry as alone
    both = among(method, held, (*held.problem.classes, *NEW))
    together = scores(both, method.retarget(state, both), held)
    for ours, mixed, before in zip(alone, together, scores(method, state, held), strict=True):
        torch.testing.assert_close(mixed[..., :3], before, atol=1e-9, rtol=0)
        torch.testing.assert_close(mixed[..., 3:], ours, atol=1e-9, rtol=0)
