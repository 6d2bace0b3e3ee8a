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

ROOT = Path(__file__).resolve().parents[2]


def main(demo: bool = True) -> None:
    """Measure the time of imports, data and the demo on this machine; print one line per value."""
    measure_imports()
    measure_data()
    with tempfile.TemporaryDirectory(prefix="fedlens-bench-") as folder:
        measure_folder(Path(folder))
        if demo:
            measure_demo(Path(folder))


def measure_imports() -> None:
    """Print the seconds in which Python imports what the pages need, and whether that imports torch."""
    code = (
        "import sys, fedcore.store, fedcore.data.catalog as c, fedcore.methods.registry as r\n"
        "r.load_all(); c.facts('shapes'); print('torch._C' in sys.modules)"
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
    """Print the seconds until the first accuracy row and until the end of ``run --demo``.

    Raises:
        subprocess.CalledProcessError: when the demo fails.
    """
    db, command = folder / "runs.db", [sys.executable, "-m", "fedcore", "run", "--demo", "--db"]
    start = time.perf_counter()
    first = None
    with subprocess.Popen([*command, str(db)], cwd=ROOT, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            time.sleep(0.2)
            if first is None and has_rows(db):
                first = time.perf_counter() - start
    total = time.perf_counter() - start
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    shown = "not seen" if first is None else f"after {first:.1f} s"
    print(f"demo: {total:.1f} s, first accuracy row {shown}")


def has_rows(db: Path) -> bool:
    """Return whether the database has an accuracy row yet."""
    try:
        with sqlite3.connect(f"file:{db}?mode=ro", uri=True, timeout=1) as connection:
            return connection.execute("SELECT 1 FROM accuracy LIMIT 1").fetchone() is not None
    except sqlite3.OperationalError:  # there is no file yet, or its tables are being created
        return False


if __name__ == "__main__":
    typer.run(main)
