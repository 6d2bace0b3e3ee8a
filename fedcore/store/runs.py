"""The runs of a store and their queue: state, config and files, and the actions of a user on them."""

import hashlib
import json
import sqlite3
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import groupby, zip_longest
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from fedcore.base.errors import FedLensError, reading_stored
from fedcore.base.events import Notice
from fedcore.config import RunConfig
from fedcore.config.identity import group_hash
from fedcore.store.database import (
    ID_LIST,
    JSON_TABLE,
    STORED,
    Queries,
    as_json,
    readable,
    remove_folder,
    run_folder,
    run_folders,
)
from fedcore.store.jobs import NEEDS, QUEUED_AGAIN, RUNS
from fedcore.store.liveness import state
from fedcore.store.writer import forget_rounds, set_given, take_current_file

_NOTICES = TypeAdapter(tuple[Notice, ...])
_TAGS = TypeAdapter(list[Any])


@dataclass(frozen=True, config=STORED)
class RunRow:
    """One run as the pages show it. Times are seconds since 1970, accuracies are fractions of one.

    ``state`` is the stored ``status``, unless the process of the run has died: then it is ``interrupted``, or
    ``stopped`` if a stop had been requested, even before the database says so. ``status_text`` describes what
    a running run does, or why a run ended. ``starred``, ``tags`` and ``notes`` are written by the user.
    """

    id: int
    experiment_id: int
    method: str
    label: str
    seed: int
    held_out: str | None
    group_hash: str
    origin: str
    state: str
    status: str
    device: str | None
    attempt: int
    created_at: float
    started_at: float | None
    finished_at: float | None
    heartbeat_at: float | None
    rounds_total: int
    rounds_done: int
    last_test: float | None
    best_round: int | None
    best_test: float | None
    worst_client: float | None
    status_text: str | None
    notices: tuple[Notice, ...]
    starred: bool
    tags: tuple[str, ...]
    notes: str
    owner: str | None = None

    @property
    def ended(self) -> bool:
        return self.state in ("done", "failed", "stopped", "interrupted")

    def elapsed(self, now: float | None = None) -> float | None:
        """Return the seconds from the start to the end, or to now; None if they are unknown.

        The time between a stop and the next attempt does not count: a claim moves ``started_at`` on by it.
        They are unknown before the start, and for imported results, which are recorded in one moment.
        """
        if self.started_at is None or (self.origin != "engine" and self.finished_at == self.started_at):
            return None
        end = self.finished_at if self.finished_at is not None else (time.time() if now is None else now)
        return max(0.0, end - self.started_at)

    @property
    def version(self) -> tuple[object, ...]:
        """Values that change when a run has new results; a key for caches.

        The id alone is not enough: it belongs to another run once another database has replaced the file.
        """
        return self.id, self.created_at, self.attempt, self.state, self.rounds_done, self.finished_at


RUN_COLUMNS = ", ".join(f"r.{name}" for name in RunRow.__dataclass_fields__ if name != "state")


def run_row(db: Path, row: sqlite3.Row) -> RunRow:
    """Turn a row with RUN_COLUMNS into ``RunRow``, with the state that its process is in now."""
    values = dict(row)
    with reading_stored(f"run {values['id']}"):
        values["state"] = state(db, values)
        if values["state"] != values["status"]:  # the text describes what the dead process did
            values["status_text"] = None
        try:
            values["notices"] = _NOTICES.validate_json(values["notices"]) if values["notices"] != "[]" else ()
        except ValidationError:  # the run stays listed
            values["notices"] = (Notice("the notices of this run are damaged", repeats_exactly=False),)
        try:
            tags = _TAGS.validate_json(values["tags"])
        except ValidationError:  # `fedlens doctor` reports it
            tags = []
        values["tags"] = tuple(tag for tag in tags if isinstance(tag, str))
        values["starred"] = bool(values["starred"])
        return RunRow(**values)


LOG_NAME = "log.txt"

RESUMABLE = "status IN ('stopped','interrupted','failed') AND origin='engine'"

UNFINISHED = "status IN ('queued','running','stopping')"
"""SQL: the run is queued or running."""

OF_LISTED = "r.experiment_id NOT IN (SELECT id FROM experiments WHERE archived)"
"""SQL: the run belongs to an experiment that is not archived."""

TRAINED_HERE = "origin='engine' AND owner IS NOT NULL"
"""SQL: a process of this database trained the run. Merged and imported runs have no owner."""


class RunVersion(NamedTuple):
    """Values that change whenever a run has something new to show."""

    status: str
    rounds_done: int
    attempt: int
    status_text: str | None
    created_at: float


class FinishedRun(NamedTuple):
    """A run as the settings of a leaderboard need it."""

    id: int
    experiment_id: int
    group_hash: str
    held_out: str | None


class Runs(Queries):
    """The runs of a store (``Store.runs``)."""

    def get(self, run_ids: Iterable[int]) -> list[RunRow]:
        """Return the runs with these ids, in order of id; ids that do not exist are left out."""
        return [self._row(row) for row in self._rows("id", run_ids)]

    def listed(self, run_ids: Iterable[int]) -> tuple[list[RunRow], dict[int, str]]:
        """Return the runs with these ids, and one line for each of them that is damaged, by its id."""
        return readable(self._rows("id", run_ids), self._row)

    def of_experiments(self, experiment_ids: Iterable[int]) -> list[RunRow]:
        """Return the runs of these experiments, in order of id."""
        return [self._row(row) for row in self._rows("experiment_id", experiment_ids)]

    def newest_id(self) -> int:
        """Return the highest id of a run, 0 if there is none."""
        (row,) = self._file.rows("SELECT max(id) AS newest FROM runs")
        return int(row["newest"] or 0)

    def count_after(self, run_id: int) -> int:
        """Count the runs with a higher id, including those of archived experiments."""
        (row,) = self._file.rows("SELECT count(*) AS number FROM runs WHERE id > :id", {"id": run_id})
        return int(row["number"])

    def active_experiments(self) -> dict[int, str]:
        """Return id and uuid of the experiments that have a queued or running run."""
        rows = self._file.rows(
            "SELECT id, uuid FROM experiments WHERE id IN "
            f"(SELECT experiment_id FROM runs WHERE {UNFINISHED})"
        )
        return {row["id"]: row["uuid"] for row in rows}

    def counts(self, include_archived: bool = False) -> Counter[str]:
        """Count the runs by state, those of archived experiments aside; live processes are looked up."""
        rows = self._file.rows(
            "SELECT status, CASE WHEN status IN ('running','stopping') THEN r.id END AS live, "
            f"count(*) AS number FROM runs r WHERE {OF_LISTED} OR :archived GROUP BY status, live",
            {"archived": include_archived},
        )
        counts = Counter({row["status"]: row["number"] for row in rows if row["live"] is None})
        counts.update(run.state for run in self.listed(row["live"] for row in rows if row["live"])[0])
        return counts

    def unfinished(self) -> list[RunRow]:
        """Return the runs that are queued or running, as far as they can be read."""
        return [run for run in readable(self._select(UNFINISHED, {}), self._row)[0] if not run.ended]

    def done(self) -> list[FinishedRun]:
        """Return the finished runs of all experiments but archived ones."""
        columns = ", ".join(FinishedRun._fields)
        rows = self._file.rows(
            f"SELECT {columns} FROM runs r WHERE r.status='done' AND {OF_LISTED} ORDER BY id"
        )
        return list(map(FinishedRun._make, rows))

    def trained_on(self, data: Iterable[str]) -> list[RunRow]:
        """Return the runs that FedLens trained on some data sets, those of archived experiments aside."""
        of_data = "config ->> '$.data.name' IN (SELECT value FROM json_each(:names))"
        experiments = f"SELECT id FROM experiments WHERE json_valid(config) AND NOT archived AND {of_data}"
        which = f"r.origin='engine' AND r.experiment_id IN ({experiments})"
        return readable(self._select(which, {"names": json.dumps([*data])}), self._row)[0]

    def versions(self, run_ids: Iterable[int]) -> dict[int, RunVersion]:
        columns = ", ".join(RunVersion._fields)
        rows = self._file.rows(
            f"SELECT id, {columns} FROM runs WHERE id IN {ID_LIST} ORDER BY id", {"ids": as_json(run_ids)}
        )
        return {run_id: RunVersion(*version) for run_id, *version in rows}

    def digest(self, experiment_id: int | None = None) -> str:
        """Return a short text that changes with the state, rounds or messages of an experiment's runs.

        SQLite joins the values, so that thousands of runs are not read row by row.

        Args:
            experiment_id: default: all experiments together.
        """
        which = "true" if experiment_id is None else "r.experiment_id=:id"
        return self._digest(which, RunVersion._fields, {"id": experiment_id})

    def digest_of_done(self, marks: bool = False) -> str:
        """Return one that changes with ``done``, and with ``marks`` also with their stars, tags and notes."""
        columns = (*RunVersion._fields, *(("starred", "tags", "notes") if marks else ()))
        return self._digest(f"r.status='done' AND {OF_LISTED}", columns, {})

    def _digest(self, condition: str, columns: Iterable[str], values: Mapping[str, object]) -> str:
        joined = " || ' ' || ".join(f"coalesce(r.{name}, '')" for name in columns)
        (row,) = self._file.rows(
            f"SELECT group_concat(r.id || ' ' || {joined}, char(10)) AS text FROM runs r WHERE {condition}",
            values,
            damaged_texts=True,
        )
        return hashlib.blake2b(repr(row["text"]).encode(), digest_size=8).hexdigest()

    def config(self, run_id: int) -> RunConfig:
        return _config(run_id, self._texts(run_id)["config"])

    def configs(self, run_ids: Iterable[int], *, skip_damaged: bool = False) -> dict[int, RunConfig]:
        """Return the stored configs of some runs, by run."""
        rows = self._file.rows(
            f"SELECT id, config FROM runs WHERE id IN {ID_LIST} ORDER BY id",
            {"ids": as_json(run_ids)},
            damaged_texts=True,
        )
        configs = {}
        for row in rows:
            try:
                configs[row["id"]] = _config(row["id"], row["config"])
            except FedLensError:
                if not skip_damaged:
                    raise
        return configs

    def twins(self, configs: Sequence[RunConfig], images: Sequence[str], code: str) -> dict[int, int]:
        """Return the finished run that each config would repeat, by its position.

        Args:
            images: identity of what each config would read now, as a plan has it.
            code: digest of the code of FedLens that would train, as a run's environment has it.
        """
        rows = self._file.rows(
            f"""
            SELECT id, group_hash, seed, held_out, config,
            (environment ->> 'data') || ' ' || (environment ->> 'pixels')
            || coalesce(' ' || (environment ->> 'transfer'), '') AS read FROM runs
            WHERE status='done' AND {TRAINED_HERE} AND environment ->> 'code'=:code ORDER BY id
            """,
            {"code": code},
        )
        done = {}
        for row in rows:  # of repeats, the newest stays
            done[row["group_hash"], row["seed"], row["held_out"], row["read"]] = row["id"], row["config"]
        found = {}
        for position, (config, read) in enumerate(zip(configs, images, strict=True)):
            run_id, text = done.get((group_hash(config), config.seed, config.held_out, read), (None, ""))
            if run_id is not None:
                one = _config(run_id, text)  # the hash leaves out where data lie, and which checkpoints stay
                if (one.data.root, one.keep_checkpoints) == (config.data.root, config.keep_checkpoints):
                    found[position] = run_id
        return found

    def environment(self, run_id: int) -> dict[str, Any]:
        """Return versions, device, threads and chunk that a run used; empty before it started."""
        with reading_stored(f"the environment of run {run_id}"):
            return JSON_TABLE.validate_json(self._texts(run_id)["environment"] or "{}")

    def fitted(self, run_id: int) -> dict[str, Any]:
        """Return what another run of its setting computed at once on its device, where memory was short."""
        rows = self._file.rows(
            "SELECT json_extract(o.environment, '$.chunk') AS chunk, "
            "json_extract(o.environment, '$.passes_halved') AS passes_halved "
            "FROM runs r JOIN runs o ON o.group_hash=r.group_hash AND o.device=r.device "
            "WHERE r.id=:run AND o.peak_memory IS NOT NULL AND json_valid(o.environment) "
            "AND json_extract(o.environment, '$.passes_halved') IS NOT NULL ORDER BY o.id DESC LIMIT 1",
            {"run": run_id},
        )
        return dict(rows[0]) if rows else {}

    def with_common_model(self, run_ids: Iterable[int]) -> set[int]:
        """Return those of some runs whose clients all predict with the global model, by their record."""
        rows = self._file.rows(
            f"SELECT id FROM runs WHERE id IN {ID_LIST} AND json_valid(environment) "
            "AND json_extract(environment, '$.common_model')",
            {"ids": as_json(run_ids)},
        )
        return {row["id"] for row in rows}

    def error(self, run_id: int) -> str | None:
        """Return the traceback of a failed run."""
        return cast("str | None", self._texts(run_id)["error"])

    def trained_locally(self, latest: int) -> list[int]:
        """Return the newest finished runs that workers of this database trained, newest first."""
        rows = self._file.rows(
            f"SELECT id FROM runs WHERE {TRAINED_HERE} AND status='done' ORDER BY id DESC LIMIT :latest",
            {"latest": latest},
        )
        return [row["id"] for row in rows]

    def peak_memory(self, latest: int = 200) -> dict[int, int]:
        """Return the peak memory of the newest runs that workers of this database trained, in bytes."""
        rows = self._file.rows(
            f"SELECT id, peak_memory FROM runs WHERE {TRAINED_HERE} AND peak_memory IS NOT NULL "
            "ORDER BY id DESC LIMIT :latest",
            {"latest": latest},
        )
        return {row["id"]: row["peak_memory"] for row in rows}

    def folder(self, run_id: int) -> Path:
        """Return the folder of a run's checkpoints and log; it may not exist yet."""
        return run_folder(self._file.path, run_id)

    def folders(self, run_ids: Iterable[int]) -> dict[int, Path]:
        """Return the folders of some runs, as far as the runs exist."""
        return run_folders(self._file.path, run_ids)

    def log_path(self, run_id: int) -> Path:
        """Return the path of a run's log file; it may not exist yet."""
        return self.folder(run_id) / LOG_NAME

    def last_round(self, run_id: int) -> int | None:
        """Return the last recorded round; None if there is none (``rounds_done`` is 0 also after round 0)."""
        (row,) = self._file.rows("SELECT max(round) AS last FROM rounds WHERE run_id=:run", {"run": run_id})
        last: int | None = row["last"]
        return last

    def checkpoints(self, run_id: int) -> list[tuple[int, Path]]:
        """Return round and file of a run's checkpoints, intact or not, newest first, up to the last round.

        A crash may leave a checkpoint one round ahead of the database; that round is trained again.
        """
        last = self.last_round(run_id)
        files = [
            (int(path.stem.removeprefix("round-")), path)
            for path in self.folder(run_id).glob("round-*.safetensors")
            if path.stem.removeprefix("round-").isdigit()
        ]
        return sorted((f for f in files if last is not None and f[0] <= last), reverse=True)

    def stop(self, run_ids: Iterable[int]) -> list[int]:
        """Stop queued runs at once and running ones between two steps; return them, as others had ended."""
        assignments = (
            "status = CASE status WHEN 'queued' THEN 'stopped' ELSE 'stopping' END, "
            "finished_at = CASE status WHEN 'queued' THEN coalesce(finished_at, :now) ELSE finished_at END, "
            "status_text = CASE status WHEN 'queued' THEN 'stopped before it began' ELSE 'stop requested' END"
        )
        with self._file.writing() as database:
            return _change(database, run_ids, assignments, "status IN ('queued','running')")

    def stop_others_of_method(self, run_id: int, owner: str) -> list[int]:
        """Stop the runs that would fail as one of their experiment did, by a fault of their method.

        Args:
            owner: the owner of the failed run; runs that have not begun in the same process are stopped too.

        Returns: the runs with the same method and config that had not begun; ``resume`` queues them again.
        """
        with self._file.writing() as database:
            rows = database.execute(
                "UPDATE runs SET status='stopped', finished_at=coalesce(runs.finished_at, :now), "
                "status_text=:why FROM "
                "(SELECT experiment_id AS of, json_extract(config, '$.method') AS method FROM runs "
                "WHERE id=:run) AS failed WHERE runs.experiment_id=failed.of "
                "AND json_extract(runs.config, '$.method')=failed.method AND (runs.status='queued' "
                "OR (runs.status='running' AND runs.owner=:owner AND runs.pid IS NULL "
                "AND runs.finished_at IS NULL)) RETURNING id",
                {
                    "run": run_id,
                    "owner": owner,
                    "now": time.time(),
                    "why": f"not begun: the method itself failed in run {run_id}, which names the line; "
                    "correct its file, then resume this run",
                },
            ).fetchall()
        return [row["id"] for row in rows]

    def resume(self, run_ids: Iterable[int], *, restart: bool = False) -> list[int]:
        """Queue stopped, interrupted and failed runs again; they continue from the last checkpoint.

        A run that has not trained a round begins again with the current file of its method.

        Args:
            restart: whether all begin again; their rounds are deleted.

        Raises:
            NotAgreed: if such a file has changed and the user has not agreed to run it; no run is queued.
        """
        with self._file.writing() as database:
            ids = _change(database, run_ids, QUEUED_AGAIN, RESUMABLE)
            for run_id in ids:
                begun = database.execute("SELECT rounds_done FROM runs WHERE id=?", [run_id]).fetchone()[0]
                may_take = restart or not begun
                other_file = may_take and take_current_file(database, run_id, self.config(run_id))
                if restart or other_file:
                    forget_rounds(database, run_id)
            if restart:
                for run_id in ids:
                    # before the commit makes it 'queued' for others: a worker may use the folder at once
                    remove_folder(self.folder(run_id))
        return ids

    def delete(self, run_ids: Iterable[int]) -> None:
        """Delete runs with their rounds, checkpoints and logs; all of them, or none."""
        folders = self.folders(run_ids)
        ids = as_json(folders)
        with self._file.writing() as database:
            for row in database.execute(
                f"SELECT id, status, experiment_id, EXISTS(SELECT 1 FROM runs o WHERE o.experiment_id = "
                f"r.experiment_id AND o.id NOT IN {ID_LIST}) AS others FROM runs r WHERE id IN {ID_LIST}",
                {"ids": ids},
            ).fetchall():
                if row["status"] in ("running", "stopping"):
                    raise FedLensError(f"run {row['id']} is running; stop it first, then delete it", "id")
                if not row["others"]:
                    raise FedLensError(
                        f"experiment {row['experiment_id']} would have no runs; delete the experiment", "id"
                    )
            database.execute(f"DELETE FROM runs WHERE id IN {ID_LIST}", {"ids": ids})
        for folder in folders.values():
            remove_folder(folder)

    def mark(
        self,
        run_ids: Iterable[int],
        *,
        starred: bool | None = None,
        tags: Sequence[str] | None = None,
        notes: str | None = None,
    ) -> list[int]:
        """Set star, tags or notes of some runs; None leaves a value unchanged. Return the runs that exist."""
        plain = dict.fromkeys(" ".join(tag.split()) for tag in tags or ())
        values = {
            "starred": None if starred is None else int(starred),
            "tags": None if tags is None else json.dumps([*filter(None, plain)], ensure_ascii=False),
            "notes": None if notes is None else notes.strip(),
        }
        ids = list(run_ids)
        with self._file.writing() as database:
            found = set_given(database, "runs", ids, values)
        return [i for i, exists in zip(ids, found, strict=False) if exists]

    def _row(self, row: sqlite3.Row) -> RunRow:
        return run_row(self._file.path, row)

    def _rows(self, column: str, ids: Iterable[int]) -> list[sqlite3.Row]:
        return self._select(f"r.{column} IN {ID_LIST}", {"ids": as_json(ids)})

    def _select(self, condition: str, values: Mapping[str, object]) -> list[sqlite3.Row]:
        statement = f"SELECT {RUN_COLUMNS} FROM runs r WHERE {condition} ORDER BY r.id"
        return self._file.rows(statement, values, damaged_texts=True)

    def _texts(self, run_id: int) -> sqlite3.Row:
        rows = self._file.rows("SELECT config, environment, error FROM runs WHERE id=:id", {"id": run_id})
        if not rows:
            raise FedLensError(f"no run {run_id}; `fedlens list` shows them")
        return rows[0]


def _config(run_id: int, text: str) -> RunConfig:
    with reading_stored(f"the config of run {run_id}"):
        return _read_config(text)


@lru_cache(maxsize=10_000)
def _read_config(text: str) -> RunConfig:
    return RunConfig.model_validate_json(text)


def _change(
    database: sqlite3.Connection, run_ids: Iterable[int], assignments: str, condition: str
) -> list[int]:
    """Update those runs that meet a condition, within the caller's transaction; return their ids."""
    statement = f"UPDATE runs SET {assignments} WHERE id=:id AND {condition}"
    now = time.time()
    return [i for i in run_ids if database.execute(statement, {"id": int(i), "now": now}).rowcount]


Move = Literal["top", "up", "down", "bottom"]
"""Target of a move within the queue."""
MAX_SLOTS = 16
"""Maximum number of runs at once on one device."""
QUEUE = "SELECT id, experiment_id, priority FROM runs WHERE status='queued' ORDER BY priority DESC, id"

LIST = f"(SELECT json_group_array(need) FROM ({NEEDS}) WHERE need IS NOT NULL)"
"""SQL: the needs of a run as a JSON list."""
NEEDED_MEMORY = """
(SELECT max(o.peak_memory) FROM runs o WHERE o.group_hash=r.group_hash AND o.peak_memory IS NOT NULL)
"""
"""SQL: peak memory of runs of the same setting, in bytes; NULL if none was measured."""


class QueuedRun(NamedTuple):
    """A queued run.

    ``needed_memory`` is the peak memory of runs of its setting in bytes, None if unknown; ``needs`` are the
    folders and weights that it reads (see ``jobs.NEEDS``).
    """

    id: int
    experiment_id: int
    experiment: str
    label: str
    seed: int
    held_out: str | None
    requested_device: str
    rounds_total: int
    needed_memory: int | None
    needs: tuple[str, ...] = ()


class Queue(Queries):
    """The queue of a store (``Store.queue``)."""

    def ids(self) -> list[int]:
        """Return the ids of the queued runs in the order of their start."""
        return [row["id"] for row in self._file.rows(QUEUE)]

    def in_turns(self, served: Sequence[int]) -> Iterator[int]:
        """Yield the ids of the queued runs by priority; the experiments of one priority take turns.

        Args:
            served: experiments whose runs have started, the last one at the end.
        """
        for _, block in groupby(self._file.rows(QUEUE), key=lambda row: row["priority"]):
            runs: dict[int, list[int]] = {}
            for row in block:
                runs.setdefault(row["experiment_id"], []).append(row["id"])
            order = sorted(runs, key=lambda e: served.index(e) if e in served else -1)
            for turn in zip_longest(*(runs[experiment] for experiment in order)):
                yield from (run for run in turn if run is not None)

    def runs(self, ids: Sequence[int] | None = None) -> list[QueuedRun]:
        """Return the queued runs in the order of their start, or some of them in the given order."""
        found = [
            QueuedRun(*(*row[:-1], tuple(json.loads(row[-1]))))
            for row in self._file.rows(
                f"""
                SELECT r.id, e.id, e.name, r.label, r.seed, r.held_out, r.requested_device, r.rounds_total,
                  {NEEDED_MEMORY} AS needed_memory, {LIST} AS needs
                FROM runs JOIN runs r ON r.id=runs.id JOIN experiments e ON e.id=r.experiment_id
                WHERE runs.status='queued'
                AND (:ids IS NULL OR r.id IN (SELECT value FROM json_each(:ids)))
                ORDER BY r.priority DESC, r.id
                """,
                {"ids": None if ids is None else json.dumps(ids)},
            )
        ]
        return found if ids is None else sorted(found, key=lambda run: ids.index(run.id))

    def needs(self) -> list[str]:
        """Return the folders and weights that queued runs read, as their configs name them."""
        # runs that differ in method, seed and held-out domain only need the same, and are one row
        settings = "SELECT DISTINCT json_remove(config, '$.method', '$.seed', '$.held_out') AS config"
        waiting = f"({settings} FROM runs WHERE status='queued') AS runs"
        rows = self._file.rows(f"SELECT {LIST} AS needs FROM {waiting}")
        return sorted({need for row in rows for need in json.loads(row["needs"])})

    def move(
        self, ids: Iterable[int], to: Move = "top", by: Literal["id", "experiment_id"] = "id"
    ) -> list[int]:
        """Move queued runs, or those of experiments as blocks, in their order; return those still queued."""
        wanted = set(ids)
        with self._file.writing() as database:
            blocks: dict[int, list[int]] = {}
            for row in database.execute(QUEUE):
                blocks.setdefault(row[by], []).append(row["id"])
            places = list(blocks)
            moved = [block for block in places if block in wanted]
            if not moved:
                return []
            rest = [block for block in places if block not in wanted]
            first, last = places.index(moved[0]), places.index(moved[-1]) - len(moved) + 1
            place = {"top": 0, "up": max(0, first - 1), "down": min(len(rest), last + 1), "bottom": len(rest)}
            after = [*rest[: place[to]], *moved, *rest[place[to] :]]
            runs = [run for block in after for run in blocks[block]]
            top = [run for block in moved for run in blocks[block]]
            # Runs that have begun stay before the others, but at the top one goes before those that rest.
            begun = [row["id"] for row in database.execute(RUNS.live)]
            order = [*top, *begun, *runs[len(top) :]] if to == "top" else [*begun, *runs]
            for priority, run in enumerate(reversed(order)):
                database.execute("UPDATE runs SET priority=? WHERE id=?", [priority, run])
        return top

    def slots(self) -> dict[str, int]:
        """Return the configured number of runs at once by device; the default for other devices is 1."""
        return {row["device"]: row["slots"] for row in self._file.rows("SELECT device, slots FROM slots")}

    def set_slots(self, device: str, number: int) -> None:
        """Let up to ``number`` runs share a device; a running worker applies it at once."""
        if not 1 <= number <= MAX_SLOTS:
            raise FedLensError(f"{number} runs at once on {device}; choose 1 to {MAX_SLOTS}", "slots")
        from sqlite_utils import Database

        with self._file.writing() as database:
            Database(database).table("slots").upsert({"device": device, "slots": int(number)}, pk="device")

    def memory_needs(self, device: str, waiting: int) -> list[int | None]:
        """Return the bytes of memory that a queued run and the runs on a device will still allocate.

        A running one counts until it has recorded a round: then the device reports its memory as used. Runs
        of one process count once. None: no run of that setting was measured.

        Args:
            waiting: the queued run's id.
        """
        rows = self._file.rows(
            f"SELECT r.owner, max(r.rounds_done) AS rounds, max({NEEDED_MEMORY}) AS peak FROM runs r "
            "WHERE r.id=:waiting OR (r.status IN ('running','stopping') AND r.device=:device) "
            "GROUP BY r.owner",
            {"waiting": waiting, "device": device},
        )
        # a queued run has no owner
        return [row["peak"] for row in rows if row["owner"] is None or not row["rounds"]]
