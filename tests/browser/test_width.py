"""Panels follow the width of the window, not the kind of device, and charts its colours."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.support.web.browser import Server, Tab

pytestmark = pytest.mark.browser
ROWS = """rows => {
  const texts = [...document.querySelectorAll('.annotation-text')];
  const titles = texts.filter(e => /FedOT|PromptFL/.test(e.textContent));
  const tops = new Set(titles.map(e => Math.round(e.getBoundingClientRect().y / 20)));
  return titles.length === 2 && tops.size === rows;
}"""


@pytest.mark.slow
def test_a_narrow_window_of_a_desktop_has_one_panel_per_row(filled_server: Server, tab: Tab) -> None:
    page = tab.page
    page.set_viewport_size({"width": 390, "height": 1600})
    page.goto(f"{filled_server.url}/compare?ids=1&tab=Heatmaps")
    page.wait_for_function(ROWS, arg=2)
    page.set_viewport_size({"width": 1200, "height": 1600})
    page.wait_for_function(ROWS, arg=1)
    page.set_viewport_size({"width": 390, "height": 1600})
    page.wait_for_function(ROWS, arg=2)


def test_a_chart_follows_the_reader_from_light_to_dark(filled_server: Server, tab: Tab) -> None:
    """Its letters would stay dark on what is dark then."""
    page = tab.page
    page.goto(f"{filled_server.url}/compare?ids=1&tab=Cost")
    for scheme, letters in (("light", "rgb(28, 39, 51)"), ("dark", "rgb(232, 237, 242)")):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        expect(page.locator(".js-plotly-plot .xtick text").first).to_have_css("fill", letters)
