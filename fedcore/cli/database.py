"""``doctor``, ``backup``, ``restore`` and ``vacuum``: the database and the files beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedcore.cli.options import DONE, NOT_DONE, Database, with_common_options
from fedcore.errors import FedLensError

commands = typer.Typer()


@commands.command("doctor")
@with_common_options
def doctor(
    mend: Annotated[
        bool,
        typer.Option(
            "--mend", help="Delete what belongs to nothing or is damaged beyond use, and end dead jobs"
        ),
    ] = False,
    db: Database = None,
) -> int:
    """Check the database and the files beside it.

    It lists what is damaged, left over, or called running without a process. Recorded results are never
    changed. The exit status is 1 while something remains to be done.
    """
    from fedcore.jobs.doctor import examine
    from fedcore.store import Store

    remaining = 0
    for check in examine(Store(db), mend):
        print(f"{'!' if check.findings else '✓'} {check.title}" + f": {check.about}" * bool(check.about))
        for finding in check.findings:
            remaining += not finding.mended
            print(f"    {'mended: ' if finding.mended else ''}{finding.text}")
    if remaining:
        advice = "" if mend else "; `fedlens doctor --mend` deletes leftovers and ends dead jobs"
        print(f"{remaining} finding{'s' * (remaining != 1)}{advice}")
    return NOT_DONE if remaining else DONE


@commands.command("backup")
@with_common_options
def backup(
    target: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="A new file (default: beside the database)")
    ] = None,
    db: Database = None,
) -> int:
    """Copy the database while it is in use, and check the copy.

    Checkpoints, logs and encodings are files beside it, and not part of the copy.
    """
    from fedcore.paths import user_path
    from fedcore.store.database import resolve
    from fedcore.store.integrity.backup import back_up

    file = None if target is None else user_path(target, "target").resolve()
    made = back_up(resolve(db), file)
    print(f"{made} ({made.stat().st_size / 1e6:.1f} MB)")
    return DONE


@commands.command("restore")
@with_common_options
def restore(
    backup: Annotated[Path, typer.Argument(metavar="FILE", help="A backup, or any database of FedLens")],
    db: Database = None,
) -> int:
    """Put a backup in the place of the database.

    What was there is kept in a file beside it.
    """
    from fedcore.paths import user_path
    from fedcore.store import Store
    from fedcore.store.integrity import backup as backups

    store = Store(db)
    if store.path.is_file():
        _refuse_while_running(store.path)
    before = backups.restore(store.path, user_path(backup, "backup").resolve())
    store.prepare()
    print(f"{store.path} is now {backup}" + (f"; as it was before, it is in {before}" if before else ""))
    return DONE


@commands.command("vacuum")
@with_common_options
def vacuum(db: Database = None) -> int:
    """Give the room of deleted experiments back to the disk."""
    from fedcore.cli.options import writable
    from fedcore.store.integrity import backup as backups

    before, after = backups.vacuum(writable(db))
    print(f"{before / 1e6:.1f} MB before, {after / 1e6:.1f} MB now")
    return DONE


def _refuse_while_running(db: Path) -> None:
    """Refuse to replace a database that a process writes to; one that cannot be read stops nobody."""
    from fedcore.store.database import DatabaseFile
    from fedcore.store.jobs import JOB_TABLES, Jobs
    from fedcore.store.liveness import is_alive

    try:
        live = [row for table in JOB_TABLES for row in Jobs(DatabaseFile(db)).live(table)]
    except FedLensError:
        return
    running = sum(is_alive(db, row) for row in live)
    if running:
        raise FedLensError(f"{running} of its jobs are running; stop them first (`fedlens stop`)", "db")
