"""``export``: the numbers of a comparison, written as a file."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from fedcore.cli.options import DONE, Database, Where, with_common_options
from fedcore.errors import FedLensError

commands = typer.Typer()


@commands.command("export")
@with_common_options
def export(
    ids: Annotated[list[int], typer.Argument(metavar="ID", help="Experiments")],
    table: Annotated[
        Literal["summary", "domains", "configs", "breakdowns", "rounds", "clients", "experiment"],
        typer.Option(help="Which table; experiment: everything that was recorded, to import elsewhere"),
    ] = "summary",
    format: Annotated[Literal["csv", "latex", "json"], typer.Option(help="File format")] = "csv",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="File, or folder to put it in (default: print it)"),
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
    from fedcore.papers.printed import printed_values
    from fedcore.results.exports import latex, tables
    from fedcore.store import Store

    _check_options(table, format, baseline, test, digits, where)
    store = Store(db)
    rows = [store.experiments.get(experiment_id) for experiment_id in ids]
    printed = partial(printed_values, experiments=[row.config for row in rows])
    writers: dict[tuple[str, str], Callable[[Store, Sequence[int]], str]] = {
        ("summary", "csv"): partial(
            tables.table_csv, rule=rule, where=where, baseline=baseline, test=test or "t", printed=printed
        ),
        ("summary", "latex"): partial(
            latex.summary_latex,
            rule=rule,
            where=where,
            printed=printed,
            digits=2 if digits is None else digits,
        ),
        ("summary", "json"): partial(tables.summary_json, rule=rule, where=where, printed=printed),
        ("domains", "csv"): partial(tables.table_csv, table="domains", rule=rule, where=where),
        ("configs", "csv"): partial(tables.table_csv, table="configs", rule=rule, where=where),
        ("breakdowns", "csv"): partial(tables.table_csv, table="breakdowns", rule=rule, where=where),
        ("rounds", "csv"): partial(tables.rounds_csv, where=where),
        ("clients", "csv"): partial(tables.clients_csv, where=where),
        ("experiment", "json"): lambda store, ids: store.experiments.to_json(ids),
    }
    write = writers.get((table, format))
    if write is None:
        formats = ", ".join(of for name, of in writers if name == table)
        raise FedLensError(f"table '{table}' is not written as {format}; choose {formats}", "format")
    store.integrity.require(ids)
    text = write(store, ids)
    suffix = "tex" if format == "latex" else format
    name = "-".join(row.name for row in rows)
    _write(text, output, tables.file_name(name, table, suffix, tables.fingerprint(rows)))
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


def _write(text: str, output: Path | None, name: str) -> None:
    """Print a table, or write it to a file or under a name into a folder."""
    if output is None:
        sys.stdout.write(text)
        return
    path = output / name if output.is_dir() else output
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise FedLensError(f"cannot write {path}: {error.strerror}; choose another file", "output") from error
