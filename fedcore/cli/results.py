"""``export``, ``report``, ``flops``, ``hub``, ``import``, ``merge``, ``rank``: numbers for and of others."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

from typer import Argument, Option

from fedcore.base.devices import default_device, torch_name
from fedcore.base.errors import FedLensError
from fedcore.base.files import read_text
from fedcore.base.progress import counted
from fedcore.cli import common
from fedcore.cli.common import refuse_if
from fedcore.cli.terminal import AsJson, Row, print_table, track, with_preparation
from fedcore.config import expand
from fedcore.config.field_names import seeds_text
from fedcore.engine.plan import plan
from fedcore.share import SUFFIXES, Format, TableName
from fedcore.store import Store
from fedcore.store.imports import Merged

if TYPE_CHECKING:
    from fedcore.results.metrics import Metric

HTML_SUFFIXES = (".html", ".htm")
ON_SCREEN = ("data", "label", "metric", "mean", "std", "n", "difference", "p_holm", "remark")
"""The columns of the summary on a terminal; the CSV has further ones."""


@common.command("export")
def export(
    experiments: common.ExperimentNames,
    table: Annotated[TableName, Option(help="Which table")] = "summary",
    format: Annotated[
        Format | None,
        Option(help="File format (default: by the name of the file: .csv, .tex, .json; else csv)"),
    ] = None,
    output: Annotated[
        str | None,
        Option(
            "--output",
            "-o",
            metavar="PATH",
            help="File, or folder to put it in; a new folder ends with / (default, or -: print it)",
        ),
    ] = None,
    baseline: Annotated[
        str | None, Option(metavar="NAME", help="Method to compare with (in the summary)")
    ] = None,
    test: common.TestOption = None,
    rule: common.ReportedRound = "last",
    digits: Annotated[
        int | None, Option("--decimals", min=0, max=6, help="Decimals of the LaTeX table (default: 2)")
    ] = None,
    where: common.RunFilter = "",
    db: common.Database = None,
    *,
    methods: common.MethodNames,
) -> None:
    """Export the numbers of a comparison.

    \b
    - summary: a row per method and metric: mean, standard deviation over seeds, number of seeds
    - domains: a row per method, a column per domain
    - configs: a row per method, a column per field, such as method.config.lr
    - breakdowns: a row per method and domain, client or held-out domain
    - costs: rounds, MB and seconds until a seed reached 80, 90, 95 and 99 % of the best
    - rounds: a row per run, round, model and test set, with counts
    - clients: a row per run, round and client: loss, traffic and own accuracy
    - diagnostics: a row per run, round, diagnostic and client or pair of clients
    - leaderboard: the rows of one setting, for `fedlens import` elsewhere
    - experiment: everything that was recorded, for `fedlens import` elsewhere (JSON)

    All are CSV files, the summary also LaTeX or JSON; on a terminal it is a table of its main columns,
    unless --format is given. The first five share the column row, to join them (with the same --methods).
    """
    from fedcore.results.exports import file_name, summary_rows
    from fedcore.share.checked import WRITERS, ComparisonChoices

    path = common.text_output(output)
    is_folder = path is not None and (path.is_dir() or str(output).endswith(("/", os.sep)))
    suffix = "" if path is None or is_folder else path.suffix.lower()
    by_ending = {f".{ending}": of for of, ending in SUFFIXES.items()}
    endings = f"no format belongs to '{suffix}'; end the name with {', '.join(by_ending)}, or give --format"
    refuse_if(format is None and suffix not in ("", *by_ending), endings, "output")
    on_screen = format is None and path is None and table == "summary" and sys.stdout.isatty()
    formats = [of for name, of in WRITERS if name == table]
    format = format or by_ending.get(suffix, formats[0])
    refuse_if(
        baseline is not None and table != "summary", "only the summary compares with a baseline", "baseline"
    )
    no_decimals = "only the LaTeX table has a number of decimals to choose"
    refuse_if(digits is not None and format != "latex", no_decimals, "decimals")
    all_runs = "a whole experiment is exported with all of its runs"
    refuse_if(bool(where) and table == "experiment", all_runs, "where")
    no_writer = f"table '{table}' is not written as {format}; choose {', '.join(formats)}"
    refuse_if(format not in formats, no_writer, "format")
    decimals = 2 if digits is None else digits
    choice = ComparisonChoices(rule, None, baseline, where=where, digits=decimals)
    with common.compared(db, experiments, choice, methods, test) as checked:
        if on_screen:
            rows = summary_rows(checked.summary)
            print_table(({name: row[name] for name in ON_SCREEN} for row in rows), as_json=False)
            return
        if path is not None and is_folder:
            path = path / file_name(checked.comparison.experiments, table, SUFFIXES[format])
        common.write_text(path, WRITERS[table, format](checked), is_folder)


@common.command("report")
def report(
    experiments: common.ExperimentNames,
    output: Annotated[
        str,
        Option("--output", "-o", help="A new folder for all files, or FILE.html for the page alone"),
    ],
    baseline: common.Baseline = None,
    test: common.TestOption = None,
    metric: Annotated[
        str | None, Option(help="Metric of the differences (default: the first of the table)")
    ] = None,
    rule: common.ReportedRound = "last",
    unfinished: Annotated[
        bool, Option("--unfinished", help="Include runs that have not done all their rounds")
    ] = False,
    where: common.RunFilter = "",
    title: common.Title = "",
    notes: Annotated[
        str | None, Option(metavar="TEXT|@FILE", help="Text below the title, or @ and its file")
    ] = None,
    parts: Annotated[
        str | None,
        Option(
            metavar="NAMES",
            help="Parts of the page, separated by commas (default: all): summary, matrices, curves, cost, "
            "sweep, breakdowns, configs, environment, runs, reproduction, citation",
        ),
    ] = None,
    db: common.Database = None,
    *,
    methods: common.MethodNames,
) -> None:
    """Write a comparison as one HTML file, or a folder for a paper.

    The page opens from disk in any browser, sends no request, and prints on A4: setting, finding, tables with
    tests, heatmaps, curves, configs and what `fedlens rerun` needs. A folder adds all charts as PDF and SVG
    at the widths of a column (3.33 in) and of both (6.9 in), the tables of `fedlens export`, method files,
    BibTeX, and a README.txt that says what each file is.
    """
    from fedcore.share.checked import ComparisonChoices
    from fedcore.share.content import Wording, read_report
    from fedcore.share.folder import check_new, report_files, write_folder
    from fedcore.share.page import report_html

    target = common.file_output(output, "name a new folder, or FILE.html for the page alone")
    by = None if metric is None else metric_named(metric)
    choice = ComparisonChoices(rule, by, baseline, unfinished=unfinished, where=where)
    chosen = None if parts is None else tuple(filter(None, map(str.strip, parts.split(","))))
    text = notes or ""
    wording = Wording(
        title, read_text(text[1:], "a text file", "notes") if text.startswith("@") else text, chosen
    )
    is_page = target.suffix.lower() in HTML_SUFFIXES
    if not is_page:
        check_new(target)  # before the figures, which take their time
    with common.compared(db, experiments, choice, methods, test) as checked:
        names = ", ".join(checked.comparison.names.values())
        page = track(report_html(track(read_report(checked, wording)))) if is_page else ""
        files = {} if is_page else track(report_files(checked, wording))
    if is_page:
        common.write_file(target, page.encode())
    else:
        write_folder(files, target)
    print(f"report of {names} in {target}")


def metric_named(name: str) -> Metric:
    """Return the metric that a user named."""
    from fedcore.results.metrics import METRICS

    refuse_if(name not in METRICS, f"no metric '{name}'; choose one of {', '.join(METRICS)}", "metric")
    return cast("Metric", name)


@common.command("flops")
def flops(
    file: common.ExperimentFile = None,
    preset: common.PresetName = None,
    device: common.Device = None,
    as_json: AsJson = False,
    db: common.Database = None,
) -> None:
    """Count the operations of each method's first round.

    The round is trained under torch's counter, and nothing of it is recorded. Matrix products, convolutions
    and attention count as executed, padding included, with 2 operations for each multiplication and
    addition. Sums, activations, norms, factorisations, the optimiser and cached encodings do not count.
    """
    from fedcore.engine.train import count_flops

    planned = with_preparation(lambda: plan(common.load_experiment(file, preset, db)))
    artifacts = Store(db).artifacts
    first = {run.model_dump_json(exclude={"seed", "held_out"}): run for run in reversed(planned.runs)}
    table = []
    for run in reversed(first.values()):
        found = track(count_flops(run, artifacts, torch_name(device or default_device())))
        table.append(
            {
                "label": run.method.label or run.method.name,
                "gflop_per_round": found.total / 1e9,
                "clients": found.clients,
                "steps": found.steps,
                "gflop_per_step": found.total / found.steps / 1e9 if found.steps else 0.0,
                "mostly": max(found.by_operation, key=lambda name: found.by_operation[name], default=None),
            }
        )
    print_table(table, as_json)


@common.command("import")
def import_results(
    file: Annotated[Path, Argument(metavar="FILE.csv|FILE.json|BUNDLE.zip")],
    experiment: Annotated[
        str | None,
        Option(
            metavar="NAME",
            help="For a CSV file: the experiment to join (name or id), or the name of a new one",
        ),
    ] = None,
    dataset: Annotated[
        str | None, Option(help="For a CSV file: the data set of the results (default: own data)")
    ] = None,
    db: common.Database = None,
) -> None:
    """Record results from a CSV or JSON file, or from a bundle.

    A CSV file has the columns method, seed, round, model, test_set, correct and total, and optionally split
    (train, validation or test; default: test), stage (before_aggregation or after_aggregation; default: the
    latter) and domain (of the test set). The model `global` is the server's; a test set with the name of its
    domain belongs to the domain, the others to clients. Nothing is written unless every line is valid, and
    a file can be imported once. Runs that join an experiment take its data, partition and backbone.

    A JSON file is one of `fedlens export --table experiment`; it has no checkpoints. A bundle is imported
    once its numbers follow from its evidence.
    """
    from fedcore.papers.experiments import preset
    from fedcore.results.sharing import preset_of_board

    store, suffix = Store(db), file.suffix.lower()
    if suffix in (".json", ".zip"):
        named = "leave this out: the file names its experiments and data"
        refuse_if(experiment is not None, named, "experiment")
        refuse_if(dataset is not None, named, "dataset")
        if suffix == ".json":
            _print_merged(store.imports.json(file))
            return
        from fedcore.share.archive import open_bundle
        from fedcore.share.verify import import_bundle

        _print_merged(import_bundle(open_bundle(file), store))
        return
    if experiment is not None:
        created = store.imports.csv(file, experiment, dataset or "own data")
    elif name := preset_of_board(file):
        refuse_if(dataset is not None, f"leave this out: the file follows the preset {name}", "dataset")
        setting = expand(preset(name).model_copy(update={"held_out": ()}))[0]
        created = store.imports.csv(file, f"{name}, imported", None, name, setting)
    else:
        raise FedLensError("name the experiment to which the runs of a CSV file belong", "experiment")
    print(f"experiment {created.experiment_id}: {counted(len(created.run_ids), 'run')} recorded")


@common.command("hub")
def hub(
    experiments: common.ExperimentNames,
    row: Annotated[str, Option(metavar="NAME", help="Row of the table whose value is written")],
    dataset: Annotated[str, Option(metavar="ORG/NAME", help="Id of the benchmark on the hub")],
    task: Annotated[str, Option(metavar="ID", help="Id of the task in the benchmark's eval.yaml")],
    metric: common.MetricName = "personal",
    rule: common.ReportedRound = "last",
    url: Annotated[str, Option(metavar="URL", help="Where the evidence is, such as a bundle")] = "",
    output: Annotated[
        str | None,
        Option("--output", "-o", metavar="FILE.yaml", help="File (default, or -: print it)"),
    ] = None,
    db: common.Database = None,
    *,
    methods: common.MethodNames,
) -> None:
    """Write one result in the YAML form of model hubs.

    The file belongs in the folder .eval_results/ of a model's repository.
    """
    from fedcore.results import sharing
    from fedcore.share.checked import ComparisonChoices

    by = metric_named(metric)
    with common.compared(db, experiments, ComparisonChoices(rule), methods) as checked:
        text = sharing.eval_results(checked.summary, row, by, dataset, task, url)
    common.write_text(common.text_output(output), [text])


@common.command("merge")
def merge(other: Annotated[Path, Argument(metavar="OTHER.db")], db: common.Database = None) -> None:
    """Copy the experiments of another database into this one.

    Experiments that are here already are left as they are; unfinished runs are copied as stopped.
    """
    _print_merged(Store(db).imports.database(other))


def _print_merged(merged: Merged) -> None:
    for name in merged.added:
        print(f"added: {name}")
    for name in merged.present:
        print(f"already here, left unchanged: {name}")


@common.command("rank")
def rank(
    experiments: common.ListedExperiments = None,
    metric: common.MetricName = "personal",
    rule: common.ReportedRound = "last",
    where: common.RunFilter = "",
    as_json: AsJson = False,
    db: common.Database = None,
) -> None:
    """Rank the methods of each setting.

    Every experiment with runs in a setting counts; names of experiments limit which settings are shown. A
    rank is the range that the seeds leave open, and `chosen` says why a method with several hyper-parameter
    settings has this one. Costs are those of a run. Notes give the finding and the further seeds that would
    make a ranking decisive.
    """
    from fedcore.results.costs import row_costs
    from fedcore.results.leaderboard import board, board_settings, decisive_runs

    store, by = Store(db), metric_named(metric)
    named = set(map(store.experiments.find, experiments or ()))
    table: list[Row] = []
    for setting in board_settings(store, store.runs.done()):
        if named and named.isdisjoint(setting.experiments):
            continue
        made = board(store, setting, by, rule, where)
        for row, cost in zip(made.rows, row_costs(store, made.comparison, setting.key, by), strict=True):
            ranked = {"setting": setting.title, "rank": made.rank_text(row), "label": row.label}
            found = {"mean": row.stats[by].mean, "std": row.stats[by].std}
            found |= {"megabytes": cost.megabytes, "seconds": cost.seconds}
            rounded = {name: None if value is None else round(value, 2) for name, value in found.items()}
            table.append(ranked | {"n": row.stats[by].n} | rounded | {"chosen": made.chosen_by(row)})
        if made.rows:
            common.print_note(made.finding, setting.title)
        for row, lacking in decisive_runs(store, made)[0]:
            seeds = seeds_text({run.seed for run in lacking})
            common.print_note(f"{row.label} on {seeds}", "a decisive ranking needs")
    print_table(table, as_json, under=("setting",))
    common.warn_of_damage(store)
