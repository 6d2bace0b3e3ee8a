"""The tab Export of the page Compare: its numbers as files, which are made when clicked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import streamlit as st

from fedcore.papers.printed import printed_values
from fedcore.reports.content import Choice
from fedcore.results.exports import latex, tables
from fedcore.results.metrics import RULES
from fedcore.results.printed import nothing_printed
from fedcore.store import ExperimentRow, Store
from pages.compare_view import report

SAME_ROWS = "The column row is the same as in the summary"
CONTENTS = {
    "Summary CSV": "One row per method and metric",
    "Domains CSV": f"One row per method, one column per domain. {SAME_ROWS}",
    "Configs CSV": f"One row per method with all fields. {SAME_ROWS}",
    "Breakdowns CSV": f"One row per method and domain or client. {SAME_ROWS}",
    "Rounds CSV": "One row per run, round, split, model and test set, with counts",
    "Clients CSV": "One row per run, round and client",
    "LaTeX table": "The table below",
    "Whole experiment JSON": "Everything that was recorded, for import into another FedLens "
    "(`fedlens import FILE.json`)",
    "Summary JSON": "The summary with numbers and null, for scripts",
}


def _checked(store: Store, ids: Sequence[int], text: str) -> str:
    store.integrity.require(ids)
    return text


def draw(
    store: Store,
    experiments: Sequence[ExperimentRow],
    choice: Choice,
    in_print: bool,
) -> None:
    """Draw a button per file and the LaTeX table.

    Args:
        in_print: whether papers print any of these values.
    """
    ids, rule, where = [e.id for e in experiments], choice.rule, choice.where
    name, mark = "-".join(e.name for e in experiments), tables.fingerprint(experiments)
    wanted = in_print and st.toggle(
        "Published values in the LaTeX table", value=True, key="latex_printed", bind="query-params",
        help="Adds a column with the values that the papers print, as in the summary",
    )  # fmt: skip
    printed = partial(printed_values, experiments=[e.config for e in experiments])
    columns = printed if wanted else nothing_printed
    digits = st.segmented_control(
        "Decimals in the LaTeX table", [0, 1, 2, 3], default=2, required=True, key="latex_digits",
    )  # fmt: skip
    table = latex.summary_latex(
        store,
        ids,
        rule,
        unfinished=choice.unfinished,
        printed=columns,
        digits=2 if digits is None else digits,
        where=where,
    )
    shared: dict[str, Any] = {"unfinished": choice.unfinished, "printed": printed, "where": where}
    summary_csv = partial(
        tables.table_csv, store, ids, "summary", rule, choice.baseline, test=choice.test, **shared
    )
    summary_json = partial(tables.summary_json, store, ids, rule, **shared)

    def other(name: tables.TableName) -> Callable[[], str]:
        return partial(tables.table_csv, store, ids, name, rule, unfinished=choice.unfinished, where=where)

    files: tuple[tuple[str, str, str, Callable[[], str]], ...] = (
        ("Summary CSV", "summary", "csv", summary_csv),
        ("Domains CSV", "domains", "csv", other("domains")),
        ("Configs CSV", "configs", "csv", other("configs")),
        ("Breakdowns CSV", "breakdowns", "csv", other("breakdowns")),
        ("Rounds CSV", "rounds", "csv", lambda: tables.rounds_csv(store, ids, where)),
        ("Clients CSV", "clients", "csv", lambda: tables.clients_csv(store, ids, where)),
        ("LaTeX table", "summary", "tex", partial(_checked, store, ids, table)),
        ("Whole experiment JSON", "experiment", "json", lambda: store.experiments.to_json(ids)),
        ("Summary JSON", "summary", "json", summary_json),
    )
    with st.container(horizontal=True):
        report.folder_button(store, experiments, choice)
        for label, content, suffix, made in files:
            st.download_button(
                label,
                made,
                tables.file_name(name, content, suffix, mark),
                on_click="ignore",
                icon=":material/download:",
                key=f"file_{content}_{suffix}",
                help=CONTENTS.get(label),
            )
    st.caption(
        f"Reported round: {RULES[rule]}, as on this page. To save a chart, use the camera in its menu."
    )
    st.code(table, language="latex", wrap_lines=True)
