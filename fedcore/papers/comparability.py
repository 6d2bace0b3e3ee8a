"""Tells whether a run measures the quantity that a paper prints, by the ``reasons.csv`` of its folder.

The coverage counts how many of the published values FedLens can run, and how many of these are comparable.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from fedcore.base.errors import FedLensError
from fedcore.data import catalog
from fedcore.papers import library
from fedcore.papers.equivalents import NoEquivalent, equivalent, left_open, parts_of_mean
from fedcore.papers.experiments import PrintedRule, data_names
from fedcore.papers.library import REASONS_FILE, Paper
from fedcore.papers.published import PublishedValue, computed, load, load_all
from fedcore.results.metrics import RunResult
from fedcore.results.statistics import group_by
from fedcore.results.summary import STATES, Comparability, ComparabilityState

MATCHED = ("edition", "table", "dataset", "setting", "method", "target", "metric")
"""Columns that select the values of a reason: empty for all, else names that may contain ``*``.

``edition`` is the key of the paper or of another edition of it (``Paper.edition_of``).
"""
COLUMNS = (*MATCHED, "test_images", "state", "unmeasured", "reason")
NO_EVIDENCE = "no evidence shows that the paper's value and ours are the same quantity"
OTHER_TEST_SETS = "these runs were not tested on as many images as the paper: "


@dataclass(frozen=True, eq=False)
class Reason:
    """A line of a ``reasons.csv``: a reason for or against comparing runs with some published values.

    Attributes:
        place: the file and the line, such as ``fedot/reasons.csv, line 20``.
        about: the values with the names in the columns ``MATCHED``.
        test_images: domain -> images in the paper's test set. A reason against comparing does not hold for a
            run with these counts, and evidence holds only for such a run.
        state: "comparable" for evidence that the values are the same quantity.
        unmeasured: the state until a run has reported its counts; None: the same as ``state``.
    """

    place: str
    about: PrintedRule
    test_images: Mapping[str, int]
    state: ComparabilityState
    unmeasured: ComparabilityState | None
    text: str

    def state_of(self, test_images: Mapping[str, int] | None) -> ComparabilityState:
        """Return the state of a run with these test images by domain; None: before any run."""
        if test_images is None:
            return self.unmeasured or self.state
        return "comparable" if self.test_images and self.fits(test_images) else self.state

    def fits(self, test_images: Mapping[str, int] | None) -> bool:
        """Return whether a run has the test sets of this line, which every run has if the line names none."""
        return test_images is None or all(
            test_images.get(domain) == count for domain, count in self.test_images.items()
        )


@library.cached_by_key
def reasons(paper: Paper) -> tuple[Reason, ...]:
    """Read the ``reasons.csv`` of a paper and its editions; without the file there are none."""
    found = []
    for place, row in library.optional_rows(paper.folder / REASONS_FILE, COLUMNS):
        try:
            counts = dict(part.split("=") for part in row["test_images"].split())
            reason = Reason(
                place=f"{paper.work}/{REASONS_FILE}, line {place.rpartition(' ')[2]}",
                about=PrintedRule(**{c: tuple(row[c].split("|")) for c in MATCHED if row[c]}),
                test_images={domain: int(count) for domain, count in counts.items()},
                state=STATES[STATES.index(row["state"])],
                unmeasured=STATES[STATES.index(row["unmeasured"])] if row["unmeasured"] else None,
                text=row["reason"],
            )
        except ValueError as error:
            raise FedLensError(
                f"{place}: state and unmeasured are one of {', '.join(STATES)}, and test_images such as "
                "'photo=334 sketch=785'",
                "folder",
            ) from error
        found.append(reason)
    return tuple(found)


@library.cached
def reasons_for(value: PublishedValue) -> tuple[Reason, ...]:
    """Return the reasons that are about a value, in the order of the file."""
    work = library.find(value.paper).work
    return tuple(reason for reason in reasons(work) if reason.about.is_about(value))


def comparability(value: PublishedValue, test_images: Mapping[str, int] | None = None) -> Comparability:
    """Return whether our value may be compared with a published one, and every reason against it.

    The two are comparable if the file has no reason against it and at least one line of evidence, and the
    value's method declares nothing that its paper leaves open.

    Args:
        test_images: domain -> test images of the run; None before any run.
    """
    result, found = Comparability(), reasons_for(value)
    for reason in found:
        result = result.with_reason(reason.state_of(test_images), reason.text)
    for point in left_open(value):
        result = result.with_reason("with a caveat", point.caveat)
    evidence = [reason for reason in found if reason.state == "comparable"]
    if result.state == "comparable" and not any(reason.fits(test_images) for reason in evidence):
        text = OTHER_TEST_SETS + evidence[0].text if evidence else NO_EVIDENCE
        result = result.with_reason("with a caveat", text)
    return result


def evidence_for(value: PublishedValue) -> tuple[Reason, ...]:
    """Return the evidence that makes a value comparable; empty if it is not comparable."""
    if comparability(value).state != "comparable":
        return ()
    return tuple(reason for reason in reasons_for(value) if reason.state == "comparable")


def comparability_of_runs(
    value: PublishedValue, runs: Iterable[RunResult], caveats: Iterable[str]
) -> Comparability:
    """Return whether recorded runs measure a published value; without runs, whether such runs would.

    ``caveats`` say how the runs depart from their config; empty texts do not count.
    """
    tested = dict.fromkeys(tuple(run.test_images.items()) for run in runs)
    result = Comparability() if tested else comparability(value)
    for images in tested:
        result = result.joined(comparability(value, dict(images)))
    for caveat in filter(None, caveats):
        result = result.with_reason("with a caveat", caveat)
    return result


CoverageColumn: TypeAlias = Literal["no data", "not implemented", "no run"] | ComparabilityState
"""Tells whether FedLens can run a published value, and if so, whether ours is comparable."""
COVERAGE_COLUMNS: dict[CoverageColumn, str] = {
    "comparable": "can be run; `--evidence` lists what shows that ours is the same quantity",
    "with a caveat": "can be run; `fedlens published --preset NAME` names where the paper had to be read",
    "not comparable": "can be run, but measures another quantity than the paper",
    "no data": "method and setting exist, but the data set is not in the catalog",
    "not implemented": "FedLens lacks the method or the setting, whatever the data",
    "no run": "not the result of runs that FedLens knows",
}
"""Column -> its meaning."""


def coverage() -> dict[tuple[str, str], Counter[CoverageColumn]]:
    """Count the values of each column by paper and table, in the papers' order."""
    found = {}
    for paper in library.papers():
        by_table = group_by(load(paper), lambda value: value.table)
        for table in sorted(by_table, key=lambda t: (int(t) if t.isdecimal() else 0, t)):
            found[paper, table] = Counter(map(_column, by_table[table]))
    return found


def _column(value: PublishedValue) -> CoverageColumn:
    if parts := parts_of_mean(value):
        return max(map(_column, parts), key=list(COVERAGE_COLUMNS).index)
    if computed(value) is not None:
        return comparability(value).state
    found = equivalent(value)
    if isinstance(found, NoEquivalent):
        return "no run" if found.status == "no single run" else found.status
    named = data_names(library.find(value.paper).work).get(value.dataset)
    return comparability(value).state if named in catalog.names() or not value.dataset else "no data"


def evidence() -> dict[Reason, list[PublishedValue]]:
    """Return the comparable values that can be run, by the line of evidence that makes them so."""
    found: dict[Reason, list[PublishedValue]] = {}
    for value in load_all():
        if _column(value) == "comparable":
            for reason in evidence_for(value):
                found.setdefault(reason, []).append(value)
    return found
