"""The processes that execute jobs: the one that a launcher started, and ``fedlens run`` itself."""

import logging
import os
import select
import sys
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from fedcore.base import devices
from fedcore.base.errors import FedLensError, SystemFault, explain
from fedcore.base.events import Event
from fedcore.base.lazy import is_half_imported, open_clip
from fedcore.config import Experiment, RunConfig
from fedcore.jobs import handlers, launcher
from fedcore.jobs.handlers import Handler, Job
from fedcore.jobs.job import BEAT_SECONDS, Heartbeat, TerminationSignal, execute
from fedcore.jobs.launcher import PROCESS_LOG, UNRECORDED_STATUS
from fedcore.jobs.supervisor import ensure_worker
from fedcore.jobs.tuning import advance
from fedcore.jobs.turns import Following, Turns
from fedcore.store import Store
from fedcore.store.jobs import RUNS, TRAINING, Claim, LostClaim
from fedcore.store.liveness import hold, let_go, new_owner

logger = logging.getLogger(__name__)


def run_process(
    claim: Claim, device: str, handler: Handler | None = None, worker_options: Sequence[str] = ()
) -> int:
    """Execute a claimed job as the process that a supervisor started; returns an exit status.

    Args:
        handler: given for a run that is spread over devices. The process then ends after this run, because
            only the supervisor knows whether the devices and their data are available for the next one.
        worker_options: of the supervisor that replaces one that dies.
    """
    revive = partial(ensure_worker, command=("fedcore", "worker", *worker_options, "--db"))
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("fedcore.jobs").setLevel(logging.INFO)
    try:
        outcome = work(claim, device, handler=handler, continues=handler is None, revive=revive)
    except Exception as error:
        # for example no thread for the heartbeat
        fault = error if isinstance(error, FedLensError) else explain(error, claim.db)
        if fault is None:
            raise
        logger.error("%s", fault)
        reasons = {claim.owner: str(fault)}
        with suppress(FedLensError):  # each run by its own state: one that rested waits for another process
            Store(claim.db).jobs.reconcile(exit_reason=reasons.get, table=claim.table, gone=reasons)
            return 0
        return UNRECORDED_STATUS
    return UNRECORDED_STATUS if outcome == "unrecorded" else 0


def loaded_ahead(db: Path, owner: str) -> Claim:
    """Load what training imports, then wait for a run and return its claim (see ``ThisMachine.load_ahead``).

    It raises ``SystemExit`` when its pipe has closed without one.
    """
    hold(db, owner)
    try:
        handlers.load_engine()
        open_clip()
    except Exception:
        # A run that has been given to it meets the error, and records it. A later one gets another process,
        # since a second import would use what the first has left.
        if not select.select([sys.stdin], [], [], 0)[0]:
            let_go(db, owner)
            raise
    numbers = [int(number) for number in sys.stdin.readline().split()]
    if not numbers:
        let_go(db, owner)
        raise SystemExit
    claim = Claim(db, TRAINING, numbers[0], owner, numbers[1])
    with (claim.folder / PROCESS_LOG).open("ab") as log:
        for output in (sys.stdout, sys.stderr):
            os.dup2(log.fileno(), output.fileno())
    return claim


def work(
    first: Claim,
    device: str,
    *,
    handler: Handler | None = None,
    continues: bool = True,
    beat_seconds: float = BEAT_SECONDS,
    revive: Callable[[Store], object] = ensure_worker,
) -> str:
    """Execute a claimed job in this process, and with or after a run the queued runs of its experiment.

    Torch and the encodings are then loaded only once. The runs train in turn unless the experiment asks for
    one after another. A failing run does not affect the others. During a run a supervisor that died is
    started again, so that the queue goes on although no page is open.

    Returns: how the last job ended.
    """
    if first.table is not RUNS:  # tasks yield to training and to the pages
        psutil.Process().nice(getattr(psutil, "BELOW_NORMAL_PRIORITY_CLASS", 10))  # a constant of Windows
    outcome = "unrecorded"
    store = Store(first.db)
    terminated = TerminationSignal()

    def keep_supervisor() -> None:
        if first.table is RUNS and not terminated():  # the supervisor would inherit a task's low priority
            revive(store)

    try:
        with terminated, Heartbeat(store, (), beat_seconds, at_beat=keep_supervisor) as heartbeat:
            turns = Turns(heartbeat, device, handler=handler, terminated=terminated)
            turns.add(first)
            following = Following(store, first, device) if continues and first.table is RUNS else None
            while turns:
                # Until the end is recorded, the lock file has to stay: if `step` raises, the unlocked file
                # proves to others that this process has ended, and they mark the rows.
                outcome = "unrecorded"
                outcome = turns.step() or "resting"
                ends = terminated() or outcome in ("lost", "unrecorded") or is_half_imported("torch")
                if ends or not devices.answers(device) or (following and following.others_wait()):
                    turns.leave()
                    following = None
                elif following and (claim := following.claim(turns)) is not None:
                    turns.add(claim)
    finally:
        let_go(first.db, first.owner, keep_file=outcome == "unrecorded")
    return outcome


def run_local(
    store: Store,
    experiment: Experiment,
    runs: Sequence[RunConfig],
    *,
    device: str | None = None,
    handler: Handler | None = None,
    listen: Callable[[int, Event], None] = lambda run_id, event: None,
    begun: Callable[[int, dict[int, RunConfig]], None] = lambda experiment_id, runs: None,
) -> tuple[int, dict[int, str]]:
    """Record an experiment and train its runs in this process, one by one, as ``fedlens run`` does.

    What follows a search is trained too, further draws and the experiment with the selected values. Ctrl-C
    stops between two steps, a second Ctrl-C at once.

    Args:
        device: default: the first GPU, else the CPU.
        handler: executes the runs; default: training.
        begun: called with the id of an experiment and new runs of it, once they are recorded.
        listen: called with every event of a run, once it is recorded.

    Returns: the experiment's id, that of the selected values after a search, and the outcomes of all runs by
    id (see ``execute``). After a ``SystemFault``, when an end could not be recorded, no further run begins.
    """
    device = device or devices.default_device()
    os.environ.update(devices.environment_for(device))  # before torch is loaded
    owner = new_owner()
    hold(store.path, owner)
    outcomes: dict[int, str] = {}
    recorded = False
    try:
        created = store.experiments.create(experiment, runs, claimer=(owner, device))
        begun(created.experiment_id, dict(zip(created.run_ids, runs, strict=True)))
        waiting = deque(created.claims)
        with TerminationSignal(keyboard=True) as terminated, Heartbeat(store, created.claims) as heartbeat:
            while waiting:
                claim = waiting.popleft()
                if terminated():
                    outcomes[claim.id] = "stopped"
                    with suppress(LostClaim):  # stopped from the browser meanwhile; its row has the reason
                        claim.finish("stopped", "stopped before it began")
                elif claim.status() not in ("running", "stopping"):
                    outcomes[claim.id] = "lost"  # stopped from the browser, or for a fault of its method
                else:
                    outcomes[claim.id] = execute(
                        claim,
                        heartbeat,
                        handler=handler,
                        device=device,
                        terminated=terminated,
                        ends_as="stopped",
                        listen=partial(listen, claim.id),
                        queues_again=False,
                    )
                    if is_half_imported("torch"):
                        raise SystemFault(
                            f"torch could not be imported (the log of run {claim.id} says why), so this "
                            "process ends; fix that, then resume the runs"
                        )
                    if outcomes[claim.id] != "done" and not devices.answers(device):
                        raise SystemFault(
                            f"the GPU failed (the log of run {claim.id} says how), so this process ends; "
                            "resume the runs, with --device on another one if it fails again"
                        )
                    if outcomes[claim.id] == "unrecorded":
                        raise SystemFault(
                            f"the end of run {claim.id} could not be written to {store.path} (its log says "
                            "why); fix that, then resume the runs"
                        )
                if not waiting and not terminated():
                    following = advance(store, created.experiment_id, (owner, device))
                    if following is not None:
                        created = following
                        begun(created.experiment_id, store.runs.configs(created.run_ids))
                        heartbeat.add(created.claims)
                        waiting.extend(created.claims)
        recorded = True
    finally:
        let_go(store.path, owner, keep_file=not recorded)
    return created.experiment_id, outcomes


def spread_over(count: int, device: str | None = None, ray: str | None = None) -> Handler:
    """Return the handler that trains each run on several devices at once, for ``run_local``.

    Args:
        device: ``cpu`` to use processes on the CPU even if there are GPUs.
        ray: address of the cluster that has the devices; None: this machine.
    """
    from fedcore.engine.parallel import over_devices

    if ray is not None:
        spread = launcher.required_cluster().spread(ray, count, device)
    else:
        gpus = [d.id for d in devices.list_devices() if d.id != devices.CPU and device != devices.CPU]
        if gpus and count > len(gpus):
            raise FedLensError(
                f"this machine has {len(gpus)} GPUs, not {count}; give fewer, or --device cpu", "over"
            )
        chosen = gpus[:count] or [devices.CPU] * count
        variables = [devices.environment_for(d, sharers=1 if gpus else count) for d in chosen]
        if not gpus:
            # This process aggregates with the same number of threads as its workers, since the last bits of a
            # sum depend on it. It keeps the whole memory: the engine divides that itself.
            threads = {n: v for n, v in variables[0].items() if n != devices.MEMORY_SHARE}
            os.environ.update(threads)
        spread = over_devices(variables, devices.torch_name(chosen[0]))

    def handler(job: Job) -> Generator[Event, None, dict[str, Any]]:
        from fedcore.engine.train import train as engine

        return handlers.train(job, partial(engine, spread=spread))

    return handler
