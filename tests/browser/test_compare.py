"""The page Compare in one visit: on a telephone, in the dark, under the pointer, sorted by a click."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from fedcore.results.comparison import compare
from fedcore.store import Store
from tests.support.web.browser import Server, Tab, settle

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]
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


def test_compare_fits_a_telephone_follows_the_scheme_and_is_worked_by_pointer(
    filled_server: Server, tab: Tab
) -> None:
    page = tab.page
    page.set_viewport_size({"width": 390, "height": 1200})
    page.goto(f"{filled_server.url}/compare?ids=1&tab=Cost")
    page.locator("table.fl-table").first.wait_for()
    ends = page.evaluate(
        "[...document.querySelectorAll('[role=tab]')].map(t => t.getBoundingClientRect().right)"
    )
    assert len(ends) > 1 and max(ends) <= 390, "the tab of the address is in view, and so are all others"
    heights = page.evaluate("[...document.querySelectorAll('th.num')].map(t => t.clientHeight)")
    assert max(heights) < 45, "one line"

    page.set_viewport_size({"width": 1440, "height": 1200})
    for scheme, letters in (("light", "rgb(28, 39, 51)"), ("dark", "rgb(232, 237, 242)")):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        expect(page.locator(".js-plotly-plot .xtick text").first).to_have_css("fill", letters)

    page.get_by_role("tab", name="Curves").click()
    page.locator(".legend .legendtoggle").first.hover()
    page.wait_for_function(BROUGHT_OUT, arg=0.5)
    assert not page.evaluate(COVERED), "the toolbar covers no line"
    page.get_by_role("heading", name="Compare").hover()
    page.wait_for_function(BROUGHT_OUT, arg=1)

    page.get_by_role("tab", name="Summary").click()
    headings_sort(page, {g.label: g.stats["worst"].mean for g in compare(Store(filled_server.db), [1]).rows})
    tabs = page.get_by_role("tablist").bounding_box()
    controls = page.get_by_role("combobox", name="Experiments").bounding_box()
    assert tabs is not None and controls is not None
    assert tabs["y"] - controls["y"] <= 250, "two rows of controls and the finding, with their gaps"


def headings_sort(page: Page, means: dict[str, float]) -> None:
    """A click on a heading sorts the rows, best first; another one turns them round."""
    settle(page)
    table = page.get_by_role("table", name=re.compile("Summary of"))
    heading = table.get_by_role("button", name="Worst client, %")
    expect(page.locator(".st-key-summary_headings_place i[data-listening]")).to_be_attached()
    for sort, state, falling in (("-worst", "descending", True), ("worst", "ascending", False)):
        heading.click()
        page.wait_for_url(lambda address, sort=sort: f"sort={sort}" in address)
        expect(table.locator(f"th[aria-sort={state}]")).to_have_count(1)
        first = sorted(means, key=means.__getitem__, reverse=falling)[0]
        expect(table.locator("tbody tr").first).to_contain_text(first)
