"""The page Papers: the tables as printed, with our values below each, and a row per paper."""

from collections import Counter
from collections.abc import Callable, Sequence

import streamlit as st

from fedcore.base.progress import counted
from fedcore.papers import adding, layout, library, literature
from fedcore.papers.cells import STATUSES, CellStatus, TableCell, counts_text, has_runs
from fedcore.papers.layout import PrintedTable, tables
from fedcore.papers.published import FINDINGS, findings_of
from fedcore.results.summary import STATES
from pages.papers_view import add, fill, pairs, readings, state
from pages.papers_view.table import draw_html, table_html
from pages.widgets import background, browser, markup, session

POLL_SECONDS, LONGEST_SECONDS = 2, 15
VIEWS = ("Tables", "Baselines", "All papers", "Add a paper")
WHAT_IT_MEANS = (
    "Upper line: as printed. Below: ours, mean ± sample standard deviation (number of seeds), then the "
    "difference. **=** comparable, **†** with a caveat, **‡** not comparable, **▷** its runs can be queued, "
    "**-** it cannot be run here. Ours is higher in blue cells and lower in orange ones; the colour is "
    "strongest from 5 points on. "
    "Times are estimated from runs of the same method, data set and backbone on this machine."
)
IN_SHORT = "Upper line: as printed. Below: ours and the difference, or what is missing."
REHEARSAL = (
    "In a rehearsal, a miniature model that was trained on drawings for two rounds fills the same table. It "
    "shows that everything runs, but our numbers say nothing about the paper. Data sets that are the same "
    "in a rehearsal share its runs."
)


def choose_table() -> PrintedTable:
    """Draw the choice of a paper and one of its tables, kept in the URL."""
    books = {table.name: book for book in library.works() for table in tables(book)}
    asked = st.query_params.get("table", st.session_state.get("papers_last", ""))
    if "paper_shown" not in st.session_state and asked in books:
        st.session_state["paper_shown"], st.session_state["table_shown"] = books[asked], asked
    if st.session_state.get("paper_shown") not in library.works():
        st.session_state["paper_shown"] = library.works()[0]
    left, right = st.columns([2, 3], vertical_alignment="bottom")
    with left:
        book = st.selectbox(
            "Paper", library.works(), key="paper_shown", format_func=lambda name: library.find(name).title
        )
    named = {table.name: table for table in tables(book)}
    if st.session_state.get("table_shown") not in named:
        st.session_state["table_shown"] = next(iter(named))
    with right:
        chosen = st.selectbox(
            "Table",
            list(named),
            key="table_shown",
            format_func=lambda name: f"{named[name].title}: {named[name].caption}",
        )
    st.session_state["papers_last"] = st.query_params["table"] = chosen
    return named[chosen]


def chosen_cells(
    table: PrintedTable, choice: str
) -> tuple[str, Callable[[state.Snapshot], Sequence[TableCell]]]:
    """Return the title of a click, and a function that reads its cells.

    A click is ``cell 12``, ``row 0 3`` (panel and row), ``all``, or ``readings`` with the title of a ranking.
    """
    kind, _, which = choice.partition(" ")
    if kind == "readings":
        return readings.chosen_cells(table, which)
    title, values = f"{library.find(table.paper).title}, {table.title}", list(table.values)
    if kind == "cell":
        value = table.values[int(which)]
        target = "mean" if value.target == "avg" else value.target
        parts = (value.dataset, value.setting, value.method, target)
        title, values = f"{value.source}: {', '.join(filter(None, parts))}", [value]
    elif kind == "row":
        panel, number = map(int, which.split())
        row = table.panels[panel].rows[number]
        title = f"{table.title}: {', '.join(row.heads)}"
        values = [table.values[i] for i in row.cells if i is not None]

    def cells(now: state.Snapshot) -> list[TableCell]:
        by_value = now.cells(values)
        return [by_value[value] for value in values]

    return title, cells


@markup.fragment
def watched_table(table: PrintedTable, rehearsal: bool) -> None:
    """Draw a table, and draw it again whenever a run has changed."""
    snapshot = state.now(session.store(), rehearsal)
    by_value = snapshot.cells(table.values)
    cells = [by_value[value] for value in table.values]
    runs = has_runs(table.paper, table.table)
    if runs:
        st.markdown(share_text([c.status for c in cells], rehearsal))
    with st.container(horizontal=True):
        if runs and st.button("Fill the table", icon=":material/playlist_add:", key="papers_fill"):
            st.session_state[fill.OPEN] = (table.name, "all")
        as_csv, as_tex = (layout.file_name(table, rehearsal, suffix) for suffix in ("csv", "tex"))
        markup.download("CSV", lambda: layout.table_csv(cells, snapshot.cost), as_csv, "papers_csv")
        markup.download(
            "LaTeX",
            lambda: layout.table_latex(table, by_value),
            as_tex,
            "papers_latex",
            help="Each cell contains the printed value, ours and the difference",
        )
    chosen = draw_html(table_html(table, by_value, snapshot.cost, findings_of), "papers_table")
    if chosen is not None:
        st.session_state[fill.OPEN] = (table.name, chosen)
    readings.section(table, snapshot)
    about = st.session_state.get(fill.OPEN)
    if about is not None and about[0] == table.name:
        fill.open_dialog(*chosen_cells(table, about[1]), rehearsal)
    else:
        follow(snapshot, [c for c in cells if c.active])


def follow(snapshot: state.Snapshot, active: Sequence[object]) -> None:
    """Let the browser ask whether a run has changed, and draw the calling fragment again if it has."""
    if active:
        background.keep_working()
    browser.rerun_on_change(None, snapshot.digest, POLL_SECONDS, LONGEST_SECONDS if active else None)


def share_text(statuses: Sequence[CellStatus], rehearsal: bool) -> str:
    """Return in Markdown how many values were measured, or rehearsed, and how many have each status."""
    count, what = sum(map(statuses.count, wanted(rehearsal))), "rehearsed" if rehearsal else "measured"
    return f"**{count:,} of {len(statuses):,} {what}:** {markup.md(counts_text(statuses))}."


def wanted(rehearsal: bool) -> tuple[CellStatus, ...]:
    """Return the statuses of values that have ours."""
    return ("rehearsed",) if rehearsal else STATES


@markup.fragment
def watched_papers(rehearsal: bool) -> None:
    """Draw a row per paper: how many of its values have each status, and the share that has ours."""
    snapshot = state.now(session.store(), rehearsal)
    by_table = state.every_cell(snapshot)
    cells = {work: [cell for t in tables(work) for cell in by_table[t.name]] for work in library.works()}
    st.markdown(share_text([cell.status for of_paper in cells.values() for cell in of_paper], rehearsal))
    rows = []
    for work, of_paper in cells.items():
        counts = Counter(cell.status for cell in of_paper)
        share = sum(counts[status] for status in wanted(rehearsal)) / len(of_paper)
        named = {"paper": library.find(work).title, "values": len(of_paper), "share": f"{share:.1%}"}
        rows.append(named | {status: counts[status] for status in STATUSES})
    st.dataframe(rows, hide_index=True, key="papers_counts")
    follow(snapshot, [c for of_paper in cells.values() for c in of_paper if c.active])


def draw_findings(table: PrintedTable) -> None:
    """List what the audits found in a table, each in a sentence."""
    every = [f for value in dict.fromkeys(table.values) for f in findings_of(value)]
    if not every:
        folder = library.find(table.paper).folder
        audited = (folder / library.FINDINGS_FILE).exists()
        again = f"This table was not audited; run `fedlens papers add '{folder}'` for that."
        st.caption("The audits found nothing in this table." if audited else again)
        return
    counts = Counter(finding.kind for finding in every)
    text = ", ".join(f"{counts[kind]} {kind}" for kind in FINDINGS if counts[kind])
    with st.expander(f"Audits: {text}", icon=":material/rule:"):
        st.caption(" ".join(f"**{markup.md(k)}**: {markup.md(FINDINGS[k])}." for k in FINDINGS if counts[k]))
        rows = [
            [markup.esc(finding.value.cell), markup.esc(finding.kind), markup.esc(finding.text)]
            for finding in every
        ]
        header = [("Cell", "prose"), ("Audit", "name"), ("Finding", "prose")]
        st.html(markup.table_html(header, rows, f"Findings of the audits: {counted(len(rows), 'row')}"))


def draw_notes(table: PrintedTable) -> None:
    """Draw the source, the protocol of the table's settings, notes and what was left out, folded."""
    paper = library.find(table.paper)
    with st.expander("Source, settings and notes", icon=":material/info:"):
        link = f" [{markup.md(paper.link)}]({paper.link})." if paper.link else ""
        source = f"{markup.md(paper.citation)}; read from {library.KINDS[paper.kind]}.{link}"
        st.markdown(f"**{markup.md(paper.full_title or paper.title)}.** {source}")
        if paper.read_from:
            st.markdown(f"Read from: {markup.md(paper.read_from)}.")
        st.markdown(f"Licence: {markup.md(paper.licence)}")
        rows = [
            [markup.esc(setting or "-"), markup.esc(text)]
            for setting in dict.fromkeys(value.setting for value in table.values)
            if (text := literature.protocol_text(paper.protocol_of(table.table, setting)))
        ]
        if rows:
            st.html(markup.table_html([("Setting", "name"), ("Protocol", "prose")], rows, "Settings"))
        if any(value.std is not None for value in table.values):
            st.markdown(f"±: {library.SPREADS[paper.spread_of(table.table)]}.")
        for note in paper.notes:
            st.markdown(f"- {markup.md(note)}")
        for note in paper.left_out:
            st.markdown(f"- Left out: {markup.md(note)}")


def page() -> None:
    """Draw the page."""
    for error in adding.use(session.store().path):
        markup.show_error(error)
    goto = st.session_state.pop("papers_goto", None)
    if goto is not None:
        st.session_state["papers_view"], st.session_state["paper_shown"] = "Tables", goto[0]
        st.session_state["table_shown"] = goto[1]
    st.title("Papers")
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        view = st.segmented_control(
            "View",
            VIEWS,
            default="Tables",
            required=True,
            key="papers_view",
            bind="query-params",
            label_visibility="collapsed",
        )
        rehearsal = st.toggle("Rehearsal", key="rehearsal", bind="query-params", help=REHEARSAL)
    if rehearsal:
        st.warning(REHEARSAL, icon=":material/theater_comedy:")
    queued = st.session_state.pop("papers_queued", 0)
    if queued:
        st.toast(f"{counted(queued, 'run')} queued", icon=":material/playlist_add_check:")
    added = st.session_state.pop("papers_added", "")
    if added:
        st.toast(markup.md(added), icon=":material/library_add_check:")
    if view == "All papers":
        watched_papers(rehearsal)
        return
    if view == "Add a paper":
        add.draw()
        return
    if view == "Baselines":
        pairs.watched_pair(pairs.choose_pair())
        return
    table = choose_table()
    paper = library.find(table.paper)
    st.caption(
        f"{markup.md(paper.title)}, {markup.md(table.title)}: {markup.md(table.caption)}. "
        f"Reported round of the paper: {paper.rule_text}."
    )
    if not has_runs(table.paper, table.table):
        reason = paper.why_not(table.table)
        st.info(f"FedLens cannot run this table: {markup.md(reason)}.", icon=":material/block:")
    elif session.is_narrow():  # the whole text would push the table off the screen
        st.caption(IN_SHORT, help=WHAT_IT_MEANS)
    else:
        st.caption(WHAT_IT_MEANS)
    watched_table(table, rehearsal)
    draw_findings(table)
    draw_notes(table)


session.through_app()
page()
