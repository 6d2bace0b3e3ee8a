"""The page Leaderboard: ranks of methods over all experiments of one setting, with their uncertainty."""

from collections.abc import Sequence
from itertools import pairwise

import streamlit as st

from fedcore import jobs
from fedcore.base.errors import FedLensError
from fedcore.base.progress import about, counted, first_few
from fedcore.config.field_names import seeds_text
from fedcore.jobs import forecast
from fedcore.methods import registry
from fedcore.papers.reproductions import printed_values
from fedcore.results.charts.ranks import rank_chart, rank_table
from fedcore.results.costs import Cost, CostAxis, row_costs
from fedcore.results.leaderboard import (
    DECISIVE_SEEDS,
    MOST_SEEDS,
    POWER,
    Board,
    BoardSetting,
    RunsByRow,
    Separation,
    board,
    board_settings,
    decisive_runs,
    missing_runs,
    queue,
    separating,
)
from fedcore.results.metrics import METRICS, RULES, Metric, Rule
from fedcore.results.progress import budget_text as tuning_budget
from fedcore.results.rows import ComparisonRow
from fedcore.results.statistics import MIN_PAIRS, signed, tests_made
from fedcore.results.summary import offered_metrics
from fedcore.store import RunRow, Store
from pages.widgets import background, charts, markup, session

BUDGETS: dict[CostAxis, str] = {"megabytes": "Traffic", "seconds": "Training time"}
MOST_NAMES = 3
"""Undecided pairs that are named; the others are counted."""


@st.cache_data(hash_funcs={Store: repr}, max_entries=8, show_spinner=False)
def settings_of(store: Store, _runs: Sequence[RunRow], token: str) -> list[BoardSetting]:
    """Return the settings of the finished runs, cached until another run has finished."""
    return board_settings(store, _runs)


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
    runs = [r for e in store.experiments.all() for r in e.runs if r.state == "done"]
    token = repr([r.version for r in runs])  # Streamlit hashes one text faster than thousands of values
    settings = settings_of(store, runs, token)
    if not settings:
        st.info("Finished runs of all experiments are ranked here, one setting at a time.")
        if not runs:
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
    marks = repr([(r.starred, r.tags, r.notes) for r in runs]) if where else ""
    selection = store, by_title[title], metric, rule, where or ""
    made, costs = board_of(*selection, (), token + marks)
    if not made.rows:
        others = ", ".join(METRICS[m].title for m in offered_metrics(made.comparison.rows))
        st.info(f"No row has this metric.{f' Available metrics: {others}.' if others else ''}")
        return
    with st.container(horizontal=True, vertical_alignment="center"):
        if pins := pinned(made):
            made, costs = board_of(*selection, pins, token + marks)
        offer_decisive(store, made)
        charts.table_switch()
    results(made, costs)
    for note in made.comparison.notes if by_title[title].parts else ():
        st.caption(f":material/info: {markup.md(note)}")
    separate_rows(store, made)


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
    return (
        f'<details class="fl-cell"><summary>{name} <u>{markup.esc(chosen)}</u></summary>'
        f"<small>{'<br>'.join(lines)}</small></details>"
    )


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


def offer_decisive(store: Store, board: Board) -> None:
    """Draw the button that queues all runs that the ranking lacks, and say what it would leave undecided."""
    plan, undecided = decisive_runs(store, board)
    if plan:
        number, needed, texts = _described(store, plan)
        label = f"Make this ranking decisive: {counted(number, 'run')}{f', {needed}' if needed else ''}"
        _queue_button(
            store,
            plan,
            label,
            "decisive",
            f"Gives every row {MIN_PAIRS} seeds, and neighbours the seeds that separate them with a power of "
            f"{100 * POWER:.0f} % if they differ as measured so far. They join their experiments. {texts}",
        )
    if undecided:
        pairs = undecided[:MOST_NAMES]
        pairs += [f"{len(undecided) - MOST_NAMES} more"] if undecided[MOST_NAMES:] else []
        st.caption(markup.md(f"Undecided even with {DECISIVE_SEEDS} seeds: {'; '.join(pairs)}."))


def separate_rows(store: Store, board: Board) -> None:
    """Draw the choice of two rows, and the number of seeds that would separate them."""
    rows = [g for g in board.rows if not g.other_tests]
    if len(rows) < 2:
        return
    asked = any(name in st.query_params for name in ("separate_one", "separate_two"))
    with st.expander("Seeds needed to separate two rows", expanded=asked, icon=":material/compare_arrows:"):
        names = {g.key: g.label for g in rows}
        first = 0  # of the first two neighbours that are not separated
        for i, (above, below) in enumerate(pairwise(rows)):
            tested = board.tests.get((above.key, below.key))
            if tested is None or not tested.significant:
                first = i
                break
        left, right = st.columns(2)
        one = session.choose(left.selectbox, "First row", names, "separate_one", index=first)
        rest = {key: name for key, name in names.items() if key != one}
        place = min(first, len(rest) - 1)
        two = session.choose(right.selectbox, "Second row", rest, "separate_two", index=place)
        a, b = (g for g in rows if g.key in (one, two))
        tested = board.tests.get((a.key, b.key))
        if tested is not None and tested.significant:
            st.success(
                f"{markup.md(a.label)} is separated from {markup.md(b.label)}: "
                f"{signed(tested.difference or 0, 2)} points over {tested.n} seeds, {markup.md(tested.text)} "
                f"after Holm's correction for {counted(tests_made(board.tests.values()), 'pair')}.",
                icon=":material/check:",
            )
            return
        found = separating(board, a, b)
        st.markdown(_sentence(a, b, found, board.pairs(a, b)))
        _queue(store, a, b, found)


def _sentence(a: ComparisonRow, b: ComparisonRow, seen: Separation | None, pairs: int) -> str:
    """Return a sentence on the seeds that would separate two rows, and the measurements behind it."""
    names = f"**{markup.md(a.label)}** and **{markup.md(b.label)}**"
    if seen is None:
        return f"{names} have fewer than two seeds in common, so their spread is unknown."
    measured = (
        f"{signed(seen.difference, 2)} ± {seen.spread:.2f} points over {seen.have} seeds in common, "
        f"tested at 5 % over {pairs} pair{'s' * (pairs != 1)}"
    )
    if seen.total is None or seen.more is None:
        return f"{names}: {measured}. More than {MOST_SEEDS} seeds would be needed to separate these."
    seeds = "One more seed" if seen.more == 1 else f"{seen.more} more seeds"
    doubt = f"more than {MOST_SEEDS - seen.have}"
    doubt = doubt if seen.cautious is None else f"up to {seen.cautious - seen.have}"
    return (
        f"{seeds} would separate {names} with a power of {100 * POWER:.0f} %, if they differ "
        f"as measured: {measured}. "
        f"A spread measured on {seen.have} seeds may be too small by chance: {doubt} may then be needed."
    )


def _queue(store: Store, a: ComparisonRow, b: ComparisonRow, seen: Separation | None) -> None:
    """Draw the number of common seeds to reach, and the button that queues the runs which these lack."""
    common = len(set(a.seeds) & set(b.seeds))
    # enough to separate the rows, else enough for a rank
    suggested = seen.total if seen is not None and seen.total is not None else max(MIN_PAIRS, common + 1)
    wanted = st.number_input(
        "Seeds in common to reach",
        min_value=common + 1,
        max_value=max(MOST_SEEDS, common + 1),
        value=max(suggested, common + 1),
        key=f"separate_total_{a.key}_{b.key}",
        width=220,
    )
    try:
        plans = missing_runs(store, a, b, int(wanted))
    except FedLensError as error:
        markup.show_error(error)
        return
    if not plans:
        st.info("The runs for these seeds are already queued or running.", icon=":material/hourglass:")
        return
    number, needed, texts = _described(store, plans)
    _queue_button(store, plans, f"Queue {'this run' if number == 1 else f'these {number} runs'}", "separate")
    st.caption(markup.md(f"{texts}{f', {needed} in all' if needed else ''}."))


def _queue_button(store: Store, plan: RunsByRow, label: str, key: str, help_: str | None = None) -> None:
    if st.button(
        label,
        type="primary",
        icon=":material/playlist_add:",
        disabled=not session.writable(),
        key=f"{key}_queue",
        help=None if help_ is None else markup.md(help_),
    ):
        number = queue(store, plan)
        jobs.ensure_worker(store)
        st.toast(f"{counted(number, 'run')} queued.", icon=":material/playlist_add_check:")
        st.rerun()


def _described(store: Store, plan: RunsByRow) -> tuple[int, str, str]:
    """Return the number of runs, how long they will take as far as it was measured, and the seeds by row."""
    runs = [run for _, of_row in plan for run in of_row]
    seconds = forecast.seconds(forecast.precedents(store.path), runs)
    texts = (f"{row.label} on {seeds_text({run.seed for run in of_row})}" for row, of_row in plan)
    return len(runs), about(seconds) if seconds else "", "; ".join(dict.fromkeys(texts))


session.through_app()
with markup.errors_shown():
    page()
