"""The report of a comparison, with its title, notes and parts, on every page that offers it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import streamlit as st

from fedcore.reports.checked import ComparisonChoices, checked_comparison
from fedcore.reports.content import PARTS, Wording, read_report
from fedcore.reports.views import views
from fedcore.results.exports import file_name
from fedcore.store import ExperimentRow, Store


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
        names = ", ".join(e.name for e in experiments)
        st.text_input("Title", key="report_title", placeholder=names, on_change=_remember)
        st.text_area(
            "Notes",
            key="report_notes",
            placeholder="Why these runs, and what follows from them",
            on_change=_remember,
        )
        titles = {name: view.title for name, view in views().items()}
        st.multiselect(
            "Parts",
            PARTS,
            default=PARTS,
            key="report_parts",
            on_change=_remember,
            format_func=lambda part: titles.get(part, part.capitalize()),
        )
        wording = latest_wording()

        def made() -> str:
            from fedcore.reports.page import report_html

            with checked_comparison(store, [e.id for e in experiments], choice) as checked:
                return report_html(read_report(checked, wording()))

        st.download_button(
            "Save report",
            made,
            file_name(experiments, "report", "html"),
            mime="text/html",
            on_click="ignore",
            type="primary",
            icon=":material/download:",
            key=f"{key}_file",
            help="One HTML file that opens and prints without FedLens or network",
        )


def latest_wording() -> Callable[[], Wording]:
    """Return a function that returns the title, notes and parts as they are when it is called.

    A file is made in a thread that does not know the page's state; and a click on its button, which ends the
    typing of a title, arrives before the page has been drawn with that title.
    """
    given: dict[str, Wording] = st.session_state.setdefault("report_wording", {})
    _remember()
    return lambda: given["now"]


def _remember() -> None:
    given = st.session_state
    given["report_wording"]["now"] = Wording(
        given.get("report_title", ""), given.get("report_notes", ""), tuple(given.get("report_parts", PARTS))
    )
