"""The page Papers: the tables as printed, with our values below each, and a row per paper."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial

import streamlit as st

from fedcore.base.progress import counted, first_few
from fedcore.papers import adding, layout, library, literature, mini
from fedcore.papers.cells import STATUSES, CellStatus, TableCell, counts_text, has_runs
from fedcore.papers.layout import PrintedTable, tables
from fedcore.papers.literature import Pair
from fedcore.papers.published import FINDINGS, WHOLE_SETS, PublishedValue, findings_of
from fedcore.results.charts.ranks import SourceValue, strip
from fedcore.results.statistics import group_by
from fedcore.results.summary import STATES
from pages.papers_view import add, fill
from pages.papers_view.table import our_line, source_html, table_html
from pages.widgets import background, browser, charts, markup, session
from pages.widgets.browser import draw_html
from pages.widgets.markup import esc

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
    f"In a rehearsal, a miniature model fills the same table: {mini.ROUNDS} rounds on drawings, {mini.SEEDS} "
    f"seeds, and learning rates {mini.RATE} times as high, up to {mini.LARGEST_RATE}, so that methods "
    "learn. It shows that everything runs, but our numbers say nothing about the paper. Data sets that are "
    "the same in a rehearsal share its runs."
)
NO_AVERAGES = (
    "Sources measure different things even where their settings look alike, so nothing is averaged over "
    "them. A dash means that the source does not say."
)
SHOWN_VARIANTS = 8


def choose_table() -> PrintedTable:
    """Draw the choice of a paper and one of its tables, kept in the URL."""
    books = {table.name: book for book in library.works() for table in tables(book)}
    asked = st.query_params.get("table", st.session_state.get("papers_last", ""))
    if "paper_shown" not in st.session_state and asked in books:
        st.session_state["paper_shown"], st.session_state["table_shown"] = books[asked], asked
    if st.session_state.get("paper_shown") not in library.works():
        st.session_state["paper_shown"] = library.works()[0]
    left, right = st.columns([2, 3], vertical_alignment="bottom")
    works = {work: library.find(work).title for work in library.works()}
    book = left.selectbox("Paper", list(works), key="paper_shown", format_func=works.__getitem__)
    named = {table.name: table for table in tables(book)}
    if st.session_state.get("table_shown") not in named:
        st.session_state["table_shown"] = next(iter(named))
    titles = {table.name: f"{table.title}: {table.caption}" for table in named.values()}
    chosen = right.selectbox("Table", list(titles), key="table_shown", format_func=titles.__getitem__)
    st.session_state["papers_last"] = st.query_params["table"] = chosen
    return named[chosen]


@markup.fragment
def watched_table(table: PrintedTable, rehearsal: bool) -> None:
    """Draw a table, and draw it again whenever a run has changed."""
    snapshot = fill.now(session.store(), rehearsal)
    by_value = snapshot.cells(table.values)
    cells = [by_value[value] for value in table.values]
    runs = has_runs(table.paper, table.table)
    if runs:
        st.markdown(share_text([c.status for c in cells], rehearsal))
    if rehearsal and layout.shows_nothing(table, cells):
        st.info(mini.CANNOT_SHOW, icon=":material/balance:")
    for task in session.store().tasks.recent("fill", fill.LISTED):
        if task.key.startswith(f"{table.name} "):
            background.show_task(task, "Get and queue")
    with st.container(horizontal=True):
        fillable = any(cell.source is not None for cell in cells)  # computed values need no run
        if fillable and st.button("Fill the table", icon=":material/playlist_add:", key="papers_fill"):
            st.session_state[fill.OPEN] = (table.name, "all")
        as_csv, as_tex = (layout.file_name(table, rehearsal, suffix) for suffix in ("csv", "tex"))
        csv = partial(layout.table_csv, cells, snapshot.cost)
        markup.download("CSV", csv, as_csv, "papers_csv")
        about_cells = "Each cell contains the printed value, ours and the difference"
        latex = partial(layout.table_latex, table, by_value)
        markup.download("LaTeX", latex, as_tex, "papers_latex", help=about_cells)
    chosen = draw_html(table_html(table, by_value, snapshot.cost, findings_of), "papers_table")
    if chosen is not None:
        st.session_state[fill.OPEN] = (table.name, chosen)
    lacking = {c.value.method: c.reason for c in cells if c.status == "not implemented"} if runs else {}
    for method, why in lacking.items():
        st.caption(f"**{markup.md(method)}** cannot be run: {markup.md(why)}.")
    fill.draw_readings(table, snapshot)
    about = st.session_state.get(fill.OPEN)
    if about is not None and about[0] == table.name:
        fill.open_dialog(table, about[1], rehearsal)
    else:
        follow(snapshot, [c for c in cells if c.active])


def follow(snapshot: fill.Snapshot, active: Sequence[object]) -> None:
    """Let the browser ask whether a run has changed, and draw the calling fragment again if it has."""
    if active:
        background.keep_working()
    browser.rerun_on_change(
        None, snapshot.digest, browser.POLL_SECONDS, browser.LONGEST_SECONDS if active else None
    )


def with_ours(statuses: Sequence[CellStatus], rehearsal: bool) -> int:
    """Return how many values have ours, measured or rehearsed."""
    return sum(map(statuses.count, ("rehearsed",) if rehearsal else STATES))


def share_text(statuses: Sequence[CellStatus], rehearsal: bool) -> str:
    """Return in Markdown how many values were measured, or rehearsed, and how many have each status."""
    share = f"{with_ours(statuses, rehearsal):,} of {len(statuses):,}"
    return f"**{share} {'rehearsed' if rehearsal else 'measured'}:** {markup.md(counts_text(statuses))}."


@markup.fragment
def watched_papers(rehearsal: bool) -> None:
    """Draw a row per paper: how many of its values have each status, and the share that has ours."""
    snapshot = fill.now(session.store(), rehearsal)
    by_table = fill.every_cell(snapshot)
    every, rows = [cell for cells in by_table.values() for cell in cells], []
    st.markdown(share_text([cell.status for cell in every], rehearsal))
    for work in library.works():
        statuses = [cell.status for table in tables(work) for cell in by_table[table.name]]
        share = with_ours(statuses, rehearsal) / len(statuses)
        named = {"paper": library.find(work).title, "values": len(statuses), "share": f"{share:.1%}"}
        rows.append(named | {status: statuses.count(status) for status in STATUSES})
    st.dataframe(rows, hide_index=True, key="papers_counts")
    follow(snapshot, [c for c in every if c.active])


def choose_pair() -> Pair:
    """Draw the choice of a baseline and a data set, kept in the URL; pairs of several sources come first."""
    every, several = literature.pairs(), literature.several()
    left, middle, right = st.columns([3, 3, 2], vertical_alignment="bottom")
    about = f"{len(several)} of {len(every):,} pairs of baseline and data set have more than one source"
    only = right.toggle("Several sources", value=True, key="pairs_several", help=about)
    offered = several if only else every
    asked = (st.query_params.get("baseline", ""), st.query_params.get("dataset", ""))
    if asked in every and "pair_baseline" not in st.session_state:
        st.session_state["pair_baseline"], st.session_state["pair_dataset"] = asked
        offered = offered if asked in offered else every
    counts = Counter(b for b, _ in several)
    baselines = sorted({b for b, _ in offered}, key=lambda b: (-counts[b], b.lower()))
    if st.session_state.get("pair_baseline") not in baselines:
        st.session_state["pair_baseline"] = "PromptFL" if "PromptFL" in baselines else baselines[0]
    baseline = left.selectbox("Baseline", baselines, key="pair_baseline")
    titles = {d: f"{d} ({counted(len(every[b, d].works), 'source')})" for b, d in offered if b == baseline}
    if st.session_state.get("pair_dataset") not in titles:
        st.session_state["pair_dataset"] = "Food101" if "Food101" in titles else next(iter(titles))
    dataset = middle.selectbox("Data set", list(titles), key="pair_dataset", format_func=titles.__getitem__)
    st.query_params["baseline"], st.query_params["dataset"] = baseline, dataset
    return every[baseline, dataset]


@markup.fragment
def watched_pair(pair: Pair) -> None:
    """Draw the values of a pair with their protocols, grouped by what they measure."""
    snapshot = fill.now(session.store(), rehearsal=False)
    st.markdown(f"**{markup.md(pair.text)}**")
    kinds = ", ".join(
        counted(n, "third-party page" if kind == "third party" else kind) for kind, n in pair.kinds.items()
    )
    st.caption(f"Sources by kind: {markup.md(kinds)}. {NO_AVERAGES}")
    if differ := literature.differences(pair.comparable_values):
        rows = [
            [esc(part.capitalize()), esc(first_few(variants, SHOWN_VARIANTS, " | "))]
            for part, variants in differ.items()
        ]
        with st.expander("Differences between the settings", icon=":material/difference:"):
            st.html(markup.table_html([("Part", "name"), ("Variants", "prose")], rows, "Differences"))
    if len(pair.comparable_values) > 1:
        points = []
        for v in pair.comparable_values:
            about = ", ".join(filter(None, (v.source, v.setting, v.backbone or "backbone not stated")))
            points.append(SourceValue(library.find(v.paper).title, literature.quantity(v), v.value, about))
        alt = f"{pair.text} A mark per printed value, a row per source; the marker shows what is measured."
        charts.draw(strip(points, "Printed accuracy (%)", session.theme(), alt), "pair_chart")
    chosen = draw_html(pair_html(pair, snapshot.cells(pair.values)), "pair_table")
    if chosen is not None:
        name = chosen.partition(" ")[2]
        work = next(work for work in library.works() if name in {t.name for t in tables(work)})
        st.session_state["papers_goto"] = (work, name)
        st.rerun()


def pair_html(pair: Pair, by_value: Mapping[PublishedValue, TableCell]) -> str:
    """Return the values of a pair as an HTML table, a group for each quantity that is measured."""
    body, head = "", ""
    for quantity, values in group_by(dict.fromkeys(pair.values), literature.quantity).items():
        lines = [pair_cells(value, by_value[value]) for value in values]
        head = "".join(f'<th scope="col">{esc(heading)}</th>' for heading in lines[0])
        sources = counted(len({library.find(v.paper).work for v in values}), "source")
        title = f"{quantity}: {sources}, {literature.span([v.value for v in values])}"
        body += f'<tr class="group"><th colspan="{len(lines[0])}" scope="colgroup">{esc(title)}</th></tr>'
        numeric = [' class="number"' if heading in ("Printed", "Ours") else "" for heading in lines[0]]
        for cells in lines:
            texts = zip(numeric, cells.values(), strict=True)
            body += f"<tr>{''.join(f'<td{css}>{cell}</td>' for css, cell in texts)}</tr>"
    return (
        f'<div class="scroll pairs" tabindex="0" role="region" aria-label="{esc(pair.text)}">'
        f'<table aria-label="{esc(pair.baseline)} on {esc(pair.dataset)}"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def pair_cells(value: PublishedValue, cell: TableCell) -> dict[str, str]:
    """Return the row of a value as HTML by heading: the value, ours, its protocol and its audits."""
    paper, stated = library.find(value.paper), literature.protocol(value)
    named = next((t.name for t in tables(paper.work) if t.paper == paper.key and t.table == value.table), "")
    target = "" if value.target in WHOLE_SETS else f" ({value.target})"
    protocol = {
        "Backbone": value.backbone,
        "Training and clients": literature.protocol_text(
            stated.model_copy(update={"shots": "", "rounds": ""})
        ),
        "Images per class": stated.shots,
        "Rounds": stated.rounds,
        "Selection": stated.selection or (paper.rule_text if paper.reported_round else ""),
        "Runs": stated.seeds,
        "Kind of source": paper.kind,
    }
    found = (f"{'⚠ ' * f.warns}{esc(f.kind)}: {esc(f.text)}" for f in findings_of(value))
    return {
        "Source": f'<button data-choice="table {esc(named)}" tabindex="-1">{esc(paper.title)}</button>',
        "Table": f"{esc(paper.title_of(value.table))}{esc(target)}",
        "Printed": f"<b>{esc(value.text)}</b>",
        "Ours": our_line(cell) if cell.source is not None else "-",
        **{heading: esc(text or "-") for heading, text in protocol.items()},
        "Audits": "<br>".join(found) or "-",
    }


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
        if any(f.value.table not in library.find(f.value.paper).compared for f in every):
            st.caption("Nobody has compared these with the source: look there before you repeat one.")
        rows = [[esc(f.value.cell), esc(f.kind), esc(f.text)] for f in every]
        header = [("Cell", "prose"), ("Audit", "name"), ("Finding", "prose")]
        st.html(markup.table_html(header, rows, f"Findings of the audits: {counted(len(rows), 'row')}"))


def draw_notes(table: PrintedTable) -> None:
    """Draw the source, the protocol of the table's settings, notes and what was left out, folded."""
    paper = library.find(table.paper)
    with st.expander("Source, settings and notes", icon=":material/info:"):
        st.html(source_html(paper))
        st.markdown(f"Licence: {markup.md(paper.licence)}")
        rows = [
            [esc(setting or "-"), esc(text)]
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
    if goto := st.session_state.pop("papers_goto", None):
        st.session_state["papers_view"] = "Tables"
        st.session_state["paper_shown"], st.session_state["table_shown"] = goto
    st.title("Papers")
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        options = {"default": "Tables", "required": True, "label_visibility": "collapsed"}
        view = session.choose(st.segmented_control, "View", VIEWS, "papers_view", **options)
        rehearsal = st.toggle("Rehearsal", key="rehearsal", bind="query-params", help=REHEARSAL)
    if rehearsal:
        st.warning(REHEARSAL, icon=":material/theater_comedy:")
    if queued := st.session_state.pop("papers_queued", 0):
        st.toast(f"{counted(queued, 'run')} queued", icon=":material/playlist_add_check:")
    if added := st.session_state.pop("papers_added", ""):
        st.toast(markup.md(added), icon=":material/library_add_check:")
    if view == "All papers":
        watched_papers(rehearsal)
        return
    if view == "Add a paper":
        add.draw()
        return
    if view == "Baselines":
        watched_pair(choose_pair())
        return
    markup.undo_bar()
    table = choose_table()
    paper = library.find(table.paper)
    if not paper.ships:
        add.manage(table)
    about = f"{markup.md(paper.title)}, {markup.md(table.title)}: {markup.md(table.caption)}."
    if table.cells:
        st.caption(f"{about} This table has no results that runs could give.")
        head, *rows = table.cells
        texts = [[esc(text) for text in row] for row in rows]
        st.html(markup.table_html([(name, "prose") for name in head], texts, table.title))
        draw_notes(table)
        return
    st.caption(f"{about} Reported round of the paper: {paper.rule_text}.")
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
