"""The process that does one task: ``fedlens task ID``."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil

from fedcore.errors import FedLensError
from fedcore.jobs import tasks
from fedcore.jobs.devices import CPU, torch_name
from fedcore.jobs.heartbeat import Heart
from fedcore.jobs.job import PROGRESS_SECONDS, Terminated
from fedcore.jobs.tasks import ARRAYS, Context, Handler, TaskClaim
from fedcore.progress import Progress
from fedcore.store.claims import LostRun
from fedcore.store.database import artifacts_folder, resolve
from fedcore.store.liveness import TASKS, new_owner


def execute(
    claim: TaskClaim,
    heart: Heart,
    *,
    handler: Handler | None = None,
    device: str = CPU,
    terminated: Callable[[], bool] = lambda: False,
) -> str:
    """Do one claimed task and record its result.

    Args:
        handler: instead of the one that is registered for its kind.
        device: ``cpu`` or a GPU's UUID.

    Returns: how it ended: ``done``, ``failed``, ``stopped``, ``interrupted``, or ``lost`` when it had been
    taken away from this process (nothing was written then).
    """
    try:
        claim.begin()
        heart.watch(claim.id, claim.attempt)
        return _work(claim, heart, handler, device, terminated)
    except LostRun:
        return "lost"
    except FedLensError as error:  # the user's to mend: one line is enough
        return _failed(claim, error.line())
    except Exception as error:  # noqa: BLE001 - whatever a task raises is its own end, not the worker's
        return _failed(claim, f"{type(error).__name__}: {error}".splitlines()[0])


def _failed(claim: TaskClaim, line: str) -> str:
    """Record a failure; the traceback goes to the log, which is this process' output."""
    traceback.print_exc()
    try:
        claim.finish("failed", line)
    except LostRun:
        return "lost"
    return "failed"


def _work(
    claim: TaskClaim, heart: Heart, handler: Handler | None, device: str, terminated: Callable[[], bool]
) -> str:
    task = tasks.get(claim.db, claim.id)
    (task.folder / ARRAYS).unlink(missing_ok=True)  # an earlier answer to the same question

    def should_stop() -> bool:
        return heart.stop_asked or heart.lost or terminated()

    context = Context(claim.db, artifacts_folder(claim.db), task.folder, torch_name(device), should_stop)
    result: dict[str, Any] | None = None
    told = 0.0
    with closing((handler or tasks.handler(task.kind))(task.args, context)) as steps:
        for step in steps:
            if should_stop():
                break
            if isinstance(step, Progress):
                if time.monotonic() - told >= PROGRESS_SECONDS or step.done == step.total:
                    told = time.monotonic()
                    claim.progress(step)
            else:
                result = step
    if heart.lost:
        raise LostRun(f"task {claim.id} was taken from this process")
    if should_stop():
        status = "stopped" if heart.stop_asked else "interrupted"
        claim.finish(status, "stopped as asked" if status == "stopped" else "its process was asked to end")
        return status
    if result is None:
        raise RuntimeError(f"the handler of '{task.kind}' ended without a result")
    claim.finish("done", result=result)
    return "done"


def work(
    claim: TaskClaim, device: str = CPU, *, handler: Handler | None = None, beat_seconds: float = 5.0
) -> str:
    """Do a claimed task in this process, politely: training and pages come first. Returns how it ended."""
    process = psutil.Process()
    process.nice(psutil.BELOW_NORMAL_PRIORITY_CLASS if sys.platform == "win32" else 10)
    with Terminated() as terminated, Heart(claim.db, claim.owner, beat_seconds, work=TASKS) as heart:
        return execute(claim, heart, handler=handler, device=device, terminated=terminated)


def take(db: str | Path, task_id: int, owner: str | None = None, attempt: int | None = None) -> TaskClaim:
    """The claim that the supervisor made for this process; without one, claim a queued task now.

    Raises:
        FedLensError: when there is no such task, or it does not wait.
    """
    if owner is not None and attempt is not None:
        return TaskClaim(resolve(db), task_id, owner, attempt)
    task = tasks.get(db, task_id)
    claim = tasks.claim(db, new_owner(), CPU, task_id)
    if claim is None:
        raise FedLensError(f"task {task_id} is {task.status}; only a queued one can be done", "id")
    return claim
