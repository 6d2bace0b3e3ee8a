"""Differences between the rows of one setting: whether they are comparable, by how much, in which fields."""

from __future__ import annotations

from collections.abc import Sequence

from fedcore.config.field_names import field_phrase, value_text
from fedcore.results import evaluated_on
from fedcore.results.comparison import ComparisonRow
from fedcore.results.metrics import Metric, value_per_seed
from fedcore.results.settings import NOT_COMPARED
from fedcore.results.statistics import PairedTest, Test, holm, paired_test


def reason_not_comparable(group: ComparisonRow, baseline: ComparisonRow) -> str:
    """Say why no difference is taken between two rows of one setting; empty if it is.

    Rows that were evaluated on other test sets are not comparable, nor are those that trained for other
    rounds or shares of clients. A row that does not train is the same whatever its rounds.
    """
    if other := evaluated_on.difference_of_rows(group, baseline):
        if group.other_tests or not baseline.other_tests:
            return other
        return f"{baseline.label}: {baseline.other_tests}"
    if any(all(v.rounds == (0,) for v in g.runs) for g in (group, baseline)):
        return ""
    for one in (group, baseline):
        if any(v.run.state != "done" for v in one.runs):
            return f"{one.label} has unfinished runs"
    for name in ("rounds", "participation"):
        ours, theirs = getattr(group.config, name), getattr(baseline.config, name)
        if ours != theirs:
            return f"{field_phrase(name)} {value_text(name, ours)} against {value_text(name, theirs)}"
    return ""


def difference(group: ComparisonRow, baseline: ComparisonRow | None, metric: Metric) -> float | None:
    """Return a row's mean minus the baseline's, in points; None for the baseline and across protocols."""
    if baseline is None or baseline.setting != group.setting or baseline.key == group.key:
        return None
    if metric not in group.stats or metric not in baseline.stats or reason_not_comparable(group, baseline):
        return None
    return group.stats[metric].mean - baseline.stats[metric].mean


def significance(
    groups: Sequence[ComparisonRow], baseline: ComparisonRow, metric: Metric, test: Test = "t"
) -> dict[str, PairedTest]:
    """Test each comparable row against the baseline, paired by seed, with Holm's correction over these."""
    rows = [g for g in groups if difference(g, baseline, metric) is not None]
    theirs = value_per_seed(baseline.runs, metric)
    tests = holm([paired_test(value_per_seed(g.runs, metric), theirs, test) for g in rows])
    return {g.key: p for g, p in zip(rows, tests, strict=True)}


def config_differences(groups: Sequence[ComparisonRow]) -> dict[str, list[str]]:
    """Return the fields in which rows differ: path -> a text per row, empty if a row lacks the field.

    Hyper-parameters that were left at their defaults count too.
    """
    return {n: row for n, row in _config_texts(groups).items() if len(set(row) - {""}) > 1}


def partial_fields(groups: Sequence[ComparisonRow]) -> dict[tuple[str, ...], dict[str, str]]:
    """Return fields that only some rows have, all with one value: keys of these rows -> path -> text."""
    fields: dict[tuple[str, ...], dict[str, str]] = {}
    for name, row in _config_texts(groups).items():
        having = tuple(g.key for g, text in zip(groups, row, strict=True) if text)
        if len(set(row)) == 2 and len(having) < len(groups):
            fields.setdefault(having, {})[name] = max(row)
    return fields


def _config_texts(groups: Sequence[ComparisonRow]) -> dict[str, list[str]]:
    """Return by path a text for each row, empty if a row lacks the field."""
    flat = [g.fields for g in groups]
    names = dict.fromkeys(name for f in flat for name in f if name not in NOT_COMPARED)
    return {n: [value_text(n, f[n]) or "empty" if n in f else "" for f in flat] for n in names}
