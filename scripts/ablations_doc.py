"""Write the tables of docs/ablations.md from the recorded runs of examples/ablations.toml.

    OMP_NUM_THREADS=1 fedlens run examples/ablations.toml --db ablations.db
    python -m scripts.ablations_doc ablations.db

What stands between the markers is written anew; the prose around them is kept by hand.
"""

from __future__ import annotations

import argparse
import re
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

ROOT = Path(__file__).resolve().parent.parent
EXPERIMENT = ROOT / "examples" / "ablations.toml"
PAGE = ROOT / "docs" / "ablations.md"
BLOCK = re.compile(r"(<!-- (runs|table: [\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
_ANY = {"notes", "tags", "evaluate_every"}
"""Fields of an experiment that change no figure of the last round."""
ACCURACIES: tuple[Metric, ...] = ("personal", "worst", "global")


@dataclass(frozen=True)
class Figure:
    """A diagnostic of the last round as a column. of_clients: how a run's figure comes from its clients'."""

    head: str
    name: str
    digits: int
    of_clients: Literal["mean", "high"] = "mean"


FIGURES = {
    "fedot": (
        Figure("condition number", "condition_number", 2, "high"),
        Figure("degrees of freedom", "degrees_of_freedom", 0),
        Figure("gradient conflict", "gradient_conflict", 2),
    ),
    "sdfed": (Figure("subspace overlap", "subspace_overlap", 2),),
    "fedalign": (Figure("orthogonality penalty", "orthogonality", 2),),
}
"""Method -> what its table has beside the accuracies."""


def render(text: str, store: Store) -> str:
    """The page with every block between markers as the runs have it.

    Raises:
        FedLensError: when the database has no such experiment, when a run of it is missing or was made with
            other threads than the rest, and for a marker that names no method of it.
    """
    row = _experiment(store)
    comparison = compare(store, [row.id], "last")
    _check_complete(row, comparison)

    def block(found: re.Match[str]) -> str:
        kind, _, method = found[2].partition(": ")
        content = table(store, comparison, method) if kind == "table" else _runs(store, row, comparison)
        return found[1] + content + found[3]

    return BLOCK.sub(block, text)


def table(store: Store, comparison: Comparison, method: str) -> str:
    """A row for each variant of a method: mean ± sample standard deviation over the seeds.

    Raises:
        FedLensError: when the experiment has no such method.
    """
    groups = [g for g in comparison.groups if g.method == method]
    if not groups:
        known = ", ".join(dict.fromkeys(g.method for g in comparison.groups))
        raise FedLensError(f"docs/ablations.md names '{method}'; the runs are of {known}")
    figures = FIGURES.get(method, ())
    heads = [registry.get(method).about.title, *(METRIC_HEADINGS[m].lower() for m in ACCURACIES)]
    lines = [[*heads, *(f.head for f in figures), "n"]]
    for group in groups:
        cells = [group.stats[m].text() if m in group.stats else "" for m in ACCURACIES]
        cells += [_shown(figure, _stat(store, group, figure)) for figure in figures]
        lines.append([group.label, *cells, str(group.stats["personal"].n)])
    lines.insert(1, ["---"] * len(lines[0]))
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _stat(store: Store, group: Group, figure: Figure) -> Stat | None:
    """Over seeds, of the last round; None where the method does not record it."""
    last = {v.run.id: v.rounds[-1] for v in group.runs}
    rows = store.diagnostics.means(last, figure.name)
    return spread(getattr(r, figure.of_clients) for r in rows if r.round == last[r.run_id])


def _shown(figure: Figure, stat: Stat | None) -> str:
    """Counts, which no seed changes, go without a spread."""
    if stat is None:
        return ""
    return f"{stat.mean:,.0f}" if figure.digits == 0 and not stat.std else stat.text(figure.digits)


def _experiment(store: Store) -> ExperimentRow:
    """The newest run of the file."""
    wanted = config.load(EXPERIMENT)
    if not Path(store.path).is_file():
        raise FedLensError(
            f"no database at {store.path}; make it with fedcore run {EXPERIMENT.name} --db {store.path}"
        )
    for row in sorted(store.experiments.all(), key=lambda e: e.id, reverse=True):
        if row.config.name == wanted.name:
            if row.config.model_dump(exclude=_ANY) != wanted.model_dump(exclude=_ANY):
                raise FedLensError(
                    f"{store.path}: run with another {EXPERIMENT.name} than there is now; run it anew"
                )
            return row
    raise FedLensError(
        f"{store.path}: no experiment '{wanted.name}'; run {EXPERIMENT.name} with --db {store.path}"
    )


def _check_complete(row: ExperimentRow, comparison: Comparison) -> None:
    if comparison.notes:
        raise FedLensError(f"experiment {row.id} is not whole: {'; '.join(comparison.notes)}")
    wanted = {(m.label, s) for m in row.config.methods for s in row.config.seeds}
    there = {(v.run.label, v.run.seed) for g in comparison.groups for v in g.runs}
    if wanted - there:
        missing = ", ".join(f"{label} (seed {seed})" for label, seed in sorted(wanted - there))
        raise FedLensError(f"experiment {row.id} is not whole, it lacks {missing}; resume its runs first")


def _runs(store: Store, row: ExperimentRow, comparison: Comparison) -> str:
    """One line: what ran, and on what."""
    runs = [v.run.id for g in comparison.groups for v in g.runs]
    places = [store.runs.environment(run) for run in runs]
    facts = {(p.get("device"), p.get("threads"), p.get("torch"), p.get("platform")) for p in places}
    if len(facts) > 1:
        raise FedLensError(
            f"the runs differ in device, threads, torch or platform: {facts}; make them all alike"
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
        text = render(PAGE.read_text(encoding="utf-8"), store)
    except FedLensError as error:
        parser.error(str(error))
    PAGE.write_text(text, encoding="utf-8")
    print(f"written: {PAGE}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
