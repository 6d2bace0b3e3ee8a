"""Charts under the pointer: the toolbar covers nothing, one line is brought out, cells say what they are."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import plotly
import pytest

from fedcore.plots.heatmaps import difference_grid, heatmap_grid
from fedcore.plots.theme import Theme
from tests.support.cells import panels, sentence
from tests.support.web.browser import NewPage, Server, Tab

pytestmark = pytest.mark.browser
BROUGHT_OUT = """share => {
  const lines = [...document.querySelectorAll('.scatterlayer .trace')]; // each of two rows has a band
  const clear = lines.filter(e => getComputedStyle(e).opacity === '1');
  return lines.length === 4 && clear.length === share * lines.length;
}"""
COVERED = """() => {
  const bar = document.querySelector('.modebar').getBoundingClientRect();
  const plot = document.querySelector('.nsewdrag').getBoundingClientRect();
  return bar.bottom > plot.top + 1;
}"""


def test_the_pointer_brings_out_one_line_and_the_toolbar_covers_none(filled_server: Server, tab: Tab) -> None:
    page = tab.page
    page.goto(f"{filled_server.url}/compare?ids=1&tab=Curves")
    name = page.locator(".legend .legendtoggle").first
    name.hover()
    page.wait_for_function(BROUGHT_OUT, arg=0.5)
    assert not page.evaluate(COVERED)
    page.get_by_role("heading", name="Compare").hover()
    page.wait_for_function(BROUGHT_OUT, arg=1)


PLOTLY = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
DRAW = "spec => Plotly.newPlot('chart', spec.data, {...spec.layout, width: 900, height: 600})"
HOVER = """async ([x, y]) => {
  const chart = document.getElementById('chart');
  chart.querySelectorAll('.hovertext').forEach(e => e.remove());
  Plotly.Fx.hover(chart, {xval: x, yval: y}, 'xy');
  for (let frame = 0; frame < 100 && !chart.querySelector('.hovertext'); frame++)
    await new Promise(requestAnimationFrame);
  return [...chart.querySelectorAll('.hovertext .line')].map(e => e.textContent).join('\\n');
}"""


def test_a_cell_says_its_names_value_and_counts(new_page: NewPage) -> None:
    page = new_page()
    page.set_content("<div id='chart'></div>")
    page.add_script_tag(path=PLOTLY)
    for panel in panels():
        draw, dark = (difference_grid, True) if panel.title == "gap" else (heatmap_grid, False)
        page.evaluate(DRAW, json.loads(draw([panel], Theme(dark)).figure.to_json()))
        for i, j in np.argwhere(~np.isnan(panel.values))[::2]:
            assert page.evaluate(HOVER, [int(j), int(i)]) == sentence(panel, i, j)
