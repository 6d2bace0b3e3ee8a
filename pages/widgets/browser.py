"""Scripts that run in the browser: invisible Streamlit components, each with a file in ``assets``."""

from collections.abc import Callable
from typing import Any, NamedTuple

import streamlit as st

from pages.widgets import session


def script(name: str) -> Callable[..., Any]:
    """Return a function that loads ``assets/NAME.js`` into the page, without anything to see.

    Its arguments are those of a Streamlit component: ``data`` for the script, ``on_X_change`` for its events.
    """
    code = (session.ASSETS / f"{name}.js").read_text(encoding="utf-8")
    component = st.components.v2.component(name, html="<i></i>", js=code)

    def load(key: str, **arguments: Any) -> None:
        with st.container(key=f"{key}_place"):  # style.css hides it
            component(key=key, **arguments)

    return load


def ignore() -> None:
    """Do nothing: Streamlit reports a component's event, and reruns the page, only if it has a callback."""


_viewport, _line_focus, _shortcuts = script("viewport"), script("line_focus"), script("shortcuts")
_cell_click, _window = script("cell_click"), script("window")


def measure_window() -> None:
    """Let the browser report its window; the page is drawn again when its width or theme changes."""
    seen = {"width": session.NARROW_WINDOW, "narrow": session.is_narrow(), "dark": session.is_dark()}
    _viewport(session.VIEWPORT, data=seen, on_narrow_change=ignore, on_dark_change=ignore)


def mend_window() -> None:
    """Give each visit of a page one entry in the history; say that runs go on when the connection is lost."""
    _window("window")


def focus_lines() -> None:
    """Highlight the line under the pointer in every chart of the page, and fade the others."""
    _line_focus("line_focus")


def listen_for_shortcuts() -> None:
    """Let ``g`` and a letter open a page, and ``?`` the list of shortcuts with the switch for them."""
    pages = [
        {"key": page.key, "title": page.title, "path": f"{session.base_path()}/{page.address}"}
        for page in session.PAGES
        if page.key
    ]
    _shortcuts("shortcuts", data={"pages": pages})


class CellClick(NamedTuple):
    """The cell that was clicked, by its panel's position in the chart and its row and column there."""

    panel: int
    row: int
    column: int


def on_cell_click(chart_key: str, chosen: Callable[[CellClick], None]) -> None:
    """Call a function with each clicked cell of a heatmap; the page is then drawn again."""
    key = f"cell_click_{chart_key}"

    def clicked() -> None:
        cell = st.session_state[key].get("cell")
        if cell is not None:
            chosen(CellClick(*(int(cell[name]) for name in ("panel", "row", "column"))))

    _cell_click(key, data={"chart": chart_key}, on_cell_change=clicked)
