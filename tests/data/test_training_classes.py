"""Base and new classes: the halves, in both orders, and the partition of the base classes."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from fedcore.base.errors import FedLensError
from fedcore.base.events import TEST
from fedcore.config import Experiment, expand
from fedcore.data.assigners import PartitionSettings
from fedcore.data.images import ImageSet
from fedcore.data.partition import partition
from fedcore.data.splits import split
from fedcore.data.training_classes import halves, partition_base
from fedcore.engine.prepare import prepare_inputs


def image_set(classes: tuple[str, ...], each: int = 10) -> ImageSet:
    """Two domains with as many images of each class."""
    labels = np.tile(np.arange(len(classes)), 2 * each)
    domain = np.arange(len(labels)) % 2
    keys = tuple(f"{i}" for i in range(len(labels)))
    domains = ("photo", "sketch")
    return ImageSet("trees", classes, domains, "a {}.", labels, domain, keys, "made up", lambda i: None)


def test_the_base_classes_are_the_larger_half_in_label_or_name_order():
    images = image_set(classes=("yew", "ash", "elm", "oak", "fir"))
    marks = split(images, "60/20/20", seed=1)
    by_label, by_name = (halves(images, marks, order) for order in ("label", "name"))
    assert by_label.base == ("yew", "ash", "elm") and by_label.new == ("oak", "fir")
    assert by_name.base == ("ash", "elm", "fir") and by_name.new == ("yew", "oak"), "in the data set's order"
    for found in (by_label, by_name):
        assert set(found.base) | set(found.new) == set(images.classes) and not set(found.base) & set(
            found.new
        )
        for names, rows in ((found.base, found.base_test), (found.new, found.new_test)):
            wanted = [
                i for i, c in enumerate(images.labels) if images.classes[c] in names and marks[i] == TEST
            ]
            assert rows.tolist() == wanted
        assert images.labels_among(found.new)[found.new_test].min() >= 0


def test_one_class_has_no_halves():
    images = image_set(classes=("yew",))
    with pytest.raises(FedLensError, match="has one class") as caught:
        halves(images, split(images, "60/20/20", seed=1), "label")
    assert caught.value.field == "data.training_classes"


@pytest.mark.parametrize("kind", ["domain", "iid", "dirichlet", "pathological"])
def test_clients_hold_base_classes_only_and_as_if_there_were_no_others(kind):
    images = image_set(classes=("yew", "ash", "elm", "oak", "fir"), each=12)
    marks = split(images, "60/20/20", seed=1)
    found = halves(images, marks, "name")
    settings = PartitionSettings(
        kind=kind,
        clients=None if kind == "domain" else 2,
        alpha=1.0 if kind == "dirichlet" else None,
        classes_per_client=1,
        seed=3,
    )
    made = partition_base(images, marks, found.base, settings)
    rows = np.flatnonzero(np.isin(images.labels, [images.classes.index(n) for n in found.base]))
    alone = partition(
        replace(images.subset(rows), classes=found.base, labels=images.labels_among(found.base)[rows]),
        marks[rows],
        settings,
    )
    for part in ("train", "validation", "test", "domain_test"):
        pairs = zip(getattr(made, part), getattr(alone, part), strict=True)
        assert all(np.array_equal(ours, rows[theirs]) for ours, theirs in pairs)
    held = np.concatenate([*made.train, *made.validation, *made.test])
    assert (images.labels_among(found.base)[held] >= 0).all()
    assert made.counts.shape == (len(made.clients), 3) and made.counts.sum() == sum(map(len, made.train))


def test_classes_are_dealt_in_blocks_and_the_last_client_takes_the_rest():
    names = tuple(f"tree {i}" for i in range(11))
    images = image_set(classes=names)
    marks = split(images, "60/20/20", seed=1)
    made = partition(images, marks, PartitionSettings(kind="dealt", clients=4, seed=1))
    held = [frozenset(np.flatnonzero(counts).tolist()) for counts in made.counts]
    assert [len(classes) for classes in held] == [3, 3, 3, 2] and len(frozenset.union(*held)) == 11
    for seed in (2, 3):
        again = partition(images, split(images, "60/20/20", seed), PartitionSettings("dealt", 4, seed=seed))
        assert [frozenset(np.flatnonzero(c).tolist()) for c in again.counts] == held, "for every seed"
    with pytest.raises(FedLensError, match="11 classes of trees in blocks of 2 leave client 7 without one"):
        partition(images, marks, PartitionSettings("dealt", 7))


SETTINGS = {
    "domain": {},
    "iid": {"clients": 3},
    "dirichlet": {"clients": 3, "alpha": 0.5},
    "pathological": {"clients": 2, "classes_per_client": 1, "leftover": "spread"},
    "dealt": {"clients": 3},
    "natural": {"clients": 3},
}


@pytest.mark.parametrize(
    ("kind", "scheme", "classes"),
    list(itertools.product(SETTINGS, ("60/20/20", "80/20", "swapped", "coop"), ("all", "base"))),
)
def test_no_client_trains_on_a_test_image_of_anyone(kind, scheme, classes):
    """Not on its own, on another's, on a domain's, nor on one of the base or new classes.

    With seed 2 some clients never take part, and a domain without clients is tested with all of its images.
    """
    images = image_set(classes=("yew", "ash", "elm", "oak", "fir", "box"), each=15)
    images = replace(
        images,
        owner=tuple(f"writer {i // 2 % 4}" for i in range(len(images))),
        split=np.random.default_rng(5).choice(3, len(images), p=(0.5, 0.2, 0.3)),
    )
    for seed, shots, scope in itertools.product((1, 2), (None, 1, 4), ("client", "federation")):
        data = {"name": "shapes", "split": scheme, "training_classes": classes}
        held_out = ("photo",) if seed == 2 and classes == "all" else ()
        run = expand(
            Experiment(
                data={**data, "shots": shots, "shots_scope": scope},
                partition={"kind": kind, **SETTINGS[kind], "unseen": 0.4 * (seed == 2 and kind != "domain")},
                methods=[{"name": "zero-shot"}],
                seeds=[seed],
                held_out=held_out,
                held_out_share="all",
            )
        )[0]
        if scope == "federation" and shots == 1:  # too few for every client
            continue
        inputs = prepare_inputs(run, images)
        made = inputs.assignment
        trained = np.concatenate(made.train)
        tested = [*made.test, *made.domain_test, *made.validation]
        if inputs.unseen is not None:
            tested += [*inputs.unseen.test, *inputs.unseen.train]
        if held_out:
            assert made.domain_test[0].tolist() == np.flatnonzero(images.domain == 0).tolist()
        assert not held_out or (images.domain[trained] == 1).all()
        if inputs.halves is not None:
            tested += [inputs.halves.base_test, inputs.halves.new_test]
            assert set(images.labels[trained]) <= {images.classes.index(c) for c in inputs.halves.base}
        assert not set(trained.tolist()) & set(np.concatenate(tested).tolist())
        most = made.counts.sum(0).max() if scope == "federation" else made.counts.max()
        assert shots is None or most <= shots
