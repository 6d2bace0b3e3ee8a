"""A claimed run: what its process may write, and nobody else."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedcore.config import RunConfig
from fedcore.store.claims import Claim, LostRun
from fedcore.store.database import reading, resolve, run_folder, writing
from fedcore.store.writer import (
    OwnRound,
    delete_rounds_after,
    insert_entities,
    insert_round,
    update_summary,
)

if TYPE_CHECKING:
    from fedcore.engine.events import RoundFinished, Started

__all__ = ["Lease", "LostRun", "claim", "next_queued"]


def claim(
    db: str | Path,
    owner: str,
    device: str,
    *,
    accepts: tuple[str, ...] = ("auto",),
    experiment_id: int | None = None,
) -> Lease | None:
    """Take the next queued run, highest priority first, then oldest; None when there is none.

    Args:
        device: what the run will use, ``cpu`` or a GPU's UUID; stored.
        accepts: values of ``device_asked`` that this device serves.
        experiment_id: only runs of this experiment, and none while another's have a higher priority.
    """
    places = ",".join("?" * len(accepts))
    waits = f"status='queued' AND device_asked IN ({places})"
    only, extra = "", []
    if experiment_id is not None:
        only = f"AND experiment_id=? AND priority=(SELECT max(priority) FROM runs WHERE {waits})"
        extra = [experiment_id, *accepts]
    with writing(db) as database:
        row = database.execute(
            "UPDATE runs SET status='running', owner=?, attempt=attempt+1, device=?, heartbeat_at=?, "
            "pid=NULL, pid_started=NULL, finished_at=NULL, reason=NULL, error=NULL, message='starting' "
            f"WHERE id=(SELECT id FROM runs WHERE {waits} {only} "
            "ORDER BY priority DESC, id LIMIT 1) AND status='queued' RETURNING id, attempt",
            [owner, device, time.time(), *accepts, *extra],
        ).fetchone()
    return Lease(resolve(db), row["id"], owner, row["attempt"]) if row else None


def next_queued(db: str | Path, accepts: tuple[str, ...]) -> int | None:
    """The run that ``claim`` would take."""
    places = ",".join("?" * len(accepts))
    with reading(db) as connection:
        row = connection.execute(
            f"SELECT id FROM runs WHERE status='queued' AND device_asked IN ({places}) "
            "ORDER BY priority DESC, id LIMIT 1",
            accepts,
        ).fetchone()
    return None if row is None else row["id"]


class Lease(Claim):
    """The right to write to one run (see ``Claim``)."""

    @property
    def run_id(self) -> int:
        """The run."""
        return self.id

    @property
    def folder(self) -> Path:
        """The run's checkpoints and log."""
        return run_folder(self.db, self.run_id)

    def config(self) -> RunConfig:
        """What to train."""
        with reading(self.db) as connection:
            (text,) = connection.execute("SELECT config FROM runs WHERE id=?", [self.run_id]).fetchone()
        return RunConfig.model_validate_json(text)

    def environment(self) -> dict[str, Any] | None:
        """What an earlier attempt ran under (threads, chunk, precision), to be used again; None at first."""
        with reading(self.db) as connection:
            (text,) = connection.execute("SELECT environment FROM runs WHERE id=?", [self.run_id]).fetchone()
        return json.loads(text) if text else None

    def say(self, message: str | None) -> None:
        """What the run is doing at the moment, e.g. ``encoding 300/1800``."""
        self._update("message=:message, heartbeat_at=:now", message=message, now=time.time())

    def notice(self, message: str, repeats_exactly: bool) -> None:
        """Keep a remark with the run, once; ``repeats_exactly`` False ends the promise of equal bits.

        A run that is resumed says again what it said when it began.
        """
        item = json.dumps({"message": message, "repeats_exactly": bool(repeats_exactly)})
        self._update(
            "notices=CASE WHEN EXISTS(SELECT 1 FROM json_each(notices) WHERE value=json(:item)) "
            "THEN notices ELSE json_insert(notices, '$[#]', json(:item)) END",
            item=item,
        )

    def started(self, event: Started) -> None:
        """Record who takes part and what the run runs under."""
        with writing(self.db) as database:
            self._fenced(
                database,
                "rounds_total=:total, environment=:environment, message=NULL, heartbeat_at=:now",
                total=int(event.rounds_total),
                environment=json.dumps(event.environment, default=str),
                now=time.time(),
            )
            insert_entities(database, self.run_id, event.entities)

    def write_round(self, event: RoundFinished | OwnRound, peak_memory: int | None = None) -> None:
        """Record a round, all of it in one transaction. peak_memory: bytes that this process used so far."""
        with writing(self.db) as database:
            self._fenced(
                database,
                "rounds_done=max(rounds_done, :round), heartbeat_at=:now, message=NULL, "
                "peak_memory=coalesce(max(:peak, coalesce(peak_memory, 0)), peak_memory)",
                round=int(event.round),
                peak=peak_memory,
                now=time.time(),
            )
            insert_round(database, self.run_id, event)
            update_summary(database, self.run_id)

    def set_total(self, rounds: int) -> None:
        """How many rounds the run has, where that is known at its end only."""
        self._update("rounds_total=:rounds", rounds=int(rounds))

    def rewind(self, to_round: int | None) -> None:
        """Forget the rounds after ``to_round`` (None: all), because their checkpoint is not there."""
        with writing(self.db) as database:
            self._fenced(database, "rounds_done=min(rounds_done, :done)", done=to_round or 0)
            delete_rounds_after(database, self.run_id, to_round)
            update_summary(database, self.run_id)

    def finish(self, status: str, reason: str | None = None, error: str | None = None) -> None:
        """Give the run back as ``done``, ``failed``, ``stopped`` or ``interrupted``."""
        self._end("status=:status, reason=:reason, error=:error", status=status, reason=reason, error=error)
