"""Star, tags and notes of runs, and how they are edited for one run or in a table of many."""

from collections.abc import Sequence
from typing import Any

import streamlit as st

from fedcore.base.errors import FedLensError
from fedcore.store import RunRow
from pages.widgets import markup, session

STAR = "★"
EDITOR = "marks_editor"


def marks_html(run: RunRow) -> str:
    """Return a run's star, tags and notes as HTML, the notes as hover text; empty without any."""
    parts = [f'<span aria-label="starred">{STAR}</span>'] if run.starred else []
    parts += [markup.esc(tag) for tag in run.tags]
    parts += [f'<span title="{markup.esc(run.notes)}">note</span>'] if run.notes else []
    return ", ".join(parts)


@markup.dialog("Star, tags and notes")
def dialog(run: RunRow) -> None:
    """Edit the marks of one run; its results cannot be edited."""
    starred = st.toggle("Star", value=run.starred, key=f"mark_star_{run.id}")
    tags = st.multiselect(
        "Tags", list(run.tags), default=list(run.tags), accept_new_options=True, key=f"mark_tags_{run.id}"
    )
    notes = st.text_area("Notes", value=run.notes, max_chars=10_000, key=f"mark_notes_{run.id}")
    if st.button("Save", type="primary", key="marks_saved"):
        session.store().runs.mark([run.id], starred=starred, tags=tags, notes=notes)
        st.rerun()


def editor(runs: Sequence[RunRow]) -> None:
    """Draw a table in which the marks of runs are edited; changes are stored at once."""
    used_tags = sorted({tag for run in runs for tag in run.tags})
    rows: dict[str, list[Any]] = {
        "Star": [r.starred for r in runs],
        "Run": [r.id for r in runs],
        "Method": [r.label for r in runs],
        "Seed": [r.seed for r in runs],
        "Tags": [list(r.tags) for r in runs],
        "Notes": [r.notes for r in runs],
    }
    st.data_editor(
        rows,
        key=EDITOR,
        hide_index=True,
        disabled=True if not session.writable() else ["Run", "Method", "Seed"],
        column_config={
            "Star": st.column_config.CheckboxColumn(width="small"),
            "Tags": st.column_config.MultiselectColumn(options=used_tags, accept_new_options=True),
            "Notes": st.column_config.TextColumn(width="large", max_chars=10_000),
        },
        on_change=_store,
        args=([r.id for r in runs],),
    )


def _store(ids: Sequence[int]) -> None:
    changes: dict[int, dict[str, Any]] = (st.session_state.get(EDITOR) or {}).get("edited_rows", {})
    names = {"Star": "starred", "Tags": "tags", "Notes": "notes"}
    try:
        for row, cells in changes.items():
            given = {names[name]: value for name, value in cells.items() if value is not None}
            session.store().runs.mark([ids[int(row)]], **given)
    except FedLensError as error:
        st.toast(markup.md(str(error)), icon=":material/error:")
