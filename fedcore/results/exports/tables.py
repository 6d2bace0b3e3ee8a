"""Comparison files: summary, rounds and clients as CSV, LaTeX and JSON, with the numbers of the screen.

Each file is made of a database that was checked a moment before; a damaged one is refused (``FedLensError``,
field ``db``). The LaTeX table is drawn on the page too, so its callers check before they write it to a file.
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

from fedcore.data.split_codes import SPLITS, TEST, VALIDATION
from fedcore.errors import FedLensError
from fedcore.results import run_filter
from fedcore.results.comparison import compare
from fedcore.results.exports.summary import (
    BREAKDOWN_COLUMNS,
    ROW_COLUMNS,
    SUMMARY_COLUMNS,
    breakdown_rows,
    config_rows,
    domain_rows,
    summary_rows,
)
from fedcore.results.metrics import Rule
from fedcore.results.printed import PrintedLookup, nothing_printed
from fedcore.results.statistics import Test
from fedcore.store import AFTER_AGGREGATION, BEFORE_AGGREGATION, ExperimentRow, Store

ROUND_FIELDS = (
    "experiment", "run", "method", "label", "seed", "held_out", "round", "split", "point", "model",
    "model_kind", "test_set", "test_set_kind", "correct", "total", "accuracy", "loss",
)  # fmt: skip
CLIENT_FIELDS = (
    "experiment", "run", "method", "label", "seed", "held_out", "round", "client", "domain",
    "training_samples", "took_part", "steps", "train_loss", "bytes_up", "bytes_down", "own_correct",
    "own_total", "own_accuracy",
)  # fmt: skip
STAGES = {BEFORE_AGGREGATION: "local", AFTER_AGGREGATION: "broadcast"}
"""Stages as the column ``point`` of the rounds names them."""
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
    store: Store,
    experiment_ids: Iterable[int],
    table: TableName = "summary",
    rule: Rule = "last",
    baseline: str | None = None,
    *,
    test: Test = "t",
    unfinished: bool = False,
    printed: PrintedLookup = nothing_printed,
    where: str = "",
) -> str:
    """Return one of ``TABLES`` as CSV, with the round that a rule selects.

    Args:
        baseline, test, printed: of the summary, see ``summary_rows``.
        where: keeps some runs only, see ``compare``.

    Raises:
        FedLensError: field ``baseline``, when no row has that label.
    """
    ids = list(experiment_ids)
    store.integrity.require(ids)
    comparison, names = compare(store, ids, rule, unfinished=unfinished, where=where), _names(store)
    labels = dict.fromkeys(g.label for g in comparison.groups)
    if baseline is not None and baseline not in labels:
        raise FedLensError(f"no method '{baseline}' in the table; there are: {', '.join(labels)}", "baseline")
    if table == "summary":
        rows = summary_rows(comparison, names, baseline, test, printed(comparison))
    else:
        rows = {"domains": domain_rows, "breakdowns": breakdown_rows, "configs": config_rows}[table](
            comparison, names
        )
    first = {"summary": SUMMARY_COLUMNS, "breakdowns": BREAKDOWN_COLUMNS}.get(table, ROW_COLUMNS)
    columns = list(dict.fromkeys([*first, *(name for row in rows for name in row)]))
    return _csv(columns, ([_cell(row.get(name)) for name in columns] for row in rows))


def _cell(value: object) -> object:
    """Return a value as CSV holds it: nothing for None, lower case for yes and no."""
    return "" if value is None else str(value).lower() if isinstance(value, bool) else value


def _names(store: Store) -> dict[int, str]:
    return {e.id: e.name for e in store.experiments.all(include_archived=True)}


def rounds_csv(store: Store, experiment_ids: Iterable[int], where: str = "") -> str:
    """Return a row per run, round, split, stage, model and test set, with counts."""
    ids = list(experiment_ids)
    store.integrity.require(ids)
    runs = {r.id: r for r in run_filter.kept_runs(store, ids, where)}
    names = _names(store)

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


def clients_csv(store: Store, experiment_ids: Iterable[int], where: str = "") -> str:
    """Return a row per run, round and client: participation, loss, traffic and own test accuracy."""
    ids = list(experiment_ids)
    store.integrity.require(ids)
    runs = run_filter.kept_runs(store, ids, where)
    names = _names(store)

    def rows() -> Iterable[list[object]]:
        for run in runs:
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


def summary_json(
    store: Store,
    experiment_ids: Iterable[int],
    rule: Rule = "last",
    *,
    unfinished: bool = False,
    printed: PrintedLookup = nothing_printed,
    where: str = "",
) -> str:
    """Return the summary and its breakdowns, with the config and environment of every run."""
    ids = list(experiment_ids)
    store.integrity.require(ids)
    comparison, names = compare(store, ids, rule, unfinished=unfinished, where=where), _names(store)
    runs = run_filter.kept_runs(store, ids, where)
    configs = store.runs.configs([r.id for r in runs])
    content = {
        "format": "fedlens-summary-2",
        "summary": summary_rows(comparison, names, printed=printed(comparison)),
        "breakdowns": breakdown_rows(comparison, names),
        "runs": [
            {
                "id": r.id, "experiment": r.experiment_id, "method": r.method, "label": r.label,
                "seed": r.seed, "held_out": r.held_out, "state": r.state, "rounds_done": r.rounds_done,
                "config": configs[r.id].model_dump(mode="json"), "environment": store.runs.environment(r.id),
            }
            for r in runs
        ],
    }  # fmt: skip
    return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def file_name(name: str, table: str, suffix: str, mark: str = "") -> str:
    """Return a file name such as ``fedlens-digits-summary-20261121-1f0c2a7b.csv``, safe on every system.

    Args:
        mark: fingerprint of the data in the file, see ``fingerprint``.
    """
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:60].strip("-") or "experiments"
    return (
        "-".join(["fedlens", slug, table, time.strftime("%Y%m%d"), *([mark] if mark else [])]) + f".{suffix}"
    )


def fingerprint(experiments: Iterable[ExperimentRow]) -> str:
    """Return eight letters that change with the recorded data."""
    content = [
        [e.uuid, *([r.group_hash, r.label, r.seed, r.held_out, r.state, r.rounds_done] for r in e.runs)]
        for e in experiments
    ]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:8]
