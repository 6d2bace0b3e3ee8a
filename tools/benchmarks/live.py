"""Measure the Live page: seconds until it can be read, and processor time while rounds arrive.

``python -m tools.benchmarks.live`` fills a database with four runs of 20 clients, opens the page in Chromium,
records a round of every run every ten seconds as a training run would, and prints one line per value.
"""

from __future__ import annotations

import subprocess
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil
import typer
from playwright.sync_api import BrowserContext, Page, Playwright

from fedcore.store import Recorder
from tests.support.web.browser import free_port
from tools.browsing import FLAGS, browsing, chromium

ROUND_SECONDS = 10
CLIENTS = [f"client {i:02d}" for i in range(20)]
RUNS = 4
FILLED, TOTAL_ROUNDS = 80, 100
CLOCK = """
const seen = (name, there) => {
  if (!(name in window) && there) requestAnimationFrame(() => window[name] ??= performance.now());
};
new MutationObserver(() => {
  seen("benchText", document.querySelector("table[aria-label='Progress of the runs']"));
  seen("benchCharts", document.querySelectorAll(".fl-chart[data-drawn]").length >= 3);
}).observe(document, { childList: true, subtree: true, attributes: true, attributeFilter: ["data-drawn"] });
"""
"""Milliseconds from the start of the navigation until the first picture with text, and with charts."""
DRAWN = "performance.getEntriesByName('fedlens-drawn').slice(0, 3).map((mark) => mark.startTime)"
VISITS, PATIENCE = 4, 8  # page loads in one profile, and the seconds that each of them is given
VIEWS = ("Client by round", "Model by test set")


def record(run: Recorder, round_: int) -> None:
    """Record one round with the whole accuracy matrix, as a method of this repository does."""
    cells = {}
    for i, model in enumerate(CLIENTS):
        for j, test_set in enumerate(CLIENTS):
            cells[model, test_set] = (
                min(60, 10 + round_ // 3 + (i * 7 + j * 3 + round_) % 11 + 9 * (i == j)),
                60,
            )
    run.round(round_, cells, loss=2.0 / (round_ + 1), bytes_up=800_000, bytes_down=800_000, seconds=9.0)


def fill(db: Path) -> list[Recorder]:
    """Record four runs that have done most of their rounds."""
    runs: list[Recorder] = []
    for i in range(RUNS):
        experiment = runs[0].experiment_id if runs else "Bench"
        about = {"method": f"m{i}", "seed": 1, "dataset": "rotated-digits", "rounds_total": TOTAL_ROUNDS}
        run = Recorder(db, experiment=experiment, **about)
        for round_ in range(FILLED + 1):
            record(run, round_)
        runs.append(run)
    return runs


def open_page(context: BrowserContext, url: str, name: str) -> Page:
    """Open Live as a reader does, and print the seconds until its text is there."""
    page = context.new_page()
    page.add_init_script(CLOCK)
    page.goto(url)
    page.wait_for_function("() => window.benchText && window.benchCharts", timeout=120_000)
    print(f"Live, {name}: text and controls {page.evaluate('window.benchText / 1000'):.2f} s")
    return page


def time_charts(playwright: Playwright, url: str) -> None:
    """Print the seconds until the charts are there, in a fresh browser profile and on later visits.

    Playwright connects only when everything is drawn: with a debugger attached, V8 computes the source
    position of every error that plotly.js throws and catches as it starts, which takes 0.6 s.
    """
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory(prefix="fedlens-bench-", ignore_cleanup_errors=True) as profile:
        flags = [*FLAGS, f"--remote-debugging-port={port}", f"--user-data-dir={profile}"]
        process = subprocess.Popen(
            [chromium(), *flags, "--window-size=1440,1600", "about:blank"], stderr=subprocess.DEVNULL
        )
        try:
            _answers(f"{address}/json/version")
            for visit in range(1, VISITS + 1):
                new = urllib.request.Request(f"{address}/json/new?{urllib.parse.quote(url)}", method="PUT")
                urllib.request.urlopen(new, timeout=10).close()
                time.sleep(PATIENCE)
                browser = playwright.chromium.connect_over_cdp(address)
                page = next(p for c in browser.contexts for p in c.pages if p.url.startswith(url[:20]))
                drawn = page.evaluate(DRAWN)
                page.close()
                browser.close()
                print(f"Live, visit {visit} of a fresh profile: charts {max(drawn) / 1000:.2f} s", flush=True)
        finally:
            process.terminate()
            process.wait(30)


def _answers(url: str) -> None:
    """Wait until something answers at an address."""
    for _ in range(100):
        try:
            urllib.request.urlopen(url, timeout=2).close()
            return
        except OSError:
            time.sleep(0.1)
    raise SystemExit(f"nothing answers at {url}")


def leave_and_return(page: Page) -> None:
    """Go to another page of the app and back, and print the seconds until the charts are there."""
    page.get_by_role("link", name="Experiments", exact=True).click()
    page.wait_for_function("() => !document.querySelector('.fl-chart')", timeout=120_000)
    began = time.perf_counter()
    page.get_by_role("link", name="Live", exact=True).click()
    page.wait_for_function(
        "() => document.querySelectorAll('.fl-chart[data-drawn]').length >= 3", timeout=120_000
    )
    print(f"Live, from another page of the app: charts {time.perf_counter() - began:.2f} s")


def processor_seconds(processes: Iterable[psutil.Process]) -> float:
    """Return the processor time that some processes have used."""
    spent = 0.0
    for process in processes:
        with suppress(psutil.NoSuchProcess):  # a helper process of the browser that has ended
            times = process.cpu_times()
            spent += times.user + times.system
    return spent


def measure(server: int, seconds: float, name: str) -> None:
    """Print the processor time of server and browser over some seconds, in per cent of one core."""

    def spent() -> tuple[float, float]:
        processes = psutil.Process().children(recursive=True)
        chromium = [p for p in processes if p.is_running() and "chrom" in p.name()]
        return processor_seconds([psutil.Process(server)]), processor_seconds(chromium)

    before, began = spent(), time.monotonic()
    time.sleep(seconds)
    passed = time.monotonic() - began
    shares = [100 * (now - then) / passed for now, then in zip(spent(), before, strict=True)]
    print(f"{name}: server {shares[0]:.1f} %, browser {shares[1]:.1f} % of a core")


def main(seconds: float = 60) -> None:
    """Measure the Live page; the processor time over this many seconds for each view."""
    with tempfile.TemporaryDirectory(prefix="fedlens-bench-") as folder:
        db = Path(folder) / "runs.db"
        runs, over = fill(db), threading.Event()
        writer = threading.Thread(target=train, args=(runs, over))
        with browsing(db) as (server, playwright, browser):
            live = f"{server.url}/live?id={runs[0].experiment_id}"
            reader = browser.new_context(viewport={"width": 1440, "height": 1600})
            for name in ("first page of a cold server and browser", "again", "and again"):
                page = open_page(reader, live, name)
                leave_and_return(page)
                page.close()
            time_charts(playwright, live)
            writer.start()
            try:
                for view in VIEWS:
                    page = open_page(reader, f"{live}&live_view={view.replace(' ', '+')}", view)
                    time.sleep(5)
                    about = f"{view}, {RUNS} heatmaps, a round every {ROUND_SECONDS} s"
                    measure(server.process.pid, seconds, about)
                    page.close()
            finally:
                over.set()
                writer.join()


def train(runs: list[Recorder], over: threading.Event) -> None:
    """Record a round of every run every ten seconds."""
    for round_ in range(FILLED + 1, TOTAL_ROUNDS + 1):
        for run in runs:
            record(run, round_)
        if over.wait(ROUND_SECONDS):
            return


if __name__ == "__main__":
    typer.run(main)
