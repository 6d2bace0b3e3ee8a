"""What the Live page costs: seconds until it can be read, and processor time while rounds arrive.

``python -m scripts.bench_live`` fills a database with four runs of 20 clients, opens the page in Chromium,
records a round of every run each ten seconds as a training would, and prints one line a figure.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil
from playwright.sync_api import BrowserContext, Page, sync_playwright

from fedcore.runs import Recorder
from scripts.screenshots import FLAGS, start

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
VIEWS = ("Client by round", "Model by test set")


def record(run: Recorder, round_: int) -> None:
    """One round with the whole matrix, as a method of this repository writes it."""
    cells = {}
    for i, model in enumerate(CLIENTS):
        for j, test_set in enumerate(CLIENTS):
            cells[model, test_set] = (
                min(60, 10 + round_ // 3 + (i * 7 + j * 3 + round_) % 11 + 9 * (i == j)),
                60,
            )
    run.round(round_, cells, loss=2.0 / (round_ + 1), bytes_up=800_000, bytes_down=800_000, seconds=9.0)


def fill(db: Path) -> list[Recorder]:
    """Four runs that have done most of their rounds."""
    found: list[Recorder] = []
    for i in range(RUNS):
        experiment = found[0].experiment_id if found else "Bench"
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
        found.append(run)
    return found


def open_page(context: BrowserContext, url: str, name: str) -> Page:
    """Open Live as a reader does; prints how long text and charts took."""
    page = context.new_page()
    page.add_init_script(CLOCK)
    page.goto(url)
    page.wait_for_function("window.benchText && window.benchCharts", timeout=120_000)
    text, charts = (page.evaluate(f"window.{name} / 1000") for name in ("benchText", "benchCharts"))
    print(f"Live, {name}: text and controls {text:.2f} s, charts {charts:.2f} s")
    return page


def come_back(page: Page) -> None:
    """To another page of the app and back, as its navigation does; prints how long the charts took."""
    page.get_by_role("link", name="Experiments", exact=True).click()
    page.wait_for_function("!document.querySelector('.fl-chart')", timeout=120_000)
    began = time.perf_counter()
    page.get_by_role("link", name="Live", exact=True).click()
    page.wait_for_function("document.querySelectorAll('.fl-chart[data-drawn]').length >= 3", timeout=120_000)
    print(f"Live, from another page of the app: charts {time.perf_counter() - began:.2f} s")


def browser_seconds() -> float:
    """Processor time of the Chromium that this script started."""
    spent = 0.0
    for child in psutil.Process().children(recursive=True):
        try:
            if "chrom" in child.name():
                times = child.cpu_times()
                spent += times.user + times.system
        except psutil.NoSuchProcess:  # a helper of the browser that has gone
            continue
    return spent


def measure(server: psutil.Process, seconds: float, name: str) -> None:
    """Processor time of server and browser over some seconds, per cent of one core."""
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
    parser.add_argument("--seconds", type=float, default=60, help="how long each reading takes")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fedlens-bench-") as folder:
        db = Path(folder) / "runs.db"
        found = fill(db)
        process, url = start(db)
        over = threading.Event()
        writer = threading.Thread(target=train, args=(found, over))
        try:
            with sync_playwright() as playwright:
                names = ("chromium", "google-chrome", "chromium-browser")
                path = next(p for n in names if (p := shutil.which(n)))
                browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
                live = f"{url}/live?id={found[0].experiment_id}"
                reader = browser.new_context(viewport={"width": 1440, "height": 1600})
                for name in ("first page of a cold server and browser", "again", "and again"):
                    page = open_page(reader, live, name)
                    come_back(page)
                    page.close()
                writer.start()
                server = psutil.Process(process.pid)
                for view in VIEWS:
                    page = open_page(reader, f"{live}&live_view={view.replace(' ', '+')}", view)
                    time.sleep(5)
                    measure(
                        server, options.seconds, f"{view}, {RUNS} heatmaps, a round each {ROUND_SECONDS} s"
                    )
                    page.close()
                browser.close()
        finally:
            over.set()
            if writer.is_alive():
                writer.join()
            process.send_signal(signal.SIGINT)
            process.wait(30)
        for run in found:
            run.finish()
    return 0


def train(found: list[Recorder], over: threading.Event) -> None:
    """A round of every run each ten seconds."""
    for round_ in range(FILLED + 1, TOTAL_ROUNDS + 1):
        for run in found:
            record(run, round_)
        if over.wait(ROUND_SECONDS):
            return


if __name__ == "__main__":
    sys.exit(main())
