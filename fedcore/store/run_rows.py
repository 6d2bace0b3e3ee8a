"""One run as a row of the database, read into types."""

import sqlite3
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from fedcore.errors import check_types, reading_stored
from fedcore.records.events import Notice
from fedcore.store.liveness import state

_NOTICES = TypeAdapter(tuple[Notice, ...])
_TAGS = TypeAdapter(list[Any])

RUN_COLUMNS = """
r.id, r.experiment_id, r.method, r.label, r.seed, r.held_out, r.group_hash, r.origin, r.status, r.device,
r.attempt, r.owner, r.pid, r.heartbeat_at, r.created_at, r.started_at, r.finished_at,
r.rounds_total, r.rounds_done, r.last_test, r.best_round, r.best_test, r.worst_client, r.status_text,
r.notices, r.starred, r.tags, r.notes
"""


@dataclass(frozen=True)
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


def run_row(db: Path, row: sqlite3.Row, now: float | None = None) -> RunRow:
    """Turn a row with RUN_COLUMNS into ``RunRow``, with the state that its process is in now."""
    values = dict(row)
    with reading_stored(f"run {values['id']}"):
        values["state"] = state(db, values, now)
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
        check_types(RunRow, values)
        return RunRow(**{name: values[name] for name in RunRow.__dataclass_fields__})
