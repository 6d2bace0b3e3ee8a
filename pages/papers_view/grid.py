"""HTML with buttons in place of a table's cells: a click tells the page which one, keys move between them.

``st.dataframe`` draws on a canvas, where a cell has one line and one colour, and a link would load the whole
page anew. New HTML replaces the old one in place: scroll position and focus stay.
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
    """Draw HTML; return the ``data-choice`` of the button that was clicked just now, else None.

    Args:
        html: trusted; every text of a user in it is escaped.
    """
    result = _component(key=key, data={"html": html}, on_chosen_change=_ignore)
    chosen = result.get("chosen")
    return str(chosen["choice"]) if chosen else None


def _ignore() -> None:
    """Do nothing: Streamlit reruns the page by itself."""
