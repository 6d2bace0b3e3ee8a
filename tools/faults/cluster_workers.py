"""Faults of workers, of their address and shared folder, of runs over several nodes, and of the head."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from fedcore.store.jobs import RUNS
from tests.support.jobs import recorded
from tools.faults.accounts import _root
from tools.faults.cluster import other_code
from tools.faults.cluster_lab import (
    LONG,
    SECONDS,
    Cluster,
    cluster,
    end,
    long_rows,
    running_cluster,
    wait_for,
    worker,
)
from tools.faults.family import Family, nothing
from tools.faults.lab import EXPERIMENT, Defect, Lab, copy
from tools.faults.verdict import Outcome, Verdict

THREE = LONG | {"data": EXPERIMENT["data"] | {"domains": ["rot0", "rot30", "rot60"]}}
"""One client for each of three nodes."""


def worker_killed(lab: Lab, folder: Path, rng: np.random.Generator) -> Verdict:
    """The worker is killed; another one goes on with the same rows."""
    with running_cluster(lab).served(folder) as made:
        (run_id,) = made.queue()
        made.reach(run_id, int(rng.integers(1, 9)))
        made.worker.kill()
        made.worker.wait(20)
        with worker(made.db, made.address, variables=made.variables):
            said = made.becomes(run_id, "interrupted")
            made.store.runs.resume([run_id])
            made.finish(ids=[run_id], rows=long_rows(lab))
    return Verdict(Outcome.MENDED, said)


def takeover(lab: Lab, folder: Path, rng: np.random.Generator) -> Verdict:
    """A further worker takes over while runs wait: the first ends with its runs, and all are done."""
    with running_cluster(lab).served(folder) as made:
        ids = made.queue(count=6)
        made.reach(ids[0], int(rng.integers(1, 9)))
        with worker(made.db, made.address, variables=made.variables):
            made.finish(ids=ids, rows=long_rows(lab))
            attempts = [made.row(run_id).attempt for run_id in ids]
            wait_for(lambda: made.worker.poll() is not None, "the first worker stays", SECONDS)
    if made.worker.returncode or attempts != [1] * 6:
        raise Defect(f"status {made.worker.returncode}, attempts {attempts}")
    return Verdict(Outcome.MENDED, "the first worker drained, the second trained the rest")


def upgrade(lab: Lab, folder: Path, rng: np.random.Generator) -> Verdict:
    """FedLens is replaced on all nodes while runs wait: none mixes both, a new worker trains the rest."""
    code = Path(other_code(folder))
    with cluster(lab, folder, count=1, code=code) as made:
        made.finish()
        ids = made.queue(count=6)
        made.reach(ids[0], int(rng.integers(1, 9)))
        with (code / "fedcore" / "engine" / "round.py").open("a") as file:
            file.write("# the next release\n")
        said = made.says("beta", "has other code of FedLens")
        with worker(made.db, made.address, variables=made.variables):
            made.finish(ids=ids, rows=long_rows(lab))
            wait_for(lambda: made.worker.poll() is not None, "the first worker stays", SECONDS)
        codes = [str(made.store.runs.environment(run_id)["code"]) for run_id in ids]
        if len(set(codes)) != 2 or sorted(codes, key=codes.index) != codes:
            raise Defect(f"the runs were trained by {codes}")
    return Verdict(Outcome.MENDED, f"{codes.count(codes[0])} of {len(ids)} runs before it; {said}")


def _refused(made: Cluster, folder: Path, address: str, variables: Mapping[str, str] = {}) -> str:
    """Start a worker that cannot join; returns what it says."""
    db = copy(made.lab.empty, folder)
    command = [sys.executable, "-m", "fedcore", "worker", "--ray", address, "--db", str(db)]
    given = {**os.environ, **made.variables, **variables}
    done = subprocess.run(command, env=given, capture_output=True, text=True, cwd=folder, timeout=SECONDS)
    *raw, said = done.stderr.strip().splitlines() or [""]
    if done.returncode != 2 or raw or not said.startswith("error: ray: "):
        raise Defect(f"status {done.returncode}: {done.stderr[-500:]}")
    return said


def wrong_token(lab: Lab, folder: Path, rng: np.random.Generator) -> Verdict:
    """A token that is not the cluster's is refused."""
    made, text = running_cluster(lab), "another-token-that-is-long-enough-to-be-one"
    said = _refused(made, folder, made.address, {"RAY_AUTH_TOKEN": text})
    if "token" not in said or text in said:
        raise Defect(said)
    return Verdict(Outcome.REFUSED, said)


@contextmanager
def _service(answer: bytes | None) -> Iterator[str]:
    """Listen like another service, which answers every connection alike; None: it says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        over, accepted = threading.Event(), list[socket.socket]()

        def serve() -> None:
            while not over.is_set():
                try:
                    accepted.append(server.accept()[0])
                except TimeoutError:
                    continue
                if answer is not None:
                    accepted[-1].sendall(answer)
                    accepted[-1].close()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}"
        finally:
            over.set()
            thread.join()
            for one in accepted:
                one.close()


def address(lab: Lab, folder: Path, rng: np.random.Generator) -> Verdict:
    """Nothing listens at the address, or another service does, which answers or not."""
    made, kind = running_cluster(lab), int(rng.integers(3))
    if kind == 0:
        with socket.create_server(("127.0.0.1", 0)) as free:
            place = f"127.0.0.1:{free.getsockname()[1]}"
        return Verdict(Outcome.REFUSED, _refused(made, folder, place))
    with _service(b"HTTP/1.1 400 Bad Request\r\n\r\n" if kind == 1 else None) as place:
        return Verdict(Outcome.REFUSED, _refused(made, folder, place))


def shared(lab: Lab, folder: Path, rng: np.random.Generator) -> Verdict:
    """The shared folder cannot be reached for a while: runs wait, or are interrupted with the reason."""
    place = folder / "shared"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "fedlens", str(place)], check=True)
    try:
        with running_cluster(lab).served(folder, "--shared", str(place)) as made:
            ids = made.queue(count=3)
            made.reach(ids[0], int(rng.integers(1, 9)))
            # A second file system covers the first: while a node writes there, it cannot become read-only.
            subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "fedlens", str(place)], check=True)
            said = made.says("beta", str(place))
            wait_for(lambda: not made.store.jobs.live(RUNS), "a run hangs", SECONDS)
            ended = [run_id for run_id in ids if made.row(run_id).ended]
            subprocess.run(["umount", "-l", str(place)], check=True)
            made.store.runs.resume(ended)
            made.finish(ids=ids, rows=long_rows(lab))
        if left := [path.name for path in place.iterdir()]:
            raise Defect(f"{left} are left in the shared folder")
    finally:
        while os.path.ismount(place):
            subprocess.run(["umount", "-l", str(place)], check=True)
    return Verdict(Outcome.MENDED, f"{said}; {len(ended)} runs were interrupted")


def spread_node(lab: Lab, folder: Path, rng: np.random.Generator) -> Verdict:
    """A node of a run over three nodes is killed: the run waits until it is back."""
    with running_cluster(lab).served(folder, "--over", "3") as made:
        with made.joined(folder, "gamma") as gamma:
            (expected,) = made.queue(THREE)
            made.becomes(expected, "done")
            (run_id,) = made.queue(THREE)
            made.reach(run_id, int(rng.integers(1, 9)))
            end(gamma)
            said = made.waits_for(run_id, "3 times 1 CPU")
        with made.joined(folder, "gamma"):
            made.finish(ids=[run_id], rows=recorded(made.db, expected))
        notices = [n.message for n in made.row(run_id).notices if "again by itself" in n.message]
    return Verdict(Outcome.MENDED, f"{said}; {'; '.join(notices)}")


def head(lab: Lab, folder: Path, rng: np.random.Generator) -> Verdict:
    """The head is killed: its runs are interrupted, and go on at another cluster."""
    with cluster(lab, folder, count=1) as made:
        made.finish()
        (run_id,) = made.queue()
        made.reach(run_id, int(rng.integers(1, 9)))
        processes = [p for p in made.processes("gcs_server") if p.name() == "gcs_server"]
        if rng.integers(2):
            end(made.alpha)
        else:
            processes[0].send_signal(signal.SIGKILL)
        states = ("interrupted", "done")  # a node without a head goes on for a while
        wait_for(lambda: made.row(run_id).state in states, "not interrupted", SECONDS)
        said = made.row(run_id).status_text or "done"
        wait_for(lambda: made.worker.poll() is not None, "its worker stays", SECONDS)
    again = running_cluster(lab)
    if made.row(run_id).state == "interrupted":
        made.store.jobs.reconcile()  # as `fedlens resume` does
        made.store.runs.resume([run_id])
    with worker(made.db, again.address, variables=again.variables):
        made.finish(ids=[run_id], rows=long_rows(lab))
    return Verdict(Outcome.MENDED, said)


ATTEMPTS: Mapping[str, tuple[int, str, Callable[..., Verdict], Callable[[], str | None]]] = {
    "worker": (2, "the worker of a cluster is killed", worker_killed, nothing),
    "takeover": (2, "a further worker takes over while runs wait", takeover, nothing),
    "upgrade": (1, "FedLens is replaced on all nodes while runs wait", upgrade, nothing),
    "wrong-token": (1, "the worker's token is not the cluster's", wrong_token, nothing),
    "address": (4, "no cluster is at the worker's address", address, nothing),
    "shared": (2, "the shared folder cannot be reached for a while", shared, _root),
    "spread-node": (1, "a node of a run over three nodes is killed", spread_node, nothing),
    "head": (2, "the head is killed", head, nothing),
}
FAMILIES = tuple(
    Family(f"cluster-{name}", about, attempts, attempt, needs)
    for name, (attempts, about, attempt, needs) in ATTEMPTS.items()
)
