"""The runs that would fill cells of a paper's table: the experiments to queue, and their cost."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from fedcore.config import Experiment, RunConfig
from fedcore.engine.plan import Plan
from fedcore.jobs import forecast
from fedcore.papers.tables.sources import Availability, Lack, RunSource
from fedcore.papers.tables.status import TableCell
from fedcore.progress import first_few
from fedcore.results.evaluated_on import SeedAndDomain
from fedcore.store import Created, Store

NAMED = 3
"""Maximum number of methods in the name of an experiment."""


@dataclass(frozen=True)
class Filling:
    """An experiment of a preset, reduced to the methods and seeds that are missing.

    Attributes:
        experiment: the experiment to plan; it holds out all of the paper's domains.
        wanted: method, seed and held-out domain of each run to queue.
        lacks: data and weights that the runs need and this machine does not have.
    """

    preset: str
    experiment: Experiment
    wanted: frozenset[tuple[str, int, str | None]]
    lacks: tuple[Lack, ...]

    @property
    def can_start(self) -> bool:
        """True if the runs can be queued: missing weights can be downloaded, missing data cannot."""
        return all(lack.kind != "data" for lack in self.lacks)

    def reduced(self, plan: Plan) -> Plan:
        """Return the plan of the experiment with the wanted runs only."""
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
    for cell in cells:
        if cell.source is None:
            continue
        allowed = cell.source.experiment.seeds[:seeds]
        for part in cell.missing:
            if part[0] in allowed and (cell.source.key, part) not in listed:
                listed.add((cell.source.key, part))
                parts.setdefault(cell.source, []).append(part)
    return parts


def fillings(cells: Iterable[TableCell], available: Availability, seeds: int | None = None) -> list[Filling]:
    """Return the experiments whose runs fill some cells, one per preset and fields that its methods share."""
    by_experiment: dict[tuple[str, str], dict[RunSource, list[SeedAndDomain]]] = {}
    for source, parts in missing_parts(cells, seeds).items():
        shared = source.experiment.model_dump_json(exclude={"methods", "name", "notes", "tags", "reproduces"})
        by_experiment.setdefault((source.preset, shared), {})[source] = parts
    return [_filling(preset, parts, available) for (preset, _), parts in by_experiment.items()]


def _filling(preset: str, parts: dict[RunSource, list[SeedAndDomain]], available: Availability) -> Filling:
    first = next(iter(parts))
    paper = first.experiment
    ordered = sorted(parts, key=lambda source: source.index)
    methods = tuple(source.entry for source in ordered)
    wanted = {(source.title, *part) for source, of_source in parts.items() for part in of_source}
    changes: dict[str, object] = {
        "methods": methods,
        "seeds": tuple(seed for seed in paper.seeds if seed in {s for _, s, _ in wanted}),
    }
    if methods != paper.methods:
        labels = [source.title for source in ordered]
        changes["name"] = f"{paper.name}: {first_few(labels, NAMED)}"[:500]
    root = available.roots.get(paper.data.name)
    if root is not None and paper.data.root is None and not first.rehearsal:
        changes["data"] = paper.data.model_copy(update={"root": root})
    lacks = dict.fromkeys(lack for source in parts for lack in available.lacks(source.config))
    return Filling(preset, paper.model_copy(update=changes), frozenset(wanted), tuple(lacks))


def seconds(past: forecast.Precedents, parts: dict[RunSource, list[SeedAndDomain]]) -> float | None:
    """Estimate the seconds of missing runs from similar runs on this machine; None without such runs."""
    runs: list[RunConfig] = [source.config for source, of_source in parts.items() for _ in of_source]
    return forecast.seconds(past, runs) if runs else 0.0


def queue(store: Store, planned: Sequence[tuple[Filling, Plan]]) -> list[Created]:
    """Queue an experiment for each filling, with the wanted runs of its plan."""
    return [
        store.experiments.create(filling.experiment, filling.reduced(plan).runs) for filling, plan in planned
    ]
