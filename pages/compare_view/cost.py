"""The tab Cost of the page Compare: accuracy against traffic or time."""

from __future__ import annotations

import streamlit as st

from fedcore.plots.cost import NARROW_COST_PLOTS, SCALES, WIDE_COST_PLOTS, cost_chart, cost_table
from fedcore.results import curves
from fedcore.results.curves import CostAxis
from fedcore.results.metrics import METRICS, Metric
from pages.compare_view.controls import ShownComparison
from pages.widgets import charts, markup, session

NOTHING: dict[CostAxis, str] = {
    "megabytes": "None of these runs has recorded its traffic; results that are imported often have none.",
    "seconds": "None of these runs has recorded its time; results that are imported often have none.",
}


def draw(shown: ShownComparison) -> None:
    """Draw accuracy against cost, with the Pareto front."""
    compared, metric = shown.comparison, shown.metric
    costs_by: list[CostAxis] = ["megabytes", "seconds"]
    with st.container(horizontal=True):
        against: CostAxis = st.segmented_control(
            "Against", costs_by, default="megabytes", required=True, key="cost",
            bind="query-params", format_func=lambda a: {"megabytes": "Traffic", "seconds": "Time"}[a],
        )  # fmt: skip
        scale = st.segmented_control(
            "Axis of the cost", list(SCALES), default="automatic", required=True, key="cost_scale",
            bind="query-params", format_func=SCALES.__getitem__,
            help="Automatic: logarithmic if the costs span a factor of ten. On a logarithmic axis a cost of "
            "0 stands at the left edge.",
        )  # fmt: skip
    for i, (setting, title) in enumerate(compared.settings.items()):
        costs = curves.row_costs(shown.store, compared, setting, metric)
        best = curves.pareto_front(costs, against)
        st.markdown(f"**{markup.md(title)}**")
        if not best:
            st.info(NOTHING[against], icon=":material/hourglass_empty:")
            continue
        widths = NARROW_COST_PLOTS if session.is_narrow() else WIDE_COST_PLOTS
        chart = cost_chart(costs, session.theme(), against, METRICS[metric], widths, scale)
        charts.draw(chart, f"compare_cost_{i}", cost_table(costs, best))
        if st.session_state.get("as_tables"):
            continue
        st.html(_table(costs, best, metric, title))
    st.caption(
        "Hover over a point for its name. Front: no other row reaches more without costing more. "
        "Traffic: all clients over all rounds (1 MB = 1,000,000 bytes). Time: the whole run without its "
        "evaluation. Both are means over runs."
    )


def _table(costs: list[curves.Cost], best: list[curves.Cost], metric: Metric, title: str) -> str:
    """Write the costs of the rows of one setting as an HTML table."""
    header = [
        ("Method", "wide"),
        (f"{METRICS[metric]}, %", "num"),
        ("Up, MB", "num"),
        ("Down, MB", "num"),
    ]
    header += [("Training, s", "num"), ("Aggregation, s", "num"), ("Evaluation, s", "num"), ("Front", "")]
    rows = [
        [
            markup.method_html(c.label, c.method),
            markup.number(c.accuracy, 1),
            *(markup.number(v, 2) for v in (c.megabytes_up, c.megabytes_down, c.seconds_train)),
            *(markup.number(v, 2) for v in (c.seconds_aggregate, c.seconds_evaluate)),
            "yes" if c in best else "",
        ]
        for c in costs
    ]
    return markup.table_html(header, rows, f"Cost on {title}")
