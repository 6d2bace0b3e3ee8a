"""The content of a report: the numbers, matrices and curves of a comparison, before anything is drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from fedcore.errors import FedLensError
from fedcore.papers.printed import printed_values
from fedcore.results import curves, diagnostics, run_filter
from fedcore.results.comparison import Comparison, Group, compare, reason_not_comparable, shown_metrics
from fedcore.results.curves import AXES, Series
from fedcore.results.metrics import METRICS, SCORE_COLUMNS, Metric, Rule
from fedcore.results.panels.comparison import (
    client_by_round_panels,
    difference_panel,
    domain_panels,
    held_out_panels,
    mean_matrix_panels,
    mean_panels,
    method_by_domain_panel,
)
from fedcore.results.panels.panel import Panel
from fedcore.results.printed import PrintedValues
from fedcore.results.statistics import Test
from fedcore.store import ExperimentRow, RunRow, Store

Panels = dict[str, Panel]
"""Key of a row -> its panel."""
VIEWS: dict[str, tuple[str, Callable[[Store, Comparison, str], Panels]]] = {
    "methods": (
        "Method by domain",
        lambda store, compared, setting: {"": method_by_domain_panel(store, compared, setting)},
    ),
    "models": ("Model by test set", mean_panels),
    "held-out": ("Held-out domain by domain (G, P)", held_out_panels),
    "domains": ("Domain of the model by domain of the images", domain_panels),
    "rounds": ("Client by round", client_by_round_panels),
}
"""Name in file names -> title and reader of the matrices of all rows."""
COMPARED_VIEWS = ("models", "held-out", "domains")
"""Views that are shown as differences from the baseline too."""


@dataclass(frozen=True)
class Choice:
    """The reader's choices, as above the tabs of the page Compare.

    Attributes:
        metric: of the differences; None: the first that the comparison has.
        baseline: label of the row from which differences are taken.
        unfinished: include runs that have not done all their rounds.
        where: keeps some runs only, see ``compare``.
    """

    rule: Rule = "last"
    metric: Metric | None = None
    baseline: str | None = None
    test: Test = "t"
    unfinished: bool = False
    where: str = ""


@dataclass(frozen=True)
class Heatmaps:
    """Matrices that are drawn side by side on one colour scale; ``name`` is that of their files."""

    name: str
    title: str
    panels: tuple[Panel, ...]
    kind: Literal["accuracy", "difference", "recorded"] = "accuracy"


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
    groups: tuple[Group, ...]
    baseline: Group | None
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
        runs: all runs of the experiments, also those that no row averages.
        environments: run -> the conditions that were recorded with it.
    """

    experiments: tuple[ExperimentRow, ...]
    comparison: Comparison
    printed: PrintedValues
    choice: Choice
    metric: Metric
    sections: tuple[Section, ...]
    runs: tuple[RunRow, ...]
    environments: Mapping[int, Mapping[str, Any]]

    @property
    def name(self) -> str:
        """The names of the experiments."""
        return ", ".join(e.name for e in self.experiments)

    @property
    def averaged_runs(self) -> list[int]:
        """The runs behind the numbers, in order."""
        return sorted(r.run.id for g in self.comparison.groups for r in g.runs)


def read_report(store: Store, experiment_ids: Iterable[int], choice: Choice | None = None) -> Report:
    """Read a comparison with its matrices and curves.

    Raises:
        FedLensError: for a damaged database, an unknown experiment or baseline, and when no run has finished.
    """
    choice, ids = choice or Choice(), list(dict.fromkeys(experiment_ids))
    experiments = tuple(store.experiments.get(i) for i in ids)
    store.integrity.require(ids)
    compared = compare(store, ids, choice.rule, unfinished=choice.unfinished, where=choice.where)
    if not compared.groups:
        raise FedLensError(
            "no run of these experiments has finished; wait for one, or include unfinished runs"
        )
    labels = dict.fromkeys(g.label for g in compared.groups)
    if choice.baseline is not None and choice.baseline not in labels:
        raise FedLensError(
            f"no method '{choice.baseline}' in the table; there are: {', '.join(labels)}", "baseline"
        )
    known = [m for m in METRICS if m in {m for s in compared.settings for m in _metrics(compared, s)}]
    if choice.metric is not None and choice.metric not in known:
        raise FedLensError(
            f"no row has the metric '{choice.metric}'; there are: {', '.join(known)}", "metric"
        )
    runs = tuple(run_filter.kept_runs(store, ids, choice.where))
    return Report(
        experiments,
        compared,
        printed_values(compared, [e.config for e in experiments]),
        choice,
        choice.metric or (known[0] if known else "personal"),
        tuple(_section(store, compared, setting, choice) for setting in compared.settings),
        runs,
        {run.id: store.runs.environment(run.id) for run in runs},
    )


def _metrics(compared: Comparison, setting: str) -> tuple[Metric, ...]:
    return shown_metrics(compared.groups_in(setting))


def _section(store: Store, compared: Comparison, setting: str, choice: Choice) -> Section:
    groups = compared.groups_in(setting)
    baseline = next((g for g in groups if g.label == choice.baseline), None)
    heatmaps: list[Heatmaps] = []
    for name, (title, read) in VIEWS.items():
        panels = {key: p for key, p in read(store, compared, setting).items() if p.rows and p.columns}
        if not panels:
            continue
        heatmaps.append(Heatmaps(name, title, tuple(panels.values())))
        if baseline is not None and name in COMPARED_VIEWS:
            gaps = _differences(groups, panels, baseline)
            if gaps:
                heatmaps.append(
                    Heatmaps(
                        f"{name}-difference", f"{title}, difference from {baseline.label}", gaps, "difference"
                    )
                )
    for name, matrix in diagnostics.matrix_charts([r.run for g in groups for r in g.runs]).items():
        recorded = mean_matrix_panels(store, compared, setting, matrix)
        if recorded:
            heatmaps.append(Heatmaps(name, matrix.title, tuple(recorded.values()), "recorded"))
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


def _differences(groups: Iterable[Group], panels: Panels, baseline: Group) -> tuple[Panel, ...]:
    """Return the panels minus the baseline's, of the rows that are comparable with it."""
    if baseline.key not in panels:
        return ()
    return tuple(
        difference_panel(panels[g.key], panels[baseline.key])
        for g in groups
        if g.key in panels and g.key != baseline.key and not reason_not_comparable(g, baseline)
    )
