"""Nodes that join the cluster that attempts share: sick ones, ones that lack something, and new ones."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from tools.faults.accounts import _root
from tools.faults.cluster_lab import SECONDS, end, long_rows, running_cluster, wait_for
from tools.faults.family import Family, nothing
from tools.faults.lab import EXPERIMENT, Defect, Lab
from tools.faults.verdict import Outcome, Verdict

QUEUED = 200
UNWRITABLE = {"FEDLENS_CACHE": "/proc/fedlens"}
"""A folder that nobody can make, not even root."""
CHEAPEST = EXPERIMENT | {"rounds": 1, "methods": [{"name": "zero-shot"}], "seeds": list(range(1, QUEUED + 1))}


def again(lab: Lab, folder: Path, rng: np.random.Generator) -> Verdict:
    """A node that is killed and started again keeps its name, and gets runs."""
    made = running_cluster(lab)
    with made.joined(folder, "gamma") as gamma:
        made.says("gamma", "ready")
        (run_id,) = made.queue(device="gamma")
        made.reach(run_id, int(rng.integers(1, 9)))
        end(gamma)
        wait_for(lambda: not made.row(run_id).ended and made.row(run_id).state == "queued", "lost", SECONDS)
    with made.joined(folder, "gamma"):
        made.finish("gamma/cpu", ids=[run_id], rows=long_rows(lab))
        if made.state("gamma-2"):
            raise Defect("it has another name")
    return Verdict(Outcome.MENDED, made.row(run_id).notices[-1].message)


def added(lab: Lab, folder: Path, rng: np.random.Generator) -> Verdict:
    """A node that is added while runs wait gets some of them."""
    made = running_cluster(lab)
    ids = made.queue(count=10)
    with made.joined(folder, "gamma"):
        made.finish(ids=ids, rows=long_rows(lab))
        number = sum(made.row(run_id).device == "gamma/cpu" for run_id in ids)
    if not number:
        raise Defect("the new node got no run")
    return Verdict(Outcome.MENDED, f"it got {number} of 10 runs")


def gpu(lab: Lab, folder: Path, rng: np.random.Generator) -> Verdict:
    """A node offers GPUs that its driver does not show: it gets no runs, and the page says why."""
    made, number = running_cluster(lab), int(rng.integers(1, 5))
    with made.joined(folder, "gamma", "--num-gpus", str(number)):
        said = made.says("gamma", f"Ray gives {number} GPUs there, and its driver shows 0")
        made.finish("alpha/cpu", "beta/cpu", ids=made.queue(EXPERIMENT, 3))
    return Verdict(Outcome.REFUSED, said)


def memory(lab: Lab, folder: Path, rng: np.random.Generator) -> Verdict:
    """A node has less memory than runs need: they go to the others."""
    made = running_cluster(lab)
    with made.joined(folder, "gamma", "--memory", str(int(rng.integers(80, 150)) * 10**6)):
        made.says("gamma", "ready")
        made.finish("alpha/cpu", "beta/cpu", ids=made.queue(EXPERIMENT, 4))
        made.finish("gamma/cpu", ids=made.queue(EXPERIMENT, device="gamma"))  # it may fit after all
    return Verdict(Outcome.REFUSED, "they went to the others")


def cache(lab: Lab, folder: Path, rng: np.random.Generator) -> Verdict:
    """A node cannot write its encodings: it gets no runs, and one that asks for it waits."""
    made = running_cluster(lab)
    with made.joined(folder, "gamma", variables=UNWRITABLE):
        state = made.says("gamma", "/proc/fedlens")
        made.finish("alpha/cpu", "beta/cpu", ids=made.queue(EXPERIMENT, 6))
        (run_id,) = made.queue(EXPERIMENT, device="gamma")
        said = made.waits_for(run_id, "a node with the device gamma")
        made.store.runs.stop([run_id])
        made.becomes(run_id, "stopped")
    return Verdict(Outcome.REFUSED, f"{state}; {said}")


def sick(lab: Lab, folder: Path, rng: np.random.Generator) -> Verdict:
    """Many runs wait, and a node that seems ready fails each run that it gets: none is lost."""
    place = folder / "full"
    place.mkdir()
    # Two inodes: the folder, and the file by which a node tries whether it can write. Encodings find none.
    options = "size=64m,nr_inodes=2"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "fedlens", str(place)], check=True)
    variables = {"FEDLENS_CACHE": str(place)}
    try:
        with running_cluster(lab).served(folder) as made, made.joined(folder, "gamma", variables=variables):
            made.says("gamma", "ready")
            ids = made.queue(CHEAPEST)
            wait_for(lambda: not made.store.queue.ids(), f"{len(made.store.queue.ids())} wait", 900)
            wait_for(lambda: all(run.ended for run in made.store.runs.get(ids)), "no end", SECONDS)
            runs = made.store.runs.get(ids)
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)
    lost = [(run.id, run.status_text) for run in runs if run.state != "done"]
    hit = sum(any("queued again" in n.message for n in run.notices) for run in runs)
    if lost or not hit:
        raise Defect(f"{hit} runs met the fault, {len(lost)} are lost: {lost[:1]}")
    return Verdict(Outcome.MENDED, f"{len(ids)} runs done, {hit} of them met the fault")


ATTEMPTS: Mapping[str, tuple[int, str, Callable[..., Verdict], Callable[[], str | None]]] = {
    "again": (1, "a node is killed and started again", again, nothing),
    "added": (1, "a node is added while runs wait", added, nothing),
    "gpu": (1, "a node offers GPUs that its driver does not show", gpu, nothing),
    "memory": (1, "a node has less memory than the runs need", memory, nothing),
    "cache": (1, "a node cannot write its encodings", cache, nothing),
    "sick": (1, f"{QUEUED} runs wait, and a node fails all that it gets", sick, _root),
}
FAMILIES = tuple(
    Family(f"cluster-{name}", about, attempts, attempt, needs)
    for name, (attempts, about, attempt, needs) in ATTEMPTS.items()
)
