"""The SLURM script ends in every case and puts the database back; SLURM, Ray and FedLens are stand-ins."""

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from fedcore.base.files import PROJECT

SCRIPT = PROJECT / "examples" / "slurm" / "fedlens.sbatch"
STAND_INS = {
    "hostname": "echo 10.0.0.1 10.0.0.2",
    "srun": 'while [ "$1" != ray ]; do shift; done; exec "$@"',
    "ray": """echo "ray $*" >> "$CALLS"
case "$*" in
  *--head*) [ "$HEAD" = fails ] && { echo "no port" >&2; exit 1; }; exec sleep 60 ;;
  *start*) exec sleep 60 ;;
  *status*) [ "$HEAD" = works ] ;;
esac""",
    "fedlens": """echo "fedlens $*" >> "$CALLS"
case "$1" in
  worker) echo trained >> "$(dirname "$(echo "$*" | sed 's/.*--db //; s/ .*//')")/runs.db"
    [ "$WORKER" = ends ] && exit 0; exec sleep 60 ;;
esac""",
}
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a script for SLURM")


@pytest.fixture
def submit(tmp_path: Path):
    """Start the script as SLURM does; returns the process, the folder of the database, and the calls."""
    commands, folder, home = (tmp_path / name for name in ("bin", "study", "home"))
    for made in (commands, folder, home / ".ray"):
        made.mkdir(parents=True)
    (folder / "runs.db").write_text("queued\n")
    (home / ".ray" / "auth_token").touch(0o644)
    for name, text in STAND_INS.items():
        (commands / name).write_text(f"#!/bin/bash\n{text}\n")
        (commands / name).chmod(0o755)
    started = []

    def start(**variables: str) -> tuple[subprocess.Popen[str], Path, Path]:
        environment = {
            "PATH": f"{commands}:{os.environ['PATH']}",
            "HOME": str(home),
            "SLURM_TMPDIR": str(tmp_path),
            "SLURM_JOB_ID": "7",
            "SLURM_NNODES": "2",
            "SLURM_CPUS_PER_TASK": "1",
            "SLURMD_NODENAME": "a",
            "CALLS": str(tmp_path / "calls"),
            "HEAD": "works",
            "WORKER": "ends",
            "FEDLENS_HEAD_SECONDS": "1",
        }
        command = ["bash", str(SCRIPT), str(folder), "3"]
        process = subprocess.Popen(
            command, env=environment | variables, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        started.append(process)
        return process, folder, tmp_path / "calls"

    yield start
    for process in started:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def left(folder: Path) -> set[str]:
    return {path.name for path in folder.parent.iterdir()} - {"bin", "home", "calls", "study"}


def test_it_trains_and_puts_the_database_back(submit):
    process, folder, calls = submit()
    assert process.wait(20) == 0
    assert (folder / "runs.db").read_text() == "queued\ntrained\n"
    assert left(folder) == {"study.before"}, "the database as it was; no copy, no lock"
    assert "fedlens resume --experiment 3 --no-worker" in calls.read_text()
    assert "fedlens worker --ray 10.0.0.1:20007" in calls.read_text()
    assert (folder.parent / "home/.ray/auth_token").stat().st_mode & 0o077 == 0


def test_one_node_needs_no_ray_and_a_job_array_has_a_database_per_task(submit):
    process, folder, _ = submit(SLURM_NNODES="1", SLURM_ARRAY_TASK_ID="4")
    assert process.wait(20) == 1 and "there is no" in process.stderr.read()
    (folder / "4").mkdir()
    (folder / "4" / "runs.db").write_text("queued\n")
    process, folder, calls = submit(SLURM_NNODES="1", SLURM_ARRAY_TASK_ID="4")
    assert process.wait(20) == 0
    assert (folder / "4" / "runs.db").read_text() == "queued\ntrained\n"
    assert (folder / "runs.db").read_text() == "queued\n"
    assert "ray" not in calls.read_text().replace(str(folder.parent), "")


@pytest.mark.parametrize(
    ("head", "said"), [("fails", "the head has ended"), ("silent", "does not answer at")]
)
def test_it_ends_with_a_head_that_fails(submit, head, said):
    process, folder, calls = submit(HEAD=head, FEDLENS_HEAD_SECONDS="1" if head == "silent" else "20")
    assert process.wait(20) == 1
    assert said in process.stderr.read() and "fedlens worker" not in calls.read_text()
    assert (folder / "runs.db").read_text() == "queued\n" and left(folder) == {"study.before"}


def test_before_the_time_limit_it_ends_the_worker_and_puts_the_database_back(submit):
    process, folder, calls = submit(WORKER="works")
    end = time.monotonic() + 20
    while not (calls.exists() and "fedlens worker" in calls.read_text()) and time.monotonic() < end:
        time.sleep(0.05)
    time.sleep(0.2)  # until the stand-in has written to its copy
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0
    assert (folder / "runs.db").read_text() == "queued\ntrained\n"
    assert left(folder) == {"study.before"}


def test_results_that_cannot_be_put_back_are_kept(submit, tmp_path):
    stand_in = tmp_path / "bin" / "cp"
    full = 'case "$*" in *.new) echo "No space left" >&2; exit 1 ;; esac'
    stand_in.write_text(f'#!/bin/bash\n{full}\nexec {shutil.which("cp")} "$@"\n')
    stand_in.chmod(0o755)
    process, folder, _ = submit()
    assert process.wait(20) == 1
    (results,) = tmp_path.glob("fedlens-*")
    assert f"the results are in {results} on a;" in process.stderr.read()
    assert (results / "runs.db").read_text() == "queued\ntrained\n"
    assert (folder / "runs.db").read_text() == "queued\n"
    assert left(folder) == {"study.busy", results.name}


def test_two_jobs_do_not_use_one_database(submit):
    _, folder, _ = submit(WORKER="works")
    end = time.monotonic() + 20
    while not (folder.parent / "study.busy").exists() and time.monotonic() < end:
        time.sleep(0.02)
    second, _, _ = submit()
    assert second.wait(20) == 1 and "another job uses" in second.stderr.read()
