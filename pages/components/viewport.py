"""The width and the colours of the reader's window, as the browser sees them."""

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
    """Let the browser look at its window; the page is drawn again when width or colours change."""
    with st.container(key="viewport_place"):
        st.html(HIDDEN)
        seen = {"width": NARROW_WINDOW, "narrow": is_narrow(), "dark": is_dark()}
        _component(key=KEY, data=seen, on_narrow_change=_ignore, on_dark_change=_ignore)


def is_narrow() -> bool:
    """Return whether the window is narrow; before the browser has measured, whether it is a telephone's."""
    measured = st.session_state.get(KEY)
    told = None if measured is None else measured.get("narrow")
    return "Mobi" in (st.context.headers.get("User-Agent") or "") if told is None else bool(told)


def is_dark() -> bool:
    """Return whether the reader's theme is dark."""
    return st.context.theme.type == "dark"


def _ignore() -> None:
    """Do nothing: Streamlit reruns the page by itself."""
