"""The blocks of docs/ablations.md: figures from the recorded runs of the presets ablations/*.

for name in fedalign feddeap fedot-held-out fedot-personal fedpha sdfed; do
    OMP_NUM_THREADS=1 fedlens run --preset ablations/$name --db ablations.db; done
python -m tools.docs.ablations ablations.db
python -m tools.docs.ablations ablations.db fedpha      # the blocks of one experiment
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from fedcore.base.events import BEFORE_AGGREGATION
from fedcore.base.files import ASSETS
from fedcore.results.metrics import METRICS, Metric, value_per_seed
from fedcore.results.rows import ComparisonRow
from fedcore.results.statistics import Stat, group_by, mean_or_none, spread
from fedcore.store import Store
from tools.docs.blocks import FOLDER, fill
from tools.docs.forest import Table, figure
from tools.docs.paired import MOST_SEEDS, seeds_needed
from tools.docs.recorded import (
    RecordedExperiment,
    blocks_of,
    command,
    difference,
    environment,
    rewrite_from_runs,
    test_images,
)

EXAMPLES = ASSETS / "protocols" / "ablations"
PAGE = FOLDER / "ablations.md"
DATABASE = "ablations.db"
HALF = 0.5
"""The difference in percentage points that a row is asked to resolve."""


@dataclass(frozen=True)
class Measure:
    """An accuracy, which has its own table.

    Attributes:
        before: of the models as local training left them, before aggregation; for personal accuracy.
    """

    metric: Metric
    before: bool = False

    @property
    def title(self) -> str:
        """The words above its table."""
        return METRICS[self.metric].title + (", before aggregation" if self.before else "")


@dataclass(frozen=True)
class DiagnosticColumn:
    """A diagnostic of the last round as a column of a table.

    Attributes:
        of_clients: how a run's value follows from the values of its clients.
    """

    heading: str
    name: str
    digits: int
    of_clients: Literal["mean", "high"] = "mean"


MEASURES: dict[str, tuple[Measure, ...]] = {
    "fedot-held-out": (Measure("generalisation"), Measure("personalisation")),
    "fedot-personal": (Measure("personal"), Measure("global")),
    "sdfed": (Measure("personal"), Measure("global")),
    "fedpha": (Measure("personal"), Measure("global")),
    "fedalign": (Measure("personal", before=True), Measure("personal"), Measure("whole")),
    "feddeap": (Measure("personal"), Measure("global")),
}
"""Name of an experiment's file -> the accuracies that are compared."""
COLUMNS = {
    "fedot": (
        DiagnosticColumn("largest condition number", "condition_number", 2, "high"),
        DiagnosticColumn("cosine of updates", "gradient_conflict", 2),
    ),
    "sdfed": (DiagnosticColumn("subspace overlap", "subspace_overlap", 2),),
    "fedalign": (
        DiagnosticColumn("orthogonality penalty", "orthogonality", 2),
        DiagnosticColumn("its share of the gradient", "orthogonality_share", 2),
    ),
}
"""Method -> the columns that its first table has besides the accuracies."""
_LINEAR, _QUARTER = "FedOT(-o), linear", "FedOT, orthogonal at a quarter of the rate"
_MATCHED = (
    ("FedOT, orthogonal", "FedOT(-o), linear at four times the rate"),
    (_QUARTER, _LINEAR),
)
PAIRS: dict[str, tuple[tuple[str, str], ...]] = {
    "fedot-held-out": _MATCHED,
    "fedot-personal": _MATCHED,
    "sdfed": (("SDFed, as in the paper", "SDFed, random directions removed"),),
    "fedpha": (
        ("SDFed: full SVD, mean over classes", "SDFed, economy SVD, mean over classes"),
        ("SDFed, full SVD, mean over elements", "SDFed, economy SVD, mean over elements"),
        ("SDFed: full SVD, mean over classes", "FedPHA, SDFed's lengths, batch and margin"),
    ),
}
"""Name of an experiment's file -> pairs of variants whose difference answers its question."""
HEADINGS = ("variant", "accuracy", "difference (95 % interval)", "could have seen", "seeds for half a point")


def render(text: str, store: Store, only: Sequence[str] = ()) -> str:
    """Return the page with the blocks of some experiments, or of all, written from the runs.

    Raises:
        FedLensError: when the database lacks an experiment or a run of it, when runs of one experiment were
            made in different ways, and for a name without an experiment.
    """
    block = blocks_of(store, EXAMPLES, only)
    return fill(
        text,
        {
            "setting": lambda name: block(name, lambda of: setting(store, name, of)),
            "table": lambda name: block(name, lambda of: tables(store, name, of)),
        },
    )


def setting(store: Store, name: str, recorded: RecordedExperiment) -> str:
    """Return the command that makes the runs, their data and sizes in words, and where they were made."""
    of, results = recorded.row.config, recorded.results
    left_out = f", {len(of.held_out)} domains held out in turn" if of.held_out else ""
    size = (
        f"{of.data.shots} training images of a class and client, {test_images(results)} test images, "
        f"{of.rounds} rounds"
    )
    how = command(EXAMPLES / f"{name}.toml", DATABASE)
    return (
        f"`{how}`\n\n{len(results)} runs: {of.data.name}, {size}{left_out}.\n{environment(store, results)}.\n"
    )


def tables(store: Store, name: str, recorded: RecordedExperiment) -> str:
    """Write a figure for each accuracy, with a row for each variant, and return their places in the page.

    Raises:
        FedLensError: when no run has one of the accuracies.
    """
    found: list[tuple[str, Table]] = []
    for i, measure in enumerate(MEASURES[name]):
        values = {group.label: _per_seed(store, group, measure) for group in recorded.rows}
        columns = COLUMNS.get(recorded.rows[0].method, ()) if i == 0 else ()
        found.append((measure.title, _table(store, recorded.rows, values, columns)))
        if name in PAIRS:
            found.append((f"{measure.title}, pairs", _pairs(values, PAIRS[name])))
    return "\n".join(figure(f"{name}-{k}", title, *table) for k, (title, table) in enumerate(found, 1))


def _pairs(values: Mapping[str, Mapping[int, float]], pairs: Sequence[tuple[str, str]]) -> Table:
    """Return the differences of pairs of variants."""
    lines = [[f"{one}, minus {other}", *_difference(values[one], values[other])] for one, other in pairs]
    return ["pair", *HEADINGS[2:]], lines


def _table(
    store: Store,
    groups: Sequence[ComparisonRow],
    values: Mapping[str, Mapping[int, float]],
    columns: Sequence[DiagnosticColumn],
) -> Table:
    baseline = values[groups[0].label]
    lines = []
    for group in groups:
        by_seed = values[group.label]
        stat = spread(by_seed.values())
        compared = ["", "", ""] if group is groups[0] else _difference(by_seed, baseline)
        cells = [_text(column, _stat(store, group, column)) for column in columns]
        lines.append([group.label, stat.text() if stat else "", *compared, *cells, str(len(by_seed))])
    return [*HEADINGS, *(c.heading for c in columns), "n"], lines


def _difference(by_seed: Mapping[int, float], baseline: Mapping[int, float]) -> list[str]:
    """Return the cells of a difference paired by seed, with the seeds that half a point would need."""
    text, detectable, std = difference(by_seed, baseline)
    needed = seeds_needed(std, HALF) if std else 0
    many = f"more than {MOST_SEEDS - 1}" if needed == MOST_SEEDS else str(needed or "")
    return [text, detectable, many]


def _per_seed(store: Store, group: ComparisonRow, measure: Measure) -> dict[int, float]:
    """Return a value per seed, per cent; without one for methods that have no such model."""
    if not measure.before:
        return value_per_seed(group.runs, measure.metric)
    last = {r.run.id: r.rounds[-1] for r in group.runs}
    shares = {
        row.run_id: row.personal_mean
        for row in store.rounds.mean_accuracy(last, stage=BEFORE_AGGREGATION)
        if row.round == last[row.run_id]
    }
    by_seed = group_by(group.runs, lambda r: r.run.seed)
    means = {
        seed: mean_or_none(shares.get(r.run.id) for r in of_seed) for seed, of_seed in sorted(by_seed.items())
    }
    return {seed: 100 * mean for seed, mean in means.items() if mean is not None}


def _stat(store: Store, group: ComparisonRow, column: DiagnosticColumn) -> Stat | None:
    """Return mean and spread over seeds in the last round; None if the method does not record it.

    Held-out domains of a seed are averaged first: how they differ is no spread over seeds.
    """
    last = {v.run.id: v.rounds[-1] for v in group.runs}
    rows = store.diagnostics.means(last, column.name)
    per_run = {r.run_id: getattr(r, column.of_clients) for r in rows if r.round == last[r.run_id]}
    by_seed = group_by(group.runs, lambda v: v.run.seed).values()
    return spread(mean_or_none(per_run.get(v.run.id) for v in of_seed) for of_seed in by_seed)


def _text(column: DiagnosticColumn, stat: Stat | None) -> str:
    return "" if stat is None else stat.text(column.digits)


if __name__ == "__main__":
    rewrite_from_runs(PAGE, EXAMPLES, render)
