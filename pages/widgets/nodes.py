"""The nodes of a Ray cluster on the page Experiments: their devices, what runs there, and what is wrong."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from fedcore.cluster.connection import HOW_TO_INSTALL, is_installed
from fedcore.devices import Device
from fedcore.jobs import cluster_view
from fedcore.jobs.cluster_view import NodeView
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
    """Draw the nodes and keep them up to date; without a cluster, say how to get one."""
    if nodes is not None:
        _table()
        return
    install = "" if is_installed() else f"`{HOW_TO_INSTALL}`, then "
    st.caption(
        f"To train on more machines: {install}`fedlens worker --ray` on a Ray cluster (docs/cluster.md)."
    )


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
    rows = [
        _row(node, lane, device, running.get(lane, []) if first else [])
        for node in nodes
        for lane in node.lanes
        for first, device in _numbered(node.devices_of(lane))
    ]
    st.html(markup.table_html(HEADER, rows, "Nodes"))


def _numbered(devices: Sequence[Device]) -> list[tuple[bool, Device | None]]:
    """Return the devices of a lane, and whether each is its first; one line for a node without a report."""
    return [(i == 0, device) for i, device in enumerate(devices)] or [(True, None)]


def _row(node: NodeView, lane: str, device: Device | None, runs: Sequence[int]) -> list[str]:
    """Return the cells of one device as HTML."""
    state = node.problem or "; ".join(node.notes) or "ready"
    memory = f"{device.memory_used / 1e9:.1f} of {device.memory_total / 1e9:.0f}" if device else "-"
    load = "-" if device is None or device.load is None else f"{device.load:.0%}"
    links = [f'<a href="{session.link("run", run)}" target="_self">run {run}</a>' for run in runs]
    return [
        markup.esc(node.name),
        markup.esc(device.name if device else lane.rpartition("/")[2]),
        memory,
        load,
        ", ".join(links) or markup.faint("none"),
        markup.esc(state),
    ]
