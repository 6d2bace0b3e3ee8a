"""The content of a report: the numbers, matrices and curves of a comparison, before anything is drawn."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from fedcore.errors import FedLensError
from fedcore.papers.reproductions import printed_values
from fedcore.results import curves
from fedcore.results.comparison import (
    Comparison,
    ComparisonRow,
    compare,
    reason_not_comparable,
    shown_metrics,
)
from fedcore.results.curves import AXES, Series
from fedcore.results.metrics import METRICS, SCORE_COLUMNS, Metric, Rule
from fedcore.results.panels.matrices import Panels, difference_panel, matrix_views, shown_panels
from fedcore.results.panels.panel import Panel
from fedcore.results.printed import PrintedValues
from fedcore.results.statistics import Test
from fedcore.store import Store


@dataclass(frozen=True)
class ComparisonChoices:
    """The reader's choices, as above the tabs of the page Compare.

    Attributes:
        metric: of the differences; None: the first that the comparison has.
        baseline: label of the row from which differences are taken.
        unfinished: include runs that have not done all their rounds.
        where: keeps some runs only, see ``compare``.
        digits: decimals of the LaTeX table.
    """

    rule: Rule = "last"
    metric: Metric | None = None
    baseline: str | None = None
    test: Test = "t"
    unfinished: bool = False
    where: str = ""
    digits: int = 2


@dataclass(frozen=True)
class CheckedComparison:
    """A comparison that may leave FedLens: everything that is written of it comes from this one value.

    Attributes:
        store: the snapshot of the database that was checked and compared, open for ``checked_comparison``.
        printed: the values that papers print for its rows.
    """

    store: Store
    comparison: Comparison
    choice: ComparisonChoices
    printed: PrintedValues


@contextmanager
def checked_comparison(
    store: Store, experiment_ids: Iterable[int], choice: ComparisonChoices | None = None
) -> Iterator[CheckedComparison]:
    """Check and compare some experiments once, for all files that are then written of them.

    Raises:
        FedLensError: for a damaged database, an unknown experiment, an unreadable filter, and when no row is
            the baseline.
    """
    choice, ids = choice or ComparisonChoices(), list(experiment_ids)
    with store.checked(ids) as sound:
        compared = compare(sound, ids, choice.rule, unfinished=choice.unfinished, where=choice.where)
        labels = dict.fromkeys(g.label for g in compared.rows)
        if labels and choice.baseline is not None and choice.baseline not in labels:
            raise FedLensError(
                f"no method '{choice.baseline}' in the table; there are: {', '.join(labels)}", "baseline"
            )
        printed = printed_values(compared, [e.config for e in compared.experiments])
        yield CheckedComparison(sound, compared, choice, printed)


HeatmapKind = Literal["accuracy", "difference", "recorded"]


@dataclass(frozen=True)
class Heatmaps:
    """Matrices that are drawn side by side on one colour scale; ``name`` is that of their files."""

    name: str
    title: str
    panels: tuple[Panel, ...]
    kind: HeatmapKind = "accuracy"


@dataclass(frozen=True)
class Curves:
    """Lines of one metric over rounds; ``name`` is that of their files."""

    name: str
    title: str
    series: tuple[Series, ...]
    x_title: str = AXES["round"]


@dataclass(frozen=True)
class Section:
    """One setting (data, partition, backbone): its rows, matrices and curves."""

    title: str
    rows: tuple[ComparisonRow, ...]
    baseline: ComparisonRow | None
    metrics: tuple[Metric, ...]
    heatmaps: tuple[Heatmaps, ...]
    curves: tuple[Curves, ...]

    @property
    def figures(self) -> tuple[Heatmaps | Curves, ...]:
        """Everything that is drawn, in order."""
        return (*self.heatmaps, *self.curves)


@dataclass(frozen=True)
class Report:
    """Everything that a report shows.

    Attributes:
        metric: of the differences from the baseline.
        environments: run -> the conditions that were recorded with it.
    """

    comparison: Comparison
    printed: PrintedValues
    choice: ComparisonChoices
    metric: Metric
    sections: tuple[Section, ...]
    environments: Mapping[int, Mapping[str, Any]]

    @property
    def name(self) -> str:
        """The names of the experiments."""
        return ", ".join(e.name for e in self.comparison.experiments)


def read_report(checked: CheckedComparison) -> Report:
    """Read the matrices and curves of a comparison.

    Raises:
        FedLensError: when no run has finished, and when no row has the metric.
    """
    store, compared, choice = checked.store, checked.comparison, checked.choice
    if not compared.rows:
        raise FedLensError(
            "no run of these experiments has finished; wait for one, or include unfinished runs"
        )
    known = [m for m in METRICS if m in {m for s in compared.settings for m in _metrics(compared, s)}]
    if choice.metric is not None and choice.metric not in known:
        raise FedLensError(
            f"no row has the metric '{choice.metric}'; there are: {', '.join(known)}", "metric"
        )
    return Report(
        compared,
        checked.printed,
        choice,
        choice.metric or (known[0] if known else "personal"),
        tuple(_section(store, compared, setting, choice) for setting in compared.settings),
        {run.id: store.runs.environment(run.id) for run in compared.runs},
    )


def _metrics(compared: Comparison, setting: str) -> tuple[Metric, ...]:
    return shown_metrics(compared.rows_in(setting))


def _section(store: Store, compared: Comparison, setting: str, choice: ComparisonChoices) -> Section:
    groups = compared.rows_in(setting)
    baseline = next((g for g in groups if g.label == choice.baseline), None)
    heatmaps: list[Heatmaps] = []
    for name, view in matrix_views(r.run for g in groups for r in g.runs).items():
        panels = shown_panels(view, store, compared, setting)
        if not panels:
            continue
        kind: HeatmapKind = "recorded" if view.recorded else "accuracy"
        heatmaps.append(Heatmaps(name, view.title, tuple(panels.values()), kind))
        if baseline is not None and view.differences == "everywhere":
            gaps = _differences(groups, panels, baseline)
            if gaps:
                title = f"{view.title}, difference from {baseline.label}"
                heatmaps.append(Heatmaps(f"{name}-difference", title, gaps, "difference"))
    lines = [
        Curves(
            f"curves-{m}", f"{METRICS[m]} by round", tuple(curves.mean_curves(store, compared, setting, m))
        )
        for m in SCORE_COLUMNS
        if any(m in g.stats for g in groups)
    ]
    return Section(
        compared.settings[setting],
        groups,
        baseline,
        shown_metrics(groups),
        tuple(heatmaps),
        tuple(lines),
    )


def _differences(
    groups: Iterable[ComparisonRow], panels: Panels, baseline: ComparisonRow
) -> tuple[Panel, ...]:
    """Return the panels minus the baseline's, of the rows that are comparable with it."""
    if baseline.key not in panels:
        return ()
    return tuple(
        difference_panel(panels[g.key], panels[baseline.key])
        for g in groups
        if g.key in panels and g.key != baseline.key and not reason_not_comparable(g, baseline)
    )
