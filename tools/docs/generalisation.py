"""The figures of docs/generalisation.md, from the recorded runs of examples/generalisation/*.toml.

for file in examples/generalisation/*.toml; do OMP_NUM_THREADS=1 fedlens run $file --db study.db; done
python -m tools.docs.generalisation study.db [NAME ...]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedcore.base.errors import FedLensError
from fedcore.results.metrics import METRICS, Metric, value_per_seed
from fedcore.results.statistics import spread
from fedcore.store import Store
from tools.docs.blocks import FOLDER, fill
from tools.docs.forest import Table, figure
from tools.docs.recorded import (
    RecordedExperiment,
    blocks_of,
    command,
    difference,
    environment,
    rewrite_from_runs,
    test_images,
)

EXAMPLES = FOLDER.parent / "examples" / "generalisation"
PAGE = FOLDER / "generalisation.md"
DATABASE = "study.db"


@dataclass(frozen=True)
class Question:
    """One table: some metrics of an experiment, and a difference that answers a question.

    Attributes:
        experiment: name of the file.
        title: above the figure.
        minuend: metric that the difference is of.
        subtrahend: metric of the same row that is subtracted; None: ``minuend`` of the first row.
    """

    experiment: str
    title: str
    metrics: tuple[Metric, ...]
    minuend: Metric
    subtrahend: Metric | None = None


QUESTIONS: dict[str, Question] = {
    "base-to-new": Question(
        "federation", "Base and new classes (global model)", ("base", "new", "harmonic"), "new"
    ),
    "transfer": Question(
        "federation", "Transfer to handwritten digits (global model)", ("transfer",), "transfer"
    ),
    "unseen-clients": Question(
        "federation",
        "Unseen clients: the global model, and their own after a round of local training",
        ("personal", "unseen", "adapted"),
        "adapted",
        "unseen",
    ),
    "local-base-novel": Question(
        "dealt",
        "Local, base and novel classes (the clients' own models)",
        ("personal", "own_base", "own_new", "harmonic3"),
        "own_new",
    ),
    "cross-class": Question(
        "cross-class",
        "Cross-class over two data sets (global model)",
        ("local", "base", "new", "harmonic_local"),
        "new",
    ),
}
"""Name of a block -> what its table holds."""


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
            "study": lambda name: block(name, lambda of: setting(store, name, of)),
            "answer": lambda name: block(QUESTIONS[name].experiment, lambda of: answer(name, of)),
        },
    )


def setting(store: Store, name: str, recorded: RecordedExperiment) -> str:
    """Return the command that makes the runs, their number and where they were made."""
    results = recorded.results
    rounds = recorded.row.config.rounds
    return (
        f"`{command(EXAMPLES / f'{name}.toml', DATABASE)}`\n\n{len(results)} runs of {rounds} rounds, "
        f"{test_images(results)} test images of the clients.\n{environment(store, results)}.\n"
    )


def answer(name: str, recorded: RecordedExperiment) -> str:
    """Write the figure of a question, and return its place in the page."""
    question = QUESTIONS[name]
    return figure(name, question.title, *table(question, recorded))


def table(question: Question, recorded: RecordedExperiment) -> Table:
    """Return the headings, and a row for each method that has a value of one of the metrics.

    Raises:
        FedLensError: when no run has a value of ``minuend``.
    """
    first = _values(recorded, question.minuend)[recorded.rows[0].label]
    if not first:
        raise FedLensError(f"{recorded.rows[0].label} has no value of '{METRICS[question.minuend].title}'")
    of = {metric: _values(recorded, metric) for metric in (*question.metrics, question.minuend)}
    against = None if question.subtrahend is None else _values(recorded, question.subtrahend)
    lines = []
    for row in recorded.rows:
        stats = [spread(of[metric][row.label].values()) for metric in question.metrics]
        if not any(stats):
            continue
        minuend = of[question.minuend][row.label]
        other = first if against is None else against[row.label]
        is_baseline = against is None and row is recorded.rows[0]
        cells = ("", "") if is_baseline else difference(minuend, other)[:2]
        lines.append([row.label, *("" if s is None else s.text() for s in stats), *cells, str(len(row.runs))])
    subtracted = (
        recorded.rows[0].label if question.subtrahend is None else METRICS[question.subtrahend].heading
    )
    headings = [METRICS[metric].heading for metric in question.metrics]
    compared = f"{METRICS[question.minuend].heading} minus {subtracted} (95 % interval)"
    return ["method", *headings, compared, "could have seen", "n"], lines


def _values(recorded: RecordedExperiment, metric: Metric) -> Mapping[str, Mapping[int, float]]:
    """Return the values of a metric by row and seed, per cent."""
    return {row.label: value_per_seed(row.runs, metric) for row in recorded.rows}


if __name__ == "__main__":
    rewrite_from_runs(PAGE, EXAMPLES, render)
