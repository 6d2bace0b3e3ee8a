"""``checkpoints``: what finished runs keep on the disk, and which of it can go."""

from __future__ import annotations

from typing import Annotated

import typer

from fedcore.cli.options import DONE, Database, with_common_options, writable
from fedcore.config.models import KeepCheckpoints
from fedcore.errors import FedLensError
from fedcore.progress import counted

commands = typer.Typer()


@commands.command("checkpoints")
@with_common_options
def checkpoints(
    ids: Annotated[list[int] | None, typer.Argument(metavar="ID", help="Runs (default: all)")] = None,
    keep: Annotated[
        KeepCheckpoints | None,
        typer.Option(help="What a finished run keeps: show what would be deleted (with --quota: none)"),
    ] = None,
    quota: Annotated[
        float | None,
        typer.Option(
            metavar="GB", min=0, help="Show what the oldest runs would lose so that all files fit into this"
        ),
    ] = None,
    delete: Annotated[bool, typer.Option("--delete", help="Delete what is shown")] = False,
    db: Database = None,
) -> int:
    """List the checkpoints of finished runs, or delete some.

    Without a checkpoint a run cannot be analysed (Grad-CAM, feature space); its results stay.
    """
    from fedcore.config.field_names import size_text
    from fedcore.jobs import retention as files
    from fedcore.store import Store

    if delete and keep is None and quota is None:
        raise FedLensError("say what to keep: --keep last, best or none, or --quota GB", "delete")
    store = Store(writable(db) if delete else db)
    listed = files.finished(store, ids or ())
    limit = None if quota is None else quota * 1e9
    if keep is not None or quota is not None:
        listed = files.surplus(store, keep or "none", limit, ids or ())
    for kept in listed:
        rounds = ", ".join(map(str, sorted(kept.sizes)))
        print(
            f"run {kept.run.id}  {kept.run.label}, {kept.experiment}: round {rounds}, {size_text(kept.size)}"
        )
    size = sum(kept.size for kept in listed)
    if delete:
        print(f"deleted: {size_text(files.delete(store, listed))} of {counted(len(listed), 'run')}")
    elif keep is not None or quota is not None:
        print(f"would be deleted with --delete: {size_text(size)} of {counted(len(listed), 'run')}")
    else:
        print(f"{size_text(size)} of {counted(len(listed), 'finished run')}")
    rest = files.artifacts_size(store) - (0 if delete else size)
    if limit is not None and rest > limit:
        print(
            f"{size_text(rest)} remain, more than the quota: encodings, logs and what unfinished runs need; "
            "encodings can be deleted on the page Data & models"
        )
    return DONE
