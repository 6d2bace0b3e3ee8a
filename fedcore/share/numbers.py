"""The numbers of a bundle's report, computed from counts alone by the tables that everything else uses."""

import hashlib
import json
import sqlite3
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from fedcore.base.errors import FedLensError
from fedcore.base.events import AFTER_AGGREGATION, TEST, Cell, RoundFinished
from fedcore.config.identity import group_hash
from fedcore.results import exports
from fedcore.results.comparison import compare
from fedcore.results.summary import summarise
from fedcore.share.evidence import BREAKDOWNS, SUMMARY, CellKey, Count, Evidence
from fedcore.share.recipe import Recipe, RunRecipe
from fedcore.store import Store
from fedcore.store.database import writing
from fedcore.store.writer import insert_entities, insert_experiment, insert_round, insert_row, update_summary

_IDENTITY = (
    "experiment", "data", "split", "backbone", "partition", "clients", "held_out", "method", "label",
)  # fmt: skip
SUMMARY_COLUMNS = (
    *_IDENTITY, "metric", "rule", "rounds", "mean", "std", "n", "seeds", "runs", "baseline", "difference",
    "test", "pairs", "p", "p_holm",
)  # fmt: skip
BREAKDOWN_COLUMNS = (*_IDENTITY, "rule", "breakdown", "name", "mean", "std", "n")
KINDS = ("domain", "client", "held_out")
"""Columns and breakdowns of this format; later ones, and later metrics, make no older bundle differ."""
_P_DIGITS = 6
"""Significant digits of p, so that another version of SciPy gives the same text."""


def number_files(recipe: Recipe, evidence: Evidence, counts: Mapping[CellKey, Count]) -> dict[str, str]:
    """Return the files with the report's numbers by name."""
    choices = recipe.choices
    with recorded(recipe, evidence, counts) as store:
        compared = compare(store, [e.id for e in reversed(store.experiments.all())], choices.rule)
        if choices.baseline not in (None, *(row.label for row in compared.rows)):
            raise FedLensError(f"no row is the baseline {choices.baseline!r}", "bundle")
        summary = summarise(compared, choices.baseline, choices.test, metric=choices.metric)
        rows = (
            row
            for row in exports.summary_rows(summary)
            if row["metric"] in choices.metrics and row["mean"] is not None
        )
        parts = (row for row in exports.breakdown_rows(compared) if row["breakdown"] in KINDS)
        return {
            SUMMARY: exports.rows_csv([_portable(r, SUMMARY_COLUMNS) for r in rows], SUMMARY_COLUMNS),
            BREAKDOWNS: exports.rows_csv([_portable(r, BREAKDOWN_COLUMNS) for r in parts], BREAKDOWN_COLUMNS),
        }


def _portable(row: exports.TidyRow, columns: Sequence[str]) -> exports.TidyRow:
    portable = {name: row.get(name) for name in columns}
    tests = (name for name in ("p", "p_holm") if portable.get(name) is not None)
    return portable | {name: float(f"{portable[name]:.{_P_DIGITS}g}") for name in tests}


@contextmanager
def recorded(
    recipe: Recipe, evidence: Evidence, counts: Mapping[CellKey, Count], digest: str = ""
) -> Iterator[Store]:
    """Record the reported rounds of a bundle's runs in a temporary database; run N has the id N.

    Args:
        digest: of the bundle, which identifies its experiments and is named by a notice of each run.
    """
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder) / "runs.db")
        store.prepare()
        with writing(store.path) as database:
            _record(database, recipe, evidence, counts, digest)
        yield store


def _record(
    database: sqlite3.Connection,
    recipe: Recipe,
    evidence: Evidence,
    counts: Mapping[CellKey, Count],
    digest: str,
) -> None:
    evidence_of = {run.number: run for run in evidence.runs}
    cells: dict[tuple[int, int], list[Cell]] = {}
    for (number, round_, model, test_set), count in sorted(counts.items()):
        cell = Cell(TEST, AFTER_AGGREGATION, model, test_set, count.correct, count.total, None)
        cells.setdefault((number, round_), []).append(cell)
    for place, experiment in enumerate(recipe.experiments):
        named = experiment.config.model_copy(update={"name": experiment.name})
        identity = hashlib.sha256(f"{digest} {place}".encode()).hexdigest()[:32] if digest else None
        experiment_id = insert_experiment(database, named, identity)
        for run in experiment.runs:
            found = evidence_of[run.number]
            reported = max((r.round for r in found.rounds), default=0)
            row = _run_row(run, reported, digest) | {"experiment_id": experiment_id}
            run_id = insert_row(database, "runs", row)
            insert_entities(database, run_id, (e.entity() for e in found.entities))
            for one in found.rounds:
                of_round = tuple(cells.get((run.number, one.round), ()))
                insert_round(database, run_id, RoundFinished(round=one.round, cells=of_round))
            update_summary(database, run_id)
            if recipe.choices.rule == "best":  # its validation accuracies are not here
                database.execute("UPDATE runs SET best_round=? WHERE id=?", [reported, run_id])


def _run_row(run: RunRecipe, reported: int, digest: str) -> dict[str, object]:
    config = run.config
    notices = [{"message": n.message, "repeats_exactly": n.repeats_exactly} for n in run.notices]
    if digest:
        text = f"imported from the bundle {digest}, which holds the reported round only"
        notices.append({"message": text, "repeats_exactly": True})
    return {
        "method": config.method.name,
        "label": run.label,
        "seed": config.seed,
        "held_out": config.held_out,
        "config": config.model_dump_json(),
        "group_hash": group_hash(config),
        "origin": run.origin,
        "status": "done",
        "rounds_total": config.rounds,
        "rounds_done": reported,
        "environment": json.dumps(run.environment),
        "notices": json.dumps(notices),
        "created_at": time.time(),
    }
