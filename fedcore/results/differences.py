"""Differences between the rows of one setting: whether they are comparable, by how much, in which fields."""

from collections.abc import Sequence

from fedcore.config.field_names import field_phrase, value_text
from fedcore.results import evaluated_on
from fedcore.results.metrics import Metric, value_per_seed
from fedcore.results.rows import ComparisonRow
from fedcore.results.settings import is_compared
from fedcore.results.statistics import PairedTest, Test, holm, paired_test


def reason_not_comparable(row: ComparisonRow, baseline: ComparisonRow) -> str:
    """Return the reason against comparing two rows of one setting; empty if they are comparable.

    Rows are not comparable if they were evaluated on other test sets, or trained for other rounds or shares
    of clients. The rounds of a row that does not train are of no importance.
    """
    if other := evaluated_on.difference_of_rows(row, baseline):
        if row.other_tests or not baseline.other_tests:
            return other
        return f"{baseline.label}: {baseline.other_tests}"
    if not (row.trains and baseline.trains):
        return ""
    for one in (row, baseline):
        if any(v.run.state != "done" for v in one.runs):
            return f"{one.label} has unfinished runs"
    for name in ("rounds", "participation"):
        ours, theirs = getattr(row.config, name), getattr(baseline.config, name)
        if ours != theirs:
            return f"{field_phrase(name)} {value_text(name, ours)} against {value_text(name, theirs)}"
    return ""


def significance(
    rows: Sequence[ComparisonRow], baseline: ComparisonRow, metric: Metric, test: Test = "t"
) -> dict[str, PairedTest]:
    """Test each comparable row that has the metric against the baseline, with Holm's correction over all.

    Both the difference and its test are paired by seed: a difference of the means may have another sign
    where only one of the rows has some seeds.
    """
    compared = [
        row
        for row in rows
        if row.setting == baseline.setting
        and row.key != baseline.key
        and metric in row.stats
        and metric in baseline.stats
        and not reason_not_comparable(row, baseline)
    ]
    theirs = value_per_seed(baseline.runs, metric)
    tests = holm([paired_test(value_per_seed(row.runs, metric), theirs, test) for row in compared])
    return {row.key: result for row, result in zip(compared, tests, strict=True)}


def config_differences(rows: Sequence[ComparisonRow]) -> dict[str, list[str]]:
    """Return the fields in which rows differ: path -> a text per row, empty if a row lacks the field.

    Hyper-parameters that were left at their defaults count too.
    """
    return {name: texts for name, texts in _config_texts(rows).items() if len(set(texts) - {""}) > 1}


def partial_fields(rows: Sequence[ComparisonRow]) -> dict[tuple[str, ...], dict[str, str]]:
    """Return the fields that only some rows have, with one value: keys of these rows -> path -> text."""
    fields: dict[tuple[str, ...], dict[str, str]] = {}
    for name, texts in _config_texts(rows).items():
        having = tuple(row.key for row, text in zip(rows, texts, strict=True) if text)
        if len(set(texts)) == 2 and len(having) < len(rows):
            fields.setdefault(having, {})[name] = max(texts)
    return fields


def _config_texts(rows: Sequence[ComparisonRow]) -> dict[str, list[str]]:
    """Return by path a text for each row, empty if a row lacks the field."""
    flat = [row.fields for row in rows]
    names = dict.fromkeys(name for f in flat for name in f if is_compared(name))
    return {n: [value_text(n, f[n]) or "empty" if n in f else "" for f in flat] for n in names}
