"""The experiment on which faults are tried: two clients, three rounds of PromptFL, one second."""

from __future__ import annotations

import importlib
import json
import shutil
import sqlite3
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import psutil

from fedcore.cli.main import main as fedlens
from fedcore.clip.backbone import load_backbones
from fedcore.config import backbones, dumps, expand, parse
from fedcore.jobs import analysis
from fedcore.jobs.process import run_process, work
from fedcore.papers.experiments import preset, published
from fedcore.share.checked import WRITERS, checked_comparison
from fedcore.store import RunRow, Store
from fedcore.store.jobs import JOB_TABLES
from fedcore.store.liveness import new_owner
from tests.support.jobs import recorded
from tools.faults.forked import POLL_SECONDS, Forked
from tools.faults.verdict import Outcome, Verdict

EXPERIMENT: dict[str, Any] = {
    "name": "Faults",
    "data": {"name": "rotated-digits", "domains": ["rot0", "rot45"], "shots": 4},
    "rounds": 3,
    "methods": [{"name": "promptfl"}],
}
RUN = 1
Rows = dict[str, list[tuple[Any, ...]]]
"""The rows of one run, by table."""
TRACEBACK = "Traceback (most recent call last)"
REST_SECONDS = 60.0


def warm_up() -> None:
    """Import torch and load the model, for all processes that are forked from this one."""
    importlib.import_module("fedcore.engine.train")
    (backbone,) = backbones(expand(parse(EXPERIMENT))[0])
    load_backbones([(backbone.name, backbone.pretrained, "cpu", backbone.precision)])
    if (threads := psutil.Process().num_threads()) > 1:
        raise RuntimeError(f"{threads} threads live; a process must not be forked from them")


class Defect(AssertionError):
    """Something that must not happen, described in one line."""

    outcome = Outcome.STATE


class Difference(Defect):
    """A number that differs from the undisturbed run, without any message."""

    outcome = Outcome.DIFFERENT


class Lab:
    """The experiment in three states, each a folder from which attempts copy.

    Args:
        folder: where the states are kept while the campaign runs.

    Attributes:
        opened: what attempts share, ended with the campaign.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.opened = ExitStack()

    @cached_property
    def queued(self) -> Path:
        """The experiment is queued; its data are not yet encoded."""
        return self._queue("queued", EXPERIMENT)

    def _queue(self, name: str, content: dict[str, Any]) -> Path:
        folder = self.folder / name
        folder.mkdir()
        store = Store(folder / "runs.db")
        store.prepare()
        store.experiments.create(parse(content))
        return folder

    def encoded_as(self, name: str, content: dict[str, Any]) -> Path:
        """Queue another experiment on the same data, which are encoded; returns its folder."""
        folder = self._queue(name, content)
        shutil.copytree(self.done / "artifacts" / "encodings", folder / "artifacts" / "encodings")
        return folder

    @cached_property
    def pair(self) -> Path:
        """The experiment is queued with two seeds, and its data are encoded."""
        return self.encoded_as("pair", {**EXPERIMENT, "seeds": [1, 2]})

    @cached_property
    def pair_rows(self) -> dict[int, Rows]:
        """Everything that the two undisturbed runs measured, by run."""
        db = copy(self.pair, self.folder / "pair-done")
        assert train(db).wait() == 0, tail(db.parent / "process.log")
        return {run: recorded(db, run) for run in (1, 2)}

    @cached_property
    def done(self) -> Path:
        """The run is done: the reference. Its database is one file."""
        folder = self.folder / "done"
        db = copy(self.queued, folder)
        assert train(db).wait() == 0, (folder / "process.log").read_text()
        check_done(db)
        with closing(sqlite3.connect(db)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return folder

    @cached_property
    def encoded(self) -> Path:
        """The experiment is queued, and its data are encoded."""
        folder = self.folder / "encoded"
        copy(self.queued, folder)
        shutil.copytree(self.done / "artifacts" / "encodings", folder / "artifacts" / "encodings")
        return folder

    @cached_property
    def interrupted(self) -> Path:
        """The run was killed after its second round."""
        folder = self.folder / "interrupted"
        db = copy(self.encoded, folder)
        process = train(db)
        wait_for(lambda: run(db).rounds_done >= 2, "no second round")
        process.kill()
        Store(db).jobs.reconcile()
        assert run(db).state == "interrupted", run(db)
        return folder

    @cached_property
    def searched(self) -> Path:
        """A search whose draws have ended, and which nothing has followed yet."""
        folder = self.encoded_as("searched", {**EXPERIMENT, "rounds": 1, "tuning": {"draws": 4}})
        store = Store(folder / "runs.db")

        def draw() -> int:
            claim = store.jobs.claim(new_owner(), "cpu")
            assert claim is not None, "the draws are queued"
            return work(claim, "cpu", revive=lambda _: None) != "done"  # a worker would follow the search

        assert Forked(draw, folder / "process.log").wait() == 0, tail(folder / "process.log")
        assert store.searches.waiting() == [RUN], store.experiments.listed()
        return folder

    @cached_property
    def analysed(self) -> Path:
        """The finished run, whose predictions have been computed."""
        folder = self.folder / "analysed"
        store = Store(copy(self.done, folder))
        number = analysis.submit(store, RUN, "predictions")
        done = Forked(lambda: work(store.tasks.claim(number), "cpu") != "done", folder / "task.log")
        assert done.wait() == 0, tail(folder / "task.log")
        return folder

    @cached_property
    def others(self) -> Path:
        """Four other runs with all their checkpoints: the first has the config of ours, the others do not."""
        other = {**EXPERIMENT["methods"][0], "label": "other", "config": {"lr": 0.01}}
        methods = [EXPERIMENT["methods"][0], other]
        content = {**EXPERIMENT, "methods": methods, "seeds": [1, 2], "keep_checkpoints": "all"}
        folder = self.encoded_as("others", content)
        db = folder / "runs.db"
        assert train(db).wait() == 0, tail(folder / "process.log")
        assert all(row.status == "done" for row in Store(db).runs.get([1, 2, 3, 4])), tail(
            folder / "process.log"
        )
        return folder

    @cached_property
    def rows(self) -> Rows:
        """Everything that the undisturbed run measured."""
        return recorded(self.done / "runs.db", RUN)

    @cached_property
    def notices(self) -> set[str]:
        """The notices of a run that is resumed without a fault."""
        db = copy(self.interrupted, self.folder / "resumed")
        assert resume(db).wait() == 0, tail(db.parent / "process.log")
        return {note.message for note in run(db).notices}

    @cached_property
    def exported(self) -> str:
        """The exports of the undisturbed run."""
        return export(self.done / "runs.db")

    @cached_property
    def later(self) -> Path:
        """The finished experiment, renamed, and another one that was imported after it."""
        folder = self.folder / "later"
        db, file = copy(self.done, folder), folder / "results.csv"
        file.write_bytes(self.table)
        store = Store(db)
        store.imports.csv(file, "Imported", "rotated-digits")
        store.experiments.edit(1, name="Faults, renamed")
        with closing(sqlite3.connect(db)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return folder

    @cached_property
    def later_exported(self) -> str:
        """The exports of ``later``."""
        return export(self.later / "runs.db")

    @cached_property
    def later_listed(self) -> str:
        """The output of ``fedlens list`` for ``later``."""
        return listed(copy(self.later, self.folder / "listed"))[1]

    @cached_property
    def empty(self) -> Path:
        """A database without experiments."""
        folder = self.folder / "empty"
        folder.mkdir()
        Store(folder / "runs.db").prepare()
        return folder

    @cached_property
    def json(self) -> bytes:
        """The finished experiment as a JSON file."""
        return Store(self.done / "runs.db").experiments.to_json([1]).encode()

    @cached_property
    def table(self) -> bytes:
        """The results of two methods as a CSV file of a user's own."""
        lines = ["method,seed,round,model,test_set,correct,total,split,stage,domain"]
        cells = product(("ours", "theirs"), (1, 2), range(3), ("global", "a", "b"), ("a", "b"))
        for i, (method, seed, round_, model, test_set) in enumerate(cells):
            cell = f"{method},{seed},{round_},{model},{test_set},{i % 60},60"
            lines.append(f"{cell},test,after_aggregation,photo")
        return "\n".join(lines).encode()

    @cached_property
    def tomls(self) -> list[bytes]:
        """Experiment files: ours, and those of the papers."""
        return [
            dumps(parse(EXPERIMENT)).encode(),
            *(dumps(preset(n)).encode() for n in sorted(published())[::9]),
        ]

    def check_rows(self, db: Path) -> None:
        """Compare a finished run with the undisturbed one.

        Raises:
            Difference: when a row differs.
        """
        check_done(db)
        rows = recorded(db, RUN)
        for table, expected in self.rows.items():
            if rows[table] != expected:
                differing = sum(a != b for a, b in zip(rows[table], expected, strict=False))
                raise Difference(f"{table}: {len(rows[table])} rows of {len(expected)}, {differing} differ")


def copy(state: Path, folder: Path) -> Path:
    """Copy a state into a folder; returns its database."""
    shutil.copytree(state, folder, dirs_exist_ok=True)
    return folder / "runs.db"


def run(db: Path) -> RunRow:
    """Return the run's row."""
    return Store(db).runs.get([RUN])[0]


def train(db: Path, before: Callable[[], None] = lambda: None, log: Path | None = None) -> Forked:
    """Claim the queued run in a new process, which trains it.

    Args:
        before: called in that process first.
    """

    def work() -> int:
        before()
        claim = Store(db).jobs.claim(new_owner(), "cpu")
        if claim is None:  # a supervisor was faster
            return 0
        return run_process(claim, "cpu")

    return Forked(work, log or db.parent / "process.log")


def resume(db: Path, before: Callable[[], None] = lambda: None) -> Forked:
    """Queue an ended run again unless it waits already, and start the process that continues it."""
    if run(db).status != "queued" and Store(db).runs.resume([RUN]) != [RUN]:
        raise Defect(f"a run that is {run(db).state} cannot be resumed")
    return train(db, before)


def finish(lab: Lab, db: Path, process: Forked) -> None:
    """Resume the run if it was ended early, and compare its rows with those of the undisturbed one.

    Raises:
        Defect: when it does not come to its end, or when a row differs.
    """
    if run(db).status != "done":
        process = resume(db)
        process.wait()
    check_at_rest(db, [process])
    lab.check_rows(db)


def judge_end(db: Path, process: Forked) -> Verdict:
    """Judge how a disturbed process ended: as without the fault, or with one line that gives the reason."""
    row = run(db)
    trace = Store(db).runs.error(RUN) or ""
    if row.status == "done":
        return Verdict(Outcome.UNAFFECTED, "done")
    said = f"{row.status}: {row.status_text}"
    if TRACEBACK in trace + process.log.read_text(errors="replace"):
        return Verdict(Outcome.RAW, f"{said}; {(trace or process.log.read_text()).strip().splitlines()[-1]}")
    return Verdict(Outcome.MENDED, said)


def check_done(db: Path) -> None:
    """Check that the run is done.

    Raises:
        Defect: when it is not.
    """
    if run(db).status != "done":
        raise Defect(f"the run is {run(db).status}: {run(db).status_text}; {tail(db.parent / 'process.log')}")


def tail(log: Path) -> str:
    """Return the last line of a log."""
    return (log.read_text(errors="replace").strip().splitlines() or [""])[-1] if log.exists() else ""


NOT_MEASURED = {
    "experiments": ("name", "uuid", "created_at", "notes", "tags", "archived"),
    "runs": ("created_at", "started_at", "finished_at", "priority", "status_text"),
}
"""Columns that hold no result: names and remarks, which a user may change at any time, and times of day."""


def export(db: Path) -> str:
    """Return every result that can be exported of a database, in all formats."""
    store = Store(db)
    readable, unreadable = store.experiments.listed()
    ids = [row.id for row in readable] + [row.id for row in unreadable]  # to export a damaged one is refused
    with checked_comparison(store, ids) as checked:
        summary, rounds, clients = (
            "".join(WRITERS[table, "csv"](checked)) for table in ("summary", "rounds", "clients")
        )
        content = json.loads("".join(WRITERS["experiment", "json"](checked)))
    for experiment in content["experiments"]:
        for row, columns in [(experiment, "experiments"), *((run, "runs") for run in experiment["runs"])]:
            for column in NOT_MEASURED[columns]:
                row.pop(column)
    lines = (rounds + clients).splitlines()
    named = [line.partition(",")[2] for line in lines]  # without the experiment's name
    return "\n".join((summary, *named, json.dumps(content)))


def listed(db: Path) -> tuple[int, str]:
    """Return the exit status and the output of ``fedlens list``."""
    log = db.with_name("list.log")
    return Forked(lambda: fedlens(["list", "--db", str(db)]), log).wait(), log.read_text()


def wait_for(
    condition: Callable[[], object], otherwise: str, seconds: float = 120.0, poll: float = POLL_SECONDS
) -> None:
    """Wait until something is true, and look again after ``poll`` seconds.

    Raises:
        Defect: with the text ``otherwise``, when it does not become true.
    """
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise Defect(f"{otherwise} within {seconds:.0f} s")
        time.sleep(poll)


def _lives(pid: int | None) -> bool:
    """Return whether a process works: the kernel is asked, and not what FedLens believes."""
    try:
        return pid is not None and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def check_at_rest(db: Path, processes: list[Forked]) -> None:
    """Check that no row says "running" without a process, and that no process works for no row.

    Raises:
        Defect: when that is not so 60 seconds after the fault.
    """
    store = Store(db)

    def consistent() -> bool:
        for table in JOB_TABLES:
            store.jobs.reconcile(table=table)
        rows = [row for table in JOB_TABLES for row in store.jobs.live(table)]
        working = {process.pid for process in processes if process.poll() is None}
        return all(_lives(row["pid"]) for row in rows) and working <= {row["pid"] for row in rows}

    wait_for(consistent, "rows and processes do not agree", REST_SECONDS)
