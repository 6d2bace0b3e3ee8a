"""The window around the pages: nothing is covered, Back leaves a page at once, a lost server is explained."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.support.web.browser import NewPage, Server, settle

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]


def test_back_leaves_each_page_at_once_and_a_lost_server_is_explained(
    filled_server: Server, new_page: NewPage
) -> None:
    page = new_page()
    page.goto(filled_server.url)
    expect(page.get_by_role("heading", name="Experiments", level=1)).to_be_visible()
    settle(page)
    page.get_by_test_id("stDataFrame").hover()
    toolbar, columns = (
        page.locator(name).bounding_box()
        for name in ("[data-testid=stElementToolbar]", "button:has-text('Columns')")
    )
    assert toolbar is not None and columns is not None
    assert toolbar["y"] >= columns["y"] + columns["height"], "it does not cover the choice of columns"
    for title in ("Compare", "Live", "Papers"):
        page.get_by_role("link", name=title, exact=True).click()
        expect(page.get_by_role("heading", name=title, level=1)).to_be_visible()
        settle(page)
        page.wait_for_function("location.search !== ''" if title != "Papers" else "true")
        page.go_back()
        expect(page.get_by_role("heading", name="Experiments", level=1)).to_be_visible()
        settle(page)
    page.evaluate(
        """() => {
            const dialog = document.createElement("div");
            dialog.setAttribute("role", "dialog");
            dialog.textContent = "Streamlit server is not responding. Are you connected to the internet?";
            document.body.append(dialog);
        }"""
    )
    expect(page.get_by_role("dialog")).to_contain_text("Runs continue")
