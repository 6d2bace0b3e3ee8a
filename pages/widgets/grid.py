"""A component that draws HTML with buttons, such as a paper's table or the cards of data sets."""

import streamlit as st

from pages.widgets import browser, session

_component = st.components.v2.component(
    "grid",
    html='<div class="grid"></div>',
    css=(session.ASSETS / "grid.css").read_text(encoding="utf-8"),
    js=(session.ASSETS / "grid.js").read_text(encoding="utf-8"),
)


def draw_html(html: str, key: str) -> str | None:
    """Draw HTML with buttons, such as a table of them, whose arrow keys and clicks a component handles.

    ``st.dataframe`` draws on a canvas, where a cell has one line and one colour, and a link would load the
    whole page again. New HTML replaces the old in place, so that scroll position and focus stay.

    Args:
        html: not escaped again; the caller has escaped all text of users.

    Returns: the ``data-choice`` of the button that caused this rerun, if any.
    """
    chosen = _component(key=key, data={"html": html}, on_chosen_change=browser.ignore).get("chosen")
    return str(chosen["choice"]) if chosen else None
