"""The blocks of docs/ablations.md: tables from the recorded runs of examples/ablations.toml.

OMP_NUM_THREADS=1 fedlens run examples/ablations.toml --db ablations.db
python -m scripts.docs.ablations ablations.db
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedcore import config
from fedcore.errors import FedLensError
from fedcore.methods import registry
from fedcore.results.comparison import Comparison, Group, compare
from fedcore.results.metrics import METRIC_HEADINGS, Metric
from fedcore.results.statistics import Stat, spread
from fedcore.store import ExperimentRow, Store
from scripts.docs.blocks import FOLDER, fill, rewrite

EXPERIMENT = FOLDER.parent / "examples" / "ablations.toml"
PAGE = FOLDER / "ablations.md"
_ANY = {"notes", "tags", "evaluate_every"}
"""Fields of an experiment that change no value of the last round."""
ACCURACIES: tuple[Metric, ...] = ("personal", "worst", "global")


@dataclass(frozen=True)
class Column:
    """A diagnostic of the last round as a column of a table.

    Attributes:
        of_clients: how a run's value follows from the values of its clients.
    """

    heading: str
    name: str
    digits: int
    of_clients: Literal["mean", "high"] = "mean"


COLUMNS = {
    "fedot": (
        Column("condition number", "condition_number", 2, "high"),
        Column("degrees of freedom", "degrees_of_freedom", 0),
        Column("gradient conflict", "gradient_conflict", 2),
    ),
    "sdfed": (Column("subspace overlap", "subspace_overlap", 2),),
    "fedalign": (Column("orthogonality penalty", "orthogonality", 2),),
}
"""Method -> the columns that its table has besides the accuracies."""


def render(text: str, store: Store) -> str:
    """Return the page with every block written from the runs.

    Raises:
        FedLensError: when the database has no such experiment, when a run of it is missing or was made with
            other threads than the rest, and for a marker that names no method of it.
    """
    row = _experiment(store)
    comparison = compare(store, [row.id], "last")
    _check_complete(row, comparison)
    return fill(
        text,
        {
            "table": lambda method: table(store, comparison, method),
            "runs": lambda _: _runs(store, row, comparison),
        },
    )


def table(store: Store, comparison: Comparison, method: str) -> str:
    """Return a row for each variant of a method: mean ± sample standard deviation over the seeds.

    Raises:
        FedLensError: when the experiment has no such method.
    """
    groups = [g for g in comparison.groups if g.method == method]
    if not groups:
        known = ", ".join(dict.fromkeys(g.method for g in comparison.groups))
        raise FedLensError(f"docs/ablations.md names '{method}'; the runs are of {known}")
    columns = COLUMNS.get(method, ())
    headings = [registry.get(method).about.title, *(METRIC_HEADINGS[m].lower() for m in ACCURACIES)]
    lines = [[*headings, *(c.heading for c in columns), "n"]]
    for group in groups:
        cells = [group.stats[m].text() if m in group.stats else "" for m in ACCURACIES]
        cells += [_text(column, _stat(store, group, column)) for column in columns]
        lines.append([group.label, *cells, str(group.stats["personal"].n)])
    lines.insert(1, ["---"] * len(lines[0]))
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _stat(store: Store, group: Group, column: Column) -> Stat | None:
    """Return mean and spread over seeds in the last round; None if the method does not record it."""
    last = {v.run.id: v.rounds[-1] for v in group.runs}
    rows = store.diagnostics.means(last, column.name)
    return spread(getattr(r, column.of_clients) for r in rows if r.round == last[r.run_id])


def _text(column: Column, stat: Stat | None) -> str:
    """Return the cell's text; counts, which no seed changes, go without a spread."""
    if stat is None:
        return ""
    return f"{stat.mean:,.0f}" if column.digits == 0 and not stat.std else stat.text(column.digits)


def _experiment(store: Store) -> ExperimentRow:
    """Return the newest recorded experiment of the file.

    Raises:
        FedLensError: when there is none, or when the file has changed since.
    """
    wanted = config.load(EXPERIMENT)
    if not Path(store.path).is_file():
        raise FedLensError(
            f"no database at {store.path}; make it with fedlens run {EXPERIMENT.name} --db {store.path}"
        )
    for row in sorted(store.experiments.all(), key=lambda e: e.id, reverse=True):
        if row.config.name == wanted.name:
            if row.config.model_dump(exclude=_ANY) != wanted.model_dump(exclude=_ANY):
                raise FedLensError(
                    f"{store.path}: {EXPERIMENT.name} has changed since it was run; run it again"
                )
            return row
    raise FedLensError(
        f"{store.path}: no experiment '{wanted.name}'; run {EXPERIMENT.name} with --db {store.path}"
    )


def _check_complete(row: ExperimentRow, comparison: Comparison) -> None:
    if comparison.notes:
        raise FedLensError(f"experiment {row.id} is incomplete: {'; '.join(comparison.notes)}")
    wanted = {(m.label, s) for m in row.config.methods for s in row.config.seeds}
    recorded = {(v.run.label, v.run.seed) for g in comparison.groups for v in g.runs}
    if wanted - recorded:
        missing = ", ".join(f"{label} (seed {seed})" for label, seed in sorted(wanted - recorded))
        raise FedLensError(f"experiment {row.id} is incomplete: it lacks {missing}; resume its runs first")


def _runs(store: Store, row: ExperimentRow, comparison: Comparison) -> str:
    """Return one line about the runs and the machine.

    Raises:
        FedLensError: when the runs were not all made on one machine with equal threads.
    """
    runs = [v.run.id for g in comparison.groups for v in g.runs]
    places = [store.runs.environment(run) for run in runs]
    facts = {(p.get("device"), p.get("threads"), p.get("torch"), p.get("platform")) for p in places}
    if len(facts) > 1:
        raise FedLensError(
            f"the runs differ in device, threads, torch or platform: {facts}; run all of them in the same way"
        )
    device, threads, torch, _ = facts.pop()
    where = "GPU" if device == "cuda" else "CPU"
    count = f"{threads} thread{'' if threads == 1 else 's'}"
    seeds = ", ".join(map(str, row.config.seeds))
    return (
        f"{len(runs)} runs: {row.config.data.name}, {row.config.backbone.name}, {row.config.rounds} rounds, "
        f"seeds {seeds}; {where}, {count}, torch {torch}.\n"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Rewrite the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("db", help="database with the runs of examples/ablations.toml")
    store = Store(parser.parse_args(arguments).db)
    try:
        rewrite(PAGE, lambda text: render(text, store))
    except FedLensError as error:
        parser.error(str(error))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
