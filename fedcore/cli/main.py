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
from fedcore.cli import data as cli_data
from fedcore.cli import queue as cli_queue
from fedcore.cli import results as cli_results
from fedcore.errors import FedLensError
from fedcore.methods import registry
from fedcore.paths import PROJECT
from fedcore.store import database

DEMO = PROJECT / "experiments" / "demo.toml"
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
    worker.add_argument(
        "--slots",
        type=int,
        default=None,
        metavar="N",
        help="runs at once on each device, from now on (default: as set before, else 1)",
    )

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

    cli_queue.add(command)
    cli_results.add(command)
    _add_catalogs(command)
    return top


def _add_catalogs(command: Callable[..., argparse.ArgumentParser]) -> None:
    """The commands about what there is."""
    data = command("data", _data, "data sets: list them, get or check one, encode one ahead of time")
    data.add_argument("action", choices=("list", "get", "check", "encode", "partition"), help="what to do")
    data.add_argument(
        "what",
        nargs="?",
        metavar="PATH|NAME",
        help="data set to get or encode; folder, CSV list or data set to check; experiment file to partition",
    )
    data.add_argument("--json", action="store_true", help="the check as JSON")
    data.add_argument("--root", default=None, help="folder of the data set to get, check or encode")
    data.add_argument(
        "--columns",
        nargs="+",
        default=(),
        metavar="COLUMN=NAME",
        help="columns of a manifest or Hugging Face data set to check or encode, where called otherwise",
    )
    data.add_argument("--backbone", default="mini-vit", help="open_clip model that encodes")
    data.add_argument("--pretrained", default=None, help="open_clip tag or weights file")
    data.add_argument(
        "--precision", choices=cli_data.choices(config.BackboneConfig, "precision"), default="fp32"
    )
    data.add_argument("--decode", choices=cli_data.choices(config.DataConfig, "decode"), default="full")
    data.add_argument("--reads", default="embedding", help="'embedding', 'layer:k' or 'patches' (FedAlign)")

    methods = command("methods", _methods, "the methods, or the hyper-parameters of one")
    methods.add_argument("name", nargs="?", help="method")


def _ids(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "id", type=int, nargs="+", metavar="ID", help="runs (with --experiment: experiments)"
    )
    command.add_argument(
        "--experiment", action="store_true", help="the ids are experiments: all of their runs"
    )


def _run(options: argparse.Namespace) -> int:
    from fedcore import store
    from fedcore.engine.plan import plan
    from fedcore.jobs import ensure_worker
    from fedcore.papers.mini import mini

    if options.demo == (options.file is not None):
        raise FedLensError("name an experiment file, or --demo", "file")
    experiment = config.load(DEMO if options.demo else options.file)
    if options.seed:
        experiment = config.parse({**experiment.model_dump(), "seeds": options.seed})
    if options.scale == "mini":
        experiment = mini(experiment)
    checked = cli_data.prepared(lambda: plan(experiment))
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
    from fedcore.cli.progress import Bars
    from fedcore.jobs.local import train_here
    from fedcore.store import queries

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
    from fedcore.jobs.supervisor import serve

    return serve(options.db, idle=options.idle, slots=options.slots)


def _list(options: argparse.Namespace) -> int:
    from fedcore.store import queries

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
    from fedcore import store
    from fedcore.jobs import force_stop

    ids, db = _chosen(options), _writable(options.db)
    if options.kill:
        return _report(ids, [i for i in ids if force_stop(db, i)], "killed", "had no process")
    return _report(ids, store.stop(db, ids), "asked to stop", "is neither queued nor running")


def _resume(options: argparse.Namespace) -> int:
    from fedcore import store
    from fedcore.jobs import ensure_worker
    from fedcore.store import reconcile

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
    from fedcore.store import queries

    db = database.resolve(options.db)
    if options.experiment:
        return [run.id for i in options.id for run in queries.experiment(db, i).runs]
    known = {run.id for run in queries.runs(db, options.id)}
    for run_id in options.id:
        if run_id not in known:
            raise FedLensError(f"no run {run_id}; `python -m fedcore list` shows them", "id")
    return list(options.id)


def _data(options: argparse.Namespace) -> int:
    from fedcore.data import catalog

    if options.action == "list":
        for entry in catalog.entries():
            print(f"{entry.name:<18} {entry.title}")
        return 0
    if options.what is None:
        raise FedLensError(
            f"name what to {options.action}: a data set to get or encode, a folder to check, an experiment "
            "file to partition",
            "what",
        )
    if options.action == "get":
        return cli_data.get(options.what, options.root)
    if options.action == "check":
        return cli_data.check(options.what, options.root, options.json, cli_data.columns(options.columns))
    if options.action == "partition":
        return cli_data.partition(Path(options.what))
    return cli_data.encode(
        config.DataConfig(
            name=options.what,
            root=options.root,
            columns=cli_data.columns(options.columns),
            decode=options.decode,
        ),
        config.BackboneConfig(
            name=options.backbone, pretrained=options.pretrained, precision=options.precision
        ),
        options.reads,
        database.artifacts_folder(options.db or database.default_path()) / "encodings",
    )


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


def _writable(db: Path | None) -> Path:
    access = database.prepare(db)
    if not access.writable:
        raise database.ReadOnlyDatabase(access.why or "", "db")
    return access.path
