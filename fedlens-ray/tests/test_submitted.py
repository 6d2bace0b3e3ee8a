"""The worker as a job of a cluster that exists already, as docs/cluster.md describes it."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from fedcore.config import parse
from fedcore.store import Store
from tests.support.cluster import ray_start, settings
from tests.support.jobs import row

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def free_ports(number: int) -> list[str]:
    sockets = [socket.create_server(("", 0)) for _ in range(number)]
    ports = [str(one.getsockname()[1]) for one in sockets]
    for one in sockets:
        one.close()
    return ports


def test_the_worker_is_a_job_that_ends_with_the_queue(db: Path, tmp_path: Path) -> None:
    (run_id,) = Store(db).experiments.create(parse({"rounds": 2, "methods": [{"name": "fedclip"}]})).run_ids
    variables = settings(tmp_path / "cache")
    port, dashboard = free_ports(2)
    head = f"--head --port {port} --dashboard-port {dashboard} --num-cpus 1 --node-name alpha".split()
    submit = f"job submit --address http://127.0.0.1:{dashboard} --entrypoint-num-cpus 0 --".split()
    worker = ["-m", "fedcore", "worker", "--ray", "--idle", "5", "--db", str(db)]
    ray = [sys.executable, "-m", "ray.scripts.scripts"]
    with ray_start(tmp_path / "head.log", *head, variables=variables):
        done = subprocess.run(
            [*ray, *submit, sys.executable, *worker],
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            timeout=900,
        )
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-1000:]
    assert (row(db, run_id).state, row(db, run_id).device) == ("done", "alpha/cpu")
    assert f"run {run_id} on alpha: done" in done.stdout + done.stderr, "the job's log says what was trained"
