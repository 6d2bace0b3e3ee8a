"""Accuracy against traffic or time, with the Pareto front, and the cost to reach a share of the best."""

from collections.abc import Sequence

from fedcore.results.charts.cost import NARROW_COST_PLOTS, WIDE_COST_PLOTS, Scale, cost_chart, cost_table
from fedcore.results.costs import (
    USUAL_SHARE,
    Cost,
    CostAxis,
    ReachCost,
    Reaching,
    pareto_front,
    reaching,
    row_costs,
)
from fedcore.results.metrics import METRICS
from fedcore.share.views import NARROW, ChartFigure, Figure, View, ViewSource

AGAINST: dict[CostAxis, str] = {"megabytes": "traffic", "seconds": "time"}


def reach_table(found: Reaching) -> dict[str, list[object]]:
    """Return each row's cost to reach a share of the best, as a table."""
    columns: dict[str, list[object]] = {
        "method": [reach.row.label for reach in found.rows],
        "seeds that reach it": [reach.text for reach in found.rows],
    }
    costs: tuple[tuple[str, ReachCost, int], ...] = (
        ("rounds", "rounds", 1),
        ("MB", "megabytes", 2),
        ("s", "seconds", 1),
    )
    for title, cost, digits in costs:
        stats = [reach.stat(cost) for reach in found.rows]
        columns[title] = [None if stat is None else stat.text(digits) for stat in stats]
    return columns


def cost_figure(
    source: ViewSource,
    costs: list[Cost],
    front: Sequence[Cost],
    against: CostAxis,
    scale: Scale = "automatic",
    reached: Sequence[Reaching] = (),
) -> ChartFigure | None:
    """Return the figure of some rows' costs, with those on the front of all rows; None without this cost."""
    if not pareto_front(costs, against):
        return None
    title, unit = METRICS[source.metric].title, METRICS[source.metric].unit
    return ChartFigure(
        f"cost-{AGAINST[against]}",
        f"{title} against {AGAINST[against]}",
        lambda theme, width: cost_chart(
            costs,
            front,
            theme,
            against,
            title,
            unit,
            NARROW_COST_PLOTS if width < NARROW else WIDE_COST_PLOTS,
            scale,
        ),
        lambda: [
            (f"{title} against {AGAINST[against]}", cost_table(costs, front, unit)),
            *((found.title, reach_table(found)) for found in reached),
        ],
    )


def figures(source: ViewSource, setting: str) -> list[Figure]:
    """Return accuracy against traffic and against time, if they were recorded.

    The first has the cost to reach ``USUAL_SHARE`` of the best as a further table.
    """
    costs = row_costs(source.store, source.comparison, setting, source.metric)
    reached = reaching(source.store, source.comparison, setting, source.metric, (USUAL_SHARE,))
    found: list[Figure] = []
    for against in AGAINST:
        front = pareto_front(costs, against)
        figure = cost_figure(source, costs, front, against, reached=() if found else reached)
        found += [] if figure is None else [figure]
    return found


VIEW = View("Cost", figures, "None of these runs has recorded its traffic or time in every round.")
