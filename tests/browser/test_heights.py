"""How tall the two fullest pages are in a window of 1440 x 900, and that nothing but a margin ends them."""

import pytest
from playwright.sync_api import Page, expect

from tests.support import fill
from tests.support.web.browser import Server, Tab, settle

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]
METHODS = ("zero-shot", "fedot", "promptfl", "feddeap", "sdfed", "fedalign")
MARGIN = 33  # pixels: 2 rem, and a part of one
HEIGHTS = """() => {
  const main = document.querySelector('[data-testid=stMain]');
  const seen = '.stMainBlockContainer :is(.stElementContainer, .stExpander, .stPopover)';
  const ends = [...document.querySelectorAll(seen)].filter(e => e.checkVisibility() && e.clientHeight)
    .map(e => e.getBoundingClientRect().bottom);
  return [main.scrollHeight, main.scrollTop + Math.max(...ends)]; }"""


def heights(page: Page) -> tuple[float, float]:
    """The height of the page, and where its last visible element ends."""
    settle(page)
    height, end = page.evaluate(HEIGHTS)
    return height, end


def test_new_and_an_ended_live_of_six_methods_are_short(server: Server, tab: Tab) -> None:
    page = tab.page
    page.set_viewport_size({"width": 1440, "height": 900})
    page.goto(f"{server.url}/new")
    launch = page.get_by_role("button", name="Launch")
    expect(launch).to_be_enabled()
    height, end = heights(page)
    assert height <= 1100
    assert height - end <= MARGIN
    box = launch.bounding_box()
    assert box is not None
    assert box["y"] + box["height"] <= 900, "without scrolling"

    experiment = fill.done(server.db, fill.an_experiment("Six methods", METHODS, seeds=(1,)))
    page.goto(f"{server.url}/live?id={experiment}")
    expect(page.get_by_text("done · ")).to_have_count(len(METHODS))
    expect(page.locator(".fl-chart:not([data-drawn])")).to_have_count(0)
    height, end = heights(page)
    assert height <= 1800
    assert height - end <= MARGIN
