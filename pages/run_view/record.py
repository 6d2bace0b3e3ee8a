"""Two tabs of the page Run: its log and files, and how to reproduce it."""

from __future__ import annotations

import time

import streamlit as st

from fedcore.results import progress
from fedcore.results.run_files import (
    environment_texts,
    kept_files,
    repeat_command,
    run_toml,
    trained_with,
)
from fedcore.store import RunRow
from pages.widgets import markup, session

LOG_LINES = 400


def log(run: RunRow) -> None:
    """Draw the notices, the error, the end of the log, and the files of a run."""
    store = session.store()
    for note in run.notices:
        st.markdown(f"- {markup.md(str(note['message']))}")
    trace, tail = store.runs.error(run.id), progress.log_tail(store, run.id, LOG_LINES)
    if trace and trace.strip() not in tail:
        st.code(trace, language=None, wrap_lines=True)
    if tail:
        st.code(tail, language=None, wrap_lines=True)
        st.caption(f"The last {LOG_LINES} lines, read at {time.strftime('%H:%M:%S')}.")
    else:
        why = ": it was trained elsewhere, or its files were deleted" if run.rounds_done and run.ended else ""
        st.info(f"This run has no log here{why}.", icon=":material/description:")
    path = store.runs.log_path(run.id)
    if not run.ended:
        st.button("Refresh", icon=":material/refresh:", key="run_log_refresh")
    kept = kept_files(store, run.id)
    if kept:
        head = [("File", "wide"), ("Kind", ""), ("MB", "num"), ("Written", "name")]
        rows = [[markup.esc(f.name), f.kind, f"{f.megabytes:.2f}", f.written] for f in kept]
        st.html(markup.table_html(head, rows, "Files of this run"))
        st.caption(markup.md(f"In {path.parent}"))


def reproduce(run: RunRow) -> None:
    """Draw the config, the environment, and the command that repeats the run."""
    store = session.store()
    text, environment = run_toml(store, run.id), store.runs.environment(run.id)
    if run.origin == "engine":
        name = f"run-{run.id}.toml"
        st.download_button(f"Download {name}", text, name, on_click="ignore", icon=":material/download:")
        st.caption("Save it in the folder of FedLens and run there, with its environment active:")
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
        rows = [[markup.esc(k), markup.esc(v)] for k, v in environment_texts(environment).items()]
        st.html(
            markup.table_html([("Environment", "name"), ("Value", "prose")], rows, "Environment of the run")
        )
