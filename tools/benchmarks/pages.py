"""Measure the server's time for every page over a million accuracy rows, without the browser's part.

python -m tools.benchmarks.pages                   # writes the store to a temporary folder first
python -m tools.benchmarks.pages --db million.db   # an existing one (see tools.benchmarks.million)
"""

from __future__ import annotations

import logging
import os
import runpy
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import streamlit as st
import typer
from streamlit.testing.v1 import AppTest

from tools.benchmarks import million

ROOT = Path(__file__).resolve().parents[2]
REPEATS = 9
LIMIT_MS = 200
Times = tuple[float, float]
VISITS: dict[str, tuple[str, dict[str, str | list[str]]]] = {
    "Experiments": ("experiments", {}),
    "New": ("new", {"preset": "demo"}),
    "Live": ("live", {"id": "1"}),
    "Compare, summary": ("compare", {"ids": ["1"]}),
    "Compare, summary of all": ("compare", {"ids": ["1", "2", "3", "4"]}),
    "Compare, heatmaps": ("compare", {"ids": ["1"], "tab": "Heatmaps"}),
    "Compare, curves": ("compare", {"ids": ["1"], "tab": "Curves"}),
    "Compare, cost": ("compare", {"ids": ["1"], "tab": "Cost"}),
    "Leaderboard": ("leaderboard", {}),
    "Papers, a table": ("papers", {"table": "fedot-1"}),
    "Papers, all of them": ("papers", {"papers_view": "All papers"}),
    "Data & models": ("data", {}),
    "Run": ("run", {"id": "2"}),
}


def measure(db: Path) -> bool:
    """Print each page's median time with cold and warm caches; True when all stay within the limit.

    On a busy machine the smallest CPU time, which is printed too, says more.
    """
    good = True
    with served(db):
        for name, (page, query) in VISITS.items():
            times = visited(page, query, REPEATS)
            walls = [statistics.median(wall for wall, _ in of) for of in times]
            cpus = [min(cpu for _, cpu in of) for of in times]
            good = good and walls[0] <= LIMIT_MS
            print(
                f"{name:26} cold caches {walls[0]:6.0f} ms ({cpus[0]:.0f} CPU-ms)   "
                f"warm {walls[1]:6.0f} ms ({cpus[1]:.0f})",
                flush=True,
            )
    return good


@contextmanager
def served(db: Path) -> Iterator[None]:
    """Let ``visited`` show a database, without a worker."""
    for name in list(logging.root.manager.loggerDict):  # Streamlit warns that there is no browser
        if name.startswith("streamlit"):
            logging.getLogger(name).setLevel(logging.ERROR)
    os.environ["FEDLENS_DB"] = str(db)
    # AppTest runs the files of a folder named ``pages`` itself, where the server runs dashboard.py
    as_served = mock.patch("streamlit.runtime.scriptrunner.script_runner._mpa_v1", runpy.run_path)
    with as_served, mock.patch("fedcore.jobs.ensure_worker", return_value=False):
        yield


def visited(page: str, query: dict[str, str | list[str]], repeats: int) -> tuple[list[Times], list[Times]]:
    """Return the times of some visits to a page with cold caches, and of one after each with warm ones.

    The first visit is not measured: it starts a check of the whole database in the background, which has
    ended before the others.
    """
    app = AppTest.from_file(str(ROOT / "dashboard.py"), default_timeout=120).run()
    if page != "experiments":
        app.switch_page(f"pages/{page}.py")
        for key, value in query.items():
            app.query_params[key] = value
        app.run()
    assert not app.exception, app.exception
    for check in threading.enumerate():
        if check.name.startswith("check "):
            check.join()
    cold, warm = [], []
    for _ in range(repeats):
        st.cache_data.clear()
        st.cache_resource.clear()
        cold.append(timed(app))
        warm.append(timed(app))
    return cold, warm


def timed(app: AppTest) -> Times:
    """Return the milliseconds of one run of the page's script, including the messages for its elements.

    Returns: by the clock, and of CPU.
    """
    start, cpu = time.perf_counter(), time.process_time()
    app.run()
    return 1000 * (time.perf_counter() - start), 1000 * (time.process_time() - cpu)


def main(db: Path | None = None) -> None:
    """Measure every page on a store of ``million``; exit status 1 when one is over the limit."""
    with tempfile.TemporaryDirectory(prefix="fedlens-bench-") as folder:
        db = db or Path(folder) / "million.db"
        if not db.exists():
            print(f"{million.make(db):,} accuracy rows written", flush=True)
        raise SystemExit(0 if measure(db) else 1)


if __name__ == "__main__":
    typer.run(main)
