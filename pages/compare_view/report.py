"""The report of the page Compare: one HTML file above the tabs, and the folder for a paper as an archive."""

from __future__ import annotations

import streamlit as st

from fedcore.reports.content import checked_comparison, read_report
from fedcore.results.exports.tables import file_name
from pages.compare_view.controls import Shown


def page_button(shown: Shown) -> None:
    """Draw the button that makes the report as one HTML file."""

    def made() -> str:
        from fedcore.reports.page import report_html

        with checked_comparison(shown.store, [e.id for e in shown.experiments], shown.choice) as checked:
            return report_html(read_report(checked))

    st.download_button(
        "Report",
        made,
        file_name(shown.experiments, "report", "html"),
        mime="text/html",
        on_click="ignore",
        icon=":material/description:",
        key="report_page",
        help="One HTML file with table, heatmaps, curves and configs. It opens without FedLens or network",
    )


def folder_button(shown: Shown) -> None:
    """Draw the button that makes the report with figures, tables and script as an archive."""

    def made() -> bytes:
        from fedcore.reports import folder

        with checked_comparison(shown.store, [e.id for e in shown.experiments], shown.choice) as checked:
            files = folder.report_files(checked)
        return folder.zipped(files, file_name(shown.experiments, "report", "zip").removesuffix(".zip"))

    st.download_button(
        "Report folder (ZIP)",
        made,
        file_name(shown.experiments, "report", "zip"),
        mime="application/zip",
        on_click="ignore",
        icon=":material/folder_zip:",
        key="report_folder",
        help="The report, figures as PDF and SVG, LaTeX, CSV, JSON, and a script that repeats the runs",
    )
