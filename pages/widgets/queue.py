"""The queue on the page Experiments: the order of queued runs, and the number of runs per device."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import streamlit as st

from fedcore import devices
from fedcore.jobs import cluster_view
from fedcore.jobs.cluster_view import NodeView
from fedcore.results.statistics import group_by
from fedcore.store.queue import MAX_SLOTS, Place, QueuedRun
from pages.widgets import nodes as nodes_section
from pages.widgets import session
from pages.widgets.selectable_table import selectable_table

MOVES: dict[Place, str] = {"top": "vertical_align_top", "up": "arrow_upward", "down": "arrow_downward"}
TABLE = "queue_table"


def section() -> None:
    """Draw the number of runs per device and the queued runs, with the buttons that move them."""
    store = session.store()
    waiting = store.queue.runs()
    count = f"{len(waiting)} waiting" if waiting else "empty"
    box = st.expander(
        f"Queue: {count}", icon=":material/low_priority:", key="queue", bind="query-params", on_change="rerun"
    )
    if not box.open:
        return
    nodes = cluster_view.read(store)
    with box:
        nodes_section.draw(nodes)
        if nodes is None or cluster_view.read_over(store) is None:
            _slots(nodes or ())
        if not waiting:
            st.caption("Launched runs wait here while others train.")
            return
        whole = st.segmented_control(
            "Move", ["Runs", "Experiments"], default="Runs", required=True, key="queue_of",
            label_visibility="collapsed", bind="query-params",
        ) == "Experiments"  # fmt: skip
        _experiments(waiting) if whole else _runs(waiting, nodes)


def _runs(waiting: Sequence[QueuedRun], nodes: Sequence[NodeView] | None) -> None:
    """Draw the queued runs and the buttons that move them."""
    rows: dict[str, Sequence[object]] = {
        "Position": list(range(1, len(waiting) + 1)),
        "Experiment": [w.experiment for w in waiting],
        "Method": [w.label for w in waiting],
        "Seed": [w.seed for w in waiting],
        "Held out": [w.held_out or "" for w in waiting],
        "Rounds": [w.rounds_total for w in waiting],
        "Device": [w.requested_device for w in waiting],
        "Memory, GB": [None if w.needed_memory is None else w.needed_memory / 1e9 for w in waiting],
    }
    if nodes is not None:
        over = cluster_view.read_over(session.store())
        rows["Waits for"] = [cluster_view.waits_for(w, nodes, over) for w in waiting]
    memory = st.column_config.NumberColumn(
        format="%.1f", help="Peak memory of earlier runs with this setting"
    )
    config = {"Experiment": st.column_config.TextColumn(width="medium"), "Memory, GB": memory}
    ids = [w.id for w in waiting]
    selected = selectable_table(rows, ids, TABLE, column_config=config, placeholder="not measured")
    _moves(selected, selected, session.store().queue.move)


def _experiments(waiting: Sequence[QueuedRun]) -> None:
    """Draw the experiments with queued runs, and the buttons that move all runs of an experiment."""
    runs = group_by(waiting, lambda w: w.experiment_id)
    rows: dict[str, Sequence[object]] = {
        "Position": list(range(1, len(runs) + 1)),
        "Experiment": [of_one[0].experiment for of_one in runs.values()],
        "Waiting runs": [len(of_one) for of_one in runs.values()],
        "Methods": [", ".join(dict.fromkeys(w.label for w in of_one)) for of_one in runs.values()],
        "Rounds": [sum(w.rounds_total for w in of_one) for of_one in runs.values()],
    }
    config = {"Experiment": st.column_config.TextColumn(width="medium")}
    selected = selectable_table(rows, list(runs), f"{TABLE}_of_experiments", column_config=config)
    chosen = [w.id for number in selected for w in runs[number]]
    _moves(selected, chosen, session.store().queue.move_experiments)


def _slots(nodes: Sequence[NodeView]) -> None:
    """Draw the number of runs that may share each device, of the nodes or of this machine."""
    store = session.store()
    stored = store.queue.slots()
    titles = {pool: pool for node in nodes for pool in node.pools}
    with st.container(horizontal=True):
        for device, title in (titles or {d.id: d.name for d in devices.list_devices()}).items():
            key = f"slots_{device}"
            st.number_input(
                f"Runs at once on {title}",
                1,
                MAX_SLOTS,
                value=stored.get(device, 1),
                key=key,
                disabled=not session.writable(),
                on_change=_store,
                args=(device, key),
                width=240,
                help="Another run starts only if enough memory is free, judged by earlier runs with its "
                "setting. Runs that share the CPU divide its threads.",
            )


def _store(device: str, key: str) -> None:
    session.store().queue.set_slots(device, int(st.session_state[key]))


def _moves(
    selected: Sequence[int], runs: Sequence[int], move: Callable[[Sequence[int], Place], list[int]]
) -> None:
    """Draw the buttons for the selected rows.

    Args:
        selected: rows of the table, which are runs or experiments.
        runs: the queued runs that they stand for.
    """
    idle = not selected or not session.writable()
    with st.container(horizontal=True):
        for place, icon in MOVES.items():
            if st.button(place.capitalize(), icon=f":material/{icon}:", disabled=idle, key=f"queue_{place}"):
                started = len(runs) - len(move(selected, place))
                if started > 0:
                    st.toast(f"{started} run{'s' * (started != 1)} had already started.")
                st.rerun()
        if st.button("Stop", icon=":material/stop_circle:", disabled=idle, key="queue_stop"):
            session.store().runs.stop(runs)
            st.rerun()
    if not selected:
        st.caption(
            "Select rows in the first column to move their runs, or to stop them before they start.",
            help="With the keyboard, Shift + Space selects a row.",
        )
