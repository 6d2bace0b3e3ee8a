"""Train one run from its config to its last round: environment, setup, then the round loop."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedcore.config import RunConfig, backbones
from fedcore.config.grouping import stable_config
from fedcore.engine.events import Event, Notice, Started
from fedcore.engine.loop import CHUNK, Loop
from fedcore.engine.setup import RunSetup, set_up
from fedcore.lazy import torch


def train(
    run: RunConfig,
    *,
    artifacts: Path,
    folder: Path,
    device: str = "cpu",
    resume_from: str | None = None,
    environment: Mapping[str, Any] | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Iterator[Event]:
    """Train one run from its beginning, or from a checkpoint.

    Args:
        artifacts: folder of the encodings, shared by all runs.
        folder: folder of this run's checkpoints.
        environment: what an earlier attempt resolved (threads, chunk...), reused so that it repeats exactly.

    Raises:
        FedLensError: when the config cannot run or a resource is missing.
        Stopped: when ``should_stop`` says so.
    """
    resolved = resolve_environment(run, device, environment)
    setup = yield from set_up(run, artifacts, device, should_stop)
    loop = make_loop(run, setup, int(resolved["chunk"]), folder, should_stop)
    if resume_from is not None:
        loop.resume(resume_from)
    yield Started(entities=setup.entities, rounds_total=run.rounds, environment={**resolved, **setup.content})
    for text in environment_differences(environment, resolved):
        yield Notice(text, repeats_exactly=False)
    yield from loop.events()


def make_loop(
    run: RunConfig,
    setup: RunSetup,
    chunk: int = CHUNK,
    folder: Path | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Loop:
    """Make the loop of a run before its first round; ``Loop.resume`` takes it to a checkpoint."""
    return Loop(
        setup.method,
        setup.federation,
        run.rounds,
        run.participation,
        run.evaluate_every,
        chunk=chunk,
        folder=folder,
        run_key=json.dumps([stable_config(run), setup.content], sort_keys=True),
        should_stop=should_stop,
        cohorts=setup.cohorts,
    )


def resolve_environment(run: RunConfig, device: str, earlier: Mapping[str, Any] | None) -> dict[str, Any]:
    """Fix the choices that decide a run's bits (threads, chunk...), keeping those of an earlier attempt.

    Returns:
        these choices with the versions and the machine, to be stored with the run.
    """
    earlier = earlier or {}
    threads = int(earlier.get("threads") or os.environ.get("FEDLENS_THREADS") or torch.get_num_threads())
    torch.set_num_threads(threads)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    if device.startswith("cuda"):
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    return {
        "threads": threads,
        "chunk": int(earlier.get("chunk") or CHUNK),
        "precision": "+".join(dict.fromkeys(b.precision for b in backbones(run))),
        "tf32": False,
        "device": device,
        "device_name": torch.cuda.get_device_name()
        if device.startswith("cuda")
        else platform.processor() or "cpu",
        "python": platform.python_version(),
        "platform": platform.platform(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
    }


def environment_differences(earlier: Mapping[str, Any] | None, now: dict[str, object]) -> list[str]:
    """Say how a resumed attempt differs from the one before in what the bits depend on."""
    names = ("device_name", "torch", "numpy", "platform", "tf32", "precision")
    return [
        f"resumed with another {name.replace('_', ' ')}: {earlier[name]} before, {now[name]} now"
        for name in names
        if earlier and name in earlier and earlier[name] != now[name]
    ]
