"""The choices that a paper leaves open, the runs of all readings of a table, and specification curves."""

from collections.abc import Callable, Sequence

import streamlit as st

from fedcore.base.progress import counted
from fedcore.papers import library
from fedcore.papers.cells import TableCell
from fedcore.papers.choices import Multiverse, multiverse, rankings
from fedcore.papers.layout import PrintedTable
from fedcore.papers.mini import COMPARED, LARGEST_RATE
from fedcore.results.charts.ranks import curve_table, specification_chart
from fedcore.results.specification import curve
from fedcore.results.statistics import signed
from pages.papers_view import fill
from pages.papers_view.state import Snapshot
from pages.widgets import charts, markup, session

MEANING = (
    "A reading takes one alternative of each choice; the first one is FedLens's own. Readings "
    "that differ only in selection, rounding or seeds use the same runs; shared runs are trained once."
)
NO_EVIDENCE = "In a rehearsal these numbers say nothing about those of the paper."
SIZE = (
    f"These rehearsals train {COMPARED.rounds} rounds with {COMPARED.seeds} seeds, and learning rates "
    f"{COMPARED.rate} times as high, up to {LARGEST_RATE}, so that methods learn something."
)


@st.cache_resource(max_entries=32, show_spinner=False)
def spaces_of(table: str, rehearsal: bool, papers: int, _table: PrintedTable) -> dict[str, Multiverse]:
    """Return the readings of each ranking of a table by title; ``papers`` is the version of the library."""
    every = [multiverse(r, rehearsal) for r in rankings(_table.values)]
    return {space.ranking.title: space for space in every if space.choices}


def section(table: PrintedTable, snapshot: Snapshot) -> None:
    """Draw what a table leaves open; nothing if its paper's folder names no choice."""
    spaces = spaces_of(table.name, snapshot.rehearsal, library.version(), table)
    if not spaces:
        return
    st.subheader("What the paper leaves open", anchor=False)
    st.caption(MEANING + (f" {SIZE} {NO_EVIDENCE}" if snapshot.rehearsal else ""))
    with st.container(horizontal=not session.is_narrow(), vertical_alignment="bottom"):
        if st.session_state.get("readings_of") not in spaces:
            st.session_state["readings_of"] = next(iter(spaces))
        title = st.selectbox("Values", list(spaces), key="readings_of")
        if st.button("Run all readings of the table", icon=":material/account_tree:", key="readings_all"):
            st.session_state[fill.OPEN] = (table.name, "readings")
        if st.button("Only for these values", key="readings_some"):
            st.session_state[fill.OPEN] = (table.name, f"readings {title}")
    space = spaces[title]
    rows = [
        [markup.esc(c.name), markup.esc(c.why), markup.esc(" | ".join(a.label for a in c.alternatives))]
        for c in space.choices
    ]
    head = [("Choice", "name"), ("What is open", "prose"), ("Alternatives", "prose")]
    with st.expander(f"{counted(len(rows), 'choice')}, {counted(len(space.readings), 'reading')}"):
        st.html(markup.table_html(head, rows, "Choices"))
    shown = space.read(snapshot.recorded)
    without = [v.method for v in space.ranking.values if v not in shown.ranking.values]
    if without:
        st.caption(f"Left out for lack of runs: {markup.md(', '.join(without))}.")
    _draw(shown)


def chosen_cells(table: PrintedTable, values: str) -> tuple[str, Callable[[Snapshot], Sequence[TableCell]]]:
    """Return a title and a function of the cells of all readings of a table, or of the ranking ``values``."""

    def cells(snapshot: Snapshot) -> list[TableCell]:
        spaces = spaces_of(table.name, snapshot.rehearsal, library.version(), table)
        chosen = [spaces[values]] if values in spaces else list(spaces.values())
        return [cell for space in chosen for cell in space.cells(snapshot.recorded, snapshot.available)]

    return f"{table.title}, all readings{values and f' of {values}'}", cells


def _draw(shown: Multiverse) -> None:
    """Draw the curve of the own method or of a difference, what moves it, and whether ranks survive."""
    if len(shown.found) < 2:
        st.info(
            "The curve appears when the runs of two readings are done; "
            f"{counted(shown.missing, 'reading')} of {len(shown.readings)} lack runs.",
            icon=":material/stacked_line_chart:",
        )
        return
    ranking = shown.ranking
    proposed = ranking.proposed.method
    rivals = {f"{proposed} minus {rival.method}": rival for rival in ranking.rivals}
    quantity = st.selectbox("Curve", [*rivals, proposed], key="readings_curve")
    rival = rivals.get(quantity)
    found = curve(shown.values(rival))
    choices = [(c.name, [a.label for a in c.alternatives]) for c in shown.choices]
    method = shown.source(ranking.proposed, shown.readings[0]).entry.name
    chart = specification_chart(found, choices, quantity, method, session.theme(), session.is_narrow())
    st.markdown(
        f"**{markup.md(chart.alt)}** {markup.md(shown.survival.text(proposed))}."
        + (f" {counted(shown.missing, 'reading')} lack runs." if shown.missing else "")
        + (f" {NO_EVIDENCE}" if shown.rehearsal else "")
    )
    charts.table_switch()
    charts.draw(chart, "readings_chart", curve_table(found, choices))
    effects = shown.named_effects(rival)
    markup.table(
        {
            "choice": [markup.md(choice) for choice, _, _ in effects],
            "alternative": [markup.md(alternative) for _, alternative, _ in effects],
            "mean difference": [signed(e.mean, 2) for _, _, e in effects],
            "largest": [f"{e.largest:.2f}" for _, _, e in effects],
            "pairs": [e.pairs for _, _, e in effects],
            "order changes": [e.reordered for _, _, e in effects],
        },
        "How far each alternative moves a value from the first of its choice, all else equal (points)",
    )
