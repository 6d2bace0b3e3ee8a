"""Accuracy against traffic or time, with the Pareto front."""

from __future__ import annotations

from fedcore.plots.cost import NARROW_COST_PLOTS, WIDE_COST_PLOTS, Scale, cost_chart, cost_table
from fedcore.reports.views.view import NARROW, ChartFigure, Figure, View, ViewSource
from fedcore.results import curves
from fedcore.results.curves import CostAxis
from fedcore.results.metrics import METRICS

AGAINST: dict[CostAxis, str] = {"megabytes": "traffic", "seconds": "time"}


def cost_figure(
    source: ViewSource, costs: list[curves.Cost], against: CostAxis, scale: Scale = "automatic"
) -> ChartFigure | None:
    """Return the figure of some rows' costs; None if no row has recorded this cost."""
    front = curves.pareto_front(costs, against)
    if not front:
        return None
    title = METRICS[source.metric]
    return ChartFigure(
        f"cost-{AGAINST[against]}",
        f"{title} against {AGAINST[against]}",
        lambda theme, width: cost_chart(
            costs, theme, against, title, NARROW_COST_PLOTS if width < NARROW else WIDE_COST_PLOTS, scale
        ),
        cost_table(costs, front),
    )


def figures(source: ViewSource, setting: str) -> list[Figure]:
    """Return accuracy against traffic and against time, if they were recorded."""
    costs = curves.row_costs(source.store, source.comparison, setting, source.metric)
    return [figure for against in AGAINST if (figure := cost_figure(source, costs, against)) is not None]


VIEW = View("Cost", figures, "None of these runs has recorded its traffic or time.")
