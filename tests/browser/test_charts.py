"""Charts under the pointer: the toolbar covers nothing, and one line is brought out."""

from __future__ import annotations

import pytest

from tests.support.web.browser import Server, Tab

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
