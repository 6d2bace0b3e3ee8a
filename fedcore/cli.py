"""The command line. It only calls the library: parse, call, print."""

from __future__ import annotations

import argparse
import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from fedcore import config
from fedcore.errors import FedLensError
from fedcore.methods import registry
from fedcore.runs import database

DEMO = database.PROJECT / "experiments" / "demo.toml"
BAD_INPUT, NOT_DONE, INTERRUPTED = 2, 1, 130


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line, like every other error."""
        self.exit(BAD_INPUT, f"error: {message}; see `{self.prog} --help`\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns: exit status 0 only when the work was done, 2 for bad input, 130 after Ctrl-C.
    """
    options = parser().parse_args(arguments)
    try:
        for file in options.methods:
            registry.load_file(file)
        return options.command(options)
    except FedLensError as error:
        return _complain(error.line(), BAD_INPUT, options.debug)
    except KeyboardInterrupt:
        return _complain("interrupted", INTERRUPTED, options.debug)
    except BrokenPipeError:  # `... | head` is no error; keep Python from flushing into the closed pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return NOT_DONE
    except Exception as error:  # noqa: BLE001 - the last resort: one line, the traceback with --debug
        line = f"{type(error).__name__}: {error}".splitlines()[0]
        return _complain(f"{line}; --debug shows where", NOT_DONE, options.debug)


def _complain(line: str, status: int, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    print(f"error: {line}", file=sys.stderr)
    return status


def parser() -> argparse.ArgumentParser:
    """All commands and their options."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--db", type=Path, default=None, help="database (default: FEDLENS_DB, or runs.db beside app.py)"
    )
    common.add_argument("--debug", action="store_true", help="show the traceback of an error")
    common.add_argument(
        "--methods", action="append", default=[], metavar="FILE", help="Python file with a method of your own"
    )
    top = _Parser(prog="python -m fedcore", description="FedLens without the browser.")
    commands = top.add_subparsers(required=True, metavar="COMMAND", parser_class=_Parser)

    def command(name: str, function: object, text: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, parents=[common], help=text, description=text)
        added.set_defaults(command=function)
        return added

    run = command("run", _run, "train an experiment here, with progress bars")
    run.add_argument("file", nargs="?", type=Path, metavar="FILE.toml", help="experiment file")
    run.add_argument(
        "--demo", action="store_true", help="the embedded comparison: needs no data, weights or network"
    )
    run.add_argument("--seed", type=int, nargs="+", metavar="N", help="seeds instead of the file's")
    run.add_argument(
        "--scale",
        choices=("full", "mini"),
        default="full",
        help="mini: the same methods on the embedded data and model, in seconds",
    )
    run.add_argument("--queue", action="store_true", help="queue it for the worker instead of training here")
    run.add_argument(
        "--device", default=None, help="cpu, or a GPU's UUID (default: the first GPU, else the CPU)"
    )

    worker = command("worker", _worker, "serve the queue in the foreground; one per database")
    worker.add_argument(
        "--idle", type=float, default=600.0, metavar="SECONDS", help="leave after so long without work"
    )
    worker.add_argument("--slots", type=int, default=1, metavar="N", help="runs at once on each device")

    command("list", _list, "experiments and their runs")

    stop = command("stop", _stop, "stop runs between two steps; they can be resumed")
    _ids(stop)
    stop.add_argument(
        "--kill", action="store_true", help="kill the process of a run that does not heed a stop"
    )
    resume = command(
        "resume", _resume, "queue stopped, interrupted or failed runs again, after their last round"
    )
    _ids(resume)
    resume.add_argument(
        "--anew", action="store_true", help="from the beginning: what they recorded is deleted"
    )

    export = command("export", _export, "the comparison's numbers")
    export.add_argument("id", type=int, nargs="+", metavar="ID", help="experiments")
    export.add_argument("--table", choices=("summary", "rounds"), default="summary", help="which table")
    export.add_argument("--format", choices=("csv", "latex", "json"), default="csv", help="how it is written")
    export.add_argument("-o", "--output", type=Path, default=None, help="file (default: print it)")

    _add_results(command)
    return top


def _add_results(command: Callable[..., argparse.ArgumentParser]) -> None:
    """The commands about what there is, and about results from elsewhere."""
    data = command("data", _data, "data sets: list them, check a folder, encode one ahead of time")
    data.add_argument("action", choices=("list", "check", "encode"), help="what to do")
    data.add_argument("what", nargs="?", metavar="PATH|NAME", help="folder to check, or data set to encode")
    data.add_argument("--root", default=None, help="folder of the data set to encode")
    data.add_argument("--backbone", default="mini-vit", help="open_clip model that encodes")
    data.add_argument("--pretrained", default=None, help="open_clip tag or weights file")
    data.add_argument("--reads", default="embedding", help="'embedding', 'layer:k' or 'patches' (FedAlign)")

    methods = command("methods", _methods, "the methods, or the hyper-parameters of one")
    methods.add_argument("name", nargs="?", help="method")

    imported = command("import", _import, "record a CSV file of your own results as an experiment")
    imported.add_argument("file", type=Path, metavar="FILE.csv")
    imported.add_argument(
        "--experiment",
        required=True,
        metavar="NAME",
        help="experiment to join (name or id), or the name of a new one",
    )
    imported.add_argument("--dataset", default="own data", help="data set they were measured on")

    published = command("published", _published, "figures that papers print, beside ours")
    published.add_argument("file", nargs="?", type=Path, metavar="FILE.toml", help="experiment file")
    published.add_argument(
        "--coverage", action="store_true", help="count the printed figures that can be run here"
    )

    merge = command("merge", _merge, "copy the experiments of another database into this one")
    merge.add_argument("other", type=Path, metavar="OTHER.db")


def _ids(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "id", type=int, nargs="+", metavar="ID", help="runs (with --experiment: experiments)"
    )
    command.add_argument(
        "--experiment", action="store_true", help="the ids are experiments: all of their runs"
    )


def _run(options: argparse.Namespace) -> int:
    from fedcore.engine.plan import plan
    from fedcore.presets import mini
    from fedcore.runs import ensure_worker, store

    if options.demo == (options.file is not None):
        raise FedLensError("name an experiment file, or --demo", "file")
    experiment = config.load(DEMO if options.demo else options.file)
    if options.seed:
        experiment = config.parse({**experiment.model_dump(), "seeds": options.seed})
    if options.scale == "mini":
        experiment = mini(experiment)
    checked = plan(experiment)
    for warning in checked.warnings:
        print(f"note: {warning}", file=sys.stderr)
    db = _writable(options.db)
    if options.queue:
        created = store.create_experiment(db, experiment, checked.runs, device=options.device or "auto")
        ensure_worker(db)
        print(f"experiment {created.experiment_id}: {len(created.run_ids)} runs queued")
        return 0
    return _train_here(db, experiment, checked.runs, options.device)


def _train_here(
    db: Path, experiment: config.Experiment, runs: Sequence[config.RunConfig], device: str | None
) -> int:
    from fedcore.progress import Bars
    from fedcore.runs import queries
    from fedcore.runs.foreground import train_here

    with Bars() as bars:
        outcome = train_here(db, experiment, runs, device=device, begun=bars.begun, listen=bars.event)
    ended = queries.runs(db, outcome.runs)
    for row in ended:
        figure = (
            ""
            if row.last_test is None
            else f"  {100 * row.last_test:5.1f} % personal test accuracy, round {row.rounds_done}"
        )
        print(f"run {row.id}  {row.label:<24} seed {row.seed}  {row.state}{figure}")
        if row.state == "failed":
            print(f"error: run {row.id}: {row.reason}", file=sys.stderr)
    print(f"experiment {outcome.experiment_id} in {db}")
    if all(state == "done" for state in outcome.runs.values()):
        return 0
    return INTERRUPTED if "stopped" in outcome.runs.values() else NOT_DONE


def _worker(options: argparse.Namespace) -> int:
    from fedcore.runs.worker import serve

    return serve(options.db, idle=options.idle, slots=options.slots)


def _list(options: argparse.Namespace) -> int:
    from fedcore.runs import queries

    for row in queries.experiments(database.resolve(options.db), archived=True):
        print(f"experiment {row.id}  {row.name}" + ("  (archived)" if row.archived else ""))
        for run in row.runs:
            figure = "" if run.last_test is None else f"  {100 * run.last_test:.1f} %"
            held_out = f"  without {run.held_out}" if run.held_out else ""
            why = f"  ({run.reason})" if run.reason and run.state != "done" else ""
            print(
                f"  run {run.id}  {run.label}  seed {run.seed}{held_out}  {run.state}  "
                f"{run.rounds_done}/{run.rounds_total}{figure}{why}"
            )
    return 0


def _stop(options: argparse.Namespace) -> int:
    from fedcore.runs import force_stop, store

    ids, db = _chosen(options), _writable(options.db)
    if options.kill:
        return _report(ids, [i for i in ids if force_stop(db, i)], "killed", "had no process")
    return _report(ids, store.stop(db, ids), "asked to stop", "is neither queued nor running")


def _resume(options: argparse.Namespace) -> int:
    from fedcore.runs import ensure_worker, reconcile, store

    ids, db = _chosen(options), _writable(options.db)
    reconcile(db)
    changed = (store.retry if options.anew else store.resume)(db, ids)
    ensure_worker(db)
    return _report(ids, changed, "queued", "is not stopped, interrupted or failed")


def _report(asked: Sequence[int], changed: Sequence[int], done: str, not_done: str) -> int:
    for run_id in changed:
        print(f"run {run_id}: {done}")
    left = [run_id for run_id in asked if run_id not in changed]
    for run_id in left:
        print(f"error: run {run_id} {not_done}", file=sys.stderr)
    return NOT_DONE if left else 0


def _chosen(options: argparse.Namespace) -> list[int]:
    """The runs that a command is about.

    Raises:
        FedLensError: for an id that does not exist.
    """
    from fedcore.runs import queries

    db = database.resolve(options.db)
    if options.experiment:
        return [run.id for i in options.id for run in queries.experiment(db, i).runs]
    known = {run.id for run in queries.runs(db, options.id)}
    for run_id in options.id:
        if run_id not in known:
            raise FedLensError(f"no run {run_id}; `python -m fedcore list` shows them", "id")
    return list(options.id)


def _export(options: argparse.Namespace) -> int:
    from fedcore.report import export
    from fedcore.runs import queries

    db = database.resolve(options.db)
    for experiment_id in options.id:
        queries.experiment(db, experiment_id)
    writers = {
        ("summary", "csv"): export.summary_csv,
        ("summary", "latex"): export.summary_latex,
        ("summary", "json"): export.summary_json,
        ("rounds", "csv"): export.rounds_csv,
    }
    write = writers.get((options.table, options.format))
    if write is None:
        raise FedLensError(
            f"table '{options.table}' is not written as {options.format}; choose csv", "format"
        )
    text = write(db, options.id)
    if options.output is None:
        sys.stdout.write(text)
        return 0
    try:
        options.output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise FedLensError(
            f"cannot write {options.output}: {error.strerror}; choose another file", "output"
        ) from error
    return 0


def _data(options: argparse.Namespace) -> int:
    from fedcore.data import catalog

    if options.action == "list":
        for entry in catalog.entries():
            print(f"{entry.name:<18} {entry.title}")
        return 0
    if options.what is None:
        raise FedLensError(f"name what to {options.action}: a folder to check, a data set to encode", "what")
    if options.action == "check":
        images, warnings = catalog.load_checked("folder", options.what)
        for warning in warnings:
            print(f"note: {warning}", file=sys.stderr)
        print(f"{len(images)} images, {len(images.classes)} classes, domains: {', '.join(images.domains)}")
        return 0
    return _encode(options)


def _encode(options: argparse.Namespace) -> int:
    from fedcore.clip import features
    from fedcore.data import catalog
    from fedcore.engine.setup import load_backbone
    from fedcore.progress import track
    from fedcore.runs.devices import default_device, torch_name

    images = catalog.load(options.what, options.root)
    device = torch_name(default_device())
    backbone = load_backbone(options.backbone, options.pretrained, device, "fp32")
    folder = database.artifacts_folder(options.db or database.default_path()) / "encodings"
    track(f"encoding {images.name}", features.fill(backbone, images, options.reads, folder))
    print(f"{len(images)} images of {images.name} encoded with {options.backbone}")
    return 0


def _methods(options: argparse.Namespace) -> int:
    if options.name is None:
        for name, cls in registry.load_all().items():
            print(f"{name:<14} {cls.title:<18} {cls.source}")
        return 0
    cls = registry.get(options.name, "name")
    print(f"{cls.title} ({cls.source})\n{cls.about}\n")
    for name, field in cls.Config.model_fields.items():
        default = json.dumps(field.get_default(call_default_factory=True), default=str)
        print(f"{name} = {default:<12} # {field.description}")
    return 0


def _import(options: argparse.Namespace) -> int:
    from fedcore.runs import import_csv

    created = import_csv(options.db, options.file, options.experiment, options.dataset)
    print(f"experiment {created.experiment_id}: {len(created.run_ids)} runs recorded")
    return 0


def _published(options: argparse.Namespace) -> int:
    from fedcore.report import beside, published

    if options.coverage == (options.file is not None):
        raise FedLensError("name an experiment file, or --coverage", "file")
    if options.coverage:
        print(published.coverage_text())
        return 0
    db = options.db or database.default_path()
    print(beside.text(beside.beside(db, config.load(options.file))))
    return 0


def _merge(options: argparse.Namespace) -> int:
    from fedcore.runs import merge

    merged = merge(options.db, options.other)
    for name in merged.added:
        print(f"added: {name}")
    for name in merged.present:
        print(f"here already, left as it is: {name}")
    return 0


def _writable(db: Path | None) -> Path:
    access = database.prepare(db)
    if not access.writable:
        raise database.ReadOnlyDatabase(access.why or "", "db")
    return access.path
