"""The tab Export of the page Compare, and the report: files that are made when their button is clicked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import streamlit as st

from fedcore.reports.checked import SUFFIXES, WRITERS, Format, Table, checked_comparison
from fedcore.results.exports import file_name
from fedcore.results.latex import summary_latex
from fedcore.results.metrics import RULES
from fedcore.results.printed import PrintedValues
from fedcore.results.summary import summarise
from pages.compare_view.controls import ShownComparison


def folder_button(shown: ShownComparison) -> None:
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


SAME_ROWS = "The column row is the same as in the summary"
FILES: tuple[tuple[str, Table, Format, str], ...] = (
    ("Summary CSV", "summary", "csv", "One row per method and metric"),
    ("Domains CSV", "domains", "csv", f"One row per method, one column per domain. {SAME_ROWS}"),
    ("Configs CSV", "configs", "csv", f"One row per method with all fields. {SAME_ROWS}"),
    ("Breakdowns CSV", "breakdowns", "csv", f"One row per method and domain or client. {SAME_ROWS}"),
    ("Rounds CSV", "rounds", "csv", "One row per run, round, split, model and test set, with counts"),
    ("Clients CSV", "clients", "csv", "One row per run, round and client"),
    ("LaTeX table", "summary", "latex", "The table below"),
    (
        "Whole experiment JSON", "experiment", "json",
        "Everything that was recorded, for import into another FedLens (`fedlens import FILE.json`)",
    ),
    ("Summary JSON", "summary", "json", "The summary with numbers and null, for scripts"),
)  # fmt: skip
"""The button of each file, its table and format, and what it holds."""


def draw(shown: ShownComparison) -> None:
    """Draw a button per file and the LaTeX table."""
    printed = shown.printed
    wanted = bool(printed.values) and st.toggle(
        "Published values in the LaTeX table", value=True, key="latex_printed", bind="query-params",
        help="Adds a column with the values that the papers print, as in the summary",
    )  # fmt: skip
    digits = st.segmented_control(
        "Decimals in the LaTeX table", [0, 1, 2, 3], default=2, required=True, key="latex_digits",
    )  # fmt: skip
    choice = replace(shown.choice, digits=2 if digits is None else digits)

    def writer(table: Table, format: Format) -> Callable[[], str]:
        def made() -> str:
            with checked_comparison(shown.store, [e.id for e in shown.experiments], choice) as checked:
                plain = format == "latex" and not wanted
                return WRITERS[table, format](replace(checked, printed=PrintedValues()) if plain else checked)

        return made

    with st.container(horizontal=True):
        folder_button(shown)
        for label, table, format, help_ in FILES:
            st.download_button(
                label,
                writer(table, format),
                file_name(shown.experiments, table, SUFFIXES[format]),
                on_click="ignore",
                icon=":material/download:",
                key=f"file_{table}_{SUFFIXES[format]}",
                help=help_,
            )
    st.caption(
        f"Reported round: {RULES[choice.rule]}, as on this page. To save a chart, use the camera in its menu."
    )
    values = printed if wanted else PrintedValues()
    latex = summary_latex(summarise(shown.comparison, printed=values, tested=(), digits=choice.digits))
    st.code(latex, language="latex", wrap_lines=True)
