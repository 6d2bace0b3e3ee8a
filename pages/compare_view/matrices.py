"""The tab Heatmaps of the page Compare: matrices of all methods, and differences from the baseline."""

from __future__ import annotations

import streamlit as st

from fedcore.plots import heatmaps
from fedcore.plots.chart import Chart
from fedcore.results import diagnostics
from fedcore.results.comparison import Comparison
from fedcore.results.differences import reason_not_comparable
from fedcore.results.panels.matrices import FIRST, Panels, difference_panel, matrix_views, shown_panels
from fedcore.results.panels.panel import ORDERS, ordered_panels
from fedcore.store import Store
from pages.compare_view import pictures
from pages.compare_view.controls import ShownComparison, Version
from pages.widgets import charts, markup, session


@st.cache_data(hash_funcs={Store: repr}, max_entries=64, show_spinner=False)
def panels_of(store: Store, _compared: Comparison, of: Version, setting: str, view: str) -> Panels:
    """Return the panels of a view by row; cached by ``of``, which is quicker to hash."""
    return shown_panels(matrix_views()[view], store, _compared, setting)


def draw(shown: ShownComparison) -> None:
    """Draw the matrices of all methods on one colour scale, and their differences from the baseline."""
    views, compared = matrix_views(), shown.comparison
    titles = {
        name: f"{v.title} ({diagnostics.recording_methods(name)})" if v.recorded else v.title
        for name, v in views.items()
    }
    with st.container(horizontal=True, vertical_alignment="bottom"):
        view = st.selectbox(
            "Matrix",
            list(titles),
            index=list(titles).index(FIRST),
            format_func=titles.__getitem__,
            key="matrix",
            bind="query-params",
            width=380,
        )
        fitted = st.toggle(
            "Fit colours to the values",
            key="compare_fitted",
            bind="query-params",
            disabled=views[view].recorded is not None,
        )
        order = st.selectbox(
            "Order of rows", list(ORDERS), format_func=ORDERS.__getitem__, key="rows", bind="query-params",
            width=220,
        )  # fmt: skip
    columns, with_differences = (1 if session.is_narrow() else 3), views[view].differences != "nowhere"
    found = False
    for i, (setting, title) in enumerate(compared.settings.items()):
        by_key = panels_of(shown.store, compared, shown.version, setting, view)
        if not by_key:
            continue
        found = True
        by_key = dict(zip(by_key, ordered_panels(list(by_key.values()), order), strict=True))
        st.markdown(f"**{markup.md(title)}**")
        drawn = list(by_key.values())
        wide = 1 if view == "methods" else columns
        chart = heatmaps.heatmap_grid(drawn, session.theme(), wide, fitted, width=session.figure_width())
        grid(chart, by_key, f"compare_heat_{view}_{i}")
        reference = next((g for g in compared.rows_in(setting) if g.label == shown.choice.baseline), None)
        if reference is not None and reference.key in by_key and with_differences:
            base = by_key[reference.key]
            others = [g for g in compared.rows_in(setting) if g.key in by_key and g.key != reference.key]
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
                    rows = compared.rows_in(setting)
                    pictures.draw(shown.store, rows, reference, gaps, f"compare_gap_{view}_{i}")
    if not found:
        why = views[view].absent
        st.info(f"None of these runs has this matrix. {why}", icon=":material/grid_off:")
    elif shown.choice.baseline is None and with_differences:
        st.caption("Choose a baseline above to see the differences, cell by cell.")


def grid(chart: Chart, panels: Panels, key: str) -> None:
    """Draw panels as one chart or as tables."""
    if not st.session_state.get("as_tables"):
        charts.draw(chart, key)
        return
    for panel in panels.values():
        st.markdown(f"**{markup.md(panel.title)}**")
        st.dataframe(heatmaps.panel_table(panel), hide_index=True)
