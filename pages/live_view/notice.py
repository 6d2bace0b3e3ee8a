"""The progress of an experiment in the browser's tab, and a notification at its end on request."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from fedcore.store import ExperimentRow
from pages.widgets import pulse

SECONDS = 5
"""Seconds between two polls; browsers run timers of hidden tabs less often."""
CSS = """
button { font: inherit; font-size: 0.875rem; color: inherit; background: none; cursor: pointer;
  min-height: 2.5rem; padding: 0.25rem 0.75rem; white-space: nowrap;
  border: 1px solid color-mix(in srgb, currentColor 25%, transparent); border-radius: 0.5rem; }
button:disabled { cursor: default; opacity: 0.75; }
button:focus-visible { outline: 2px solid currentColor; outline-offset: 2px; }
button[hidden] { display: none; }
"""
_component = st.components.v2.component(
    "live_notice",
    html='<button type="button" hidden>Notify me</button>',
    css=CSS,
    js=Path(__file__).with_suffix(".js").read_text(encoding="utf-8"),
)


def draw(experiment: ExperimentRow) -> None:
    """Draw the button for a notification, which the script shows only until the experiment has ended."""
    _component(
        key="live_notice",
        width="content",
        data={
            "address": pulse.counts_address(experiment.id),
            "every": SECONDS,
            "experiment": experiment.id,
            "name": experiment.name,
            "going": any(not run.ended for run in experiment.runs),
        },
    )
