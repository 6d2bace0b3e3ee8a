"""The tab Clients of the page Run: a table of the clients' data, accuracy, rounds and traffic."""

from __future__ import annotations

import streamlit as st

from fedcore.results import progress
from fedcore.store import RunRow
from pages.widgets import markup, session

MANY_CLIENTS = 200
"""Clients above which their table is drawn on a canvas: as HTML, ten thousand rows take seconds."""


def table(run: RunRow) -> bool:
    """Draw a table of the clients, and return whether any are known: not before the run has begun."""
    store = session.store()
    entities = [e for e in store.cells.entities(run.id) if e.kind == "client"]
    if not entities:
        return False
    last = {o.client: o for o in store.cells.own_accuracy(run.id)}
    sent: dict[int, int] = {}
    took: dict[int, int] = {}
    for row in store.rounds.clients(run.id):
        sent[row.client] = sent.get(row.client, 0) + (row.bytes_up or 0) + (row.bytes_down or 0)
        took[row.client] = took.get(row.client, 0) + 1
    own = [last.get(e.entity) for e in entities]
    columns: dict[str, list[object]] = {
        "Client": [e.name for e in entities],
        "Domain": [e.domain or "mixed" for e in entities],
        "Training samples": [e.samples for e in entities],
        "Own accuracy, %": [None if o is None else round(100 * o.correct / o.total, 1) for o in own],
        "Test samples": [None if o is None else o.total for o in own],
        "Rounds": [took.get(e.entity, 0) for e in entities],
        "Traffic, MB": [round(sent.get(e.entity, 0) / progress.MEGABYTE, 2) for e in entities],
    }
    if len(entities) > MANY_CLIENTS:
        st.dataframe(columns, hide_index=True, height=600, key="run_clients", placeholder="-")
        return True
    digits = {"Own accuracy, %": ".1f", "Traffic, MB": ".2f"}
    texts = [
        ["-" if v is None else format(v, digits.get(name, "")) for v in values]
        for name, values in columns.items()
    ]
    rows = [list(map(markup.esc, row)) for row in zip(*texts, strict=True)]
    header_ = [(name, "num" if i > 1 else "wide") for i, name in enumerate(columns)]
    st.html(markup.table_html(header_, rows, "Clients"))
    return True
