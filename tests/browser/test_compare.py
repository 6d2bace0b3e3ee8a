"""Compare's summary is sorted by a click, and a run gets a star that the summary shows."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from fedcore.results.comparison import compare
from fedcore.store import Store
from tests.support.web.browser import NewPage, Server, settle

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]


def test_headings_sort_and_a_star_is_given(filled_server: Server, new_page: NewPage) -> None:
    store = Store(filled_server.db)
    page = new_page(viewport={"width": 1440, "height": 1200})
    page.goto(f"{filled_server.url}/compare?ids=1")
    table = page.get_by_role("table", name=re.compile("Summary of"))
    heading = table.get_by_role("button", name="Worst client, %")
    expect(page.locator(".st-key-summary_headings_place i[data-listening]")).to_be_attached()
    means = {g.label: g.stats["worst"].mean for g in compare(store, [1]).rows}
    for sort, state, falling in (("-worst", "descending", True), ("worst", "ascending", False)):
        heading.click()
        page.wait_for_url(lambda address, sort=sort: f"sort={sort}" in address)
        expect(table.locator(f"th[aria-sort={state}]")).to_have_count(1)
        first = sorted(means, key=means.__getitem__, reverse=falling)[0]
        expect(table.locator("tbody tr").first).to_contain_text(first)
    tabs = page.get_by_role("tablist").bounding_box()
    controls = page.get_by_role("combobox", name="Experiments").bounding_box()
    assert tabs is not None and controls is not None
    assert tabs["y"] - controls["y"] <= 250, "two rows of controls and the finding, with their gaps"
    run = next(r for g in compare(store, [1]).rows for r in g.runs).run
    page.goto(f"{filled_server.url}/run?id={run.id}")
    page.get_by_role("button", name="Star, tags and notes").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("switch", name="Star").or_(dialog.get_by_text("Star", exact=True)).last.click()
    settle(page)
    dialog.get_by_role("button", name="Save").click()
    expect(page.locator(".fl-strip")).to_contain_text("★")
    assert store.runs.get([run.id])[0].starred
    store.runs.mark([run.id], starred=False)
