"""The page Compare: a comparison of experiments, with a tab for each way to look at it."""

from collections.abc import Callable
from functools import partial

import streamlit as st

from fedcore.reports.views import View, views
from pages.compare_view import (
    config,
    controls,
    cost,
    curves,
    export,
    matrices,
    published,
    summary,
    sweep,
    two_runs,
)
from pages.compare_view.controls import ShownComparison
from pages.widgets import background, charts, markup, session
from pages.widgets.report import report_button

CONTROLS: dict[str, Callable[[ShownComparison], None]] = {
    "matrices": matrices.draw,
    "curves": curves.draw,
    "cost": cost.draw,
    "sweep": sweep.draw,
}
"""Tabs of views with controls; every other view is drawn as in a report."""


def draw_view(view: View, shown: ShownComparison) -> None:
    """Draw the figures of a view, setting by setting."""
    for i, (setting, title) in enumerate(shown.comparison.settings.items()):
        st.markdown(f"**{markup.md(title)}**")
        figures = view.figures(shown.source, setting)
        for figure in figures:
            charts.draw_figure(figure, f"compare_{figure.name}_{i}", with_alt=True)
        if not figures:
            st.info(view.absent, icon=":material/hourglass_empty:")


TABS: dict[str, Callable[[ShownComparison], None]] = {
    "Summary": summary.draw,
    **{view.title: CONTROLS.get(name, partial(draw_view, view)) for name, view in views().items()},
    "Published": published.draw,
    "Config": config.draw,
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
        if not store.experiments.all():
            with st.container(horizontal=True):
                background.demo_buttons()
        return
    shown = controls.draw(store, experiments)
    if not shown.comparison.rows:
        controls.nothing_finished(experiments, shown.choice.where)
        return
    with beside:
        report_button(shown.store, shown.experiments, "report_page", shown.choice)
    summary.draw_findings(shown)
    tabs = st.tabs(list(TABS), key="tab", on_change="rerun", bind="query-params")
    for draw, tab in zip(TABS.values(), tabs, strict=True):
        if tab.open:
            with tab:
                draw(shown)
    for note in shown.comparison.notes:
        st.caption(f":material/info: {markup.md(note)}")


session.through_app()
page()
