"""Count the published values that FedLens can run, table by table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from fedcore.data import catalog
from fedcore.papers.equivalents import NoEquivalent, equivalent
from fedcore.papers.names import CATALOG
from fedcore.papers.published import PAPERS, PublishedValue, load_all

Column = Literal["runnable", "no_data", "not_implemented", "no_run"]


@dataclass(frozen=True)
class Coverage:
    """The numbers of published values of one table, by what FedLens can reproduce.

    Attributes:
        values: all of them.
        runnable: method, setting and data set exist.
        no_data: method and setting exist, but the catalog does not have the data set yet.
        not_implemented: the method or the setting does not exist, whatever the data.
        no_run: no single run gives them (means over data sets, counts, times).
    """

    paper: str
    table: str
    values: int
    runnable: int
    no_data: int
    not_implemented: int
    no_run: int


def coverage(values: Iterable[PublishedValue] | None = None) -> tuple[Coverage, ...]:
    """Return one ``Coverage`` per paper and table, in the papers' order; ``values`` are all unless given."""
    known = {entry.name for entry in catalog.entries()}
    counts: dict[tuple[str, str], Counter[Column]] = {}
    for value in load_all() if values is None else values:
        counts.setdefault((value.paper, value.table), Counter())[_column(value, known)] += 1
    papers = list(PAPERS)

    def place(key: tuple[str, str]) -> tuple[int, int, str]:
        paper, table = key
        return papers.index(paper), int(table) if table.isdecimal() else 0, table

    return tuple(
        Coverage(
            paper,
            table,
            count.total(),
            count["runnable"],
            count["no_data"],
            count["not_implemented"],
            count["no_run"],
        )
        for (paper, table), count in ((key, counts[key]) for key in sorted(counts, key=place))
    )


def _column(value: PublishedValue, known_data: set[str]) -> Column:
    own = equivalent(value)
    if isinstance(own, NoEquivalent):
        return "not_implemented" if own.kind == "method" else "no_run"
    return "runnable" if CATALOG.get(value.dataset) in known_data else "no_data"


def missing_data_sets() -> list[str]:
    """Return the papers' data sets that the catalog does not have."""
    known = {entry.name for entry in catalog.entries()}
    return sorted({name for name in CATALOG.values() if name not in known})
