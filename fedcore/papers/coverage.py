"""Counts of the published values that FedLens can run and compare with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Literal, TypeAlias

from fedcore.data import catalog
from fedcore.papers.comparability import Reason, comparability, evidence_for
from fedcore.papers.equivalents import NoEquivalent, equivalent
from fedcore.papers.names import CATALOG
from fedcore.papers.published import PAPERS, PublishedValue, load_all
from fedcore.results.printed import State

Column: TypeAlias = Literal["no data", "not implemented", "no run"] | State
"""Whether FedLens can run a published value; for those that it can, whether ours is comparable."""
COLUMNS: dict[Column, str] = {
    "comparable": "can be run; `--evidence` lists what shows that ours is the same quantity",
    "with a caveat": "can be run; `fedlens published --preset NAME` names where the paper had to be read",
    "not comparable": "can be run, but measures another quantity than the paper",
    "no data": "method and setting exist, but the data set is not in the catalog",
    "not implemented": "FedLens lacks the method or the setting, whatever the data",
    "no run": "not the result of one run, but a mean over several data sets, a count or a time",
}
"""Column -> its meaning."""
RUNNABLE: tuple[Column, ...] = ("comparable", "with a caveat", "not comparable")


def coverage(values: Iterable[PublishedValue] | None = None) -> dict[tuple[str, str], Counter[Column]]:
    """Count the values of each column by paper and table, in the papers' order.

    Args:
        values: default: all.
    """
    catalogued = {entry.name for entry in catalog.entries()}
    counts: dict[tuple[str, str], Counter[Column]] = {}
    for value in load_all() if values is None else values:
        counts.setdefault((value.paper, value.table), Counter())[_column(value, catalogued)] += 1
    papers = list(PAPERS)

    def place(key: tuple[str, str]) -> tuple[int, int, str]:
        paper, table = key
        return papers.index(paper), int(table) if table.isdecimal() else 0, table

    return {key: counts[key] for key in sorted(counts, key=place)}


def _column(value: PublishedValue, known_data: set[str]) -> Column:
    found = equivalent(value)
    if isinstance(found, NoEquivalent):
        return "not implemented" if found.kind == "method" else "no run"
    return comparability(value).state if CATALOG.get(value.dataset) in known_data else "no data"


def evidence(values: Iterable[PublishedValue] | None = None) -> dict[Reason, list[PublishedValue]]:
    """Return the comparable values that can be run, by the line of evidence that makes them so."""
    catalogued = {entry.name for entry in catalog.entries()}
    found: dict[Reason, list[PublishedValue]] = {}
    for value in load_all() if values is None else values:
        if _column(value, catalogued) == "comparable":
            for reason in evidence_for(value):
                found.setdefault(reason, []).append(value)
    return found


def missing_data_sets() -> list[str]:
    """Return the papers' data sets that the catalog does not have."""
    catalogued = {entry.name for entry in catalog.entries()}
    return sorted({name for name in CATALOG.values() if name not in catalogued})
