"""The width of the reader's window, as the browser measures it."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

NARROW_WINDOW = 640
"""Pixels up to which panels stand below each other; Streamlit's own columns do so from the same width."""
KEY = "viewport"
HIDDEN = "<style>.st-key-viewport_place { display: none; }</style>"
_component = st.components.v2.component(
    "viewport", html="<i></i>", js=Path(__file__).with_suffix(".js").read_text(encoding="utf-8")
)


def measure() -> None:
    """Let the browser measure its window; the page is drawn again when it becomes narrow or wide."""
    with st.container(key="viewport_place"):
        st.html(HIDDEN)
        _component(key=KEY, data={"width": NARROW_WINDOW, "narrow": is_narrow()}, on_narrow_change=_ignore)


def is_narrow() -> bool:
    """Return whether the window is narrow; before the browser has measured, whether it is a telephone's."""
    measured = st.session_state.get(KEY)
    told = None if measured is None else measured.get("narrow")
    return "Mobi" in (st.context.headers.get("User-Agent") or "") if told is None else bool(told)


def _ignore() -> None:
    """Do nothing: Streamlit reruns the page by itself."""
