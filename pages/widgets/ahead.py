"""Loads the pages' libraries in a thread when the server starts, so that the first visitor does not wait.

Loading libraries and methods takes a second of the processor, and a page's own work a tenth of that.
"""

import ast
import importlib
import inspect
import threading

import numpy as np

from fedcore.methods import registry
from fedcore.results.charts.heatmaps import PanelNote, heatmap_grid
from fedcore.results.charts.lines import line_chart
from fedcore.results.charts.theme import Theme
from fedcore.results.curves import Series
from fedcore.results.panels import Panel
from pages.widgets import session


def load() -> None:
    """Load what the pages import, the methods, and the classes of a chart."""
    pandas = importlib.import_module("pandas")  # whole, before plotly first looks for it, as in dashboard.py
    pandas.DataFrame([[0]]).stack().unstack().to_dict()  # pandas loads what reshapes results at its first use
    for page in session.PAGES:
        load_imports((session.ASSETS.parent / f"{page.file}.py").read_text(encoding="utf-8"))
    registry.load_built_in()
    draw()
    inspect.stack()  # finds the file of every module once, as Streamlit's first element would


def load_imports(code: str) -> None:
    """Import what the code of a page imports, without running it."""
    for line in ast.parse(code).body:
        if isinstance(line, ast.ImportFrom):
            __import__(line.module or "", fromlist=[name.name for name in line.names])
        elif isinstance(line, ast.Import):
            for name in line.names:
                importlib.import_module(name.name)


def draw() -> None:
    """Draw a heatmap and a line, for which plotly loads its classes."""
    counts = np.ones((1, 1), dtype=int)
    panel = Panel("", "", ("a",), ("b",), np.ones((1, 1)), counts, counts, own_columns=(0,))
    line = Series("", "", (0.0, 1.0), (0.0, 1.0), (None, None), 1, low=(0.0, 0.0), high=(1.0, 1.0))
    heatmap = heatmap_grid([panel], Theme(), notes=[PanelNote("", 1.0, Theme().ink)])
    for chart in (heatmap, line_chart([line], Theme(), "Round", "", name="a")):
        chart.figure.to_json()


def start() -> None:
    """Begin to load; what cannot be loaded is reported by the page that needs it, and in the terminal."""
    threading.Thread(target=load, name="loads ahead", daemon=True).start()
