"""What all figures share."""

from __future__ import annotations

import re

import numpy as np
import pytest

from fedcore.methods import MatrixChart
from fedcore.plots import heatmaps
from fedcore.plots.chart import short_name
from fedcore.plots.theme import Theme
from fedcore.results.panels.panel import Panel


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("a" * 16, "a" * 16),
        ("a" * 17, "a" * 15 + "…"),
        ("数" * 8, "数" * 8),
        ("数" * 9, "数" * 7 + "…"),
        ("a" + "数" * 8, "a" + "数" * 7 + "…"),
        ("W" * 20, "W" * 8 + "…"),
        ("<b>", "&lt;b&gt;"),
        ("", ""),
    ],
)
def test_names_on_axes_are_cut_to_one_width(name: str, label: str) -> None:
    assert short_name(name) == label


def test_no_weight_takes_a_colour_of_the_theme() -> None:
    """Streamlit replaces #000001 to #000010: Magma's own first colour, #000004, became FedDEAP's pink."""
    none = np.zeros((1, 1))
    matrix = MatrixChart("attention", "Attention")
    panel = Panel("Attention", "fedalign", ("a",), ("a",), none, none, none, matrix=matrix)
    axis = heatmaps.heatmap_grid([panel], Theme(), 1).figure.layout.coloraxis
    assert (axis.cmin, axis.cmax) == (0, 1)
    assert all(not re.fullmatch(r"#0000(0.|10)", colour) for _, colour in axis.colorscale)
