"""The tab Two runs of the page Compare: one run beside another, in config, values, curves and cells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import streamlit as st

from fedcore.config.field_names import value_text
from fedcore.plots import heatmaps
from fedcore.plots.lines import line_chart, series_table
from fedcore.results import curves, evaluated_on
from fedcore.results.comparison import Group
from fedcore.results.metrics import METRICS, RunResult
from fedcore.results.panels.means import difference_panel
from fedcore.results.panels.runs import run_panel
from fedcore.results.runs.artifacts import environment_texts
from fedcore.results.settings import config_for_display
from fedcore.results.statistics import signed
from fedcore.store import Store
from pages.compare_view.config import field_html
from pages.compare_view.controls import Shown
from pages.compare_view.pairs import two_predictions
from pages.widgets import charts, markup, session

Side = tuple[Group, RunResult]


def draw(shown: Shown) -> None:
    """Let the reader choose two runs, and draw them beside each other."""
    store = shown.store
    sides = {_title(g, r): (g, r) for g in shown.comparison.groups for r in g.runs}
    if len(sides) < 2:
        st.info("There is one run only; this tab compares two.", icon=":material/compare_arrows:")
        return
    names = list(sides)
    left, right = st.columns(2)
    one = left.selectbox("Run", names, key="run_a", bind="query-params")
    rest = [name for name in names if name != one]
    same_seed = [n for n in rest if sides[n][1].run.seed == sides[one][1].run.seed]
    two = right.selectbox(
        "Beside", rest, index=rest.index((same_seed or rest)[0]), key="run_b", bind="query-params"
    )
    a, b = sides[one], sides[two]
    both_trained = a[0].trained_by_fedlens and b[0].trained_by_fedlens
    elsewhere, other = (b, a) if a[0].trained_by_fedlens else (a, b)
    apart = evaluated_on.difference_of_rows(*(replace(g, runs=(r,)) for g, r in (elsewhere, other)))
    apart = f"{_name(elsewhere)}: {apart}" if apart else ""
    _values(a, b, apart)
    _config(store, a, b)
    _curves(store, a, b)
    _cells(store, a, b, apart)
    if both_trained:
        two_predictions.draw(store, (a[1].run, b[1].run), (_name(a), _name(b)))


def _title(group: Group, result: RunResult) -> str:
    out = f", without {result.run.held_out}" if result.run.held_out else ""
    return f"{markup.clipped(group.label)}, seed {result.run.seed}{out} (run {result.run.id})"


def _values(a: Side, b: Side, apart: str) -> None:
    """Draw the metrics of both runs in their reported rounds, and the differences.

    Args:
        apart: how the test sets of one differ from the other's; then no difference is shown.
    """
    header = [("Metric", "wide"), (_name(a), "num"), (_name(b), "num"), ("Difference, points", "num")]
    rows = [["Reported round", markup.esc(a[1].rounds_text), markup.esc(b[1].rounds_text), ""]]
    for metric, title in METRICS.items():
        ours, theirs = a[1].values.get(metric), b[1].values.get(metric)
        if ours is None and theirs is None:
            continue
        gap = "-" if apart or ours is None or theirs is None else signed(ours - theirs, 2)
        rows.append([f"{markup.esc(title)}, %", markup.number(ours, 2), markup.number(theirs, 2), gap])
    rows.append(["Page of the run", _link(a), _link(b), ""])
    st.html(markup.table_html(header, rows, "Values of both runs"))
    st.caption(
        "One run each: a difference between two runs is no evidence that one method is better; the summary "
        "and the Leaderboard test over seeds."
    )
    if apart:
        st.caption(f"No difference is taken. {markup.md(apart)}.")


def _name(side: Side) -> str:
    return f"{markup.clipped(side[0].label)}, seed {side[1].run.seed}"


def _link(side: Side) -> str:
    address = session.link("run", side[1].run.id)
    page = f'<a href="{address}" target="_self">run {side[1].run.id}</a>'
    if not side[0].trained_by_fedlens:
        return page
    return f'{page}, <a href="{address}&amp;run_tab=Predictions" target="_self">its predictions</a>'


def _config(store: Store, a: Side, b: Side) -> None:
    """Draw the fields of config and environment in which the runs differ."""
    st.markdown("**What differs in their configs and environments**")
    configs = [config_for_display(store.runs.config(r.run.id), g.trained_by_fedlens) for g, r in (a, b)]
    surroundings = [environment_texts(store.runs.environment(r.run.id)) for _, r in (a, b)]
    rows = [
        [field_html(name), *(_text(name, config) for config in configs)]
        for name in dict.fromkeys(n for config in configs for n in config)
        if configs[0].get(name) != configs[1].get(name) and name != "method.label"
    ]
    rows += [
        [markup.esc(name), *(markup.esc(texts.get(name, "-")) for texts in surroundings)]
        for name in dict.fromkeys(n for texts in surroundings for n in texts)
        if surroundings[0].get(name) != surroundings[1].get(name)
    ]
    if not rows:
        st.caption("Nothing: one run repeats the other.")
        return
    header = [("Field", "name"), (_name(a), "wide"), (_name(b), "wide")]
    st.html(markup.table_html(header, rows, "What differs between the runs"))


def _text(name: str, config: Mapping[str, object]) -> str:
    return markup.esc(value_text(name, config[name])) if name in config else "-"


def _curves(store: Store, a: Side, b: Side) -> None:
    """Draw accuracy and loss of both runs by round."""
    names = {False: "Personal accuracy", True: "Training loss"}
    columns = st.columns(1 if session.is_narrow() else 2)
    for i, is_loss in enumerate(names):
        by_round = curves.loss_by_round if is_loss else curves.accuracy_by_round
        lines = [
            replace(line, label=_name(side))
            for side in (a, b)
            for line in by_round(store, {side[1].run.id: side[1].run.rounds_total})
        ]
        if not lines:
            continue
        with columns[i % len(columns)]:
            chart = line_chart(
                lines, session.theme(), "Round", "", per_cent=not is_loss, height=320, name=names[is_loss]
            )
            table = series_table(lines, "round", "" if is_loss else "%")
            charts.draw(chart, f"two_runs_{i}", table, names[is_loss])
            st.caption(markup.md(chart.alt))


def _cells(store: Store, a: Side, b: Side, apart: str) -> None:
    """Draw the cells of both runs' last rounds, and the difference of each."""
    panels = [replace(run_panel(store, r.run), title=_name((g, r))) for g, r in (a, b)]
    if not all(p.rows and p.columns for p in panels):
        return
    st.markdown("**Model by test set**")
    gaps = [] if apart else [difference_panel(*panels)]
    wide = 1 if session.is_narrow() else 3
    if st.session_state.get("as_tables"):
        for panel in (*panels, *gaps):
            st.markdown(f"**{markup.md(panel.title)}**")
            st.dataframe(heatmaps.panel_table(panel), hide_index=True)
        return
    width = session.figure_width()
    charts.draw(heatmaps.heatmap_grid(panels, session.theme(), min(wide, 2), width=width), "two_runs_cells")
    if not gaps:
        return
    st.markdown("**Difference, percentage points**")
    chart = heatmaps.difference_grid(gaps, session.theme(), 1, width, "Difference of the two runs")
    charts.draw(chart, "two_runs_gap")
    st.caption(markup.md(chart.alt))
