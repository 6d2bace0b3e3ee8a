"""The button that makes the report of a comparison, on every page that offers it."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from fedcore.reports.checked import ComparisonChoices, checked_comparison
from fedcore.reports.content import read_report
from fedcore.results.exports import file_name
from fedcore.store import ExperimentRow, Store


def report_button(
    store: Store, experiments: Sequence[ExperimentRow], key: str, choice: ComparisonChoices | None = None
) -> None:
    """Draw the button that makes the report as one HTML file, when it is clicked.

    Args:
        choice: as on the page Compare; default: the last round of finished runs.
    """

    def made() -> str:
        from fedcore.reports.page import report_html

        with checked_comparison(store, [e.id for e in experiments], choice) as checked:
            return report_html(read_report(checked))

    st.download_button(
        "Report",
        made,
        file_name(experiments, "report", "html"),
        mime="text/html",
        on_click="ignore",
        icon=":material/description:",
        key=key,
        help="One HTML file with table, heatmaps, curves and configs. It opens without FedLens or network",
    )
