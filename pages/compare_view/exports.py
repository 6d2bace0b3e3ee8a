"""The tab Export of the page Compare: its numbers as files, which are made when clicked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import streamlit as st

from fedcore.papers.printed import printed_values
from fedcore.results import export
from fedcore.results.metrics import RULES, Rule
from fedcore.results.printed import nothing_printed
from fedcore.results.statistics import Test
from fedcore.store import ExperimentRow, Store


def _checked(store: Store, ids: Sequence[int], text: str) -> str:
    store.integrity.require(ids)
    return text


def draw(
    store: Store,
    experiments: Sequence[ExperimentRow],
    rule: Rule,
    baseline: str | None,
    test: Test,
    unfinished: bool,
    in_print: bool,
) -> None:
    """Draw a button per file and the LaTeX table. in_print: whether papers print any of these values."""
    ids = [e.id for e in experiments]
    name, mark = "-".join(e.name for e in experiments), export.fingerprint(experiments)
    wanted = in_print and st.toggle(
        "Published values in the LaTeX table", value=True, key="latex_printed", bind="query-params",
        help="Adds a column with the values that the papers print, as in the summary",
    )  # fmt: skip
    printed = partial(printed_values, experiments=[e.config for e in experiments])
    columns = printed if wanted else nothing_printed
    latex = export.summary_latex(store, ids, rule, unfinished=unfinished, printed=columns)
    shared: dict[str, Any] = {"unfinished": unfinished, "printed": printed}
    summary_csv = partial(export.summary_csv, store, ids, (rule,), baseline, test=test, **shared)
    summary_json = partial(export.summary_json, store, ids, (rule,), **shared)
    files: tuple[tuple[str, str, str, Callable[[], str]], ...] = (
        ("Summary CSV", "summary", "csv", summary_csv),
        ("Rounds CSV", "rounds", "csv", lambda: export.rounds_csv(store, ids)),
        ("Clients CSV", "clients", "csv", lambda: export.clients_csv(store, ids)),
        ("LaTeX table", "summary", "tex", partial(_checked, store, ids, latex)),
        ("Whole experiment JSON", "experiment", "json", lambda: store.experiments.to_json(ids)),
        ("Summary JSON", "summary", "json", summary_json),
    )
    with st.container(horizontal=True):
        for label, table, suffix, made in files:
            st.download_button(
                label,
                made,
                export.file_name(name, table, suffix, mark),
                on_click="ignore",
                icon=":material/download:",
                key=f"file_{table}_{suffix}",
            )
    st.caption(
        f"Summary: one row per method and metric, domain and client, with two decimals; reported round: "
        f"{RULES[rule]}, as on this page. Rounds: one row per run, round, split, model and test set, with "
        "counts. Clients: one row per run, round and client. Whole experiment: everything that was recorded, "
        "for import into another FedLens (`fedlens import FILE.json`). To save a chart, use the camera in "
        "its menu."
    )
    st.code(latex, language="latex", wrap_lines=True)
