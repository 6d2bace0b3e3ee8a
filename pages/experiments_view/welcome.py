"""The page Experiments before the first experiment: what it will show, and the demonstration."""

from __future__ import annotations

import streamlit as st

from fedcore.plots.theme import DARK_TEXT_FROM
from pages.widgets import background

COLUMNS = ("Photos", "Sketches")
ROWS = (("Global model", (62, 58)), ("Model of Photos", (91, 34)), ("Model of Sketches", (41, 88)))
SHADES = {34: "#434e6c", 41: "#575d6d", 58: "#868278", 62: "#948e77", 88: "#d9c55c", 91: "#e2cd54"}
"""Colours of Cividis from 0 to 100 % at the values of the picture."""
TEXT = (
    "Each <b>row</b> is a model: the global one, or that of one client. Each <b>column</b> is a set of test "
    "images. A <b>cell</b> is the model's accuracy on these images in per cent. On the framed diagonal, "
    "clients are tested on images like their own; elsewhere, on those of others."
)


def draw() -> None:
    """Explain the page to a newcomer, and offer the demonstration that fills it."""
    with st.container(border=True):
        st.header("No experiments yet")
        st.write(
            "Your comparisons will appear here: federated methods that adapt CLIP, trained on the same data "
            "with the same clients and seeds. **Try it** compares four methods with zero-shot CLIP and "
            "PromptFL on handwritten digits in six rotations. Everything it needs comes with FedLens; it "
            "takes about two minutes."
        )
        st.html(heatmap_key())
        with st.container(horizontal=True):
            background.demo_buttons()
            if st.button("New experiment", icon=":material/add:", key="new_empty"):
                st.switch_page("pages/new.py", query_params={})


def heatmap_key() -> str:
    """Return a small picture that explains the rows, columns and cells of heatmaps, as HTML."""
    head = "".join(f'<th scope="col">{name}</th>' for name in COLUMNS)
    rows = ""
    for i, (name, values) in enumerate(ROWS):
        cells = "".join(_cell(v, own=i == j + 1) for j, v in enumerate(values))
        rows += f'<tr><th scope="row">{name}</th>{cells}</tr>'
    caption = "<caption>test images of</caption>"
    table = f"<table>{caption}<thead><tr><td></td>{head}</tr></thead><tbody>{rows}</tbody></table>"
    return f'<div class="fl-key">{table}<p>{TEXT}</p></div>'


def _cell(value: int, own: bool) -> str:
    ink = "#000000" if value >= DARK_TEXT_FROM["accuracy"] else "#ffffff"
    frame = ' class="own"' if own else ""
    return f'<td{frame} style="background:{SHADES[value]};color:{ink}">{value}</td>'
