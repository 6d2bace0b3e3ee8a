"""Measure the Live page: seconds until it can be read, and processor time while rounds arrive.

``python -m scripts.bench_live`` fills a database with four runs of 20 clients, opens the page in Chromium,
records a round of every run every ten seconds as a training run would, and prints one line per value.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from pathlib import Path

import psutil
from playwright.sync_api import BrowserContext, Page, Playwright, sync_playwright

from fedcore.store import Recorder
from scripts.screenshots import FLAGS, chromium, free_port, start

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
        run = Recorder(
            db,
            method=f"m{i}",
            seed=1,
            dataset="rotated-digits",
            experiment=experiment,
            rounds_total=TOTAL_ROUNDS,
        )
        for round_ in range(FILLED + 1):
            record(run, round_)
        runs.append(run)
    return runs


def open_page(context: BrowserContext, url: str, name: str) -> Page:
    """Open Live as a reader does, and print the seconds until its text is there."""
    page = context.new_page()
    page.add_init_script(CLOCK)
    page.goto(url)
    page.wait_for_function("window.benchText && window.benchCharts", timeout=120_000)
    print(f"Live, {name}: text and controls {page.evaluate('window.benchText / 1000'):.2f} s")
    return page


def time_charts(playwright: Playwright, browser_path: str, url: str) -> None:
    """Print the seconds until the charts are there, in a fresh browser profile and on later visits.

    Playwright connects only when everything is drawn: with a debugger attached, V8 computes the source
    position of every error that plotly.js throws and catches as it starts, which takes 0.6 s.
    """
    port = free_port()
    here = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory(prefix="fedlens-bench-", ignore_cleanup_errors=True) as profile:
        flags = [*FLAGS, f"--remote-debugging-port={port}", f"--user-data-dir={profile}"]
        process = subprocess.Popen(
            [browser_path, *flags, "--window-size=1440,1600", "about:blank"], stderr=subprocess.DEVNULL
        )
        try:
            _answers(f"{here}/json/version")
            for visit in range(1, VISITS + 1):
                new = urllib.request.Request(f"{here}/json/new?{urllib.parse.quote(url)}", method="PUT")
                urllib.request.urlopen(new, timeout=10).close()
                time.sleep(PATIENCE)
                browser = playwright.chromium.connect_over_cdp(here)
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
    page.wait_for_function("!document.querySelector('.fl-chart')", timeout=120_000)
    began = time.perf_counter()
    page.get_by_role("link", name="Live", exact=True).click()
    page.wait_for_function("document.querySelectorAll('.fl-chart[data-drawn]').length >= 3", timeout=120_000)
    print(f"Live, from another page of the app: charts {time.perf_counter() - began:.2f} s")


def browser_seconds() -> float:
    """Return the processor time of the Chromium that this script started."""
    spent = 0.0
    for child in psutil.Process().children(recursive=True):
        try:
            if "chrom" in child.name():
                times = child.cpu_times()
                spent += times.user + times.system
        except psutil.NoSuchProcess:  # a helper process of the browser that has ended
            continue
    return spent


def measure(server: psutil.Process, seconds: float, name: str) -> None:
    """Print the processor time of server and browser over some seconds, in per cent of one core."""
    times = server.cpu_times()
    before, browser, began = times.user + times.system, browser_seconds(), time.monotonic()
    time.sleep(seconds)
    passed = time.monotonic() - began
    times = server.cpu_times()
    mine = 100 * (times.user + times.system - before) / passed
    print(
        f"{name}: server {mine:.1f} %, browser {100 * (browser_seconds() - browser) / passed:.1f} % of a core"
    )


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="length of each measurement")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fedlens-bench-") as folder:
        db = Path(folder) / "runs.db"
        runs = fill(db)
        process, url = start(db)
        over = threading.Event()
        writer = threading.Thread(target=train, args=(runs, over))
        try:
            with sync_playwright() as playwright:
                path = chromium()
                browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
                live = f"{url}/live?id={runs[0].experiment_id}"
                reader = browser.new_context(viewport={"width": 1440, "height": 1600})
                for name in ("first page of a cold server and browser", "again", "and again"):
                    page = open_page(reader, live, name)
                    leave_and_return(page)
                    page.close()
                time_charts(playwright, path, live)
                writer.start()
                server = psutil.Process(process.pid)
                for view in VIEWS:
                    page = open_page(reader, f"{live}&live_view={view.replace(' ', '+')}", view)
                    time.sleep(5)
                    measure(
                        server, options.seconds, f"{view}, {RUNS} heatmaps, a round every {ROUND_SECONDS} s"
                    )
                    page.close()
                browser.close()
        finally:
            over.set()
            if writer.is_alive():
                writer.join()
            process.send_signal(signal.SIGINT)
            process.wait(30)
        for run in runs:
            run.finish()
    return 0


def train(runs: list[Recorder], over: threading.Event) -> None:
    """Record a round of every run every ten seconds."""
    for round_ in range(FILLED + 1, TOTAL_ROUNDS + 1):
        for run in runs:
            record(run, round_)
        if over.wait(ROUND_SECONDS):
            return


if __name__ == "__main__":
    sys.exit(main())
