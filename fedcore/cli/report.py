"""``report``: a comparison as one HTML file, or as a folder with figures and tables for a paper."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from fedcore.cache.durable import write_whole
from fedcore.cli.options import DONE, Database, Where, with_common_options
from fedcore.errors import FedLensError

commands = typer.Typer()
HTML_SUFFIXES = (".html", ".htm")


@commands.command("report")
@with_common_options
def report(
    ids: Annotated[list[int], typer.Argument(metavar="ID", help="Experiments")],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", help="A new folder for all files, or FILE.html for the page alone"),
    ],
    baseline: Annotated[str | None, typer.Option(metavar="NAME", help="Method to compare with")] = None,
    test: Annotated[
        Literal["t", "wilcoxon"] | None,
        typer.Option(help="Paired test over seeds against the baseline (default: t)"),
    ] = None,
    metric: Annotated[
        str | None, typer.Option(help="Metric of the differences (default: the first of the table)")
    ] = None,
    rule: Annotated[
        Literal["last", "best", "mean10"],
        typer.Option(help="Reported round: the last, the best on validation, or the mean of the last ten"),
    ] = "last",
    unfinished: Annotated[
        bool, typer.Option("--unfinished", help="Include runs that have not done all their rounds")
    ] = False,
    where: Where = "",
    db: Database = None,
) -> int:
    """Write a comparison as one HTML file, or a folder for a paper.

    The file opens in any browser, without FedLens: tables, heatmaps, curves, configs.
    """
    from fedcore.reports.content import Choice, checked_comparison, read_report
    from fedcore.reports.folder import report_files, write_folder
    from fedcore.reports.page import report_html
    from fedcore.results.metrics import METRICS, Metric
    from fedcore.store import Store

    if test is not None and baseline is None:
        raise FedLensError("name the method to test against with --baseline", "test")
    by: Metric | None = next((m for m in METRICS if m == metric), None)
    if metric is not None and by is None:
        raise FedLensError(f"no metric '{metric}'; choose one of {', '.join(METRICS)}", "metric")
    as_page = output.suffix.lower() in HTML_SUFFIXES
    choice = Choice(rule, by, baseline, test or "t", unfinished, where)
    with checked_comparison(Store(db), ids, choice) as checked:
        names = ", ".join(checked.comparison.names.values())
        files = {"": report_html(read_report(checked)).encode()} if as_page else report_files(checked)
    if not as_page:
        write_folder(files, output)
    else:
        try:
            write_whole(output, files[""])
        except OSError as error:
            raise FedLensError(
                f"cannot write {output}: {error.strerror}; choose another file", "output"
            ) from error
    print(f"report of {names} in {output}")
    return DONE
