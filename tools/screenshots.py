"""Take screenshots of the running app for docs/screenshots: light and dark, wide and narrow.

``python -m tools.screenshots`` runs the demonstration into a separate database, starts the app on it and
takes a picture of every page: every number in the pictures was measured. ``--db runs.db`` shows the runs of
another database; ``--made-up`` shows invented runs in every state, for work on the pages.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tempfile
from pathlib import Path

import typer
from PIL import Image, ImageChops
from playwright.sync_api import Browser, Page

from fedcore.jobs.analysis import submit
from fedcore.store import Store
from tests.support import fill
from tools.browsing import browsing

ROOT = Path(__file__).resolve().parents[1]
TELEPHONE = "Mozilla/5.0 (Linux; Android 14) AppleWebKit/537.36 Chrome/130 Mobile Safari/537.36"
CHART = ".js-plotly-plot .main-svg"
WIDE, NARROW = 1440, 390
ANALYSES = ("predictions", "feature-space")
"""Pictures that show analyses of a trained run."""
FILM, FILM_WIDTH, FILM_HEIGHT = "live", 1280, 960
SECONDS_A_FRAME, LONGEST_SHOWN = 0.4, 3.0
"""Seconds for which a frame of the film is shown, and the last one."""


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
    page.set_viewport_size({"width": width, "height": min(int(height), 3000)})
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


def film(db: Path, path: Path) -> None:
    """Film the page Live while the demonstration trains: a frame for each new picture, as animated WebP.

    Training pauses for nothing, so the film is as long as the runs take; it is shown faster.
    """
    training = subprocess.Popen(
        [sys.executable, "-m", "fedcore", "run", "--demo", "--db", str(db)],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    frames: list[Image.Image] = []
    with browsing(db) as (server, _, browser):
        page = browser.new_page(viewport={"width": FILM_WIDTH, "height": FILM_HEIGHT})
        page.set_default_timeout(120_000)
        page.goto(server.url + "/live?id=1")
        page.locator(CHART).first.wait_for(state="attached")
        ended = False
        while not ended:
            ended = training.poll() is not None
            if ended:
                page.wait_for_timeout(6000)  # Live draws a chart at most every five seconds
            with Image.open(io.BytesIO(page.screenshot())) as picture:
                frame = picture.convert("RGB")
            if not frames or ImageChops.difference(frame, frames[-1]).getbbox():
                frames.append(frame)
            page.wait_for_timeout(1500)
    durations = [int(1000 * SECONDS_A_FRAME)] * (len(frames) - 1) + [int(1000 * LONGEST_SHOWN)]
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=durations, loop=0, quality=60)
    print(path.name, f"{len(frames)} frames, {path.stat().st_size / 1e6:.1f} MB")


def settle(page: Page) -> None:
    """Wait until the page is computed and its charts have their size."""
    page.wait_for_function("() => !document.querySelector('[data-testid=stStatusWidget]')")
    page.wait_for_timeout(1500)


def main(
    db: Path | None = None,
    made_up: bool = False,
    out: Path = ROOT / "docs" / "screenshots",
    only: list[str] = typer.Option([]),  # noqa: B008
) -> None:
    """Take screenshots of the running app.

    Args:
        db: show the two newest experiments of this database instead of the demonstration.
        made_up: show invented runs in every state; not for docs/.
        out: where the pictures go.
        only: names of the pictures to take; ``film`` is the moving one of Live.
    """
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        shown = db or Path(folder) / "runs.db"
        if db is None and not made_up and (not only or "film" in only):
            film(Path(folder) / "film.db", out / f"{FILM}.webp")
            if only == ["film"]:
                return
        if made_up:
            fill.done(shown)
            fill.mixed(shown)
        elif db is None:
            fedlens("run", "--demo", "--db", str(shown))
        take(shown, out, only, trained=not made_up)


def fedlens(*arguments: str) -> None:
    """Run a command of FedLens."""
    subprocess.run([sys.executable, "-m", "fedcore", *arguments], cwd=ROOT, check=True)


def take(db: Path, out: Path, only: list[str], trained: bool) -> None:
    """Take a picture of every page of the app on one database; analyses need runs that were trained."""
    experiments = Store(db).experiments.all()
    second, first = experiments[0], experiments[min(1, len(experiments) - 1)]
    run = next(r for r in first.runs if r.method != "zero-shot").id
    if trained:
        for analysis in (("predictions",), ("feature_space", 1, 1)):
            fedlens("task", str(submit(Store(db), run, *analysis)), "--db", str(db))
    with browsing(db) as (server, _, browser):
        for name, (address, wanted) in shots(first.id, second.id, run).items():
            if (only and name not in only) or (name in ANALYSES and not trained):
                continue
            for theme, width, dark in (
                ("light", WIDE, False),
                ("dark", WIDE, True),
                ("narrow", NARROW, False),
            ):
                path = out / f"{name}-{theme}.png"
                take_picture(browser, server.url + address, wanted, path, width, dark)


if __name__ == "__main__":
    typer.run(main)
