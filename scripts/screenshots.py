"""Take screenshots of the running app for docs/screenshots: light and dark, wide and narrow.

``python -m scripts.screenshots`` runs the demonstration into a database of its own, starts the app on it and
takes a picture of every page: every number in the pictures was measured. ``--db runs.db`` shows the runs of
another database; ``--made-up`` shows invented runs in every state, for work on the pages.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from fedcore.store import Store

ROOT = Path(__file__).resolve().parents[1]
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync"]
TELEPHONE = "Mozilla/5.0 (Linux; Android 14) AppleWebKit/537.36 Chrome/130 Mobile Safari/537.36"
CHART = ".js-plotly-plot .main-svg"
WIDE, NARROW = 1440, 390
ANALYSES = ("predictions", "feature-space")
"""Pictures that show analyses of a trained run."""


def shots(first: int, second: int, run: int) -> dict[str, tuple[str, str | None]]:
    """Name of the picture -> its address, and the element that must be there before it is taken."""
    return {
        "experiments": ("/", "canvas"),
        "new": ("/new?preset=demo", "[role=img] span[title]"),
        "live": (f"/live?id={second}", CHART),
        "compare": (f"/compare?ids={first}", "table"),
        "heatmaps": (f"/compare?ids={first}&tab=Heatmaps", CHART),
        "curves": (f"/compare?ids={first}&tab=Curves", CHART),
        "data": ("/data", "img"),
        "run": (f"/run?id={run}", CHART),
        "predictions": (f"/run?id={run}&run_tab=Predictions", CHART),
        "feature-space": (f"/run?id={run}&run_tab=Feature+space", CHART),
    }


def free_port() -> int:
    """Return an unused port of this machine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def chromium() -> str:
    """Return the path of the installed Chromium.

    Raises:
        SystemExit: when none is installed.
    """
    for name in ("chromium", "google-chrome", "chromium-browser"):
        if path := shutil.which(name):
            return path
    raise SystemExit("no Chromium found; install one")


def start(db: Path) -> tuple[subprocess.Popen[bytes], str]:
    """Start the app on a free port; return its process and address."""
    port = free_port()
    command = [sys.executable, "-m", "streamlit", "run", "app.py", "--server.port", str(port)]
    process = subprocess.Popen(
        [*command, "--server.headless", "true"],
        cwd=ROOT,
        env={**os.environ, "FEDLENS_DB": str(db)},
        stdout=subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}"
    for _ in range(600):
        try:
            urllib.request.urlopen(f"{url}/_stcore/health", timeout=2).close()
            return process, url
        except OSError:
            time.sleep(0.1)
    process.kill()
    raise SystemExit("the app did not start; run `streamlit run app.py` to see why")


def take_picture(browser: Browser, url: str, wanted: str | None, path: Path, width: int, dark: bool) -> None:
    """Take a picture of one page, as tall as its content."""
    context = browser.new_context(
        viewport={"width": width, "height": 900},
        color_scheme="dark" if dark else "light",
        user_agent=TELEPHONE if width == NARROW else None,
    )
    page = context.new_page()
    page.set_default_timeout(60_000)
    page.goto(url)
    page.get_by_role("heading", level=1).wait_for()
    if wanted:
        page.locator(wanted).first.wait_for(state="attached")
    settle(page)
    height = page.evaluate("document.querySelector('.stMainBlockContainer').scrollHeight")
    page.set_viewport_size({"width": width, "height": min(int(height) + 70, 3000)})
    settle(page)
    page.screenshot(path=path)
    context.close()
    with Image.open(path) as picture:  # 256 colours: a third of the size, and every clone carries them
        # maximum coverage, since a method's colour may stand in a few pixels only; one step of k-means then
        # makes the frequent colours exact
        small = picture.convert("RGB").quantize(
            256, Image.Quantize.MAXCOVERAGE, kmeans=1, dither=Image.Dither.NONE
        )
    small.save(path, optimize=True)
    print(path.name)


def settle(page: Page) -> None:
    """Wait until the page is computed and its charts have their size."""
    page.wait_for_function("!document.querySelector('[data-testid=stStatusWidget]')")
    page.wait_for_timeout(1500)


def main() -> int:
    """Take all pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--db", type=Path, help="show the two newest experiments of this database")
    parser.add_argument("--made-up", action="store_true", help="invented runs in every state; not for docs/")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "screenshots")
    parser.add_argument("--only", nargs="*", help="names of the pictures to take")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        db = options.db or Path(folder) / "runs.db"
        if options.made_up:
            from tests.support import fill

            fill.done(db)
            fill.mixed(db)
        elif options.db is None:
            demo = [sys.executable, "-m", "fedcore", "run", "--demo", "--db", str(db)]
            subprocess.run(demo, cwd=ROOT, check=True)
        take(db, options.out, options.only, trained=not options.made_up)
    return 0


def run_analyses(db: Path, run: int) -> None:
    """Run the analyses that the pictures show."""
    from fedcore.jobs import analysis

    for task in (
        analysis.submit(Store(db), run, "predictions"),
        analysis.submit(Store(db), run, "feature_space", 1, 1),
    ):
        command = [sys.executable, "-m", "fedcore", "task", str(task), "--db", str(db)]
        subprocess.run(command, cwd=ROOT, check=True)


def take(db: Path, out: Path, only: list[str] | None, trained: bool) -> None:
    """Take a picture of every page of the app on one database; analyses need runs that were trained."""
    experiments = Store(db).experiments.all()
    second, first = experiments[0], experiments[min(1, len(experiments) - 1)]
    run = next(r for r in first.runs if r.method != "zero-shot").id
    if trained:
        run_analyses(db, run)
    process, url = start(db)
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
            for name, (address, wanted) in shots(first.id, second.id, run).items():
                if name in ANALYSES and not trained:
                    continue
                for theme, width, dark in (
                    ("light", WIDE, False),
                    ("dark", WIDE, True),
                    ("narrow", NARROW, False),
                ):
                    if not only or name in only:
                        take_picture(browser, url + address, wanted, out / f"{name}-{theme}.png", width, dark)
            browser.close()
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)


if __name__ == "__main__":
    raise SystemExit(main())
