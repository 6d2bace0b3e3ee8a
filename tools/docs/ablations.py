"""The blocks of docs/ablations.md: tables from the recorded runs of examples/ablations/*.toml.

for file in examples/ablations/*.toml; do OMP_NUM_THREADS=1 fedlens run $file --db ablations.db; done
python -m tools.docs.ablations ablations.db
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedcore import config
from fedcore.errors import FedLensError
from fedcore.records.codes import BEFORE_AGGREGATION
from fedcore.results.comparison import Comparison, ComparisonRow, compare
from fedcore.results.metrics import METRICS, Metric, value_per_seed
from fedcore.results.statistics import Stat, group_by, mean_known, signed, spread
from fedcore.store import ExperimentRow, Store
from tools.docs.blocks import FOLDER, fill, rewrite
from tools.docs.paired import MOST_SEEDS, paired, seeds_needed

EXAMPLES = FOLDER.parent / "examples" / "ablations"
PAGE = FOLDER / "ablations.md"
COMMAND = "OMP_NUM_THREADS=1 fedlens run examples/ablations/{}.toml --db ablations.db"
HALF = 0.5
"""The difference in percentage points that a row is asked to resolve."""
_ANY = {"notes", "tags", "evaluate_every"}
"""Fields of an experiment that change no value of the last round."""
VERSIONS = ("fedlens", "commit", "python", "torch", "numpy", "open_clip_torch")
"""Fields of a run's environment that the page prints."""


@dataclass(frozen=True)
class Measure:
    """An accuracy, which has a table of its own.

    Attributes:
        before: of the models as local training left them, before aggregation; for personal accuracy.
    """

    metric: Metric
    before: bool = False

    @property
    def title(self) -> str:
        """The words above its table."""
        return METRICS[self.metric] + (", before aggregation" if self.before else "")


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


@dataclass(frozen=True)
class RecordedAblation:
    """The runs of one experiment file."""

    row: ExperimentRow
    comparison: Comparison

    @property
    def rows(self) -> tuple[ComparisonRow, ...]:
        """The variants; all others are compared with the first."""
        return self.comparison.rows


def render(text: str, store: Store) -> str:
    """Return the page with every block written from the runs.

    Raises:
        FedLensError: when the database lacks an experiment or a run of it, when runs were made in different
            ways, and for a marker that names no experiment.
    """
    files = {path.stem: path for path in sorted(EXAMPLES.glob("*.toml"))}
    recorded: dict[str, RecordedAblation] = {}

    def named(name: str) -> RecordedAblation:
        if name not in files:
            raise FedLensError(f"docs/ablations.md names '{name}'; there are {', '.join(files)}")
        recorded[name] = recorded.get(name) or _recorded(store, files[name])
        return recorded[name]

    text = fill(
        text,
        {
            "setting": lambda name: setting(name, named(name)),
            "table": lambda name: tables(store, name, named(name)),
        },
    )
    return fill(text, {"runs": lambda _: _environment(store, recorded)})


def setting(name: str, recorded: RecordedAblation) -> str:
    """Return the command that makes the runs, and their data and sizes in words."""
    of = recorded.row.config
    results = [r for group in recorded.rows for r in group.runs]
    tests = {sum(r.test_images.values()) for r in results}
    least, most = min(tests), max(tests)
    images = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    left_out = f", {len(of.held_out)} domains held out in turn" if of.held_out else ""
    size = f"{of.data.shots} training images of a class and client, {images} test images, {of.rounds} rounds"
    return f"`{COMMAND.format(name)}`\n\n{len(results)} runs: {of.data.name}, {size}{left_out}.\n"


def tables(store: Store, name: str, recorded: RecordedAblation) -> str:
    """Return a table for each accuracy, with a row for each variant.

    Raises:
        FedLensError: when no run has one of the accuracies.
    """
    texts = []
    for i, measure in enumerate(MEASURES[name]):
        values = {group.label: _per_seed(store, group, measure) for group in recorded.rows}
        columns = COLUMNS.get(recorded.rows[0].method, ()) if i == 0 else ()
        texts.append(f"**{measure.title}**\n\n{_table(store, recorded.rows, values, columns)}")
        texts += [_pairs(values, PAIRS[name])] if name in PAIRS else []
    return "\n".join(texts)


def _pairs(values: Mapping[str, Mapping[int, float]], pairs: Sequence[tuple[str, str]]) -> str:
    """Return a table of the differences of pairs of variants."""
    lines = [["pair", *HEADINGS[2:]], ["---"] * 4]
    for one, other in pairs:
        lines.append([f"{one}, minus {other}", *_difference(values[one], values[other])])
    return _markdown(lines)


def _table(
    store: Store,
    groups: Sequence[ComparisonRow],
    values: Mapping[str, Mapping[int, float]],
    columns: Sequence[DiagnosticColumn],
) -> str:
    baseline = values[groups[0].label]
    lines = [[*HEADINGS, *(c.heading for c in columns), "n"]]
    for group in groups:
        own = values[group.label]
        stat = spread(own.values())
        compared = ["", "", ""] if group is groups[0] else _difference(own, baseline)
        cells = [_text(column, _stat(store, group, column)) for column in columns]
        lines.append([group.label, stat.text() if stat else "", *compared, *cells, str(len(own))])
    lines.insert(1, ["---"] * len(lines[0]))
    return _markdown(lines)


def _markdown(lines: Sequence[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _difference(own: Mapping[int, float], baseline: Mapping[int, float]) -> list[str]:
    """Return the cells of a difference paired by seed, in bold where its interval leaves out 0."""
    found = paired([own[seed] - baseline[seed] for seed in sorted(set(own) & set(baseline))])
    if found is None:
        return ["", "", ""]
    sure = found.std and (found.low > 0 or found.high < 0)
    text = f"{signed(found.mean)} ({signed(found.low)} to {signed(found.high)})"
    if not found.std:
        return [text, "", ""]  # equal for every seed: no spread to judge by
    needed = seeds_needed(found.std, HALF)
    many = f"more than {MOST_SEEDS - 1}" if needed == MOST_SEEDS else str(needed)
    return [f"**{text}**" if sure else text, f"{found.detectable:.1f}", many]


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
    means = {seed: mean_known(shares.get(r.run.id) for r in same) for seed, same in sorted(by_seed.items())}
    return {seed: 100 * mean for seed, mean in means.items() if mean is not None}


def _stat(store: Store, group: ComparisonRow, column: DiagnosticColumn) -> Stat | None:
    """Return mean and spread over seeds in the last round; None if the method does not record it.

    Held-out domains of a seed are averaged first: how they differ is no spread over seeds.
    """
    last = {v.run.id: v.rounds[-1] for v in group.runs}
    rows = store.diagnostics.means(last, column.name)
    known = {r.run_id: getattr(r, column.of_clients) for r in rows if r.round == last[r.run_id]}
    by_seed = group_by(group.runs, lambda v: v.run.seed).values()
    return spread(mean_known(known.get(v.run.id) for v in same) for same in by_seed)


def _text(column: DiagnosticColumn, stat: Stat | None) -> str:
    return "" if stat is None else stat.text(column.digits)


def _recorded(store: Store, path: Path) -> RecordedAblation:
    """Return the newest recorded experiment of a file, complete.

    Raises:
        FedLensError: when there is none, when the file has changed since, or when a run is missing.
    """
    wanted = config.load(path)
    how = COMMAND.format(path.stem).replace("ablations.db", str(store.path))
    if not Path(store.path).is_file():
        raise FedLensError(f"no database at {store.path}; make it with {how}")
    for row in sorted(store.experiments.all(), key=lambda e: e.id, reverse=True):
        if row.config.name == wanted.name:
            if row.config.model_dump(exclude=_ANY) != wanted.model_dump(exclude=_ANY):
                raise FedLensError(f"{store.path}: {path.name} has changed since it was run; run it again")
            comparison = compare(store, [row.id], "last")
            _check_complete(row, comparison)
            return RecordedAblation(row, comparison)
    raise FedLensError(f"{store.path}: no experiment '{wanted.name}'; make it with {how}")


def _check_complete(row: ExperimentRow, comparison: Comparison) -> None:
    wanted = {
        (m.label, seed, left_out)
        for m in row.config.methods
        for seed in row.config.seeds
        for left_out in row.config.held_out or (None,)
    }
    recorded = {(v.run.label, v.run.seed, v.run.held_out) for g in comparison.rows for v in g.runs}
    if wanted - recorded:
        missing = ", ".join(f"{label} (seed {seed})" for label, seed, _ in sorted(wanted - recorded, key=str))
        raise FedLensError(f"experiment {row.id} is incomplete: it lacks {missing}; resume its runs first")


def _environment(store: Store, recorded: Mapping[str, RecordedAblation]) -> str:
    """Return one line about all runs and the machine.

    Raises:
        FedLensError: when the runs were not all made on one machine with equal threads and versions.
    """
    results = [r for one in recorded.values() for group in one.rows for r in group.runs]
    places = [store.runs.environment(r.run.id) for r in results]
    names = ("device", "threads", "platform", *VERSIONS)
    facts = {tuple((name, place.get(name)) for name in names) for place in places}
    if len(facts) > 1:
        raise FedLensError(
            f"the runs differ in device, threads, platform or versions: {facts}; make all in the same way"
        )
    fact = dict(facts.pop())
    where = "GPU" if fact["device"] == "cuda" else "CPU"
    count = f"{fact['threads']} thread{'' if fact['threads'] == 1 else 's'}"
    versions = ", ".join(f"{name} {fact[name]}" for name in VERSIONS if fact[name])
    return f"{len(results)} runs; {where}, {count}; {versions}.\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Rewrite the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("db", help="database with the runs of examples/ablations")
    store = Store(parser.parse_args(arguments).db)
    try:
        rewrite(PAGE, lambda text: render(text, store))
    except FedLensError as error:
        parser.error(str(error))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
