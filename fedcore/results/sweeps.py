"""Results of a sweep: rows of a comparison by the values of the fields that vary within one method."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedcore.config.field_names import field_phrase, value_text
from fedcore.results.comparison import Comparison, Group
from fedcore.results.metrics import Metric
from fedcore.results.statistics import Stat

FieldValue = str | int | float | bool | tuple | None
_NEVER = ("seed", "held_out", "method.name", "method.label", "method.file", "method.sha256", "data.root")


@dataclass(frozen=True)
class SweepRow:
    """One row of the comparison. ``values``: field -> what it was set to."""

    values: dict[str, FieldValue]
    group: Group
    stat: Stat


@dataclass(frozen=True)
class SweepFamily:
    """Rows of one method that differ in ``fields`` alone; each of these takes several values."""

    title: str
    method: str
    fields: tuple[str, ...]
    rows: tuple[SweepRow, ...]

    def values(self, field: str) -> list[FieldValue]:
        """What a field was set to, smallest first."""
        return sorted_values(p.values[field] for p in self.rows)


@dataclass(frozen=True)
class SweepLine:
    """Accuracy over one field, all other fields fixed. ``x`` ascending; ``stats`` beside it."""

    label: str
    method: str
    x: tuple[FieldValue, ...]
    stats: tuple[Stat, ...]


def sweep_families(
    comparison: Comparison, metric: Metric, swept: Iterable[Mapping[str, Any]] = ()
) -> list[SweepFamily]:
    """The families of a comparison, over all of its settings.

    Args:
        swept: the ``sweep`` of the experiments compared. Where there is one, its fields are the axes and rows
            that differ otherwise are families of their own; else every field that varies within a method is.
    """
    rows = [(g, {k: v for k, v in g.fields.items() if k not in _NEVER}) for g in comparison.groups]
    rows = [(g, flat) for g, flat in rows if metric in g.stats]
    named = {_column(path) for sweep in swept for path in sweep}
    found = []
    for method, here in dict.fromkeys((g.method, g.trained_by_fedlens) for g, _ in rows):
        mine = [(g, flat) for g, flat in rows if (g.method, g.trained_by_fedlens) == (method, here)]
        for members in _apart(mine, named):
            fields = [f for f in _varying(members) if not named or f in named]
            if fields and len(members) > 1:
                points = tuple(
                    SweepRow({f: flat.get(f) for f in fields}, g, g.stats[metric]) for g, flat in members
                )
                found.append(SweepFamily(_title(members), method, tuple(fields), points))
    return found


def _column(path: str) -> str:
    """The flattened name of a swept path: ``methods.fedot.blocks`` and ``methods.*.blocks`` alike."""
    part, _, rest = path.partition(".")
    return f"method.config.{rest.rpartition('.')[2]}" if part == "methods" else path


def _apart(
    members: Sequence[tuple[Group, dict[str, FieldValue]]], named: set[str]
) -> list[list[tuple[Group, dict[str, FieldValue]]]]:
    """Rows whose other fields are equal together, where the swept fields are known."""
    if not named:
        return [list(members)]
    apart: dict[str, list[tuple[Group, dict[str, FieldValue]]]] = {}
    for group, flat in members:
        rest = {k: v for k, v in flat.items() if k not in named}
        apart.setdefault(json.dumps(rest, sort_keys=True), []).append((group, flat))
    return list(apart.values())


def _varying(members: Sequence[tuple[Group, dict[str, FieldValue]]]) -> list[str]:
    names = dict.fromkeys(name for _, flat in members for name in flat)
    return [n for n in names if len({json.dumps(flat.get(n)) for _, flat in members}) > 1]


def _title(members: Sequence[tuple[Group, dict[str, FieldValue]]]) -> str:
    """The label without the values that were added to tell the rows apart."""
    return min((g.label.split(" (")[0] for g, _ in members), key=len) or members[0][0].label


def sorted_values(values: Iterable[FieldValue]) -> list[FieldValue]:
    """Each value once: numbers by size, then words; none first."""
    unique = {json.dumps(v): v for v in values}.values()
    worded = (str, tuple)
    return sorted(
        unique,
        key=lambda v: (v is not None, isinstance(v, worded), 0 if isinstance(v, worded) else v, str(v)),
    )


def sweep_lines(family: SweepFamily, field: str) -> list[SweepLine]:
    """Accuracy over one field: a line for each combination of the others."""
    others = [f for f in family.fields if f != field]
    apart: dict[str, list[SweepRow]] = {}
    for p in family.rows:
        label = ", ".join(f"{field_phrase(f)} {value_text(f, p.values[f])}" for f in others)
        apart.setdefault(label, []).append(p)
    found = []
    for label, points in apart.items():
        by_value = {json.dumps(p.values[field]): p for p in points}
        x = sorted_values(p.values[field] for p in points)
        stats = tuple(by_value[json.dumps(v)].stat for v in x)
        found.append(
            SweepLine(f"{family.title}: {label}" if label else family.title, family.method, tuple(x), stats)
        )
    return found


@dataclass(frozen=True)
class SweepGrid:
    """Accuracy over two fields, ``rows`` down and ``columns`` across; None where nothing was run."""

    row_field: str
    column_field: str
    rows: tuple[FieldValue, ...]
    columns: tuple[FieldValue, ...]
    stats: tuple[tuple[Stat | None, ...], ...]


def sweep_grid(
    family: SweepFamily, row_field: str, column_field: str, fixed: Mapping[str, FieldValue]
) -> SweepGrid:
    """The rows of a family on a grid of two fields. ``fixed``: the value of every other field."""
    kept = [p for p in family.rows if all(p.values[f] == v for f, v in fixed.items())]
    rows, columns = family.values(row_field), family.values(column_field)
    at = {(json.dumps(p.values[row_field]), json.dumps(p.values[column_field])): p.stat for p in kept}
    stats = tuple(tuple(at.get((json.dumps(r), json.dumps(c))) for c in columns) for r in rows)
    return SweepGrid(row_field, column_field, tuple(rows), tuple(columns), stats)
