"""The tab Heatmaps of the page Compare: matrices of all methods, and differences from the baseline."""

import streamlit as st

from fedcore.results import curves
from fedcore.results.comparison import Comparison
from fedcore.results.matrices import (
    FIRST,
    Panels,
    difference_panel,
    matrix_views,
    over_common_seeds,
    paired_panels,
    shown_panels,
)
from fedcore.results.panels import ORDERS, Panel, ordered_panels
from fedcore.results.rows import ComparisonRow
from fedcore.share.views.matrices import SIDE_BY_SIDE, Heatmaps
from fedcore.store import Store
from pages.compare_view import pictures
from pages.compare_view.controls import ComparedState, ShownComparison
from pages.widgets import charts, markup, session


@st.cache_data(hash_funcs={Store: repr}, max_entries=64, show_spinner=False)
def panels_of(store: Store, _compared: Comparison, of: ComparedState, setting: str, view: str) -> Panels:
    """Return the panels of a view by row; cached by ``of``, which is quicker to hash."""
    return shown_panels(matrix_views()[view], store, _compared, setting)


@st.cache_data(hash_funcs={Store: repr}, max_entries=64, show_spinner=False)
def pairs_of(
    store: Store, _compared: Comparison, of: ComparedState, _baseline: ComparisonRow, baseline: str, view: str
) -> dict[str, tuple[Panel, Panel]]:
    """Return the panels that are subtracted; cached by ``of`` and the baseline's key."""
    panels = panels_of(store, _compared, of, _baseline.setting, view)
    return paired_panels(matrix_views()[view], store, _compared, panels, _baseline)


def draw(shown: ShownComparison) -> None:
    """Draw the matrices of all methods on one colour scale, and their differences from the baseline."""
    views, compared = matrix_views(), shown.comparison
    titles = {
        name: f"{v.title} ({curves.recording_methods(name)})" if v.recorded else v.title
        for name, v in views.items()
    }
    with st.container(horizontal=True, vertical_alignment="bottom"):
        first = list(titles).index(FIRST)
        view = session.choose(st.selectbox, "Matrix", titles, "matrix", index=first, width=380)
        fitted = st.toggle(
            "Fit colours to the values",
            key="compare_fitted",
            bind="query-params",
            disabled=views[view].recorded,
        )
        order = session.choose(st.selectbox, "Order of rows", ORDERS, "rows", width=220)
    columns = 1 if session.is_narrow() else SIDE_BY_SIDE
    with_differences = views[view].differences != "nowhere"
    found = False
    for i, (setting, title) in enumerate(compared.settings.items()):
        by_key = panels_of(shown.store, compared, shown.version, setting, view)
        if not by_key:
            continue
        found = True
        by_key = dict(zip(by_key, ordered_panels(list(by_key.values()), order), strict=True))
        st.markdown(f"**{markup.md(title)}**")
        matrices = Heatmaps(
            view,
            titles[view],
            tuple(by_key.values()),
            fitted=fitted,
            columns=1 if view == "methods" else columns,
        )
        charts.draw_figure(matrices, f"compare_heat_{view}_{i}")
        rows, baseline = compared.rows_in(setting), shown.source.baseline_in(setting)
        if baseline is None or not with_differences:
            continue
        pairs = pairs_of(shown.store, compared, shown.version, baseline, baseline.key, view)
        gaps = {key: difference_panel(*pair, shown=by_key[key]) for key, pair in pairs.items()}
        if gaps:
            label = markup.md(markup.clipped(baseline.label))
            seeds = over_common_seeds((row for row in rows if row.key in gaps), baseline)
            st.markdown(f"**Difference from {label}{seeds}, percentage points**")
            key = f"compare_gap_{view}_{i}"
            drawn = Heatmaps(view, titles[view], tuple(gaps.values()), "difference", columns=columns)
            charts.draw_figure(drawn, key)
            if view == "models":
                pictures.draw(shown.store, rows, baseline, gaps, key)
    if not found:
        why = views[view].absent
        st.info(f"None of these runs has this matrix. {why}", icon=":material/grid_off:")
    elif shown.choice.baseline is None and with_differences:
        st.caption("Choose a baseline above to see the differences, cell by cell.")
