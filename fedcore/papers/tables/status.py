"""The status of each published value: measured, in progress, or which run, data or method is missing."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from fedcore.papers.comparability import comparability
from fedcore.papers.published import PublishedValue
from fedcore.papers.recorded import Measurement, RecordedRuns
from fedcore.papers.tables.sources import Availability, Lack, RunSource, source_of
from fedcore.results.evaluated_on import SeedAndDomain
from fedcore.results.statistics import Stat, signed, spread
from fedcore.results.summary import Comparability, ComparabilityState
from fedcore.store import RunRow

CellStatus: TypeAlias = (
    ComparabilityState
    | Literal[
        "rehearsed",
        "in progress",
        "can be run",
        "needs weights",
        "needs data",
        "not implemented",
        "no single run",
    ]
)
STATUSES: dict[CellStatus, str] = {
    "comparable": "measured here; evidence shows that ours is the same quantity as the paper's",
    "with a caveat": "measured here; the paper can be read in more than one way, and the reading may matter",
    "not comparable": "measured here, but our quantity differs from the paper's",
    "rehearsed": "measured with a miniature model on embedded data: no evidence about the paper",
    "in progress": "its runs are queued or running",
    "can be run": "this machine has everything that its runs need",
    "needs weights": "its runs need weights that are not on this machine; a run can download them",
    "needs data": "its runs need a data set that is not on this machine",
    "not implemented": "FedLens lacks the method or the setting",
    "no single run": "not the result of one run, but a mean over several data sets, a count or a time",
}
"""Status -> its meaning, in the order in which counts list them."""
IN_COUNTS: dict[CellStatus, str] = {
    "needs weights": "need weights",
    "needs data": "need data",
    "no single run": "not the result of one run",
}
"""Status -> its words after a number above 1, if they differ."""
MEASURED: tuple[CellStatus, ...] = ("comparable", "with a caveat", "not comparable")
Memory: TypeAlias = dict[tuple[PublishedValue, bool, str], Measurement]
"""Cache of measurements by value, whether of rehearsals, and the version of the finished runs."""


@dataclass(frozen=True)
class TableCell:
    """A published value with our value, or with the runs that would give it.

    Attributes:
        source: the runs that give the value; None if no run can.
        missing: seeds and held-out domains of runs that are neither done nor queued.
        done: number of finished runs among those that the value needs.
        active: queued and running runs.
        ended_early: runs that failed, or were stopped or interrupted, and have not been repeated.
        current: the value at the latest round of running runs; None if they have not measured it yet.
        lacks: data and weights that the missing runs need and this machine does not have.
        reason: why no run can give the value, or why runs gave none; may be empty.
    """

    value: PublishedValue
    status: CellStatus
    source: RunSource | None = None
    measurement: Measurement | None = None
    missing: tuple[SeedAndDomain, ...] = ()
    done: int = 0
    active: tuple[RunRow, ...] = ()
    ended_early: tuple[RunRow, ...] = ()
    current: float | None = None
    lacks: tuple[Lack, ...] = ()
    reason: str = ""
    comparability: Comparability = field(default_factory=Comparability)

    @property
    def stat(self) -> Stat | None:
        """Our value; None unless it was measured or rehearsed."""
        return self.measurement.stat if self.measurement else None

    @property
    def gap(self) -> float | None:
        """Our value minus the printed one; None if the two must not be compared, as in a rehearsal."""
        if self.stat is None or self.status not in ("comparable", "with a caveat"):
            return None
        return self.stat.mean - self.value.value

    @property
    def gap_text(self) -> str:
        """The difference with its sign; empty if the two must not be compared."""
        return "" if self.gap is None else signed(self.gap, self.value.digits)


def measure(
    recorded: RecordedRuns,
    values: Iterable[PublishedValue],
    rehearsal: bool = False,
    memory: Memory | None = None,
) -> dict[PublishedValue, Measurement]:
    """Return our values for published ones; values without finished runs are left out.

    Args:
        memory: results of earlier calls for the same store, which are not read again; new ones are added.
    """
    found: dict[PublishedValue, Measurement] = {}
    memory = {} if memory is None else memory
    sources = {value: source_of(value, rehearsal) for value in values}
    of_runs = {v: s for v, s in sources.items() if isinstance(s, RunSource) and recorded.has(s.key)}
    places = {v: (v, rehearsal, recorded.version(s.key)) for v, s in of_runs.items()}
    recorded.read_results((s.key, v.rule) for v, s in of_runs.items() if places[v] not in memory)
    for value, source in of_runs.items():
        place = places[value]
        if place in memory:
            found[value] = memory[place]
            continue
        measured = recorded.measurement(value, source.key, source.held_out, source.domains, rehearsal)
        if measured is not None:
            found[value] = memory[place] = measured
    return found


def table_cells(
    recorded: RecordedRuns,
    values: Iterable[PublishedValue],
    measured: Mapping[PublishedValue, Measurement],
    available: Availability,
    rehearsal: bool = False,
) -> dict[PublishedValue, TableCell]:
    """Return the table cells of published values, or of their rehearsals."""
    lacks: dict[RunSource, tuple[Lack, ...]] = {}
    found = {}
    for value in dict.fromkeys(values):
        source = source_of(value, rehearsal)
        if not isinstance(source, RunSource):
            status: CellStatus = "not implemented" if source.kind == "method" else "no single run"
            found[value] = TableCell(value, status, reason=source.reason)
            continue
        if source not in lacks:
            lacks[source] = available.lacks(source.config)
        found[value] = cell_of(recorded, value, source, measured.get(value), lacks[source])
    return found


def cell_of(
    recorded: RecordedRuns,
    value: PublishedValue,
    source: RunSource,
    measured: Measurement | None,
    lacks: tuple[Lack, ...],
) -> TableCell:
    """Return the cell of a value that a source gives; ``lacks`` is what the source's runs need."""
    parts = source.parts(value)
    done, active, early = (
        (recorded.done(source.key), recorded.active(source.key), recorded.ended_early(source.key))
        if recorded.has(source.key)
        else ({}, {}, {})
    )
    active_runs = tuple(active[p] for p in parts if p in active and p not in done)
    missing = tuple(p for p in parts if p not in done and p not in active)
    against = measured.comparability if measured else Comparability()
    if measured is None and not source.rehearsal:
        against = comparability(value)
    kinds = {lack.kind for lack in lacks}
    status: CellStatus
    if measured is not None and measured.stat is not None:
        status = "rehearsed" if source.rehearsal else measured.comparability.state
    elif active_runs:
        status = "in progress"
    else:
        status = "needs data" if "data" in kinds else "needs weights" if kinds else "can be run"
    return TableCell(
        value,
        status,
        source,
        measured,
        missing,
        sum(part in done for part in parts),
        active_runs,
        tuple(early[p] for p in missing if p in early),
        _current(recorded, value, source) if active_runs else None,
        lacks,
        reason=measured.reason if measured else "",
        comparability=against,
    )


def _current(recorded: RecordedRuns, value: PublishedValue, source: RunSource) -> float | None:
    """Return a preliminary value from the latest rounds of running runs and from finished runs."""
    training = recorded.results(source.key, "last", unfinished=True)
    if not training:
        return None
    reader = recorded.reader(source.domains)
    seeds = {r.run.seed for r in training}
    done = [r for r in recorded.results(source.key, value.rule) if r.run.seed in seeds]
    stat = spread(reader.by_seed(value, [*done, *training], source.held_out).values())
    return None if stat is None else stat.mean


def counts_text(statuses: Iterable[CellStatus]) -> str:
    """Return the number of values of each status in words: ``3 comparable, 12 need data``."""
    counts = Counter(statuses)
    return ", ".join(
        f"{counts[s]:,} {IN_COUNTS.get(s, s) if counts[s] > 1 else s}" for s in STATUSES if counts[s]
    )
