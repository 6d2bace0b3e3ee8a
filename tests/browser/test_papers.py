"""A table of a paper filled in rehearsal, watched in the browser."""

import csv
import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from fedcore.store import Store
from tests.support.papers import finish
from tests.support.web.browser import Server, Tab, settle

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(600)]
TABLE = "papers?table=feddeap-5&rehearsal=true"
VALUES = 15


def open_table(page: Page, server: Server) -> None:
    page.goto(f"{server.url}/{TABLE}")
    expect(page.locator("td .printed")).to_have_count(VALUES)
    settle(page)


def queue(page: Page, runs: str) -> None:
    page.get_by_role("dialog").get_by_role("button", name=f"Queue {runs}").click()
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_cells_fill_while_the_table_is_watched(filled_server: Server, tab: Tab, tmp_path: Path) -> None:
    """Here the test trains: it writes what a job would, and the page has to notice by itself."""
    page, store = tab.page, Store(filled_server.db)
    open_table(page, filled_server)
    page.locator("td button").first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_contain_text("FedDEAP, Table 5")
    queue(page, "3 runs")
    second = page.locator("tr:has(.printed)").nth(1)
    expect(second.locator("td.progress")).to_have_count(5)
    expect(page.locator("td.progress")).to_have_count(5)
    finish(store.path, store.experiments.all()[0].id)
    expect(second.locator("td.rehearsed")).to_have_count(5)
    expect(second).to_contain_text("no evidence")
    with page.expect_download() as download:
        page.get_by_role("button", name="CSV").click()
    assert download.value.suggested_filename == "feddeap-5-rehearsal.csv"
    download.value.save_as(tmp_path / "table.csv")
    with (tmp_path / "table.csv").open(newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert len([line for line in lines if line["rehearsed"]]) == 5
    assert not any(line["ours"] for line in lines)
    assert not any(line["difference"] for line in lines)


def test_a_table_is_filled_in_rehearsal(empty_server: Server, tab: Tab) -> None:
    page = tab.page
    open_table(page, empty_server)
    page.get_by_role("button", name="Fill the table").click()
    page.get_by_role("dialog").get_by_text("first 1").click()
    queue(page, "3 runs")
    expect(page.locator("td.rehearsed .cost, td.rehearsed .ours")).to_have_count(VALUES, timeout=400_000)
    expect(page.get_by_text(re.compile("15 of 15 rehearsed"))).to_be_visible()
    page.get_by_text("All papers", exact=True).click()
    expect(page.get_by_text(re.compile("of 9,213 rehearsed"))).to_be_visible()
