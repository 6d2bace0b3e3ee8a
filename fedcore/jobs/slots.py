"""The lanes of the queue: how many jobs share a device at once, and whether one more fits into its memory."""

from __future__ import annotations

from pathlib import Path

from fedcore.errors import FedLensError
from fedcore.jobs import devices
from fedcore.jobs.devices import Device
from fedcore.store.claims import RUNS, TASKS, Claim, claim, next_queued
from fedcore.store.database import reading, writing
from fedcore.store.liveness import new_owner
from fedcore.store.queue import NEEDED_MEMORY

TASK_LANE, TASK_SLOTS = "tasks", 2
"""The lane of the tasks, beside the devices, so that a check does not wait for hours of training."""
MOST_SLOTS = 16
UNMEASURED_SHARE = 0.5
"""Share of a device's memory that a run is assumed to need before any run of its setting was measured."""


def slots(db: str | Path) -> dict[str, int]:
    """Read the number of runs at once by device, as set; a device that is not named has 1."""
    with reading(db) as connection:
        return {row["device"]: row["slots"] for row in connection.execute("SELECT device, slots FROM slots")}


def set_slots(db: str | Path, device: str, number: int) -> None:
    """Let up to ``number`` runs share a device; a running worker applies it at once.

    Raises:
        FedLensError: field ``slots``, for less than one or too many.
    """
    if not 1 <= number <= MOST_SLOTS:
        raise FedLensError(f"{number} runs at once on {device}; choose 1 to {MOST_SLOTS}", "slots")
    with writing(db) as database:
        database.execute("INSERT OR REPLACE INTO slots(device, slots) VALUES (?, ?)", [device, int(number)])


def claim_for(db: str | Path, lane: str, running: int, first_gpu: str | None) -> Claim | None:
    """Claim the next job that may start on a lane; None when there is none, or no room.

    Args:
        lane: a device, or ``TASK_LANE``.
        running: processes that work there already.
        first_gpu: None on a machine without a GPU, whose CPU then serves runs for any device.
    """
    if lane == TASK_LANE:
        return claim(db, new_owner(), lane, TASKS) if running < TASK_SLOTS else None
    accepts = devices.accepts(lane, first_gpu)
    if running and not _has_room(db, lane, running, accepts):
        return None
    return claim(db, new_owner(), lane, RUNS, accepts=accepts)


def _has_room(db: str | Path, device: str, running: int, accepts: tuple[str, ...]) -> bool:
    """Return whether the next queued run may start beside those that run on a device."""
    if running >= slots(db).get(device, 1):
        return False
    waiting = next_queued(db, accepts)
    facts = next((d for d in devices.list_devices() if d.id == device), None)
    return waiting is not None and facts is not None and fits(db, facts, waiting)


def fits(db: str | Path, device: Device, waiting: int) -> bool:
    """Return whether a queued run fits into a device's memory beside those that run there.

    A run needs what runs of its setting (its config but for the seed) have taken at most; where none was
    measured, half of the device. What running ones need counts until they have recorded a round: from then
    on it shows in the memory that the device reports as used.

    Args:
        waiting: the queued run's id.
    """
    with reading(db) as connection:
        rows = connection.execute(
            f"SELECT r.owner, max(r.rounds_done) AS rounds, max({NEEDED_MEMORY}) AS peak FROM runs r "
            "WHERE r.id=? OR (r.status IN ('running','stopping') AND r.device=?) GROUP BY r.owner",
            [waiting, device.id],
        ).fetchall()
    unmeasured = int(UNMEASURED_SHARE * device.memory_total)
    promised = sum(
        unmeasured if row["peak"] is None else int(row["peak"])
        for row in rows
        if row["owner"] is None or not row["rounds"]  # a queued run has no owner
    )
    return promised <= device.memory_total - device.memory_used
