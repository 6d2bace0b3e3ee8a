"""The standing of each published value here: measured, in progress, or what is missing for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from fedcore.papers.comparability import comparability, comparability_of_runs
from fedcore.papers.measures import RunReader
from fedcore.papers.published import PublishedValue
from fedcore.papers.reproductions import OTHER_TEST_SET, digits_of
from fedcore.papers.tables.here import Here, Lack
from fedcore.papers.tables.recorded import Recorded
from fedcore.papers.tables.sources import Part, Source, source_of
from fedcore.results.metrics import RunResult
from fedcore.results.printed import Comparability, State
from fedcore.results.statistics import Stat, signed
from fedcore.store import RunRow

Standing: TypeAlias = (
    State
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
STANDINGS: dict[Standing, str] = {
    "comparable": "measured here; nothing is known that would make ours another quantity",
    "with a caveat": "measured here; the paper can be read in more than one way, and the reading may matter",
    "not comparable": "measured here, but ours is another quantity than the paper's",
    "rehearsed": "a miniature model on embedded data gave a number: no evidence about the paper",
    "in progress": "its runs are queued or running",
    "can be run": "everything that its runs need is on this machine",
    "needs weights": "its runs need weights that are not on this machine; a run can download them",
    "needs data": "its runs need a data set that is not on this machine",
    "not implemented": "FedLens lacks the method or the setting",
    "no single run": "no single run gives it: a mean over several data sets, a count or a time",
}
"""Standing -> its meaning, in the order in which counts name them."""
IN_COUNTS: dict[Standing, str] = {
    "needs weights": "need weights",
    "needs data": "need data",
    "no single run": "given by no single run",
}
"""Standing -> its words after a number of several values, where they differ."""
MEASURED: tuple[Standing, ...] = ("comparable", "with a caveat", "not comparable")


@dataclass(frozen=True)
class Measurement:
    """What finished runs gave for a published value.

    Attributes:
        stat: mean over seeds in the value's unit; None where the runs do not measure it.
        runs: the runs that it was read from.
        reason: why there is no value although there are runs; else empty.
    """

    stat: Stat | None
    runs: tuple[int, ...]
    comparability: Comparability
    reason: str = ""


Memory: TypeAlias = dict[tuple[PublishedValue, bool, str], Measurement]
"""What was read of a store: a value, whether of rehearsals, and which finished runs there were."""


@dataclass(frozen=True)
class CellStanding:
    """A published value with all that is known of it here.

    Attributes:
        source: the runs that give the value; None if no run can.
        missing: seeds and held-out domains of runs that are neither done nor queued.
        done: number of finished runs among those that the value is a mean of.
        active: queued and running runs.
        ended_early: runs that failed, or were stopped or interrupted, and have not been repeated.
        current: the value at the last round of the runs that train; None unless they measure it already.
        lacks: what missing runs need and this machine does not have.
        reason: why no run can give the value, or why runs gave none; may be empty.
    """

    value: PublishedValue
    standing: Standing
    source: Source | None = None
    measurement: Measurement | None = None
    missing: tuple[Part, ...] = ()
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
    def digits(self) -> int:
        """The number of decimals that the paper prints."""
        return digits_of(self.value.value)

    @property
    def printed_text(self) -> str:
        """The value as the paper prints it."""
        return Stat(self.value.value, self.value.std, 1).text(self.digits)

    @property
    def gap(self) -> float | None:
        """Our value minus the printed one; None where none may be taken, as in a rehearsal."""
        if self.stat is None or self.standing not in ("comparable", "with a caveat"):
            return None
        return self.stat.mean - self.value.value

    @property
    def gap_text(self) -> str:
        """The difference with its sign; empty where none may be taken."""
        return "" if self.gap is None else signed(self.gap, self.digits)


def measure(
    recorded: Recorded,
    values: Iterable[PublishedValue],
    rehearsal: bool = False,
    memory: Memory | None = None,
) -> dict[PublishedValue, Measurement]:
    """Read what finished runs give for published values; those without runs are left out.

    Args:
        memory: what earlier calls for the same store read, which is not read again; it is added to.
    """
    found: dict[PublishedValue, Measurement] = {}
    known = {} if memory is None else memory
    sources = {value: source_of(value, rehearsal) for value in values}
    of_runs = {v: s for v, s in sources.items() if isinstance(s, Source) and recorded.has(s.key)}
    places = {v: (v, rehearsal, recorded.version(s.key)) for v, s in of_runs.items()}
    recorded.read_results((s.key, v.rule) for v, s in of_runs.items() if places[v] not in known)
    for value, source in of_runs.items():
        place = places[value]
        if place in known:
            found[value] = known[place]
            continue
        results = recorded.results(source.key, value.rule)
        if results:
            reader, caveat = recorded.reader(source.domains), recorded.caveat(source.key)
            found[value] = known[place] = _measurement(reader, value, source, results, caveat)
    return found


def _measurement(
    reader: RunReader, value: PublishedValue, source: Source, results: list[RunResult], caveat: str
) -> Measurement:
    stat = reader.statistic(value, results, source.held_out)
    parts = {domain for _, domain in source.parts(value)}
    read = [r for r in results if r.run.held_out in parts]
    reason = ""
    if stat is None and value.metric == "local" and not source.rehearsal:
        reason = OTHER_TEST_SET
    against = Comparability() if source.rehearsal else comparability_of_runs(value, read, [caveat])
    return Measurement(stat, tuple(r.run.id for r in read), against, reason)


def standings(
    recorded: Recorded,
    values: Iterable[PublishedValue],
    measured: Mapping[PublishedValue, Measurement],
    here: Here,
    rehearsal: bool = False,
) -> dict[PublishedValue, CellStanding]:
    """Return the standing of published values.

    Args:
        measured: what ``measure`` returned for them.
        rehearsal: whether the small versions on embedded data are meant.
    """
    lacks: dict[Source, tuple[Lack, ...]] = {}
    found = {}
    for value in dict.fromkeys(values):
        source = source_of(value, rehearsal)
        if not isinstance(source, Source):
            standing: Standing = "not implemented" if source.kind == "method" else "no single run"
            found[value] = CellStanding(value, standing, reason=source.reason)
            continue
        if source not in lacks:
            lacks[source] = here.lacks(source.config)
        found[value] = _standing(recorded, value, source, measured.get(value), lacks[source])
    return found


def _standing(
    recorded: Recorded,
    value: PublishedValue,
    source: Source,
    measured: Measurement | None,
    lacks: tuple[Lack, ...],
) -> CellStanding:
    parts = source.parts(value)
    done, active, early = (
        (recorded.done(source.key), recorded.active(source.key), recorded.ended_early(source.key))
        if recorded.has(source.key)
        else ({}, {}, {})
    )
    at_work = tuple(active[p] for p in parts if p in active and p not in done)
    missing = tuple(p for p in parts if p not in done and p not in active)
    against = measured.comparability if measured else Comparability()
    if measured is None and not source.rehearsal:
        against = comparability(value)
    kinds = {lack.kind for lack in lacks}
    standing: Standing
    if measured is not None and measured.stat is not None:
        standing = "rehearsed" if source.rehearsal else measured.comparability.state
    elif at_work:
        standing = "in progress"
    else:
        standing = "needs data" if "data" in kinds else "needs weights" if kinds else "can be run"
    return CellStanding(
        value,
        standing,
        source,
        measured,
        missing,
        sum(part in done for part in parts),
        at_work,
        tuple(early[p] for p in missing if p in early),
        _current(recorded, value, source) if at_work else None,
        lacks,
        reason=measured.reason if measured else "",
        comparability=against,
    )


def _current(recorded: Recorded, value: PublishedValue, source: Source) -> float | None:
    """Return a value by the last rounds of runs that train, and by finished ones."""
    training = recorded.results(source.key, "last", unfinished=True)
    if not training:
        return None
    reader = recorded.reader(source.domains)
    seeds = {r.run.seed for r in training}
    done = [r for r in recorded.results(source.key, value.rule) if r.run.seed in seeds]
    stat = reader.statistic(value, [*done, *training], source.held_out)
    return None if stat is None else stat.mean


def count(cells: Iterable[CellStanding]) -> Counter[Standing]:
    """Count cells by standing."""
    return Counter(cell.standing for cell in cells)


def counts_text(standings: Iterable[Standing]) -> str:
    """Return the number of values of each standing in words: ``3 comparable, 12 need data``."""
    counts = Counter(standings)
    return ", ".join(
        f"{counts[s]:,} {IN_COUNTS.get(s, s) if counts[s] > 1 else s}" for s in STANDINGS if counts[s]
    )
