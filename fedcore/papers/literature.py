"""The values of a baseline on a data set from all sources, under one name for each, and their protocols.

Nothing is averaged over sources: they measure different things even where their settings look alike.
"""

import csv
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from fedcore.base.progress import counted, listed
from fedcore.papers import library
from fedcore.papers.library import FOLDER, KINDS, Protocol, SourceKind
from fedcore.papers.published import WHOLE_SETS, PublishedValue, load_all
from fedcore.results.statistics import group_by

ZERO_SHOT = "zero-shot CLIP"
AVERAGES = ("", "not stated")
"""Printed data sets that are not one, besides those that begin with ``avg``."""


@cache
def _names() -> dict[tuple[str, str], str]:
    with (FOLDER / "names.csv").open(encoding="utf-8", newline="") as file:
        return {(row["kind"], row["printed"]): row["normal"] for row in csv.DictReader(file)}


def normal(kind: str, printed: str, paper: str) -> str:
    """Return the normal name of a printed one; the printed one if it has no other.

    Args:
        kind: ``method`` or ``dataset``.
        paper: key of the source, whose names take precedence.
    """
    of_source = library.find(paper).names
    return of_source.get(printed) or _names().get((kind, printed), printed)


def baseline(value: PublishedValue) -> str:
    """Return the normal name of a value's method."""
    return normal("method", value.method, value.paper)


def dataset(value: PublishedValue) -> str:
    """Return the normal name of a value's data set; empty if it is an average or not stated."""
    printed = value.dataset
    return "" if printed in AVERAGES or printed.startswith("avg") else normal("dataset", printed, value.paper)


def quantity(value: PublishedValue) -> str:
    """Return the quantity that a value measures, in the same words for all sources."""
    return library.find(value.paper).metric(value.metric).quantity or value.metric


def is_accuracy(value: PublishedValue) -> bool:
    """Return whether a value is an accuracy in per cent, and not a count, a time or a ratio."""
    named = "accuracy" in value.metric or library.find(value.paper).metric(value.metric).quantity
    return bool(named) and 0 <= value.value <= 100


def protocol(value: PublishedValue) -> Protocol:
    """Return the source's description of the runs behind a value.

    Zero-shot CLIP is not trained, so the shots, clients and rounds of its table are left out.
    """
    paper = library.find(value.paper)
    stated = paper.protocol_of(value.table, value.setting)
    if baseline(value) != ZERO_SHOT:
        return stated
    return Protocol(
        training="zero-shot", classes=stated.classes, tested_on=stated.tested_on, detail=stated.detail
    )


DIFFERENCES = {
    "quantity": "what is measured",
    "backbone": "the backbone",
    "training": "the kind of training",
    "classes": "the classes or domains",
    "partition": "how clients divide the data",
    "clients": "the number of clients",
    "shots": "the images per class",
    "rounds": "the rounds",
    "detail": "a detail of the setting",
}
"""Part of a value's setting -> its name in the reasons for a spread, in the order in which they are given."""
NUMBERS = (
    "no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
)  # fmt: skip


@dataclass(frozen=True)
class Pair:
    """A baseline on a data set, with what each source prints for it, the most reliable sources first."""

    baseline: str
    dataset: str
    values: tuple[PublishedValue, ...]

    @property
    def works(self) -> list[str]:
        """Keys of the sources; editions of one work count once."""
        return list(dict.fromkeys(library.find(value.paper).work for value in self.values))

    @property
    def comparable_values(self) -> list[PublishedValue]:
        """The accuracies over the whole data set, without those of a single domain."""
        whole = [v for v in self.values if v.target in WHOLE_SETS and is_accuracy(v)]
        return whole or [v for v in self.values if is_accuracy(v)]

    @property
    def text(self) -> str:
        """The spread of each quantity and reasons: ``PromptFL on Food101: two sources; all classes 71.3``."""
        named = f"{self.baseline} on {self.dataset}: {number(len(self.works), 'source')}"
        groups = group_by(self.comparable_values, quantity)
        if not groups:
            return f"{named}, no accuracy."
        spans = listed([f"{of} {span([v.value for v in values])}" for of, values in groups.items()])
        several = [values for values in groups.values() if len({v.value for v in values}) > 1]
        reasons = dict.fromkeys(part for values in several for part in differences(values))
        if not several:
            return f"{named}; {spans}."
        why = "No stated part of the settings explains the spread"
        if reasons:
            why = f"Values of one quantity differ in {listed([*reasons])}"
        return f"{named}; {spans}. {why}."

    @property
    def kinds(self) -> dict[SourceKind, int]:
        """The number of sources of each kind that occurs, the most reliable first."""
        return dict(Counter(library.find(work).kind for work in self.works))


def span(values: Sequence[float]) -> str:
    """Return the smallest and largest of some values: ``71.31 to 92.67``, or one number if all are equal."""
    low, high = min(values), max(values)
    return f"{low:.2f}" if low == high else f"{low:.2f} to {high:.2f}"


def number(count: int, noun: str) -> str:
    """Return a count with its noun, in words up to twelve: ``five sources``."""
    text = counted(count, noun)
    return f"{NUMBERS[count]} {text.partition(' ')[2]}" if count < len(NUMBERS) else text


def setting_of(value: PublishedValue) -> dict[str, str]:
    """Return the parts of a value's setting by key of ``DIFFERENCES``; empty where nothing is said."""
    stated = protocol(value).model_dump() | {"quantity": quantity(value), "backbone": value.backbone}
    return {part: stated[part] for part in DIFFERENCES}


def differences(values: Sequence[PublishedValue]) -> dict[str, list[str]]:
    """Return the parts in which some settings differ: ``{"the backbone": ["RN50", "ViT-B-16"]}``."""

    def by_number(text: str) -> tuple[float, str]:
        return (float(text), "") if text.replace(".", "", 1).isdecimal() else (float("inf"), text)

    settings = [setting_of(value) for value in values]
    variants = {part: {s[part] for s in settings if s[part]} for part in DIFFERENCES}
    return {DIFFERENCES[part]: sorted(of, key=by_number) for part, of in variants.items() if len(of) > 1}


@library.cached
def pairs() -> dict[tuple[str, str], Pair]:
    """Return the values of every baseline on every data set, by their normal names."""
    found = group_by(filter(dataset, load_all()), lambda value: (baseline(value), dataset(value)))
    kinds = list(KINDS)
    return {
        key: Pair(*key, tuple(sorted(values, key=lambda v: kinds.index(library.find(v.paper).kind))))
        for key, values in sorted(found.items(), key=lambda item: (item[0][0].lower(), item[0][1].lower()))
    }


@library.cached
def several() -> dict[tuple[str, str], Pair]:
    """Return the pairs of baseline and data set that more than one source prints."""
    return {key: pair for key, pair in pairs().items() if len(pair.works) > 1}


def protocol_text(protocol: Protocol) -> str:
    """Return a protocol in one line; empty if the source says nothing."""
    parts = [
        protocol.training,
        protocol.classes,
        protocol.partition,
        protocol.clients and f"{protocol.clients} clients",
        protocol.participation and f"{protocol.participation} take part",
        protocol.shots and f"{protocol.shots} shots",
        protocol.rounds and f"{protocol.rounds} rounds",
        protocol.detail,
        protocol.origin,
    ]
    return ", ".join(filter(None, parts))
