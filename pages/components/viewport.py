"""The width of the browser's window and its theme, as the browser reports them."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

NARROW_WINDOW = 640
"""Width in pixels up to which panels are stacked, as Streamlit stacks its columns."""
KEY = "viewport"
HIDDEN = "<style>.st-key-viewport_place { display: none; }</style>"
_component = st.components.v2.component(
    "viewport", html="<i></i>", js=Path(__file__).with_suffix(".js").read_text(encoding="utf-8")
)


def measure() -> None:
    """Let the browser report its window; the page is drawn again when its width or theme changes."""
    with st.container(key="viewport_place"):
        st.html(HIDDEN)
        seen = {"width": NARROW_WINDOW, "narrow": is_narrow(), "dark": is_dark()}
        _component(key=KEY, data=seen, on_narrow_change=_ignore, on_dark_change=_ignore)


def is_narrow() -> bool:
    """Return whether the window is narrow; until the browser has reported it, whether it is a telephone."""
    measured = st.session_state.get(KEY)
    narrow = None if measured is None else measured.get("narrow")
    return "Mobi" in (st.context.headers.get("User-Agent") or "") if narrow is None else bool(narrow)


def is_dark() -> bool:
    """Return whether the reader's theme is dark."""
    return st.context.theme.type == "dark"


def _ignore() -> None:
    """Do nothing; without a callback Streamlit would not report the event, and it reruns the page itself."""
