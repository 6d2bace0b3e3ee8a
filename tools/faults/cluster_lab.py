"""Clusters of a head ``alpha`` and a node ``beta`` on this machine, with one CPU each.

The worker is the real one, in its own process; this one never imports Ray, which would start threads.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil
from fedlens_ray import nodes
from fedlens_ray.connection import SETTINGS

from fedcore.base.files import PROJECT
from fedcore.config import parse
from fedcore.store import RunRow, Store
from fedcore.store.jobs import RUNS
from tests.support.cluster import TOKEN, ray_start
from tests.support.jobs import recorded
from tools.faults import lab as _lab
from tools.faults.lab import (
    EXPERIMENT,
    RUN,
    Defect,
    Difference,
    Lab,
    Rows,
    check_done,
    copy,
    tail,
    train,
)

SECONDS = 400.0
wait_for = partial(_lab.wait_for, poll=0.05)
"""The node's processes need the cores."""
COUNT = 4
ENDED = ("done", "failed", "stopped", "interrupted")
LONG: dict[str, Any] = EXPERIMENT | {"rounds": 100}
"""Some seconds, in which a fault can hit a run that trains."""
SMALL = ("--num-cpus", "1", "--object-store-memory", "100000000", "--node-name")
NO_VARIABLES: Mapping[str, str] = MappingProxyType({})
HOLD = """
import sys, time, ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as Affinity
ray.init(address=sys.argv[1], logging_level="CRITICAL")
nodes = {n["NodeName"]: n["NodeID"] for n in ray.nodes() if n["Alive"]}
hold = lambda mark: (open(mark, "w").close(), time.sleep(600))
ray.get([
    ray.remote(num_cpus=1)(hold).options(scheduling_strategy=Affinity(nodes[name], soft=False))
    .remote(f"{sys.argv[2]}-{name}") for name in sys.argv[3:]
])
"""
"""Another job of the cluster, which holds the CPUs of some nodes."""


@dataclass(frozen=True)
class Cluster:
    """A cluster, and a worker that serves a database there.

    Attributes:
        alpha, beta: the processes of the two nodes.
        worker: the process of the worker.
        variables: environment variables of every process that talks to the cluster.
    """

    lab: Lab
    db: Path
    address: str
    alpha: subprocess.Popen[bytes]
    beta: subprocess.Popen[bytes]
    worker: subprocess.Popen[bytes]
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def store(self) -> Store:
        return Store(self.db)

    def state(self, node: str) -> str:
        """Return what the page says about a node."""
        seen = nodes.read(self.store)
        views = [view for view in seen.nodes if view.name == node] if seen else []
        return "; ".join(view.text for view in views)

    def says(self, node: str, words: str) -> str:
        """Wait until the page says something about a node."""
        wait_for(lambda: words in self.state(node), f"{node}: '{self.state(node)}', not '{words}'", SECONDS)
        return self.state(node)

    def waits(self, run_id: int = RUN) -> str:
        """Return what a run waits for, as the page says it."""
        seen = nodes.read(self.store)
        return seen.waits.get(run_id, "") if seen else ""

    def waits_for(self, run_id: int, words: str) -> str:
        """Wait until the page says what a run waits for."""
        wait_for(lambda: words in self.waits(run_id), f"it waits for {self.waits(run_id)}", SECONDS)
        return self.waits(run_id)

    def queue(self, content: Mapping[str, Any] = LONG, count: int = 1, device: str = "auto") -> list[int]:
        """Queue experiments of one run each; returns the runs."""
        made = [self.store.experiments.create(parse(dict(content)), device=device) for _ in range(count)]
        return [run_id for one in made for run_id in one.run_ids]

    def row(self, run_id: int) -> RunRow:
        return self.store.runs.get([run_id])[0]

    def reach(self, run_id: int, rounds: int) -> None:
        """Wait until a run has recorded a round; it must still train then."""
        said = f"run {run_id} does not come to round {rounds} ({tail(self.db.parent / 'worker.log')})"
        wait_for(lambda: self.row(run_id).ended or self.row(run_id).rounds_done >= rounds, said, SECONDS)
        if self.row(run_id).ended:
            raise Defect(f"run {run_id} is {self.row(run_id).state}: {self.row(run_id).status_text}")

    def becomes(self, run_id: int, status: str) -> str:
        """Wait until a run has ended, with this status in its row; returns the reason that the row gives."""
        wait_for(lambda: self.row(run_id).status in ENDED, f"run {run_id} trains", SECONDS)
        row = self.row(run_id)
        if row.status != status:
            raise Defect(f"run {run_id} is {row.status} ({row.status_text}), not {status}")
        return row.status_text or ""

    def processes(self, words: str) -> list[psutil.Process]:
        """Return the processes of the nodes whose title, which Ray sets, has these words."""
        found = []
        for node in (self.alpha, self.beta):
            with suppress(psutil.Error):
                found += psutil.Process(node.pid).children(recursive=True)
        return [p for p in found if words in title(p)]

    def process_of(self, run_id: int) -> psutil.Process:
        """Return the process that trains a run; Ray sets its title a moment after it has begun."""
        words = f"fedlens run-{run_id}-"
        wait_for(lambda: self.processes(words) or self.row(run_id).ended, "no process of the run", SECONDS)
        return self.processes(words)[0]

    def finish(self, *nodes: str, ids: list[int] | None = None, rows: Rows | None = None) -> None:
        """Wait until runs are done, on these nodes, and compare their rows with those of this machine.

        Args:
            nodes: the devices on which they may train; none: any.
            ids: default: all runs.
            rows: default: those of the lab's run.
        """
        runs = self.store.runs
        ids = ids or [run.id for run in runs.of_experiments([e.id for e in self.store.experiments.all()])]

        def ended() -> bool:
            return all(run.ended for run in runs.get(ids))

        wait_for(ended, f"not all runs end ({tail(self.db.parent / 'worker.log')})", SECONDS)
        for run in runs.get(ids):
            if run.status != "done" or (nodes and run.device not in nodes):
                raise Defect(f"run {run.id} is {run.status} on {run.device}: {run.status_text}")
            if recorded(self.db, run.id) != (rows or self.lab.rows):
                raise Difference(f"run {run.id} has other rows than on this machine")

    def is_healthy(self) -> bool:
        """Return whether all processes live, no run does, and runs may start on both nodes."""
        if any(process.poll() is not None for process in (self.alpha, self.beta, self.worker)):
            return False
        with suppress(Defect):
            wait_for(lambda: not self.store.jobs.live(RUNS) and not self.store.queue.ids(), "runs", 60)
            wait_for(lambda: self.state("alpha") == self.state("beta") == "ready", "a node is not ready", 90)
            return True
        return False

    @contextmanager
    def held(self, folder: Path, *nodes: str) -> Iterator[Callable[[], None]]:
        """Let another job hold the CPUs of nodes; yields a function that ends it early."""
        mark = folder / "holds"
        job = subprocess.Popen(
            [sys.executable, "-c", HOLD, self.address, str(mark), *nodes],
            cwd=folder,
            env={**os.environ, **self.variables},
        )

        def release() -> None:
            job.kill()
            job.wait(20)

        try:
            wait_for(lambda: all(Path(f"{mark}-{name}").exists() for name in nodes), "no other job", SECONDS)
            yield release
        finally:
            release()

    @contextmanager
    def joined(
        self, folder: Path, name: str, *options: str, variables: Mapping[str, str] = NO_VARIABLES
    ) -> Iterator[subprocess.Popen[bytes]]:
        """Start a further node, which ends with the block."""
        log, given = folder / f"{name}.log", {**self.variables, **variables}
        with ray_start(log, "--address", self.address, *SMALL, name, *options, variables=given) as process:
            yield process

    @contextmanager
    def served(
        self, folder: Path, *options: str, variables: Mapping[str, str] = NO_VARIABLES
    ) -> Iterator[Cluster]:
        """Serve a separate database, which has no runs, with a further worker on this cluster."""
        db = copy(self.lab.empty, folder)
        shutil.copytree(self.lab.done / "artifacts" / "encodings", folder / "artifacts" / "encodings")
        given = {**self.variables, **variables}
        with worker(db, self.address, *options, variables=given) as process:
            yield replace(self, db=db, worker=process, variables=given)


def title(process: psutil.Process) -> str:
    """Return the command line of a process; empty if it has ended."""
    with suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def end(node: subprocess.Popen[bytes]) -> None:
    """Kill a node's processes at once."""
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(node.pid)
        for one in [*process.children(recursive=True), process]:
            with suppress(psutil.NoSuchProcess):
                one.kill()


@contextmanager
def worker(
    db: Path, address: str, *options: str, variables: Mapping[str, str] = NO_VARIABLES
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a worker; it is asked to end with the block."""
    command = [sys.executable, "-m", "fedcore", "worker", "--ray", address, "--db", str(db), *options]
    with (db.parent / "worker.log").open("ab") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, cwd=db.parent, env={**os.environ, **variables}
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(20)


@contextmanager
def cluster(
    lab: Lab,
    folder: Path,
    variables: Mapping[str, str] = NO_VARIABLES,
    count: int = COUNT,
    options: tuple[str, ...] = (),
    code: Path = PROJECT,
) -> Iterator[Cluster]:
    """Start a cluster and its worker for some runs; nothing of it is left behind.

    Args:
        variables: environment variables of ``beta``.
        count: of the runs.
        options: of the worker.
        code: folder from which the nodes and the worker import FedLens.
    """
    db = copy(lab.encoded, folder)
    for _ in range(count - 1):
        Store(db).experiments.create(parse(EXPERIMENT))
    with socket.socket() as found:
        found.bind(("", 0))
        port = found.getsockname()[1]
    address = f"{socket.gethostbyname(socket.gethostname())}:{port}"
    common = {
        **SETTINGS,
        "RAY_AUTH_TOKEN": TOKEN,
        "RAY_worker_niceness": "0",  # with 15, which is usual, they starve beside other programs
        "FEDLENS_CACHE": str(folder / "cache"),
        "PYTHONPATH": str(code),
    }
    with ExitStack() as opened:
        alpha = opened.enter_context(_head(folder, address, common))
        beta = opened.enter_context(
            ray_start(
                folder / "beta.log", "--address", address, *SMALL, "beta", variables={**common, **variables}
            )
        )
        process = opened.enter_context(worker(db, address, *options, variables=common))
        yield Cluster(lab, db, address, alpha, beta, process, common)


def _head(folder: Path, address: str, variables: Mapping[str, str]) -> Any:
    host, _, port = address.partition(":")
    place = ("--head", "--port", port, "--include-dashboard", "false", "--node-ip-address", host)
    return ray_start(folder / "alpha.log", *place, *SMALL, "alpha", variables=variables)


_RUNNING: dict[Lab, Cluster] = {}


def running_cluster(lab: Lab) -> Cluster:
    """Return the cluster that gentle faults share; it is started anew if the last fault has harmed it."""
    made = _RUNNING.pop(lab, None)
    if made is None or not made.is_healthy():
        lab.opened.close()
        folder = Path(tempfile.mkdtemp(dir=lab.folder, prefix="cluster-"))
        made = lab.opened.enter_context(cluster(lab, folder, count=2))
        made.finish()
        if not made.is_healthy():
            raise Defect(f"a new cluster is not ready: {made.state('alpha')}, {made.state('beta')}")
    _RUNNING[lab] = made
    return made


_LONG: dict[Lab, Rows] = {}


def long_rows(lab: Lab) -> Rows:
    """Return everything that an undisturbed run of ``LONG`` measures on this machine."""
    if lab not in _LONG:
        db = copy(lab.empty, Path(tempfile.mkdtemp(dir=lab.folder, prefix="long-")))
        shutil.copytree(lab.done / "artifacts" / "encodings", db.parent / "artifacts" / "encodings")
        Store(db).experiments.create(parse(LONG))
        assert train(db).wait() == 0, tail(db.parent / "process.log")
        check_done(db)
        _LONG[lab] = recorded(db, RUN)
    return _LONG[lab]
