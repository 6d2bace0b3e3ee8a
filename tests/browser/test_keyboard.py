"""An experiment made and launched without a mouse."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from fedcore.store import Store
from tests.support.browser import Server, Tab, settle

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]
NAME = "(document.activeElement.ariaLabel || document.activeElement.innerText).trim().split('\\n').pop()"
"""Icons stand in lines of their own."""
BORDER = "getComputedStyle(document.activeElement.closest('[role=group]')).borderTopColor"


def reach(page: Page, name: str) -> None:
    """Press Tab until what is called so has the focus."""
    for _ in range(80):
        page.keyboard.press("Tab")
        if page.evaluate(NAME) == name:
            return
    pytest.fail(f"the keyboard does not reach {name}")


def test_an_experiment_is_launched_without_a_mouse(server: Server, tab: Tab) -> None:
    page = tab.page
    page.goto(f"{server.url}/new?preset=demo")
    expect(page.get_by_role("button", name="Launch")).to_be_enabled()
    settle(page)
    plain = page.evaluate(
        "getComputedStyle(document.querySelector('.stSelectbox [role=group]')).borderTopColor"
    )
    reach(page, "Train / validation / test")
    page.keyboard.press("ArrowDown")
    expect(page.locator("[role=option][data-focused=true]")).to_have_text("80/20")
    page.keyboard.press("Enter")
    expect(page.get_by_text("80/20 has no validation split", exact=False)).to_be_visible()
    settle(page)
    assert page.evaluate(BORDER) != plain, "the box that was chosen from shows that it has the focus"
    reach(page, "FedOT: hyper-parameters")
    page.keyboard.press("Enter")
    expect(page.get_by_label("Blocks", exact=True)).to_be_visible()
    settle(page)
    for name, text in (("Blocks", "2"), ("Rounds", "1")):
        reach(page, name)
        page.keyboard.press("Control+a")
        page.keyboard.type(text)
    reach(page, "Held-out domains")
    expect(page.get_by_text(", 1 round", exact=False)).to_be_visible()
    expect(page.get_by_role("button", name="Launch")).to_be_enabled()
    settle(page)
    reach(page, "Launch")
    page.keyboard.press("Enter")
    page.wait_for_url("**/live?id=*")
    experiment = Store(server.db).experiments.get(int(page.url.rsplit("=", 1)[1]))
    fedot = next(m for m in experiment.config.methods if m.name == "fedot")
    assert (experiment.config.data.split, experiment.config.rounds) == ("80/20", 1)
    assert fedot.config["blocks"] == 2
