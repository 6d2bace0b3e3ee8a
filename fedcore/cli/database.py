"""``doctor``, ``backup``, ``restore``, ``vacuum``, ``checkpoints``: the database and the files beside it."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from fedcore.base import devices
from fedcore.base.errors import FedLensError
from fedcore.base.files import user_path
from fedcore.base.progress import counted
from fedcore.cli import common
from fedcore.cli.terminal import AsJson, print_table
from fedcore.config.models import KeepCheckpoints
from fedcore.store import Store
from fedcore.store import backup as backups
from fedcore.store.database import resolve
from fedcore.store.jobs import JOB_TABLES
from fedcore.store.liveness import is_alive


@common.command("doctor")
def doctor(
    mend: Annotated[
        bool,
        Option("--mend", help="Delete leftovers and files that are damaged beyond use, and end dead jobs"),
    ] = False,
    gpu: Annotated[
        bool, Option("--gpu", help="Compare the GPU with the CPU instead, and write a page for an issue")
    ] = False,
    db: common.Database = None,
) -> int:
    """Check the database and the files beside it, or the GPU.

    It lists damage, leftovers, and jobs that are marked as running without a process. Recorded results are
    never changed: --mend deletes what belongs to nothing or can be made again. With --gpu, each method is
    trained for two steps on the GPU and on the CPU, and rounds are measured, in some minutes. The exit
    status is 1 while something remains to be done.
    """
    if gpu:
        return _examine_gpu()
    from fedcore.jobs.doctor import examine

    remaining = 0
    for check in examine(Store(db), mend):
        about = f": {check.about}" if check.about else ""
        print(f"{'!' if check.faults else '✓'} {check.title}{about}")
        for fault in check.faults:
            remaining += not fault.mended
            print(f"    {'mended: ' if fault.mended else ''}{fault.text}")
    if remaining:
        advice = "" if mend else "; `fedlens doctor --mend` deletes leftovers and ends dead jobs"
        print(f"{counted(remaining, 'finding')}{advice}")
    return common.NOT_DONE if remaining else common.DONE


def _examine_gpu() -> int:
    devices.try_gpus()
    device = devices.default_device()
    none = "; ".join(devices.refused_gpus()) or "this machine has no GPU that torch can use"
    common.refuse_if(device == devices.CPU, none, "gpu")
    os.environ.update(devices.environment_for(device))
    from fedcore.share.gpu import report

    page = Path("fedlens-gpu.md")
    bad = False
    with page.open("w", encoding="utf-8") as file:  # line by line: what there is helps if the rest fails
        for line in report(devices.torch_name(device)):
            print(line)
            print(line, file=file, flush=True)
            bad = bad or "**differs" in line or "| | | |" in line
    print(f"written to {page}; attach it to an issue if something fails or differs")
    return common.NOT_DONE if bad else common.DONE


@common.command("backup")
def backup(
    target: Annotated[
        str | None, Argument(metavar="[FILE]", help="A new file (default: beside the database)")
    ] = None,
    db: common.Database = None,
) -> None:
    """Copy the database while it is in use, and check the copy.

    Checkpoints, logs and encodings are files beside it, and not part of the copy.
    """
    remedy = "name a new file, such as backup.db"
    file = None if target is None else common.file_output(target, remedy, "target").resolve()
    copy = backups.back_up(resolve(db), file)
    print(f"{copy} ({copy.stat().st_size / 1e6:.1f} MB)")


@common.command("restore")
def restore(
    backup: Annotated[Path, Argument(metavar="FILE", help="A backup, or any database of FedLens")],
    db: common.Database = None,
) -> None:
    """Replace the database by a backup.

    The replaced database is kept in a file beside it. It needs disk space for that file and for twice the
    backup; after an error nothing has changed. Runs that trained when it was made can be resumed.
    """
    store, live = Store(db), []
    if store.path.is_file():
        with suppress(FedLensError):  # an unreadable database is not protected
            live = [row for table in JOB_TABLES for row in store.jobs.live(table)]
    running = sum(is_alive(store.path, row) for row in live)
    common.refuse_if(
        running > 0, f"{running} of its jobs are running; stop them first (`fedlens stop`)", "db"
    )
    before = backups.restore(store.path, user_path(backup, "backup").resolve())
    store.prepare()
    for table in JOB_TABLES:  # nothing runs now, so a job that ran when the backup was made is interrupted
        owners = [row["owner"] for row in store.jobs.live(table)]
        store.jobs.reconcile(
            exit_reason=lambda owner: "it was running when the backup was made", table=table, gone=owners
        )
    print(f"{store.path} is now {backup}" + (f"; the replaced database is {before}" if before else ""))


@common.command("vacuum")
def vacuum(db: common.Database = None) -> None:
    """Shrink the database after deletions."""
    before, after = backups.vacuum(common.writable(db).path)
    print(f"{before / 1e6:.1f} MB before, {after / 1e6:.1f} MB now")


@common.command("checkpoints")
def checkpoints(
    ids: Annotated[list[int] | None, Argument(metavar="ID", help="Runs (default: all)")] = None,
    keep: Annotated[
        KeepCheckpoints | None,
        Option(help="What a finished run keeps: show what would be deleted (with --quota: none)"),
    ] = None,
    quota: Annotated[
        float | None,
        Option(
            metavar="GB", min=0, help="Show what the oldest runs would lose so that all files fit into this"
        ),
    ] = None,
    delete: Annotated[bool, Option("--delete", help="Delete what is shown")] = False,
    as_json: AsJson = False,
    db: common.Database = None,
) -> None:
    """List the checkpoints of finished runs, or delete some.

    Without a checkpoint a run cannot be analysed (Grad-CAM, feature space); its results stay. Unfinished runs
    keep theirs. New runs keep what keep_checkpoints of their experiment says.
    """
    from fedcore.config.field_names import size_text
    from fedcore.jobs import retention

    selects = keep is not None or quota is not None
    what = "say what to keep: --keep last, best or none, or --quota GB"
    common.refuse_if(delete and not selects, what, "delete")
    store = common.writable(db) if delete else Store(db)
    common.check_runs(store, ids or ())
    limit = None if quota is None else quota * 1e9
    if selects:
        listed = retention.surplus(store, keep or "none", limit, ids or ())
    else:
        listed = retention.finished(store, ids or ())
    table = []
    for entry in listed:
        row = {"run": entry.run.id, "label": entry.run.label, "experiment": entry.experiment}
        rounds = ", ".join(map(str, sorted(entry.sizes)))
        table.append(row | {"rounds": rounds, "megabytes": round(entry.size / 1e6, 2)})
    print_table(table, as_json)
    size, what = sum(entry.size for entry in listed), counted(len(listed), "finished run")
    if delete:
        common.print_note(f"{size_text(retention.delete(store, listed))} of {what}", "deleted")
    else:
        common.print_note(f"{size_text(size)} of {what}", "--delete would delete" if selects else "note")
    rest = retention.artifacts_size(store) - (0 if delete else size)
    if limit is not None and rest > limit:
        common.print_note(
            f"{size_text(rest)} remain, more than the quota: encodings, logs and what unfinished runs need; "
            "encodings can be deleted on the page Data & models"
        )
