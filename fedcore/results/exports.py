"""A comparison as CSV, JSON and LaTeX: rows by method and metric, domain, config, round and client.

Numbers that leave FedLens come from a checked database: callers compare and write within ``Store.checked``.
"""

import csv
import hashlib
import io
import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from fedcore.base.errors import FedLensError
from fedcore.base.events import (
    AFTER_AGGREGATION,
    BEFORE_AGGREGATION,
    MAX_EVALUATED_CLIENTS,
    SPLITS,
    STAGES,
    TEST,
    VALIDATION,
)
from fedcore.base.files import guarded
from fedcore.config import backbone_names
from fedcore.config.field_names import data_titles
from fedcore.data.partition import unseen_count
from fedcore.results.comparison import Comparison
from fedcore.results.costs import SHARES, reaching
from fedcore.results.finding import findings
from fedcore.results.metrics import METRICS, RULES, Metric
from fedcore.results.progress import SEARCH_COLUMNS, search_costs
from fedcore.results.rows import ComparisonRow
from fedcore.results.statistics import Stat, group_by, rounded
from fedcore.results.summary import DifferenceCell, Summary
from fedcore.store import ExperimentRow, Store
from fedcore.store.rounds import RecordedCell

TidyRow = dict[str, Any]
"""Column -> text or number; None without a value."""
ROW_COLUMNS = (
    "row", "experiment", "data", "split", "backbone", "partition", "clients", "held_out", "method", "label",
)  # fmt: skip
"""Columns that every table begins with; ``row`` is the same in all of them."""
SUMMARY_COLUMNS = (
    *ROW_COLUMNS, "metric", "rule", "rounds", "mean", "std", "n", "seeds", "runs", "baseline", "difference",
    "test", "pairs", "p", "p_holm", "remark", "printed", "printed_std", "printed_in", "comparability",
    "reasons_against_comparing", "preset", *SEARCH_COLUMNS,
)  # fmt: skip
BREAKDOWN_COLUMNS = (*ROW_COLUMNS, "rule", "breakdown", "name", "mean", "std", "n", "remark")
COST_COLUMNS = (
    *ROW_COLUMNS, "metric", "share", "best", "target", "seed", "runs", "reached", "rounds", "megabytes",
    "seconds", *SEARCH_COLUMNS, "remark",
)  # fmt: skip
DIGITS = 6


def summary_rows(summary: Summary) -> list[TidyRow]:
    """Return a row per setting, method and metric; accuracies and differences are per cent and points.

    Of several printed values for one cell the first is written.
    """
    comparison, rows = summary.comparison, []
    for table in summary.tables:
        baseline = table.baseline.label if table.baseline is not None else None
        for row in table.rows:
            shared = _shared(row.row, comparison.names)
            for metric, stat in row.row.stats.items():
                difference = row.differences.get(metric, DifferenceCell())
                content: TidyRow = dict.fromkeys(SUMMARY_COLUMNS) | shared | _numbers(stat)
                content |= {
                    "metric": metric,
                    "rule": comparison.rule,
                    "rounds": row.row.config.rounds,
                    "seeds": " ".join(map(str, row.row.by_seed[metric])),
                    "runs": " ".join(str(result.run.id) for result in row.row.runs),
                    "baseline": baseline,
                    "difference": rounded(difference.points, DIGITS),
                    "remark": "; ".join(row.remarks) or None,
                    "preset": "; ".join(summary.printed.presets_of(row.row)) or None,
                    **search_costs(row.row.config),
                }
                if (test := difference.test) is not None:
                    remark = "; ".join(filter(None, (test.remark, *row.remarks))) or None
                    content |= {"test": test.test, "pairs": test.n, "p": test.p, "p_holm": test.adjusted}
                    content["remark"] = remark
                for first in row.printed[metric][:1]:
                    reasons = "; ".join(text for _, text in first.comparability.reasons) or None
                    content |= {
                        "printed": first.value,
                        "printed_std": first.std,
                        "printed_in": f"{first.source}: {first.method} ({RULES[first.rule]})",
                        "comparability": first.comparability.state,
                        "reasons_against_comparing": reasons,
                    }
                rows.append(content)
            without = [
                m
                for m in table.metrics
                if METRICS[m].may_lack and m not in row.row.stats and row.row.no_value
            ]
            for metric in without:
                content = dict.fromkeys(SUMMARY_COLUMNS) | shared
                content |= {"metric": metric, "rule": comparison.rule, "remark": row.row.no_value}
                rows.append(content)
    return rows


def breakdown_rows(comparison: Comparison) -> list[TidyRow]:
    """Return a row per setting, method and domain, client or held-out domain."""
    return [
        {**_shared(row, comparison.names), "rule": comparison.rule, "breakdown": part, "name": name}
        | _numbers(stat)
        | {"remark": row.remark or None}
        for row in comparison.rows
        for part, stats in row.breakdowns.items()
        for name, stat in stats.items()
    ]


def domain_rows(comparison: Comparison) -> list[TidyRow]:
    """Return the wide table: a row per method, a column per domain and one for its spread over seeds.

    If domains were held out, a second row per method has G by held-out domain.
    """
    return [
        {
            **_shared(row, comparison.names),
            "rule": comparison.rule,
            "breakdown": part,
            **{name: round(stat.mean, DIGITS) for name, stat in stats.items()},
            **{f"{name}_std": rounded(stat.std, DIGITS) for name, stat in stats.items()},
            "remark": row.remark or None,
        }
        for row in comparison.rows
        for part, stats in row.breakdowns.items()
        if part != "client"
    ]


def costs_csv(store: Store, comparison: Comparison, metric: Metric) -> str:
    """Return the cost of each method and seed until it reached a share of the best; a row per share.

    A seed that never reached it has no rounds, megabytes and seconds.
    """
    rows = [
        {
            **_shared(reach.row, comparison.names),
            "metric": metric,
            "share": of.share,
            "best": of.best,
            "target": round(of.target, DIGITS),
            "seed": seed.seed,
            "runs": " ".join(map(str, seed.runs)),
            "reached": seed.rounds is not None,
            "rounds": seed.rounds,
            "megabytes": rounded(seed.megabytes, DIGITS),
            "seconds": rounded(seed.seconds, DIGITS),
            **search_costs(reach.row.config),
            "remark": reach.row.remark or None,
        }
        for setting in comparison.settings
        for of in reaching(store, comparison, setting, metric, SHARES)
        for reach in of.rows
        for seed in reach.seeds
    ]
    return rows_csv(rows, COST_COLUMNS)


def config_rows(comparison: Comparison) -> list[TidyRow]:
    """Return the config of each method's row, a column per field, such as ``method.config.lr``."""
    return [
        _shared(row, comparison.names)
        | {n: " ".join(map(str, v)) if isinstance(v, tuple | list) else v for n, v in row.fields.items()}
        for row in comparison.rows
    ]


def _shared(row: ComparisonRow, names: Mapping[int, str]) -> TidyRow:
    config = row.config
    experiments = dict.fromkeys(names[v.run.experiment_id] for v in row.runs)
    return {
        "row": hashlib.sha256(f"{row.setting}/{row.key}".encode()).hexdigest()[:8],
        "experiment": "; ".join(experiments),
        "data": data_titles(config),
        "split": " + ".join(dict.fromkeys([config.data.split, *(d.split for d in config.further_data)])),
        "backbone": backbone_names(config),
        "partition": config.partition.kind,
        "clients": _clients(row),
        "held_out": config.held_out is not None,
        "method": row.method,
        "label": row.label,
    }


def _clients(row: ComparisonRow) -> int | None:
    """Return the number of clients that train with one seed; other seeds may draw other ones.

    Of very many clients only some are evaluated, so the config says how many there are.
    """
    by_seed = group_by(row.runs, lambda result: result.run.seed).values()
    evaluated = max(len({n for r in of for n in r.breakdowns.get("client", {})}) for of in by_seed)
    partition = row.config.partition
    if partition.clients is None or 0 < evaluated < MAX_EVALUATED_CLIENTS:
        return evaluated or partition.clients
    return partition.clients - unseen_count(partition.clients, partition.unseen)


def _numbers(stat: Stat) -> TidyRow:
    return {"mean": round(stat.mean, DIGITS), "std": rounded(stat.std, DIGITS), "n": stat.n}


RUN_FIELDS = ("experiment", "run", "method", "label", "seed", "held_out")
ROUND_FIELDS = (
    *RUN_FIELDS, "round", "split", "stage", "model", "model_kind", "test_set", "test_set_kind", "correct",
    "total", "accuracy", "loss",
)  # fmt: skip
CLIENT_FIELDS = (
    *RUN_FIELDS, "round", "client", "domain", "training_samples", "took_part", "steps", "train_loss",
    "bytes_up", "bytes_down", "own_correct", "own_total", "own_accuracy",
)  # fmt: skip
DIAGNOSTIC_FIELDS = (*RUN_FIELDS, "round", "name", "client_a", "client_b", "value")
EXPORTED = ((TEST, AFTER_AGGREGATION), (TEST, BEFORE_AGGREGATION), (VALIDATION, AFTER_AGGREGATION))
"""Splits and stages of the rounds' file, in its order."""


def rows_csv(rows: Sequence[Mapping[str, object]], first: Sequence[str] = ROW_COLUMNS) -> str:
    """Write rows with some columns first, then the others in the order in which they appear."""
    columns = list(dict.fromkeys([*first, *(name for row in rows for name in row)]))
    values = ([row.get(name) for name in columns] for row in rows)
    return csv_text(columns, ([str(v).lower() if isinstance(v, bool) else v for v in row] for row in values))


def rounds_csv(store: Store, comparison: Comparison) -> Iterator[str]:
    """Yield the parts of the CSV with a row per run, round, split, stage, model and test set, with counts.

    A file has millions of rows, so the text of a run, an entity and a share is made once.
    """
    runs = {run: _line(described) for described, run in _described_runs(comparison)}
    entities = {run: {e.entity: _line((e.name, e.kind)) for e in store.cells.entities(run)} for run in runs}
    shares: dict[tuple[int, int], str] = {}

    def text(part: Sequence[RecordedCell], place: str) -> str:
        shares.update(
            ((correct, total), f"{correct},{total},{100 * correct / total:.2f}")
            for *_, correct, total, _ in part
            if (correct, total) not in shares
        )
        return "".join(
            f"{runs[run]},{number},{place},{entities[run][model]},{entities[run][test_set]},"
            f"{shares[correct, total]},{'' if loss is None else f'{loss:.4f}'}\n"
            for run, number, model, test_set, correct, total, loss in part
        )

    yield f"{_line(ROUND_FIELDS)}\n"
    for split, stage in EXPORTED:
        for part in store.cells.of_runs(runs, split, stage):
            try:
                yield text(part, f"{SPLITS[split]},{STAGES[stage]}")
            except (KeyError, ZeroDivisionError) as error:
                raise FedLensError(
                    "a recorded accuracy has no samples, or belongs to no model or test set; "
                    "`fedlens doctor` says what is damaged",
                    "db",
                ) from error


def _line(values: Iterable[object]) -> str:
    return csv_text([*values], ()).removesuffix("\n")


def clients_csv(store: Store, comparison: Comparison) -> str:
    """Return a row per run, round and client: participation, loss, traffic and own test accuracy."""
    rows: list[list[object]] = []
    for described, run in _described_runs(comparison):
        took_part = {(c.round, c.client): c for c in store.rounds.clients(run)}
        scores = {(o.round, o.client): o for o in store.cells.own_accuracy(run)}
        clients = {e.entity: e for e in store.cells.entities(run) if e.kind == "client"}
        for round_, code in sorted(key for key in took_part.keys() | scores.keys() if key[1] in clients):
            part, score, client = took_part.get((round_, code)), scores.get((round_, code)), clients[code]
            trained: list[object] = [None] * 4
            if part is not None:
                loss = None if part.train_loss is None else f"{part.train_loss:.4f}"
                trained = [part.steps, loss, part.bytes_up, part.bytes_down]
            tested: list[object] = [None] * 3
            if score is not None:
                tested = [score.correct, score.total, f"{100 * score.correct / score.total:.2f}"]
            about = [client.name, client.domain, client.samples, int(part is not None)]
            rows.append([*described, round_, *about, *trained, *tested])
    return csv_text(CLIENT_FIELDS, rows)


def diagnostics_csv(store: Store, comparison: Comparison) -> str:
    """Return a row per run, round, diagnostic and client, or pair of clients; of whole rounds without one."""
    rows: list[list[object]] = []
    for described, run in _described_runs(comparison):
        names = {e.entity: e.name for e in store.cells.entities(run)}
        for name in store.diagnostics.names(run):
            for d in store.diagnostics.of_run(run, name):
                pair = (names.get(d.client_a), names.get(d.client_b))
                rows.append([*described, d.round, name, *pair, d.value])
    return csv_text(DIAGNOSTIC_FIELDS, rows)


def _described_runs(comparison: Comparison) -> Iterable[tuple[list[object], int]]:
    """Yield the first columns of each run's rows, ``RUN_FIELDS``, and its number."""
    names = comparison.names
    for run in comparison.runs:
        yield [names[run.experiment_id], run.id, run.method, run.label, run.seed, run.held_out], run.id


def csv_text(fields: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """Return rows as CSV, without formulas."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(
        [guarded(value) for value in row] for row in (fields, *rows)
    )
    return out.getvalue()


def summary_json(store: Store, summary: Summary) -> str:
    """Return the summary and its breakdowns, with the config and environment of every run."""
    comparison = summary.comparison
    configs = store.runs.configs([r.id for r in comparison.runs])
    content = {
        "format": "fedlens-summary-2",
        "findings": findings(summary),
        "summary": summary_rows(summary),
        "breakdowns": breakdown_rows(comparison),
        "runs": [
            {
                "id": r.id,
                "experiment": r.experiment_id,
                "method": r.method,
                "label": r.label,
                "seed": r.seed,
                "held_out": r.held_out,
                "state": r.state,
                "rounds_done": r.rounds_done,
                "config": configs[r.id].model_dump(mode="json"),
                "environment": store.runs.environment(r.id),
            }
            for r in comparison.runs
        ],
    }
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
