"""An experiment made and launched without a mouse."""

import pytest
from playwright.sync_api import Page, expect

from fedcore.store import Store
from tests.support.web.axe import serious
from tests.support.web.browser import Server, Tab, settle

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
    """The form has no serious violation, and refuses a number out of its range until it is right.

    Streamlit's number input showed 2, and Launch was ready with the former value.
    """
    page = tab.page
    page.goto(f"{server.url}/new?preset=demo")
    launch = page.get_by_role("button", name="Launch")
    expect(launch).to_be_enabled()
    settle(page)
    assert not serious(page)
    page.get_by_text("More: held-out domains").click()
    field = page.get_by_label("Participation", exact=True)
    for wrong, right in (("2", "1.0"), ("1e999", "0.5")):
        field.fill(wrong)
        field.press("Enter")
        expect(launch).to_be_disabled()
        expect(page.get_by_text("Not ready: see Participation.")).to_be_visible()
        field.fill(right)
        field.press("Enter")
        expect(launch).to_be_enabled()
    settle(page)
    page.evaluate("document.activeElement.blur()")
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
    reach(page, "Rounds")
    page.keyboard.press("Control+a")
    page.keyboard.type("1")
    reach(page, "FedOT")
    page.keyboard.press("Enter")
    expect(page.get_by_label("Blocks", exact=True)).to_be_visible()
    settle(page)
    reach(page, "Blocks")
    page.keyboard.press("Control+a")
    page.keyboard.type("2")
    reach(page, "Logit temperature")
    expect(page.get_by_text(", 1 round", exact=False)).to_be_visible()
    expect(launch).to_be_enabled()
    settle(page)
    reach(page, "Launch")
    page.keyboard.press("Enter")
    page.wait_for_url("**/live?id=*")
    experiment = Store(server.db).experiments.get(int(page.url.rsplit("=", 1)[1]))
    fedot = next(m for m in experiment.config.methods if m.name == "fedot")
    assert (experiment.config.data.split, experiment.config.rounds) == ("80/20", 1)
    assert experiment.config.participation == 0.5
    assert fedot.config["blocks"] == 2


@pytest.mark.slow
def test_pages_open_by_keys_and_the_list_says_how(filled_server: Server, tab: Tab) -> None:
    page = tab.page
    help_ = page.get_by_role("dialog", name="Keyboard shortcuts")
    page.goto(f"{filled_server.url}/new")
    expect(page.get_by_role("button", name="Launch")).to_be_visible()
    settle(page)
    name = page.get_by_label("Name", exact=True).first
    name.fill("")
    name.press_sequentially("g l?")
    expect(name).to_have_value("g l?")
    expect(help_).to_be_hidden()
    page.evaluate("document.activeElement.blur(); window.stillTheSame = true")
    page.keyboard.press("?")
    expect(help_).to_be_visible()
    expect(help_.get_by_role("button", name="Close")).to_be_focused()
    page.keyboard.press("g")
    page.keyboard.press("l")
    expect(help_).to_be_visible()
    listed = help_.locator("tr").all_inner_texts()
    page.keyboard.press("Escape")
    expect(help_).to_be_hidden()
    titles = page.get_by_test_id("stTopNavLink").all_inner_texts()
    assert [title for title in titles if not any(title in row for row in listed)] == []
    opened = {"c": "Compare", "p": "Papers", "l": "Live", "n": "New experiment", "e": "Experiments"}
    for key, title in opened.items():
        page.keyboard.press("g")
        page.keyboard.press(key)
        expect(page.get_by_role("heading", level=1, name=title)).to_be_visible()
        settle(page)
        expect(page.get_by_role("dialog")).to_be_hidden()
    assert page.evaluate("window.stillTheSame"), "the session goes on; nothing was loaded anew"
    page.keyboard.press("/")
    expect(page.get_by_role("textbox", name="Search")).to_be_focused()
    expect(page.get_by_role("textbox", name="Search")).to_have_value("")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("?")
    help_.get_by_role("checkbox", name="Use shortcuts of single keys").uncheck()
    page.keyboard.press("Escape")
    page.reload()
    settle(page)
    page.keyboard.press("?")
    page.keyboard.press("Control+/")
    expect(help_).to_have_count(1)
    switch = help_.get_by_role("checkbox", name="Use shortcuts of single keys")
    expect(switch).not_to_be_checked()
    switch.check()
    page.keyboard.press("Escape")
    expect(help_).to_be_hidden()
    page.keyboard.press("?")
    expect(help_).to_be_visible()
    # a busy browser leaves the focus in the checkbox of the closed list for some frames
    assert page.evaluate(
        """() => {
          const list = document.querySelector('.fl-keys'), box = list.querySelector('input');
          list.close();
          box.dispatchEvent(new KeyboardEvent('keydown', { key: '?', bubbles: true, composed: true }));
          return document.querySelectorAll('.fl-keys[open]').length;
        }"""
    )
