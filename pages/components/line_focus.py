"""A script that highlights the line of a chart under the pointer and fades the others."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

HIDDEN = "<style>.st-key-line_focus { display: none; }</style>"
_component = st.components.v2.component(
    "line_focus", html="<i></i>", js=Path(__file__).with_suffix(".js").read_text(encoding="utf-8")
)


def follow() -> None:
    """Load the script, which follows the pointer on all charts of the page."""
    with st.container(key="line_focus"):
        st.html(HIDDEN)
        _component(key="line_focus_script")
