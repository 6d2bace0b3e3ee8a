"""Contradictions between printed values and their table, source, test set, or other sources.

An audit does not prove a mistake. It explains in a sentence what is impossible or unlikely about a cell.
"""

from collections.abc import Sequence

from fedcore.papers import library
from fedcore.papers.audits import across, fractions, parts
from fedcore.papers.audits.kinds import KINDS, Finding
from fedcore.papers.published import PublishedValue, load, load_all
from fedcore.results.statistics import group_by

__all__ = ["KINDS", "Finding", "findings", "findings_of", "inside"]


@library.cached
def findings() -> dict[PublishedValue, tuple[Finding, ...]]:
    """Return the findings of all audits on all papers, by the value that they are about."""
    found = [
        *(finding for paper in library.papers() for finding in _inside_paper(paper)),
        *across.identical(load_all()),
        *across.far_apart(load_all()),
    ]
    return {value: tuple(of) for value, of in group_by(found, lambda finding: finding.value).items()}


@library.cached_by_paper
def _inside_paper(paper: str) -> list[Finding]:
    return inside(load(paper))


def inside(values: Sequence[PublishedValue]) -> list[Finding]:
    """Return the findings of the audits that need one source alone, whose values these are."""
    if not values:
        return []
    return [
        *parts.means(values),
        *parts.combinations(values),
        *parts.unstated_averages(values),
        *parts.printed_twice(values),
        *parts.swapped_columns(values),
        *fractions.impossible_shares(values),
        *fractions.impossible_spreads(values),
    ]


def findings_of(value: PublishedValue) -> tuple[Finding, ...]:
    """Return the findings about a value."""
    return findings().get(value, ())
