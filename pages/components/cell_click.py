"""Clicks on the cells of a heatmap, which Streamlit's own charts do not report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import streamlit as st

_component = st.components.v2.component(
    "cell_click", html="<i></i>", js=Path(__file__).with_suffix(".js").read_text(encoding="utf-8")
)


class CellClick(NamedTuple):
    """The cell that was clicked, by its panel's position in the chart and its row and column there."""

    panel: int
    row: int
    column: int


def listen(chart_key: str, chosen: Callable[[CellClick], None]) -> None:
    """Call a function with each clicked cell of a chart; the page is then drawn again.

    Args:
        chart_key: key of the chart.
    """
    key = f"cell_click_{chart_key}"

    def clicked() -> None:
        cell = st.session_state[key].get("cell")
        if cell is not None:
            chosen(CellClick(*(int(cell[name]) for name in ("panel", "row", "column"))))

    with st.container(key=f"{key}_place"):
        st.html(f"<style>.st-key-{key}_place {{ display: none; }}</style>")
        _component(key=key, data={"chart": chart_key}, on_cell_change=clicked)
