"""Faults of runs on a cluster, and changes of its queue, while a worker serves it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import psutil

from fedcore.jobs import force_stop
from tests.support.cluster import OWN_METHOD
from tests.support.jobs import recorded
from tools.faults.cluster_lab import SECONDS, Cluster, long_rows, running_cluster, wait_for
from tools.faults.family import Family
from tools.faults.lab import EXPERIMENT, Defect, Lab
from tools.faults.verdict import Outcome, Verdict

STOPPED_SECONDS = 30
REMOVE = """
import sys, ray
from ray.util.placement_group import PlacementGroup
ray.init(address=sys.argv[1], logging_level="CRITICAL")
groups = ray.util.placement_group_table()
for name in [name for name, group in groups.items() if group["state"] in sys.argv[2:]]:
    ray.util.remove_placement_group(PlacementGroup(ray.PlacementGroupID(bytes.fromhex(name))))
    print(name)
"""
"""Another job of the cluster, which removes the placement groups of FedLens."""


def _begun(lab: Lab, rng: np.random.Generator) -> tuple[Cluster, int]:
    """Return the shared cluster and a run that trains there and has recorded a random round."""
    made = running_cluster(lab)
    (run_id,) = made.queue()
    made.reach(run_id, int(rng.integers(1, 9)))
    return made, run_id


def _trains_to_the_end(made: Cluster, lab: Lab, run_id: int) -> None:
    made.store.runs.resume([run_id])
    made.finish(ids=[run_id], rows=long_rows(lab))


def process(lab: Lab, folder: Path, rng: np.random.Generator) -> Verdict:
    """The run's process is killed: the run is interrupted, and goes on with the same rows."""
    made, run_id = _begun(lab, rng)
    one = made.process_of(run_id)
    one.kill()
    said = made.becomes(run_id, "interrupted")
    if "was killed" not in said:
        raise Defect(f"the reason is {said}")
    _trains_to_the_end(made, lab, run_id)
    return Verdict(Outcome.MENDED, said)


def stop(lab: Lab, folder: Path, rng: np.random.Generator) -> Verdict:
    """A run is stopped, and resumed."""
    made, run_id = _begun(lab, rng)
    made.store.runs.stop([run_id])
    said = made.becomes(run_id, "stopped")
    _trains_to_the_end(made, lab, run_id)
    return Verdict(Outcome.MENDED, said)


def hung(lab: Lab, folder: Path, rng: np.random.Generator) -> Verdict:
    """The run's process hangs and does not obey a stop: a kill ends it, and frees its device."""
    made, run_id = _begun(lab, rng)
    one = made.process_of(run_id)
    one.suspend()
    made.store.runs.stop([run_id])
    if not force_stop(made.store, run_id):
        raise Defect("it was not killed")
    said = made.becomes(run_id, "stopped")
    wait_for(lambda: not one.is_running() or one.status() == psutil.STATUS_ZOMBIE, "it lives", SECONDS)
    _trains_to_the_end(made, lab, run_id)
    return Verdict(Outcome.MENDED, said)


def moved(lab: Lab, folder: Path, rng: np.random.Generator) -> Verdict:
    """A run that is moved to the top of the queue is the next to start."""
    made = running_cluster(lab)
    ids = made.queue(count=6)
    made.reach(ids[0], 1)
    last = int(rng.choice(ids[4:]))
    if made.store.queue.move([last]) != [last]:
        raise Defect("it was not moved")
    made.finish(ids=ids, rows=long_rows(lab))
    order = sorted(ids, key=lambda run_id: made.row(run_id).started_at or 0)
    if last not in order[:4]:  # two train, and one more may have been claimed in the moment of the move
        raise Defect(f"the runs started in the order {order}")
    return Verdict(Outcome.MENDED, f"run {last} was number {order.index(last) + 1}")


def slots(lab: Lab, folder: Path, rng: np.random.Generator) -> Verdict:
    """The number of runs at once changes while runs wait."""
    made = running_cluster(lab)
    ids = made.queue(EXPERIMENT, 6)
    try:
        for number in (*rng.permutation([2, 3, 4]), 1):
            made.store.queue.set_slots("nodes/cpu", int(number))
            time.sleep(float(rng.uniform(0, 2)))
        made.finish(ids=ids)
    finally:
        made.store.queue.set_slots("nodes/cpu", 1)
    return Verdict(Outcome.UNAFFECTED, "all done")


def device(lab: Lab, folder: Path, rng: np.random.Generator) -> Verdict:
    """A run asks for a device that no node has: it waits, holds nothing up, and can be stopped."""
    made = running_cluster(lab)
    name = str(rng.choice(["GPU-00000000", "gamma", "beta/gpu"]))
    (run_id,) = made.queue(device=name)
    said = made.waits_for(run_id, f"a node with the device {name}")
    made.finish(ids=made.queue(EXPERIMENT, 2))
    made.store.runs.stop([run_id])
    made.becomes(run_id, "stopped")
    return Verdict(Outcome.REFUSED, said)


def method(lab: Lab, folder: Path, rng: np.random.Generator) -> Verdict:
    """A method file raises on the node: the fault names its line, and ends no other method's runs."""
    content = OWN_METHOD.replace("        loss = ", "        assert self.problem is None\n        loss = ")
    file, toml = folder / "faulty.py", folder / "faults.toml"
    file.write_text(content)
    toml.write_text(
        'name = "Faulty"\nrounds = 3\nseeds = [1, 2, 3]\n'
        '[data]\nname = "rotated-digits"\ndomains = ["rot0", "rot45"]\nshots = 4\n'
        '[[methods]]\nname = "sent-bias"\n[[methods]]\nname = "promptfl"\n'
    )
    line = next(i for i, text in enumerate(content.splitlines(), 1) if "assert" in text)
    state = {"FEDLENS_STATE": str(folder / "state")}
    with running_cluster(lab).served(folder, variables=state) as made:
        command = [sys.executable, "-m", "fedcore", "run", str(toml), "--methods", str(file), "--queue"]
        done = subprocess.run(
            [*command, "--no-worker", "--db", str(made.db)],
            env={**os.environ, **made.variables},
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise Defect(f"the experiment was not queued: {done.stderr[-300:]}")
        wait_for(lambda: not made.store.queue.ids() and _rest(made), "no end", SECONDS)
        runs = made.store.runs.of_experiments([1])
        states = {(run.method, run.state) for run in runs}
        failed = [run for run in runs if run.state == "failed"]
        if states > {("sent-bias", "failed"), ("sent-bias", "stopped"), ("promptfl", "done")} or not failed:
            raise Defect(f"the runs are {states}: {runs[0].status_text}")
        said = failed[0].status_text or ""
    if f"{file}:{line}" not in said:
        raise Defect(f"the reason is {said}, not line {line}")
    return Verdict(Outcome.REFUSED, said)


def _rest(made: Cluster) -> bool:
    return all(run.ended for run in made.store.runs.of_experiments([1]))


def foreign(lab: Lab, folder: Path, rng: np.random.Generator) -> Verdict:
    """Another job of the cluster holds nodes: runs start at the others, or wait until it has ended."""
    made = running_cluster(lab)
    held = [("alpha",), ("beta",), ("alpha", "beta")][int(rng.integers(3))]
    with made.held(folder, *held) as release:
        for node in held:
            said = made.says(node, "0 of 1 CPUs free in Ray")
        ids = made.queue(EXPERIMENT, 3)
        if len(held) == 2:
            said = made.waits_for(ids[0], "which other runs or jobs of the cluster hold")
            if len(set(made.store.queue.ids()) & set(ids)) < 3:
                raise Defect("a run was started on a node that is held")
            release()
            made.finish(ids=ids)
        else:
            made.finish({"alpha": "beta/cpu", "beta": "alpha/cpu"}[held[0]], ids=ids)
    return Verdict(Outcome.MENDED, said)


def removed(lab: Lab, folder: Path, rng: np.random.Generator) -> Verdict:
    """Another job removes the reservations of FedLens: of a run that trains, or of those that wait."""
    made = running_cluster(lab)
    ids = made.queue(count=4)
    made.reach(ids[0], int(rng.integers(1, 9)))
    states = [("CREATED",), ("PENDING",), ("CREATED", "PENDING")][int(rng.integers(3))]
    done = subprocess.run(
        [sys.executable, "-c", REMOVE, made.address, *states],
        env={**os.environ, **made.variables},
        capture_output=True,
        text=True,
    )
    if not done.stdout:
        raise Defect(f"nothing was removed: {done.stderr[-300:]}")
    made.finish(ids=ids, rows=long_rows(lab))
    notices = [n.message for run_id in ids for n in made.row(run_id).notices]
    return Verdict(Outcome.MENDED, f"{states}: {'; '.join(notices) or 'no run noticed it'}")


def paused(lab: Lab, folder: Path, rng: np.random.Generator) -> Verdict:
    """A node does not react for half a minute while it trains."""
    made = running_cluster(lab)
    ids = made.queue(count=3)
    wait_for(lambda: any(made.row(i).device == "beta/cpu" for i in ids), "no run on beta", SECONDS)
    time.sleep(float(rng.uniform(0, 3)))
    raylets = [p for p in made.processes("--node-name=beta") if p.name() == "raylet"]
    if len(raylets) != 1:
        raise Defect(f"{len(raylets)} raylets")
    os.kill(raylets[0].pid, signal.SIGSTOP)
    try:
        time.sleep(STOPPED_SECONDS)
        said = made.state("beta")
    finally:
        os.kill(raylets[0].pid, signal.SIGCONT)
    made.finish(ids=ids, rows=long_rows(lab))
    made.says("beta", "ready")
    return Verdict(Outcome.MENDED, said)


def actor(lab: Lab, folder: Path, rng: np.random.Generator) -> Verdict:
    """A process of a run over two nodes is killed: the run goes on by itself with the same rows."""
    with running_cluster(lab).served(folder, "--over", "2") as made:
        (expected,) = made.queue()
        made.becomes(expected, "done")
        (run_id,) = made.queue()
        made.reach(run_id, int(rng.integers(1, 9)))
        actors = made.processes("ray::Actor")
        actors[int(rng.integers(len(actors)))].kill()
        made.finish(ids=[run_id], rows=recorded(made.db, expected))
        said = [n.message for n in made.row(run_id).notices if "again by itself" in n.message]
    return Verdict(Outcome.MENDED, f"{len(actors)} actors; {'; '.join(said) or 'it had ended'}")


ATTEMPTS: Mapping[str, tuple[int, str, Callable[..., Verdict]]] = {
    "process": (3, "the process of a run on a node is killed", process),
    "stop": (2, "a run on a node is stopped and resumed", stop),
    "hung": (2, "a run on a node hangs, and is killed after a stop", hung),
    "moved": (2, "a queued run is moved to the top", moved),
    "slots": (2, "the number of runs at once changes while runs wait", slots),
    "device": (3, "a run asks for a device that no node has", device),
    "method": (1, "a method file raises on a node", method),
    "foreign": (4, "another job holds one node, or both", foreign),
    "removed": (4, "another job removes reservations", removed),
    "actor": (2, "a process of a run over two nodes is killed", actor),
    "paused": (1, "a node does not react for 30 s", paused),
}
FAMILIES = tuple(
    Family(f"cluster-{name}", about, attempts, attempt)
    for name, (attempts, about, attempt) in ATTEMPTS.items()
)
