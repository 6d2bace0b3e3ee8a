"""How many runs share a device at once, and whether one more fits into its memory."""

from __future__ import annotations

from pathlib import Path

from fedcore.errors import FedLensError
from fedcore.jobs.devices import Device
from fedcore.store.database import reading, writing
from fedcore.store.queue import NEEDED_MEMORY

MOST_SLOTS = 16
UNMEASURED_SHARE = 0.5
"""Of a device's memory: what a run is taken to need of which no other of its setting has been measured."""


def slots(db: str | Path) -> dict[str, int]:
    """Runs at once by device, as set; 1 for every device that is not named."""
    with reading(db) as connection:
        return {row["device"]: row["slots"] for row in connection.execute("SELECT device, slots FROM slots")}


def set_slots(db: str | Path, device: str, number: int) -> None:
    """Let up to ``number`` runs share a device; a worker that runs heeds it at once.

    Raises:
        FedLensError: field ``slots``, for less than one or too many.
    """
    if not 1 <= number <= MOST_SLOTS:
        raise FedLensError(f"{number} runs at once on {device}; choose 1 to {MOST_SLOTS}", "slots")
    with writing(db) as database:
        database.execute("INSERT OR REPLACE INTO slots(device, slots) VALUES (?, ?)", [device, int(number)])


def fits(db: str | Path, device: Device, waiting: int) -> bool:
    """Whether a queued run may start beside those that run on a device.

    A run needs what runs of its setting (its config but for the seed) have taken at most; where none was
    measured, half of the device. What running ones need counts until they have recorded a round: from then
    on it shows in the memory that the device says is used.
    """
    with reading(db) as connection:
        rows = connection.execute(
            f"SELECT r.owner, max(r.rounds_done) AS rounds, max({NEEDED_MEMORY}) AS peak FROM runs r "
            "WHERE r.id=? OR (r.status IN ('running','stopping') AND r.device=?) GROUP BY r.owner",
            [waiting, device.id],
        ).fetchall()
    unmeasured = int(UNMEASURED_SHARE * device.memory_total)
    promised = sum(
        unmeasured if row["peak"] is None else row["peak"]
        for row in rows
        if row["owner"] is None or not row["rounds"]  # a queued run has no owner
    )
    return promised <= device.memory_total - device.memory_used
