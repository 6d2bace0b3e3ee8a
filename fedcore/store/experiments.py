"""The experiments of a store: created, edited, archived and deleted; searches, and saved views of pages."""

import json
import shutil
import sqlite3
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass as checked

from fedcore.base.errors import FedLensError, reading_stored
from fedcore.base.events import AFTER_AGGREGATION, VALIDATION
from fedcore.base.files import link
from fedcore.base.progress import counted
from fedcore.config import Experiment, MethodEntry, RunConfig, expand
from fedcore.config.tuning import method_label
from fedcore.config.values import LARGEST_INTEGER
from fedcore.methods import registry
from fedcore.store.damage import Integrity
from fedcore.store.database import (
    ID_LIST,
    STORED,
    Queries,
    as_json,
    remove_folder,
    run_folder,
    run_folders,
    text_or_bytes,
)
from fedcore.store.imports import experiments_json
from fedcore.store.runs import RUN_COLUMNS, TRAINED_HERE, RunRow, run_row
from fedcore.store.writer import Created, claim_new, insert_experiment, insert_runs, set_given, take_over

TAGS = TypeAdapter(tuple[str, ...])
Claimer = tuple[str, str]
"""A process that trains new runs itself, by its owner, and its device."""


@checked(frozen=True, config=STORED)
class ExperimentRow:
    """One experiment with its runs, oldest first."""

    id: int
    uuid: str
    name: str
    created_at: float
    config: Experiment
    notes: str
    tags: tuple[str, ...]
    archived: bool
    runs: tuple[RunRow, ...]

    @property
    def version(self) -> tuple[object, ...]:
        """Values that change with the results and with what the user writes on runs; a key for caches."""
        return self.id, self.name, *((r.version, r.starred, r.tags, r.notes) for r in self.runs)


@dataclass(frozen=True)
class UnreadableExperiment:
    """An experiment that cannot be read, with the reason in one line."""

    id: int
    name: str
    reason: str


class ExperimentTitle(NamedTuple):
    """An experiment in a menu."""

    id: int
    name: str
    archived: bool

    @property
    def text(self) -> str:
        """Name and number, since a menu cannot tell equal texts apart."""
        return f"{self.name} (no. {self.id}{', archived' if self.archived else ''})"


class Experiments(Queries):
    """The experiments of a store (``Store.experiments``)."""

    def all(self, include_archived: bool = False) -> list[ExperimentRow]:
        """Return the experiments with their runs, newest first; unreadable ones are left out."""
        return self.listed(include_archived)[0]

    def listed(
        self, include_archived: bool = True, newest: int | None = None, ids: Iterable[int] | None = None
    ) -> tuple[list[ExperimentRow], list[UnreadableExperiment]]:
        """Return the readable experiments with their runs, and the unreadable ones; both newest first.

        Args:
            newest: how many are read at most; default: all.
            ids: only these, as far as they exist.
        """
        readable: list[ExperimentRow] = []
        damaged: list[UnreadableExperiment] = []
        for row, runs in self._read("true" if include_archived else "NOT archived", newest, ids):
            try:
                readable.append(self._row(row, runs))
            except FedLensError as error:
                damaged.append(UnreadableExperiment(row["id"], str(row["name"]), str(error)))
        return readable, damaged

    def titles(self) -> list[ExperimentTitle]:
        """Return number, name and place of all experiments, newest first, for menus; nothing is parsed."""
        rows = self._file.rows(
            "SELECT id, name, archived FROM experiments ORDER BY created_at DESC, id DESC", damaged_texts=True
        )
        return [ExperimentTitle(row["id"], str(row["name"]), bool(row["archived"])) for row in rows]

    def tags(self, include_archived: bool = True) -> list[str]:
        """Return the tags of all experiments, each once."""
        rows = self._file.rows(
            "SELECT DISTINCT value FROM experiments, json_each(tags) WHERE json_valid(tags) "
            "AND (NOT archived OR :archived) ORDER BY value",
            {"archived": include_archived},
            damaged_texts=True,
        )
        return [row["value"] for row in rows if isinstance(row["value"], str)]

    def newest_with_runs(self, *states: str) -> list[int]:
        """Return the newest experiment with a run in one of these states, archived ones aside; else none."""
        rows = self._file.rows(
            # the limit within makes SQLite ask the newest first, and stop
            "SELECT id FROM (SELECT id FROM experiments WHERE NOT archived "
            "ORDER BY created_at DESC, id DESC LIMIT -1) e WHERE EXISTS(SELECT 1 FROM runs r "
            "WHERE r.experiment_id=e.id AND r.status IN (SELECT value FROM json_each(:states))) LIMIT 1",
            {"states": json.dumps(states)},
        )
        return [row["id"] for row in rows]

    def data_folders(self) -> list[tuple[str, str]]:
        """Return the data sets that experiments read from a folder, with that folder, the newest first."""
        rows = self._file.rows(
            "SELECT config ->> '$.data.name', config ->> '$.data.root' FROM experiments "
            "WHERE NOT archived AND json_valid(config) AND config ->> '$.data.root' IS NOT NULL "
            "ORDER BY created_at DESC, id DESC",
            damaged_texts=True,
        )
        return [(name, root) for name, root in rows if isinstance(name, str) and isinstance(root, str)]

    def find(self, name: str) -> int:
        """Return the id that a text names: an experiment's id, its name, or ``@last`` for the newest."""
        if name.isdecimal():
            return int(name)
        rows = self._file.rows(
            "SELECT id FROM experiments WHERE name=:name OR :name='@last' ORDER BY id DESC", {"name": name}
        )
        if not rows:
            raise FedLensError(f"no experiment '{name}'; `fedlens list` shows them")
        if len(rows) > 1 and name != "@last":
            ids = ", ".join(str(row["id"]) for row in reversed(rows))
            raise FedLensError(f"several experiments are called '{name}': {ids}; give the id of one")
        return int(rows[0]["id"])

    def get(self, experiment_id: int) -> ExperimentRow:
        return self.several([experiment_id])[0]

    def several(self, experiment_ids: Sequence[int]) -> list[ExperimentRow]:
        """Return experiments with their runs, in the given order."""
        found = {row["id"]: (row, runs) for row, runs in self._read("true", None, experiment_ids)}
        for number in experiment_ids:
            _must_exist(number in found, number)
        return [self._row(*found[number]) for number in experiment_ids]

    def _read(
        self, condition: str, newest: int | None, ids: Iterable[int] | None
    ) -> list[tuple[sqlite3.Row, list[sqlite3.Row]]]:
        """Return the rows of some experiments, newest first, each with those of its runs, oldest first."""
        if ids is not None:
            condition = f"id IN {ID_LIST}"
        values = {
            "newest": -1 if newest is None else newest,
            "ids": as_json(min(i, LARGEST_INTEGER) for i in ids or ()),  # a link may hold any number
        }
        with self._file.reading() as connection:
            connection.text_factory = text_or_bytes
            rows = connection.execute(
                f"SELECT * FROM experiments WHERE {condition} "
                "ORDER BY created_at DESC, id DESC LIMIT :newest",
                values,
            ).fetchall()
            grouped: dict[int, list[sqlite3.Row]] = {row["id"]: [] for row in rows}
            values["ids"] = as_json(grouped)
            for run in connection.execute(
                f"SELECT {RUN_COLUMNS} FROM runs r WHERE r.experiment_id IN {ID_LIST} ORDER BY r.id", values
            ):
                grouped[run["experiment_id"]].append(run)
        return [(row, grouped[row["id"]]) for row in rows]

    def _row(self, row: sqlite3.Row, runs: Sequence[sqlite3.Row]) -> ExperimentRow:
        values = dict(row) | {"runs": tuple(run_row(self._file.path, run) for run in runs)}
        with reading_stored(f"experiment {row['id']}"):
            values["config"] = _read_config(row["config"])
            values["tags"] = TAGS.validate_json(row["tags"])
            values["archived"] = bool(row["archived"])
            return ExperimentRow(**values)

    def create(
        self,
        experiment: Experiment,
        runs: Sequence[RunConfig] | None = None,
        *,
        device: str = "auto",
        claimer: Claimer | None = None,
        twins: Mapping[int, int] | None = None,
    ) -> Created:
        """Record an experiment and queue its runs.

        Args:
            runs: default: ``expand(experiment)``; needed if ``held_out = ["each"]`` was resolved.
            device: ``auto``, ``cpu`` or a GPU's UUID.
            claimer: this process, if it trains the runs itself; no worker can take them then.
            twins: finished runs to take over instead of training, by the position of the new run.
        """
        experiment, configs = _complete(experiment, runs)
        with self._file.writing() as database:
            number = insert_experiment(database, experiment)
            created = _queue_runs(database, self._file.path, number, configs, claimer, device)
            taken = {created.run_ids[position]: done for position, done in (twins or {}).items()}
            for run_id, done in taken.items():
                take_over(database, run_id, done)
        for run_id, done in taken.items():
            here, there = (run_folder(self._file.path, i) for i in (run_id, done))
            if there.is_dir():
                shutil.copytree(there, here, copy_function=link)  # a finished run's files never change
        return created

    def extend(self, experiment_id: int, runs: Sequence[RunConfig]) -> Created:
        """Queue further runs of an experiment, such as more seeds; its config names their seeds too."""
        original = self.get(experiment_id).config
        experiment, configs = _complete(original, runs)
        seeds = tuple(dict.fromkeys([*original.seeds, *(config.seed for config in configs)]))
        content = experiment.model_copy(update={"seeds": seeds}).model_dump_json()
        with self._file.writing() as database:
            cursor = database.execute("UPDATE experiments SET config=? WHERE id=?", [content, experiment_id])
            _must_exist(cursor.rowcount > 0, experiment_id)
            return Created(experiment_id, insert_runs(database, experiment_id, configs))

    def edit(
        self,
        experiment_id: int,
        *,
        name: str | None = None,
        notes: str | None = None,
        tags: Sequence[str] | None = None,
        archived: bool | None = None,
    ) -> None:
        """Change the description of an experiment, or archive it; None leaves a field unchanged."""
        if name is not None and not name.strip():
            raise FedLensError("an experiment needs a name; write at least one character", "name")
        values = {
            "name": name,
            "notes": notes,
            "tags": None if tags is None else json.dumps(list(tags)),
            "archived": None if archived is None else int(archived),
        }
        with self._file.writing() as database:
            if given := set_given(database, "experiments", [experiment_id], values):
                _must_exist(given[0], experiment_id)

    def delete(self, experiment_id: int) -> None:
        """Delete an experiment with its runs, rounds, checkpoints and logs."""
        rows = self._file.rows("SELECT id FROM runs WHERE experiment_id=:id", {"id": experiment_id})
        folders = run_folders(self._file.path, (row["id"] for row in rows))
        with self._file.writing() as database:
            ((live,),) = database.execute(
                "SELECT count(*) FROM runs WHERE experiment_id=? AND status IN ('running','stopping')",
                [experiment_id],
            )
            if live:
                raise FedLensError(
                    f"it has {counted(live, 'running run')}; stop first, then delete the experiment"
                )
            cursor = database.execute("DELETE FROM experiments WHERE id=?", [experiment_id])
            _must_exist(cursor.rowcount > 0, experiment_id)
        for folder in folders.values():
            remove_folder(folder)

    def to_json(self, experiment_ids: Iterable[int]) -> str:
        """Return everything recorded of some experiments as one JSON text (see ``experiments_json``)."""
        ids = list(experiment_ids)
        for number in ids:
            self.get(number)
        Integrity(self._file).require(ids)
        return experiments_json(self._file, ids)


@lru_cache(maxsize=10_000)  # a list that is longer would be parsed whole each time; 15 KB each
def _read_config(text: str | bytes) -> Experiment:
    return Experiment.model_validate_json(text)


def _complete(experiment: Experiment, runs: Sequence[RunConfig] | None) -> tuple[Experiment, list[RunConfig]]:
    """Refuse unknown methods, and record the file of a user's own method in the config.

    A search that is run again has not selected anything yet.
    """
    tuning = experiment.tuning and experiment.tuning.model_copy(update={"final": None})
    entries = tuple(_with_file(entry, f"methods.{i}") for i, entry in enumerate(experiment.methods))
    configs = expand(experiment) if runs is None else list(runs)
    if not configs:
        raise FedLensError("the experiment has no runs; name at least one method and one seed", "methods")
    return (
        experiment.model_copy(update={"methods": entries, "tuning": tuning}),
        [c.model_copy(update={"method": _with_file(c.method, "methods")}) for c in configs],
    )


def _with_file(entry: MethodEntry, field: str) -> MethodEntry:
    if entry.file:
        registry.load_agreed(entry.file)
    registry.get(entry.name, f"{field}.name")
    return entry.model_copy(update={"file": entry.file or registry.file_of(entry.name)})


def _queue_runs(
    database: sqlite3.Connection,
    db: Path,
    experiment_id: int,
    configs: Sequence[RunConfig],
    claimer: Claimer | None,
    device: str,
    priority: int = 0,
) -> Created:
    ids = insert_runs(database, experiment_id, configs, device=device, priority=priority)
    claims = claim_new(database, db, ids, *claimer) if claimer else []
    return Created(experiment_id, ids, tuple(claims))


def _must_exist(found: bool, experiment_id: int) -> None:
    if not found:
        raise FedLensError(f"no experiment {experiment_id}; `fedlens list` shows them")


@dataclass(frozen=True)
class Draw:
    """A draw of a search, with all that it has cost so far.

    Attributes:
        label: of its method, without the number.
        validation: mean over clients of their own models' validation accuracy in the last round, a share of
            one; None before the draw is done, or if it has failed.
        bytes: sent by all clients, up and down; None if not measured.
        seconds: of training and aggregation; None if not measured.
    """

    run_id: int
    label: str
    number: int
    status: str
    config: RunConfig
    validation: float | None
    rounds: int
    bytes: int | None
    seconds: float | None


def best_draw(draws: Sequence[Draw]) -> Draw | None:
    """Return the draw with the highest validation accuracy, the first of equals; None if none is done.

    Means of the same shares in another order have other last bits, which decide nothing.
    """
    evaluated = [draw for draw in draws if draw.validation is not None]
    return max(evaluated, key=lambda draw: (round(draw.validation or 0.0, 9), -draw.number), default=None)


class Searches(Queries):
    """The searches of a store (``Store.searches``)."""

    def waiting(self) -> list[int]:
        """Return the experiments whose draws have ended here and were not followed by anything yet.

        A stopped draw can be resumed, so its search waits for that; failed draws are spent. If all have
        failed, nothing can follow.
        """
        rows = self._file.rows(
            "SELECT id FROM experiments e WHERE json_extract(config, '$.tuning.draws') IS NOT NULL "
            "AND json_extract(config, '$.tuning.final') IS NULL "
            "AND EXISTS(SELECT 1 FROM runs WHERE experiment_id=e.id AND status='done') AND NOT EXISTS("
            "SELECT 1 FROM runs WHERE experiment_id=e.id AND NOT "
            f"(status IN ('done','failed') AND {TRAINED_HERE}))"
        )
        return [row["id"] for row in rows]

    def draws(self, experiment_id: int) -> dict[str, list[Draw]]:
        """Return the draws of a search by the label of their method, in order."""
        rows = self._file.rows(
            f"""
            SELECT r.id, r.label, r.status, r.config, r.rounds_done,
              sum(bytes_up) + sum(bytes_down) AS bytes,
              coalesce(sum(seconds_train) + sum(seconds_aggregate), sum(seconds_train),
                sum(seconds_aggregate)) AS seconds,
              (SELECT personal_mean FROM scores s WHERE s.run_id=r.id AND s.split={VALIDATION}
               AND s.stage={AFTER_AGGREGATION} ORDER BY s.round DESC LIMIT 1) AS validation
            FROM runs r LEFT JOIN rounds t ON t.run_id=r.id WHERE r.experiment_id=:id GROUP BY r.id
            ORDER BY r.id
            """,
            {"id": experiment_id},
        )
        found: dict[str, list[Draw]] = {}
        for row in rows:
            with reading_stored(f"the config of run {row['id']}"):
                config = RunConfig.model_validate_json(row["config"])
            label = method_label(row["label"])
            draw = Draw(
                run_id=row["id"],
                label=label,
                number=config.method.draw or 0,
                status=row["status"],
                config=config,
                validation=row["validation"] if row["status"] == "done" else None,
                rounds=row["rounds_done"],
                bytes=row["bytes"],
                seconds=row["seconds"],
            )
            found.setdefault(label, []).append(draw)
        return {label: sorted(draws, key=lambda draw: draw.number) for label, draws in found.items()}

    def add_draws(
        self, experiment_id: int, made: int, configs: Sequence[RunConfig], claimer: Claimer | None = None
    ) -> Created | None:
        """Queue further draws of a search that has made ``made`` draws; None if others were added since."""
        with self._file.writing() as database:
            (count,) = database.execute(
                "SELECT count(*) FROM runs WHERE experiment_id=?", [experiment_id]
            ).fetchone()
            if count != made:
                return None
            return self._queue(database, experiment_id, experiment_id, configs, claimer)

    def conclude(
        self,
        experiment_id: int,
        final: Experiment,
        configs: Sequence[RunConfig],
        claimer: Claimer | None = None,
    ) -> Created | None:
        """Record the experiment with the selected values, and queue its runs; None if this was done before.

        A search remembers its final experiment, which is not made again when the user has deleted it.
        """
        identity = uuid.uuid4().hex
        with self._file.writing() as database:
            cursor = database.execute(
                "UPDATE experiments SET config=json_set(config, '$.tuning.final', :uuid) WHERE id=:id "
                "AND json_extract(config, '$.tuning.final') IS NULL",
                {"uuid": identity, "id": experiment_id},
            )
            if not cursor.rowcount:
                return None
            number = insert_experiment(database, final, identity)
            return self._queue(database, experiment_id, number, configs, claimer)

    def by_uuid(self, identity: str) -> int | None:
        """Return the number of the experiment with this UUID; None if this database does not have it."""
        rows = self._file.rows("SELECT id FROM experiments WHERE uuid=:uuid", {"uuid": identity})
        return rows[0]["id"] if rows else None

    def _queue(
        self,
        database: sqlite3.Connection,
        search: int,
        experiment_id: int,
        configs: Sequence[RunConfig],
        claimer: Claimer | None,
    ) -> Created:
        """Queue runs with the device and the highest priority of the search's draws, or claim them."""
        device, priority = database.execute(
            "SELECT requested_device, max(priority) FROM runs WHERE experiment_id=?", [search]
        ).fetchone()
        return _queue_runs(database, self._file.path, experiment_id, configs, claimer, device, priority)


LONGEST_NAME = 200
LONGEST_QUERY = 20_000


@dataclass(frozen=True)
class SavedView:
    """A saved view; ``query`` is the part of its address after the question mark."""

    id: int
    page: str
    name: str
    query: str


class SavedViews(Queries):
    """The saved views of a store (``Store.saved_views``).

    They refer to experiments by id, which is valid in one database only, so they are never exported.
    """

    def of_page(self, page: str) -> list[SavedView]:
        """Return the saved views of a page, by name."""
        rows = self._file.rows(
            "SELECT id, page, name, query FROM views WHERE page=:page ORDER BY name", {"page": page}
        )
        return [SavedView(**dict(row)) for row in rows]

    def save(self, page: str, name: str, query: str) -> None:
        """Save a view; one of the same name is replaced."""
        name = " ".join(name.split())
        if not 0 < len(name) <= LONGEST_NAME:
            raise FedLensError(f"a view needs a name of 1 to {LONGEST_NAME} characters", "name")
        if len(query) > LONGEST_QUERY:
            raise FedLensError("this view has too many choices to be saved; choose fewer experiments", "name")
        from sqlite_utils import Database

        row = {"page": page, "name": name, "query": query, "created_at": time.time()}
        with self._file.writing() as database:
            Database(database).table("views").upsert(row, pk=("page", "name"))

    def delete(self, view_id: int) -> None:
        with self._file.writing() as database:
            database.execute("DELETE FROM views WHERE id=:id", {"id": view_id})
