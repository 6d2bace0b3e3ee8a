"""The page Leaderboard: ranks of methods over all experiments of one setting, with their uncertainty."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from fedcore.errors import FedLensError
from fedcore.plots.ranks import rank_chart, rank_table
from fedcore.results import curves
from fedcore.results.budgets import budget_text as tuning_budget
from fedcore.results.curves import Cost, CostAxis
from fedcore.results.leaderboard import Board, BoardSetting, board, board_settings
from fedcore.results.metrics import METRICS, RULES, Metric, Rule
from fedcore.results.protocols import protocol_text
from fedcore.results.statistics import MIN_PAIRS
from fedcore.results.summary import offered_metrics
from fedcore.store import RunRow, Store
from pages.leaderboard_view import separate
from pages.widgets import background, charts, markup, session

BUDGETS: dict[CostAxis, str] = {"megabytes": "Traffic", "seconds": "Training time"}
COLUMNS = (
    ("Rank", "name"), ("Method", "wide"), ("Mean, %", "num"), ("Seeds (n)", "num"), ("Traffic, MB", "num"),
    ("Training, s", "num"), ("Tuning", "num"), ("With its search, MB", "num"), ("With its search, s", "num"),
)  # fmt: skip


@st.cache_data(hash_funcs={Store: repr}, max_entries=8, show_spinner=False)
def settings_of(store: Store, _runs: Sequence[RunRow], token: object) -> list[BoardSetting]:
    """Return the settings of the finished runs, cached until another run has finished."""
    return board_settings(store, _runs)


@st.cache_data(hash_funcs={Store: repr}, max_entries=16, show_spinner=False)
def board_of(
    store: Store, setting: BoardSetting, metric: Metric, rule: Rule, where: str, token: object
) -> tuple[Board, list[Cost]]:
    """Return a board and the cost of its rows, cached until another run has finished."""
    made = board(store, setting, metric, rule, where)
    return made, curves.row_costs(store, made.comparison, setting.key, metric)


def page() -> None:
    """Draw the page."""
    store = session.store()
    st.title("Leaderboard")
    runs = [r for e in store.experiments.all() for r in e.runs if r.state == "done"]
    token = tuple(r.version for r in runs)
    settings = settings_of(store, runs, token)
    if not settings:
        st.info("Finished runs of all experiments are ranked here, one setting at a time.")
        if not runs:
            with st.container(horizontal=True):
                background.demo_buttons()
        return
    places = st.columns([4, 3, 3, 3], vertical_alignment="bottom")
    titles = {s.title: s for s in settings}
    with places[0]:
        title = st.selectbox(
            "Setting", list(titles), key="setting", bind="query-params",
            help="Rows are ranked together if they have the same data set, partition, backbone and rounds",
        )  # fmt: skip
    with places[1]:
        metric: Metric = st.selectbox(
            "Ranked by", list(METRICS), index=list(METRICS).index("personal"), key="by",
            format_func=lambda m: METRICS[m].title, bind="query-params",
        )  # fmt: skip
    with places[2]:
        rule: Rule = st.selectbox(
            "Reported round", list(RULES), format_func=RULES.__getitem__, key="rule", bind="query-params"
        )
    with places[3]:
        where = st.text_input(
            "Filter", key="where", bind="query-params", placeholder="not label contains ablation",
            help="Keeps the runs that match this expression, as on Compare",
        )  # fmt: skip
    marks = tuple((r.starred, r.tags, r.notes) for r in runs) if where else ()
    made, costs = board_of(store, titles[title], metric, rule, where or "", (token, marks))
    if not made.rows:
        others = ", ".join(METRICS[m].title for m in offered_metrics(made.comparison.rows))
        st.info(f"No row has this metric.{f' Available metrics: {others}.' if others else ''}")
        return
    results(store, made, costs)
    separate.draw(store, made)


def results(store: Store, made: Board, costs: Sequence[Cost]) -> None:
    """Draw the finding, the chart of ranks, and the table with a budget."""
    markup.show_finding([markup.md(made.finding)])
    with st.container(horizontal=True, vertical_alignment="center"):
        separate.offer_decisive(store, made)
        charts.table_switch()
    charts.draw(rank_chart(made, session.theme()), "ranks", rank_table(made))
    st.caption(
        f"{METRICS[made.metric].title}, reported round: {RULES[made.comparison.rule]}. A rank is the range "
        "that the seeds leave open.",
        help="Every pair of ranked rows is compared by a paired t-test over the seeds that both have, with "
        f"Holm's correction for all pairs (here {len(made.tests)}), so that all ranks together contain the "
        f"true ranks with 95 % confidence. Rows with fewer than {MIN_PAIRS} seeds are not ranked yet, and "
        f"rows with fewer than {MIN_PAIRS} seeds in common are not separated. A row that was evaluated on "
        "other test sets than most is never ranked.",
    )
    against, limit = _budget(costs)
    rows = list(zip(made.rows, costs, strict=True))
    within = [g.key for g, cost in rows if limit is None or _cost(cost, against) <= limit]
    if limit is not None:
        st.markdown(f"**{_best_within(made, within, against, limit)}**")
    cells = [
        [
            markup.esc(made.rank_text(g)),
            markup.method_html(cost.label, g.method)
            + ("" if g.key in within else markup.faint(", over the budget")),
            f"{g.stats[made.metric].text()}",
            str(g.stats[made.metric].n),
            markup.number(cost.megabytes, 2),
            markup.number(cost.seconds, 1),
            tuning_budget(g.config) or "-",
            markup.number(cost.megabytes_with_search, 2),
            markup.number(cost.seconds_with_search, 1),
        ]
        for g, cost in rows
    ]
    tuned = any(cost.tuned for cost in costs)
    columns = COLUMNS if tuned else COLUMNS[:-3]
    st.html(markup.table_html(columns, [row[: len(columns)] for row in cells], "Leaderboard"))
    if protocols := protocol_text(made.comparison, made.rows):
        st.caption(markup.md(protocols))
    if made.budgets:
        said = markup.md(made.budgets[:1].upper() + made.budgets[1:])
        st.caption(f"{said}. With its search: one run and all draws that selected its hyper-parameters.")


def _cost(cost: Cost, against: CostAxis) -> float:
    """Return the cost of a row's run; a cost that was not measured exceeds every budget."""
    value = cost.megabytes if against == "megabytes" else cost.seconds
    return float("inf") if value is None else value


def _budget(costs: Sequence[Cost]) -> tuple[CostAxis, float | None]:
    """Draw the choice of a budget, and return its limit, None for no limit."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        against: CostAxis = st.segmented_control(
            "Budget", list(BUDGETS), default="megabytes", required=True, key="budget", bind="query-params",
            format_func=BUDGETS.__getitem__,
        )  # fmt: skip
        measured = sorted({round(c, 3) for cost in costs if (c := _cost(cost, against)) != float("inf")})
        if len(measured) < 2:
            return against, None
        steps: list[float | None] = [*measured[:-1], None]
        limit = st.select_slider(
            "At most", steps, value=None, key=f"budget_{against}", bind="query-params",
            format_func=lambda value: "no limit" if value is None else budget_text(value, against),
            help="The cost of a whole run, mean over its seeds; all clients, up and down",
        )  # fmt: skip
    return against, None if limit is None else limit + 0.0005


def budget_text(value: float, against: CostAxis) -> str:
    """Return a budget in words: ``12.3 MB``, ``4.5 min``, ``30 s``."""
    if against == "megabytes":
        return f"{value:.3g} MB" if value < 1000 else f"{value:,.0f} MB"
    return f"{value:.3g} s" if value < 120 else f"{value / 60:.1f} min"


def _best_within(made: Board, within: Sequence[str], against: CostAxis, limit: float) -> str:
    """Return a sentence on the highest ranked row within the budget and the rows not separated from it."""
    rows = [g for g in made.ranked if g.key in within]
    budget = budget_text(limit, against)
    if not rows:
        return f"No ranked row costs at most {budget}."
    best, others = rows[0], rows[1:]
    tied = [g for g in others if not made.tests[best.key, g.key].significant]
    text = "Highest" if tied else "Best"
    text += f" within {budget}: {markup.md(best.label)}, {best.stats[made.metric].text()} %"
    if tied:
        text += f"; not separated from it: {markup.md(', '.join(g.label for g in tied[:5]))}"
        text += f" and {len(tied) - 5} more" if tied[5:] else ""
    return text + "."


session.through_app()
try:
    page()
except FedLensError as error:
    markup.show_error(error)
