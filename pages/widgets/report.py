"""The report of a comparison, with its title, notes and parts, on every page that offers it."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from fedcore.base.progress import Progress, Work, result_of
from fedcore.results.exports import file_name
from fedcore.share.checked import ComparisonChoices, checked_comparison
from fedcore.share.content import PARTS, Wording, read_report
from fedcore.share.views import views
from fedcore.store import ExperimentRow, Store
from pages.widgets import markup

_File = TypeVar("_File", str, bytes)


def report_button(
    store: Store, experiments: Sequence[ExperimentRow], key: str, choice: ComparisonChoices | None = None
) -> None:
    """Draw the button behind which a report is worded, and made as one HTML file.

    Args:
        choice: as on the page Compare; default: the last round of finished runs.
    """
    with st.popover(
        "Report", icon=":material/description:", key=key, help="One HTML file that opens and prints anywhere"
    ):
        # A form, because the click that ends the typing of a title would otherwise draw the page again, and
        # a download that is requested meanwhile sometimes never arrives.
        with st.form(f"{key}_words", border=False):
            title = st.text_input(
                "Title", key="report_title", placeholder=", ".join(e.name for e in experiments)
            )
            notes = st.text_area(
                "Notes", key="report_notes", placeholder="Why these runs, and what follows from them"
            )
            titles = {name: view.title for name, view in views().items()}
            parts = st.multiselect(
                "Parts",
                PARTS,
                default=PARTS,
                key="report_parts",
                format_func=lambda part: titles.get(part, part.capitalize()),
            )
            asked = st.form_submit_button("Make report", type="primary", icon=":material/description:")
        ids = [e.id for e in experiments]
        if asked:
            st.session_state["report_wording"] = ids, Wording(title, notes, tuple(parts))

        def work() -> Work[str]:
            from fedcore.share.page import report_html

            with checked_comparison(store, ids, choice) as checked:
                report = yield from read_report(checked, wording(experiments))
            return (yield from report_html(report))

        if page := made("report_made", ([e.version for e in experiments], choice), asked, work):
            name = file_name(experiments, "report", "html")
            file_help = "One HTML file that opens and prints without FedLens or network"
            markup.download("Save report", page, name, f"{key}_file", help=file_help)


def made(key: str, subject: object, asked: bool, work: Callable[[], Work[_File]]) -> _File | None:
    """Return the file that was last made of a subject in this session; make it first, with a bar, if asked.

    Args:
        key: of the file in the session, which has one subject at a time.
    """
    if asked:
        st.session_state.pop(key, None)
        bar = st.empty()
        _show(bar, Progress("checking the runs", 0, 0))
        with markup.errors_shown():
            st.session_state[key] = subject, result_of(work(), partial(_show, bar))
        bar.empty()
    made_of, file = st.session_state.get(key, (None, None))
    return file if made_of == subject else None


def _show(bar: DeltaGenerator, step: Progress) -> None:
    counted = f": {step.done} of {step.total}" if step.total else ""
    bar.progress(step.done / max(step.total, 1), text=f"{step.message.capitalize()}{counted}")


def wording(experiments: Sequence[ExperimentRow]) -> Wording:
    """Return the title, notes and parts of the last report, if it was made of these experiments."""
    ids, given = st.session_state.get("report_wording", (None, Wording()))
    return given if ids == [e.id for e in experiments] else Wording()
