"""Training in this very process: what ``fedlens run`` does, recorded like every other run."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedcore.config import Experiment, RunConfig
from fedcore.engine.events import Event
from fedcore.jobs import devices
from fedcore.jobs.heartbeat import Heart
from fedcore.jobs.job import Terminated, Train, execute
from fedcore.store import Store
from fedcore.store.lease import LostRun
from fedcore.store.liveness import new_owner


@dataclass(frozen=True)
class Outcome:
    """How the runs of an experiment ended, by run id: ``done``, ``failed``, ``stopped`` or ``lost``."""

    experiment_id: int
    runs: dict[int, str]


def train_here(
    db: str | Path,
    experiment: Experiment,
    runs: Sequence[RunConfig],
    *,
    device: str | None = None,
    train: Train | None = None,
    listen: Callable[[int, Event], None] = lambda run_id, event: None,
    begun: Callable[[int, dict[int, RunConfig]], None] = lambda experiment_id, runs: None,
) -> Outcome:
    """Record an experiment and train its runs one by one. Ctrl-C stops cleanly, the second one at once.

    Args:
        device: ``cpu`` or a GPU's UUID; default: the first GPU, else the CPU.
        begun: is told the experiment's id and its runs, once they are recorded.
        listen: is told every event of a run, once it is recorded.
    """
    device = device or devices.default_device()
    os.environ.update(devices.environment_for(device))  # before torch is loaded
    owner = new_owner()
    created, leases = Store(db).experiments.create_claimed(experiment, runs, owner, device)
    begun(created.experiment_id, dict(zip(created.run_ids, runs, strict=True)))
    outcomes: dict[int, str] = {}
    with Terminated(keyboard=True) as terminated, Heart(db, owner) as heart:
        for lease in leases:
            if terminated():
                outcomes[lease.run_id] = "stopped"
                _unless_lost(lambda lease=lease: lease.finish("stopped", "stopped before it began"))
                continue
            outcomes[lease.run_id] = execute(
                lease, heart, train=train, device=device, terminated=terminated, ends_as="stopped",
                listen=lambda event, run_id=lease.run_id: listen(run_id, event),
            )  # fmt: skip
    return Outcome(created.experiment_id, outcomes)


def _unless_lost(action: Callable[[], None]) -> None:
    try:
        action()
    except LostRun:  # somebody stopped it from the browser meanwhile: it says so itself
        return
