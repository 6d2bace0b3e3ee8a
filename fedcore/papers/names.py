"""One name for each baseline, data set and quantity that sources print in several ways."""

from __future__ import annotations

import csv
from functools import cache

from fedcore.papers import library
from fedcore.papers.library import FOLDER, Protocol
from fedcore.papers.published import PublishedValue

ZERO_SHOT = "zero-shot CLIP"
AVERAGES = ("", "not stated")
"""Printed data sets that are not one, besides those that begin with ``avg``."""
_FILE = FOLDER / "names.csv"


@cache
def _names() -> dict[tuple[str, str], str]:
    with _FILE.open(encoding="utf-8", newline="") as file:
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
    """Return what a value measures, in the same words for all sources."""
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
