"""Keyboard shortcuts: ``g`` and a letter open a page, ``?`` opens their list and the switch for them."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

PAGE_KEYS = {
    "e": ("Experiments", ""),
    "n": ("New", "new"),
    "l": ("Live", "live"),
    "c": ("Compare", "compare"),
    "b": ("Leaderboard", "leaderboard"),
    "p": ("Papers", "papers"),
    "d": ("Data & models", "data"),
}
"""Letter after ``g`` -> title and address of the page."""
HIDDEN = "<style>.st-key-shortcuts { display: none; }</style>"
_component = st.components.v2.component(
    "shortcuts", html="<i></i>", js=Path(__file__).with_suffix(".js").read_text(encoding="utf-8")
)


def listen(base_path: str) -> None:
    """Let the browser listen for the shortcuts; the addresses of pages begin with ``base_path``."""
    pages = [
        {"key": key, "title": title, "path": f"{base_path}/{address}"}
        for key, (title, address) in PAGE_KEYS.items()
    ]
    with st.container(key="shortcuts"):
        st.html(HIDDEN)
        _component(key="shortcuts_script", data={"pages": pages})
