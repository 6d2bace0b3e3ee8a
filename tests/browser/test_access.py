"""What axe-core finds on every page: nothing serious, in light and in dark."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser

from tests import fill
from tests.browser.conftest import Server, end_workers, start_server

pytestmark = pytest.mark.browser

VISITS = {
    "experiments": "",
    "new": "new?preset=demo",
    "live, finished": "live?id=1",
    "live, in the middle of things": "live?id=2",
    "compare": "compare?ids=1",
    "compare, heatmaps": "compare?ids=1&tab=Heatmaps",
    "compare, export": "compare?ids=1&tab=Export",
    "data": "data",
    "encodings": "data?section=Encodings",
    "run": "run?id=1",
    "run, predictions": "run?id=1&run_tab=Predictions",
    "run, diagnostics": "run?id=1&run_tab=Diagnostics",
    "run, failed": "run?id=9&run_tab=Reproduce",
    "run, asked to stop": "run?id=8",
    "no such run": "run?id=999",
}
PRESSED = {"run, asked to stop": "Stop"}
"""What is pressed before a page is looked at: a dialog has its own focus, names and colours."""
QUIET = "!document.querySelector('[data-testid=stStatusWidget], [data-testid=stSkeleton]')"


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("access")
    db = folder / "runs.db"
    fill.done(db, fill.an_experiment("Made up", methods=("fedot", "promptfl"), seeds=(1, 2, 3), rounds=4))
    fill.mixed(db)
    running = start_server(db, folder / "server.log")
    yield running
    running.stop()
    end_workers(db)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_has_a_serious_violation(filled: Server, browser: Browser, scheme: str) -> None:
    context = browser.new_context(viewport={"width": 1440, "height": 1200}, color_scheme=scheme)
    page = context.new_page()
    found = []
    for name, path in VISITS.items():
        page.goto(f"{filled.url}/{path}")
        page.get_by_role("heading", level=1).first.wait_for(timeout=60_000)
        page.wait_for_function(QUIET, timeout=60_000)
        if name in PRESSED:
            page.get_by_role("button", name=PRESSED[name], exact=True).click()
            page.get_by_role("dialog").wait_for()
        page.wait_for_timeout(1500)  # elements of the run before fade, and have less contrast for a moment
        for violation in Axe().run(page).response["violations"]:
            if violation["impact"] in ("serious", "critical"):
                nodes = [(n["html"][:160], n["failureSummary"]) for n in violation["nodes"][:3]]
                found.append((name, violation["id"], violation["help"], len(violation["nodes"]), nodes))
    context.close()
    assert not found, "\n".join(map(str, found))


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


def test_the_keyboard_reaches_what_the_mouse_does_and_focus_is_seen(filled: Server, browser: Browser) -> None:
    page = browser.new_page(viewport={"width": 1440, "height": 1200})
    page.goto(f"{filled.url}/run?id=1&run_tab=Reproduce")
    page.get_by_text("Download run-1.toml").wait_for(timeout=60_000)
    page.wait_for_function(QUIET, timeout=60_000)
    reached, hidden = [], []
    for _ in range(60):
        page.keyboard.press("Tab")
        found = page.evaluate(RING)
        if found is None:
            break
        reached.append(found["text"])
        if found["tag"] in ("A", "BUTTON", "MAIN", "SUMMARY") and not (found["ring"] and found["size"]):
            hidden.append(found)
    page.close()
    assert not hidden
    for text in (
        "Experiments",
        "Data & models",
        "Made up",
        "Clone",
        "Show as table",
        "Reproduce",
        "Download",
    ):
        assert any(text in r for r in reached), (text, reached)
