"""Writes experiments, runs, entities and rounds within the caller's transaction.

The job of a run, the Recorder, and the imports of CSV files, JSON files and databases all write through here.
"""

import json
import math
import sqlite3
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fedcore.base import consent
from fedcore.base.errors import FedLensError, did_you_mean, reading_stored
from fedcore.base.events import GLOBAL, MEASURES, Cell, Entity, RoundFinished, Started
from fedcore.base.files import user_path
from fedcore.config import BackboneConfig, DataConfig, Experiment, PartitionConfig, RunConfig
from fedcore.config.experiment import named_errors
from fedcore.config.identity import group_hash
from fedcore.config.models import LONGEST_NAME
from fedcore.config.values import LARGEST_INTEGER
from fedcore.data import catalog
from fedcore.methods import registry
from fedcore.store.damage import SUMMARY, SUMMARY_AFTER, write_digests, write_identity
from fedcore.store.jobs import TRAINING, Claim
from fedcore.store.schema import RUN_TABLES, columns

MEANS = """
SELECT a.run_id, a.split, a.stage, a.round,
  avg(1.0 * correct / total) FILTER (WHERE a.model = a.test_set),
  1.0 * sum(correct) FILTER (WHERE a.model = a.test_set) / sum(total) FILTER (WHERE a.model = a.test_set),
  min(1.0 * correct / total) FILTER (WHERE a.model = a.test_set),
  avg(1.0 * correct / total) FILTER (WHERE a.model = 0 AND t.kind = 'client'),
  avg(1.0 * correct / total) FILTER (WHERE t.kind = 'classes')
FROM accuracy a JOIN entities t ON t.run_id = a.run_id AND t.entity = a.test_set
WHERE a.run_id = :run {which}
GROUP BY a.run_id, a.split, a.stage, a.round
"""
SCORES = f"INSERT OR REPLACE INTO scores({', '.join(columns('scores'))})" + MEANS.format(
    which="AND a.split = :split AND a.stage = :stage AND a.round = :round"
)
"""Means of one (split, stage, round), from counts.

personal_mean: every client's model on its own samples, clients weighing equally; personal_weighted: the same,
weighted by samples; personal_worst: the minimum over clients; global_mean: the global model (code 0) on the
clients' test sets, clients weighing equally; classes_mean: every client's model on all test samples of its
classes (FedAlign's local performance), NULL where that is not measured.
"""
INSERT_ROUND = (
    f"INSERT INTO rounds(run_id, round, {', '.join(MEASURES)}) "
    f"VALUES (:run_id, :round, {', '.join(f':{name}' for name in MEASURES)}) "
    "ON CONFLICT(run_id, round) DO UPDATE SET "
    + ", ".join(f"{name}=coalesce(excluded.{name}, {name})" for name in MEASURES)
)
"""A round may be written in several parts (splits, stages): values that a later part leaves out stay."""


@dataclass(frozen=True)
class Created:
    """New runs, and their experiment. ``run_ids`` are in the order of the given runs.

    Attributes:
        claims: on the runs, if the process that has made them trains them itself.
    """

    experiment_id: int
    run_ids: tuple[int, ...]
    claims: tuple[Claim, ...] = ()


def insert_row(database: sqlite3.Connection, table: str, row: Mapping[str, object]) -> int:
    """Insert one row; returns its id."""
    names, places = ", ".join(row), ", ".join(f":{name}" for name in row)
    cursor = database.execute(f"INSERT INTO {table}({names}) VALUES ({places})", dict(row))
    return int(cursor.lastrowid or 0)


def insert_experiment(
    database: sqlite3.Connection, experiment: Experiment, identity: str | None = None
) -> int:
    """Insert an experiment without runs; returns its id.

    Args:
        identity: the experiment's uuid; default: a new one.
    """
    return insert_row(
        database,
        "experiments",
        {
            "uuid": identity or uuid.uuid4().hex,
            "name": f"Search: {experiment.name}"[:LONGEST_NAME] if experiment.tuning else experiment.name,
            "created_at": time.time(),
            "config": experiment.model_dump_json(),
            "notes": experiment.notes,
            "tags": json.dumps(list(experiment.tags)),
        },
    )


def insert_runs(
    database: sqlite3.Connection,
    experiment_id: int,
    configs: Sequence[RunConfig],
    *,
    device: str = "auto",
    priority: int = 0,
    origin: str = "engine",
) -> tuple[int, ...]:
    """Insert queued runs of an experiment; returns their ids."""
    ids = tuple(
        insert_row(
            database,
            "runs",
            {
                "experiment_id": experiment_id,
                "method": run.method.name,
                "label": run.method.label or registry.title(run.method.name),
                "seed": int(run.seed),
                "held_out": run.held_out,
                "config": run.model_dump_json(),
                "group_hash": group_hash(run),
                "origin": origin,
                "status": "queued",
                "priority": priority,
                "requested_device": device,
                "created_at": time.time(),
                "rounds_total": run.rounds,
            },
        )
        for run in configs
    )
    for run_id in ids:
        write_identity(database, run_id)
    return ids


_OF_TRAINING = "status, device, started_at, finished_at, rounds_done, environment, peak_memory"
"""Columns of a run that its training has written, beside the notices and the summary."""


def take_over(database: sqlite3.Connection, run_id: int, done: int) -> None:
    """Copy what a finished run has recorded into a queued one, with its digests; a notice says where from."""
    for table in (*RUN_TABLES, "digests"):
        names = ", ".join(name for name in columns(table) if name != "run_id")
        which = " AND round>=0" if table == "digests" else ""  # the other one is that of the run itself
        database.execute(
            f"INSERT INTO {table}(run_id, {names}) SELECT ?, {names} FROM {table} WHERE run_id=?{which}",
            [run_id, done],
        )
    message = f"taken over from run {done}, which has the same config, seed, code and images"
    database.execute(
        f"UPDATE runs SET ({_OF_TRAINING}, notices) = (SELECT {_OF_TRAINING}, "
        "json_insert(notices, '$[#]', json_object('message', ?, 'repeats_exactly', json('true'))) "
        "FROM runs WHERE id=?) WHERE id=?",
        [message, done, run_id],
    )
    update_summary(database, run_id)
    write_identity(database, run_id)


OWN_DATA = "own data"
"""The data set of results without one; if they join an experiment, they take that of the experiment."""
OWN_BACKBONE = "own backbone"
GLOBAL_NAME = "global"
"""Name of the global model in a script and in a CSV file."""


@dataclass(frozen=True)
class ExistingExperiment:
    """An experiment of the store; runs that join it take the setting of ``model``, its first run.

    Attributes:
        namesakes: ids of older experiments with the same name, if it was found by name.
    """

    id: int
    name: str
    model: RunConfig
    namesakes: tuple[int, ...] = ()


def find_experiment(database: sqlite3.Connection, experiment: str | int | None) -> ExistingExperiment | None:
    """Return the experiment with a name (the newest of several) or an id, which may be given as text."""
    if experiment is None:
        return None
    number = int(experiment) if isinstance(experiment, int) or experiment.isdecimal() else 0
    rows = database.execute(
        "SELECT e.id, e.name, r.config FROM experiments e JOIN runs r ON r.id = "
        "(SELECT min(id) FROM runs WHERE experiment_id = e.id) WHERE e.name=:name OR e.id=:id "
        "ORDER BY e.id DESC",
        {"name": None if isinstance(experiment, int) else experiment, "id": min(number, LARGEST_INTEGER)},
    ).fetchall()
    named = [row for row in rows if row["name"] == experiment]
    if not rows:
        if isinstance(experiment, int):
            raise FedLensError(f"no experiment {experiment}; `fedlens list` shows them", "experiment")
        return None
    row, older = (named or rows)[0], tuple(other["id"] for other in named[1:])
    with reading_stored(f"experiment {row['id']}"):
        return ExistingExperiment(row["id"], row["name"], RunConfig.model_validate_json(row["config"]), older)


def doubts(existing: ExistingExperiment | None, dataset: str | None) -> list[str]:
    """Return a sentence for each name that may not be the one that the user meant.

    An unknown data set is not refused, because FedLens cannot know the names of the user's own data sets.
    """
    found = []
    if existing is None and dataset is not None and dataset not in (OWN_DATA, *catalog.names()):
        hint = did_you_mean(dataset, catalog.names(), "`fedlens data list` shows those that it knows")
        found.append(
            f"FedLens knows no data set '{dataset}', so these results compare only with others under this "
            f"name; {hint}"
        )
    if existing is not None and existing.namesakes:
        found.append(
            f"{len(existing.namesakes) + 1} experiments are called '{existing.name}'; the newest was chosen, "
            f"number {existing.id} (the others: {', '.join(map(str, existing.namesakes))}). Give a number "
            "instead of the name to choose another one"
        )
    return found


def insert_own_runs(
    database: sqlite3.Connection,
    existing: ExistingExperiment | None,
    configs: Sequence[RunConfig],
    *,
    name: str | None,
    origin: Literal["recorder", "import"],
    identity: str | None = None,
    tag: str | None = None,
) -> Created:
    """Insert runs into an existing experiment, or into a new one.

    Args:
        configs: see ``own_config``.
        name, identity, tag: name, uuid and tag of the new experiment.
    """
    with named_errors():
        if existing is None:  # all of its runs have the first one's setting
            first = configs[0]
            experiment = Experiment(
                name=name or f"{first.method.name} on {first.data.name}",
                data=first.data,
                partition=first.partition,
                backbone=first.backbone,
                methods=tuple({run.method.name: run.method for run in configs}.values()),
                rounds=max(run.rounds for run in configs),
                seeds=tuple(dict.fromkeys(run.seed for run in configs)),
                tags=(tag,) if tag else (),
            )
            experiment_id = insert_experiment(database, experiment, identity)
        else:
            experiment_id = existing.id
    ids = insert_runs(database, experiment_id, configs, origin=origin)
    for run_id in ids:
        insert_entities(database, run_id, (Entity(GLOBAL, "global", GLOBAL_NAME),))
    return Created(experiment_id, ids)


def own_config(
    existing: ExistingExperiment | None,
    dataset: str | None = None,
    backbone: str | None = None,
    **given: object,
) -> RunConfig:
    """Return the config of a run that was trained elsewhere, with the setting of an existing experiment.

    Args:
        dataset, backbone: names; None (or ``OWN_DATA``) if the user gave none.
        given: method, seed, rounds (the last one, or their number) and held-out domain.
    """
    if existing is None:
        data, model = DataConfig(name=dataset or OWN_DATA), BackboneConfig(name=backbone or OWN_BACKBONE)
        setting = {"data": data, "partition": PartitionConfig(), "backbone": model, "participation": 1.0}
    else:
        setting = dict(existing.model)
        for field, name, default in (("dataset", dataset, OWN_DATA), ("backbone", backbone, OWN_BACKBONE)):
            needed = existing.model.data.name if field == "dataset" else existing.model.backbone.name
            if name not in (None, default, needed):
                raise FedLensError(
                    f"'{name}', but experiment '{existing.name}' is on '{needed}': they would not compare; "
                    "leave it out, or name another experiment",
                    field,
                )
    with named_errors():
        return RunConfig.model_validate({**setting, **given})


def claim_new(
    database: sqlite3.Connection, db: Path, ids: Iterable[int], owner: str, device: str | None
) -> list[Claim]:
    """Claim runs that this transaction inserted into a database, ``db``, for their owner, as attempt 1."""
    claims = [Claim(db, TRAINING, run_id, owner, 1) for run_id in ids]
    for claim in claims:
        database.execute(
            "UPDATE runs SET status='running', attempt=1, owner=?, device=?, heartbeat_at=?, "
            "status_text='waiting for its turn' WHERE id=?",
            [owner, device, time.time(), claim.id],
        )
    return claims


def set_given(
    database: sqlite3.Connection, table: str, ids: Iterable[int], values: Mapping[str, object]
) -> list[bool]:
    """Set the values that are not None, if any, in rows of a table; return which rows exist."""
    given = {name: value for name, value in values.items() if value is not None}
    statement = f"UPDATE {table} SET {', '.join(f'{name}=:{name}' for name in given)} WHERE id=:id"
    return [database.execute(statement, {**given, "id": int(i)}).rowcount > 0 for i in ids if given]


def set_config(database: sqlite3.Connection, run_id: int, config: RunConfig) -> None:
    """Store another config of a run, and its length and group, which follow from the config."""
    database.execute(
        "UPDATE runs SET config=?, group_hash=?, rounds_total=? WHERE id=?",
        [config.model_dump_json(), group_hash(config), config.rounds, run_id],
    )
    write_identity(database, run_id)


def take_current_file(database: sqlite3.Connection, run_id: int, config: RunConfig) -> bool:
    """Write the current checksum of a method's file into a run's config; return whether it changed.

    Raises:
        NotAgreed: if the user has not agreed to run the current file.
    """
    file = config.method.file
    if file is None or not user_path(file, "methods").is_file():  # the run itself reports a missing file
        return False
    now = consent.digest(consent.agreed(file)[1])
    if now == config.method.sha256:
        return False
    method = config.method.model_copy(update={"sha256": now})
    set_config(database, run_id, config.model_copy(update={"method": method}))
    return True


def forget_rounds(database: sqlite3.Connection, run_id: int) -> None:
    """Delete the results of a run, so that it begins again."""
    database.execute(
        "UPDATE runs SET rounds_done=0, environment=NULL, notices='[]', started_at=NULL WHERE id=?", [run_id]
    )
    delete_rounds_after(database, run_id, None)
    database.execute("DELETE FROM tasks WHERE run_id=?", [run_id])  # they analysed these rounds
    update_summary(database, run_id)
    write_identity(database, run_id)


def insert_entities(database: sqlite3.Connection, run_id: int, entities: Iterable[Entity]) -> None:
    """Insert the models and test sets of a run; existing codes are replaced."""
    database.executemany(
        "INSERT OR REPLACE INTO entities(run_id, entity, kind, name, domain, samples, class_counts) "
        "VALUES (?,?,?,?,?,?,?)",
        [
            (
                run_id,
                _plain(e.code),
                e.kind,
                e.name,
                e.domain,
                _plain(e.samples),
                None if e.class_counts is None else json.dumps([int(n) for n in e.class_counts]),
            )
            for e in entities
        ],
    )
    write_identity(database, run_id)


def insert_round(database: sqlite3.Connection, run_id: int, event: RoundFinished) -> None:
    """Insert all rows of a round and compute its mean accuracies."""
    number = int(event.round)
    measures = {name: _plain(getattr(event, name)) for name in MEASURES}
    database.execute(INSERT_ROUND, {"run_id": run_id, "round": number, **measures})
    _insert_many(
        database,
        "client_rounds(run_id, round, client, steps, train_loss, bytes_up, bytes_down)",
        [(run_id, number, c.client, c.steps, c.train_loss, c.bytes_up, c.bytes_down) for c in event.clients],
    )
    _insert_many(
        database,
        f"accuracy(run_id, round, {', '.join(Cell._fields)})",
        [(run_id, number, *cell) for cell in event.cells],
    )
    _insert_many(
        database,
        "diagnostics(run_id, name, round, client_a, client_b, value)",
        [(run_id, d.name, number, d.client_a, d.client_b, d.value) for d in event.diagnostics],
    )
    for split, stage in sorted({(int(c.split), int(c.stage)) for c in event.cells}):
        database.execute(SCORES, {"run": run_id, "split": split, "stage": stage, "round": number})
    write_digests(database, run_id, [number])


def update_summary(database: sqlite3.Connection, run_id: int, written: int | None = None) -> None:
    """Update the summary columns of a run from its scores.

    Args:
        written: the only round that has changed; default: any may have.
    """
    (best,) = database.execute("SELECT best_round FROM runs WHERE id=?", [run_id]).fetchone()
    summary = SUMMARY if written is None or best in (None, written) else SUMMARY_AFTER
    database.execute(
        f"UPDATE runs SET (last_test, worst_client, best_round, best_test) = ({summary}) WHERE id=:run",
        {"run": run_id, "round": written, "best": best},
    )


def delete_rounds_after(database: sqlite3.Connection, run_id: int, last: int | None) -> None:
    """Delete the rounds of a run after ``last``; None deletes all of them, and its entities."""
    for table in (*RUN_TABLES, "digests"):
        if table != "entities":
            database.execute(
                f"DELETE FROM {table} WHERE run_id=? AND round>?", [run_id, -1 if last is None else last]
            )
        elif last is None:
            database.execute("DELETE FROM entities WHERE run_id=?", [run_id])


def _insert_many(database: sqlite3.Connection, table: str, rows: Sequence[Sequence[object]]) -> None:
    if rows:
        places = ", ".join("?" * len(rows[0]))
        database.executemany(
            f"INSERT OR REPLACE INTO {table} VALUES ({places})", [tuple(map(_plain, row)) for row in rows]
        )


def _plain(value: Any) -> Any:
    """Turn a numpy number into Python's, and NaN or infinity into NULL, which charts show as a gap."""
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


NO_TEXT = "status_text=CASE status WHEN 'stopping' THEN status_text END"
"""SQL: clears the status text unless a stop was requested."""


@dataclass(frozen=True)
class RunWriter:
    """Writes the results of a claimed run.

    Raises (all methods that write):
        LostClaim: if this process has lost the run.
    """

    claim: Claim

    @property
    def run_id(self) -> int:
        return self.claim.id

    def notice(self, message: str, repeats_exactly: bool, fitted: Mapping[str, int] | None = None) -> None:
        """Record a notice of the run, once if a resumed run repeats it (see ``Notice``)."""
        item = json.dumps({"message": message, "repeats_exactly": bool(repeats_exactly)})
        with self.claim.writing(
            "notices=CASE WHEN EXISTS(SELECT 1 FROM json_each(notices) WHERE value=json(:item)) "
            "THEN notices ELSE json_insert(notices, '$[#]', json(:item)) END, "
            "environment=CASE WHEN :fitted='{}' THEN environment ELSE json_patch(environment, :fitted) END",
            item=item,
            fitted=json.dumps(dict(fitted or {})),
        ) as database:
            write_identity(database, self.run_id)

    def started(self, event: Started) -> None:
        """Record the run's models and test sets, and its environment."""
        with self.claim.writing(
            f"rounds_total=:total, environment=:environment, {NO_TEXT}, heartbeat_at=:now",
            total=int(event.rounds_total),
            environment=json.dumps(event.environment, default=str),
            now=time.time(),
        ) as database:
            insert_entities(database, self.run_id, event.entities)

    def write_round(
        self,
        event: RoundFinished,
        peak_memory: int | None = None,
        grown: RunConfig | None = None,
        entities: Sequence[Entity] = (),
    ) -> None:
        """Record a round in one transaction, which survives a power failure: older checkpoints may then go.

        Args:
            peak_memory: highest memory of this process so far, in bytes.
            grown: the config of a run that was trained elsewhere and has become longer by this round.
            entities: models and test sets that such a run has named for the first time.
        """
        with self.claim.writing(
            f"rounds_done=max(rounds_done, :round), heartbeat_at=:now, {NO_TEXT}, "
            "peak_memory=coalesce(max(:peak, coalesce(peak_memory, 0)), peak_memory)",
            synced=True,
            round=int(event.round),
            peak=peak_memory,
            now=time.time(),
        ) as database:
            if entities:
                insert_entities(database, self.run_id, entities)
            insert_round(database, self.run_id, event)
            update_summary(database, self.run_id, int(event.round))
            if grown is not None:
                set_config(database, self.run_id, grown)

    def rewind(self, to_round: int | None) -> None:
        """Delete the rounds after ``to_round`` (None: all), because they have no checkpoint."""
        with self.claim.writing("rounds_done=min(rounds_done, :done)", done=to_round or 0) as database:
            delete_rounds_after(database, self.run_id, to_round)
            update_summary(database, self.run_id)
