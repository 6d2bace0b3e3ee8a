"""A comparison as CSV and JSON files: its tables, and the rounds and clients of its runs.

Numbers that leave FedLens come from a checked database: callers compare and write within ``Store.checked``.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
import time
from collections.abc import Iterable, Sequence
from typing import Literal

from fedcore.records.codes import AFTER_AGGREGATION, BEFORE_AGGREGATION, SPLITS, STAGES, TEST, VALIDATION
from fedcore.results.comparison import Comparison
from fedcore.results.exports.summary import (
    BREAKDOWN_COLUMNS,
    ROW_COLUMNS,
    SUMMARY_COLUMNS,
    breakdown_rows,
    config_rows,
    domain_rows,
    summary_rows,
)
from fedcore.results.printed import PrintedValues
from fedcore.results.statistics import Test
from fedcore.store import ExperimentRow, Store

ROUND_FIELDS = (
    "experiment", "run", "method", "label", "seed", "held_out", "round", "split", "stage", "model",
    "model_kind", "test_set", "test_set_kind", "correct", "total", "accuracy", "loss",
)  # fmt: skip
CLIENT_FIELDS = (
    "experiment", "run", "method", "label", "seed", "held_out", "round", "client", "domain",
    "training_samples", "took_part", "steps", "train_loss", "bytes_up", "bytes_down", "own_correct",
    "own_total", "own_accuracy",
)  # fmt: skip
EXPORTED = ((TEST, AFTER_AGGREGATION), (TEST, BEFORE_AGGREGATION), (VALIDATION, AFTER_AGGREGATION))
"""Splits and stages of the rounds' file, in its order."""
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\Z")


def guarded(value: object) -> object:
    """Put an apostrophe before text that a spreadsheet would run as a formula; numbers stay numbers."""
    if isinstance(value, str) and value.lstrip(" ").startswith(_FORMULA) and not _NUMBER.match(value):
        return "'" + value
    return value


TableName = Literal["summary", "domains", "breakdowns", "configs"]
TABLES: dict[TableName, str] = {
    "summary": "a row per method and metric",
    "domains": "a row per method, a column per domain",
    "breakdowns": "a row per method and domain, client or held-out domain",
    "configs": "a row per method, a column per field of its config",
}
"""Tables of a comparison; the column ``row`` is the same in all of them."""


def table_csv(
    comparison: Comparison,
    table: TableName = "summary",
    baseline: str | None = None,
    test: Test = "t",
    printed: PrintedValues | None = None,
) -> str:
    """Return one of ``TABLES`` as CSV.

    Args:
        baseline, test, printed: of the summary, see ``summary_rows``.
    """
    if table == "summary":
        rows = summary_rows(comparison, baseline, test, printed)
    else:
        rows = {"domains": domain_rows, "breakdowns": breakdown_rows, "configs": config_rows}[table](
            comparison
        )
    first = {"summary": SUMMARY_COLUMNS, "breakdowns": BREAKDOWN_COLUMNS}.get(table, ROW_COLUMNS)
    columns = list(dict.fromkeys([*first, *(name for row in rows for name in row)]))
    return _csv(columns, ([_cell(row.get(name)) for name in columns] for row in rows))


def _cell(value: object) -> object:
    """Return a value as CSV holds it: nothing for None, lower case for yes and no."""
    return "" if value is None else str(value).lower() if isinstance(value, bool) else value


def rounds_csv(store: Store, comparison: Comparison) -> str:
    """Return a row per run, round, split, stage, model and test set, with counts."""
    runs, names = {r.id: r for r in comparison.runs}, comparison.names

    def rows() -> Iterable[list[object]]:
        for split, stage in EXPORTED:
            for c in store.cells.of_runs(runs, split, stage):
                run = runs[c.run_id]
                yield [
                    names[run.experiment_id], run.id, run.method, run.label, run.seed, run.held_out or "",
                    c.round, SPLITS[split], STAGES[stage], c.model, c.model_kind, c.test_set,
                    c.test_set_kind, c.correct, c.total, f"{100 * c.correct / c.total:.2f}",
                    "" if c.loss is None else f"{c.loss:.4f}",
                ]  # fmt: skip

    return _csv(ROUND_FIELDS, rows())


def clients_csv(store: Store, comparison: Comparison) -> str:
    """Return a row per run, round and client: participation, loss, traffic and own test accuracy."""
    names = comparison.names

    def rows() -> Iterable[list[object]]:
        for run in comparison.runs:
            took_part = {(c.round, c.client): c for c in store.rounds.clients(run.id)}
            own = {(o.round, o.client): o for o in store.cells.own_accuracy(run.id)}
            clients = {e.entity: e for e in store.cells.entities(run.id) if e.kind == "client"}
            for round_, code in sorted(key for key in took_part.keys() | own.keys() if key[1] in clients):
                part, score, client = took_part.get((round_, code)), own.get((round_, code)), clients[code]
                yield [
                    names[run.experiment_id], run.id, run.method, run.label, run.seed, run.held_out or "",
                    round_, client.name, client.domain or "", _blank(client.samples), int(part is not None),
                    *([part.steps, _blank(part.train_loss, ".4f"), _blank(part.bytes_up),
                       _blank(part.bytes_down)] if part else [""] * 4),
                    *([score.correct, score.total, f"{100 * score.correct / score.total:.2f}"]
                      if score else [""] * 3),
                ]  # fmt: skip

    return _csv(CLIENT_FIELDS, rows())


def _blank(value: float | None, digits: str = "") -> str:
    return "" if value is None else f"{value:{digits}}"


def _csv(fields: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(fields)
    writer.writerows([guarded(value) for value in row] for row in rows)
    return out.getvalue()


def summary_json(store: Store, comparison: Comparison, printed: PrintedValues | None = None) -> str:
    """Return the summary and its breakdowns, with the config and environment of every run."""
    configs = store.runs.configs([r.id for r in comparison.runs])
    content = {
        "format": "fedlens-summary-2",
        "summary": summary_rows(comparison, printed=printed),
        "breakdowns": breakdown_rows(comparison),
        "runs": [
            {
                "id": r.id, "experiment": r.experiment_id, "method": r.method, "label": r.label,
                "seed": r.seed, "held_out": r.held_out, "state": r.state, "rounds_done": r.rounds_done,
                "config": configs[r.id].model_dump(mode="json"), "environment": store.runs.environment(r.id),
            }
            for r in comparison.runs
        ],
    }  # fmt: skip
    return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def file_name(experiments: Sequence[ExperimentRow], table: str, suffix: str) -> str:
    """Return a file name such as ``fedlens-digits-summary-20261121-1f0c2a7b.csv``, safe on every system."""
    name = "-".join(e.name for e in experiments)
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:60].strip("-") or "experiments"
    return f"fedlens-{slug}-{table}-{time.strftime('%Y%m%d')}-{fingerprint(experiments)}.{suffix}"


def fingerprint(experiments: Iterable[ExperimentRow]) -> str:
    """Return eight letters that change with the recorded data."""
    content = [
        [e.uuid, *([r.group_hash, r.label, r.seed, r.held_out, r.state, r.rounds_done] for r in e.runs)]
        for e in experiments
    ]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:8]
