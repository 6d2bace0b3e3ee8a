"""Recorded runs of an experiment file, from which pages of docs/ take their tables."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedcore import config
from fedcore.base.errors import FedLensError
from fedcore.methods import registry
from fedcore.results.comparison import Comparison, compare
from fedcore.results.metrics import RunResult
from fedcore.results.rows import ComparisonRow
from fedcore.results.statistics import signed
from fedcore.store import ExperimentRow, Store
from tools.docs.blocks import rewrite
from tools.docs.paired import paired

_ANY = {"notes", "tags", "evaluate_every"}
"""Fields of an experiment that change no value of the last round."""
VERSIONS = ("fedlens", "commit", "python", "torch", "numpy", "open_clip_torch")
"""Fields of a run's environment that a page prints."""


@dataclass(frozen=True)
class RecordedExperiment:
    """The newest runs of one experiment file; all other rows are compared with the first."""

    row: ExperimentRow
    comparison: Comparison

    @property
    def rows(self) -> tuple[ComparisonRow, ...]:
        """The methods or variants, in the order of the file."""
        return self.comparison.rows

    @property
    def results(self) -> list[RunResult]:
        """The runs of all rows."""
        return [result for row in self.rows for result in row.runs]


def command(path: Path, db: Path | str) -> str:
    """Return the command that makes the runs of a file of examples/, or of a preset ``ablations/*``."""
    folder = path.parent.name
    what = f"--preset {folder}/{path.stem}" if folder == "ablations" else f"examples/{folder}/{path.name}"
    return f"OMP_NUM_THREADS=1 fedlens run {what} --db {db}"


def newest(store: Store, path: Path) -> RecordedExperiment:
    """Return the newest recorded experiment of a file, complete.

    Raises:
        FedLensError: when there is none, when the file has changed since, or when a run is missing.
    """
    wanted = config.load(path)
    if not Path(store.path).is_file():
        raise FedLensError(f"no database at {store.path}; make it with {command(path, store.path)}")
    for row in sorted(store.experiments.all(), key=lambda e: e.id, reverse=True):
        if row.config.name == wanted.name:
            if row.config.model_dump(exclude=_ANY) != wanted.model_dump(exclude=_ANY):
                raise FedLensError(f"{store.path}: {path.name} has changed since it was run; run it again")
            comparison = compare(store, [row.id], "last")
            _check_complete(row, comparison)
            return RecordedExperiment(row, comparison)
    raise FedLensError(
        f"{store.path}: no experiment '{wanted.name}'; make it with {command(path, store.path)}"
    )


def blocks_of(
    store: Store, folder: Path, only: Sequence[str]
) -> Callable[[str, Callable[[RecordedExperiment], str]], str | None]:
    """Return a function that writes a block from the runs of its experiment, if that is asked for.

    Args:
        folder: the experiment files.
        only: names of the experiments that are asked for; empty for all.

    Raises:
        FedLensError: as ``newest``, and for a name without a file; the returned function too.
    """
    files = {path.stem: path for path in sorted(folder.glob("*.toml"))}
    found: dict[str, RecordedExperiment] = {}

    def recorded(name: str) -> RecordedExperiment:
        if name not in files:
            raise FedLensError(
                f"no experiment of {folder.name} is named '{name}'; there are {', '.join(files)}"
            )
        found[name] = found.get(name) or newest(store, files[name])
        return found[name]

    for name in only:
        recorded(name)
    return lambda name, write: write(recorded(name)) if not only or name in only else None


def rewrite_from_runs(page: Path, folder: Path, render: Callable[[str, Store, Sequence[str]], str]) -> None:
    """Rewrite a page of docs/ from the database and for the experiments that the command line names."""
    parser = argparse.ArgumentParser(description=f"Write the tables of {page.name} from recorded runs.")
    parser.add_argument("db", help=f"database with the runs of {folder.name}/")
    parser.add_argument("names", nargs="*", help="files of that folder, without .toml (default: all)")
    asked = parser.parse_args()
    try:
        rewrite(page, lambda text: render(text, Store(asked.db), asked.names))
    except FedLensError as error:
        parser.error(str(error))


def _check_complete(row: ExperimentRow, comparison: Comparison) -> None:
    wanted = {
        (run.method.label or registry.get(run.method.name).about.title, run.seed, run.held_out)
        for run in config.expand(row.config)
    }
    recorded = {(v.run.label, v.run.seed, v.run.held_out) for g in comparison.rows for v in g.runs}
    if wanted - recorded:
        missing = ", ".join(f"{label} (seed {seed})" for label, seed, _ in sorted(wanted - recorded, key=str))
        raise FedLensError(f"experiment {row.id} is incomplete: it lacks {missing}; resume its runs first")


def environment(store: Store, results: Sequence[RunResult]) -> str:
    """Return device, threads and versions of the runs, which have to be equal.

    Raises:
        FedLensError: when the runs were not all made on one machine with equal threads and versions.
    """
    places = [store.runs.environment(result.run.id) for result in results]
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
    return f"{where}, {count}; {versions}"


def test_images(results: Sequence[RunResult]) -> str:
    """Return the number of test images of a run, or the range over runs, in digits."""
    counts = {sum(result.test_images.values()) for result in results}
    least, most = min(counts), max(counts)
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"


def difference(by_seed: Mapping[int, float], other: Mapping[int, float]) -> tuple[str, str, float]:
    """Return the cells of a difference paired by seed, and its standard deviation.

    Returns:
        the mean with its 95 % interval, in bold if this excludes 0; the smallest true difference that would
        have been found; and the deviation. Both texts are empty for fewer than two common seeds, and the
        second one also if the difference is the same for every seed, as there is no spread to judge by.
    """
    found = paired([by_seed[seed] - other[seed] for seed in sorted(set(by_seed) & set(other))])
    if found is None:
        return "", "", 0.0
    text = f"{signed(found.mean)} ({signed(found.low)} to {signed(found.high)})"
    if not found.std:
        return text, "", 0.0
    sure = found.low > 0 or found.high < 0
    return f"**{text}**" if sure else text, f"{found.detectable:.1f}", found.std


def markdown(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a table of Markdown."""
    table = [headings, ["---"] * len(headings), *lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in table)
