"""What holds for every method: who is computed beside whom changes nothing, class names may be others."""

from dataclasses import replace
from functools import cache

import pytest
import torch

from fedcore.engine.clients.executor import entries_by_class
from fedcore.methods import registry, tensors
from fedcore.methods.base import Method, State, overrides
from fedcore.methods.federation import Federation, Rows
from tests.support import tiny
from tests.support.against import build_small, federation_for
from tests.support.method_cases import BUILT_IN, TRAINED, slow_but
from tests.support.tiny import parts

BY_CLIENT = {"shared.query_w", "server.prompts"}
"""Parameters of the server with a row for each client: FedAPT's query, pFedMoAP's last prompts."""
FOUR_AND_A_BASELINE = ("fedot", "sdfed", "fedalign", "feddeap", "promptfl")


def federation(name: str, dtype: torch.dtype = torch.float64, **options: object) -> Federation:
    """Return three clients; the second, which has another place in another order, has two batches."""
    return federation_for(name, backbone=tiny.few_layers(dtype), **{"samples": (3, 6, 4), **options})


def trained(name: str, held: Federation, rounds: int = 2, **options: object):
    batches = {"batch_size": 4} if registry.get(name).trains else {}
    return tiny.run_rounds(build_small(name, held, **batches), held, rounds, evaluate_every=2, **options)


@cache
def usual(name: str):
    """A run that several checks compare with another."""
    return trained(name, federation(name))


@pytest.mark.parametrize("name", TRAINED)
def test_clients_one_by_one_in_another_order_agree_with_all_at_once(name):
    together, order = usual(name), (2, 0, 1)
    other = parts(trained(name, federation(name, order=order), chunk=1).state)
    start = parts(together.method.init(together.federation.problem.generator))
    moved = False
    for key, value in parts(together.state).items():
        clients = len(value) == 3 and key.split(".")[0] in ("personal", "local")
        clients = clients or key.startswith("server.serving") or key in BY_CLIENT
        expected = value[list(order)] if clients else value
        if key == "personal.chosen":  # numbers of clients, in the order of each run
            expected = torch.tensor(order).argsort()[expected]
        torch.testing.assert_close(other[key], expected, atol=1e-6, rtol=0, msg=key)
        moved |= not torch.equal(value, start[key])
    assert moved, "it trained"


STEEP = dict.fromkeys(
    ("ivlp", "fedmgp", "promptsrc", "fedotp", "fedalign", "fedavg-lora", "fedprox-lora"), 1e-3
)
"""Methods whose steps enlarge a rounding of float32 beyond 1e-5 -> how far their class scores may differ."""


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", TRAINED)
def test_chunks_differ_by_roundings_after_twelve_rounds(name, dtype):
    """What is a rounding in float32 shrinks with the precision, by 2^29; an error of a chunk would stay."""
    found = []
    for chunk in (32, 1):
        held = federation(name, dtype, samples=(3, 6, 4, 8, 5, 7))
        options = {"average": "exact", "rank": 4} if name == "fedalign" else {}
        method = build_small(name, held, batch_size=4, **options)
        found.append(
            scores(method, tiny.run_rounds(method, held, 12, chunk=chunk, evaluate_every=12).state, held)
        )
    largest = max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(*found, strict=True))
    bound = 1e-12 if dtype == torch.float64 else STEEP.get(name, 1e-5)
    assert largest < bound, f"{name}: {largest:.1e}"


@pytest.mark.parametrize("name", slow_but(FOUR_AND_A_BASELINE, TRAINED))
def test_two_runs_of_one_seed_agree_exactly(name):
    """To the last bit; a method that draws otherwise in a second run fails the test above on every change."""
    one, again = usual(name), trained(name, federation(name))
    for key, value in parts(one.state).items():
        assert torch.equal(parts(again.state)[key], value), key
    assert [e.cells for e in one.finished] == [e.cells for e in again.finished]


def test_another_seed_draws_other_batches_and_first_values():
    for name in ("fedot", "promptfl"):
        other = parts(trained(name, federation(name, seed=2)).state)
        assert any(not torch.equal(other[key], value) for key, value in parts(usual(name).state).items())


@pytest.mark.parametrize("name", ["cocoop", "fedapt", "fedotp", "proda"])
def test_work_in_pieces_gives_the_same_numbers(name, monkeypatch):
    """Training and predictions."""
    whole = usual(name)
    expected = scores(whole.method, whole.state, whole.federation)
    monkeypatch.setattr(tensors, "PIECE_BYTES", {"cpu": 1})
    parts = trained(name, whole.federation)
    assert getattr(parts.method, "_piece", 1) == 1 < getattr(whole.method, "_piece", 2)
    for ours, theirs in zip(scores(parts.method, parts.state, parts.federation), expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-9, rtol=0)


@pytest.mark.parametrize("name", TRAINED)
def test_local_parameters_that_start_alike_are_one_row_for_all_clients(name):
    given = federation(name)
    local = build_small(name, given).init(given.problem.generator).local
    alike = {n: v for n, v in local.items() if v.dim() > 1 and bool((v == v[:1]).all())}
    assert [n for n, value in alike.items() if value.stride(0)] == []


COSTLY = {"fedavg-vision", "fedmgp", "fedmvp", "fedprox-lora", "promptsrc"}
"""A whole network, and methods that are others with more terms, groups or layers."""


def behind(label: int, held: Federation) -> Federation:
    """The federation behind a sample that nobody holds; one client has fewer test and validation samples."""
    pool = held.pool
    values, labels = torch.cat([pool.values[:1] * 3, pool.values]), torch.cat([pool.labels[:1], pool.labels])
    labels[0] = label

    def fewer(rows: Rows) -> Rows:
        return Rows(rows.flat[1:] + 1, rows.counts - (torch.arange(len(rows.counts)) == 0).long())

    return replace(
        held,
        pool=replace(pool, values=values, labels=labels),
        train=Rows(held.train.flat + 1, held.train.counts),
        validation=fewer(held.validation),
        test=fewer(held.test),
    )


@pytest.mark.parametrize("name", slow_but(set(BUILT_IN) - COSTLY, BUILT_IN))
def test_the_first_sample_of_the_pool_may_be_of_any_class(name):
    """Of none of the classes, of the last one, or of one that a client lacks: padding is not made of it."""
    held = federation(name)
    absent = int((held.problem.class_counts[:, :-1] == 0).any(0).nonzero()[0])
    last = len(held.problem.classes) - 1
    new, *others = (trained(name, behind(label, held), rounds=1) for label in (-1, last, absent))
    for other in others:
        assert [e.cells for e in new.finished] == [e.cells for e in other.finished]
        assert all(torch.equal(parts(other.state)[key], value) for key, value in parts(new.state).items())


@pytest.mark.parametrize("name", ["fedot", "promptfl", "tip-adapter"])
def test_a_client_without_test_samples_is_evaluated_alone(name):
    """As with a chunk of one: there is no sample that its padding could repeat."""
    held = behind(-1, federation(name))
    counts = held.test.counts * (torch.arange(len(held.test.counts)) > 0)
    empty = replace(held, test=Rows(held.test.flat[int(held.test.counts[0]) :], counts))
    alone, together = (trained(name, empty, rounds=1, chunk=chunk) for chunk in (1, 32))
    assert [len(e.cells) for e in alone.finished] == [len(e.cells) for e in together.finished]


# A trained model under other class names.

VARIANTS = {
    "promptfl": {"class_specific": True},
    "clip-fc": {"init": "text"},
    "fedot": {"share": "all_local"},
    "taskres": {"share": "local"},
}
"""Settings that give a method other entries by class than its defaults."""
CASES = [(name, {}) for name in BUILT_IN] + list(VARIANTS.items())
NEW = ("green lamp", "dog")
READ_ALL_NAMES = {"fedtpg", "fedmvp"}
"""Methods whose prompt depends on the set of names, so that a name scores otherwise beside others."""


def variant(name: str, options: dict[str, object]) -> tuple[Method, Federation, State]:
    """A trained method, its data and its state."""
    if not registry.get(name).trains:
        held = federation(name)
        method = build_small(name, held)
        return method, held, method.init(held.problem.generator)
    if not options:
        loop = usual(name)
        return loop.method, loop.federation, loop.state
    held = federation(name)
    method = build_small(name, held, batch_size=4, **options)
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
        kinds = [(models.of(everyone), held.local_data(everyone), len(everyone))]
        if models.global_model is not None:
            kinds.append((models.global_model, None, 1))
        x = held.pool.x(rows)
        return [
            method.logits(params, method.head(params, data), x.expand(n, *x.shape[1:]))
            for params, data, n in kinds
        ]


@pytest.mark.parametrize(("name", "options"), CASES)
def test_the_same_names_change_no_bit_and_another_order_permutes_the_scores(name, options):
    method, held, state = variant(name, options)
    before, order = scores(method, state, held), [2, 0, 1]
    again = among(method, held, held.problem.classes)
    for ours, theirs in zip(scores(again, method.retarget(state, again), held), before, strict=True):
        assert torch.equal(ours, theirs)
    other = among(method, held, tuple(held.problem.classes[i] for i in order))
    for ours, theirs in zip(scores(other, method.retarget(state, other), held), before, strict=True):
        torch.testing.assert_close(ours, theirs[..., order], atol=1e-9, rtol=0)


@pytest.mark.parametrize(("name", "options"), CASES)
def test_new_names_have_scores_of_their_own_or_the_method_says_why_not(name, options):
    method, held, state = variant(name, options)
    if not overrides(type(method), "retarget"):
        assert set(entries_by_class(method)) == set(method.class_axes), "all are declared"
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
