"""The page Compare: a comparison of experiments, with a tab for each way to look at it."""

from collections.abc import Callable, Sequence
from functools import partial

import streamlit as st

from fedcore.base.errors import FedLensError
from fedcore.base.progress import first_few
from fedcore.config import Experiment
from fedcore.papers.cells import TableCell
from fedcore.papers.reproductions import outcome_counts, reasons, reproductions
from fedcore.results.comparison import config_differences, partial_fields
from fedcore.share.views import View, views
from fedcore.store import Store
from pages.compare_view import charts as with_controls
from pages.compare_view import controls, export, summary, two_runs
from pages.compare_view.controls import ShownComparison
from pages.compare_view.two_runs import field_html
from pages.widgets import background, charts, markup, session

PARTIAL = "Fields that only some methods have"
MANY = 15
"""Published values above which their table scrolls; a preset names up to 500."""
CONTROLS: dict[str, Callable[[ShownComparison], None]] = {
    "matrices": with_controls.draw_matrices,
    "curves": with_controls.draw_curves,
    "cost": with_controls.draw_cost,
    "sweep": with_controls.draw_sweep,
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


def draw_published(shown: ShownComparison) -> None:
    """Draw the values that papers print beside ours, a table for each experiment that names some."""
    naming = [e for e in shown.experiments if e.config.reproduces]
    if not naming:
        st.info(
            "None of these experiments names published values. Start from *A table or figure of a paper* on "
            "the page New, or name a paper and its table under `[[reproduces]]` in a TOML file.",
            icon=":material/menu_book:",
        )
        return
    only = st.segmented_control(
        "Values",
        ["all", "with ours"],
        default="all",
        required=True,
        key="published_only",
        label_visibility="collapsed",
        format_func=str.capitalize,
    )
    every = shown.store.runs.digest()
    for experiment in naming:
        st.markdown(f"**{markup.md(experiment.name)}**")
        try:
            config = experiment.config.model_dump_json()
            rows = published_beside(shown.store, config, every, experiment.config)
        except FedLensError as error:
            markup.show_error(error)
            continue
        counts = ", ".join(f"{count} {status}" for status, count in outcome_counts(rows).items())
        st.caption(f"{len(rows)} published values: {counts}.")
        wanted = [r for r in rows if only == "all" or r.stat is not None]
        if not wanted:
            st.info("None of these values has been measured here yet.", icon=":material/hourglass:")
            continue
        with st.container(height=700 if len(wanted) > MANY else "content"):
            st.html(published_table(wanted, experiment.name))
        if against := reasons(wanted):
            with st.expander(f"Reasons against comparing ({len(against)})", icon=":material/balance:"):
                for mark, methods, text in against:
                    st.markdown(f"{mark} **{markup.md(methods)}**: {markup.md(text)}")
    st.caption(
        "Values are per cent unless the metric says otherwise. Ours: mean ± sample standard deviation over n "
        "seeds, at the round that the paper's rule selects. Runs of every experiment count if data, "
        "partition, backbone, rounds and all hyper-parameters are the same as here; only class descriptions "
        "may differ. With a caveat: the paper can be read in more than one way, and the reading may matter. "
        "Not comparable: ours measures something else."
    )


@st.cache_data(hash_funcs={Store: repr}, max_entries=16, show_spinner="Reading the published values…")
def published_beside(store: Store, config: str, token: str, _experiment: Experiment) -> list[TableCell]:
    """Return the published values beside ours; computed again when the config or a run has changed."""
    return reproductions(store, _experiment)


def published_table(rows: Sequence[TableCell], name: str) -> str:
    """Return published values beside ours as an HTML table; reasons appear under the pointer."""

    def comparable(cell: TableCell) -> str:
        if cell.judgement is None:
            return "-"
        value = cell.comparability
        state = {"comparable": "yes", "not comparable": "no"}.get(value.state, value.state)
        title = markup.esc("; ".join(text for _, text in value.reasons))
        return f'<span title="{title}">{markup.esc(f"{state} {value.mark}".rstrip())}</span>'

    header = [("Table", "wide"), ("Data set", "name"), ("Setting", "wide"), ("Method", "wide")]
    header += [("Target", ""), ("Metric", ""), ("Printed", "num"), ("Ours", "num"), ("n", "num")]
    header += [("Difference", "num"), ("Comparable", "wide"), ("Status", "wide")]
    cells = []
    for r in rows:
        value, stat = r.value, r.stat
        target = "mean" if value.target == "avg" else value.target
        named = (value.source, value.dataset, value.setting, value.method)
        cells.append(
            [
                *(markup.esc(text or "-") for text in named),
                *(markup.esc(text) for text in (target, value.metric, value.text)),
                "-" if stat is None else f"<b>{markup.esc(r.outcome_text)}</b>",
                "0" if stat is None else str(stat.n),
                markup.esc(r.gap_text or "-"),
                comparable(r),
                markup.esc(r.outcome) + (f": {markup.faint(r.reason)}" if r.reason else ""),
            ]
        )
    return markup.table_html(header, cells, f"Published values of {name}")


def draw_config(shown: ShownComparison) -> None:
    """Draw the config fields that differ, and those that only some methods have."""
    compared = shown.comparison
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
    "Published": draw_published,
    "Config": draw_config,
    "Two runs": two_runs.draw,
    "Export": export.draw,
}


def page() -> None:
    """Draw the page."""
    store = session.store()
    row = st.container(
        horizontal=not session.is_narrow(), vertical_alignment="center", gap="medium", key="compare_head"
    )
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
                draw(shown)
    for note in shown.comparison.notes:
        st.caption(f":material/info: {markup.md(note)}")


session.through_app()
page()
