"""Nodes of a Ray cluster that are not what they seem: each fault with the sentence that it has to give."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import mock

import numpy as np
import psutil
from fedlens_ray import connection

from fedcore.base.errors import FedLensError
from fedcore.base.files import PROJECT
from fedcore.config import parse
from fedcore.store.jobs import RUNS
from tests.support.cluster import TOKEN
from tools.faults.accounts import OTHER, _root
from tools.faults.cluster_lab import SECONDS, Cluster, cluster, end
from tools.faults.family import Family, nothing
from tools.faults.lab import EXPERIMENT, RUN, Defect, Lab, copy, wait_for
from tools.faults.verdict import Outcome, Verdict

FALSE = "192.0.2.1:6379"
"""Address of a head that nobody should contact."""


def other_code(folder: Path) -> str:
    """Return a folder with FedLens of another commit."""
    shutil.copytree(
        PROJECT / "fedcore", folder / "other" / "fedcore", ignore=shutil.ignore_patterns("published")
    )
    with (folder / "other" / "fedcore" / "engine" / "round.py").open("a") as file:
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
        expected = "2 times 1 CPU; the nodes that can train it have 1"
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


def killed(lab: Lab, folder: Path, rng: np.random.Generator) -> Verdict:
    """A node dies while it trains: its run goes on at the other one without a person."""
    with cluster(lab, folder) as made:
        wait_for(lambda: "beta/cpu" in _devices(made), "no run on beta", SECONDS)
        end(made.beta)
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


FAMILIES = tuple(
    Family(f"cluster-{name}", about, 1, attempt, needs)
    for name, about, attempt, needs in (
        ("commit", "a node has another commit of FedLens", commit, nothing),
        ("mixed", "the same, with the user's word", mixed, nothing),
        ("spread", "the same, with a run over both nodes", spread, nothing),
        ("full", "a node's temporary files have no room", full, _root),
        ("weights", "no node has a run's weights", weights, nothing),
        ("killed", "a node is killed while it trains", killed, nothing),
        ("token", "other accounts can read Ray's token", token, nothing),
        ("false", "another account's program looks like a node", false_node, _root),
    )
)
