"""``delete``: remove runs or whole experiments for good."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from fedcore.cli.options import DONE, Database, OfExperiments, RunIds, with_common_options, writable
from fedcore.errors import FedLensError
from fedcore.progress import counted

commands = typer.Typer()


@commands.command("delete")
@with_common_options
def delete(
    ids: RunIds,
    experiment: OfExperiments = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Delete without asking")] = False,
    db: Database = None,
) -> int:
    """Delete runs or experiments for good.

    All rounds, logs and checkpoints go with them.

    It cannot be undone. Running runs have to be stopped first.
    """
    from fedcore.store import Store

    store = Store(writable(db))
    ids = list(dict.fromkeys(ids))
    if experiment:
        runs = [run for number in ids for run in store.experiments.get(number).runs]
        what = f"{counted(len(ids), 'experiment')} with {counted(len(runs), 'run')}"
    else:
        runs = store.runs.get(ids)
        missing = sorted(set(ids) - {run.id for run in runs})
        if missing:
            raise FedLensError(f"no run {missing[0]}; `fedlens list` shows them", "id")
        what = counted(len(ids), "run")
    if live := [run.id for run in runs if run.status in ("running", "stopping")]:
        raise FedLensError(f"run {live[0]} is running; stop it first, then delete", "id")
    for run in runs:
        print(f"run {run.id}  {run.label}  seed {run.seed}  of experiment {run.experiment_id}  {run.state}")
    question = f"Delete {what}, with all rounds, logs and checkpoints? It cannot be undone."
    if not yes and not (sys.stdin.isatty() and typer.confirm(question, err=True)):
        raise FedLensError(f"nothing was deleted: {what}; confirm it, or give --yes", "yes")
    if experiment:
        for number in ids:
            store.experiments.delete(number)
    else:
        store.runs.delete(ids)
    print(f"deleted: {what}")
    return DONE
