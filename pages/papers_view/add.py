"""The view Add a paper of the page Papers: paste or upload a table, map its columns, see it, save it."""

from collections.abc import Sequence
from functools import partial
from typing import get_args

import pandas as pd
import streamlit as st

from fedcore.base.errors import FedLensError
from fedcore.base.progress import counted
from fedcore.methods import registry
from fedcore.papers import adding, library, pasted
from fedcore.papers.cells import TableCell
from fedcore.papers.grids import EMPTY, Grid
from fedcore.papers.layout import PrintedTable, tables, tables_of
from fedcore.papers.library import KINDS, PAPER_FILE, Protocol, SourceKind
from fedcore.papers.pasted import ROLES, PastedColumn, Reading
from fedcore.papers.published import values_text
from pages.papers_view.table import table_html
from pages.widgets import markup, session
from pages.widgets.browser import draw_html
from pages.widgets.markup import esc, scrolled_table

NEW = ""
LICENCE = "Printed numbers only, which are facts; the text remains its authors'."
EXAMPLE = "Method\tCaltech101\tDTD\tAvg\nPromptFL\t91.30 ± 0.20\t53.74\t72.52"
WHAT_TO_PASTE = (
    "LaTeX with its commands, Markdown, HTML, CSV, or a table copied from a page, a spreadsheet or a PDF. "
    "Headings may have several lines. A cell is a number, 83.21 ± 0.14, or - if nothing is printed."
)
SETTING_FIELDS = {
    "training": "Training",
    "partition": "Division among clients",
    "clients": "Clients",
    "shots": "Images per class",
    "rounds": "Rounds",
    "seeds": "Runs behind a value",
    "selection": "Reported round",
    "detail": "Other detail",
}
"""Part of a protocol -> its label in the form."""
SHOWN_FIELDS = {
    "dataset": "Data set",
    "method": "Method",
    "setting": "Setting",
    "backbone": "Backbone",
    "target": "Domain or class group",
    "metric": "Metric",
}
"""Field that the heading of a column of values may give -> its label in the form."""


def draw() -> None:
    """Draw the form; saving writes the paper's folder and opens the new table."""
    if not session.writable():
        st.info("The database is read-only, so no paper can be added to it.", icon=":material/lock:")
        return
    folder = library.added_folder(session.store().path)
    st.caption(
        f"A paper is saved as a folder in {markup.md(str(folder))}; docs/papers.md describes its files, "
        "which can also be written by hand and added with `fedlens papers add FOLDER`."
    )
    fields, key = _source()
    st.subheader("Table", anchor=False)
    grids = _grids()
    if not grids:
        return
    common, setting = _common(grids[0].caption)
    with markup.errors_shown():
        columns = [[] if pasted.is_long(grid) else _columns(grid) for grid in grids]
        name = key or "draft"
        read = [pasted.values(g, c, common, name) for g, c in zip(grids, columns, strict=True)]
        values = pasted.joined(read, name)
        notes = {table: {"caption": common["caption"]} for table in dict.fromkeys(v.table for v in values)}
        completed = {**fields, "tables": notes} | {f: fields[f] or "draft" for f in ("title", "citation")}
        paper = library.paper_from(completed, folder / name, PAPER_FILE)
        by_value = {value: TableCell(value, "not implemented") for value in values}
        source, shown = st.columns(2)
        with source:
            st.subheader("As pasted", anchor=False)
            for grid, reading in zip(grids, read, strict=True):
                st.html(_source_html(grid, reading))
        with shown:
            st.subheader("As it will be shown", anchor=False)
            for table in tables_of(paper, values):
                st.caption(f"{markup.md(table.title)}: {markup.md(table.caption)}")
                html = table_html(table, by_value, lambda cell: None, lambda value: ())
                draw_html(html, f"add_preview_{table.name}")
        dropped = list(dict.fromkeys(text for reading in read for text in reading.dropped))
        if dropped:
            with st.expander(f"Left out or taken off: {len(dropped)}", expanded=True):
                st.markdown("\n".join(f"- {markup.md(text)}" for text in dropped))
        st.caption(f"{counted(len(values), 'value')}; the audits check them when you save.")
        if not st.button("Save", type="primary", icon=":material/save:", key="add_save"):
            return
        if not fields["title"]:
            raise FedLensError("give the source a short title", "title")
        if not fields["citation"]:
            raise FedLensError("give the source's citation, so that others find it", "citation")
        if setting and not common["setting"]:
            what = "name the setting that you describe, such as 'Dir(0.3), 10 clients'"
            raise FedLensError(what, "setting")
        settings = {common["setting"]: setting} if setting else {}
        paper, found = adding.write(key, fields, values, notes, settings, session.store().path)
        first = values[0].table
        made = next(t for t in tables(paper.work) if t.paper == paper.key and t.table == first)
        st.session_state["papers_goto"] = (paper.work, made.name)
        counts = f"{counted(len(values), 'value')} saved, {counted(len(found), 'finding')} of the audits"
        st.session_state["papers_added"] = f"{paper.title}: {counts}"
        st.rerun()


def manage(table: PrintedTable) -> None:
    """Draw the buttons that edit a table of an added paper, match it with the user's runs and delete it."""
    with st.container(horizontal=True):
        st.button("Edit", icon=":material/edit:", on_click=_edit, args=(table,), key="table_edit")
        if markup.write_button("Delete", "delete", "table_delete"):
            db = session.store().path
            former = adding.remove_table(table.paper, table.table, db)
            markup.offer_undo(f"{table.title} deleted", partial(adding.put, table.paper, former, db))
            st.rerun()
    if box := markup.opened("Match with my runs", "link", "table_match"):
        with box, markup.errors_shown():
            _match(table)


def _edit(table: PrintedTable) -> None:
    """Callback: fill the form with a table, one value a line; saving replaces it."""
    filled = {
        "to": table.paper,
        "text": values_text(table.values),
        "table": table.table,
        "caption": table.caption,
    }
    st.session_state.update({f"add_{name}": value for name, value in filled.items()})
    st.session_state["papers_view"] = "Add a paper"


def _match(table: PrintedTable) -> None:
    """Ask which methods of an experiment measure which rows of a table."""
    experiments = session.store().experiments
    mine = {e.id: e.text for e in experiments.titles() if not e.archived}
    left, middle, right = st.columns(3)
    number = left.selectbox("Experiment", list(mine), key="match_experiment", format_func=mine.__getitem__)
    row = None if number is None else experiments.get(number)
    if row is None or row.config.sweep or row.config.tuning or all(r.origin != "engine" for r in row.runs):
        st.info("Choose an experiment that FedLens trained, without a sweep or a search.")
        return
    config = row.config
    dataset = middle.selectbox("Data set as printed", list(dict.fromkeys(v.dataset for v in table.values)))
    settings = list(dict.fromkeys(v.setting for v in table.values if v.dataset == dataset))
    setting = right.selectbox("Setting as printed", settings, format_func=lambda text: text or "not named")
    titles = [entry.label or registry.title(entry.name) for entry in config.methods]
    places = {title.casefold(): i for i, title in enumerate(titles)}
    offered = {f"{i + 1}: {title}": i for i, title in enumerate(titles)}
    shown = (v for v in table.values if (v.dataset, v.setting) == (dataset, setting))
    printed = list(dict.fromkeys(v.method for v in shown))
    guessed = [places.get(name.casefold()) for name in printed]
    mine_beside = [None if i is None else [*offered][i] for i in guessed]
    edited = st.data_editor(
        pd.DataFrame({"As printed": printed, "My method": mine_beside}),
        key=f"match_rows_{number}_{dataset}_{setting}",
        disabled=["As printed"],
        hide_index=True,
        placeholder="none",
        column_config={"My method": st.column_config.SelectboxColumn(options=list(offered))},
    )
    by_row = zip(edited["As printed"], edited["My method"], strict=True)
    chosen = {name: offered[method] for name, method in by_row if method in offered}
    if markup.write_button("Match", "link", "match_confirmed", bool(chosen), type="primary"):
        adding.match(table, dataset, setting, config, chosen, session.store().path)
        st.rerun()


def _source() -> tuple[dict[str, object], str]:
    """Draw the fields that identify the source; return those of its ``paper.toml``, and its key."""
    st.subheader("Source", anchor=False)
    added = {p.key: p for p in library.papers().values() if not p.ships}
    titles, chosen = {NEW: "a new paper"} | {key: paper.title for key, paper in added.items()}, NEW
    if added:
        chosen = st.selectbox("Add to", list(titles), key="add_to", format_func=titles.__getitem__)
    if chosen:
        paper = added[chosen]
        internal = {"key", "folder", "tables", "settings"}
        return paper.model_dump(mode="json", exclude_defaults=True, exclude=internal), chosen
    left, right = st.columns(2)
    title = left.text_input("Short title", key="add_title", placeholder="FedExample", max_chars=80).strip()
    kind = right.selectbox(
        "Kind of source", get_args(SourceKind), key="add_kind", format_func=lambda k: f"{k}: {KINDS[k]}"
    )
    citation = left.text_input("Citation", key="add_citation", placeholder="Name et al., Conference 2026")
    link = right.text_input("Link", key="add_link", placeholder="https://arxiv.org/abs/...")
    licence = st.text_input("Licence note", value=LICENCE, key="add_licence")
    fields = {
        "title": title,
        "citation": citation.strip(),
        "link": link.strip(),
        "licence": licence.strip(),
        "kind": kind,
        "why_not_run": "no runs of yours are matched with it yet",
    }
    return fields, adding.key_of(title) if title else ""


def _grids() -> Sequence[Grid]:
    """Draw the text, upload and choice of tables; return the chosen ones, none while there is no text."""
    kinds = ["csv", "tsv", "txt", "md", "tex", "html"]
    upload = st.file_uploader("Upload a file", type=kinds, key="add_file")
    text = st.text_area(
        "Or paste the table", key="add_text", height=180, placeholder=EXAMPLE, help=WHAT_TO_PASTE
    )
    with markup.errors_shown():
        if upload is not None:
            try:
                text = upload.getvalue().decode("utf-8-sig")
            except UnicodeDecodeError:
                why = "the file is not UTF-8 text; save it as UTF-8, or paste it"
                raise FedLensError(why, "file") from None
        found = pasted.read(text) if text.strip() else ()
        if len(found) < 2:
            return found
        chosen = st.multiselect(
            "Tables in the text",
            range(len(found)),
            [i for i, grid in enumerate(found) if grid.source == found[0].source],
            format_func=lambda i: f"{i + 1}: {found[i].caption or ', '.join(found[i].titles):.80}",
            key=f"add_grids_{hash(text)}",
            help="Those that are parts of one table, such as one below the other, are saved together.",
        )
        return [found[i] for i in chosen]
    return []


def _common(caption: str) -> tuple[dict[str, str], dict[str, str]]:
    """Draw the fields that all cells share: table, setting, backbone, metric, and the source's protocol."""
    left, middle, right = st.columns(3)
    one_data_set = "If all columns are of one data set"
    common = {
        "table": left.text_input("Table", value="1", key="add_table", help="As printed: 3, A.1"),
        "caption": middle.text_input("Caption", key="add_caption", placeholder=caption) or caption,
        "setting": right.text_input("Setting", key="add_setting", placeholder="Dir(0.3), 10 clients"),
        "backbone": left.text_input("Backbone", key="add_backbone", placeholder="ViT-B-16"),
        "metric": middle.text_input("Metric", value="accuracy", key="add_metric"),
        "dataset": right.text_input("Data set", key="add_dataset", help=one_data_set),
    }
    setting: dict[str, str] = {}
    with st.expander("How the source ran its experiments", icon=":material/tune:"):
        places = st.columns(4)
        for i, (field, label) in enumerate(SETTING_FIELDS.items()):
            about = Protocol.model_fields[field].description or None
            setting[field] = places[i % 4].text_input(label, key=f"add_{field}", help=about).strip()
    stripped = {name: text.strip() for name, text in common.items()}
    return stripped, {field: text for field, text in setting.items() if text}


def _columns(grid: Grid) -> list[PastedColumn]:
    """Draw a guess of each column's content, and return the reader's corrections."""
    st.markdown(
        "**Columns.** What each column holds is guessed from its heading and cells; correct wrong guesses."
    )
    guessed = pasted.guess(grid)
    rows = pd.DataFrame(
        {"Column": title or f"{i + 1}, without a heading", "Content": ROLES[column.role]}
        | {label: column.names.get(field, "") for field, label in SHOWN_FIELDS.items()}
        for i, (title, column) in enumerate(zip(grid.titles, guessed, strict=True))
    )
    content = st.column_config.SelectboxColumn(options=list(ROLES.values()), required=True)
    edited = st.data_editor(
        rows,
        key=f"add_columns_{hash(grid)}",
        disabled=["Column"],
        column_config={"Content": content},
        hide_index=True,
    )
    roles = {label: role for role, label in ROLES.items()}
    return [
        PastedColumn(
            roles[row["Content"]],
            {f: str(row[label] or "").strip() for f, label in SHOWN_FIELDS.items() if row[label]},
        )
        for row in edited.to_dict("records")
    ]


def _source_html(grid: Grid, reading: Reading) -> str:
    """Return the source's cells; a value says as what it was read, and what gives none is struck through."""
    html = "".join(
        "<tr>" + "".join(f"<th>{esc(text)}</th>" for text in line) + "</tr>" for line in grid.heads
    )
    for i, line in enumerate(grid.lines):
        cells = ""
        for j, text in enumerate(line):
            value = reading.places.get((i, j))
            said = f"{value.cell}: {value.text}" if value else ""
            kept = value or j in reading.labels or text in EMPTY
            cells += f'<td title="{esc(said)}">{esc(text) if kept else f"<s>{esc(text)}</s>"}</td>'
        html += f"<tr>{cells}</tr>"
    return scrolled_table(html, "As pasted")
