"""``bundle``, ``verify`` and ``rerun``: results that others can check."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from fedcore.base.progress import counted
from fedcore.cli import common, experiments
from fedcore.cli.terminal import track

if TYPE_CHECKING:
    from fedcore.share.recipe import RunRecipe

DataFolders = Annotated[
    list[str] | None,
    Option(metavar="[NAME=]FOLDER", help="Folder of the data set; repeat it with names for several"),
]
BundleFile = Annotated[Path, Argument(metavar="BUNDLE", help="File of `fedlens bundle`")]


@common.command("bundle")
def bundle(
    experiments: common.ExperimentNames,
    output: Annotated[str, Option("--output", "-o", metavar="FILE.zip", help="The bundle")],
    baseline: common.Baseline = None,
    test: common.TestOption = None,
    rule: common.ReportedRound = "last",
    where: common.RunFilter = "",
    title: common.Title = "",
    db: common.Database = None,
    *,
    methods: common.MethodNames,
) -> None:
    """Write the evidence of a comparison, for others to check.

    A ZIP file of a database of the runs, splits with a hash of each image, predictions of the reported
    rounds, and numbers.
    """
    from fedcore.share.checked import ComparisonChoices
    from fedcore.share.make import make

    target = common.file_output(output, "name a file, such as results.zip")
    choice = ComparisonChoices(rule, None, baseline, where=where)
    with common.compared(db, experiments, choice, methods, test) as checked:
        made = track(make(checked, title))
    common.write_file(target, made.content)
    for line in made.without_predictions:
        common.print_note(f"counts only: {line}")
    files, size = counted(len(made.manifest.files) + 1, "file"), len(made.content) / 1e6
    print(f"{target}: {files}, {size:.1f} MB, digest {made.manifest.digest}")


@common.command("verify")
def verify(bundle: BundleFile, data: DataFolders = None) -> int:
    """Recompute every number of a bundle from its predictions.

    It needs neither weights nor training. The exit status is 0 only if every number follows.
    """
    from fedcore.share.archive import open_bundle
    from fedcore.share.verify import verify as verdict_of

    archive = open_bundle(bundle)
    print(f"{archive.manifest.title}, made with FedLens {archive.manifest.fedlens} {archive.manifest.commit}")
    verdict = track(verdict_of(archive, data or ()))
    for mark, lines in (("✓", verdict.checked), ("?", verdict.unchecked), ("!", verdict.differences)):
        for line in lines:
            print(f"{mark} {line}")
    if verdict.differences:
        print(f"not verified: {counted(len(verdict.differences), 'difference')}")
    elif verdict.unchecked:
        print("not verified completely: some counts have no predictions behind them")
    else:
        print("verified: every number follows from the predictions")
    return common.DONE if verdict.holds else common.NOT_DONE


@common.command("rerun")
def rerun(
    bundle: Annotated[
        Path,
        Argument(metavar="BUNDLE|REPORT.html", help="File of `fedlens bundle`, or a report's page"),
    ],
    data: DataFolders = None,
    db: common.Database = None,
    debug: bool = False,
) -> int:
    """Train the runs of a bundle again and compare the bits.

    A report's page serves as well. The new runs are recorded in the database, and what differs is named.
    Method files of the bundle run after one question; without a terminal they are written into methods/
    beside the database, and --methods names those that you have read.
    """
    from fedcore.share import rerun as again

    source = again.read_source(bundle)
    store = common.writable(db)
    files = again.write_methods(source.recipe, store.path.parent)
    common.ask_to_run(list(files.values()))
    trained: dict[int, RunRecipe] = {}
    for part in again.trainable(source.recipe, files, data or ()):
        cpu = all(run.environment.get("device") == "cpu" for run in part.runs)
        configs, handler = [run.config for run in part.runs], again.handler(part.runs)
        outcomes, status = experiments.train_in_process(
            store, part.config, configs, "cpu" if cpu else None, handler, debug
        )
        if status != common.DONE:
            return status
        trained |= dict(zip(outcomes, part.runs, strict=True))
    repeated = track(again.compare_runs(store, source, trained))
    for line in repeated.environments:
        common.print_note(f"other environment: {line}")
    for line in repeated.uncompared:
        common.print_note(f"not compared: {line}")
    for line in repeated.differences:
        print(f"! {line}")
    left_out = len(source.recipe.runs) - repeated.runs
    if left_out:
        common.print_note(f"{counted(left_out, 'run')} recorded elsewhere cannot be trained again")
    if repeated.differences:
        print(f"{counted(len(repeated.differences), 'difference')} from what was recorded")
        return common.NOT_DONE
    print(f"{counted(repeated.runs, 'run')} repeated to the last bit, {counted(repeated.rounds, 'round')}")
    return common.DONE
