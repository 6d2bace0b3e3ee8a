"""``run``, ``list``, ``stop``, ``resume``, ``delete``, ``show`` and ``log``: experiments and their runs."""

from __future__ import annotations

import itertools
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Option

from fedcore import config
from fedcore.base import devices
from fedcore.base.progress import counted
from fedcore.cli import common
from fedcore.cli.terminal import AsJson, Row, RunBars, print_table, with_preparation
from fedcore.config.tuning import is_draw
from fedcore.engine.plan import Plan, plan
from fedcore.methods import registry
from fedcore.store import RunRow, Store

if TYPE_CHECKING:
    from fedcore.jobs.handlers import Handler

LISTED = 100
"""Experiments that ``list`` prints, unless it is asked for others."""


@common.command("run")
def run(
    file: common.ExperimentFile = None,
    preset: common.PresetName = None,
    demo: Annotated[
        bool, Option("--demo", help="The preset demo, which needs no data, weights or network")
    ] = False,
    root: Annotated[
        str | None, Option(metavar="FOLDER", help="Folder of the data set, instead of the file's")
    ] = None,
    seed: Annotated[
        list[int] | None, Option(metavar="N...", help="Seeds to use instead of the file's")
    ] = None,
    scale: Annotated[
        Literal["full", "mini"],
        Option(
            help="mini: a rehearsal of the same methods on embedded drawings and a miniature CLIP: eight "
            "rounds, three seeds, prompts of at most eight tokens"
        ),
    ] = "full",
    dry_run: Annotated[
        bool, Option("--dry-run", help="Print the runs with their cost, and record nothing")
    ] = False,
    queue: Annotated[
        bool, Option("--queue", help="Queue the runs for the worker instead of training here")
    ] = False,
    no_worker: common.NoWorker = False,
    device: common.Device = None,
    over: common.Over = None,
    ray: common.RayAddress = None,
    as_json: AsJson = False,
    db: common.Database = None,
    debug: bool = False,
) -> int:
    """Train an experiment here, with progress bars.

    The whole experiment is checked first. Ctrl-C stops between two steps: recorded rounds are kept, and
    `fedlens resume` continues after them; a second Ctrl-C ends at once. If nothing was trained because runs
    failed, the experiment is deleted again. A dry run ends after the check: it forecasts time, memory and
    disk space from finished runs of the same methods, data and backbone on this machine.

    FEDLENS_THREADS sets the number of CPU threads of a run (default: one per core), and FEDLENS_MEMORY the
    bytes that a run on a CPU counts on when it chooses how many clients it trains at once.
    """
    from fedcore.jobs import forecast, process
    from fedcore.papers import mini
    from fedcore.papers.experiments import DEMO

    both = "--demo is a preset; give either --demo or --preset"
    common.refuse_if(demo and preset is not None, both, "demo")
    one = "--over trains here, and --queue does not; give one of them"
    common.refuse_if(over is not None and queue, one, "over")
    no_devices = "--ray needs --over N; `fedlens worker --ray` gives whole runs to a cluster"
    common.refuse_if(ray is not None and over is None, no_devices, "ray")
    no_queue = "--no-worker needs --queue: without it the runs train here"
    common.refuse_if(no_worker and not queue, no_queue, "no-worker")
    no_effect = "a dry run neither trains nor queues; leave the other option out"
    common.refuse_if(dry_run and bool(queue or device or over), no_effect, "dry-run")
    no_table = "--queue prints no table; `fedlens list --json` does"
    common.refuse_if(as_json and queue, no_table, "json")
    experiment = _changed(common.load_experiment(file, DEMO if demo else preset, db), root, seed, scale)
    checked = with_preparation(lambda: plan(experiment))
    for warning in (*checked.warnings, *(f"search of {space}" for space in checked.spaces)):
        common.print_note(warning)
    store = Store(db) if dry_run else common.writable(db)
    if ray is None and not (queue or dry_run):  # queued runs may wait for a node that has the device
        device = _found_device(device, over is not None)
    past = forecast.precedents(store.path)
    disk = forecast.disk(store.path, past, checked)
    if lack := forecast.lack_of_room(store.path, disk):
        common.print_note(lack)
    if dry_run:
        print_table(map(_planned_row, checked.all_runs), as_json)
        costs = forecast.cost_text(past, checked, disk)
        common.print_note(f"{forecast.runs_text(experiment, checked)}, {costs}", "plan")
        return common.DONE
    if queue:
        _queue(store, experiment, checked, device, no_worker)
        return common.DONE
    handler = None if over is None else process.spread_over(over, device, ray)
    ended, status = train_in_process(
        store, experiment, checked.runs, device, handler, debug, checked.warnings
    )
    rows = store.runs.get(ended)
    shown = [row for row in rows if row.state != "done" or not is_draw(store.runs.config(row.id))]
    last = store.rounds.last_evaluated(ended)  # a run that was stopped may have gone on without
    print_table((run_row(row) | {"accuracy_of_round": last.get(row.id, [None])[0]} for row in shown), as_json)
    if scale == "mini" and status == common.DONE and _shows_nothing(store, rows):
        common.print_note(mini.CANNOT_SHOW)
    # Runs that did not begin because another had failed are lost; stopped and interrupted ones can go on.
    if {"failed"} <= {*ended.values()} <= {"failed", "lost"} and not any(row.rounds_done for row in rows):
        for number in {row.experiment_id for row in rows}:
            store.experiments.delete(number)
        common.print_note("nothing was trained, so the experiment was deleted")
        return status
    newest = str(rows[-1].experiment_id)
    files = dict.fromkeys(run.method.file for run in checked.runs if run.method.file)
    again = ["resume", "--experiment", newest, *itertools.chain(*(("--methods", file) for file in files))]
    following = ["export", newest] if status == common.DONE else again
    common.print_note(_command(*following, db=db), "next")
    return status


def _changed(
    experiment: config.Experiment, root: str | None, seeds: Sequence[int] | None, scale: str
) -> config.Experiment:
    """Return an experiment with the folder of its data, the seeds and the scale that the user gave."""
    from fedcore.papers import mini

    if scale == "mini":
        experiment = mini.rehearsal(experiment)
    changes: dict[str, object] = {"seeds": seeds} if seeds else {}
    if root is not None and scale == "full":
        changes["data"] = {**experiment.data.model_dump(), "root": root}
    return config.parse({**experiment.model_dump(), **changes}) if changes else experiment


def _command(*words: str, db: Path | None) -> str:
    """Return a command that goes on with the database of this one."""
    return shlex.join(["fedlens", *words, *(["--db", str(db)] if db else [])])


def _found_device(device: str | None, is_shared: bool) -> str | None:
    """Return the id of the device that a user named, and say which one trains."""
    if device != devices.CPU:
        devices.try_gpus()
        for refused in devices.refused_gpus():
            common.print_note(refused)
    taken = devices.named(device or devices.default_device())
    if taken.id != devices.CPU and not is_shared:
        common.print_note(f"trains on {taken.name} ({taken.id})")
    return device and taken.id


def _shows_nothing(store: Store, rows: Sequence[RunRow]) -> bool:
    """Return whether no metric of some runs differs between the rows of a setting."""
    from fedcore.results.comparison import compare
    from fedcore.results.metrics import value_per_seed
    from fedcore.results.statistics import nothing_differs

    compared = compare(store, {row.experiment_id for row in rows})
    columns = itertools.product(compared.settings, compared.metrics)
    return nothing_differs([value_per_seed(r.runs, m) for r in compared.rows_in(s)] for s, m in columns)


def _queue(
    store: Store, experiment: config.Experiment, checked: Plan, device: str | None, no_worker: bool
) -> None:
    """Queue planned runs, and say so if they wait for a device that no worker has."""
    from fedcore import jobs
    from fedcore.jobs import launcher

    created = store.experiments.create(experiment, checked.runs, device=device or "auto")
    if not no_worker:
        jobs.ensure_worker(store)
    later = f", {counted(len(checked.later), 'run')} to follow when they have ended" if checked.later else ""
    print(f"experiment {created.experiment_id}: {counted(len(created.run_ids), 'run')} queued{later}")
    cluster = launcher.cluster()
    on_cluster = cluster is not None and cluster.is_used(store)
    if device is not None and not on_cluster and device not in devices.accepted_devices():
        common.print_note(
            f"the runs wait, since no worker of this machine has a device {device!r}; start "
            "`fedlens worker --ray` for a cluster that has it, or stop them with "
            f"`fedlens stop --experiment {created.experiment_id}` and queue them for another device"
        )


def train_in_process(
    store: Store,
    experiment: config.Experiment,
    runs: Sequence[config.RunConfig],
    device: str | None = None,
    handler: Handler | None = None,
    debug: bool = False,
    warnings: Sequence[str] = (),
) -> tuple[dict[int, str], int]:
    """Train runs in this process and print why some failed; return how each ended, and the exit status."""
    from fedcore.jobs.process import run_local
    from fedcore.results.progress import methods_of

    with RunBars(warnings=warnings) as bars:
        experiment_id, outcomes = run_local(
            store, experiment, runs, device=device, handler=handler, begun=bars.add_runs, listen=bars.show
        )
    rows = store.runs.get(outcomes)
    for searched in store.experiments.several(sorted({row.experiment_id for row in rows})):
        if searched.config.tuning is not None:  # not what follows the search
            for found in methods_of(store, searched):
                common.print_note(f"experiment {searched.id}: {found.label}: {found.text}", "search")
    for row in (row for row in rows if row.state != "done"):
        if debug and (trace := store.runs.error(row.id)):
            print(trace, file=sys.stderr)
        kind = "error" if row.state == "failed" else "note"
        print(f"{kind}: run {row.id}: {row.status_text}", file=sys.stderr)
    common.print_note(f"experiment {experiment_id} in {store.path}")
    common.warn_of_damage(store)
    if all(state == "done" for state in outcomes.values()):
        return outcomes, common.DONE
    return outcomes, common.INTERRUPTED if "stopped" in outcomes.values() else common.NOT_DONE


def _planned_row(run: config.RunConfig) -> Row:
    label = run.method.label or registry.title(run.method.name)
    return {"label": label, "seed": run.seed, "held_out": run.held_out, "rounds_total": run.rounds}


def run_row(run: RunRow) -> dict[str, object]:
    """Return a run as the row of a table; its accuracy is the personal one on test samples, in per cent."""
    names = ("label", "seed", "held_out", "state", "rounds_done", "rounds_total")
    values = {name: getattr(run, name) for name in names}
    return {"experiment": run.experiment_id, "run": run.id, **values, "accuracy": per_cent(run.last_test)}


def per_cent(share: float | None) -> float | None:
    """Return a share in per cent with two decimals."""
    return None if share is None else round(100 * share, 2)


@common.command("list")
def list_experiments(
    experiments: common.ListedExperiments = None,
    where: common.RunFilter = "",
    every: Annotated[bool, Option("--all", help="All experiments, and not only the newest 100")] = False,
    as_json: AsJson = False,
    db: common.Database = None,
) -> None:
    """List the experiments and their runs."""
    from fedcore.results import run_filter

    store = Store(db)
    older = 0
    if not experiments:
        rows, unreadable = store.experiments.listed(newest=None if every or where else LISTED)
        if not (every or where):
            older = len(store.experiments.titles()) - len(rows) - len(unreadable)
        if older:
            common.print_note(f"{counted(older, 'older experiment')} not listed; --all lists all of them")
    else:
        rows, unreadable = store.experiments.several([*map(store.experiments.find, experiments)]), []
    runs = {run.id: run for row in rows for run in row.runs}
    selected = set(runs)
    if where:
        configs = store.runs.configs(runs, skip_damaged=True)
        selected = run_filter.select(where, run_filter.run_records([runs[i] for i in configs], configs))
        for run_id in runs.keys() - configs.keys():
            common.print_note(
                f"the config of run {run_id} is damaged, so no filter finds it; see `fedlens doctor`"
            )
    table: list[Row] = [
        {"experiment": row.id, "name": row.name, "begun": None, "state": "damaged", "remark": row.reason}
        for row in unreadable
    ]
    for row in rows:
        begun = time.strftime("%Y-%m-%d %H:%M", time.localtime(row.created_at))
        kept = {"experiment": row.id, "name": row.name, "begun": begun + " (archived)" * row.archived}
        for run in (run for run in row.runs if run.id in selected):
            table.append(kept | run_row(run) | {"remark": run.status_text, "tags": ", ".join(run.tags)})
        if not (row.runs or where):
            table.append(kept | {"remark": "it has no run"})
    print_table(table, as_json, under=("experiment", "name", "begun"))
    common.warn_of_damage(store, [row.id for row in rows] if older else None)


@common.command("stop")
def stop(
    ids: common.RunIds,
    experiment: common.OfExperiments = False,
    kill: Annotated[
        bool, Option("--kill", help="Kill the process of a run that did not obey a stop")
    ] = False,
    db: common.Database = None,
) -> int:
    """Stop runs between two steps; they can be resumed."""
    from fedcore.jobs import force_stop

    run_ids, store = _run_ids(ids, experiment, db), common.writable(db)
    if kill:
        killed = [i for i in run_ids if force_stop(store, i)]
        return _report(run_ids, killed, "killed", "had no process", experiment)
    stopped = store.runs.stop(run_ids)
    return _report(run_ids, stopped, "asked to stop", "is neither queued nor running", experiment)


@common.command("resume")
def resume(
    ids: common.RunIds,
    experiment: common.OfExperiments = False,
    restart: Annotated[
        bool, Option("--restart", help="Start from the beginning: delete what the runs recorded")
    ] = False,
    no_worker: common.NoWorker = False,
    db: common.Database = None,
) -> int:
    """Queue stopped, interrupted or failed runs again.

    They continue after their last complete round. After an error of a method's file, correct the file and
    resume with --methods FILE: runs that have trained a round refuse another file than they began with,
    unless --restart trains them from the beginning.
    """
    from fedcore import jobs

    run_ids, store = _run_ids(ids, experiment, db), common.writable(db)
    store.jobs.reconcile()
    changed = store.runs.resume(run_ids, restart=restart)
    if not no_worker:
        jobs.ensure_worker(store)
    if experiment and not changed:  # a script that resumes an experiment may find it done
        print("nothing to resume: no run is stopped, interrupted or failed")
        return common.DONE
    return _report(run_ids, changed, "queued", "is not stopped, interrupted or failed", experiment)


@common.command("delete")
def delete(
    ids: common.RunIds,
    experiment: common.OfExperiments = False,
    yes: Annotated[bool, Option("--yes", "-y", help="Delete without asking")] = False,
    db: common.Database = None,
) -> int:
    """Delete runs or experiments for good.

    All rounds, logs and checkpoints go with them. Running runs have to be stopped first.
    """
    store = common.writable(db)
    runs = store.runs.get(_run_ids(list(dict.fromkeys(ids)), experiment, db))
    what = counted(len(runs), "run")
    numbers = list(dict.fromkeys(map(store.experiments.find, ids))) if experiment else []
    if experiment:
        what = f"{counted(len(numbers), 'experiment')} with {what}"
    for run in runs:
        is_live = run.status in ("running", "stopping")
        common.refuse_if(is_live, f"run {run.id} is running; stop it first, then delete", "id")
    for run in runs:
        print(f"run {run.id}  {run.label}  seed {run.seed}  of experiment {run.experiment_id}  {run.state}")
    question = f"Delete {what}, with all rounds, logs and checkpoints? It cannot be undone."
    if not common.confirmed(question, yes, f"nothing was deleted: {what}"):
        common.print_note("nothing was deleted")
        return common.NOT_DONE
    if experiment:
        for number in numbers:
            store.experiments.delete(number)
    else:
        store.runs.delete([run.id for run in runs])
    print(f"deleted: {what}")
    return common.DONE


def _report(
    wanted: Sequence[int], changed: Sequence[int], done: str, not_done: str, of_experiments: bool
) -> int:
    """Print which runs a command changed, and return its exit status.

    Of a whole experiment only those runs are meant that can be changed, if there are any.
    """
    for run_id in changed:
        print(f"run {run_id}: {done}")
    meant = changed if of_experiments and changed else wanted
    unchanged = [run_id for run_id in meant if run_id not in changed]
    for run_id in unchanged:
        print(f"error: run {run_id} {not_done}", file=sys.stderr)
    return common.NOT_DONE if unchanged else common.DONE


def _run_ids(given: Sequence[str], of_experiments: bool, db: Path | None) -> list[int]:
    """Return the ids of the runs that a command was given, directly or by their experiments."""
    store = Store(db)
    if of_experiments:
        numbers = dict.fromkeys(map(store.experiments.find, given))
        return [run.id for number in numbers for run in store.experiments.get(number).runs]
    return common.find_runs(store, given, ", --experiment takes experiments")


@common.command("show")
def show(run: common.RunId, as_json: AsJson = False, db: common.Database = None) -> None:
    """Show one run: its state, accuracies and config.

    Accuracies are in per cent; of the config, what differs from the defaults. Notes say how to go on after an
    error.
    """
    from fedcore.results.progress import seconds_outside_rounds
    from fedcore.results.settings import non_defaults

    store = Store(db)
    (row,) = store.runs.get(common.find_runs(store, [run]))
    elapsed, outside = row.elapsed(), seconds_outside_rounds(store, [row])[row.id]
    facts = run_row(row) | {"best_accuracy": per_cent(row.best_test), "best_round": row.best_round}
    facts |= {"worst_client": per_cent(row.worst_client), "device": row.device, "attempt": row.attempt}
    facts |= {"seconds": elapsed and round(elapsed, 1), "seconds_outside_rounds": round(outside, 1)}
    facts |= {"remark": row.status_text, "tags": ", ".join(row.tags), "notes": row.notes}
    stored = store.runs.config(row.id)
    facts |= non_defaults(stored, row.origin == "engine")
    facts = {name: value for name, value in facts.items() if value not in (None, "")}
    print_table([facts] if as_json else [{"field": n, "value": str(v)} for n, v in facts.items()], as_json)
    for notice in row.notices:
        common.print_note(notice.message)
    if row.state == "failed":
        common.print_note(f"`{_command('log', str(row.id), db=db)}` has the traceback", "why")
    if row.ended and row.state != "done" and row.origin == "engine":
        given = ["--methods", stored.method.file] if stored.method.file else []
        command = _command("resume", str(row.id), *given, db=db)
        common.print_note(f"`{command}` queues it again, once the cause is gone", "next")
    common.warn_of_damage(store)


@common.command("log")
def log(run: common.RunId, db: common.Database = None) -> None:
    """Print the log of a run.

    It ends with the traceback of the error, if one ended the run. A note names the file, for `tail -f`.
    """
    store = Store(db)
    (run_id,) = common.find_runs(store, [run])
    path, trace = store.runs.log_path(run_id), store.runs.error(run_id) or ""
    absent = f"run {run_id} has no log here: it has not begun, was trained elsewhere, or its files are gone"
    common.refuse_if(not path.is_file() and not trace, absent, "run")
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    print(text + trace * (trace.strip() not in text), end="")
    common.print_note(str(path), "file")
