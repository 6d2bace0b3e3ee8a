"""The queue of a store: the order of queued runs, and their moves by a user."""

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, zip_longest
from typing import Literal, NamedTuple

from fedcore.base.errors import FedLensError
from fedcore.store.database import Queries
from fedcore.store.jobs import NEEDS

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

    def move(self, run_ids: Iterable[int], to: Move = "top") -> list[int]:
        """Move queued runs, in their order, before all that are queued later; return those still queued."""
        return self._move("id", set(run_ids), to)

    def move_experiments(self, experiment_ids: Iterable[int], to: Move = "top") -> list[int]:
        """Move all queued runs of some experiments, each experiment as a block; return the moved runs."""
        return self._move("experiment_id", set(experiment_ids), to)

    def _move(self, by: str, wanted: set[int], to: Move) -> list[int]:
        with self._file.writing() as database:
            blocks: dict[int, list[int]] = {}
            for row in database.execute(QUEUE):
                blocks.setdefault(row[by], []).append(row["id"])
            order = list(blocks)
            moved = [block for block in order if block in wanted]
            if not moved:
                return []
            rest = [block for block in order if block not in wanted]
            first, last = order.index(moved[0]), order.index(moved[-1]) - len(moved) + 1
            place = {"top": 0, "up": max(0, first - 1), "down": min(len(rest), last + 1), "bottom": len(rest)}
            after = [*rest[: place[to]], *moved, *rest[place[to] :]]
            runs = [run for block in after for run in blocks[block]]
            for priority, run in enumerate(reversed(runs)):
                database.execute("UPDATE runs SET priority=? WHERE id=?", [priority, run])
        return [run for block in moved for run in blocks[block]]

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
