"""``import`` and ``merge``: results from elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedcore.cli.options import DONE, Database, with_common_options
from fedcore.errors import FedLensError
from fedcore.progress import counted

if TYPE_CHECKING:
    from fedcore.store.exchange.imports import Merged

commands = typer.Typer()


@commands.command("import")
@with_common_options
def import_results(
    file: Annotated[Path, typer.Argument(metavar="FILE.csv|FILE.json")],
    experiment: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="For a CSV file: the experiment to join (name or id), or the name of a new one",
        ),
    ] = None,
    dataset: Annotated[
        str | None,
        typer.Option(help="For a CSV file: the data set of the results (default: own data)"),
    ] = None,
    db: Database = None,
) -> int:
    """Record results from a CSV file, or an exported JSON file.

    A CSV file has the columns method, seed, round, model, test_set, correct and total.
    """
    from fedcore.store import Store

    if file.suffix.lower() == ".json":
        for field, value in (("experiment", experiment), ("dataset", dataset)):
            if value is not None:
                raise FedLensError("leave this out: a JSON file names its experiments and data", field)
        return _report(Store(db).imports.json(file))
    if experiment is None:
        raise FedLensError("name the experiment that a CSV file's runs belong to", "experiment")
    created = Store(db).imports.csv(file, experiment, dataset or "own data")
    print(f"experiment {created.experiment_id}: {counted(len(created.run_ids), 'run')} recorded")
    return DONE


@commands.command("merge")
@with_common_options
def merge(other: Annotated[Path, typer.Argument(metavar="OTHER.db")], db: Database = None) -> int:
    """Copy the experiments of another database into this one."""
    from fedcore.store import Store

    return _report(Store(db).imports.database(other))


def _report(merged: Merged) -> int:
    for name in merged.added:
        print(f"added: {name}")
    for name in merged.present:
        print(f"already here, left unchanged: {name}")
    return DONE
