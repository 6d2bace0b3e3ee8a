"""The content of a report: the numbers, matrices and curves of a comparison, before anything is drawn."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from fedcore.errors import FedLensError
from fedcore.reports.checked import CheckedComparison, ComparisonChoices, available_metrics
from fedcore.results import curves
from fedcore.results.comparison import Comparison, ComparisonRow
from fedcore.results.curves import AXES, Series
from fedcore.results.differences import reason_not_comparable
from fedcore.results.metrics import METRICS, SCORE_COLUMNS
from fedcore.results.panels.matrices import Panels, difference_panel, matrix_views, shown_panels
from fedcore.results.panels.panel import Panel
from fedcore.results.summary import Summary, SummaryTable
from fedcore.store import Store

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
    """One setting (data, partition, backbone): its table, matrices and curves."""

    table: SummaryTable
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
        environments: run -> the conditions that were recorded with it.
    """

    summary: Summary
    choice: ComparisonChoices
    sections: tuple[Section, ...]
    environments: Mapping[int, Mapping[str, Any]]

    @property
    def comparison(self) -> Comparison:
        """The rows of all sections."""
        return self.summary.comparison

    @property
    def name(self) -> str:
        """The names of the experiments."""
        return ", ".join(e.name for e in self.comparison.experiments)


def read_report(checked: CheckedComparison) -> Report:
    """Read the matrices and curves of a comparison.

    Raises:
        FedLensError: when no run has finished, and when no row has the metric.
    """
    store, compared, metric = checked.store, checked.comparison, checked.choice.metric
    if not compared.rows:
        raise FedLensError(
            "no run of these experiments has finished; wait for one, or include unfinished runs"
        )
    available = available_metrics(compared)
    if metric is not None and metric not in available:
        raise FedLensError(f"no row has the metric '{metric}'; there are: {', '.join(available)}", "metric")
    return Report(
        checked.summary,
        checked.choice,
        tuple(_section(store, compared, table) for table in checked.summary.tables),
        {run.id: store.runs.environment(run.id) for run in compared.runs},
    )


def _section(store: Store, compared: Comparison, table: SummaryTable) -> Section:
    setting, baseline = table.setting, table.baseline
    rows = compared.rows_in(setting)
    heatmaps: list[Heatmaps] = []
    for name, view in matrix_views(r.run for g in rows for r in g.runs).items():
        panels = shown_panels(view, store, compared, setting)
        if not panels:
            continue
        kind: HeatmapKind = "recorded" if view.recorded else "accuracy"
        heatmaps.append(Heatmaps(name, view.title, tuple(panels.values()), kind))
        if baseline is not None and view.differences == "everywhere":
            gaps = _differences(rows, panels, baseline)
            if gaps:
                title = f"{view.title}, difference from {baseline.label}"
                heatmaps.append(Heatmaps(f"{name}-difference", title, gaps, "difference"))
    lines = [
        Curves(
            f"curves-{m}", f"{METRICS[m]} by round", tuple(curves.mean_curves(store, compared, setting, m))
        )
        for m in SCORE_COLUMNS
        if any(m in g.stats for g in rows)
    ]
    return Section(table, tuple(heatmaps), tuple(lines))


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
