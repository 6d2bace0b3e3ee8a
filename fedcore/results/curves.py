"""Curves over rounds, seconds or traffic, their bands, and the values that methods record in every round.

The method that records a value also describes it (``Method.about.charts`` and ``.matrices``).
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from fedcore.base.events import AFTER_AGGREGATION, TEST
from fedcore.base.presentation import DiagnosticChart, MatrixChart
from fedcore.methods import registry
from fedcore.methods.base import Method
from fedcore.results.comparison import Comparison
from fedcore.results.frames import FURTHER, cell_frame, round_metrics, with_harmonic_means
from fedcore.results.metrics import SCORE_COLUMNS, Metric, score_frame
from fedcore.results.progress import MEGABYTE
from fedcore.results.settings import config_for_display, distinguishing_texts
from fedcore.results.statistics import group_by, mean_or_none, spread
from fedcore.store import RunRow, Store

CurveAxis = Literal["round", "seconds", "megabytes"]
AXES: dict[CurveAxis, str] = {
    "round": "Round",
    "seconds": "Seconds of training and aggregation",
    "megabytes": "Traffic of all clients, up and down (MB)",
}
MAX_RANGES = 2
"""Up to this many lines of one colour may have bands from minimum to maximum and remain readable."""
Until = Mapping[int, int]
"""Run -> the last round to be shown."""
CurveValue = Metric | Literal["loss", "traffic"]
ByRound = dict[int, dict[int, float]]
"""Run -> round -> value."""


@dataclass(frozen=True)
class Series:
    """One line of a chart.

    Attributes:
        std: spread over seeds at each x; None if there is one seed.
        n: number of seeds.
        low, high: minimum and maximum over clients if y is a mean over clients; else empty.
        counts: number of seeds at each x where it differs from ``n``; empty: n everywhere.
        smooth: y smoothed, drawn before the faint raw line; empty: not smoothed.
    """

    label: str
    method: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    std: tuple[float | None, ...]
    n: int
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    smooth: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()


def show_ranges(series: Sequence[Series]) -> bool:
    """Return whether to draw bands from minimum to maximum; many of one colour would hide each other."""
    methods = [s.method for s in series if s.low]
    return max(map(methods.count, methods), default=0) <= MAX_RANGES


def run_labels(store: Store, runs: Iterable[RunRow]) -> dict[int, str]:
    """Return a label per run: with the held-out domain if runs of one method hold out different ones.

    Runs of one label that differ in more than seed and held-out domain, such as runs of a script with other
    hyper-parameters, are named by what differs; they are not further seeds.
    """
    labels: dict[int, str] = {}
    for label, of_label in group_by(runs, lambda r: r.label).items():
        of_group = group_by(of_label, lambda r: r.group_hash)
        several = len({r.held_out for r in of_label}) > 1
        texts = [""]
        if len(of_group) > 1:
            firsts = [members[0] for members in of_group.values()]
            configs = store.runs.configs((r.id for r in firsts), skip_damaged=True)
            shown = [(r.id, r.origin == "engine") for r in firsts]
            texts = distinguishing_texts(
                [config_for_display(configs[i], trained) if i in configs else {} for i, trained in shown]
            )
            if len(set(texts)) < len(texts):
                texts = [
                    f"{text}, run {r.id}".removeprefix(", ") for text, r in zip(texts, firsts, strict=True)
                ]
        for members, text in zip(of_group.values(), texts, strict=True):
            name = f"{label} ({text})" if text else label
            labels |= {r.id: f"{name}, without {r.held_out}" if several else name for r in members}
    return labels


def run_lines(
    store: Store,
    until: Until,
    value: CurveValue = "personal",
    split: int = TEST,
    stage: int = AFTER_AGGREGATION,
) -> list[Series]:
    """Return a line for every run that has values up to its last round, and any traffic if that is drawn."""
    runs, values = store.runs.get(until), values_by_round(store, until, value, split, stage)
    labels = run_labels(store, runs)
    lines = []
    for run in runs:
        shown = [(r, y) for r, y in values[run.id].items() if r <= until[run.id]]
        if shown and (value != "traffic" or any(y for _, y in shown)):
            x, y = zip(*shown, strict=True)
            lines.append(Series(labels[run.id], run.method, x, y, (None,) * len(x), 1))
    return lines


def values_by_round(
    store: Store,
    run_ids: Iterable[int],
    value: CurveValue,
    split: int = TEST,
    stage: int = AFTER_AGGREGATION,
) -> ByRound:
    """Return a value of some runs by round: the traffic so far in MB, the loss, or an accuracy in per cent.

    There is none for a metric without a curve.
    """
    import pandas as pd

    ids = list(run_ids)
    values: ByRound = {i: {} for i in ids}
    if value == "traffic":
        return cumulative_cost(store, ids, "megabytes")
    if value == "loss":
        for run, round_, loss in store.rounds.measured(ids, "train_loss"):
            if loss is not None:
                values[run][round_] = loss
        return values
    if value in SCORE_COLUMNS:
        for run, shares_of_run in store.rounds.scores(ids, SCORE_COLUMNS[value], split, stage).items():
            values[run] = {round_: 100 * share for round_, share in shares_of_run.items()}
        return values
    if value == "dual":
        table = score_frame(store.rounds.mean_accuracy(ids, split, stage))
    else:
        evaluated = store.rounds.evaluated_of_runs(ids)
        cells = (
            store.cells.own_and_global(evaluated, split, stage)
            if value == "local"
            else store.cells.on_kinds(evaluated, FURTHER, split, stage)
        )
        table = round_metrics(cell_frame(cells, store.runs.get(ids)))
    shares = with_harmonic_means(table).get(value, pd.Series(dtype=float)).dropna()
    for (run, round_), share in zip(shares.index.tolist(), shares.tolist(), strict=True):
        values[run][round_] = 100 * share
    return values


def lines_over_seeds(lines: Sequence[Series]) -> list[Series]:
    """Return a line per label: the mean at each x over the seeds that have reached it, and their spread.

    ``mean_lines`` averages where all seeds have values; while runs train, that would be the first rounds.
    """
    means = []
    for (label, method), of_label in group_by(lines, lambda s: (s.label, s.method)).items():
        if len(of_label) == 1:
            means += of_label
            continue
        points = (point for s in of_label for point in zip(s.x, s.y, strict=True))
        values = sorted(group_by(points, lambda point: point[0]).items())
        stats = [(x, spread(y for _, y in of_x)) for x, of_x in values]
        found = [(x, stat.mean, stat.std, stat.n) for x, stat in stats if stat is not None]
        x, y, std, counts = zip(*found, strict=True) if found else ((),) * 4
        everywhere = set(counts) == {len(of_label)}
        means.append(Series(label, method, x, y, std, len(of_label), counts=() if everywhere else counts))
    return means


def mean_lines(
    store: Store, comparison: Comparison, setting: str, value: CurveValue | ByRound, axis: CurveAxis = "round"
) -> list[Series]:
    """Return mean and spread over complete seeds, at the rounds that every run of a row has."""
    ids = comparison.run_ids(setting)
    values = values_by_round(store, ids, value) if isinstance(value, str) else value
    costs = cumulative_cost(store, ids, axis)
    lines = []
    for row in comparison.rows_in(setting):
        runs = [r.run for r in row.runs]
        seeds = group_by(runs, lambda r: r.seed)
        rounds = [set(values.get(r.id, {})) & set(costs[r.id]) for r in runs]
        points: list[tuple[float, float, float | None]] = []
        for at in sorted(set.intersection(*rounds)) if rounds else ():
            stat = spread(mean_or_none(values[r.id][at] for r in of_seed) for of_seed in seeds.values())
            assert stat is not None, row.label
            points.append((float(np.mean([costs[r.id][at] for r in runs])), stat.mean, stat.std))
        if points:
            x, y, std = zip(*points, strict=True)
            lines.append(Series(row.drawn_label, row.method, x, y, std, len(seeds)))
    return lines


def cumulative_cost(store: Store, run_ids: Iterable[int], axis: CurveAxis) -> ByRound:
    """Return the rounds, seconds or megabytes up to and including each round, as far as they are known.

    From a round on that was not measured, or that a script has left out, the sums are unknown, except for
    round 0, which comes before training. Seconds leave out evaluation.
    """
    ids = list(run_ids)
    costs: ByRound = {i: {} for i in ids}
    sums: dict[int, float | None] = dict.fromkeys(ids, 0.0)
    summed = dict.fromkeys(ids, 0)  # the last round of each sum
    names = ("bytes_up", "bytes_down") if axis == "megabytes" else ("seconds_train", "seconds_aggregate")
    for run, round_, first, second in store.rounds.measured(ids, *names):
        if axis == "round":
            costs[run][round_] = round_
            continue
        if axis == "seconds":
            cost = sum_or_none(first, second)
        else:
            cost = None if first is None or second is None else (first + second) / MEGABYTE
        so_far = sums[run] if round_ <= summed[run] + 1 else None
        if cost is not None and so_far is not None:
            sums[run] = costs[run][round_] = so_far + cost
            summed[run] = round_
        elif round_ > 0:
            sums[run] = None
    return costs


def sum_or_none(*values: float | None) -> float | None:
    """Return the sum of the values that are not None; None if there are none."""
    present = [v for v in values if v is not None]
    return sum(present) if present else None


Band = Literal["std", "se", "ci95"]
BANDS: dict[Band, str] = {
    "std": "Standard deviation",
    "se": "Standard error",
    "ci95": "95 % interval of the mean",
}
"""The distance that a band reaches to both sides of a mean over seeds."""


def with_band(series: Series, band: Band) -> Series:
    """Return a line whose band is the standard deviation, the standard error, or Student's 95 % interval."""
    if band == "std" or series.n < 2:
        return series
    factor = 1 / math.sqrt(series.n)
    if band == "ci95":
        from scipy.special import stdtrit  # here: the import takes longer than a page may

        factor *= float(stdtrit(series.n - 1, 0.975))
    return replace(series, std=tuple(None if d is None else factor * d for d in series.std))


def smoothed(series: Series, weight: float) -> Series:
    """Return a line with an exponential moving average beside its raw values, as in TensorBoard.

    The average is divided by the sum of its weights, so that it begins at the first value.

    Args:
        weight: of the past, from 0 (not smoothed) to below 1.
    """
    if not 0 < weight < 1:
        return series
    total, norm, averages = 0.0, 0.0, []
    for value in series.y:
        total, norm = weight * total + value, weight * norm + 1
        averages.append(total / norm)
    return replace(series, smooth=tuple(averages))


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
        series = mean_lines(store, comparison, setting, values, axis)
        lines += [replace(s, label=f"{s.label}, {text}") if several and text else s for s in series]
    return lines
