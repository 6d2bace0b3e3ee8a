"""What holds for every kind of partition, on data sets of all shapes; and what each later kind promises."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from fedcore.base.errors import FedLensError
from fedcore.base.events import TEST, TRAIN, VALIDATION
from fedcore.data.images import ImageSet
from fedcore.data.partition import Assignment
from fedcore.data.splits import split
from tests.support.data.loading import loaded
from tests.support.data.partitions import KINDS, digest, drawn, grid, held, held_by, partition

FIRST_RELEASE = {
    "one client a domain": "2218564150ae1870",
    "three clients a domain": "d532e5b36c5557e8",
    "dirichlet in a domain": "271236b8493d664c",
    "iid": "e721edb620931257",
    "dirichlet": "05a043b489aab0a7",
    "pathological": "9ffa6cd32b3b180d",
}
"""Digests that the first release computed: stored runs must find their clients again."""

PER_CLIENT = {"kind": "dirichlet", "clients": 5, "alpha": 0.3, "dirichlet_form": "per_client"}
SPREAD = {"kind": "pathological", "clients": 2, "classes_per_client": 2, "leftover": "spread"}
ALL = {
    **KINDS,
    "per client": PER_CLIENT,
    "per client in a domain": {
        "kind": "domain",
        "clients_per_domain": 2,
        "alpha": 0.5,
        "dirichlet_form": "per_client",
    },
    "leftover spread": SPREAD,
    "leftover dropped": {**SPREAD, "leftover": "drop"},
    "dealt": {"kind": "dealt", "clients": 3},
    "natural": {"kind": "natural"},
    "four natural": {"kind": "natural", "clients": 4},
}


def ragged(seed: int) -> ImageSet:
    """A data set of random size and skew, with writers of random size; some samples are no writer's."""
    rng = np.random.default_rng(seed)
    classes, domains = 6, int(rng.integers(2, 4))
    labels, domain = [], []
    for d in range(domains):
        for c in range(classes):
            n = int(rng.integers(12, 60))
            labels += [c] * n
            domain += [d] * n
    writers = rng.integers(0, 9, len(labels))
    owner = tuple("" if w == 8 else f"writer{w}" for w in writers)
    return replace(drawn(labels, domain), owner=owner)


def permuted(images: ImageSet, seed: int) -> ImageSet:
    order = np.random.default_rng(seed).permutation(len(images))
    return replace(
        images,
        labels=images.labels[order],
        domain=images.domain[order],
        keys=tuple(images.keys[i] for i in order),
        owner=None if images.owner is None else tuple(images.owner[i] for i in order),
    )


def test_the_clients_of_the_first_release_are_found_again():
    images = loaded("rotated-digits")
    marks = split(images, "60/20/20", 1)
    found = {name: digest(partition(images, marks, seed=1, **KINDS[name]))[:16] for name in FIRST_RELEASE}
    assert found == FIRST_RELEASE


@pytest.mark.parametrize("name", ALL)
def test_nothing_is_lost_held_twice_or_moved_to_another_split(name: str):
    for seed, scheme in itertools.product(range(3), ("60/20/20", "80/20")):
        check_assignment(name, scheme, seed)


def check_assignment(name: str, scheme: str, seed: int) -> None:
    images, shots = ragged(seed), (None, 3)[seed % 2]
    held_out = images.domains[0] if seed == 2 else None
    minimum = 2 + seed
    marks = split(images, scheme, seed)
    settings = {"min_samples": minimum, "shots": shots, "held_out": held_out, "seed": seed, **ALL[name]}
    a = partition(images, marks, **settings)

    every = np.sort(np.concatenate([held(a), a.unassigned]))
    usable = np.flatnonzero(images.domain != 0) if held_out else np.arange(len(images))
    assert every.tolist() == usable.tolist(), "each usable sample once, with a client or with nobody"
    for part, mark in ((a.train, TRAIN), (a.validation, VALIDATION), (a.test, TEST)):
        assert all((marks[rows] == mark).all() for rows in part)
        assert all((np.diff(rows) > 0).all() for rows in part)
    for k, rows in enumerate(a.train):
        assert a.counts[k].tolist() == np.bincount(images.labels[rows], minlength=6).tolist()
    assert a.counts.sum(1).min() >= minimum
    assert all(len(rows) for rows in a.test)
    assert all(len(rows) for rows in a.validation) == (scheme == "60/20/20")
    assert np.sort(np.concatenate(a.domain_test)).tolist() == np.flatnonzero(marks == TEST).tolist()
    for k, d in enumerate(a.client_domain):
        if d >= 0:
            assert (images.domain[held_by(a, k)] == d).all()

    other = permuted(images, seed)
    b = partition(other, split(other, scheme, seed), **settings)
    assert (a.clients, a.client_domain.tolist()) == (b.clients, b.client_domain.tolist())
    assert keys_held(a, images) == keys_held(b, other)


def keys_held(a: Assignment, images: ImageSet) -> list[list[str]]:
    return [sorted(images.keys[r] for r in rows) for rows in (*a.train, *a.validation, *a.test)]


def test_another_seed_gives_other_clients():
    images = ragged(0)
    for name, settings in ALL.items():
        one, two = (partition(images, split(images, "80/20", s), seed=s, **settings) for s in (1, 2))
        assert keys_held(one, images) != keys_held(two, images), name


def test_per_client_clients_are_of_one_size_and_skewed():
    images = grid(per_cell=100, classes=10, domains=1)
    marks = split(images, "60/20/20", 1)
    a = partition(images, marks, **{**PER_CLIENT, "clients": 7}, seed=1)
    sizes = a.counts.sum(1)
    assert sizes.max() - sizes.min() <= 1 and sizes.sum() == 600
    assert a.counts.sum(0).tolist() == [60] * 10
    per_class = partition(images, marks, kind="dirichlet", clients=7, alpha=0.3, seed=1)
    assert per_class.counts.sum(1).max() - per_class.counts.sum(1).min() > 20


def test_per_client_shares_have_the_spread_of_their_distribution():
    """With two classes and alpha = 1 a client's share of one class is near uniform: mean 1/2, var 1/12."""
    images = grid(per_cell=200, classes=2, domains=1)
    marks = np.zeros(len(images), dtype=np.int8)
    marks[::40] = TEST
    shares = []
    for seed in range(120):
        a = partition(images, marks, **{**PER_CLIENT, "alpha": 1.0, "clients": 4}, seed=seed)
        shares.append(a.counts[:, 0] / a.counts.sum(1))
    shares = np.array(shares)
    assert abs(shares.mean() - 0.5) < 0.01, "all samples are dealt, so classes stay balanced overall"
    assert 1 / 12 * 0.7 < shares.var() < 1 / 12 * 1.3


def test_leftover_classes_are_spread_over_all_clients_alike():
    images = grid(per_cell=20, classes=7, domains=1)
    marks = split(images, "60/20/20", 1)
    settings = {**SPREAD, "clients": 3, "seed": 1}
    dropped = partition(images, marks, **{**settings, "leftover": "drop"})
    spread = partition(images, marks, **settings)
    (left,) = np.flatnonzero(dropped.counts.sum(0) == 0)
    assert spread.counts[:, left].tolist() == [4, 4, 4]
    assert np.delete(spread.counts, left, 1).tolist() == np.delete(dropped.counts, left, 1).tolist()
    assert len(spread.unassigned) == 0 and len(dropped.unassigned) == 20
    for a in (dropped, spread):
        assert np.isin(np.flatnonzero((images.labels == left) & (marks == TEST)), a.domain_test[0]).all()


def written(sizes: dict[str, int], classes: int = 3) -> ImageSet:
    """One domain; each writer has so many samples, classes in turn."""
    owner = tuple(name for name, n in sizes.items() for _ in range(n))
    return replace(drawn([i % classes for i in range(len(owner))], [0] * len(owner)), owner=owner)


def test_natural_clients_hold_what_the_data_set_says():
    images = written({"zoe": 20, "amy": 10, "": 5, "bob": 30})
    a = partition(images, split(images, "60/20/20", 1), kind="natural", seed=1)
    assert a.clients == ("amy", "bob", "zoe")
    for k, name in enumerate(a.clients):
        assert {images.owner[r] for r in held_by(a, k)} == {name}
    assert [len(held_by(a, k)) for k in range(3)] == [10, 30, 20]
    assert [(len(a.train[k]), len(a.test[k])) for k in range(3)] == [(6, 2), (18, 6), (12, 4)]
    assert {images.owner[r] for r in a.unassigned} == {""}
    assert a.client_domain.tolist() == [0, 0, 0]


def test_a_natural_client_of_two_domains_has_none():
    images = replace(drawn([0, 1] * 20, [0] * 20 + [1] * 20), owner=("a",) * 30 + ("b",) * 10)
    a = partition(images, split(images, "80/20", 1), kind="natural", seed=1)
    assert a.client_domain.tolist() == [-1, 1]


def test_small_natural_clients_are_left_out_and_stay_in_the_global_test():
    images = written({"large": 40, "small": 6, "single": 1})
    marks = split(images, "60/20/20", 1)
    a = partition(images, marks, kind="natural", min_samples=10, seed=1)
    assert a.clients == ("large",)
    assert {images.owner[r] for r in a.unassigned} == {"small", "single"}
    small_test = [r for r in np.flatnonzero(marks == TEST) if images.owner[r] == "small"]
    assert small_test and np.isin(small_test, a.domain_test[0]).all()
    assert partition(images, marks, kind="natural", seed=1).clients == ("large", "small")
    no_validation = split(images, "80/20", 1)
    unmeasured = partition(images, no_validation, kind="natural", seed=1)
    assert unmeasured.clients == ("large", "small"), "a single image trains: nothing to measure it on"


def test_some_natural_clients_are_drawn_by_seed():
    images = written({f"w{i:02d}": 10 for i in range(20)})
    drawn_by = {
        seed: partition(images, split(images, "80/20", 1), kind="natural", clients=3, seed=seed).clients
        for seed in (1, 2)
    }
    assert drawn_by[1] != drawn_by[2]
    assert all(list(c) == sorted(c) and len(c) == 3 for c in drawn_by.values())


def test_thousands_of_writers_take_little_time_and_one_test_set():
    images = written({f"w{i}": 12 for i in range(3000)}, classes=62)
    a = partition(images, split(images, "80/20", 1), kind="natural", seed=1)
    assert len(a.clients) == 3000 and len(a.domain_test) == 1


BAD = {
    "no clients named": (
        grid(),
        {"kind": "natural"},
        "partition.kind",
        "does not name clients; .*client column",
    ),
    "more than there are": (
        written({"a": 10, "b": 10}),
        {"kind": "natural", "clients": 3},
        "partition.clients",
        "2 of the 2 clients .* fewer than clients = 3; set fewer",
    ),
    "none large enough": (
        written({"a": 10, "b": 10}),
        {"kind": "natural", "min_samples": 50},
        "partition.min_samples",
        "0 of the 2 clients .*50 training samples.*lower min_samples",
    ),
}


@pytest.mark.parametrize(("images", "settings", "field", "text"), BAD.values(), ids=BAD.keys())
def test_natural_partitions_that_cannot_be_say_why(images, settings, field, text):
    with pytest.raises(FedLensError, match=text) as caught:
        partition(images, split(images, "80/20", 1), **settings)
    assert caught.value.field == field


@pytest.mark.parametrize("scheme", ["60/20/20", "80/20"])
def test_writers_are_split_each_by_itself_and_evenly_over_classes(scheme: str):
    images = written({f"w{i}": n for i, n in enumerate((1, 2, 3, 4, 5, 10, 60))})
    marks = split(images, scheme, 3)
    got = {
        name: np.bincount(marks[[o == name for o in images.owner]], minlength=3).tolist()
        for name in sorted(set(images.owner))
    }
    if scheme == "60/20/20":
        assert list(got.values()) == [
            [1, 0, 0],
            [1, 0, 1],
            [1, 1, 1],
            [2, 1, 1],
            [3, 1, 1],
            [6, 2, 2],
            [36, 12, 12],
        ]
    else:
        assert [v[TEST] for v in got.values()] == [0, 1, 1, 1, 1, 2, 12]
    large = np.array([o == "w6" for o in images.owner])
    assert np.bincount(images.labels[large & (marks == TEST)]).tolist() == [4, 4, 4]
