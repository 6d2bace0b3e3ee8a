"""The number of seeds that would separate two rows of the leaderboard, and the button that queues them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import streamlit as st

from fedcore import jobs
from fedcore.config.field_names import number_ranges
from fedcore.errors import FedLensError
from fedcore.jobs import forecast
from fedcore.progress import counted, duration
from fedcore.results.comparison import ComparisonRow
from fedcore.results.leaderboard import MOST_SEEDS, POWER, Board, Separation, missing_runs, separating
from fedcore.results.statistics import MIN_PAIRS, signed
from fedcore.store import Store
from pages.widgets import markup, session


def draw(store: Store, board: Board) -> None:
    """Draw the choice of two rows, and the number of seeds that would separate them."""
    rows = [g for g in board.rows if not g.other_tests]
    if len(rows) < 2:
        return
    st.subheader("Seeds needed to separate two rows")
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
    runs = [run for _, configs in plans for run in configs]
    if not runs:
        st.info("The runs for these seeds are already queued or running.", icon=":material/hourglass:")
        return
    time = forecast.seconds(forecast.precedents(store.path), runs)
    about = f", about {duration(time)} in all" if time else ""
    label = f"Queue {'this run' if len(runs) == 1 else f'these {len(runs)} runs'}"
    if st.button(label, type="primary", icon=":material/playlist_add:", disabled=not session.writable()):
        for row, configs in plans:
            # they join the experiment of the row's newest run, so that its comparison counts them too
            store.experiments.extend(max(v.run.experiment_id for v in row.runs), configs)
        jobs.ensure_worker(store)
        st.toast(f"{len(runs)} run{'s' * (len(runs) != 1)} queued.", icon=":material/playlist_add_check:")
        st.rerun()
    texts = [
        f"{markup.md(row.label)} on seed{'s' * (len({c.seed for c in configs}) != 1)} "
        f"{number_ranges(c.seed for c in configs)}"
        for row, configs in plans
    ]
    st.caption(f"{'; '.join(texts)}{about}.")
