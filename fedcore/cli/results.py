"""``export``, ``report``, ``flops``, ``import`` and ``merge``: numbers for a paper, and from elsewhere."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from fedcore.cli import common
from fedcore.errors import FedLensError
from fedcore.files import read_text
from fedcore.progress import counted

if TYPE_CHECKING:
    from fedcore.results.metrics import Metric
    from fedcore.store.imports import Merged

HTML_SUFFIXES = (".html", ".htm")


@common.command("export")
def export(
    ids: common.ExperimentIds,
    table: Annotated[
        Literal[
            "summary",
            "domains",
            "configs",
            "breakdowns",
            "costs",
            "rounds",
            "clients",
            "diagnostics",
            "experiment",
        ],
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
            help="File, or folder to put it in; a new folder ends with / (default, or -: print it)",
        ),
    ] = None,
    baseline: Annotated[
        str | None, typer.Option(metavar="NAME", help="Method to compare with (summary as csv)")
    ] = None,
    test: common.TestOption = None,
    rule: common.ReportedRound = "last",
    digits: Annotated[
        int | None, typer.Option("--decimals", min=0, max=6, help="Decimals of the LaTeX table (default: 2)")
    ] = None,
    where: common.RunFilter = "",
    db: common.Database = None,
) -> int:
    """Export the numbers of a comparison."""
    from fedcore.reports.checked import SUFFIXES, WRITERS, ComparisonChoices, checked_comparison
    from fedcore.results.exports import file_name
    from fedcore.store import Store

    suffix = Path(output or "").suffix.lower()
    if table == "experiment" or suffix == ".json":
        format = format or "json"
    format = format or ("latex" if suffix == ".tex" else "csv")
    common.check_baseline(baseline, test)
    if baseline is not None and table != "summary":
        raise FedLensError("only the summary compares with a baseline", "baseline")
    if digits is not None and format != "latex":
        raise FedLensError("only the LaTeX table has a number of decimals to choose", "decimals")
    if where and table == "experiment":
        raise FedLensError("a whole experiment is exported with all of its runs", "where")
    write = WRITERS.get((table, format))
    if write is None:
        formats = ", ".join(of for name, of in WRITERS if name == table)
        raise FedLensError(f"table '{table}' is not written as {format}; choose {formats}", "format")
    choice = ComparisonChoices(
        rule, None, baseline, test or "t", where=where, digits=2 if digits is None else digits
    )
    with checked_comparison(Store(db), ids, choice) as checked:
        path = common.text_output(output)
        if path is None:
            common.write_data(write(checked))
            return common.DONE
        is_folder = path.is_dir() or str(output).endswith(("/", os.sep))
        if is_folder:
            path = path / file_name(checked.comparison.experiments, table, SUFFIXES[format])
        common.write_file(path, (part.encode() for part in write(checked)), make_folder=is_folder)
    return common.DONE


@common.command("report")
def report(
    ids: common.ExperimentIds,
    output: Annotated[
        str,
        typer.Option("--output", "-o", help="A new folder for all files, or FILE.html for the page alone"),
    ],
    baseline: Annotated[str | None, typer.Option(metavar="NAME", help="Method to compare with")] = None,
    test: common.TestOption = None,
    metric: Annotated[
        str | None, typer.Option(help="Metric of the differences (default: the first of the table)")
    ] = None,
    rule: common.ReportedRound = "last",
    unfinished: Annotated[
        bool, typer.Option("--unfinished", help="Include runs that have not done all their rounds")
    ] = False,
    where: common.RunFilter = "",
    title: Annotated[str, typer.Option(help="Title (default: the names of the experiments)")] = "",
    notes: Annotated[
        str | None, typer.Option(metavar="TEXT|@FILE", help="Text below the title, or @ and its file")
    ] = None,
    parts: Annotated[
        str | None,
        typer.Option(metavar="NAMES", help="Parts of the page, separated by commas (default: all)"),
    ] = None,
    db: common.Database = None,
) -> int:
    """Write a comparison as one HTML file, or a folder for a paper.

    The file opens and prints in any browser, without FedLens: tables, heatmaps, curves, configs.
    """
    from fedcore.cli.progress import track
    from fedcore.reports.checked import ComparisonChoices, checked_comparison
    from fedcore.reports.content import Wording, read_report
    from fedcore.reports.folder import check_new, report_files, write_folder
    from fedcore.reports.page import report_html
    from fedcore.store import Store

    target = common.file_output(output, "name a new folder, or FILE.html for the page alone")
    common.check_baseline(baseline, test)
    by = None if metric is None else _metric(metric)
    choice = ComparisonChoices(rule, by, baseline, test or "t", unfinished, where)
    chosen = None if parts is None else tuple(filter(None, map(str.strip, parts.split(","))))
    text = notes or ""
    if text.startswith("@"):
        text = read_text(text[1:], "a text file", "notes")
    wording = Wording(title, text, chosen)
    is_page = target.suffix.lower() in HTML_SUFFIXES
    if not is_page:
        check_new(target)  # before the figures, which take their time
    with checked_comparison(Store(db), ids, choice) as checked:
        names = ", ".join(checked.comparison.names.values())
        page = track(report_html(track(read_report(checked, wording)))) if is_page else ""
        files = {} if is_page else track(report_files(checked, wording))
    if is_page:
        common.write_file(target, page.encode())
    else:
        write_folder(files, target)
    print(f"report of {names} in {target}")
    return common.DONE


def _metric(name: str) -> Metric:
    from fedcore.results.metrics import METRICS

    for metric in METRICS:
        if metric == name:
            return metric
    raise FedLensError(f"no metric '{name}'; choose one of {', '.join(METRICS)}", "metric")


@common.command("flops")
def flops(
    file: common.ExperimentFile = None,
    preset: common.PresetName = None,
    device: Annotated[
        str | None, typer.Option(help="cpu, or the UUID of a GPU (default: the first GPU, else the CPU)")
    ] = None,
    db: common.Database = None,
) -> int:
    """Count the operations of each method's first round.

    The round is trained under torch's counter, and nothing of it is recorded.
    """
    from fedcore.cli.progress import track, with_preparation
    from fedcore.devices import default_device, torch_name
    from fedcore.engine.flops import count_flops
    from fedcore.engine.plan import plan
    from fedcore.store import Store

    planned = with_preparation(lambda: plan(common.load_experiment(file, preset, db)))
    artifacts = Store(db).artifacts
    first = {run.model_dump_json(exclude={"seed", "held_out"}): run for run in reversed(planned.runs)}
    print(f"{'method':<28}{'GFLOP a round':>14}{'clients':>9}{'steps':>7}{'GFLOP a step':>14}  mostly")
    for run in reversed(first.values()):
        found = track(count_flops(run, artifacts, torch_name(device or default_device())))
        each = found.total / found.steps / 1e9 if found.steps else 0.0
        most = max(found.by_operation, key=lambda name: found.by_operation[name], default="-")
        print(
            f"{run.method.label or run.method.name:<28}{found.total / 1e9:>14,.4g}{found.clients:>9,}"
            f"{found.steps:>7,}{each:>14,.4g}  {most}"
        )
    return common.DONE


@common.command("import")
def import_results(
    file: Annotated[Path, typer.Argument(metavar="FILE.csv|FILE.json|BUNDLE.zip")],
    experiment: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="For a CSV file: the experiment to join (name or id), or the name of a new one",
        ),
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(help="For a CSV file: the data set of the results (default: own data)")
    ] = None,
    db: common.Database = None,
) -> int:
    """Record results from a CSV or JSON file, or from a bundle.

    A CSV file has the columns method, seed, round, model, test_set, correct and total.
    """
    from fedcore.config import expand
    from fedcore.papers.experiments import preset
    from fedcore.results.sharing import preset_of_board
    from fedcore.store import Store

    if file.suffix.lower() in (".json", ".zip"):
        for field, value in (("experiment", experiment), ("dataset", dataset)):
            common.refuse_if(
                value is not None, "leave this out: the file names its experiments and data", field
            )
        if file.suffix.lower() == ".json":
            return _print_merged(Store(db).imports.json(file))
        from fedcore.bundles.archive import open_bundle
        from fedcore.bundles.verify import import_bundle

        return _print_merged(import_bundle(open_bundle(file), Store(db)))
    if experiment is not None:
        created = Store(db).imports.csv(file, experiment, dataset or "own data")
    elif name := preset_of_board(file):
        common.refuse_if(
            dataset is not None, f"leave this out: the file follows the preset {name}", "dataset"
        )
        setting = expand(preset(name).model_copy(update={"held_out": ()}))[0]
        created = Store(db).imports.csv(file, f"{name}, imported", None, name, setting)
    else:
        raise FedLensError("name the experiment to which the runs of a CSV file belong", "experiment")
    print(f"experiment {created.experiment_id}: {counted(len(created.run_ids), 'run')} recorded")
    return common.DONE


@common.command("leaderboard")
def leaderboard(
    ids: common.ExperimentIds,
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE.csv", help="File (default, or -: print it)")
    ] = None,
    rule: common.ReportedRound = "last",
    where: common.RunFilter = "",
    db: common.Database = None,
) -> int:
    """Write the rows of one setting as CSV for another FedLens.

    `fedlens import` reads it; the column preset says which preset a row follows.
    """
    from fedcore.reports.checked import ComparisonChoices, checked_comparison
    from fedcore.results.sharing import leaderboard_csv
    from fedcore.store import Store

    with checked_comparison(Store(db), ids, ComparisonChoices(rule, where=where)) as checked:
        text = leaderboard_csv(checked.store, checked.comparison, checked.printed)
    _write_or_print(output, text)
    return common.DONE


@common.command("hub")
def hub(
    ids: common.ExperimentIds,
    row: Annotated[str, typer.Option(metavar="NAME", help="Row of the table whose value is written")],
    dataset: Annotated[str, typer.Option(metavar="ORG/NAME", help="Id of the benchmark on the hub")],
    task: Annotated[str, typer.Option(metavar="ID", help="Id of the task in the benchmark's eval.yaml")],
    metric: Annotated[str, typer.Option(help="Metric of the value")] = "personal",
    rule: common.ReportedRound = "last",
    url: Annotated[str, typer.Option(metavar="URL", help="Where the evidence is, such as a bundle")] = "",
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="FILE.yaml", help="File (default, or -: print it)"),
    ] = None,
    db: common.Database = None,
) -> int:
    """Write one result in the YAML form of model hubs.

    The file belongs in the folder .eval_results/ of a model's repository.
    """
    from fedcore.reports.checked import ComparisonChoices, checked_comparison
    from fedcore.results import sharing
    from fedcore.store import Store

    by = _metric(metric)
    with checked_comparison(Store(db), ids, ComparisonChoices(rule)) as checked:
        text = sharing.eval_results(checked.summary, row, by, dataset, task, url)
    _write_or_print(output, text)
    return common.DONE


def _write_or_print(output: str | None, text: str) -> None:
    path = common.text_output(output)
    if path is None:
        common.write_data([text])
    else:
        common.write_file(path, text.encode())


@common.command("merge")
def merge(other: Annotated[Path, typer.Argument(metavar="OTHER.db")], db: common.Database = None) -> int:
    """Copy the experiments of another database into this one."""
    from fedcore.store import Store

    return _print_merged(Store(db).imports.database(other))


def _print_merged(merged: Merged) -> int:
    for name in merged.added:
        print(f"added: {name}")
    for name in merged.present:
        print(f"already here, left unchanged: {name}")
    return common.DONE
