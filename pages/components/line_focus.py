"""Lines of a chart are brought out one at a time: the one under the pointer stays, the others fade."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

HIDDEN = "<style>.st-key-line_focus { display: none; }</style>"
_component = st.components.v2.component(
    "line_focus", html="<i></i>", js=Path(__file__).with_suffix(".js").read_text(encoding="utf-8")
)


def follow() -> None:
    """Let the browser bring out lines in all charts of the page."""
    with st.container(key="line_focus"):
        st.html(HIDDEN)
        _component(key="line_focus_script")
