"""The queue on the page Experiments: queued runs and the number of runs per device."""

from collections.abc import Callable, Mapping, Sequence

import streamlit as st

from fedcore.base import devices
from fedcore.base.progress import counted
from fedcore.jobs import launcher
from fedcore.results.statistics import group_by
from fedcore.store.runs import MAX_SLOTS, Move, QueuedRun
from pages.experiments_view.table import selectable_table
from pages.widgets import session

MOVES: dict[Move, str] = {"top": "vertical_align_top", "up": "arrow_upward", "down": "arrow_downward"}
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
    with box:
        waits = _elsewhere()
        if waits is None:
            _slots({d.id: d.name for d in devices.list_devices()})
            cpus, wanted = devices.usable_cpus(), store.queue.slots().get(devices.CPU, 1)
            if wanted > cpus:
                st.caption(
                    f"This machine has {counted(cpus, 'CPU')}. {wanted} runs at once take turns there and "
                    "end no sooner than one after the other."
                )
        if not waiting:
            st.caption("Launched runs wait here while others train.")
            return
        unit = st.segmented_control(
            "Move",
            ["Runs", "Experiments"],
            default="Runs",
            required=True,
            key="queue_of",
            label_visibility="collapsed",
            bind="query-params",
        )
        if unit == "Experiments":
            _experiments(waiting)
        else:
            _runs(waiting, waits)


def _elsewhere() -> Mapping[int, str] | None:
    """Draw the machines of a cluster; returns what queued runs wait for there, None while none is joined."""
    cluster = launcher.cluster()
    if cluster is not None:
        return cluster.draw(_slots)
    st.caption(
        f"To train on more machines: `{launcher.HOW_TO_INSTALL}` in a checkout of FedLens (docs/cluster.md)."
    )
    return None


def _runs(waiting: Sequence[QueuedRun], waits: Mapping[int, str] | None) -> None:
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
    if waits is not None:
        rows["Waits for"] = [waits.get(w.id, "the runs before it") for w in waiting]
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
        "Experiment": [group[0].experiment for group in runs.values()],
        "Waiting runs": [len(group) for group in runs.values()],
        "Methods": [", ".join(dict.fromkeys(w.label for w in group)) for group in runs.values()],
        "Rounds": [sum(w.rounds_total for w in group) for group in runs.values()],
    }
    config = {"Experiment": st.column_config.TextColumn(width="medium")}
    selected = selectable_table(rows, list(runs), f"{TABLE}_of_experiments", column_config=config)
    chosen = [w.id for number in selected for w in runs[number]]
    _moves(selected, chosen, session.store().queue.move_experiments)


def _slots(titles: dict[str, str]) -> None:
    """Draw the number of runs that may share each of these devices."""
    stored = session.store().queue.slots()
    with st.container(horizontal=True):
        for device, title in titles.items():
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
    selected: Sequence[int], runs: Sequence[int], move: Callable[[Sequence[int], Move], list[int]]
) -> None:
    """Draw the buttons for the selected rows, runs or experiments, which stand for these queued runs."""
    idle = not selected or not session.writable()
    with st.container(horizontal=True):
        for place, icon in MOVES.items():
            if st.button(place.capitalize(), icon=f":material/{icon}:", disabled=idle, key=f"queue_{place}"):
                started = len(runs) - len(move(selected, place))
                if started > 0:
                    st.toast(f"{counted(started, 'run')} had already started.")
                st.rerun()
        if st.button("Stop", icon=":material/stop_circle:", disabled=idle, key="queue_stop"):
            session.store().runs.stop(runs)
            st.rerun()
    if not selected:
        st.caption(
            "Select rows in the first column to move their runs, or to stop them before they start.",
            help="With the keyboard, Shift + Space selects a row.",
        )
