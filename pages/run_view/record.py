"""Tabs of the page Run that show what was recorded: clients, log and files, and how to reproduce the run."""

import time
from collections import Counter

import streamlit as st

from fedcore.results import progress
from fedcore.results.run_files import (
    environment_texts,
    repeat_command,
    run_toml,
    stored_files,
    trained_with,
)
from fedcore.store import RunRow
from pages.widgets import markup, session

LOG_LINES = 400
MANY_CLIENTS = 15
"""Clients above which their table scrolls."""


def clients(run: RunRow) -> None:
    """Draw a table of the clients' data, accuracy, rounds and traffic."""
    store = session.store()
    entities = [e for e in store.cells.entities(run.id) if e.kind == "client"]
    if not entities:
        no_round_yet(run)
        return
    last = {o.client: o for o in store.cells.own_accuracy(run.id)}
    took_part = store.rounds.clients(run.id)
    # of a script's runs nobody recorded who took part, which is not the same as nobody
    is_recorded = bool(took_part) or run.origin == "engine"
    traffic: Counter[int] = Counter()
    rounds: Counter[int] = Counter()
    for row in took_part:
        traffic[row.client] += (row.bytes_up or 0) + (row.bytes_down or 0)
        rounds[row.client] += 1
    accuracies = [last.get(e.entity) for e in entities]
    columns: dict[str, list[object]] = {
        "Client": [e.name for e in entities],
        "Domain": [e.domain or "mixed" for e in entities],
        "Training samples": [e.samples for e in entities],
        "Own accuracy, %": [
            None if o is None else markup.rounded_alike(100 * o.correct / o.total, 1) for o in accuracies
        ],
        "Test samples": [None if o is None else o.total for o in accuracies],
        "Rounds": [rounds[e.entity] if is_recorded else None for e in entities],
        "Traffic, MB": [traffic[e.entity] / progress.MEGABYTE if is_recorded else None for e in entities],
    }
    formats = {
        "Own accuracy, %": st.column_config.NumberColumn(format="%.1f"),
        "Traffic, MB": st.column_config.NumberColumn(format="%.2f"),
    }
    st.dataframe(
        columns,
        hide_index=True,
        height=600 if len(entities) > MANY_CLIENTS else "content",
        key="run_clients",
        column_config=formats,
        placeholder="-",
        alt="Clients",
    )


def no_round_yet(run: RunRow) -> None:
    """Say that no round has been evaluated."""
    text = (
        "This run ended before any round was evaluated." if run.ended else "No round has been evaluated yet."
    )
    st.info(text, icon=":material/hourglass:")


def log(run: RunRow) -> None:
    """Draw the notices, the error, the end of the log, and the files of a run."""
    store = session.store()
    for note in run.notices:
        st.markdown(f"- {markup.md(note.message)}")
    trace, tail = store.runs.error(run.id), progress.log_tail(store, run.id, LOG_LINES)
    if trace and trace.strip() not in tail:
        st.code(trace, language=None, wrap_lines=True)
    if tail:
        st.code(tail, language=None, wrap_lines=True)
        st.caption(f"At most the last {LOG_LINES} lines of the log, read at {time.strftime('%H:%M:%S')}.")
    else:
        why = ": it was trained elsewhere, or its files were deleted" if run.rounds_done and run.ended else ""
        st.info(f"This run has no log here{why}.", icon=":material/description:")
    path = store.runs.log_path(run.id)
    if not run.ended:
        st.button("Refresh", icon=":material/refresh:", key="run_log_refresh")
    files = stored_files(store, run.id)
    if files:
        columns = {
            "File": [markup.md(f.name) for f in files],
            "Kind": [f.kind for f in files],
            "MB": [f"{f.megabytes:.2f}" for f in files],
            "Written": [f.written for f in files],
        }
        markup.table(columns, "Files of this run")
        st.caption(markup.md(f"In {path.parent}"))


def reproduce(run: RunRow) -> None:
    """Draw the config, the environment, and the command that repeats the run."""
    store = session.store()
    text, environment = run_toml(store, run.id), store.runs.environment(run.id)
    if run.origin == "engine":
        name = f"run-{run.id}.toml"
        markup.download(f"Download {name}", text, name)
        st.caption("Save the file in FedLens's folder, activate its environment, and run there:")
        st.code(repeat_command(name, environment), language="bash", wrap_lines=True)
        st.caption(
            f"{trained_with(environment)}. The config below lists all hyper-parameters.",
            help="The same machine, versions and config give the same numbers, in a new experiment beside "
            "this one.",
        )
    else:
        st.info(
            "These results were recorded by a script or imported, so FedLens cannot repeat them. The config "
            "that came with them is below.",
            icon=":material/info:",
        )
    st.code(text, language="toml", wrap_lines=True)
    if environment:
        texts = environment_texts(environment)
        columns = {"Environment": list(map(markup.md, texts)), "Value": list(map(markup.md, texts.values()))}
        markup.table(columns, "Environment of the run")
