"""The scripts of the pages' components go on when Streamlit calls them twice in quick succession.

Streamlit starts a component anew for every message. Where a second message comes before the first call is
through, it calls what the first call returned after the second one has begun: that must not end what the
second one does.
"""

import json
import re
from collections.abc import Callable
from itertools import count

import pytest
from playwright.sync_api import Page, expect

from tests.support.web.browser import ROOT

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]

PAGE = """<title>Live - FedLens</title><div data-testid="stApp" id="place">
<i></i><button></button><div class="fl-chart"></div></div>
<table class="fl-table"><tr><th><button data-sort="worst">Worst</button></th></tr></table>"""
OVERTAKEN = """async ([script, data]) => {
  const { default: start } = await import("data:text/javascript," + encodeURIComponent(script));
  window.told = [];
  const place = document.getElementById("place");
  const tell = (name, value) => window.told.push([name, value]);
  if (Array.isArray(data)) data = new Uint8Array(data);
  const told = { parentElement: place, setStateValue: tell, setTriggerValue: tell };
  const call = (latest = data) => start({ data: latest, ...told });
  const [endFirst, endSecond] = [call(), call()];
  Object.assign(window, { call, endSecond });
  endFirst?.();
}"""
TOLD = "name => window.told.some(([told]) => told === name)"
WATCH = {"address": "/pulse", "every": 0.05, "experiment": 1, "name": "pilot", "going": True}
HALFWAY = "document.title === '1/2 done, running - FedLens'"


def chart(*traces: str, alt: str = "accuracy", **layout: object) -> list[int]:
    """A chart as its component gets it."""
    figure = {"data": traces, "layout": {"margin": {"b": 0, "l": 0}, **layout}}
    return list(json.dumps({"url": "", "alt": alt, "config": {}, "figure": figure}).encode())


@pytest.fixture
def begin(page_of_module: Page) -> Callable[..., Page]:
    """Opens a page where a component was started twice and its first call was ended then."""

    def begun(script: str, data: object = None, before: str = "") -> Page:
        page = page_of_module
        page.set_viewport_size({"width": 1000, "height": 600})
        page.route("http://fedlens.test/", lambda route: route.fulfill(body=PAGE, content_type="text/html"))
        answers = ({"states": {"running": 1}, "total": 2, "answer": number} for number in count())
        page.route("http://fedlens.test/pulse", lambda route: route.fulfill(json=next(answers)))
        page.goto("http://fedlens.test/")
        page.evaluate(f"() => {{ {before} }}")
        page.evaluate(OVERTAKEN, [(ROOT / "pages" / script).read_text(encoding="utf-8"), data])
        return page

    return begun


def test_a_summarys_headings_are_listened_to(begin: Callable[..., Page]) -> None:
    page = begin("compare_view/table.js")
    page.get_by_role("button", name="Worst").click()
    assert page.evaluate("window.told") == [["sorted", "worst"]]
    page.evaluate("window.endSecond()")
    page.get_by_role("button", name="Worst").click()
    assert len(page.evaluate("window.told")) == 1, "the end ends it"


def test_a_heatmaps_cells_are_listened_to(begin: Callable[..., Page]) -> None:
    drawing = """
      window.library = async () => window.Plotly;
      window.Plotly = { purge() {}, react: async (host) => {
        window.listeners = {}; window.count = 0; host._ev = {};
        host.on = (name, told) => { window.listeners[name] = told; window.count += 1; };
        host._fullData = [{ type: "heatmap", index: 0 }, { type: "heatmap", index: 1 }]; } };"""
    page = begin("assets/chart.js", chart(height=50), drawing)
    page.locator(".fl-chart[data-drawn]").wait_for()
    assert page.evaluate("window.count") == 3, "once each, though the component was called twice"
    point = {"x": 2, "y": 1, "fullData": {"type": "heatmap", "index": 1}}
    page.evaluate("point => window.listeners.plotly_click({ points: [point] })", point)
    [[name, cell]] = page.evaluate("window.told")
    assert (name, cell["panel"], cell["row"], cell["column"]) == ("cell", 1, 1, 2)


def test_the_width_of_the_window_is_followed(begin: Callable[..., Page]) -> None:
    page = begin("assets/viewport.js", {"widths": {"narrow": ["(max-width: 640px)", False]}, "dark": False})
    assert page.evaluate("window.told") == []
    page.set_viewport_size({"width": 390, "height": 600})
    page.wait_for_function(TOLD, arg="narrow")


def test_lives_clock_goes_on(begin: Callable[..., Page]) -> None:
    clock = {"address": "/pulse", "seen": "older", "every": 0.05, "longest": None}
    page = begin("assets/clock.js", clock)
    page.wait_for_function(TOLD, arg="news")


def test_the_title_of_the_tab_goes_on(begin: Callable[..., Page]) -> None:
    page = begin("live_view/notice.js", WATCH)
    page.wait_for_function(HALFWAY)
    page.evaluate("document.title = 'Live - FedLens'")
    page.wait_for_function(HALFWAY)


def test_the_next_pages_title_stays(begin: Callable[..., Page]) -> None:
    """It comes while Live's elements are still there, and their script still asks how far the runs are."""
    fetched = """
      const fetch = window.fetch; window.fetched = 0;
      window.fetch = (address) => fetch(address).finally(() => { window.fetched += 1; });"""
    page = begin("live_view/notice.js", WATCH, fetched)
    page.wait_for_function(HALFWAY)
    before = page.evaluate("() => { document.title = 'Compare - FedLens'; return window.fetched; }")
    page.wait_for_function("before => window.fetched > before + 2", arg=before)
    assert page.title() == "Compare - FedLens"


def test_back_leads_to_the_page_as_it_was_left(begin: Callable[..., Page]) -> None:
    """Streamlit pushes the page that is left with the query of the next one; a reader has seen none such."""
    page = begin("assets/window.js")
    visits = [
        ["/compare?ids=1", "/compare?ids=1&baseline=FedOT"],
        ["/compare?ids=1&baseline=FedOT&tab=Cost"],
        ["/compare", "/live", "/live?id=2"],
        ["/live?ids=2", "/compare?ids=2"],
    ]
    for addresses in visits:
        page.evaluate("addresses => addresses.forEach((a) => history.pushState(null, '', a))", addresses)
        page.mouse.click(1, 1)
    for before in (
        "/live?id=2",
        "/compare?ids=1&baseline=FedOT&tab=Cost",
        "/compare?ids=1&baseline=FedOT",
        "/",
    ):
        page.go_back()
        assert page.url.removeprefix("http://fedlens.test") == before


def test_a_notification_is_shown_once(begin: Callable[..., Page]) -> None:
    """A call begins while the one before reads an answer that says that the experiment has ended."""
    plays = """
      window.shown = 0;
      window.Notification = class { static permission = "granted"; constructor() { window.shown += 1; } };
      Object.defineProperty(window, "isSecureContext", { value: true });
      sessionStorage.setItem("fedlens-notify", "yes");
      const answers = [];
      window.answer = () => answers.splice(0).forEach((give) => give({ states: { done: 2 }, total: 2 }));
      window.fetch = async () => ({ ok: true, json: () => new Promise((given) => answers.push(given)) });
      window.reading = () => answers.length;"""
    page = begin("live_view/notice.js", WATCH, plays)
    page.wait_for_function("window.reading() > 0")
    reading = page.evaluate("window.reading()")
    page.evaluate("() => { window.call(); }")
    page.wait_for_function("before => window.reading() > before", arg=reading)
    page.evaluate("window.answer()")
    page.wait_for_function("document.title === 'done - FedLens'")
    assert page.evaluate("window.shown") == 1


def test_a_chart_stays_drawn(begin: Callable[..., Page]) -> None:
    counting = "window.library = async () => window.Plotly; window.purged = 0; "
    counting += "window.Plotly = { react: async () => {}, purge: () => { window.purged += 1; } };"
    page = begin("assets/chart.js", chart(height=50), counting)
    page.locator(".fl-chart[data-drawn]").wait_for()
    assert page.evaluate("window.purged") == 0
    page.evaluate("document.getElementById('place').remove(); window.endSecond()")
    assert page.evaluate("window.purged") == 1, "a chart that is gone gives its memory back"


def test_a_chart_that_fails_does_not_keep_a_newer_one_from_being_drawn(begin: Callable[..., Page]) -> None:
    fails_first = """
      window.library = async () => window.Plotly; window.drawn = [];
      window.Plotly = { purge() {}, react: (host, traces) => {
        if (window.refuse) return window.drawn.push(...traces);
        return new Promise((_, refuse) => { window.refuse = () => refuse(new Error("too large")); }); } };"""
    page = begin("assets/chart.js", chart("older"), fails_first)
    page.wait_for_function("!!window.refuse")
    page.evaluate("newer => { window.call(new Uint8Array(newer)); window.refuse(); }", chart("newer"))
    page.wait_for_function("window.drawn.length")
    assert page.evaluate("window.drawn") == ["newer"]
    assert "cannot be drawn" not in page.locator(".fl-chart").inner_text()


def test_a_chart_fills_the_screen_and_gets_its_height_back(begin: Callable[..., Page]) -> None:
    drawing = """
      window.library = async () => window.Plotly; window.heights = [];
      window.Plotly = { purge() {}, relayout: (host, { height }) => window.heights.push(height),
        react: async (host, data, { height }, { modeBarButtonsToAdd }) => {
          window.heights.push(height); window.button = modeBarButtonsToAdd[0]; window.host = host; } };"""
    page = begin("assets/chart.js", chart(height=240), drawing)
    page.locator(".fl-chart[data-drawn]").wait_for()
    page.evaluate("window.button.click(window.host)")
    page.wait_for_function("window.heights.at(-1) === window.innerHeight && document.fullscreenElement")
    page.evaluate("newer => window.call(new Uint8Array(newer))", chart(alt="newer", height=240))
    page.wait_for_function("window.host.dataset.drawn === '2'")
    assert page.evaluate("window.heights.at(-1) === window.innerHeight"), "a newer chart fills it too"
    page.evaluate("window.button.click(window.host)")
    page.wait_for_function("window.heights.at(-1) === 240 && !document.fullscreenElement")


def test_a_browser_that_fills_no_screen_has_no_button_for_it(begin: Callable[..., Page]) -> None:
    drawing = """
      Object.defineProperty(document, "fullscreenEnabled", { value: false });
      window.library = async () => window.Plotly;
      window.Plotly = { purge() {}, react: async (host, data, layout, config) => {
        window.buttons = config.modeBarButtonsToAdd; } };"""
    page = begin("assets/chart.js", chart(height=50), drawing)
    page.locator(".fl-chart[data-drawn]").wait_for()
    assert page.evaluate("window.buttons") == []


def test_a_chart_that_fails_leaves_nothing_for_the_next_one_to_update(begin: Callable[..., Page]) -> None:
    drawing = """
      window.library = async () => window.Plotly;
      window.Plotly = { purge: (host) => { host.kept = false; }, react: async (host, [name]) => {
        if (name === "broken") throw new Error("too large");
        host.textContent += host.kept ? "updated" : "begun"; host.kept = true; } };"""
    page = begin("assets/chart.js", chart("first"), drawing)
    drawn = page.locator(".fl-chart")
    expect(drawn).to_have_text("begun")
    for name, said in (("broken", re.compile("cannot be drawn")), ("last", "begun")):
        page.evaluate("newer => { window.call(new Uint8Array(newer)); }", chart(name))
        expect(drawn).to_have_text(said)
