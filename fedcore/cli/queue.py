"""Commands about what waits and what works in the background: ``queue``, ``tasks``, ``task``."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from fedcore.errors import FedLensError
from fedcore.store import database

Add = Callable[[str, Callable[[argparse.Namespace], int], str], argparse.ArgumentParser]


def add(command: Add) -> None:
    """Register the commands."""
    queue = command("queue", _queue, "queued runs in their order; move some of them")
    queue.add_argument("id", type=int, nargs="*", metavar="ID", help="runs to move")
    queue.add_argument(
        "--move", choices=("top", "up", "down", "bottom"), default="top", help="where to (default: top)"
    )

    tasks = command("tasks", _tasks, "checks, encodings, downloads and analyses in the background")
    tasks.add_argument("--cancel", type=int, metavar="ID", help="stop a task")
    tasks.add_argument(
        "--forget", type=int, metavar="ID", help="delete a task that has ended, with its files"
    )

    task = command("task", _task, "do one queued task here (what the worker starts for each)")
    task.add_argument("id", type=int, metavar="ID")
    task.add_argument("--owner", default=None, help="by the worker: whose claim it is")
    task.add_argument("--attempt", type=int, default=None, help="by the worker: which claim it is")
    task.add_argument("--device", default="cpu", help="cpu (default), or a GPU's UUID")


def _queue(options: argparse.Namespace) -> int:
    from fedcore import store
    from fedcore.store import queries

    db = database.resolve(options.db)
    if options.id:
        moved = store.prioritise(db, options.id, options.move)
        left = [run for run in options.id if run not in moved]
        if left:
            raise FedLensError(
                f"run {left[0]} is not queued; `python -m fedcore queue` shows those that are", "id"
            )
    order = queries.queue(db)
    rows = {run.id: run for run in queries.runs(db, order)}
    for position, run_id in enumerate(order, 1):
        run = rows[run_id]
        print(f"{position:>3}  run {run.id}  {run.label}  seed {run.seed}  of experiment {run.experiment_id}")
    return 0


def _tasks(options: argparse.Namespace) -> int:
    from fedcore.jobs import tasks

    db = database.resolve(options.db)
    if options.cancel is not None and not tasks.cancel(db, tasks.get(db, options.cancel).id):
        raise FedLensError(f"task {options.cancel} has ended already", "cancel")
    if options.forget is not None:
        tasks.forget(db, options.forget)
    for task in tasks.recent(db):
        share = f"  {task.done}/{task.total}" if task.total else ""
        why = f"  ({task.error})" if task.error and task.status != "done" else ""
        print(f"task {task.id}  {task.kind}  {task.key}  {task.status}{share}{why}")
    return 0


def _task(options: argparse.Namespace) -> int:
    from fedcore.jobs import task_job

    db = database.resolve(options.db)
    claim = task_job.take(db, options.id, options.owner, options.attempt)
    outcome = task_job.work(claim, options.device)
    print(f"task {options.id}: {outcome}")
    return 0 if outcome == "done" else 1
