"""Results of a sweep: rows of a comparison by the values of the fields that vary within one method."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedcore.base.progress import counted, first_few
from fedcore.config.field_names import field_phrase, number_ranges, value_text
from fedcore.results.comparison import Comparison, reason_not_comparable
from fedcore.results.metrics import METRICS, Metric
from fedcore.results.rows import ComparisonRow
from fedcore.results.settings import OF_SETTING
from fedcore.results.statistics import MIN_PAIRS, Stat, Test, group_by, pairwise_tests, tests_made

FieldValue = str | int | float | bool | tuple[Any, ...] | None
NAMED_LEVEL = 3
"""Maximum number of rows that a finding names beside the highest one."""
MOST_TESTED = 150
"""Of more rows the pairs are not tested: 20,000 tests would find little, and take seconds."""
_NEVER_SWEPT = (
    "seed",
    "held_out",
    "method.name",
    "method.label",
    "method.file",
    "method.sha256",
    "data.root",
)


@dataclass(frozen=True)
class SweepRow:
    """One row of the comparison; ``values``: swept field -> its value in this row."""

    values: dict[str, FieldValue]
    group: ComparisonRow
    stat: Stat


@dataclass(frozen=True)
class SweepFamily:
    """Rows of one method that differ only in ``fields``, each of which takes several values."""

    title: str
    method: str
    fields: tuple[str, ...]
    rows: tuple[SweepRow, ...]

    def values(self, field: str) -> list[FieldValue]:
        return sorted_values(r.values[field] for r in self.rows)


@dataclass(frozen=True)
class SweepLine:
    """Accuracy over one field, all other fields fixed; ``x`` ascends, ``stats`` are of the same length."""

    label: str
    method: str
    x: tuple[FieldValue, ...]
    stats: tuple[Stat, ...]


@dataclass(frozen=True)
class SweepGrid:
    """Accuracy over two fields; ``stats`` by row and column, None for combinations that were not run."""

    row_field: str
    column_field: str
    rows: tuple[FieldValue, ...]
    columns: tuple[FieldValue, ...]
    stats: tuple[tuple[Stat | None, ...], ...]


def sweep_families(
    comparison: Comparison, metric: Metric, sweeps: Iterable[Mapping[str, Any]] = ()
) -> list[SweepFamily]:
    """Return the families of a comparison, over all of its settings.

    Args:
        sweeps: the ``sweep`` of the experiments compared. Where there are any, their fields are the axes, and
            rows that differ in other fields are in different families; else every field that varies within a
            method is an axis. Rows with equal fields are never in one family: they were tested on different
            images of one name, or hold out domains or not.
    """
    rows = [
        (g, {name: v for name, v in g.fields.items() if name not in _NEVER_SWEPT})
        for g in comparison.rows
        if metric in g.stats
    ]
    swept = {
        # one flat name for ``methods.fedot.blocks`` and ``methods.*.blocks``
        f"method.config.{path.rpartition('.')[2]}" if path.startswith("methods.") else path
        for sweep in sweeps
        for path in sweep
    }
    one_setting = bool(swept) and not any(name.startswith(OF_SETTING) for name in swept)
    equal: dict[str, list[str]] = {}  # fields -> the settings of their rows
    for row, fields_of_row in rows:
        equal.setdefault(f"{row.key} {json.dumps(fields_of_row)}", []).append(row.setting)

    def other_fields(row: tuple[ComparisonRow, dict[str, FieldValue]]) -> str:
        group, flat = row
        others = {name: v for name, v in flat.items() if name not in swept} if swept else {}
        settings = equal[f"{group.key} {json.dumps(flat)}"]
        apart = group.setting if one_setting else settings.index(group.setting)
        held_out = group.runs[0].run.held_out is not None
        return json.dumps([others, apart, held_out], sort_keys=True)

    families = []
    for of_method in group_by(rows, lambda row: (row[0].method, row[0].trained_by_fedlens)).values():
        for members in group_by(of_method, other_fields).values():
            names = dict.fromkeys(name for _, flat in members for name in flat if not swept or name in swept)
            fields = [n for n in names if len({json.dumps(flat.get(n)) for _, flat in members}) > 1]
            if fields and len(members) > 1:
                values = [{f: flat.get(f) for f in fields} for _, flat in members]
                for name in fields:
                    _take_apart(values, name)
                family = tuple(
                    SweepRow(v, g, g.stats[metric]) for v, (g, _) in zip(values, members, strict=True)
                )
                # without the values that were added to make a label distinct
                title = min((g.label.split(" (")[0] for g, _ in members), key=len) or members[0][0].label
                families.append(SweepFamily(title, of_method[0][0].method, tuple(values[0]), family))
    return families


def _take_apart(rows: Sequence[dict[str, FieldValue]], name: str) -> None:
    """Replace lists with a number per client, such as 4,4,8, by a field for clients 1 to 2 and one for 3.

    Clients whose numbers always agree share a field. So SDFed's Figure 5 is a grid of two of them. A number
    for all clients, such as fixed:8, becomes that number.
    """
    texts = [str(row[name]) for row in rows]
    lists = [re.findall(r"\d+", v) for v in texts if re.fullmatch(r"fixed:\d+|\d+(, *\d+)+", v)]
    if len(lists) < len(rows) or len({len(one) for one in lists}) > 1:
        return
    clients: dict[tuple[str, ...], list[int]] = {}
    for client, column in enumerate(zip(*lists, strict=True), 1):
        clients.setdefault(column, []).append(client)
    everyone = len(lists[0]) == 1
    varying = {column: alike for column, alike in clients.items() if len(set(column)) > 1}
    for row in rows if varying else ():
        del row[name]
    for column, alike in varying.items():
        who = f"client{'s' * (len(alike) > 1)} {number_ranges(alike)}"
        for row, number in zip(rows, column, strict=True):
            row[name if everyone else f"method.config.{who}: {field_phrase(name)}"] = int(number)


def sorted_values(values: Iterable[FieldValue]) -> list[FieldValue]:
    """Return each value once: None first, then numbers by size, then texts."""
    unique = {json.dumps(v): v for v in values}.values()
    texts = (str, tuple)
    return sorted(
        unique, key=lambda v: (v is not None, isinstance(v, texts), 0 if isinstance(v, texts) else v, str(v))
    )


def findings(comparison: Comparison, family: SweepFamily, metric: Metric, test: Test = "t") -> list[str]:
    """Name the best values of a family, in a sentence per setting with several of its rows.

    The row with the highest mean is called the best only if the paired test separates it from every other
    row; otherwise the sentence names the rows that the test does not separate from it. As the data choose
    that row, Holm's correction is over all pairs, as on the leaderboard.
    """
    found = group_by(family.rows, lambda row: row.group.setting)
    return [
        f"{family.title}{f' on {comparison.settings[setting]}' if len(found) > 1 else ''}: "
        f"{_finding(rows, family.fields, metric, test)}"
        for setting, rows in found.items()
        if len(rows) > 1
    ]


def _finding(rows: Sequence[SweepRow], fields: Sequence[str], metric: Metric, test: Test) -> str:
    varying = [f for f in fields if len({json.dumps(r.values[f]) for r in rows}) > 1]

    def name(row: SweepRow) -> str:
        return ", ".join(f"{field_phrase(f)} {value_text(f, row.values[f])}" for f in varying)

    like = [r for r in rows if not r.group.other_tests]
    if not like:
        return "no combination can be compared with the others."
    top = max(like, key=lambda r: r.stat.mean)
    others = [r for r in rows if r is not top]
    apart = [r for r in others if reason_not_comparable(r.group, top.group)]
    compared = [top, *(r for r in others if r not in apart)]
    said = f"{name(top)} ({top.stat.text()} {METRICS[metric].unit})"
    if len(compared) == 1:
        said = f"the highest mean is that of {said}."
    elif len(compared) > MOST_TESTED:
        said = f"the highest mean is that of {said}. The highest of {len(compared)} means is partly luck."
    else:
        tests = pairwise_tests({r.group.key: r.group.by_seed[metric] for r in compared}, test)
        against = {r.group.key: tests[top.group.key, r.group.key] for r in compared[1:]}
        level = [r for r in compared[1:] if not against[r.group.key].better]
        level.sort(key=lambda r: -r.stat.mean)
        family = tests_made(tests.values())
        how = f" after Holm's correction for {counted(family, 'pair')}" if family > 1 else ""
        if level:
            untested = all(against[r.group.key].n < MIN_PAIRS for r in level)
            named = [name(r) if untested else f"{name(r)} ({against[r.group.key].text})" for r in level]
            alike = first_few(named, NAMED_LEVEL, "; ")
            said = f"the highest mean is that of {said}. It cannot be told apart from {alike}"
            said += f", with fewer than {MIN_PAIRS} seeds in common." if untested else f"{how}."
        else:
            largest = max(found.adjusted or 0.0 for found in against.values())
            said = (
                f"the best is {said}, significantly better than each other one (p up to {largest:.2g}{how})."
            )
    count = len(apart)
    return said + (f" {count} not compared: they were trained or tested in another way." if count else "")


def sweep_lines(family: SweepFamily, field: str) -> list[SweepLine]:
    """Return accuracy over one field: a line for each combination of the others."""
    others = [f for f in family.fields if f != field]

    def label(row: SweepRow) -> str:
        return ", ".join(f"{field_phrase(f)} {value_text(f, row.values[f])}" for f in others)

    lines = []
    for text, rows in group_by(family.rows, label).items():
        stats = {json.dumps(r.values[field]): r.stat for r in rows}
        x = tuple(sorted_values(r.values[field] for r in rows))
        title = f"{family.title}: {text}" if text else family.title
        lines.append(SweepLine(title, family.method, x, tuple(stats[json.dumps(v)] for v in x)))
    return lines


def client_points(family: SweepFamily, field: str) -> list[tuple[str, FieldValue, float]]:
    """Return client, value of a field and own accuracy, of all clients in all runs (SDFed, Figure 6)."""
    return [
        (client, row.values[field], accuracy)
        for row in sorted(family.rows, key=lambda row: family.values(field).index(row.values[field]))
        for run in row.group.runs
        for client, accuracy in run.breakdowns.get("client", {}).items()
    ]


def joint_families(families: Sequence[SweepFamily]) -> tuple[dict[str, list[SweepFamily]], list[SweepFamily]]:
    """Return each field that is the only swept one of several methods with their families, and all others.

    A method that the field cannot change, such as zero-shot CLIP over shots, is a horizontal line among them.
    """
    alone = group_by((f for f in families if len(f.fields) == 1), lambda family: family.fields[0])
    joint = {
        field: sweeping
        for field, sweeping in alone.items()
        if len(sweeping) == len({f.method for f in sweeping}) > 1
    }
    return joint, [
        family for family in families if not any(family in sweeping for sweeping in joint.values())
    ]


def shots_scope(families: Iterable[SweepFamily]) -> str:
    """Return in words whether the shots of some rows are per client or in total; empty if the rows differ."""
    scopes = {row.group.config.data.shots_scope for family in families for row in family.rows}
    return value_text("data.shots_scope", scopes.pop()) if len(scopes) == 1 else ""


def sweep_grid(
    family: SweepFamily, row_field: str, column_field: str, fixed: Mapping[str, FieldValue]
) -> SweepGrid:
    """Return the rows of a family on a grid of two fields; ``fixed`` has the value of every other field."""
    on_grid = [r for r in family.rows if all(r.values[f] == v for f, v in fixed.items())]
    rows, columns = family.values(row_field), family.values(column_field)
    stat_at = {(json.dumps(r.values[row_field]), json.dumps(r.values[column_field])): r.stat for r in on_grid}
    stats = tuple(tuple(stat_at.get((json.dumps(r), json.dumps(c))) for c in columns) for r in rows)
    return SweepGrid(row_field, column_field, tuple(rows), tuple(columns), stats)
