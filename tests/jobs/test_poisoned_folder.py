"""Nothing runs because it lies in the folder in which FedLens is called."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedcore.base import devices
from fedcore.base.files import PROJECT
from fedcore.jobs.launcher import start_detached
from fedcore.store import Store

MODULES = (
    "fedcore",
    "json",
    "multiprocessing",
    "numpy",
    "pickle",
    "psutil",
    "pydantic",
    "sqlite3",
    "torch",
    "typer",
)
PARENT = """
from fedcore.engine.parallel import processes

def worker():
    raise SystemExit

if __name__ == "__main__":
    with processes([(worker, {})], None) as both:
        both._submits[0](b"").exception()
"""


@pytest.fixture
def poisoned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with modules that leave a file behind when they run."""
    folder = tmp_path / "poisoned"
    folder.mkdir()
    for name in MODULES:
        (folder / f"{name}.py").write_text(f"open({str(tmp_path / name)!r} + '.ran', 'w').close()\n")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", f"{PROJECT}{os.pathsep}")  # the empty part is the current folder
    return tmp_path


def ran(tmp_path: Path) -> list[str]:
    return [file.name for file in tmp_path.glob("*.ran")]


def test_a_worker_and_its_jobs_run_nothing_of_the_folder(poisoned: Path) -> None:
    db = poisoned / "runs.db"
    Store(db).prepare()
    task = Store(db).tasks.submit("check", "a", {"root": str(poisoned / "nowhere")})
    log = poisoned / "worker.log"
    assert start_detached(["fedcore", "worker", "--idle", "0", "--db", str(db)], log).wait(60) == 0
    assert Store(db).tasks.get(task).status == "failed" and "nowhere" in (
        Store(db).tasks.get(task).error or ""
    )
    assert ran(poisoned) == []


def test_the_module_runs_nothing_of_the_folder(poisoned: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Store(poisoned / "runs.db").prepare()
    Path("fedcore.py").unlink()  # Python itself would run it
    monkeypatch.setenv("PYTHONPATH", str(PROJECT))
    command = [sys.executable, "-m", "fedcore", "queue", "--db", str(poisoned / "runs.db")]
    subprocess.run(command, check=True, timeout=60)
    assert ran(poisoned) == []


def test_processes_that_share_a_run_run_nothing_of_the_folder(
    poisoned: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (poisoned / "elsewhere").mkdir()
    script = poisoned / "elsewhere" / "parent.py"
    script.write_text(PARENT)
    monkeypatch.setenv("PYTHONPATH", str(PROJECT))
    subprocess.run([sys.executable, script], timeout=60, stderr=subprocess.DEVNULL, check=True)
    assert ran(poisoned) == []


def test_the_trial_of_a_device_runs_nothing_of_the_folder(
    poisoned: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(PROJECT))
    assert devices.trial("cpu") == ""
    assert ran(poisoned) == []
