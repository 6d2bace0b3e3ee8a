"""The tab Two runs of the page Compare: two runs in config, values, curves, cells and predictions."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import streamlit as st

from fedcore import jobs
from fedcore.config.field_names import field_title, value_text
from fedcore.jobs import analysis
from fedcore.results import curves
from fedcore.results.analyses import (
    EVERYONE,
    class_table,
    count_disagreement,
    paired_predictions,
    same_test_samples,
)
from fedcore.results.charts import heatmaps
from fedcore.results.matrices import difference_panel, run_panel
from fedcore.results.metrics import METRICS, RunResult
from fedcore.results.rows import ComparisonRow, difference_of_rows
from fedcore.results.run_files import environment_texts
from fedcore.results.settings import config_for_display
from fedcore.results.statistics import signed
from fedcore.store import RunRow, Store, TaskRow
from pages.compare_view.controls import ShownComparison
from pages.compare_view.pictures import draw_counts, obstacle_of, other_data
from pages.widgets import background, charts, markup, session

Side = tuple[ComparisonRow, RunResult]


def draw(shown: ShownComparison) -> None:
    """Draw the choice of two runs, and the runs side by side."""
    store = shown.store
    sides = {_title(g, r): (g, r) for g in shown.comparison.rows for r in g.runs}
    if len(sides) < 2:
        st.info("This tab compares two runs, and there is only one.", icon=":material/compare_arrows:")
        return
    names = list(sides)
    left, right = st.columns(2)
    one = left.selectbox("Run", names, key="run_a", bind="query-params")
    rest = [name for name in names if name != one]
    of_same_seed = [n for n in rest if sides[n][1].run.seed == sides[one][1].run.seed]
    two = right.selectbox(
        "Beside", rest, index=rest.index((of_same_seed or rest)[0]), key="run_b", bind="query-params"
    )
    a, b = sides[one], sides[two]
    both_trained = a[0].trained_by_fedlens and b[0].trained_by_fedlens
    elsewhere, other = (b, a) if a[0].trained_by_fedlens else (a, b)
    apart = difference_of_rows(*(replace(g, runs=(r,)) for g, r in (elsewhere, other)))
    apart = f"{_name(elsewhere)}: {apart}" if apart else ""
    _values(a, b, apart)
    _config(store, a, b)
    _curves(store, a, b)
    _cells(store, a, b, apart)
    if both_trained:
        _predictions(store, (a[1].run, b[1].run), (_name(a), _name(b)))


def _title(group: ComparisonRow, result: RunResult) -> str:
    out = f", without {result.run.held_out}" if result.run.held_out else ""
    return f"{markup.clipped(group.label)}, seed {result.run.seed}{out} (run {result.run.id})"


def _values(a: Side, b: Side, apart: str) -> None:
    """Draw the metrics of both runs in their reported rounds, and the differences.

    If the test sets of the runs are ``apart``, no difference is shown.
    """
    header = [("Metric", "wide"), (_name(a), "num"), (_name(b), "num"), ("Difference, points", "num")]
    rows = [["Reported round", markup.esc(a[1].rounds_text), markup.esc(b[1].rounds_text), ""]]
    for metric, facts in METRICS.items():
        ours, theirs = a[1].values.get(metric), b[1].values.get(metric)
        if ours is None and theirs is None:
            continue
        gap = "-" if apart or ours is None or theirs is None else signed(ours - theirs, 2)
        title = markup.esc(f"{facts.title}, {facts.unit}")
        rows.append([title, markup.number(ours, 2), markup.number(theirs, 2), gap])
    rows.append(["Page of the run", _link(a), _link(b), ""])
    st.html(markup.table_html(header, rows, "Values of both runs"))
    st.caption(
        "These are single runs: a difference between two runs is not evidence that one method is better. The "
        "summary and the Leaderboard test over seeds."
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
    st.markdown("**Differences in config and environment**")
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
        st.caption("None: one run repeats the other.")
        return
    header = [("Field", "name"), (_name(a), "wide"), (_name(b), "wide")]
    st.html(markup.table_html(header, rows, "Differences between the runs"))


def _text(name: str, config: Mapping[str, object]) -> str:
    return markup.esc(value_text(name, config[name])) if name in config else "-"


def _curves(store: Store, a: Side, b: Side) -> None:
    names: dict[curves.CurveValue, str] = {"personal": "Personal accuracy", "loss": "Training loss"}
    columns = st.columns(1 if session.is_narrow() else 2)
    for i, (value, title) in enumerate(names.items()):
        lines = [
            replace(line, label=_name(side))
            for side in (a, b)
            for line in curves.run_lines(store, {side[1].run.id: side[1].run.rounds_total}, value)
        ]
        if not lines:
            continue
        with columns[i % len(columns)]:
            chart = charts.draw_rounds(lines, f"two_runs_{i}", title, value != "loss")
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
        charts.draw_tables((panel.title, heatmaps.panel_table(panel)) for panel in (*panels, *gaps))
        return
    width = session.figure_width()
    charts.draw(heatmaps.heatmap_grid(panels, session.theme(), min(wide, 2), width=width), "two_runs_cells")
    if not gaps:
        return
    st.markdown("**Difference, percentage points**")
    chart = heatmaps.difference_grid(gaps, session.theme(), 1, width, "Difference of the two runs")
    charts.draw(chart, "two_runs_gap")
    st.caption(markup.md(chart.alt))


def _predictions(store: Store, runs: tuple[RunRow, RunRow], names: tuple[str, str]) -> None:
    """Draw on how many test images both runs, one of them or neither is right, in all and by class."""
    st.markdown(
        "**Predictions**",
        help="Of the newest checkpoint of each run. McNemar's test is exact and two-sided, over test images "
        "as they were drawn; it does not cover other seeds.",
    )
    if not same_test_samples(store.runs.config(runs[0].id), store.runs.config(runs[1].id)):
        st.info(
            "Predictions are compared only between runs with the same data, partition, held-out domain and "
            "seed, because other runs test on other images.",
            icon=":material/info:",
        )
        return
    if differ := other_data(store, *runs):
        st.info(differ, icon=":material/info:")
        return
    tasks = [analysis.find(store, run.id, "predictions") for run in runs]
    arrays = [task.arrays() if task is not None and task.status == "done" else {} for task in tasks]
    if arrays[0] and arrays[1]:
        _draw_counts(store, runs, names, (arrays[0], arrays[1]), tasks[0])
        return
    _ask_for_predictions(
        store, [(r, t) for r, t, found in zip(runs, tasks, arrays, strict=True) if not found]
    )


def _draw_counts(
    store: Store,
    runs: tuple[RunRow, RunRow],
    names: tuple[str, str],
    arrays: tuple[Mapping[str, np.ndarray], Mapping[str, np.ndarray]],
    task: TaskRow | None,
) -> None:
    both = np.intersect1d(arrays[0]["model"], arrays[1]["model"]).tolist()
    models = {e.name: e.entity for e in store.cells.entities(runs[0].id) if e.kind in ("global", "client")}
    offered: dict[str, int | None] = {EVERYONE: None}
    offered |= {name: code for name, code in models.items() if code in both}
    model = st.selectbox("Predictions of", list(offered), key="two_predictions_of", bind="query-params")
    paired = paired_predictions(*arrays, offered.get(model or EVERYONE))
    if paired is None:
        st.info("The two runs do not have the same test samples.", icon=":material/info:")
        return
    draw_counts(count_disagreement(paired), names, f"Test images by correct run, {model}")
    titles = {"only first": f"only {names[0]} right", "only second": f"only {names[1]} right"}
    table = class_table(paired, ((task and task.result) or {})["classes"])
    st.dataframe(
        {titles.get(k, k): v for k, v in table.items()}, hide_index=True, key="two_predictions_table"
    )


def _ask_for_predictions(store: Store, missing: list[tuple[RunRow, TaskRow | None]]) -> None:
    """Draw the button that computes missing predictions, its progress, or the reason why it cannot."""
    obstacles = [text for run, _ in missing if (text := obstacle_of(store, run))]
    for text in obstacles:
        st.info(text, icon=":material/search_off:")
    for run, task in missing:
        if task is not None and task.status != "done":
            background.show_task(task, f"Predictions of run {run.id}")
    pending = any(task is not None and not task.ended for _, task in missing)
    if not pending and st.button(
        "Compute predictions",
        key="two_predictions_ask",
        disabled=bool(obstacles) or not session.writable(),
        icon=":material/search_insights:",
        help="Predicts all test samples with the newest checkpoint of each run; kept with the runs.",
    ):
        for run, _ in missing:
            analysis.submit(store, run.id, "predictions", again=True)
        jobs.ensure_worker(store)
        st.rerun()


def field_html(path: str) -> str:
    """Return a field's title as HTML; its name in TOML files shows on hover."""
    return f'<span title="{markup.esc(path)}">{markup.esc(field_title(path))}</span>'
