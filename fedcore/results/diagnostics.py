"""Charts of the values that methods record in every round.

The method that records a value also describes it (``Method.about.charts`` and ``.matrices``).
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from fedcore.base.presentation import DiagnosticChart, MatrixChart
from fedcore.methods import registry
from fedcore.methods.base import Method
from fedcore.results.comparison import Comparison
from fedcore.results.curves import CurveAxis, Series, Until, mean_series, run_labels, show_ranges
from fedcore.results.statistics import group_by
from fedcore.store import RunRow, Store


def recorded_charts(store: Store, runs: Sequence[RunRow]) -> list[DiagnosticChart]:
    """Return charts of the values that some runs recorded, those visible by default first; no matrices.

    Charts with one title become one. If several methods describe a name, the first of the runs' methods
    counts; a name that no method describes gets its own chart.
    """
    names = dict.fromkeys(n for r in runs for n in store.diagnostics.names(r.id, matrices=False))
    charts: dict[str, DiagnosticChart] = {}
    for chart in (c for m in _methods_in_order(r.method for r in runs) for c in m.about.charts):
        lines = {name: text for name, text in chart.lines.items() if name in names}
        for name in lines:
            del names[name]
        if lines:
            first = charts.get(chart.title, replace(chart, lines={}))
            charts[chart.title] = replace(first, lines={**first.lines, **lines})
    shown = [*charts.values(), *(default_chart(name) for name in sorted(names))]
    return sorted(shown, key=lambda chart: not chart.default_visible)


def matrix_charts(runs: Iterable[RunRow] = ()) -> dict[str, MatrixChart]:
    """Return the matrices that methods can record by name, described by the runs' methods first."""
    charts: dict[str, MatrixChart] = {}
    for method in _methods_in_order(r.method for r in runs):
        for matrix in method.about.matrices:
            charts.setdefault(matrix.name, matrix)
    return charts


def recorded_matrix_charts(store: Store, runs: Sequence[RunRow]) -> dict[str, MatrixChart]:
    """Return the matrices that some runs recorded, by name."""
    names = {n for r in runs for n in store.diagnostics.names(r.id)}
    return {name: matrix for name, matrix in matrix_charts(runs).items() if name in names}


def recording_methods(name: str) -> str:
    """Return the titles of the methods that can record a matrix."""
    methods = (m.about for m in _methods_in_order(()))
    return ", ".join(about.title for about in methods if any(m.name == name for m in about.matrices))


def _methods_in_order(names: Iterable[str]) -> Iterator[type[Method]]:
    """Yield the named methods, then all others, since scripts may record values that these describe."""
    methods = registry.load_all()
    for name in dict.fromkeys([*names, *methods]):
        if name in methods:
            yield methods[name]


def default_chart(name: str) -> DiagnosticChart:
    """Return the chart of a value that no method describes: ``drift_of-the.head`` is "Drift of the head"."""
    words = re.sub(r"[\W_]+", " ", name).strip()
    return DiagnosticChart(words[:1].upper() + words[1:] or name, {name: ""})


def default_charts(charts: Sequence[DiagnosticChart]) -> list[DiagnosticChart]:
    """Return the charts shown by default: those that the methods mark, else the first."""
    return [c for c in charts if c.default_visible] or list(charts[:1])


def chart_note(chart: DiagnosticChart, lines: Sequence[Series]) -> str:
    """Return the text below a chart: its explanation, and what its lines and bands show."""
    if not any(s.low for s in lines):
        return chart.explanation
    hidden = "; hover over it for minimum and maximum"
    bands = ", band: minimum to maximum" if show_ranges(lines) else hidden
    return f"{chart.explanation} Line: mean over clients{bands}.".strip()


def diagnostic_series(store: Store, until: Until, chart: DiagnosticChart) -> list[Series]:
    """Return a line for every run and name: the mean over clients, with their minimum and maximum."""
    scale = 100 if chart.unit == "%" else 1
    runs = {r.id: r for r in store.runs.get(until)}
    labels = run_labels(store, runs.values())
    lines = []
    for name, text in chart.lines.items():
        shown = (row for row in store.diagnostics.means(until, name) if row.round <= until[row.run_id])
        for run_id, rows in group_by(shown, lambda row: row.run_id).items():
            with_range = any(row.count > 1 for row in rows)
            lines.append(
                Series(
                    f"{labels[run_id]}, {text}" if text else labels[run_id],
                    runs[run_id].method,
                    x=tuple(float(row.round) for row in rows),
                    y=tuple(scale * row.mean for row in rows),
                    std=(None,) * len(rows),
                    n=1,
                    low=tuple(scale * row.low for row in rows) if with_range else (),
                    high=tuple(scale * row.high for row in rows) if with_range else (),
                )
            )
    return lines


def mean_diagnostics(
    store: Store, comparison: Comparison, setting: str, chart: DiagnosticChart, axis: CurveAxis = "round"
) -> list[Series]:
    """Return the lines of a chart for the rows of a comparison: mean over clients, then over seeds."""
    scale, several = 100 if chart.unit == "%" else 1, len(chart.lines) > 1
    lines = []
    for name, text in chart.lines.items():
        values: dict[int, dict[int, float]] = {}
        for row in store.diagnostics.means(comparison.run_ids(setting), name):
            values.setdefault(row.run_id, {})[row.round] = scale * row.mean
        series = mean_series(store, comparison, setting, values, axis)
        lines += [replace(s, label=f"{s.label}, {text}") if several and text else s for s in series]
    return lines
