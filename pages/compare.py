"""The page Compare: summary, heatmaps, curves, cost, sweeps, published values, configs and exports."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import streamlit as st

from fedcore.papers.printed import printed_values
from fedcore.plots import heatmaps
from fedcore.plots.chart import Chart
from fedcore.reports.content import Choice as ReportChoice
from fedcore.results import diagnostics
from fedcore.results.comparison import (
    Comparison,
    reason_not_comparable,
)
from fedcore.results.panels.comparison import (
    client_by_round_panels,
    difference_panel,
    domain_panels,
    held_out_panels,
    mean_matrix_panels,
    mean_panels,
    method_by_domain_panel,
)
from fedcore.results.panels.order import ORDERS, ordered_panels
from fedcore.results.panels.panel import Panel
from fedcore.results.printed import PrintedValues
from fedcore.store import ExperimentRow, Store
from pages.compare_view import config, controls, cost, curve_lines, exports, published, report, summary, sweep
from pages.compare_view.controls import Choice, Version
from pages.compare_view.pairs import pictures, two_runs
from pages.components import viewport
from pages.widgets import charts, demo, markup, session

TABS = ("Summary", "Heatmaps", "Curves", "Cost", "Sweep", "Published", "Config", "Two runs", "Export")
VIEWS = {
    "models": "Model by test set",
    "methods": "Method by domain",
    "rounds": "Client by round",
    "domains": "Domain of the model by domain of the images",
    "held_out": "Held-out domain by domain (G, P)",
}
ABSENT = {
    "models": "It appears with the first evaluated round.",
    "methods": "It needs clients that belong to domains.",
    "rounds": "It appears with the first evaluated round.",
    "domains": "It needs clients that belong to domains.",
    "held_out": "It needs runs that hold out a domain (*Held-out domains* on the page New).",
}


@st.cache_data(hash_funcs={Store: repr}, max_entries=64, show_spinner=False)
def matrices(store: Store, _compared: Comparison, of: Version, setting: str, view: str) -> dict[str, Panel]:
    """Return the mean matrices of a view by row; cached by ``of``, which is quicker to hash."""
    if view == "methods":
        return {"": method_by_domain_panel(store, _compared, setting)}
    read = {
        "models": mean_panels,
        "rounds": client_by_round_panels,
        "domains": domain_panels,
        "held_out": held_out_panels,
    }.get(view)
    if read is None:
        return mean_matrix_panels(store, _compared, setting, diagnostics.matrix_charts()[view])
    return read(store, _compared, setting)


@st.cache_data(max_entries=32, show_spinner=False)
def printed_beside(
    _compared: Comparison, _experiments: Sequence[ExperimentRow], of: Version
) -> PrintedValues:
    """Return the values that papers print for the rows of a comparison."""
    return printed_values(_compared, [e.config for e in _experiments])


def heatmap_tab(store: Store, compared: Comparison, choice: Choice) -> None:
    """Draw the matrices of all methods on one colour scale, and their differences from the baseline."""
    own = {n: m for n, m in diagnostics.matrix_charts().items() if n not in VIEWS}
    titles = VIEWS | {n: f"{m.title} ({diagnostics.recording_methods(n)})" for n, m in own.items()}
    with st.container(horizontal=True, vertical_alignment="bottom"):
        view = st.selectbox(
            "Matrix",
            list(titles),
            format_func=titles.__getitem__,
            key="matrix",
            bind="query-params",
            width=380,
        )
        fitted = st.toggle(
            "Fit colours to the values", key="compare_fitted", bind="query-params", disabled=view in own
        )
        order = st.selectbox(
            "Order of rows", list(ORDERS), format_func=ORDERS.__getitem__, key="rows", bind="query-params",
            width=220,
        )  # fmt: skip
    columns, shown = (1 if viewport.is_narrow() else 3), False
    for i, (setting, title) in enumerate(compared.settings.items()):
        by_key = {
            k: p
            for k, p in matrices(store, compared, choice.version, setting, view).items()
            if p.rows and p.columns
        }
        if not by_key:
            continue
        shown = True
        by_key = dict(zip(by_key, ordered_panels(list(by_key.values()), order), strict=True))
        st.markdown(f"**{markup.md(title)}**")
        drawn = list(by_key.values())
        wide = 1 if view == "methods" else columns
        chart = heatmaps.heatmap_grid(drawn, session.theme(), wide, fitted, width=session.figure_width())
        grid(chart, by_key, f"compare_heat_{view}_{i}")
        reference = next((g for g in compared.groups_in(setting) if g.label == choice.baseline), None)
        if reference is not None and reference.key in by_key and view not in own:
            base = by_key[reference.key]
            others = [g for g in compared.groups_in(setting) if g.key in by_key and g.key != reference.key]
            gaps = {
                g.key: difference_panel(by_key[g.key], base)
                for g in others
                if not reason_not_comparable(g, reference)
            }
            if gaps:
                st.markdown(
                    f"**Difference from {markup.md(markup.clipped(reference.label))}, percentage points**"
                )
                chart = heatmaps.difference_grid(
                    list(gaps.values()), session.theme(), columns, session.figure_width()
                )
                grid(chart, gaps, f"compare_gap_{view}_{i}")
                if view == "models":
                    rows = compared.groups_in(setting)
                    pictures.draw(store, rows, reference, gaps, f"compare_gap_{view}_{i}")
    if not shown:
        why = ABSENT.get(view) or f"{diagnostics.recording_methods(view)} can record it."
        st.info(f"None of these runs has this matrix. {why}", icon=":material/grid_off:")
    elif choice.baseline is None and view != "methods" and view not in own:
        st.caption("Choose a baseline above to see the differences, cell by cell.")


def grid(chart: Chart, shown: dict[str, Panel], key: str) -> None:
    """Draw panels as one chart or as tables."""
    if not st.session_state.get("as_tables"):
        charts.draw(chart, key)
        return
    for panel in shown.values():
        st.markdown(f"**{markup.md(panel.title)}**")
        st.dataframe(heatmaps.panel_table(panel), hide_index=True)


def page() -> None:
    """Draw the page."""
    store = session.store()
    row = st.container(horizontal=not viewport.is_narrow(), vertical_alignment="center", gap="medium")
    row.title("Compare", width="content")
    with row.container(horizontal=True, vertical_alignment="bottom"):
        with st.container(width="stretch"):
            experiments = controls.choose_experiments(store)
        beside = st.container(width="content")
    if not experiments:
        st.info("Choose experiments above; finished runs appear here as tables, heatmaps and curves.")
        if not store.experiments.all():
            with st.container(horizontal=True):
                demo.buttons()
        return
    choice, shown = controls.draw(store, experiments)
    if not shown.groups:
        controls.nothing_finished(experiments, choice.where)
        return
    reported = ReportChoice(
        choice.rule, choice.metric, choice.baseline, choice.test, choice.unfinished, choice.where
    )
    with beside:
        report.page_button(store, experiments, reported)
    every = tuple(r.version for e in store.experiments.all() for r in e.runs)
    draw: dict[str, Callable[[], None]] = {
        "Summary": lambda: summary.draw(
            shown,
            choice.baseline,
            choice.metric,
            choice.test,
            printed_beside(shown, experiments, choice.version),
            choice.layout,
        ),
        "Heatmaps": lambda: heatmap_tab(store, shown, choice),
        "Curves": lambda: curve_lines.draw(store, shown),
        "Cost": lambda: cost.draw(store, shown, choice.metric),
        "Sweep": lambda: sweep.draw(shown, experiments, choice.metric),
        "Published": lambda: published.draw(store, experiments, every),
        "Config": lambda: config.draw(shown),
        "Two runs": lambda: two_runs.draw(store, shown),
        "Export": lambda: exports.draw(
            store,
            experiments,
            reported,
            bool(printed_beside(shown, experiments, choice.version).values),
        ),
    }
    tabs = st.tabs(TABS, key="tab", on_change="rerun", bind="query-params")
    for name, tab in zip(TABS, tabs, strict=True):
        if tab.open:
            with tab:
                draw[name]()
    for note in shown.notes:
        st.caption(f":material/info: {markup.md(note)}")


session.through_app()
page()
