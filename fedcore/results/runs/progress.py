"""Progress of runs: rounds done, time left, log, and whether something new was recorded."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fedcore.config.field_names import error_text
from fedcore.progress import duration
from fedcore.store import RunRow, Store

RECENT_ROUNDS = 5
LOG_BYTES = 16_384
MEGABYTE = 1_000_000


@dataclass(frozen=True)
class RunProgress:
    """The progress of a run.

    Attributes:
        share: of the rounds done, 0 to 1.
        seconds_left: None while unknown.
        queue_position: place in the queue, from 1; None if it does not wait.
        seconds_per_round: mean of the last rounds; None before the first.
        megabytes_up, megabytes_down: of all clients so far; None if they were not measured.
    """

    run: RunRow
    share: float
    seconds_left: float | None
    seconds: float | None
    queue_position: int | None
    seconds_per_round: float | None = None
    megabytes_up: float | None = None
    megabytes_down: float | None = None

    @property
    def text(self) -> str:
        """The state in words: place in the queue, time left, time taken, or why the run ended."""
        run = self.run
        if run.state == "queued":
            return f"position {self.queue_position} in the queue" if self.queue_position else "queued"
        if run.state == "running":
            left = f"about {duration(self.seconds_left)} left" if self.seconds_left is not None else ""
            return " · ".join(t for t in (run.status_text or "", left) if t) or "starting"
        if run.state == "done":
            return f"took {duration(self.seconds)}" if self.seconds is not None else ""
        return error_text(run.status_text or "")


def run_progress(store: Store, runs: Sequence[RunRow]) -> list[RunProgress]:
    """Return the progress of some runs; the time left assumes the pace of the last rounds."""
    pace: dict[int, list[float]] = {}
    for row in store.rounds.of_runs([r.id for r in runs if r.state == "running"]):
        parts = (row.seconds_train, row.seconds_aggregate, row.seconds_evaluate)
        if row.round > 0 and any(p is not None for p in parts):
            pace.setdefault(row.run_id, []).append(sum(p or 0.0 for p in parts))
    sent = store.rounds.traffic([r.id for r in runs])
    queued = {run_id: i for i, run_id in enumerate(store.queue.ids(), start=1)}
    now = time.time()
    progress = []
    for run in runs:
        recent = pace.get(run.id, [])[-RECENT_ROUNDS:]
        mean = sum(recent) / len(recent) if recent else None
        up, down = (None if b is None else b / MEGABYTE for b in sent.get(run.id, (None, None)))
        progress.append(
            RunProgress(
                run,
                share=run.rounds_done / run.rounds_total if run.rounds_total else float(run.state == "done"),
                seconds_left=None if mean is None else (run.rounds_total - run.rounds_done) * mean,
                seconds=run.elapsed(now),
                queue_position=queued.get(run.id),
                seconds_per_round=mean,
                megabytes_up=up,
                megabytes_down=down,
            )
        )
    return progress


def log_tail(store: Store, run_id: int, lines: int = 40) -> str:
    """Return the last lines of a run's log; empty if it has written none."""
    path = store.runs.log_path(run_id)
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - LOG_BYTES))
        text = file.read().decode("utf-8", errors="replace")
    return "\n".join(text.splitlines()[-lines:])


Identity = tuple[float, int]
"""Creation time and attempt: another database in the file's place may have a run of the same number."""
Snapshot = tuple[tuple[int, int, Identity], ...]
"""What is shown of some runs: (run, round, identity) each; round -1 where there is none yet."""


def newest_snapshot(store: Store, run_ids: Iterable[int]) -> Snapshot:
    """Return the newest snapshot of some runs, which changes only when a round has been recorded."""
    versions = store.runs.versions(run_ids)
    evaluated = store.rounds.last_evaluated(versions)
    return tuple(
        (
            run_id,
            max(version.rounds_done, evaluated[run_id]) if run_id in evaluated else -1,
            (version.created_at, version.attempt),
        )
        for run_id, version in sorted(versions.items())
    )


def activity_digest(store: Store, experiment_id: int | None = None) -> str:
    """Return a short text that changes with the state, rounds or messages of runs.

    Args:
        experiment_id: the experiment of the runs; default: all runs of the store.
    """
    versions = repr(store.runs.versions_in_experiment(experiment_id))
    return hashlib.blake2b(versions.encode(), digest_size=8).hexdigest()


def next_snapshot(shown: Snapshot, now: Snapshot, draws: Mapping[int, int], early: int) -> Snapshot:
    """Return the next snapshot to draw on the way from ``shown`` to ``now``.

    A very quick run is drawn at least ``early`` times, and not only at its end.

    Args:
        draws: run -> how often it has been drawn with a new round.
        early: number of drawings over which the first rounds of a run are spread.
    """
    snapshot = []
    for (run_id, old, _), (_, new, identity) in zip(shown, now, strict=True):
        left = early - draws.get(run_id, 0)
        step = -(-(new - old) // left) if left > 0 and new > old else new - old
        snapshot.append((run_id, old + step, identity))
    return tuple(snapshot)
