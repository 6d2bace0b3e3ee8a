"""Measure when the text and the charts of every page stand in Chromium, by the clock.

python -m tools.benchmarks.browser large.db   # a store of tools.benchmarks.million
"""

from __future__ import annotations

import itertools
import json
import subprocess
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import psutil
import typer
from websockets.sync.client import ClientConnection, connect

from tests.support.web.browser import AT_REST, AT_REST_FRAMES, Server, free_port, start_server
from tools.benchmarks.live import processor_seconds
from tools.benchmarks.pages import VISITS
from tools.browsing import FLAGS, chromium

WARM_VISITS, PATIENCE = 3, 60.0
CHARTS = ".js-plotly-plot, .fl-chart, [data-testid=stDataFrame]"
CLOCK = """
const charts = "%s";
new MutationObserver((changes) => {
  const changed = changes.some((c) => (c.target.closest ?? (() => null)).call(c.target, charts)
    || [...c.addedNodes].some((n) => n.querySelector?.(charts)));
  requestAnimationFrame(() => {
    if (document.querySelector("[data-testid=stMain] h1")) window.benchText ??= performance.now();
    if (changed) window.benchCharts = performance.now();
  });
}).observe(document, { childList: true, subtree: true, attributes: true, attributeFilter: ["data-drawn"] });
"""
"""Notes when there is text and when a chart last changed: milliseconds from the start of the navigation."""
DRAWN = "[...document.querySelectorAll('.fl-chart')].every((chart) => chart.dataset.drawn)"
"""Whether the charts of Live are drawn, which happens after its script has run."""


class Stands(NamedTuple):
    """Seconds from the start of the navigation; ``charts`` is None on a page without one.

    ``server`` and ``browser`` are CPU-seconds until the page is at rest, which say more on a busy machine;
    ``main`` and ``script`` are those of the browser's main thread and of its scripts alone.
    """

    text: float
    charts: float | None
    server: float
    browser: float
    main: float
    script: float

    def __str__(self) -> str:
        charts = "   -" if self.charts is None else f"{self.charts:4.2f}"
        spent = f"{self.server:4.2f} + {self.browser:4.2f} CPU-s, main thread {self.main:4.2f}"
        spent += f" with {self.script:4.2f} in scripts"
        return f"text {self.text:4.2f} s, charts {charts} s ({spent})"


class Tab:
    """A tab that is driven without a debugger.

    With one attached, as by Playwright, V8 computes the source position of every error that plotly.js throws
    and catches as it starts, which takes 0.6 s.
    """

    def __init__(self, connection: ClientConnection, browser: psutil.Process, server: psutil.Process) -> None:
        self._connection, self._numbers = connection, itertools.count(1)
        self._browser, self._server = browser, server
        self.ask("Page.enable")
        self.ask("Performance.enable", timeDomain="threadTicks")
        self.ask("Page.addScriptToEvaluateOnNewDocument", source=CLOCK % CHARTS)

    def ask(self, method: str, **parameters: object) -> dict[str, Any]:
        """Send a command of Chromium's DevTools protocol and return its result."""
        number = next(self._numbers)
        self._connection.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while (answer := json.loads(self._connection.recv(PATIENCE))).get("id") != number:
            pass
        found: dict[str, Any] = answer["result"]
        return found

    def value(self, expression: str) -> Any:
        return self.ask("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def visit(self, url: str) -> Stands:
        """Load a page and wait until it is at rest."""
        before = self._spent()
        self.ask("Page.navigate", url=url)
        self.until(f"!!window.benchText && {DRAWN} && ({AT_REST})({AT_REST_FRAMES})", "at rest")
        text, charts = self.value("[window.benchText, window.benchCharts ?? null]")
        spent = (now - then for now, then in zip(self._spent(), before, strict=True))
        # a navigation sets them to zero
        metrics = {each["name"]: each["value"] for each in self.ask("Performance.getMetrics")["metrics"]}
        thread = metrics["TaskDuration"], metrics["ScriptDuration"]
        return Stands(text / 1000, None if charts is None else charts / 1000, *spent, *thread)

    def until(self, expression: str, state: str) -> None:
        """Wait until an expression is true in the page."""
        end = time.monotonic() + PATIENCE
        while not self.value(expression):
            if time.monotonic() > end:
                raise SystemExit(f"{self.value('location.href')} is not {state} after {PATIENCE:.0f} s")
            time.sleep(0.03)

    def _spent(self) -> tuple[float, float]:
        """Return the CPU-seconds of the server and of the browser so far."""
        browser = [self._browser, *self._browser.children(recursive=True)]
        return processor_seconds([self._server]), processor_seconds(browser)


@contextmanager
def a_tab(server: Server) -> Iterator[Tab]:
    """Start a Chromium with an empty profile and open a tab."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="fedlens-bench-", ignore_cleanup_errors=True) as profile:
        flags = [*FLAGS, f"--remote-debugging-port={port}", f"--user-data-dir={profile}"]
        process = subprocess.Popen(
            [chromium(), *flags, "--window-size=1440,1600", "about:blank"], stderr=subprocess.DEVNULL
        )
        try:
            with connect(_address(port), max_size=None) as connection:
                yield Tab(connection, psutil.Process(process.pid), psutil.Process(server.process.pid))
        finally:
            process.terminate()
            process.wait(30)


def _address(port: int) -> str:
    """Return the address of the first tab's protocol, once the browser answers."""
    for _ in range(300):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=2) as answer:
                return next(t["webSocketDebuggerUrl"] for t in json.load(answer) if t["type"] == "page")
        except (OSError, StopIteration):
            time.sleep(0.1)
    raise SystemExit(f"Chromium does not answer on port {port}")


def _page(name: str) -> str:
    if name not in VISITS:
        raise typer.BadParameter(f"no page '{name}'; choose from {'; '.join(VISITS)}")
    return name


def main(
    db: Annotated[Path, typer.Argument(exists=True, dir_okay=False)],
    pages: Annotated[list[str] | None, typer.Argument(parser=_page, metavar="PAGE")] = None,
) -> None:
    """Print for each page when text and charts stand: first visit, then the quickest of three more.

    Args:
        db: a store.
        pages: the pages to visit; default: all.
    """
    server = start_server(db, db.with_suffix(".app.log"))
    try:
        with a_tab(server) as tab:
            print(f"{'a cold server and browser':26} {tab.visit(server.url)}", flush=True)
            tab.until("!!window.Plotly", "ready for charts")  # it loads plotly.js while its reader reads
            for name in pages or VISITS:
                page, query = VISITS[name]
                asked = urllib.parse.urlencode(query, doseq=True)
                url = f"{server.url}/{'' if page == 'experiments' else page}?{asked}"
                first = tab.visit(url)
                again = min((tab.visit(url) for _ in range(WARM_VISITS)), key=lambda s: s.charts or s.text)
                print(f"{name:26} {first}; again {again}", flush=True)
    finally:
        server.stop()


if __name__ == "__main__":
    typer.run(main)
