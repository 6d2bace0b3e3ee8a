"""``export``: the numbers of a comparison, written as a file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

import typer

from fedcore.cache.durable import write_whole
from fedcore.cli.options import DONE, Database, Where, with_common_options
from fedcore.cli.terminal import write_data
from fedcore.errors import FedLensError
from fedcore.paths import user_path

commands = typer.Typer()


@commands.command("export")
@with_common_options
def export(
    ids: Annotated[list[int], typer.Argument(metavar="ID", help="Experiments")],
    table: Annotated[
        Literal["summary", "domains", "configs", "breakdowns", "rounds", "clients", "experiment"],
        typer.Option(help="Which table; experiment: everything that was recorded, to import elsewhere"),
    ] = "summary",
    format: Annotated[
        Literal["csv", "latex", "json"] | None,
        typer.Option(help="File format (default: by the name of the file: .csv, .tex, .json; else csv)"),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="PATH",
            help="File, or folder to put it in; a new folder ends with / (default: print it)",
        ),
    ] = None,
    baseline: Annotated[
        str | None, typer.Option(metavar="NAME", help="Method to compare with (summary as csv)")
    ] = None,
    test: Annotated[
        Literal["t", "wilcoxon"] | None,
        typer.Option(help="Paired test over seeds against the baseline (default: t)"),
    ] = None,
    rule: Annotated[
        Literal["last", "best", "mean10"],
        typer.Option(help="Reported round: the last, the best on validation, or the mean of the last ten"),
    ] = "last",
    digits: Annotated[
        int | None, typer.Option("--decimals", min=0, max=6, help="Decimals of the LaTeX table (default: 2)")
    ] = None,
    where: Where = "",
    db: Database = None,
) -> int:
    """Export the numbers of a comparison."""
    from fedcore.reports.content import Choice, checked_comparison
    from fedcore.reports.exports import SUFFIXES, WRITERS
    from fedcore.results.exports.tables import file_name
    from fedcore.store import Store

    format = format or ("json" if table == "experiment" else _format_of(output))
    _check_options(table, format, baseline, test, digits, where)
    write = WRITERS.get((table, format))
    if write is None:
        formats = ", ".join(of for name, of in WRITERS if name == table)
        raise FedLensError(f"table '{table}' is not written as {format}; choose {formats}", "format")
    choice = Choice(rule, None, baseline, test or "t", where=where, digits=2 if digits is None else digits)
    with checked_comparison(Store(db), ids, choice) as checked:
        text, experiments = write(checked), checked.comparison.experiments
    _write(text, output, file_name(experiments, table, SUFFIXES[format]))
    return DONE


def _check_options(
    table: str, format: str, baseline: str | None, test: str | None, digits: int | None, where: str
) -> None:
    """Refuse options that the chosen table does not have."""
    if baseline is not None and (table, format) != ("summary", "csv"):
        raise FedLensError("only the summary as csv compares with a baseline", "baseline")
    if test is not None and baseline is None:
        raise FedLensError("name the method to test against with --baseline", "test")
    if digits is not None and format != "latex":
        raise FedLensError("only the LaTeX table has chosen decimals", "decimals")
    if where and table == "experiment":
        raise FedLensError("a whole experiment is exported with all of its runs", "where")


def _format_of(output: str | None) -> Literal["csv", "latex", "json"]:
    """Return the format that the name of a file asks for."""
    suffix = Path(output or "").suffix.lower()
    return "latex" if suffix == ".tex" else "json" if suffix == ".json" else "csv"


def _write(text: str, output: str | None, name: str) -> None:
    """Print a table, or write it to a file or under a name into a folder, which is made if it ends with /."""
    if output is None:
        write_data(text)
        return
    path = user_path(output, "output")
    is_folder = path.is_dir() or output.endswith(("/", os.sep))
    path = path / name if is_folder else path
    try:
        if is_folder:
            path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text.encode())
    except OSError as error:
        raise FedLensError(f"cannot write {path}: {error.strerror}; choose another file", "output") from error
