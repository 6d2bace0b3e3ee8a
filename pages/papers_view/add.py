"""The view Add a paper of the page Papers: paste or upload a table, map its columns, see it, save it."""

from collections.abc import Mapping, Sequence
from typing import get_args

import streamlit as st

from fedcore.base.errors import FedLensError
from fedcore.base.progress import counted
from fedcore.papers import adding, library, pasted
from fedcore.papers.cells import TableCell
from fedcore.papers.layout import tables, tables_of
from fedcore.papers.library import KINDS, PAPER_FILE, Protocol, SourceKind
from fedcore.papers.pasted import ROLES, PastedColumn, PastedTable, Role
from fedcore.papers.published import PublishedValue
from pages.papers_view.table import table_html
from pages.widgets import markup, session
from pages.widgets.grid import draw_html

NEW = ""
LICENCE = "Printed numbers only, which are facts; the text remains its authors'."
EXAMPLE = "Method\tCaltech101\tDTD\tAvg\nPromptFL\t91.30 ± 0.20\t53.74\t72.52"
WHAT_TO_PASTE = (
    "One line of headings and a line per row, copied from a page, a spreadsheet, Markdown or LaTeX, or a CSV "
    "file. A cell is a number, 83.21 ± 0.14, or - if nothing is printed."
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
MOST_COLUMNS = 40


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
    table = _table()
    if table is None:
        return
    common, setting = _common()
    columns = [] if table.is_long else _columns(table)
    with markup.errors_shown():
        values = pasted.values(table, columns, common, key or "draft")
        _preview(fields, key or "draft", common, values)
        if st.button("Save", type="primary", icon=":material/save:", key="add_save"):
            _save(fields, key, values, common, setting)


def _source() -> tuple[dict[str, object], str]:
    """Draw the fields that identify the source; return those of its ``paper.toml``, and its key."""
    st.subheader("Source", anchor=False)
    added = {p.key: p for p in library.papers().values() if not p.ships}
    chosen = NEW
    if added:
        chosen = st.selectbox(
            "Add to",
            [NEW, *added],
            key="add_to",
            format_func=lambda k: added[k].title if k else "a new paper",
        )
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
        "why_not_run": "added without runs",
    }
    return fields, adding.key_of(title) if title else ""


def _table() -> PastedTable | None:
    """Draw the table's text and upload, and return the table; None while it is missing or cannot be read."""
    upload = st.file_uploader("Upload a file", type=["csv", "tsv", "txt", "md", "tex"], key="add_file")
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
        return pasted.read(text) if text.strip() else None
    return None


def _common() -> tuple[dict[str, str], dict[str, str]]:
    """Draw the fields that all cells share: table, setting, backbone, metric, and the source's protocol."""
    left, middle, right = st.columns(3)
    one_data_set = "If all columns are of one data set"
    common = {
        "table": left.text_input("Table", value="1", key="add_table", help="As printed: 3, A.1"),
        "caption": middle.text_input("Caption", key="add_caption"),
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


def _columns(table: PastedTable) -> list[PastedColumn]:
    """Draw a guess of each column's content, and return the reader's corrections."""
    st.markdown("**Columns.** The content of each column is guessed from its cells; correct wrong guesses.")
    if len(table.head) > MOST_COLUMNS:
        raise FedLensError(f"the table has more than {MOST_COLUMNS} columns; divide it", "columns")
    chosen = []
    for i, (title, guessed) in enumerate(zip(table.head, pasted.guess(table), strict=True)):
        name = f"add_column_{i}_{title}"
        with st.container(horizontal=True, vertical_alignment="bottom"):
            role: Role = st.selectbox(
                f"Column {i + 1}: {markup.md(title) or 'without a heading'}",
                list(ROLES),
                key=name,
                index=list(ROLES).index(guessed.role),
                format_func=lambda r: ROLES[r],
                width=260,
            )
            if role == "value":
                dataset = st.text_input("Data set", value=guessed.dataset, key=f"{name}_dataset", width=190)
                target = st.text_input(
                    "Domain or class group",
                    value=guessed.target,
                    key=f"{name}_target",
                    width=190,
                    help="A domain, base, new or all; avg for the mean over clients or domains",
                )
                metric = st.text_input(
                    "Metric", value=guessed.metric, key=f"{name}_metric", width=190, placeholder="as above"
                )
                chosen.append(PastedColumn(role, dataset.strip(), target.strip(), metric.strip()))
            else:
                chosen.append(PastedColumn(role))
    return chosen


def _preview(
    fields: Mapping[str, object], key: str, common: Mapping[str, str], values: Sequence[PublishedValue]
) -> None:
    """Draw the tables as they will be shown, under a placeholder while the source has no title."""
    notes = {common["table"]: {"caption": common["caption"]}}
    completed = {**fields, "tables": notes} | {f: fields[f] or "draft" for f in ("title", "citation")}
    place = library.added_folder(session.store().path) / key
    paper = library.paper_from(completed, place, PAPER_FILE)
    st.subheader("As printed", anchor=False)
    by_value = {value: TableCell(value, "not implemented") for value in values}
    for table in tables_of(paper, values):
        st.caption(f"{markup.md(table.title)}: {markup.md(table.caption)}")
        html = table_html(table, by_value, lambda cell: None, lambda value: ())
        draw_html(html, f"add_preview_{table.name}")
    st.caption(f"{counted(len(values), 'value')}; the audits check them when you save.")


def _save(
    fields: Mapping[str, object],
    key: str,
    values: Sequence[PublishedValue],
    common: Mapping[str, str],
    setting: Mapping[str, str],
) -> None:
    if not fields["title"]:
        raise FedLensError("give the source a short title", "title")
    if not fields["citation"]:
        raise FedLensError("give the source's citation, so that others find it", "citation")
    if setting and not common["setting"]:
        raise FedLensError("name the setting that you describe, such as 'Dir(0.3), 10 clients'", "setting")
    notes = {table: {"caption": common["caption"]} for table in dict.fromkeys(v.table for v in values)}
    settings = {common["setting"]: setting} if setting else {}
    paper, found = adding.write(key, fields, values, notes, settings, session.store().path)
    first = values[0].table
    made = next(t for t in tables(paper.work) if t.paper == paper.key and t.table == first)
    st.session_state["papers_goto"] = (paper.work, made.name)
    counts = f"{counted(len(values), 'value')} saved, {counted(len(found), 'finding')} of the audits"
    st.session_state["papers_added"] = f"{paper.title}: {counts}"
    st.rerun()
