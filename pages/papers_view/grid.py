"""A component for HTML with buttons, such as a table of them, that reports clicks and supports arrow keys.

``st.dataframe`` draws on a canvas, where a cell has one line and one colour, and a link would load the whole
page again. New HTML replaces the old in place, so that scroll position and focus stay.
"""

from __future__ import annotations

from pathlib import Path

import streamlit as st

_FOLDER = Path(__file__).parent
_component = st.components.v2.component(
    "papers_grid",
    html='<div class="grid"></div>',
    css=(_FOLDER / "grid.css").read_text(encoding="utf-8"),
    js=(_FOLDER / "grid.js").read_text(encoding="utf-8"),
)


def draw(html: str, key: str) -> str | None:
    """Draw HTML, and return the ``data-choice`` of the button that caused this rerun, if any.

    Args:
        html: not escaped again; the caller has escaped all text of users.
    """
    result = _component(key=key, data={"html": html}, on_chosen_change=_ignore)
    chosen = result.get("chosen")
    return str(chosen["choice"]) if chosen else None


def _ignore() -> None:
    """Do nothing; without a callback Streamlit would not report the event, and it reruns the page itself."""
