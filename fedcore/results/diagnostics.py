"""Charts of the values that methods record in every round."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from fedcore.methods import registry
from fedcore.methods.base import Method
from fedcore.methods.presentation import DiagnosticChart, MatrixChart
from fedcore.results.curves import Series, Until, run_labels, show_ranges
from fedcore.store import DiagnosticMean, RunRow, Store


def recorded_charts(store: Store, runs: Sequence[RunRow]) -> list[DiagnosticChart]:
    """Charts of what some runs recorded, the most telling first; matrices are heatmaps.

    A name that several methods describe is as the first of the runs' methods says.
    """
    names = dict.fromkeys(n for r in runs for n in store.diagnostics.names(r.id, matrices=False))
    found: dict[str, DiagnosticChart] = {}
    for chart in (c for m in _methods_in_order(r.method for r in runs) for c in m.about.charts):
        lines = {name: text for name, text in chart.lines.items() if names.pop(name, "gone") is None}
        if lines:
            first = found.get(chart.title, replace(chart, lines={}))
            found[chart.title] = replace(first, lines={**first.lines, **lines})
    charts = [*found.values(), *(default_chart(name) for name in sorted(names))]
    return sorted(charts, key=lambda chart: not chart.default_visible)


def matrix_charts(runs: Iterable[RunRow] = ()) -> dict[str, MatrixChart]:
    """Matrices that methods can record, by name: as the first of the runs' methods says, then as any does."""
    found: dict[str, MatrixChart] = {}
    for method in _methods_in_order(r.method for r in runs):
        for matrix in method.about.matrices:
            found.setdefault(matrix.name, matrix)
    return found


def recorded_matrix_charts(store: Store, runs: Sequence[RunRow]) -> dict[str, MatrixChart]:
    """The matrices that some runs recorded, by name."""
    names = {n for r in runs for n in store.diagnostics.names(r.id)}
    return {name: matrix for name, matrix in matrix_charts(runs).items() if name in names}


def recording_methods(name: str) -> str:
    """Titles of the methods that can record a matrix."""
    return ", ".join(
        m.about.title
        for m in _methods_in_order(())
        if any(matrix.name == name for matrix in m.about.matrices)
    )


def _methods_in_order(names: Iterable[str]) -> Iterator[type[Method]]:
    """The named methods, then all others: scripts of the user's own record known figures too."""
    methods = registry.load_all()
    for name in dict.fromkeys([*names, *methods]):
        if name in methods:
            yield methods[name]


def default_chart(name: str) -> DiagnosticChart:
    """A chart of a figure that nobody described: ``drift_of-the.head`` is "Drift of the head"."""
    words = re.sub(r"[\W_]+", " ", name).strip()
    return DiagnosticChart(words[:1].upper() + words[1:] or name, {name: ""})


def default_charts(charts: Sequence[DiagnosticChart]) -> list[DiagnosticChart]:
    """The charts shown by default: those that the methods mark, else the first."""
    return [c for c in charts if c.default_visible] or list(charts[:1])


def chart_note(chart: DiagnosticChart, lines: Sequence[Series]) -> str:
    """How a chart of these lines is read."""
    if not any(s.low for s in lines):
        return chart.explanation
    how = ", band: smallest to largest" if show_ranges(lines) else "; point at it for smallest and largest"
    return f"{chart.explanation} Line: mean over clients{how}.".strip()


def diagnostic_series(store: Store, until: Until, chart: DiagnosticChart) -> list[Series]:
    """A line for every run and name: the mean over clients, with the smallest and largest of them."""
    scale = 100 if chart.unit == "%" else 1
    runs = {r.id: r for r in store.runs.get(until)}
    names = run_labels(runs.values())
    found = []
    for name, text in chart.lines.items():
        rows: dict[int, list[DiagnosticMean]] = {}
        for row in store.diagnostics.means(until, name):
            if row.round <= until[row.run_id]:
                rows.setdefault(row.run_id, []).append(row)
        for run_id, points in rows.items():
            label = f"{names[run_id]}, {text}" if text else names[run_id]
            spread = any(p.count > 1 for p in points)
            found.append(
                Series(
                    label,
                    runs[run_id].method,
                    tuple(float(p.round) for p in points),
                    tuple(scale * p.mean for p in points),
                    (None,) * len(points),
                    1,
                    tuple(scale * p.low for p in points) if spread else (),
                    tuple(scale * p.high for p in points) if spread else (),
                )
            )
    return found
