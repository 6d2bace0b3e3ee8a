"""The page Compare: a comparison of experiments, with a tab for each way to look at it."""

from collections.abc import Callable
from functools import partial

import streamlit as st

from fedcore.base.progress import first_few
from fedcore.results.comparison import config_differences, partial_fields
from fedcore.share.views import View, views
from pages.compare_view import charts as with_controls
from pages.compare_view import controls, export, summary, two_runs
from pages.compare_view.controls import ShownComparison
from pages.compare_view.two_runs import field_html
from pages.widgets import background, charts, markup, session

ALL_HIDDEN = "All rows are hidden; *View* above, under *Hidden rows*, shows them again."
PARTIAL = "Fields that only some methods have"
CONTROLS: dict[str, Callable[[ShownComparison], None]] = {
    "matrices": with_controls.draw_matrices,
    "curves": with_controls.draw_curves,
    "cost": with_controls.draw_cost,
    "sweep": with_controls.draw_sweep,
}
"""Tabs of views with controls; every other view is drawn as in a report."""


def draw_view(view: View, shown: ShownComparison) -> None:
    """Draw the figures of a view, setting by setting."""
    shown = shown.visible
    for i, (setting, title) in enumerate(shown.comparison.settings.items()):
        st.markdown(f"**{markup.md(title)}**")
        figures = view.figures(shown.source, setting)
        for figure in figures:
            charts.draw_figure(figure, f"compare_{figure.name}_{i}", with_alt=True)
        if not figures:
            st.info(view.absent, icon=":material/hourglass_empty:")


def draw_config(shown: ShownComparison) -> None:
    """Draw the config fields that differ, and those that only some methods have."""
    compared = shown.visible.comparison
    differing, partial = config_differences(compared.rows), partial_fields(compared.rows)
    if not differing and not partial:
        st.info("All rows have the same config.")
        return
    if differing:
        several = len(compared.settings) > 1  # labels are unique within a setting only
        where = {s: f" ({title})" if several else "" for s, title in compared.settings.items()}
        names = [markup.clipped(g.label) + where[g.setting] for g in compared.rows]
        header = [("Field", "name"), *((name, "wide") for name in names)]
        rows = [[field_html(f), *(markup.esc(v) or "-" for v in row)] for f, row in differing.items()]
        st.html(markup.table_html(header, rows, "Config fields that differ"))
        if not all(all(row) for row in differing.values()):
            or_not = "" if all(g.trained_by_fedlens for g in compared.rows) else ", or it was not recorded"
            st.caption(f"A dash: the method has no such field{or_not}.")
    if partial:
        labels = {g.key: markup.clipped(g.label) for g in compared.rows}
        rows = []
        for keys, fields in partial.items():
            name = markup.esc(first_few(list(dict.fromkeys(labels[k] for k in keys)), 3))
            for field, value in fields.items():
                rows.append([name, field_html(field), markup.esc(value)])
                name = ""
        with st.expander(PARTIAL, icon=":material/tune:", expanded=not differing):
            header = [("Method", "wide"), ("Field", "name"), ("Value", "wide")]
            st.html(markup.table_html(header, rows, PARTIAL))
    st.caption(
        "Hyper-parameters left at their defaults are included. Hover over a field for its name in TOML files."
    )


TABS: dict[str, Callable[[ShownComparison], None]] = {
    "Summary": summary.draw,
    **{view.title: CONTROLS.get(name, partial(draw_view, view)) for name, view in views().items()},
    "Config": draw_config,
    "Two runs": two_runs.draw,
    "Export": export.draw,
}


def page() -> None:
    """Draw the page."""
    store = session.store()
    row = st.container(horizontal=not session.is_narrow(), vertical_alignment="center", gap="medium")
    row.title("Compare", width="content")
    with row.container(horizontal=True, vertical_alignment="bottom"):
        with st.container(width="stretch"):
            experiments = controls.choose_experiments(store)
        beside = st.container(width="content")
    if not experiments:
        st.info("Choose experiments above; finished runs appear here as tables, heatmaps and curves.")
        if not store.experiments.titles():
            with st.container(horizontal=True):
                background.demo_buttons()
        return
    shown = controls.draw(store, experiments)
    if not shown.comparison.rows:
        controls.nothing_finished(experiments, shown.choice.where)
        return
    with beside:
        background.report_button(shown.store, shown.experiments, "report_page", shown.choice)
    summary.draw_findings(shown)
    tabs = st.tabs(list(TABS), key="tab", on_change="rerun", bind="query-params")
    for draw, tab in zip(TABS.values(), tabs, strict=True):
        if tab.open:
            with tab:
                if shown.visible.comparison.rows or draw in (two_runs.draw, export.draw):
                    draw(shown)
                else:
                    st.info(ALL_HIDDEN, icon=":material/visibility_off:")
    for note in shown.comparison.notes:
        st.caption(f":material/info: {markup.md(note)}")


session.through_app()
page()
