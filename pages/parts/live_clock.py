"""The clock of the Live page: it looks for news at short intervals and draws nothing itself.

A fragment that ticks sends all its elements again, and the browser renders them although none has changed. So
the ticking fragment holds one number; where it grows, the browser asks for the fragment with the figures.
"""

from __future__ import annotations

from pathlib import Path

import streamlit as st

_component = st.components.v2.component(
    "live_clock",
    html="<span></span>",
    js=Path(__file__).with_suffix(".js").read_text(encoding="utf-8"),
    isolate_styles=False,
)


def strike(news: int) -> None:
    """In the fragment that ticks: a larger number than before has the listener's fragment run."""
    _component(key="live_clock", data={"news": news})


def listen() -> None:
    """In the fragment that draws: it runs again when the clock has news."""
    _component(key="live_listener", data={"news": None}, on_draw_change=lambda: None)
