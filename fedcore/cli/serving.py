"""``app``, ``worker``, ``queue``, ``tasks`` and ``task``: the dashboard, and work in the background."""

import operator
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from fedcore.base.errors import FedLensError
from fedcore.base.files import PROJECT, user_path
from fedcore.cli import common
from fedcore.cli.experiments import run_row
from fedcore.cli.terminal import AsJson, Row, print_table
from fedcore.store import Store, database
from fedcore.store.jobs import Claim


@common.command("app")
def app(
    port: Annotated[
        int | None,
        Option(min=1, max=65535, help="Port to listen on (default: the first free one from 8501)"),
    ] = None,
    db: common.Database = None,
) -> None:
    """Start the dashboard.

    It listens on this machine only, and asks visitors of other accounts for the token that it prints. Ctrl-C
    ends it; runs in training continue.
    """
    from click.exceptions import Abort
    from streamlit.web import cli

    from fedcore.cli.own_settings import read_own_only

    read_own_only()
    if db is not None:
        os.environ["FEDLENS_DB"] = str(user_path(db, "db").resolve())
    listen = [] if port is None else [f"--server.port={port}"]
    with suppress(Abort):  # Ctrl-C, which the server raises again after its end
        cli.main(["run", str(PROJECT / "app.py"), *listen], "streamlit", standalone_mode=False)


@common.command("worker")
def worker(
    idle: Annotated[
        float | None,
        Option(
            metavar="SECONDS",
            help="Exit after this many seconds without work (default: 600; with --ray: never)",
        ),
    ] = None,
    slots: Annotated[
        int | None,
        Option(
            metavar="N",
            help="Runs at once on each device from now on, if their memory fits (default: the last setting, "
            "else 1)",
        ),
    ] = None,
    ray: common.RayAddress = None,
    over: common.Over = None,
    shared: Annotated[
        Path | None,
        Option(
            metavar="FOLDER",
            help="With --ray: checkpoints travel through this folder, which has the same path on every node",
        ),
    ] = None,
    on_finish: Annotated[
        str | None,
        Option(
            "--on-finish",
            metavar="COMMAND|URL",
            help="Program (no shell) that gets JSON on its standard input, or address that gets it by POST, "
            "when an experiment has ended (default: FEDLENS_ON_FINISH)",
        ),
    ] = None,
    follow: Annotated[bool, Option(hidden=True)] = False,
    ahead: Annotated[bool, Option(hidden=True)] = False,
    db: common.Database = None,
) -> int:
    """Serve the queue in this terminal.

    There is one worker per database. The dashboard, `fedlens run --queue` and `fedlens resume` start it; do
    so yourself where detached processes are killed, as in containers. With --ray or --on-finish, the new
    worker takes over, and the old one leaves when its runs have ended. Without --ray, it joins the cluster
    that was chosen on the page Experiments, if any. With --over and without --ray, one run trains at a time.
    Ctrl-C asks its runs to end between two steps; they can be resumed.

    An address of --on-finish that cannot be reached, or that answers with 429 or 5xx, is tried again twice;
    one that does not answer is not, because it may have accepted the message. Experiments that end while no
    worker runs are reported by the next one.
    """
    from fedcore.jobs import launcher
    from fedcore.jobs.supervisor import IDLE_SECONDS, serve

    whole = "with --over a run takes whole devices; leave out --slots"
    common.refuse_if(over is not None and slots is not None, whole, "over")
    if ray is not None:
        return launcher.required_cluster().serve(
            db, ray, slots=slots, idle=idle, on_finish=on_finish, shared=shared, over=over
        )
    no_cluster = "--shared needs --ray, because runs on this machine send no checkpoints"
    common.refuse_if(shared is not None, no_cluster, "shared")
    idle = IDLE_SECONDS if idle is None else idle
    if (cluster := launcher.cluster()) is not None:
        served = cluster.serve_chosen(db, slots=slots, idle=idle, on_finish=on_finish, over=over)
        if served is not None:
            return served
    wait = follow or over is not None
    return serve(db, idle=idle, slots=slots, wait=wait, on_finish=on_finish, over=over, ahead=ahead)


@common.command("queue")
def queue(
    ids: Annotated[list[int] | None, Argument(metavar="ID", help="Runs to move")] = None,
    move: Annotated[
        Literal["top", "up", "down", "bottom"] | None, Option(help="Where to move them (default: top)")
    ] = None,
    as_json: AsJson = False,
    db: common.Database = None,
) -> None:
    """List the queued runs in their order, or move some of them.

    A process that has finished a run goes on with the next one of its experiment, unless another was moved
    before it.
    """
    store = Store(db)
    common.refuse_if(move is not None and not ids, "name the runs to move", "id")
    if ids:
        moved = store.queue.move(ids, move or "top")
        for run_id in ids:
            if run_id not in moved:
                raise FedLensError(f"run {run_id} is not queued; `fedlens queue` shows those that are", "id")
    order = store.queue.ids()
    rows, damaged = store.runs.listed(order)
    readable = {run.id: run_row(run) for run in rows}
    table = [{"position": place, "run": run_id} for place, run_id in enumerate(order, 1)]
    rest = (readable.get(run_id) or {"remark": damaged[run_id]} for run_id in order)
    print_table(map(operator.or_, table, rest), as_json)


@common.command("tasks")
def list_tasks(
    cancel: Annotated[int | None, Option(metavar="ID", help="Stop a task between two steps")] = None,
    delete: Annotated[
        int | None, Option(metavar="ID", help="Delete a task that has ended, with its files")
    ] = None,
    as_json: AsJson = False,
    db: common.Database = None,
) -> None:
    """List the background tasks, cancel one or delete one.

    Tasks are checks, downloads, imports, bundles and analyses that pages need. The worker does them alongside
    training, two at a time and at low priority; a task that was killed is done when a page needs it again.
    """
    tasks = Store(db).tasks
    if cancel is not None and not tasks.stop(tasks.get(cancel).id):
        raise FedLensError(f"task {cancel} has already ended", "cancel")
    if delete is not None:
        tasks.delete(delete)
    readable, damaged = tasks.listed()
    names = ("id", "kind", "key", "status", "done", "total", "error")
    table: list[Row] = [{"id": None, "status": "damaged", "error": line} for line in damaged]
    print_table(table + [{name: getattr(task, name) for name in names} for task in readable], as_json)


@common.command("task")
def task(
    task_id: Annotated[int, Argument(metavar="ID")],
    device: common.UsedDevice = "cpu",
    db: common.Database = None,
) -> int:
    """Execute one queued task in this process."""
    from fedcore.jobs.process import work

    tasks = Store(db).tasks
    outcome = work(tasks.claim(task_id, device), device)
    print(f"task {task_id}: {outcome}")
    if outcome == "failed":
        print(f"error: task {task_id}: {tasks.get(task_id).error}", file=sys.stderr)
    return common.DONE if outcome == "done" else common.NOT_DONE


@common.command("job", hidden=True)
def job(
    owner: Annotated[str, Option(help="The owner of the claim")],
    claim: Annotated[tuple[str, int, int] | None, Option(help="Kind, id, attempt (default: read)")] = None,
    device: common.UsedDevice = "cpu",
    over: Annotated[int | None, Option(help="Number of devices that train the run together")] = None,
    db: common.Database = None,
) -> int:
    """Execute one claimed run or task; the worker starts this process for each."""
    from fedcore.jobs.process import loaded_ahead, run_process, spread_over

    path = database.resolve(db)
    claimed = Claim(path, *claim[:2], owner, claim[2]) if claim else loaded_ahead(path, owner)
    if over is None:
        return run_process(claimed, device)
    # The devices are looked for when the run begins, so that a lack of them is recorded as the run's end.
    return run_process(claimed, device, lambda job: spread_over(over)(job), ["--over", str(over)])
