"""The report of the page Compare: one HTML file above the tabs, and the folder for a paper as an archive."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from fedcore.reports.content import Choice, read_report
from fedcore.results.exports import tables
from fedcore.store import ExperimentRow, Store


def page_button(store: Store, experiments: Sequence[ExperimentRow], choice: Choice) -> None:
    """Draw the button that makes the report as one HTML file."""

    def made() -> str:
        from fedcore.reports.page import report_html

        return report_html(read_report(store, [e.id for e in experiments], choice))

    st.download_button(
        "Report",
        made,
        _name(experiments, "html"),
        mime="text/html",
        on_click="ignore",
        icon=":material/description:",
        key="report_page",
        help="One HTML file with table, heatmaps, curves and configs. It opens without FedLens or network",
    )


def folder_button(store: Store, experiments: Sequence[ExperimentRow], choice: Choice) -> None:
    """Draw the button that makes the report with figures, tables and script as an archive."""

    def made() -> bytes:
        from fedcore.reports import folder

        files = folder.report_files(store, read_report(store, [e.id for e in experiments], choice))
        return folder.zipped(files, _name(experiments, "zip").removesuffix(".zip"))

    st.download_button(
        "Report folder (ZIP)",
        made,
        _name(experiments, "zip"),
        mime="application/zip",
        on_click="ignore",
        icon=":material/folder_zip:",
        key="report_folder",
        help="The report, figures as PDF and SVG, LaTeX, CSV, JSON, and a script that repeats the runs",
    )


def _name(experiments: Sequence[ExperimentRow], suffix: str) -> str:
    name = "-".join(e.name for e in experiments)
    return tables.file_name(name, "report", suffix, tables.fingerprint(experiments))
