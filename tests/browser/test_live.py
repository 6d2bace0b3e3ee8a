"""Live while rounds arrive: the reader's zoom and hover label stay, the values change."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from fedcore.store import Recorder, Store
from tests.support.web.browser import Server, Tab, Traffic

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]
CLIENTS = ("a", "b", "c", "d")
TOTAL = 50
GRID = ".st-key-live_grid .fl-chart"
LABEL = f"{GRID} .hoverlayer .hovertext"
STATE = """host => ({
  x: [...host._fullLayout.xaxis.range], y: [...host._fullLayout.yaxis.range],
  top: host.getBoundingClientRect().top,
  z: Array.from(host.calcdata[0][0].z, row => Array.from(row)), drawn: Number(host.dataset.drawn) })"""


def counts(round_: int) -> dict[tuple[str, str], tuple[int, int]]:
    """Correct answers that grow by one with every round, everywhere."""
    return {(m, t): (10 + round_ + 3 * (m == t), TOTAL) for m in ("global", *CLIENTS) for t in CLIENTS}


@pytest.fixture
def run(server: Server, request: pytest.FixtureRequest) -> Iterator[Recorder]:
    """A run of a user's own that has done two of a hundred rounds."""
    named = {"dataset": "rotated-digits", "experiment": request.node.name}
    recorder = Recorder(server.db, method="mine", seed=1, rounds_total=100, **named)
    for round_ in (1, 2):
        recorder.round(round_, counts(round_), loss=1.0 / round_)
    yield recorder
    recorder.finish()


def shown(page: Page, round_: int) -> dict[str, Any]:
    """The heatmaps, once they show a round."""
    expect(page.locator(f"{GRID} .annotation-text").first).to_have_text(f"mine: round {round_}/100")
    expect(page.locator(GRID)).to_have_attribute("data-drawn", re.compile("."))
    return page.locator(GRID).evaluate(STATE)


NARROWER = """([selector, width]) => {
  const [low, high] = document.querySelector(selector)._fullLayout.xaxis.range;
  return high - low < width; }"""


LABELLED = """([selector, x, y]) => {
  const host = document.querySelector(selector), box = host.getBoundingClientRect();
  const { xaxis, yaxis } = host._fullLayout;
  const [row, column] = host._hoverdata?.[0]?.pointNumber ?? [];
  return column === Math.round(xaxis.p2c(x - box.left - xaxis._offset))
    && row === Math.round(yaxis.p2c(y - box.top - yaxis._offset)); }"""
"""Whether the label is that of the cell at a position: the pointer came by others on its way."""


def wait_for_narrower(page: Page, before: dict[str, Any], share: float = 1.0) -> None:
    """Wait until the heatmap shows less than a share of the width that it showed before."""
    width = share * (before["x"][1] - before["x"][0])
    page.wait_for_function(NARROWER, arg=[GRID, width])


def zoom(page: Page, before: dict[str, Any]) -> None:
    """Draw a box over a part of the first heatmap, then rest on a cell."""
    box = page.locator(f"{GRID} .nsewdrag").first.bounding_box()
    assert box is not None
    x, y, width, height = box["x"], box["y"], box["width"], box["height"]
    page.mouse.move(x + 0.3 * width, y + 0.3 * height)
    page.mouse.down()
    page.mouse.move(x + 0.9 * width, y + 0.8 * height, steps=8)
    page.mouse.up()
    wait_for_narrower(page, before, 0.8)
    page.mouse.move(x + 0.5 * width, y + 0.5 * height, steps=4)
    page.wait_for_function(LABELLED, arg=[GRID, x + 0.5 * width, y + 0.5 * height])
    expect(page.locator(LABEL)).to_contain_text(f"of {TOTAL}")


def test_without_news_nothing_is_drawn_and_a_new_round_keeps_zoom_and_hover(
    server: Server, run: Recorder, tab: Tab
) -> None:
    page = tab.page
    traffic = Traffic(page)
    page.goto(f"{server.url}/live?id={run.experiment_id}")
    before = shown(page, 2)
    assert before["top"] < 400, "the heatmaps begin on the first screen"
    assert before["z"][0][1] == pytest.approx(100 * 12 / TOTAL)
    traffic.wait_for_rest()
    before = page.locator(GRID).evaluate(STATE)
    traffic.log.clear()
    traffic.wait_for_rest()  # without news the page is not even run
    figure = page.locator(GRID)
    assert figure.evaluate(STATE)["drawn"] == before["drawn"]
    assert figure.get_attribute("role") == "figure"
    assert "mine: round 2/100, own accuracy 30.0 %" in figure.get_attribute("aria-label")
    figure.get_by_role("button", name="Zoom in").focus()
    page.keyboard.press("Enter")
    wait_for_narrower(page, before)  # without a mouse too
    zoom(page, figure.evaluate(STATE))
    label = page.locator(LABEL).text_content()
    zoomed = page.locator(GRID).evaluate(STATE)
    run.round(3, counts(3), loss=0.3)
    after = shown(page, 3)
    assert after["top"] == zoomed["top"], "the page does not move under the pointer"
    assert (after["x"], after["y"]) == (zoomed["x"], zoomed["y"]), "the zoom is kept"
    assert after["z"][0][1] == pytest.approx(100 * 13 / TOTAL)
    expect(page.locator(LABEL)).not_to_have_text(label)  # it says its new value
    again = page.locator(LABEL).text_content()
    assert again.split(" on ")[0] == label.split(" on ")[0], "the label stays on its model"


RECORD_TITLES = """selector => {
  window.titles = [];
  let last = document.querySelector(selector).textContent;
  new MutationObserver(() => {
    const text = document.querySelector(selector)?.textContent;
    if (!text || text === last) return;
    last = text;
    const play = [...document.querySelectorAll('.st-key-live_play')]
      .find(element => element.checkVisibility({ visibilityProperty: true }));
    titles.push({ text, focused: play.contains(document.activeElement), button: play.innerText });
  }).observe(document.body, { subtree: true, childList: true, characterData: true });
}"""


@pytest.mark.slow
def test_a_replay_steps_through_the_rounds_and_ends_with_the_newest(
    server: Server, run: Recorder, tab: Tab
) -> None:
    for round_ in (3, 4):
        run.round(round_, counts(round_), loss=1.0 / round_)
    page = tab.page
    page.goto(f"{server.url}/live?id={run.experiment_id}")
    before = shown(page, 4)
    page.evaluate(f"document.querySelector('{GRID}').mine = true")
    zoom(page, before)
    zoomed = page.locator(GRID).evaluate(STATE)
    page.get_by_role("button", name="Replay").click()
    play = page.get_by_test_id("stPopoverBody").get_by_role("button", name=re.compile("Play|Pause"))
    page.evaluate(RECORD_TITLES, f"{GRID} .annotation-text")
    play.focus()
    page.keyboard.press("Enter")
    page.wait_for_function("() => titles.length > 2")
    page.wait_for_function("() => titles.at(-1).text === 'mine: round 4/100'")
    expect(play).to_have_text(re.compile("Play$"))
    titles = page.evaluate("titles")
    assert [t["text"] for t in titles] == [f"mine: round {r}/100" for r in (1, 2, 3, 4)]
    assert all(t["focused"] for t in titles), "the button keeps the focus"
    assert all("Pause" in t["button"] for t in titles[:3])
    after = page.locator(GRID).evaluate(STATE)
    assert page.locator(GRID).evaluate("host => host.mine"), "the same chart all the time"
    assert (after["x"], after["y"]) == (zoomed["x"], zoomed["y"]), "the zoom is kept"
    assert after["top"] == zoomed["top"], "nothing moves"
    run.round(5, counts(5), loss=0.2)
    shown(page, 5)  # it has stopped at the newest round, and follows it
    assert "live_until" not in page.url


@pytest.mark.slow
def test_an_open_dialog_stays_while_the_page_goes_on(server: Server, run: Recorder, tab: Tab) -> None:
    """Rounds arrive and another run fails, for which the page would be drawn anew: its buttons change."""
    other = Recorder(server.db, method="other", seed=2, experiment=run.experiment_id, rounds_total=9)
    page, traffic = tab.page, Traffic(tab.page)
    page.goto(f"{server.url}/live?id={run.experiment_id}")
    shown(page, 2)
    page.get_by_role("button", name="Stop", exact=True).click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("mine (1), other (1)")
    page.evaluate("document.querySelector('[role=dialog]').mine = true")
    other.fail("out of memory")
    run.round(3, counts(3), loss=0.3)
    shown(page, 3)
    expect(page.locator(".st-key-live_watch")).to_contain_text("failed")
    traffic.wait_for_pulses(2)
    run.round(4, counts(4), loss=0.2)
    shown(page, 4)
    assert page.evaluate("document.querySelector('[role=dialog]')?.mine"), "neither closed nor opened anew"
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    run.round(5, counts(5), loss=0.1)
    shown(page, 5)
    expect(dialog).to_have_count(0)
    assert [r.state for r in Store(server.db).runs.get([run.run_id])] == ["running"]


CHARTS = """[...document.querySelectorAll(".fl-chart")].slice(1).map(host => ({
  overlaps: host._fullLayout.width - host.clientWidth, range: host._fullLayout.yaxis.range,
  y: host.calcdata.flatMap(trace => trace.map(point => point.y)) }))"""


def test_charts_make_room_for_another_and_the_tab_says_how_far_it_is(server: Server, tab: Tab) -> None:
    """Empty, one point, a line, then a third chart beside them, all in one place: axes keep what they had.

    Who has asked is notified of the end; a stand-in notes what the browser would show.
    """
    page = tab.page
    page.context.grant_permissions(["notifications"])
    page.add_init_script(
        "window.told = []; window.Notification = class { static permission = 'default';"
        "static async requestPermission() { return (Notification.permission = 'granted'); }"
        "constructor(title, options) { window.told.push(`${title}: ${options.body}`); } };"
    )
    named = {"dataset": "rotated-digits", "experiment": "Told"}
    run = Recorder(server.db, method="mine", seed=1, rounds_total=100, **named)
    page.goto(f"{server.url}/live?id={run.experiment_id}")
    expect(page.locator(".fl-chart")).to_have_count(3)
    replay = page.get_by_role("button", name="Replay")
    expect(replay).to_be_disabled()
    for round_ in (1, 2, 3):
        run.round(round_, counts(round_), loss=1.0 / round_, diagnostics={"drift": 0.1 * round_})
        shown(page, round_)
    expect(page.locator(".fl-chart")).to_have_count(4)
    expect(page.locator(".fl-chart").last).to_have_attribute("data-drawn", re.compile("."))
    expect(replay).to_be_enabled()
    page.wait_for_function(f"() => {CHARTS}.every(c => Math.abs(c.overlaps) <= 1 && c.y.length === 3)")
    found = page.evaluate(CHARTS)
    assert len(found) == 3
    for chart in found:
        assert all(chart["range"][0] < y < chart["range"][1] for y in chart["y"])

    page.wait_for_function("() => document.title === '0/1 done, running - FedLens'")
    assert page.evaluate("Notification.permission") == "default", "asked for by a click only"
    page.get_by_role("button", name="Notify me").click()
    expect(page.get_by_role("button", name="You will be notified")).to_be_disabled()
    run.finish()
    page.wait_for_function("() => document.title === 'done - FedLens'")
    page.wait_for_function("() => window.told.length")
    assert page.evaluate("window.told") == ["Told: 1 done"]
    page.get_by_role("link", name="Compare").first.click()
    page.wait_for_function("() => document.title === 'Compare - FedLens'")


OUTSIDE = """host => {
  const box = host.getBoundingClientRect();
  return [...host.querySelectorAll(".xtick text, .ytick text, .xtitle, .ytitle")]
    .filter((text) => { const b = text.getBoundingClientRect();
      return b.left < box.left || b.bottom > box.bottom || b.right > box.right; })
    .map((text) => text.textContent); }"""


@pytest.mark.slow
def test_long_names_have_room_beside_the_heatmap(server: Server, tab: Tab) -> None:
    """The component makes that room itself: plotly would draw all axes again for it."""
    names = ("a client with a long name", "WWWWWWWWWWWWWWWWWW", "医院的数据", "d")
    run = Recorder(server.db, method="mine", seed=1, dataset="rotated-digits", rounds_total=9)
    run.round(1, {(m, t): (9 - (m == t), TOTAL) for m in ("global", *names) for t in names})
    tab.page.goto(f"{server.url}/live?id={run.experiment_id}")
    expect(tab.page.locator(f"{GRID} .ytick text")).to_have_count(5)
    grid = tab.page.locator(GRID)
    assert grid.evaluate("host => host._fullLayout.yaxis.automargin") is False
    assert grid.evaluate(OUTSIDE) == []
    run.finish()


def test_a_page_without_charts_loads_what_draws_them_on_the_next(server: Server, tab: Tab) -> None:
    asked: list[str] = []
    tab.page.on("request", lambda request: asked.append(request.url))
    tab.page.goto(f"{server.url}/data")
    tab.page.wait_for_function("() => !!window.Plotly")
    tab.page.get_by_role("link", name="Leaderboard").first.click()
    expect(tab.page.get_by_role("heading", level=1)).to_have_text("Leaderboard")
    assert len([url for url in asked if "plotly" in url]) == 1, "one plotly.js for all pages"
