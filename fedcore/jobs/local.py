"""Training in the calling process, as ``fedlens run`` does, recorded like every other run."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from fedcore import devices, memory_limits
from fedcore.config import Experiment, RunConfig
from fedcore.errors import FedLensError
from fedcore.jobs import training
from fedcore.jobs.handlers import Handler, Job
from fedcore.jobs.heartbeat import Heartbeat
from fedcore.jobs.job import TerminationSignal, execute
from fedcore.lazy import is_half_imported
from fedcore.records.events import Event
from fedcore.store import Store
from fedcore.store.jobs import LostClaim
from fedcore.store.liveness import hold, let_go, new_owner
from fedcore.system_errors import SystemFault


@dataclass(frozen=True)
class Outcome:
    """The outcomes of an experiment's runs, by run id (see ``execute``)."""

    experiment_id: int
    runs: dict[int, str]


def run_local(
    store: Store,
    experiment: Experiment,
    runs: Sequence[RunConfig],
    *,
    device: str | None = None,
    handler: Handler | None = None,
    listen: Callable[[int, Event], None] = lambda run_id, event: None,
    begun: Callable[[int, dict[int, RunConfig]], None] = lambda experiment_id, runs: None,
) -> Outcome:
    """Record an experiment and train its runs one by one; Ctrl-C stops cleanly, a second Ctrl-C at once.

    Args:
        device: ``cpu`` or a GPU's UUID; default: the first GPU, else the CPU.
        handler: does the runs; default: training.
        begun: called with the experiment's id and its runs, once they are recorded.
        listen: called with every event of a run, once it is recorded.

    Raises:
        SystemFault: when the end of a run could not be recorded; the remaining runs are not begun.
    """
    device = device or devices.default_device()
    os.environ.update(devices.environment_for(device))  # before torch is loaded
    owner = new_owner()
    hold(store.path, owner)
    outcomes: dict[int, str] = {}
    recorded = False
    try:
        created, claims = store.experiments.create_claimed(experiment, runs, owner, device)
        begun(created.experiment_id, dict(zip(created.run_ids, runs, strict=True)))
        with TerminationSignal(keyboard=True) as terminated, Heartbeat(store, claims) as heartbeat:
            for claim in claims:
                if terminated():
                    outcomes[claim.id] = "stopped"
                    try:
                        claim.finish("stopped", "stopped before it began")
                    except LostClaim:
                        continue  # it was stopped from the browser in the meantime; its row has the reason
                elif claim.status() not in ("running", "stopping"):
                    outcomes[claim.id] = "lost"  # stopped from the browser, or for a fault of its method
                else:
                    outcomes[claim.id] = execute(
                        claim, heartbeat, handler=handler, device=device, terminated=terminated,
                        ends_as="stopped", listen=partial(listen, claim.id),
                    )  # fmt: skip
                    if is_half_imported("torch"):
                        raise SystemFault(
                            f"torch could not be imported (the log of run {claim.id} says why), so this "
                            "process ends; mend that, then resume the runs"
                        )
                    if outcomes[claim.id] == "unrecorded":
                        raise SystemFault(
                            f"the end of run {claim.id} could not be written to {store.path} (its log says "
                            "why); mend that, then resume the runs"
                        )
        recorded = True
    finally:
        let_go(store.path, owner, keep_file=not recorded)
    return Outcome(created.experiment_id, outcomes)


def spread_over(count: int, device: str | None, ray: str | None) -> Handler:
    """Return the handler that trains each run on several devices at once, for ``run_local``.

    Args:
        device: ``cpu`` to use processes on the CPU even if there are GPUs.
        ray: address of a cluster that has the devices, or ``auto``; None: this machine.

    Raises:
        FedLensError: when there are fewer devices than ``count``.
    """
    from fedcore.engine.parallel import over_devices

    if ray is not None:
        from fedcore.cluster.executor import over_nodes

        spread = over_nodes(ray, count, device)
    else:
        gpus = [d.id for d in devices.list_devices() if d.id != devices.CPU and device != devices.CPU]
        if gpus and count > len(gpus):
            raise FedLensError(
                f"this machine has {len(gpus)} GPUs, not {count}; give fewer, or --device cpu", "over"
            )
        chosen = gpus[:count] or [devices.CPU] * count
        variables = [devices.environment_for(d, sharers=1 if gpus else count) for d in chosen]
        if not gpus:
            threads = {n: v for n, v in variables[0].items() if n != memory_limits.SHARE}
            os.environ.update(threads)  # the same threads as the workers; the engine divides the memory
        spread = over_devices(variables, devices.torch_name(chosen[0]))

    def handler(job: Job) -> Generator[Event, None, dict[str, Any]]:
        from fedcore.engine.train import train as engine

        return training.train(job, partial(engine, spread=spread))

    return handler


def spread_later(count: int, ray: str | None) -> Handler:
    """Return a handler like that of ``spread_over`` that looks for the devices only when a run begins."""

    def handler(job: Job) -> Generator[Event, None, dict[str, Any]]:
        return (yield from spread_over(count, None, ray)(job))

    return handler
