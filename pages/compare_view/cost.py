"""The tab Cost of the page Compare: accuracy against traffic or time, and the cost to reach a target."""

import streamlit as st

from fedcore.results.charts.cost import SCALES
from fedcore.results.costs import (
    SHARES,
    USUAL_SHARE,
    Cost,
    CostAxis,
    Reaching,
    pareto_front,
    reaching,
    row_costs,
)
from fedcore.results.metrics import METRICS, Metric
from fedcore.share.views.cost import AGAINST, cost_figure, reach_table
from pages.compare_view.controls import ShownComparison
from pages.widgets import charts, markup, session


def draw(shown: ShownComparison) -> None:
    """Draw accuracy against cost, with the Pareto front."""
    compared, metric = shown.comparison, shown.metric
    with st.container(horizontal=True):
        titles = {axis: text.capitalize() for axis, text in AGAINST.items()}
        against: CostAxis = session.choose(
            st.segmented_control, "Against", titles, "cost", default="megabytes", required=True
        )
        scale = session.choose(
            st.segmented_control,
            "Axis of the cost",
            SCALES,
            "cost_scale",
            default="automatic",
            required=True,
            help="Automatic: logarithmic if the costs span a factor of ten. A logarithmic axis draws a cost "
            "of 0 at its left edge.",
        )
        shares = {share: f"{share} %" for share in SHARES}
        share = session.choose(
            st.segmented_control,
            "Cost to reach",
            shares,
            "cost_share",
            default=USUAL_SHARE,
            required=True,
            help="A share of the highest mean in the setting. A second table shows what each row needed.",
        )
    for i, (setting, title) in enumerate(compared.settings.items()):
        costs = row_costs(shown.store, compared, setting, metric)
        figure = cost_figure(shown.source, costs, against, scale)
        st.markdown(f"**{markup.md(title)}**")
        if figure is None:
            st.info(
                f"None of these runs has recorded its {AGAINST[against]} in every round"
                f"{', up and down' if against == 'megabytes' else ''}; imported results often have none.",
                icon=":material/hourglass_empty:",
            )
            continue
        charts.draw_figure(figure, f"compare_cost_{i}")
        if not st.session_state.get("as_tables"):
            st.html(_table(costs, pareto_front(costs, against), metric, title))
        reached = reaching(shown.store, compared, setting, metric, (share,))
        if not reached:
            st.caption(f"{METRICS[metric].title} was not recorded by round, so its cost to reach is unknown.")
        for found in reached:
            _reached(found, title)
    st.caption(
        "Hover over a point for its name; where a name has no room, the point has its number in the table. "
        "Front: no other row reaches more without costing more. "
        "Traffic: all clients over all rounds, up and down (1 MB = 1,000,000 bytes); unknown if a script "
        "recorded one direction only. Time: training and aggregation of all rounds. "
        "The column of evaluation includes diagnostics and checkpoints; no column includes "
        "loading. All are means over runs; with its search: one run and all draws of the search "
        "that selected its hyper-parameters."
    )


def _reached(found: Reaching, setting: str) -> None:
    """Draw each row's cost to reach a share of the best."""
    st.markdown(f"**{markup.md(found.title)}**")
    columns = reach_table(found)
    methods = [markup.method_html(reach.row.label, reach.row.method) for reach in found.rows]
    header = [("Method", "wide"), ("Seeds that reach it", "num")]
    header += [("Rounds", "num"), ("Traffic, MB", "num"), ("Time, s", "num")]
    values = [list(map(_text, column)) for name, column in columns.items() if name != "method"]
    rows = [list(row) for row in zip(methods, *values, strict=True)]
    st.html(markup.table_html(header, rows, f"{found.title} on {setting}"))
    st.caption(
        "Counted to the first evaluated round in which the test accuracy is at least this high, as mean ± "
        "sample standard deviation over the seeds that reach it; if none does, no cost is given."
    )


def _text(value: object) -> str:
    return "-" if value is None else markup.esc(str(value))


def _table(costs: list[Cost], best: list[Cost], metric: Metric, title: str) -> str:
    header = [
        ("No.", "num"),
        ("Method", "wide"),
        (f"{METRICS[metric].title}, {METRICS[metric].unit}", "num"),
        ("Up, MB", "num"),
        ("Down, MB", "num"),
    ]
    header += [("Training, s", "num"), ("Aggregation, s", "num"), ("Evaluation, s", "num")]
    tuned = any(c.tuned is not None for c in costs)
    header += [("With its search, MB", "num"), ("With its search, s", "num")] if tuned else []
    header += [("Front", "")]
    rows = [
        [
            str(i),
            markup.method_html(c.label, c.method),
            markup.number(c.accuracy, 1),
            *(markup.number(v, 2) for v in (c.megabytes_up, c.megabytes_down, c.seconds_train)),
            *(markup.number(v, 2) for v in (c.seconds_aggregate, c.seconds_evaluate)),
            *(markup.number(v, 2) for v in (c.megabytes_with_search, c.seconds_with_search) if tuned),
            "yes" if c in best else "",
        ]
        for i, c in enumerate(costs, 1)
    ]
    return markup.table_html(header, rows, f"Cost on {title}")
