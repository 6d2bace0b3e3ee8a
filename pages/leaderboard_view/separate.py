"""The seeds that make the leaderboard decisive or separate two rows, and the buttons that queue them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import streamlit as st

from fedcore import jobs
from fedcore.config import RunConfig
from fedcore.config.field_names import number_ranges
from fedcore.errors import FedLensError
from fedcore.jobs import forecast
from fedcore.progress import about, counted
from fedcore.results.comparison import ComparisonRow
from fedcore.results.further_seeds import (
    DECISIVE_SEEDS,
    MOST_SEEDS,
    POWER,
    Plan,
    Separation,
    decisive_runs,
    missing_runs,
    queue,
    separating,
)
from fedcore.results.leaderboard import Board
from fedcore.results.statistics import MIN_PAIRS, signed
from fedcore.store import Store
from pages.widgets import markup, session

MOST_NAMES = 3
"""Undecided pairs that are named; the others are counted."""


def offer_decisive(store: Store, board: Board) -> None:
    """Draw the button that queues all runs that the ranking lacks, and say what it would leave undecided."""
    plan, undecided = decisive_runs(store, board)
    if plan:
        texts = "; ".join(_row_seeds(row, runs) for row, runs in plan)
        needed = _time(store, plan)
        label = (
            f"Make this ranking decisive: {counted(_number(plan), 'run')}{f', {needed}' if needed else ''}"
        )
        _queue_button(
            store, plan, label, "decisive",
            f"Gives every row {MIN_PAIRS} seeds, and neighbours the seeds that separate them with a power of "
            f"{100 * POWER:.0f} % if they differ as measured so far. They join their experiments. {texts}",
        )  # fmt: skip
    if undecided:
        pairs = undecided[:MOST_NAMES]
        pairs += [f"{len(undecided) - MOST_NAMES} more"] if undecided[MOST_NAMES:] else []
        st.caption(markup.md(f"Undecided even with {DECISIVE_SEEDS} seeds: {'; '.join(pairs)}."))


def draw(store: Store, board: Board) -> None:
    """Draw the choice of two rows, and the number of seeds that would separate them."""
    rows = [g for g in board.rows if not g.other_tests]
    if len(rows) < 2:
        return
    asked = any(name in st.query_params for name in ("separate_one", "separate_two"))
    with st.expander("Seeds needed to separate two rows", expanded=asked, icon=":material/compare_arrows:"):
        _two_rows(store, board, rows)


def _two_rows(store: Store, board: Board, rows: Sequence[ComparisonRow]) -> None:
    names = {g.key: g.label for g in rows}
    first, second = _neighbours(board, rows)
    left, right = st.columns(2)
    one = left.selectbox(
        "First row",
        list(names),
        index=first,
        format_func=names.__getitem__,
        key="separate_one",
        bind="query-params",
    )
    rest = [key for key in names if key != one]
    two = right.selectbox(
        "Second row", rest, index=max(0, min(second - 1, len(rest) - 1)), format_func=names.__getitem__,
        key="separate_two", bind="query-params",
    )  # fmt: skip
    a, b = (g for g in rows if g.key in (one, two))
    tested = board.tests.get((a.key, b.key))
    if tested is not None and tested.significant:
        st.success(
            f"{markup.md(a.label)} is separated from {markup.md(b.label)}: "
            f"{signed(tested.difference or 0, 2)} points over {tested.n} seeds, {markup.md(tested.text)} "
            f"after Holm's correction for {counted(len(board.tests), 'pair')}.",
            icon=":material/check:",
        )
        return
    found = separating(board, a, b)
    st.markdown(_sentence(a, b, found, board.pairs(a, b)))
    _queue(store, a, b, _target(a, b, found))


def _neighbours(board: Board, rows: Sequence[ComparisonRow]) -> tuple[int, int]:
    """Return the places of the first two neighbours that are not separated."""
    for i, (above, below) in enumerate(pairwise(rows)):
        tested = board.tests.get((above.key, below.key))
        if tested is None or not tested.significant:
            return i, i + 1
    return 0, 1


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


def _target(a: ComparisonRow, b: ComparisonRow, seen: Separation | None) -> int:
    """Return the number of common seeds to suggest: enough to separate the rows, else enough for a rank."""
    common = len(set(a.seeds) & set(b.seeds))
    return seen.total if seen is not None and seen.total is not None else max(MIN_PAIRS, common + 1)


def _queue(store: Store, a: ComparisonRow, b: ComparisonRow, total: int) -> None:
    """Draw the button that queues the runs that are missing."""
    common = len(set(a.seeds) & set(b.seeds))
    wanted = st.number_input(
        "Seeds in common to reach", min_value=common + 1, max_value=max(MOST_SEEDS, common + 1),
        value=max(total, common + 1), key=f"separate_total_{a.key}_{b.key}", width=220,
    )  # fmt: skip
    try:
        plans = missing_runs(store, a, b, int(wanted))
    except FedLensError as error:
        markup.show_error(error)
        return
    if not plans:
        st.info("The runs for these seeds are already queued or running.", icon=":material/hourglass:")
        return
    number, needed = _number(plans), _time(store, plans)
    _queue_button(store, plans, f"Queue {'this run' if number == 1 else f'these {number} runs'}", "separate")
    texts = "; ".join(_row_seeds(row, configs) for row, configs in plans)
    st.caption(markup.md(f"{texts}{f', {needed} in all' if needed else ''}."))


def _queue_button(store: Store, plan: Plan, label: str, key: str, help_: str | None = None) -> None:
    if st.button(
        label, type="primary", icon=":material/playlist_add:", disabled=not session.writable(),
        key=f"{key}_queue", help=None if help_ is None else markup.md(help_),
    ):  # fmt: skip
        number = queue(store, plan)
        jobs.ensure_worker(store)
        st.toast(f"{counted(number, 'run')} queued.", icon=":material/playlist_add_check:")
        st.rerun()


def _number(plan: Plan) -> int:
    return sum(len(runs) for _, runs in plan)


def _time(store: Store, plan: Plan) -> str:
    """Return how long the runs will take, as far as runs of their kind were measured."""
    seconds = forecast.seconds(forecast.precedents(store.path), [run for _, runs in plan for run in runs])
    return about(seconds) if seconds else ""


def _row_seeds(row: ComparisonRow, runs: Sequence[RunConfig]) -> str:
    seeds = {run.seed for run in runs}
    return f"{row.label} on seed{'s' * (len(seeds) != 1)} {number_ranges(seeds)}"
