"""Faults of runs and of their reservations while a worker serves a cluster, which the attempts share."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from tools.faults.cluster_lab import Cluster, has_ray, long_rows, standing
from tools.faults.lab import EXPERIMENT, Defect, Lab
from tools.faults.verdict import Family, Outcome, Verdict

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
    made = standing(lab)
    (run_id,) = made.queue()
    made.reach(run_id, int(rng.integers(0, 9)))
    return made, run_id


def _trains_to_the_end(made: Cluster, lab: Lab, run_id: int) -> None:
    made.store.runs.resume([run_id])
    made.finish(ids=[run_id], rows=long_rows(lab))


def process(lab: Lab, folder: Path, rng: np.random.Generator) -> Verdict:
    """The run's process is killed: the run is interrupted, and goes on with the same rows."""
    made, run_id = _begun(lab, rng)
    (one,) = made.processes(f"fedlens run-{run_id}-")
    one.kill()
    said = made.becomes(run_id, "interrupted")
    if "was killed" not in said:
        raise Defect(f"the reason is {said}")
    _trains_to_the_end(made, lab, run_id)
    return Verdict(Outcome.MENDED, said)


def device(lab: Lab, folder: Path, rng: np.random.Generator) -> Verdict:
    """A run asks for a device that no node has: it waits, holds nothing up, and can be stopped."""
    made = standing(lab)
    name = str(rng.choice(["GPU-00000000", "gamma", "beta/gpu"]))
    (run_id,) = made.queue(device=name)
    said = made.waits_for(run_id, f"a node with the device {name}")
    made.finish(ids=made.queue(EXPERIMENT, 2))
    made.store.runs.stop([run_id])
    made.becomes(run_id, "stopped")
    return Verdict(Outcome.REFUSED, said)


def foreign(lab: Lab, folder: Path, rng: np.random.Generator) -> Verdict:
    """Another job of the cluster holds nodes: runs start at the others, or wait until it has ended."""
    made = standing(lab)
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
    made = standing(lab)
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


ATTEMPTS: Mapping[str, tuple[int, str, Callable[..., Verdict]]] = {
    "process": (3, "the process of a run on a node is killed", process),
    "device": (3, "a run asks for a device that no node has", device),
    "foreign": (4, "another job holds one node, or both", foreign),
    "removed": (4, "another job removes reservations", removed),
}
FAMILIES = tuple(
    Family(f"cluster-{name}", about, attempts, attempt, has_ray)
    for name, (attempts, about, attempt) in ATTEMPTS.items()
)
