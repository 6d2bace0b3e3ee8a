"""The page Leaderboard: ranks of methods over all experiments of one setting, with their uncertainty."""

from collections.abc import Sequence
from functools import partial

import streamlit as st

from fedcore import jobs
from fedcore.base.progress import about, counted, first_few
from fedcore.config.field_names import seeds_text
from fedcore.jobs import forecast
from fedcore.methods import registry
from fedcore.papers.reproductions import printed_values
from fedcore.results.charts.ranks import rank_chart, rank_table
from fedcore.results.costs import Cost, CostAxis, row_costs
from fedcore.results.leaderboard import (
    DECISIVE_SEEDS,
    POWER,
    Board,
    BoardSetting,
    board,
    board_settings,
    decisive_runs,
    queue,
)
from fedcore.results.metrics import METRICS, RULES, Metric, Rule
from fedcore.results.progress import budget_text as tuning_budget
from fedcore.results.rows import ComparisonRow
from fedcore.results.statistics import MIN_PAIRS, tests_made
from fedcore.results.summary import offered_metrics
from fedcore.store import Store
from pages.widgets import background, charts, markup, session

BUDGETS: dict[CostAxis, str] = {"megabytes": "Traffic", "seconds": "Training time"}
MOST_NAMES = 3
"""Undecided pairs that are named; the others are counted."""


@st.cache_data(hash_funcs={Store: repr}, max_entries=8, show_spinner=False)
def settings_of(store: Store, token: str) -> list[BoardSetting]:
    """Return the settings of the finished runs, cached until another run has finished."""
    return board_settings(store, store.runs.done())


@st.cache_data(hash_funcs={Store: repr}, max_entries=16, show_spinner=False)
def board_of(
    store: Store,
    setting: BoardSetting,
    metric: Metric,
    rule: Rule,
    where: str,
    pins: tuple[str, ...],
    token: str,
) -> tuple[Board, list[Cost]]:
    """Return a board and the cost of its rows, cached until another run has finished."""
    made = board(store, setting, metric, rule, where, pins)
    return made, row_costs(store, made.comparison, setting.key, metric)


def page() -> None:
    """Draw the page."""
    store = session.store()
    st.title("Leaderboard")
    token = store.runs.digest_of_done()
    settings = settings_of(store, token)
    if not settings:
        st.info("Finished runs of all experiments are ranked here, one setting at a time.")
        if not store.experiments.newest_with_runs("done"):
            with st.container(horizontal=True):
                background.demo_buttons()
        return
    places = st.columns([4, 3, 3, 3], vertical_alignment="bottom")
    by_title = {s.title: s for s in settings}
    with places[0]:
        title = st.selectbox(
            "Setting",
            list(by_title),
            key="setting",
            bind="query-params",
            help="Methods are ranked together if they have the same data set, partition, backbone and rounds",
        )
    with places[1]:
        titles = {name: facts.title for name, facts in METRICS.items()}
        metric: Metric = session.choose(
            st.selectbox, "Ranked by", titles, "by", index=list(METRICS).index("personal")
        )
    with places[2]:
        rule: Rule = session.choose(st.selectbox, "Reported round", RULES, "rule")
    with places[3]:
        where = st.text_input(
            "Filter",
            key="where",
            bind="query-params",
            placeholder="not label contains ablation",
            help="Keeps the runs that match this expression, as on Compare",
        )
    selection = store, by_title[title], metric, rule, where or ""
    token = store.runs.digest_of_done(marks=True) if where else token
    made, costs = board_of(*selection, (), token)
    if not made.rows:
        others = ", ".join(METRICS[m].title for m in offered_metrics(made.comparison.rows))
        st.info(f"No row has this metric.{f' Available metrics: {others}.' if others else ''}")
        return
    markup.undo_bar()
    with st.container(horizontal=True, vertical_alignment="center"):
        if pins := pinned(made):
            made, costs = board_of(*selection, pins, token)
        offer_decisive(store, made)
        with st.popover("View", icon=":material/tune:"):
            charts.table_switch()
            charts.colour_choice(row.method for row in made.rows)
    results(made, costs)
    for note in made.comparison.notes if by_title[title].parts else ():
        st.caption(f":material/info: {markup.md(note)}")


def pinned(made: Board) -> tuple[str, ...]:
    """Draw the choice of a setting for each method with several, and return the chosen ones."""
    several = [rows for rows in made.variants.values() if len(rows) > 1]
    if not several:
        return ()
    number = sum(map(len, several))
    with st.popover(f"{number} settings of {counted(len(several), 'method')}", icon=":material/tune:"):
        st.caption("One setting of each method is ranked. Those that you pin here replace the chosen ones.")
        pins = [
            session.choose(
                st.selectbox,
                registry.title(rows[0].method),
                {"": made.chosen_by(rows[0]).capitalize()} | {row.key: row.label for row in rows},
                f"pin_{rows[0].method}",
            )
            for rows in several
        ]
    return tuple(filter(None, pins))


def results(made: Board, costs: Sequence[Cost]) -> None:
    """Draw the finding, the chart of ranks, and the table with a budget."""
    markup.show_finding([markup.md(made.finding)])
    charts.draw(rank_chart(made, session.theme()), "ranks", rank_table(made))
    st.caption(
        f"{METRICS[made.metric].title}, reported round: {RULES[made.comparison.rule]}. A rank is the range "
        "that the seeds leave open.",
        help="Every pair of ranked rows is compared by a paired t-test over the seeds that both have, with "
        f"Holm's correction for all tests (here {tests_made(made.tests.values())}), so that all ranks "
        f"together contain the true ranks with 95 % confidence. Rows with fewer than {MIN_PAIRS} seeds are "
        f"not ranked yet, and rows with fewer than {MIN_PAIRS} seeds in common are not separated. A row that "
        "was evaluated on other test sets than most is never ranked.",
    )
    against, limit = _budget(costs)
    rows = list(zip(made.rows, costs, strict=True))
    within = [g.key for g, cost in rows if limit is None or _cost(cost, against) <= limit]
    if limit is not None:
        st.markdown(f"**{_best_within(made, within, against, limit)}**")
    columns = [("Rank", "name"), ("Method", "wide"), (f"Mean, {METRICS[made.metric].unit}", "num")]
    columns += [(title, "num") for title in ("Seeds (n)", "Traffic, MB", "Training, s")]
    if any(cost.tuned for cost in costs):
        columns += [(title, "num") for title in ("Tuning", "With its search, MB", "With its search, s")]
    cells = [
        [
            markup.esc(made.rank_text(g)),
            _method_cell(made, g) + ("" if g.key in within else markup.faint(", over the budget")),
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
    st.html(markup.table_html(columns, [row[: len(columns)] for row in cells], "Leaderboard"))
    if presets := printed_values(made.comparison, ()).presets_text(made.rows):
        st.caption(markup.md(presets))
    if made.budgets:
        said = markup.md(made.budgets[:1].upper() + made.budgets[1:])
        st.caption(f"{said}. With its search: one run and all draws that selected its hyper-parameters.")


def _method_cell(made: Board, row: ComparisonRow) -> str:
    """Return a method's name as HTML, which unfolds into its settings if it has several."""
    name, chosen = markup.method_html(row.label, row.method), made.chosen_by(row)
    if not chosen:
        return name
    lines = []
    for variant in made.variants[row.key]:
        stat, share = variant.stats[made.metric], made.validation.get(variant.key)
        validated = "" if share is None else f", {share:.1f} % on validation"
        lines.append(f"{markup.esc(variant.label)}: {stat.text()} (n = {stat.n}){validated}")
    return markup.unfolding(f"{name} <u>{markup.esc(chosen)}</u>", lines)


def _cost(cost: Cost, against: CostAxis) -> float:
    """Return the cost of a row's run; a cost that was not measured exceeds every budget."""
    value = cost.megabytes if against == "megabytes" else cost.seconds
    return float("inf") if value is None else value


def _budget(costs: Sequence[Cost]) -> tuple[CostAxis, float | None]:
    """Draw the choice of a budget, and return its limit, None for no limit."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        against: CostAxis = session.choose(
            st.segmented_control, "Budget", BUDGETS, "budget", default="megabytes", required=True
        )
        measured = sorted({round(c, 3) for cost in costs if (c := _cost(cost, against)) != float("inf")})
        if len(measured) < 2:
            return against, None
        steps: list[float | None] = [*measured[:-1], None]
        limit = st.select_slider(
            "At most",
            steps,
            value=None,
            key=f"budget_{against}",
            bind="query-params",
            format_func=lambda value: "no limit" if value is None else budget_text(value, against),
            help="The cost of a whole run, mean over its seeds; all clients, up and down",
        )
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
    found = {g.key: made.tests[best.key, g.key] for g in others}
    tied = [g for g in others if not (found[g.key].significant and (found[g.key].difference or 0) > 0)]
    text = "Highest" if tied else "Best"
    text += f" within {budget}: {markup.md(best.label)}, {best.stats[made.metric].text()} "
    text += METRICS[made.metric].unit
    if tied:
        text += f"; not separated from it: {markup.md(first_few([g.label for g in tied], 5))}"
    return text + "."


def unqueue(store: Store, runs: Sequence[int]) -> None:
    """Take queued runs back; those that have started are stopped and stay."""
    stopped = store.runs.stop(runs)
    store.runs.delete([r.id for r in store.runs.get(stopped) if r.started_at is None])


def offer_decisive(store: Store, board: Board) -> None:
    """Draw the button that queues all runs that the ranking lacks, and say what it would leave undecided."""
    plan, undecided = decisive_runs(store, board)
    if plan:
        runs = [run for _, of_row in plan for run in of_row]
        seconds = forecast.seconds(forecast.precedents(store.path), runs)
        texts = (f"{row.label} on {seeds_text({run.seed for run in of_row})}" for row, of_row in plan)
        label = f"Make this ranking decisive: {counted(len(runs), 'run')}"
        label += f", {about(seconds)}" if seconds else ""
        help_ = (
            f"Gives every row {MIN_PAIRS} seeds, and neighbours the seeds that separate them with a power of "
            f"{100 * POWER:.0f} % if they differ as measured so far. To separate two methods only, name them "
            f"in the filter. The runs join their experiments. {'; '.join(dict.fromkeys(texts))}"
        )
        pressed = markup.write_button(
            label, "playlist_add", "decisive_queue", type="primary", help=markup.md(help_)
        )
        if pressed:
            queued = queue(store, plan)
            jobs.ensure_worker(store)
            markup.offer_undo(f"{counted(len(queued), 'run')} queued", partial(unqueue, store, queued))
            st.rerun()
    if undecided:
        pairs = undecided[:MOST_NAMES]
        pairs += [f"{len(undecided) - MOST_NAMES} more"] if undecided[MOST_NAMES:] else []
        st.caption(markup.md(f"Undecided even with {DECISIVE_SEEDS} seeds: {'; '.join(pairs)}."))


session.through_app()
with markup.errors_shown():
    page()
