"""Nodes of a Ray cluster that are not what they seem: each fault with the sentence that it has to give.

A cluster is a head ``alpha`` and a node ``beta`` on this machine, with one CPU each and environments of their
own. The worker is the real one, in its own process; this one never imports Ray, which would start threads.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import numpy as np
import psutil

from fedcore.cluster import connection
from fedcore.cluster.connection import SETTINGS
from fedcore.config import parse
from fedcore.errors import FedLensError
from fedcore.jobs import cluster_nodes
from fedcore.paths import PROJECT
from fedcore.store import Store
from fedcore.store.jobs import RUNS
from tests.support.cluster import TOKEN, ray_start
from tests.support.jobs import recorded
from tools.faults.accounts import OTHER, _root
from tools.faults.lab import EXPERIMENT, RUN, Defect, Difference, Lab, copy, tail, wait_for
from tools.faults.verdict import Family, Outcome, Verdict

SECONDS = 400.0
COUNT = 4
FALSE = "192.0.2.1:6379"
"""Address of a head that nobody should contact."""
FOREIGN = """
import sys, time, ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as Affinity
ray.init(address=sys.argv[1], logging_level="CRITICAL")
node = next(n["NodeID"] for n in ray.nodes() if n["NodeName"] == "alpha")
mark = sys.argv[2]
hold = lambda: (open(mark, "w").close(), time.sleep(600))
task = ray.remote(num_cpus=1)(hold).options(scheduling_strategy=Affinity(node, soft=False))
ray.get(task.remote())
"""


@dataclass(frozen=True)
class Cluster:
    """A cluster whose worker serves a database with some queued runs.

    Attributes:
        beta: the process of the node ``beta``.
    """

    lab: Lab
    db: Path
    address: str
    beta: subprocess.Popen[bytes]

    @property
    def store(self) -> Store:
        return Store(self.db)

    def state(self, node: str) -> str:
        """Return what the page says about a node."""
        seen = cluster_nodes.read(self.store)
        views = [view for view in seen.nodes if view.name == node] if seen else []
        return "; ".join(view.problem or "; ".join(("ready", *view.notes)) for view in views)

    def says(self, node: str, words: str) -> str:
        """Wait until the page says something about a node."""
        wait_for(lambda: words in self.state(node), f"{node}: '{self.state(node)}', not '{words}'", SECONDS)
        return self.state(node)

    def waits(self, run_id: int = RUN) -> str:
        """Return what a run waits for, as the page says it."""
        seen = cluster_nodes.read(self.store)
        return seen.waits.get(run_id, "") if seen else ""

    def finish(self, *nodes: str) -> None:
        """Wait until all runs are done, on these nodes, and compare their rows with those of this machine."""
        runs = self.store.runs
        ids = [run.id for run in runs.of_experiments([e.id for e in self.store.experiments.all()])]

        def ended() -> bool:
            return all(run.ended for run in runs.get(ids))

        wait_for(ended, f"not all runs end ({tail(self.db.parent / 'worker.log')})", SECONDS)
        for run in runs.get(ids):
            if run.status != "done" or run.device not in nodes:
                raise Defect(f"run {run.id} is {run.status} on {run.device}: {run.status_text}")
            if recorded(self.db, run.id) != self.lab.rows:
                raise Difference(f"run {run.id} has other rows than on this machine")


@contextmanager
def cluster(
    lab: Lab,
    folder: Path,
    variables: Mapping[str, str] = {},
    count: int = COUNT,
    options: tuple[str, ...] = (),
) -> Iterator[Cluster]:
    """Start a cluster and its worker for some runs; nothing of it is left behind.

    Args:
        variables: environment variables of ``beta``.
        count: of the runs.
        options: of the worker.
    """
    db = copy(lab.encoded, folder)
    for _ in range(count - 1):
        Store(db).experiments.create(parse(EXPERIMENT))
    with socket.socket() as found:
        found.bind(("", 0))
        port = found.getsockname()[1]
    address = f"{socket.gethostbyname(socket.gethostname())}:{port}"
    common = {"RAY_AUTH_TOKEN": TOKEN, "FEDLENS_CACHE": str(folder / "cache"), "PYTHONPATH": str(PROJECT)}
    head = (
        "--head",
        "--port",
        str(port),
        "--include-dashboard",
        "false",
        "--node-ip-address",
        address.split(":")[0],
    )
    small = ("--num-cpus", "1", "--object-store-memory", "100000000", "--node-name")
    with ExitStack() as opened:
        opened.enter_context(mock.patch.dict(os.environ, {**SETTINGS, **common}))
        opened.enter_context(ray_start(folder / "alpha.log", *head, *small, "alpha"))
        beta = opened.enter_context(
            ray_start(folder / "beta.log", "--address", address, *small, "beta", variables=variables)
        )
        command = [sys.executable, "-m", "fedcore", "worker", "--ray", address, "--db", str(db), *options]
        log = opened.enter_context((folder / "worker.log").open("wb"))
        worker = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
        opened.callback(worker.wait, 60)
        opened.callback(worker.terminate)
        yield Cluster(lab, db, address, beta)


def other_code(folder: Path) -> str:
    """Return a folder with FedLens of another commit."""
    shutil.copytree(
        PROJECT / "fedcore", folder / "other" / "fedcore", ignore=shutil.ignore_patterns("published")
    )
    with (folder / "other" / "fedcore" / "engine" / "loop.py").open("a") as file:
        file.write("# another commit\n")
    return str(folder / "other")


def commit(lab: Lab, folder: Path, rng: np.random.Generator) -> Verdict:
    """A node with another commit gets no runs."""
    with cluster(lab, folder, {"PYTHONPATH": other_code(folder)}) as made:
        said = made.says("beta", "has other code of FedLens")
        made.finish("alpha/cpu")
    return Verdict(Outcome.REFUSED, said)


def mixed(lab: Lab, folder: Path, rng: np.random.Generator) -> Verdict:
    """With the user's word it trains, and its runs say so."""
    word = mock.patch.dict(os.environ, FEDLENS_MIXED_CODE="1")
    with word, cluster(lab, folder, {"PYTHONPATH": other_code(folder)}) as made:
        made.finish("alpha/cpu", "beta/cpu")
        for run in made.store.runs.of_experiments([1, 2, 3, 4]):
            marks = [n.message for n in run.notices if "other code" in n.message and not n.repeats_exactly]
            if bool(marks) != (run.device == "beta/cpu"):
                raise Defect(f"run {run.id} on {run.device} has the marks {marks}")
    return Verdict(Outcome.MENDED, "marked")


def spread(lab: Lab, folder: Path, rng: np.random.Generator) -> Verdict:
    """A run that is to be spread over both commits waits."""
    with cluster(lab, folder, {"PYTHONPATH": other_code(folder)}, 1, ("--over", "2")) as made:
        said = made.says("beta", "has other code of FedLens")
        expected = "2 times 1 CPU, which no node has that can train it"
        wait_for(lambda: made.waits() == expected, f"it waits for {made.waits()}", SECONDS)
    return Verdict(Outcome.REFUSED, said)


def full(lab: Lab, folder: Path, rng: np.random.Generator) -> Verdict:
    """A node whose disk of temporary files is full gets no runs, until there is room again."""
    small = folder / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "fedlens", str(small)], check=True)
    try:
        with cluster(lab, folder, {"TMPDIR": str(small)}) as made:
            made.says("beta", "ready")
            (small / "filler").write_bytes(bytes(4 * 2**20 - 2**16))
            said = made.says("beta", "almost full")
            made.finish("alpha/cpu", "beta/cpu")
            (small / "filler").unlink()
            made.says("beta", "ready")
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)
    return Verdict(Outcome.MENDED, said)


def weights(lab: Lab, folder: Path, rng: np.random.Generator) -> Verdict:
    """Runs whose weights no node has wait, and the others train."""
    missing = parse(EXPERIMENT | {"backbone": {"name": "ViT-B-32", "pretrained": "openai"}})
    with cluster(lab, folder, count=2) as made:
        made.says("beta", "ready")
        with mock.patch.dict(os.environ, HF_HUB_CACHE=str(folder)):
            run_id = made.store.experiments.create(missing).run_ids[0]

        expected = "a node that has the weights ViT-B-32 openai"
        wait_for(lambda: made.waits(run_id) == expected, f"it waits for {made.waits(run_id)}", SECONDS)
        wait_for(lambda: made.store.runs.get([RUN])[0].ended, "no end of the other run", SECONDS)
        if made.waits(run_id) != expected:
            raise Defect(f"the run waits for {made.waits(run_id)}")
    return Verdict(Outcome.REFUSED, expected)


def foreign(lab: Lab, folder: Path, rng: np.random.Generator) -> Verdict:
    """Another job of the cluster holds the CPU of a node: the runs go to the other one."""
    with cluster(lab, folder, count=1) as made:
        made.finish("alpha/cpu", "beta/cpu")
        holds = folder / "holds"
        job = subprocess.Popen([sys.executable, "-c", FOREIGN, made.address, str(holds)], cwd=folder)
        try:
            wait_for(holds.exists, "the other job does not start", SECONDS)
            said = made.says("alpha", "0 of 1 CPUs free in Ray")
            for _ in range(2):
                made.store.experiments.create(parse(EXPERIMENT))
            wait_for(lambda: not made.store.queue.ids(), "the runs wait", SECONDS)
            made.finish("alpha/cpu", "beta/cpu")
            if {run.device for run in made.store.runs.of_experiments([2, 3])} != {"beta/cpu"}:
                raise Defect("a run was started on the node that is held")
        finally:
            job.kill()
            job.wait(20)
    return Verdict(Outcome.MENDED, said)


def killed(lab: Lab, folder: Path, rng: np.random.Generator) -> Verdict:
    """A node dies while it trains: its run goes on at the other one without a person."""
    with cluster(lab, folder) as made:
        wait_for(lambda: "beta/cpu" in _devices(made), "no run on beta", SECONDS)
        beta = psutil.Process(made.beta.pid)
        for process in [*beta.children(recursive=True), beta]:
            process.kill()
        made.finish("alpha/cpu", "beta/cpu")
        notices = [n.message for run in made.store.runs.of_experiments([1, 2, 3, 4]) for n in run.notices]
    again = [text for text in notices if "queued again by itself" in text]
    return Verdict(Outcome.MENDED, "; ".join(again) or "its run had ended")


def _devices(made: Cluster) -> set[str]:
    return {str(row["device"]) for row in made.store.jobs.live(RUNS)}


def token(lab: Lab, folder: Path, rng: np.random.Generator) -> Verdict:
    """A token that other accounts can read is refused."""
    file = folder / "auth_token"
    file.write_text(TOKEN)
    file.chmod(int(rng.choice([0o644, 0o640, 0o604])))
    variables = {"RAY_AUTH_TOKEN_PATH": str(file), "RAY_AUTH_TOKEN": "", "PYTHONPATH": str(PROJECT)}
    command = [
        sys.executable,
        "-m",
        "fedcore",
        "worker",
        "--ray",
        FALSE,
        "--db",
        str(copy(lab.queued, folder)),
    ]
    done = subprocess.run(
        command, env=os.environ | variables, capture_output=True, text=True, cwd=folder, timeout=100
    )
    if done.returncode != 2 or f"`chmod 600 {file}`" not in done.stderr:
        raise Defect(f"status {done.returncode}: {done.stderr[-300:]}")
    return Verdict(Outcome.REFUSED, done.stderr.strip())


def false_node(lab: Lab, folder: Path, rng: np.random.Generator) -> Verdict:
    """A program of another account that looks like a node of a cluster does not receive the token."""
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        shutil.copy("/bin/bash", Path(place) / "raylet")
        command = [str(Path(place) / "raylet"), "-c", "sleep 60; :", f"--gcs-address={FALSE}"]
        process = subprocess.Popen(command, user=OTHER, group=OTHER, extra_groups=[], cwd="/")
        try:
            seen = psutil.Process(process.pid)
            wait_for(lambda: seen.name() == "raylet", "no false node")
            with mock.patch.dict(os.environ, RAY_ADDRESS=""):
                said = connection.resolve("auto")
        except FedLensError as error:
            said = str(error)
        finally:
            process.kill()
            process.wait(20)
    if FALSE in said:
        raise Defect(f"the worker would contact it: {said}")
    return Verdict(Outcome.REFUSED, said)


def _ray() -> str | None:
    return None if connection.is_installed() else "Ray is not installed"


FAMILIES = tuple(
    Family(f"cluster-{name}", about, 1, attempt, needs)
    for name, about, attempt, needs in (
        ("commit", "a node has another commit of FedLens", commit, _ray),
        ("mixed", "the same, with the user's word", mixed, _ray),
        ("spread", "the same, with a run over both nodes", spread, _ray),
        ("full", "a node's temporary files have no room", full, lambda: _ray() or _root()),
        ("weights", "no node has a run's weights", weights, _ray),
        ("foreign", "another job of the cluster holds a node", foreign, _ray),
        ("killed", "a node is killed while it trains", killed, _ray),
        ("token", "other accounts can read Ray's token", token, _ray),
        ("false", "another account's program looks like a node", false_node, _root),
    )
)
