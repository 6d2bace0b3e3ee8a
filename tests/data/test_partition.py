"""Partitions: no sample is lost or held twice, and the same seed gives the same clients anywhere."""

import numpy as np
import pytest
from scipy.spatial.distance import jensenshannon
from scipy.stats import entropy

from fedcore.base.errors import FedLensError
from fedcore.base.events import TEST
from fedcore.data.partition import MAX_COMPARED, label_distance, label_entropy
from fedcore.data.splits import split
from tests.support.data.partitions import KINDS, drawn, grid, held, partition

PER_CLIENT = {"kind": "dirichlet", "clients": 5, "alpha": 0.3, "dirichlet_form": "per_client"}


@pytest.mark.parametrize("settings", [*KINDS.values(), PER_CLIENT], ids=[*KINDS, "per client"])
def test_all_samples_are_held_and_a_clients_test_set_mirrors_its_training_set(settings):
    images = grid(per_cell=100, classes=6, domains=3)
    a = partition(images, split(images, "60/20/20", seed=4), seed=4, **settings)
    assert np.sort(held(a)).tolist() == list(range(len(images))) and not len(a.unassigned)
    for k in range(len(a.clients)):
        test = np.bincount(images.labels[a.test[k]], minlength=6)
        assert np.abs(test - a.counts[k] / 3).max() <= 2  # 60 to 20 per cent; one moved sample, one rounding


def test_names_and_domains_of_clients():
    images = grid(per_cell=10)
    marks = split(images, "60/20/20", 1)
    one = partition(images, marks)
    assert one.clients == ("domain0", "domain1")
    assert one.client_domain.tolist() == [0, 1]
    several = partition(images, marks, clients_per_domain=2)
    assert several.clients == ("domain0-1", "domain0-2", "domain1-1", "domain1-2")
    assert several.client_domain.tolist() == [0, 0, 1, 1]
    mixed = partition(images, marks, kind="iid", clients=3)
    assert mixed.clients == ("client-01", "client-02", "client-03")
    assert mixed.client_domain.tolist() == [-1, -1, -1]
    single = grid(domains=1)
    of_one_domain = partition(single, split(single, "60/20/20", 1), kind="iid", clients=2)
    assert of_one_domain.client_domain.tolist() == [0, 0]
    held_out = partition(images, marks, held_out="domain1")
    assert (held_out.clients, held_out.domains) == (("domain0",), images.domains)


def test_pathological_classes_are_disjoint_and_leftovers_are_nobodys():
    images = grid(per_cell=20, classes=7, domains=1)
    a = partition(
        images, split(images, "60/20/20", 1), kind="pathological", clients=3, classes_per_client=2, seed=1
    )
    owned = [set(np.flatnonzero(c)) for c in a.counts]
    assert [len(o) for o in owned] == [2, 2, 2]
    assert len(set.union(*owned)) == 6
    (left,) = set(range(7)) - set.union(*owned)
    assert a.unassigned.tolist() == np.flatnonzero(images.labels == left).tolist()


@pytest.mark.parametrize(
    ("leftover", "classes", "per_client", "sizes"),
    [("even", 11, 3, [4, 4, 3]), ("last", 11, 3, [3, 3, 5]), ("last", 11, 4, [4, 4, 3])],
)
def test_leftover_classes_are_dealt_out_or_the_last_clients(leftover, classes, per_client, sizes):
    images = grid(per_cell=10, classes=classes, domains=1)
    marks = split(images, "60/20/20", 1)
    settings = {"kind": "pathological", "clients": 3, "classes_per_client": per_client, "seed": 1}
    a = partition(images, marks, leftover=leftover, **settings)
    owned = [set(np.flatnonzero(c)) for c in a.counts]
    assert [len(o) for o in owned] == sizes
    assert set.union(*owned) == set(range(classes)) and not len(a.unassigned)
    if classes >= 3 * per_client:
        dropped = partition(images, marks, **settings)
        assert all(set(np.flatnonzero(c)) <= o for c, o in zip(dropped.counts, owned, strict=True))


def test_shots_limit_training_only():
    images = grid(per_cell=50, classes=4)
    marks = split(images, "60/20/20", 1)
    whole, few = partition(images, marks, seed=1), partition(images, marks, shots=4, seed=1)
    assert few.counts.tolist() == [[4] * 4] * 2
    assert all(set(a) <= set(b) for a, b in zip(few.train, whole.train, strict=True))
    for part in ("validation", "test"):
        assert [r.tolist() for r in getattr(few, part)] == [r.tolist() for r in getattr(whole, part)]
    assert len(few.unassigned) == sum(map(len, whole.train)) - sum(map(len, few.train))


def test_dirichlet_shares_have_the_mean_and_spread_of_the_distribution():
    """For alpha = 1 over two clients a share is uniform on (0, 1): mean 1/2, variance 1/12."""
    images = grid(per_cell=100, classes=400, domains=1)
    marks = np.zeros(len(images), dtype=np.int8)
    marks[::50] = TEST  # two a class
    a = partition(images, marks, kind="dirichlet", clients=2, alpha=1.0, seed=1)
    share = a.counts[0] / a.counts.sum(0)
    assert abs(share.mean() - 0.5) < 3 * np.sqrt(1 / 12 / 400)
    assert abs(share.var() - 1 / 12) < 0.012


def test_alpha_below_floating_point_gives_each_class_to_one_client():
    images = grid(per_cell=20, classes=12, domains=1)
    marks = split(images, "80/20", 1)
    a = partition(images, marks, kind="dirichlet", clients=2, alpha=1e-300, seed=1)
    assert ((a.counts > 0).sum(0) == 1).all()
    a = partition(images, marks, **{**PER_CLIENT, "alpha": 1e-300}, seed=1)
    assert a.counts.sum() == 12 * 16


def test_min_samples_is_met_by_drawing_again():
    images = grid(per_cell=50, classes=5, domains=1)
    marks = split(images, "60/20/20", 1)
    sizes = {
        seed: min(map(len, partition(images, marks, kind="dirichlet", clients=5, alpha=0.3, seed=seed).train))
        for seed in range(5)
    }
    low = min(sizes, key=sizes.__getitem__)
    assert sizes[low] < 10
    again = partition(images, marks, kind="dirichlet", clients=5, alpha=0.3, min_samples=10, seed=low)
    assert min(map(len, again.train)) >= 10


def test_min_samples_counts_what_remains_after_shots():
    images = grid(per_cell=50, classes=5, domains=1)
    marks = split(images, "60/20/20", 1)
    settings = {"kind": "dirichlet", "clients": 3, "alpha": 0.3, "shots": 2}
    smallest = []
    for seed in range(8):
        smallest.append(min(map(len, partition(images, marks, **settings, seed=seed).train)))
        again = partition(images, marks, **settings, min_samples=7, seed=seed)
        assert min(map(len, again.train)) >= 7
    assert min(smallest) < 7  # so that some were drawn again


@pytest.mark.parametrize("seed", range(6))
def test_a_client_without_test_samples_gets_one_of_a_class_it_trains_on(seed: int):
    """Two test samples a class and ten clients: many round to none, and no donor may be emptied."""
    images = grid(per_cell=10, classes=10, domains=1)
    a = partition(images, split(images, "60/20/20", 1), kind="dirichlet", clients=10, alpha=0.2, seed=seed)
    for k in range(10):
        assert len(a.test[k]) >= 1
        assert len(a.validation[k]) >= 1
        assert (a.counts[k][images.labels[a.test[k]]] > 0).any()
    assert np.sort(held(a)).tolist() == list(range(len(images)))


def test_no_donor_of_a_test_sample_is_emptied():
    """As many test samples as clients: after all gifts everybody has exactly one."""
    images = grid(per_cell=20, classes=1, domains=1)
    marks = split(images, "80/20", 1)
    gifts = 0
    for seed in range(30):
        a = partition(images, marks, kind="dirichlet", clients=4, alpha=0.5, seed=seed)
        assert [len(rows) for rows in a.test] == [1, 1, 1, 1]
        gifts += int(a.counts.max() > 8)  # a share above one half had two test samples or more to give
    assert gifts >= 5


BAD = {
    "more clients than samples": (
        {"kind": "iid", "clients": 5000},
        "partition.clients",
        "36 training samples",
    ),
    "more clients than test samples": (
        {"kind": "iid", "clients": 20},
        "partition.clients",
        "set at most 12 clients",
    ),
    "more clients than a domain has": (
        {"clients_per_domain": 19},
        "partition.clients_per_domain",
        "domain 'domain0'",
    ),
    "too high a minimum": ({"min_samples": 19}, "partition.min_samples", "18 training samples"),
    "a minimum that no draw meets": (
        {"kind": "dirichlet", "clients": 6, "alpha": 0.01, "min_samples": 6},
        "partition.min_samples",
        "at best",
    ),
    "a minimum that shots forbid": (
        {"shots": 1, "min_samples": 4},
        "partition.min_samples",
        "has 3 training",
    ),
    "more classes than there are": (
        {"kind": "pathological", "clients": 2, "classes_per_client": 2},
        "partition.classes_per_client",
        "need 4 classes, but drawn has 3; set at most 1 per client or at most 1 clients",
    ),
    "more clients than classes": (
        {"kind": "pathological", "clients": 4, "classes_per_client": 1},
        "partition.classes_per_client",
        "need 4 classes, but drawn has 3; set at most 3 clients",
    ),
    "an unknown held-out domain": ({"held_out": "x"}, "held_out", "domain0, domain1"),
    "clients that contradict the domains": ({"clients": 3}, "partition.clients", "make 2"),
    "a last client without a class": (
        {"kind": "pathological", "clients": 3, "classes_per_client": 4, "leftover": "last"},
        "partition.classes_per_client",
        "4 different classes each need 9 classes",
        grid(per_cell=10, classes=8, domains=1),
    ),
    "the only domain held out": ({"held_out": "domain0"}, "held_out", "only domain", grid(domains=1)),
    "no test sample of a domain": (
        {},
        "partition.clients_per_domain",
        "domain 'domain1'",
        drawn([0] * 11, [0] * 10 + [1]),
    ),
}
"""Settings, the field that the error names, its text, and the images if they are not the usual ones."""


@pytest.mark.parametrize(
    ("settings", "field", "text", "images"),
    [(*bad, grid(per_cell=10))[:4] for bad in BAD.values()],
    ids=BAD.keys(),
)
def test_what_cannot_be_partitioned_says_why_and_what_to_do(settings, field, text, images):
    with pytest.raises(FedLensError, match=text) as caught:
        partition(images, split(images, "60/20/20", 1), seed=1, **settings)
    assert caught.value.field == field
    assert "\n" not in str(caught.value)


def test_distance_and_entropy_agree_with_scipy():
    counts = np.random.default_rng(0).integers(0, 9, (7, 5))
    counts[0] = [0, 0, 4, 0, 0]
    p = counts / counts.sum(1, keepdims=True)
    pairs = [jensenshannon(p[i], p[j], base=2) for i in range(7) for j in range(i)]
    assert label_distance(counts) == pytest.approx(np.mean(pairs), abs=1e-12)
    assert label_entropy(counts) == pytest.approx(entropy(p, base=2, axis=1), abs=1e-12)
    assert label_entropy(np.array([[4, 0], [2, 2], [0, 0]])).tolist() == [0, 1, 0]
    assert label_distance(np.array([[5, 0], [0, 3]])) == pytest.approx(1)
    assert label_distance(np.array([[5, 5]])) == 0


def test_many_clients_are_looked_at_evenly():
    """Of 4,000 clients with one class each, half of them of the first: half of the pairs are disjoint."""
    counts = np.tile([[5, 0], [0, 5]], (5 * MAX_COMPARED, 1))
    assert label_distance(counts) == pytest.approx(0.5, abs=0.01)


def test_split_marks_of_the_wrong_length_are_refused():
    with pytest.raises(ValueError, match="5 split marks for 60 samples"):
        partition(grid(), np.zeros(5, dtype=np.int8))
