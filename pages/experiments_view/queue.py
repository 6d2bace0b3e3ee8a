"""The queue on the page Experiments: queued runs, the number of runs per device, the nodes of a cluster."""

from collections.abc import Callable, Sequence

import streamlit as st

from fedcore import devices
from fedcore.cluster import choice
from fedcore.cluster.connection import AUTO, HOW_TO_INSTALL, is_installed
from fedcore.devices import Device
from fedcore.errors import FedLensError
from fedcore.jobs import cluster_nodes, supervisor
from fedcore.jobs.cluster_nodes import ClusterView, NodeState
from fedcore.jobs.launcher import NODES
from fedcore.jobs.supervisor import SupervisorLock
from fedcore.progress import counted, listed
from fedcore.results.statistics import group_by
from fedcore.store.jobs import RUNS
from fedcore.store.queue import MAX_SLOTS, Move, QueuedRun
from pages.experiments_view.table import selectable_table
from pages.widgets import markup, session

MOVES: dict[Move, str] = {"top": "vertical_align_top", "up": "arrow_upward", "down": "arrow_downward"}
TABLE = "queue_table"
NODE_TITLES = {"gpu": "each GPU", "cpu": "each node's CPU"}
POLL_SECONDS = 3
HEADER = [
    ("Node", "name"),
    ("State", "wide"),
    ("Device", "wide"),
    ("Memory, GB", "num"),
    ("Load", "num"),
    ("Runs now", "prose"),
]


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
    joined = cluster_nodes.read(store)
    with box:
        cluster(joined is not None)
        if joined is None or joined.over is None:
            _slots(joined)
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
            _runs(waiting, joined)


def _runs(waiting: Sequence[QueuedRun], joined: ClusterView | None) -> None:
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
    if joined is not None:
        rows["Waits for"] = [joined.waits.get(w.id, "the runs before it") for w in waiting]
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


def _slots(joined: ClusterView | None) -> None:
    """Draw the number of runs that may share a device, of the nodes or of this machine."""
    store = session.store()
    stored = store.queue.slots()
    if joined is None:
        titles = {d.id: d.name for d in devices.list_devices()}
    else:
        kinds = {pool.rpartition("/")[2] for node in joined.nodes for pool in node.pools}
        titles = {f"{NODES}/{kind}": title for kind, title in NODE_TITLES.items() if kind in kinds}
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
    if joined is None:
        cpus, wanted = devices.usable_cpus(), stored.get(devices.CPU, 1)
        if wanted > cpus:
            st.caption(
                f"This machine has {counted(cpus, 'CPU')}. {wanted} runs at once take turns there and end no "
                "sooner than one after the other."
            )
        return
    wanted = stored.get(f"{NODES}/cpu", 1)
    if small := [f"{n.name} has {n.node.cpus}" for n in joined.nodes if 0 < n.node.cpus < wanted]:
        st.caption(markup.md(f"A node trains no more runs at once than it has CPUs: {listed(small)}."))


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


def cluster(joined: bool) -> None:
    """Draw the nodes, which update themselves, and the controls that join or leave a cluster."""
    if joined:
        _table()
    if not is_installed():
        if not joined:
            st.caption(
                f"To train on more machines: `{HOW_TO_INSTALL}`, then start the dashboard again "
                "(docs/cluster.md)."
            )
        return
    address = choice.chosen(session.store().path)
    if address is not None:
        _chosen(address, joined)
    elif not joined:
        _connect()


def _connect() -> None:
    with st.form("cluster", border=False), st.container(horizontal=True, vertical_alignment="bottom"):
        address = st.text_input(
            "Ray cluster",
            placeholder="host:port of its head; empty: on this machine",
            key="cluster_address",
            width=360,
            help="Queued runs then train on its nodes. Start it with `ray start --head`; the "
            "token in ~/.ray/auth_token must be the same on every node (docs/cluster.md).",
        )
        over = st.number_input(
            "Devices per run",
            1,
            choice.MAX_OVER,
            key="cluster_over",
            width=150,
            help="1: each device trains whole runs. More: each run is spread over this many GPUs, or CPUs if "
            "no node has a GPU; the results are the same.",
        )
        connect = st.form_submit_button("Connect", icon=":material/hub:", disabled=not session.writable())
    if not connect:
        return
    try:
        choice.choose(session.store().path, address, int(over) if over > 1 else None)
    except FedLensError as error:
        markup.show_error(error)
        return
    _start()


def _start() -> None:
    """Start the worker that joins the chosen cluster, and redraw the page."""
    try:
        supervisor.start_follower(session.store())
    except OSError as error:  # the next page that finds queued runs tries again
        st.toast(f"No worker can be started at present: {error.strerror}")
    st.rerun()


@markup.fragment(run_every=POLL_SECONDS)
def _chosen(address: str, joined: bool) -> None:
    """Show the cluster's status, with the buttons to disconnect and to try again."""
    store = session.store()
    where = "on this machine" if address == AUTO else f"at {address}"
    problem = choice.problem_of(store.path)
    if (cluster_nodes.read(store) is not None) != joined:
        st.rerun()
    if joined:
        st.caption(markup.md(f"Connected to the Ray cluster {where}."))
    elif problem is not None:
        markup.show_error(FedLensError(problem[:1].upper() + problem[1:]))
    elif SupervisorLock(store.path).is_free():
        st.caption(markup.md(f"FedLens joins the Ray cluster {where} as soon as runs are queued."))
    else:
        st.caption(
            markup.md(f"Joining the Ray cluster {where} as soon as the runs on this machine have ended.")
        )
    with st.container(horizontal=True):
        if problem is not None and not joined and st.button("Try again", icon=":material/refresh:"):
            choice.choose(store.path, address, choice.chosen_over(store.path))
            _start()
        if st.button(
            "Disconnect",
            icon=":material/link_off:",
            disabled=not session.writable(),
            help="Runs on the nodes finish there; queued runs then train on this machine.",
        ):
            choice.leave(store.path)
            st.rerun()


@st.fragment(run_every=POLL_SECONDS)
def _table() -> None:
    store = session.store()
    joined = cluster_nodes.read(store)
    if joined is None:
        st.caption("The worker has left the Ray cluster.")
        return
    running: dict[str, list[int]] = {}
    for row in store.jobs.live(RUNS):
        running.setdefault(row["device"], []).append(row["id"])
    none = "none" if joined.over is None else "see below"
    rows = []
    for node in joined.nodes:
        for pool in node.pools:
            runs = running.get(pool, []) if joined.over is None else []
            reported: Sequence[Device | None] = node.devices_of(pool) or [None]
            for device in reported:
                rows.append(_row(node, pool, device, runs, none))
                runs = []  # the runs of a pool stand beside its first device
    st.html(markup.table_html(HEADER, rows, "Nodes"))
    if joined.over is not None:
        now = ", ".join(f"run {run}" for runs in running.values() for run in runs)
        st.caption(f"Each run is spread over {joined.over} devices; now: {now or 'none'}.")


def _row(node: NodeState, pool: str, device: Device | None, runs: Sequence[int], none: str) -> list[str]:
    """Return the cells of one device as HTML; a device without runs has the text ``none``."""
    state = node.problem or "; ".join(("ready", *node.notes))
    memory = f"{device.memory_used / 1e9:.1f} of {device.memory_total / 1e9:.0f}" if device else "-"
    load = "-" if device is None or device.load is None else f"{100 * device.load:.0f} %"
    links = [markup.run_link(run, f"run {run}") for run in runs]
    return [
        markup.esc(node.name),
        markup.esc(state),
        markup.esc(device.name if device else pool.rpartition("/")[2]),
        memory,
        load,
        ", ".join(links) or markup.faint(none),
    ]
