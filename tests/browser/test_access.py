"""Axe-core finds nothing serious, a keyboard reaches everything, Back leaves a page at once."""

import re
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.sync_api import Page, TimeoutError, expect

from fedcore.results.comparison import compare
from fedcore.store import Store
from tests.support import fill
from tests.support.web.axe import serious
from tests.support.web.browser import NewPage, Server, settle

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]

VISITS = {
    "experiments": "",
    "new": "new?preset=demo",
    "live, finished": "live?id=1",
    "live, in the middle of things": "live?id=2",
    "compare": "compare?ids=1",
    "compare, heatmaps": "compare?ids=1&tab=Heatmaps",
    "compare, cost": "compare?ids=1&tab=Cost",
    "compare, two runs": "compare?ids=1&tab=Two+runs",
    "compare, choices": "compare?ids=1&sections=Blocks&sort=-personal",
    "compare, export": "compare?ids=1&tab=Export",
    "leaderboard": "leaderboard",
    "papers": "papers?table=fedot-1",
    "papers, all of them": "papers?papers_view=All+papers&rehearsal=true",
    "papers, fill a table": "papers?table=feddeap-5&rehearsal=true",
    "data": "data",
    "encodings": "data?section=Encodings",
    "run": "run?id=1",
    "run, predictions": "run?id=1&run_tab=Predictions",
    "run, diagnostics": "run?id=1&run_tab=Diagnostics",
    "run, failed": "run?id=9&run_tab=Reproduce",
    "run, asked to stop": "run?id=8",
    "no such run": "run?id=999",
}
PRESSED = {"run, asked to stop": "Stop", "compare, choices": "View", "papers, fill a table": "Fill the table"}
"""What is pressed before a page is looked at: a dialog has its own focus, names and colours."""
Scheme = Literal["light", "dark"]
ALL: dict[str, Any] = {}
COLOURS = {"runOnly": ["color-contrast", "link-in-text-block"]}
"""Pages differ between the schemes in their colours alone: names, roles and order are looked at once."""


def test_back_leaves_each_page_at_once_the_densest_are_accessible_and_a_lost_server_is_explained(
    filled_server: Server, new_page: NewPage
) -> None:
    """*Compare* and *New* are looked at by axe-core where a keyboard works on them; each scheme is seen."""
    page = new_page(viewport={"width": 1440, "height": 1200})
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
    schemes: dict[str, Scheme] = {"Compare": "light", "Live": "dark", "Papers": "light"}
    for title, scheme in schemes.items():
        page.emulate_media(color_scheme=scheme)
        page.get_by_role("link", name=title, exact=True).click()
        expect(page.get_by_role("heading", name=title, level=1)).to_be_visible()
        page.locator(f".st-key-viewport_place i[data-drawn={scheme}]").wait_for(state="attached")
        settle(page)
        page.wait_for_function("() => location.search !== ''" if title != "Papers" else "() => true")
        assert title == "Compare" or not serious(page)
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


@pytest.mark.slow
def test_no_page_tab_or_dialog_has_a_serious_violation_in_either_scheme(
    filled_server: Server, new_page: NewPage
) -> None:
    """The scheme changes while a page is open, as it does in the evening."""
    page = new_page(viewport={"width": 1440, "height": 1200}, color_scheme="light")
    found = []
    for name in VISITS:
        found += violations(page, filled_server, name, {"light": ALL, "dark": COLOURS})
    assert not found, "\n".join(map(str, found))


def violations(
    page: Page, server: Server, name: str, schemes: dict[Scheme, dict[str, Any]]
) -> list[tuple[object, ...]]:
    """Open a page and return what axe-core finds on it in each scheme by the rules given for it."""
    page.goto(f"{server.url}/{VISITS[name]}")
    page.get_by_role("heading", level=1).first.wait_for()
    found = []
    for scheme, rules in schemes.items():
        page.emulate_media(color_scheme=scheme)
        page.locator(f".st-key-viewport_place i[data-drawn={scheme}]").wait_for(state="attached")
        settle(page)
        opened = page.get_by_role("dialog").or_(page.get_by_test_id("stPopoverBody"))
        if name in PRESSED and not opened.is_visible():
            page.get_by_role("button", name=PRESSED[name], exact=True).click()
            opened.wait_for()
            settle(page)  # what fades has less contrast for a moment
        found += [(name, scheme, *violation) for violation in serious(page, rules)]
    return found


RING = """() => {
  const at = document.activeElement, style = at && getComputedStyle(at);
  if (!at || at === document.body) return null;
  const outline = style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) > 0;
  const box = at.getBoundingClientRect();
  return {
    tag: at.tagName, text: (at.ariaLabel || at.innerText || '').slice(0, 40),
    ring: outline || style.boxShadow !== 'none', size: box.width * box.height,
  };
}"""
RING_IS_SHOWN = f"() => {{ const at = ({RING})(); return at !== null && at.ring && at.size > 0 }}"


def test_the_keyboard_reaches_what_the_mouse_does_with_visible_focus_and_a_star_is_given(
    filled_server: Server, new_page: NewPage
) -> None:
    page = new_page(viewport={"width": 1440, "height": 1200})
    page.goto(f"{filled_server.url}/run?id=1&run_tab=Reproduce")
    page.get_by_text("Download run-1.toml").wait_for()
    settle(page)
    reached, hidden = [], []
    for _ in range(60):
        page.keyboard.press("Tab")
        found = page.evaluate(RING)
        if found is None:
            break
        reached.append(found["text"])
        if found["tag"] in ("A", "BUTTON", "MAIN", "SUMMARY"):
            try:
                page.wait_for_function(RING_IS_SHOWN, timeout=15_000)  # a busy browser draws it later
            except TimeoutError:
                hidden.append((found, page.evaluate(RING)))
    assert not hidden
    links = "Experiments", "Data & models", "Made up"
    for text in (*links, "Clone", "Show as table", "Reproduce", "Download"):
        assert any(text in r for r in reached), (text, reached)
    page.get_by_role("button", name="Star, tags and notes").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("switch", name="Star").or_(dialog.get_by_text("Star", exact=True)).last.click()
    settle(page)
    dialog.get_by_role("button", name="Save").click()
    expect(page.locator(".fl-strip")).to_contain_text("★")
    store = Store(filled_server.db)
    assert store.runs.get([1])[0].starred
    store.runs.mark([1], starred=False)


@pytest.mark.slow
def test_compare_is_worked_by_keyboard_alone(filled_server: Server, new_page: NewPage) -> None:
    """Choose experiments, pin the baseline, open a number, change tabs, export: no mouse, no address.

    The page that this leads to has no serious violation, in the dark.
    """
    page = new_page(viewport={"width": 1440, "height": 1200}, color_scheme="dark")

    def tab_to(css: str) -> None:
        for _ in range(60):
            page.keyboard.press("Tab")
            if page.evaluate("css => document.activeElement.matches(css)", css):
                return
        raise AssertionError(f"the Tab key does not reach {css}")

    def until(script: str) -> None:
        """A page that is drawn again a moment later would close what was opened."""
        page.wait_for_function(f"() => {script}")
        settle(page)

    page.goto(f"{filled_server.url}/compare?ids=2")
    until("!!document.querySelector('[data-testid=stMultiSelect] input')")
    tab_to("input[aria-label*=Experiments]")
    page.keyboard.type("Made up")
    page.keyboard.press("Enter")
    until("document.querySelectorAll('.fl-table tbody tr').length >= 2 && location.search.includes('ids=1')")
    page.keyboard.press("Escape")
    tab_to("input[aria-label*=Baseline]")
    page.keyboard.type("PromptFL")
    page.keyboard.press("Enter")
    until("document.querySelector('.fl-table thead')?.innerText.includes('difference')")
    groups = {g.label: g.stats["personal"].mean for g in compare(Store(filled_server.db), [2, 1]).rows}
    row = page.get_by_role("table", name=re.compile("Summary of")).get_by_role("row").filter(has_text="FedOT")
    expect(row.first).to_contain_text(f"{groups['FedOT'] - groups['PromptFL']:+.1f}")
    assert not serious(page)
    tab_to("details.fl-cell > summary")
    page.keyboard.press("Enter")
    page.locator("details.fl-cell[open] a").first.wait_for()
    page.keyboard.press("Tab")
    assert "/run?id=" in page.evaluate("document.activeElement.href")
    while not page.evaluate("document.activeElement.matches('[role=tab]')"):
        page.keyboard.press("Shift+Tab")
    page.keyboard.press("End")
    until("!!document.querySelector('[data-testid=stDownloadButton] button')")
    assert "ids=2&ids=1" in page.url and "baseline=PromptFL" in page.url and "tab=Export" in page.url
    tab_to(".st-key-file_summary_csv button")
    with page.expect_download() as asked:
        page.keyboard.press("Enter")
    text = Path(asked.value.path()).read_text(encoding="utf-8")
    assert ",baseline,difference," in text and "FedOT" in text


@pytest.mark.slow
def test_an_experiment_is_chosen_and_deleted_by_keyboard(filled_server: Server, new_page: NewPage) -> None:
    """The menu of a row opens by the mouse only: what it holds stands in the bar under the table, too."""
    number = fill.done(
        filled_server.db, fill.an_experiment("Off with it", methods=("fedot",), seeds=(1,), rounds=1)
    )
    page = new_page(viewport={"width": 1440, "height": 1200})
    page.goto(filled_server.url)
    page.locator("[data-testid=data-grid-canvas]").first.focus()
    settle(page)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowUp")  # the first row, whatever the first key does
    page.keyboard.press("Shift+Space")
    expect(page.get_by_text("Runs of Off with it")).to_be_visible()
    page.keyboard.press("End")
    for _ in range(15):
        page.keyboard.press("Tab")
        if "Delete" in page.evaluate("document.activeElement.innerText ?? ''"):
            break
    page.keyboard.press("Enter")
    page.get_by_role("textbox", name="Type the name").focus()
    page.keyboard.type("Off with it")
    page.keyboard.press("Tab")
    delete = page.get_by_role("dialog").get_by_role("button", name="Delete")
    expect(delete).to_be_enabled()
    delete.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert number not in [e.id for e in Store(filled_server.db).experiments.all()]
