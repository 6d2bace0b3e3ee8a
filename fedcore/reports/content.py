"""The content of a report: the tables and figures of a comparison, before anything is drawn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedcore.errors import FedLensError
from fedcore.reports.checked import CheckedComparison, ComparisonChoices, available_metrics
from fedcore.reports.views import views
from fedcore.reports.views.view import Figure, ViewSource
from fedcore.results.comparison import Comparison
from fedcore.results.summary import Summary, SummaryTable


@dataclass(frozen=True)
class Section:
    """One setting (data, partition, backbone): its table, and the figures of every view in order."""

    table: SummaryTable
    figures: tuple[Figure, ...]


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
        return self.summary.comparison

    @property
    def name(self) -> str:
        return ", ".join(e.name for e in self.comparison.experiments)


def read_report(checked: CheckedComparison) -> Report:
    """Read the figures of a comparison.

    Raises:
        FedLensError: when no run has finished, and when no row has the metric.
    """
    store, compared, choice = checked.store, checked.comparison, checked.choice
    if not compared.rows:
        raise FedLensError(
            "no run of these experiments has finished; wait for one, or include unfinished runs"
        )
    available = available_metrics(compared)
    if choice.metric is not None and choice.metric not in available:
        raise FedLensError(
            f"no row has the metric '{choice.metric}'; there are: {', '.join(available)}", "metric"
        )
    source = ViewSource(store, compared, checked.summary.metric, choice.baseline)
    sections = []
    for table in checked.summary.tables:
        figures = [figure for view in views().values() for figure in view.figures(source, table.setting)]
        sections.append(Section(table, tuple(figures)))
    environments = {run.id: store.runs.environment(run.id) for run in compared.runs}
    return Report(checked.summary, choice, tuple(sections), environments)
