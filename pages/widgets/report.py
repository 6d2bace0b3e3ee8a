"""The report of a comparison, with its title, notes and parts, on every page that offers it."""

from __future__ import annotations

from collections.abc import Sequence

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
        st.text_input("Title", key="report_title", placeholder=names)
        st.text_area("Notes", key="report_notes", placeholder="Why these runs, and what follows from them")
        titles = {name: view.title for name, view in views().items()}
        st.multiselect(
            "Parts",
            PARTS,
            default=PARTS,
            key="report_parts",
            format_func=lambda part: titles.get(part, part.capitalize()),
        )
        words = wording()  # here: the file is made in a thread that does not know the page's state

        def made() -> str:
            from fedcore.reports.page import report_html

            with checked_comparison(store, [e.id for e in experiments], choice) as checked:
                return report_html(read_report(checked, words))

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


def wording() -> Wording:
    """Return the title, notes and parts that the reader has given on this page."""
    given = st.session_state
    return Wording(
        given.get("report_title", ""), given.get("report_notes", ""), tuple(given.get("report_parts", PARTS))
    )
