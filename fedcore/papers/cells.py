"""Each published value with ours, or with the runs, data or method that are missing for it."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, reduce
from pathlib import Path
from typing import Literal, TypeAlias

from fedcore.base.progress import counted, first_few, listed
from fedcore.clip import tags
from fedcore.clip.specs import MINI_MODELS
from fedcore.config import BackboneConfig, Experiment, RunConfig, backbones, sweeps
from fedcore.data import catalog, copies
from fedcore.engine.plan import Plan
from fedcore.jobs import forecast
from fedcore.papers import library, mini
from fedcore.papers.comparability import comparability
from fedcore.papers.equivalents import (
    Changes,
    NoEquivalent,
    RunSource,
    equivalent,
    find_variant,
    parts_of_mean,
    presets_of_values,
    variant_runs,
)
from fedcore.papers.experiments import data_names, printed_backbone, published
from fedcore.papers.published import PublishedValue, computed, load
from fedcore.papers.recorded import Measurement, RecordedRuns
from fedcore.results.averages import mean_over
from fedcore.results.rows import SeedAndDomain
from fedcore.results.statistics import Stat, group_by, signed, spread
from fedcore.results.summary import Comparability, ComparabilityState
from fedcore.store import RunRow, Store


@library.cached
def _of_preset(preset: str, rehearsal: bool) -> list[RunSource]:
    """Return the runs of each method of a preset, or of the preset's rehearsal."""
    large, domains = published()[preset], {}
    experiment = large
    if rehearsal:
        experiment, domains = mini.rehearsal(large), mini.stand_ins(large)
    return [
        replace(of, preset=preset, held_out=large.held_out, domains=domains, rehearsal=rehearsal)
        for of in variant_runs(experiment)
    ]


@library.cached
def reading_of(source: RunSource, changes: Changes) -> RunSource:
    """Return the runs of a preset's method under a reading, which reproduces nothing."""
    preset = published()[source.preset]
    alone: dict[str, object] = {"methods": preset.methods[source.index : source.index + 1], "reproduces": ()}
    alone["seeds"] = mini.seeds(preset.seeds)
    experiment = sweeps.fixed(preset.model_copy(update=alone), dict(changes))
    if source.rehearsal:
        experiment = mini.rehearsal(experiment)
        if prompt := dict(changes).get("data.template"):  # the paper's own suits its classes alone
            data = experiment.data.model_copy(update={"template": prompt})
            experiment = experiment.model_copy(update={"data": data})
    of = variant_runs(experiment)[0]
    return replace(source, experiment=experiment, config=of.config, fields=of.fields, changes=changes)


@library.cached
def source_of(value: PublishedValue, rehearsal: bool = False) -> RunSource | NoEquivalent:
    """Return the runs that give a value, or the reason why none can."""
    ours = equivalent(value)
    if isinstance(ours, NoEquivalent):
        return ours
    presets = presets_of_values().get(value)
    if presets is None:  # the part of a mean that no table prints
        paper = library.find(value.paper)
        presets = [
            name
            for name, experiment in published().items()
            if name.startswith(f"{paper.work}/")
            and not experiment.sweep
            and experiment.data.name == data_names(paper.work).get(value.dataset)
            and printed_backbone(experiment, paper) == value.backbone
        ]
    for preset in presets:
        found = find_variant(_of_preset(preset, False), value)
        if isinstance(found, RunSource):
            return _of_preset(preset, rehearsal)[found.index]
    return NoEquivalent("no single run", "no preset has this method in this setting")


@library.cached
def has_runs(paper: str, table: str) -> bool:
    """Return whether FedLens can run some values of a table.

    For a paper that does not say why it cannot run the others, any table will do.
    """
    if paper not in library.papers():  # a draft
        return False
    anywhere = not library.find(paper).why_not_run
    return any(
        isinstance(source_of(value), RunSource) for value in load(paper) if anywhere or value.table == table
    )


@dataclass(frozen=True)
class Lack:
    """Data or weights that runs need and this machine lacks; ``how`` says how to get them.

    Attributes:
        name: of the data set in the catalog, or of the model and its tag, ``ViT-B-32 openai``.
    """

    kind: Literal["data", "weights"]
    name: str
    text: str
    how: str


@dataclass
class Availability:
    """The weights on this machine, and the data sets with their folders, preferably checked ones.

    Those that ``data get`` has brought need no folder (None).
    """

    roots: dict[str, str | None]
    _weights: dict[BackboneConfig, bool] = field(default_factory=dict)

    def lacks(self, config: RunConfig) -> tuple[Lack, ...]:
        """Return the data and weights that a config needs and this machine lacks."""
        lacks = []
        entry = catalog.entry(config.data.name)
        if not entry.embedded and entry.name not in self.roots:
            lacks.append(Lack("data", entry.name, f"the data set {entry.title}", entry.how_to_get))
        for backbone in backbones(config):
            tag, name = backbone.pretrained, backbone.name
            if backbone not in self._weights:
                cached = name in MINI_MODELS or tag is None or tags.cached(name, tag) is not None
                self._weights[backbone] = cached
            if not self._weights[backbone]:
                how = "A run downloads them from huggingface.co, or the page Data & models does."
                lacks.append(Lack("weights", f"{name} {tag}", f"the weights '{tag}' of {name}", how))
        return tuple(lacks)


def find_available(store: Store) -> Availability:
    """Find the data sets that were got, checked or used on this machine and are still there."""

    @cache
    def exists(root: str) -> bool:
        try:
            return Path(root).expanduser().exists()
        except OSError:  # the system does not accept this path
            return False

    roots: dict[str, str | None] = dict.fromkeys(copy.name for copy in copies.every())
    for name, root in reversed(store.experiments.data_folders()):
        if exists(root):
            roots[name] = root
    for task in reversed(store.tasks.recent("check", 1000)):
        result = task.result or {}
        known, report = result.get("known") or result.get("name"), result.get("report", {})
        place = report.get("root")
        if task.status == "done" and known and place and not report.get("error") and exists(place):
            roots[known] = place  # a checked one first, the newest
    return Availability(roots)


CellStatus: TypeAlias = (
    ComparabilityState
    | Literal[
        "not run",
        "computed",
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
    "computed": "counted from the methods, without a run",
    "rehearsed": "measured with a miniature model on embedded data: no evidence about the paper",
    "in progress": "its runs are queued or running",
    "can be run": "this machine has everything that its runs need",
    "needs weights": "its runs need weights that are not on this machine; a run can download them",
    "needs data": "its runs need a data set that is not on this machine",
    "not implemented": "FedLens lacks the method or the setting",
    "no single run": "not the result of runs that FedLens knows",
}
"""Status -> its meaning, in the order in which counts list them; cells of a table are never "not run"."""
IN_COUNTS: dict[CellStatus, str] = {
    "needs weights": "need weights",
    "needs data": "need data",
    "no single run": "not the result of runs",
}
"""Status -> its words after a number above 1, if they differ."""


@dataclass(frozen=True)
class TableCell:
    """A published value with our value, or with the runs that would give it.

    Attributes:
        status: "not run" for a value that an experiment names, whatever this machine has.
        source: the runs that give the value; None if no run can, and for a value that an experiment names.
        missing: seeds and held-out domains of runs that are neither done nor queued.
        done: number of finished runs among those that the value needs.
        active: queued and running runs.
        ended_early: runs that failed, or were stopped or interrupted, and have not been repeated.
        current: the value at the latest round of running runs; None if they have not measured it yet.
        lacks: data and weights that the missing runs need and this machine does not have.
        reason: why no run can give the value, or why runs gave none; may be empty.
        parts: of a mean over data sets, the cell of each; ``source`` is then that of the first one.
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
    parts: tuple["TableCell", ...] = ()

    @property
    def stat(self) -> Stat | None:
        """Our value; None unless it was measured or rehearsed."""
        return self.measurement.stat if self.measurement else None

    @property
    def seeds_text(self) -> str:
        """The number of seeds behind our value, or that it was counted without a run."""
        return "" if self.stat is None else counted(self.stat.n, "seed") if self.stat.n else "computed"

    @property
    def gap(self) -> float | None:
        """Our value minus the printed one; None if the two must not be compared, as in a rehearsal."""
        if self.stat is None or self.status not in ("comparable", "with a caveat", "computed"):
            return None
        return self.stat.mean - self.value.value

    @property
    def gap_text(self) -> str:
        """The difference with its sign; empty if the two must not be compared."""
        return "" if self.gap is None else signed(self.gap, self.value.digits)

    @property
    def outcome(self) -> str:
        """Whether the value was measured, for a list of the values that an experiment names."""
        if self.measurement is None:
            return self.status
        return "measured" if self.stat else "measured on another test set"

    @property
    def outcome_text(self) -> str:
        """Our value, or the reason why it is missing; never empty."""
        if self.stat is None:
            return self.reason if self.status == "no single run" else self.outcome
        return f"{self.stat.text(self.value.digits)} {self.comparability.mark}".rstrip()

    @property
    def judgement(self) -> ComparabilityState | None:
        """Whether our value may be compared, or might be; None if no run can give it."""
        unmeasurable = self.status in ("not implemented", "no single run")
        return None if unmeasurable else self.comparability.state


def table_cells(
    recorded: RecordedRuns,
    values: Iterable[PublishedValue],
    available: Availability,
    rehearsal: bool = False,
) -> dict[PublishedValue, TableCell]:
    """Return the table cells of published values, or of their rehearsals."""
    means = {value: parts_of_mean(value) for value in values}
    sources = {one: source_of(one, rehearsal) for value, parts in means.items() for one in parts or (value,)}
    of_runs = {value: source for value, source in sources.items() if isinstance(source, RunSource)}
    recorded.read_results((source.key, value.rule) for value, source in of_runs.items())
    lacks = {source: available.lacks(source.config) for source in set(of_runs.values())}
    found: dict[PublishedValue, TableCell] = {}
    for value, source in sources.items():
        if (count := computed(value)) is not None:
            against = comparability(value)
            ours = Measurement(Stat(count, None, 0), (), against)
            found[value] = TableCell(value, "computed", measurement=ours, comparability=against)
        elif isinstance(source, NoEquivalent):
            found[value] = TableCell(value, source.status, reason=source.reason)
        else:
            measured = recorded.measurement(value, source)
            found[value] = cell_of(recorded, value, source, measured, lacks[source])
    return {
        value: _mean_cell(value, [found[part] for part in parts]) if parts else found[value]
        for value, parts in means.items()
    }


def _mean_cell(value: PublishedValue, parts: Sequence[TableCell]) -> TableCell:
    """Return the cell of a mean over data sets, measured once all of them are, over the seeds of all."""
    for part in parts:
        if part.source is None:
            return replace(part, value=value, reason=f"{part.value.dataset}: {part.reason}")
    measured = [part.measurement for part in parts if part.measurement is not None and part.stat is not None]
    lacking = listed([part.value.dataset for part in parts if part.stat is None])
    by_seed = {} if lacking else mean_over(m.by_seed for m in measured)
    against = reduce(Comparability.joined, (part.comparability for part in parts), comparability(value))
    status = max((part.status for part in parts), key=list(STATUSES).index)
    ours, reason = None, ""
    if by_seed:
        runs = tuple(dict.fromkeys(run for m in measured for run in m.runs))
        ours = Measurement(spread(by_seed.values()), runs, against, by_seed=by_seed)
        status = status if status == "rehearsed" else against.state
    elif measured:
        what = f"of which {lacking} are not measured yet" if lacking else "without a seed that all have"
        reason = f"a mean over {len(parts)} data sets, {what}"
        if not lacking:
            status = "in progress" if any(part.active for part in parts) else "can be run"
    return TableCell(
        value,
        status,
        parts[0].source,
        ours,
        tuple(missing for part in parts for missing in part.missing),
        sum(part.done for part in parts),
        tuple(run for part in parts for run in part.active),
        tuple(run for part in parts for run in part.ended_early),
        lacks=tuple(dict.fromkeys(lack for part in parts for lack in part.lacks)),
        reason=reason,
        comparability=against,
        parts=tuple(parts),
    )


def cell_of(
    recorded: RecordedRuns,
    value: PublishedValue,
    source: RunSource,
    measured: Measurement | None,
    lacks: tuple[Lack, ...],
) -> TableCell:
    """Return the cell of a value that a source gives; ``lacks`` is what the source's runs need."""
    parts, key = source.parts(value), source.key
    done, active, early = recorded.done(key), recorded.active(key), recorded.ended_early(key)
    active_runs = tuple(active[p] for p in parts if p in active and p not in done)
    missing = tuple(p for p in parts if p not in done and p not in active)
    against = measured.comparability if measured else Comparability()
    if measured is None and not source.rehearsal:
        against = comparability(value)
    current = None
    if active_runs:  # preliminary, from the latest rounds of running runs and from finished runs
        training = recorded.results(key, "last", unfinished=True)
        seeds = {r.run.seed for r in training}
        runs = [*(r for r in recorded.results(key, value.rule) if r.run.seed in seeds), *training]
        current = spread(recorded.by_seed(value, runs, source).values())
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
        None if current is None else current.mean,
        lacks,
        reason=measured.reason if measured else "",
        comparability=against,
    )


def counts_text(statuses: Iterable[CellStatus]) -> str:
    """Return the number of values of each status in words: ``3 comparable, 12 need data``."""
    counts = Counter(statuses)
    return ", ".join(
        f"{counts[s]:,} {IN_COUNTS.get(s, s) if counts[s] > 1 else s}" for s in STATUSES if counts[s]
    )


@dataclass(frozen=True)
class Filling:
    """An experiment of a preset, reduced to the methods and seeds that are missing.

    Attributes:
        experiment: the experiment to plan; it holds out all of the paper's domains.
        wanted: method, seed and held-out domain of each run to queue.
        lacks: data and weights that the runs need and this machine does not have.
    """

    experiment: Experiment
    wanted: frozenset[tuple[str, int, str | None]]
    lacks: tuple[Lack, ...]

    def reduced(self, plan: Plan) -> Plan:
        runs = tuple(r for r in plan.runs if (r.method.label, r.seed, r.held_out) in self.wanted)
        return replace(plan, runs=runs)


def missing_parts(
    cells: Iterable[TableCell], seeds: int | None = None
) -> dict[RunSource, list[SeedAndDomain]]:
    """Return the runs that are neither done nor queued for some cells, each run once.

    Only the first ``seeds`` seeds of the paper are used; None: all.
    """
    parts: dict[RunSource, list[SeedAndDomain]] = {}
    listed: set[tuple[str, SeedAndDomain]] = set()
    for cell in (part for one in cells for part in one.parts or (one,)):
        if cell.source is None:
            continue
        allowed, key = cell.source.experiment.seeds[:seeds], cell.source.key
        for part in cell.missing:
            if part[0] in allowed and (key, part) not in listed:
                listed.add((key, part))
                parts.setdefault(cell.source, []).append(part)
    return parts


def fillings(cells: Iterable[TableCell], available: Availability, seeds: int | None = None) -> list[Filling]:
    """Return the experiments whose runs fill some cells, one per preset and fields that its methods share."""
    missing = missing_parts(cells, seeds)
    of_methods = {"methods", "name", "notes", "tags", "reproduces"}
    by_experiment = group_by(
        missing, lambda source: (source.preset, source.experiment.model_dump_json(exclude=of_methods))
    )
    found = []
    for sources in by_experiment.values():
        paper, ordered = sources[0].experiment, sorted(sources, key=lambda source: source.index)
        methods = tuple(source.config.method for source in ordered)
        wanted = frozenset((source.title, *part) for source in sources for part in missing[source])
        changes: dict[str, object] = {
            "methods": methods,
            "seeds": tuple(seed for seed in paper.seeds if seed in {s for _, s, _ in wanted}),
        }
        if methods != paper.methods:
            changes["name"] = f"{paper.name}: {first_few([s.title for s in ordered], 3)}"[:500]
        root = available.roots.get(paper.data.name)
        if root is not None and paper.data.root is None and not sources[0].rehearsal:
            changes["data"] = paper.data.model_copy(update={"root": root})
        lacks = dict.fromkeys(lack for of in sources for lack in available.lacks(of.config))
        found.append(Filling(paper.model_copy(update=changes), wanted, tuple(lacks)))
    return found


def seconds(past: forecast.Precedents, parts: dict[RunSource, list[SeedAndDomain]]) -> float | None:
    """Estimate the seconds of missing runs from similar runs on this machine; None without such runs."""
    runs = [source.config for source, of_source in parts.items() for _ in of_source]
    return forecast.seconds(past, runs) if runs else 0.0
