"""The cluster on the page Experiments: its nodes, and the controls that join or leave it."""

from collections.abc import Callable, Mapping, Sequence

import streamlit as st

from fedcore.base.devices import Device
from fedcore.base.errors import FedLensError
from fedcore.base.progress import listed
from fedcore.jobs import supervisor
from fedcore.jobs.supervisor import SupervisorLock
from fedcore.store.jobs import RUNS
from fedlens_ray import connection, nodes
from fedlens_ray.connection import AUTO
from fedlens_ray.nodes import NODES
from pages.widgets import markup, session

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


def section(slots: Callable[[dict[str, str]], None]) -> Mapping[int, str] | None:
    """Draw the nodes, which update themselves, the controls, and the number of runs that share a device."""
    store = session.store()
    joined = nodes.read(store)
    if joined is not None:
        _table()
    chosen = connection.chosen(store.path)
    if chosen is not None:
        _chosen(chosen, joined is not None)
    elif joined is None:
        _connect()
    if joined is None:
        return None
    if joined.over is None:
        kinds = {pool.rpartition("/")[2] for node in joined.nodes for pool in node.pools}
        slots({f"{NODES}/{kind}": title for kind, title in NODE_TITLES.items() if kind in kinds})
        wanted = store.queue.slots().get(f"{NODES}/cpu", 1)
        if small := [f"{n.name} has {n.node.cpus}" for n in joined.nodes if 0 < n.node.cpus < wanted]:
            st.caption(markup.md(f"A node trains no more runs at once than it has CPUs: {listed(small)}."))
    return joined.waits


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
            connection.MAX_OVER,
            key="cluster_over",
            width=150,
            help="1: each device trains whole runs. More: each run is spread over this many GPUs, or CPUs if "
            "no node has a GPU; the results are the same.",
        )
        connect = st.form_submit_button("Connect", icon=":material/hub:", disabled=not session.writable())
    if not connect:
        return
    try:
        connection.choose(session.store().path, address, int(over) if over > 1 else None)
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
def _chosen(wanted: connection.Choice, joined: bool) -> None:
    """Show the cluster's status, with the buttons to disconnect and to try again."""
    store = session.store()
    where = "on this machine" if wanted.address == AUTO else f"at {wanted.address}"
    problem = connection.problem_of(store.path)
    if (nodes.read(store) is not None) != joined:
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
            connection.choose(store.path, *wanted)
            _start()
        if st.button(
            "Disconnect",
            icon=":material/link_off:",
            disabled=not session.writable(),
            help="Runs on the nodes finish there; queued runs then train on this machine.",
        ):
            connection.leave(store.path)
            st.rerun()


@st.fragment(run_every=POLL_SECONDS)
def _table() -> None:
    store = session.store()
    joined = nodes.read(store)
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
                names = (
                    node.name,
                    node.text,
                    device.name if device else pool.rpartition("/")[2],
                )
                used = f"{device.memory_used / 1e9:.1f} of {device.memory_total / 1e9:.0f}" if device else "-"
                load = "-" if device is None or device.load is None else f"{100 * device.load:.0f} %"
                links = ", ".join(markup.run_link(run, f"run {run}") for run in runs)
                rows.append([*map(markup.esc, names), used, load, links or markup.faint(none)])
                runs = []  # the runs of a pool stand beside its first device
    st.html(markup.table_html(HEADER, rows, "Nodes"))
    if joined.over is not None:
        now = ", ".join(f"run {run}" for runs in running.values() for run in runs)
        st.caption(f"Each run is spread over {joined.over} devices; now: {now or 'none'}.")
