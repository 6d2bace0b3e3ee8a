"""Measure the time of imports, data and the demo on this machine; print one line per value.

python -m tools.benchmarks.start            # everything
python -m tools.benchmarks.start --no-demo  # without training
"""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import typer

from tests.support.web.browser import end_workers
from tools.browsing import browsing

ROOT = Path(__file__).resolve().parents[2]
READ_SECONDS = 10
"""For which a newcomer reads before the click."""
SHOWN = r"""() => [...document.querySelectorAll("table[aria-label='Progress of the runs'] td")]
  .some(cell => /^\d+\.\d$/.test(cell.textContent.trim()))"""


def main(demo: bool = True) -> None:
    """Measure the time of imports, data and the demo on this machine; print one line per value."""
    measure_imports()
    measure_data()
    with tempfile.TemporaryDirectory(prefix="fedlens-bench-") as folder:
        measure_folder(Path(folder))
        if demo:
            measure_click(Path(folder) / "click.db")
            measure_demo(Path(folder))


def measure_imports() -> None:
    """Print the seconds in which Python imports what the pages need, and whether that imports torch."""
    code = (
        "import sys, fedcore.store, fedcore.data.catalog as c, fedcore.methods.registry as r\n"
        "r.load_all(); c.class_names('shapes'); print('torch._C' in sys.modules)"
    )
    start = time.perf_counter()
    torch = subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True).strip()
    print(f"forms, store, registry imported: {time.perf_counter() - start:.2f} s, with torch: {torch}")


def measure_data() -> None:
    """Print the seconds to load, split and partition the embedded data, and drawings per second."""
    from fedcore.data import catalog
    from fedcore.data.assigners import PartitionSettings
    from fedcore.data.partition import partition
    from fedcore.data.splits import split

    for name in ("rotated-digits", "shapes"):
        start = time.perf_counter()
        images = catalog.load(name)[0]
        settings = PartitionSettings(clients_per_domain=3, alpha=0.3, seed=1)
        partition(images, split(images, "60/20/20", 1), settings)
        ready = time.perf_counter() - start
        for i in range(0, len(images), 10):
            images.read(i)
        rate = len(range(0, len(images), 10)) / (time.perf_counter() - start - ready)
        print(f"{name}: loaded, split and partitioned in {ready:.2f} s; {rate:.0f} images drawn per second")


def measure_folder(folder: Path, images: int = 10_000) -> None:
    """Print the seconds to check a folder the size of PACS (10,000 JPEG files of 227 x 227)."""
    from fedcore.data import catalog
    from tools.benchmarks.encode import draw

    draw(folder / "set", images)
    start = time.perf_counter()
    data = catalog.load("folder", str(folder / "set"))[0]
    print(f"folder of {len(data)} JPEG files checked in {time.perf_counter() - start:.2f} s")


def measure_demo(folder: Path) -> None:
    """Print the seconds of ``run --demo``.

    Raises:
        subprocess.CalledProcessError: when the demo fails.
    """
    command = [sys.executable, "-m", "fedcore", "run", "--demo", "--db", str(folder / "runs.db")]
    start = time.perf_counter()
    subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
    print(f"demo: {time.perf_counter() - start:.1f} s")


def measure_click(db: Path) -> None:
    """Print the seconds from the click on *Try it* until there is an accuracy, and until it is shown."""
    try:
        with browsing(db) as (server, _, browser):
            page = browser.new_page()
            page.goto(server.url)
            button = page.get_by_role("button", name="Try it")
            button.wait_for()
            time.sleep(READ_SECONDS)
            start = time.perf_counter()
            button.click()
            while not has_rows(db):
                time.sleep(0.05)
            recorded = time.perf_counter() - start
            page.wait_for_function(SHOWN, timeout=120_000)
            shown = time.perf_counter() - start
        print(f"Try it: an accuracy after {recorded:.1f} s, shown after {shown:.1f} s")
    finally:
        end_workers(db)


def has_rows(db: Path) -> bool:
    """Return whether the database has an accuracy row yet."""
    try:
        with sqlite3.connect(f"file:{db}?mode=ro", uri=True, timeout=1) as connection:
            return connection.execute("SELECT 1 FROM accuracy LIMIT 1").fetchone() is not None
    except sqlite3.OperationalError:  # there is no file yet, or its tables are being created
        return False


if __name__ == "__main__":
    typer.run(main)
