"""A comparison as tidy rows: a row per method and metric, its accuracies by domain, and its config."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from fedcore.config import backbone_names
from fedcore.config.field_names import data_title
from fedcore.results.comparison import (
    Comparison,
    Group,
    difference,
    reason_not_comparable,
    significance,
)
from fedcore.results.metrics import METRICS, RULES, value_per_seed
from fedcore.results.printed import PrintedValue, PrintedValues
from fedcore.results.statistics import PairedTest, Stat, Test

Row = dict[str, Any]
"""Column -> text, number or None where there is no value."""
ROW_COLUMNS = (
    "row", "experiment", "data", "split", "backbone", "partition", "clients", "held_out", "method", "label",
)  # fmt: skip
"""Columns that every table begins with; ``row`` is the same in all of them."""
SUMMARY_COLUMNS = (
    *ROW_COLUMNS, "metric", "rule", "rounds", "mean", "std", "n", "seeds", "runs", "baseline", "difference",
    "test", "pairs", "p", "p_holm", "remark", "printed", "printed_std", "printed_in", "comparability",
    "reasons_against_comparing",
)  # fmt: skip
BREAKDOWN_COLUMNS = (*ROW_COLUMNS, "rule", "breakdown", "name", "mean", "std", "n", "remark")
DIGITS = 6


def summary_rows(
    comparison: Comparison,
    baseline: str | None = None,
    test: Test = "t",
    printed: PrintedValues | None = None,
) -> list[Row]:
    """Return a row per setting, method and metric; accuracies and differences are per cent and points.

    Args:
        baseline: label of the row from which differences are taken.
        printed: values of papers; of several for one cell the first is written.
    """
    rows, printed = [], printed or PrintedValues()
    for setting in comparison.settings:
        groups = comparison.groups_in(setting)
        pinned = next((g for g in groups if g.label == baseline), None)
        tested = {m: significance(groups, pinned, m, test) for m in METRICS} if pinned else {}
        for group in groups:
            shared = _shared(group, comparison.names)
            apart = pinned and not group.other_tests and reason_not_comparable(group, pinned)
            remarks = [f"not compared with {pinned.label}: {apart}"] if pinned and apart else []
            remarks += [group.remark] if group.remark else []
            for metric, stat in group.stats.items():
                gap = difference(group, pinned, metric)
                row: Row = dict.fromkeys(SUMMARY_COLUMNS) | shared | _numbers(stat)
                row |= {
                    "metric": metric,
                    "rule": comparison.rule,
                    "rounds": group.config.rounds,
                    "seeds": " ".join(map(str, value_per_seed(group.runs, metric))),
                    "runs": " ".join(str(v.run.id) for v in group.runs),
                    "baseline": pinned.label if pinned else None,
                    "difference": None if gap is None else round(gap, DIGITS),
                    "remark": "; ".join(remarks) or None,
                }
                row |= _of_test(tested.get(metric, {}).get(group.key), remarks)
                rows.append(row | _of_paper(printed.of(group, metric)))
    return rows


def breakdown_rows(comparison: Comparison) -> list[Row]:
    """Return a row per setting, method and domain, client or held-out domain."""
    return [
        {**_shared(group, comparison.names), "rule": comparison.rule, "breakdown": part, "name": name}
        | _numbers(stat)
        | {"remark": group.remark or None}
        for group in comparison.groups
        for part, stats in group.breakdowns.items()
        for name, stat in stats.items()
    ]


def domain_rows(comparison: Comparison) -> list[Row]:
    """Return the wide table: a row per method, a column per domain and one for its spread over seeds.

    Where domains were held out, a second row per method has G by held-out domain.
    """
    return [
        {
            **_shared(group, comparison.names),
            "rule": comparison.rule,
            "breakdown": part,
            **{name: round(stat.mean, DIGITS) for name, stat in stats.items()},
            **{f"{name}_std": _rounded(stat.std) for name, stat in stats.items()},
            "remark": group.remark or None,
        }
        for group in comparison.groups
        for part, stats in group.breakdowns.items()
        if part != "client"
    ]


def config_rows(comparison: Comparison) -> list[Row]:
    """Return the config of each method's row, a column per field, such as ``method.config.lr``."""
    return [
        {**_shared(group, comparison.names), **{name: _plain(value) for name, value in group.fields.items()}}
        for group in comparison.groups
    ]


def _shared(group: Group, names: Mapping[int, str]) -> Row:
    config = group.config
    experiments = dict.fromkeys(names[v.run.experiment_id] for v in group.runs)
    return {
        "row": hashlib.sha256(f"{group.setting}/{group.key}".encode()).hexdigest()[:8],
        "experiment": "; ".join(experiments),
        "data": data_title(config.data),
        "split": config.data.split,
        "backbone": backbone_names(config),
        "partition": config.partition.kind,
        "clients": len(group.breakdowns.get("client", {})) or config.partition.clients,
        "held_out": config.held_out is not None,
        "method": group.method,
        "label": group.label,
    }


def _numbers(stat: Stat) -> Row:
    return {"mean": round(stat.mean, DIGITS), "std": _rounded(stat.std), "n": stat.n}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, DIGITS)


def _of_test(test: PairedTest | None, remarks: Sequence[str]) -> Row:
    """Return the columns of a test; its remark is joined with those of the row."""
    if test is None:
        return {}
    remark = "; ".join(filter(None, (test.remark, *remarks))) or None
    return {"test": test.test, "pairs": test.n, "p": test.p, "p_holm": test.adjusted, "remark": remark}


def _of_paper(values: Sequence[PrintedValue]) -> Row:
    """Return the columns of the first printed value, with the round that its paper reports."""
    if not values:
        return {}
    first = values[0]
    return {
        "printed": first.value,
        "printed_std": first.std,
        "printed_in": f"{first.source}: {first.method} ({RULES[first.rule]})",
        "comparability": first.comparability.state,
        "reasons_against_comparing": "; ".join(text for _, text in first.comparability.reasons) or None,
    }


def _plain(value: object) -> object:
    """Return a field's value as a table holds it: lists as text with spaces."""
    return " ".join(map(str, value)) if isinstance(value, (tuple, list)) else value
