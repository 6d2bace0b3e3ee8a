"""The predictions of two runs beside each other, on the tab Two runs of the page Compare."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import streamlit as st

from fedcore import jobs
from fedcore.jobs import analysis
from fedcore.results.disagreement import (
    class_table,
    count_disagreement,
    paired_predictions,
    same_test_samples,
)
from fedcore.store import RunRow, Store, TaskRow
from pages.compare_view.pairs.pictures import draw_counts, obstacle_of, other_data
from pages.widgets import background, session

EVERYONE = "all clients, each on its own test samples"


def draw(store: Store, runs: tuple[RunRow, RunRow], names: tuple[str, str]) -> None:
    """Draw on how many test images both runs, one of them or neither is right, in all and by class.

    Args:
        names: of the two runs, as the rest of the tab calls them.
    """
    st.markdown(
        "**Predictions**",
        help="Of the newest checkpoint of each run. McNemar's test is exact and two-sided, over test images "
        "as they were drawn; it says nothing of other seeds.",
    )
    if not same_test_samples(store.runs.config(runs[0].id), store.runs.config(runs[1].id)):
        st.info(
            "Predictions are compared only between runs with the same data, partition, held-out domain and "
            "seed: others test on other images.",
            icon=":material/info:",
        )
        return
    if differ := other_data(store, *runs):
        st.info(differ, icon=":material/info:")
        return
    tasks = [analysis.find(store, run.id, "predictions") for run in runs]
    arrays = [task.arrays() if task is not None and task.status == "done" else {} for task in tasks]
    if arrays[0] and arrays[1]:
        _counts(store, runs, names, (arrays[0], arrays[1]), tasks[0])
        return
    _ask(store, [(r, t) for r, t, found in zip(runs, tasks, arrays, strict=True) if not found])


def _counts(
    store: Store,
    runs: tuple[RunRow, RunRow],
    names: tuple[str, str],
    arrays: tuple[Mapping[str, np.ndarray], Mapping[str, np.ndarray]],
    task: TaskRow | None,
) -> None:
    """Let the reader choose a model, and draw the counts."""
    both = np.intersect1d(arrays[0]["model"], arrays[1]["model"]).tolist()
    models = {e.name: e.entity for e in store.cells.entities(runs[0].id) if e.kind in ("global", "client")}
    offered: dict[str, int | None] = {EVERYONE: None}
    offered |= {name: code for name, code in models.items() if code in both}
    whose = st.selectbox("Predictions of", list(offered), key="two_predictions_of", bind="query-params")
    paired = paired_predictions(*arrays, offered.get(whose or EVERYONE))
    if paired is None:
        st.info("The two runs do not have the same test samples.", icon=":material/info:")
        return
    draw_counts(count_disagreement(paired), names, f"Test images by who is right, {whose}")
    titles = {"only first": f"only {names[0]} right", "only second": f"only {names[1]} right"}
    table = class_table(paired, ((task and task.result) or {})["classes"])
    st.dataframe(
        {titles.get(k, k): v for k, v in table.items()}, hide_index=True, key="two_predictions_table"
    )


def _ask(store: Store, missing: list[tuple[RunRow, TaskRow | None]]) -> None:
    """Draw the button that computes what is missing, or its progress, or why it cannot be computed."""
    obstacles = [text for run, _ in missing if (text := obstacle_of(store, run))]
    for text in obstacles:
        st.info(text, icon=":material/search_off:")
    for run, task in missing:
        if task is not None and task.status != "done":
            background.show_task(task, f"Predictions of run {run.id}")
    waits = any(task is not None and not task.ended for _, task in missing)
    if not waits and st.button(
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
