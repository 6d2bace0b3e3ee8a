"""The buttons that start the demonstration."""

from __future__ import annotations

import streamlit as st

from fedcore import jobs
from fedcore.engine.plan import plan
from fedcore.errors import FedLensError
from fedcore.papers.experiments import DEMO, preset
from pages.widgets import markup, session


def buttons() -> None:
    """Draw the button that starts the demonstration, and the one that shows its settings first."""
    may = session.writable()
    if st.button("Try it", type="primary", icon=":material/play_circle:", key="try_it", disabled=not may):
        _start()
    if st.button("Look at the settings first", icon=":material/tune:", key="try_it_settings"):
        st.switch_page("pages/new.py", query_params={"preset": "demo"})


def _start() -> None:
    store, experiment = session.store(), preset(DEMO)
    try:
        with st.spinner("Starting…"):
            created = store.experiments.create(experiment, plan(experiment).runs)
            jobs.ensure_worker(store)
    except FedLensError as error:
        markup.show_error(error)
        return
    st.switch_page("pages/live.py", query_params={"id": str(created.experiment_id)})
