"""The nodes of a Ray cluster on the page Experiments: their devices and runs, and the form that joins one."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from fedcore.cluster import choice
from fedcore.cluster.connection import AUTO, HOW_TO_INSTALL, is_installed
from fedcore.devices import Device
from fedcore.errors import FedLensError
from fedcore.jobs import cluster_view, supervisor
from fedcore.jobs.cluster_view import NodeView
from fedcore.jobs.locks import SupervisorLock
from fedcore.store.jobs import RUNS
from pages.widgets import markup, session

POLL_SECONDS = 3
HEADER = [
    ("Node", "name"),
    ("Device", "wide"),
    ("Memory, GB", "num"),
    ("Load", "num"),
    ("Runs now", "prose"),
    ("State", "prose"),
]


def draw(nodes: Sequence[NodeView] | None) -> None:
    """Draw the nodes, which update themselves, and the controls that join or leave a cluster."""
    if nodes is not None:
        _table()
    if not is_installed():
        if nodes is None:
            st.caption(
                f"To train on more machines: `{HOW_TO_INSTALL}`, then start the dashboard again "
                "(docs/cluster.md)."
            )
        return
    address = choice.chosen(session.store().artifacts)
    if address is not None:
        _chosen(address, joined=nodes is not None)
    elif nodes is None:
        _connect()


def _connect() -> None:
    """Draw the field for the address of a cluster."""
    with st.form("cluster", border=False), st.container(horizontal=True, vertical_alignment="bottom"):
        address = st.text_input(
            "Ray cluster", placeholder="host:port of its head; empty: on this machine", key="cluster_address",
            width=360, help="Queued runs then train on its nodes. Start it with `ray start --head`; the "
            "token in ~/.ray/auth_token must be the same on every node (docs/cluster.md).",
        )  # fmt: skip
        over = st.number_input(
            "Devices per run", 1, choice.MAX_OVER, key="cluster_over", width=150,
            help="1: every device trains whole runs. More: one run at a time, whose clients are spread over "
            "so many GPUs (CPUs where no node has a GPU); its numbers stay the same.",
        )  # fmt: skip
        connect = st.form_submit_button("Connect", icon=":material/hub:", disabled=not session.writable())
    if not connect:
        return
    try:
        choice.choose(session.store().artifacts, address, int(over) if over > 1 else None)
    except FedLensError as error:
        markup.show_error(error)
        return
    _start()


def _start() -> None:
    """Start the worker that joins the chosen cluster, and show the page anew."""
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
    problem = choice.problem_of(store.artifacts)
    if (cluster_view.read(store) is not None) != joined:
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
            choice.choose(store.artifacts, address, choice.chosen_over(store.artifacts))
            _start()
        if st.button(
            "Disconnect", icon=":material/link_off:", disabled=not session.writable(),
            help="Runs on the nodes finish there; queued runs then train on this machine.",
        ):  # fmt: skip
            choice.leave(store.artifacts)
            st.rerun()


@st.fragment(run_every=POLL_SECONDS)
def _table() -> None:
    """Draw the table of the nodes as they are now."""
    store = session.store()
    nodes = cluster_view.read(store)
    if nodes is None:
        st.caption("The worker has left the Ray cluster.")
        return
    running: dict[str, list[int]] = {}
    for row in store.jobs.live(RUNS):
        running.setdefault(row["device"], []).append(row["id"])
    over = cluster_view.read_over(store)
    none = "none" if over is None else "see below"
    rows = [
        _row(node, pool, device, running.get(pool, []) if first else [], none)
        for node in nodes
        for pool in node.pools
        for first, device in _numbered(node.devices_of(pool))
    ]
    st.html(markup.table_html(HEADER, rows, "Nodes"))
    if over is not None:
        now = ", ".join(f"run {run}" for runs in running.values() for run in runs)
        st.caption(f"Each run is spread over {over} devices, one run at a time; now: {now or 'none'}.")


def _numbered(devices: Sequence[Device]) -> list[tuple[bool, Device | None]]:
    """Return the devices of a pool, each with whether it is the first; (True, None) if none was reported."""
    return [(i == 0, device) for i, device in enumerate(devices)] or [(True, None)]


def _row(node: NodeView, pool: str, device: Device | None, runs: Sequence[int], none: str) -> list[str]:
    """Return the cells of one device as HTML.

    Args:
        none: text for a device without runs.
    """
    state = node.problem or "; ".join(node.notes) or "ready"
    memory = f"{device.memory_used / 1e9:.1f} of {device.memory_total / 1e9:.0f}" if device else "-"
    load = "-" if device is None or device.load is None else f"{device.load:.0%}"
    links = [f'<a href="{session.link("run", run)}" target="_self">run {run}</a>' for run in runs]
    return [
        markup.esc(node.name),
        markup.esc(device.name if device else pool.rpartition("/")[2]),
        memory,
        load,
        ", ".join(links) or markup.faint(none),
        markup.esc(state),
    ]
