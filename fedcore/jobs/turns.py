"""The runs of one process in turn: each trains for some rounds, then rests while the others do.

So all heatmaps of an experiment grow at the same time on one device. Every random draw has a name, so a run
has the same numbers as alone. The row of a resting run says so (``Claim.rest``), and its clock stands still.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Generator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from fedcore.base import devices
from fedcore.base.errors import DiskFull, FedLensError, check_room
from fedcore.base.events import Event, RoundFinished, Started
from fedcore.jobs.job import LOOK_SECONDS, PAUSE_SECONDS, Heartbeat, steps
from fedcore.jobs.launcher import next_fits
from fedcore.jobs.supervisor import SupervisorLock
from fedcore.store import Store
from fedcore.store.jobs import Claim, LostClaim

SLICE_SECONDS = 0.5
"""A turn ends after a round, once it has lasted this much longer than the others'."""
MOST = 16
"""Runs that train in turn: with more of them, of a sweep say, the first result would come late."""
RETRY_LOOK_SECONDS = 1.0
"""Between two looks at a run that pauses before it is tried again."""
logger = logging.getLogger(__name__)


@dataclass(eq=False)
class RunInTurn:
    """A job of this process that has not ended.

    Attributes:
        seconds: that it has trained, without its setup; a run that joins begins with the least of the others.
        rounds: of the run; None until it has started.
        not_before: the time until which it pauses.
        mark: bytes in use when its turn began, or its rounds if that was later.
        held: bytes that it keeps while it rests, beside what all runs share.
    """

    claim: Claim
    steps: Generator[Event | None, bool | None, str]
    seconds: float
    rests: bool = False
    rounds: int | None = None
    not_before: float = 0.0
    mark: int = 0
    held: int = 0


class Turns:
    """The jobs of this process.

    Args:
        options: of ``job.steps``.
    """

    def __init__(self, heartbeat: Heartbeat, device: str, **options: Any) -> None:
        self._heartbeat, self._device, self._options = heartbeat, device, options
        self._turns: list[RunInTurn] = []
        self._current: RunInTurn | None = None
        self._next_look = 0.0
        self.largest = 0
        """The highest peak memory of a run so far, in bytes."""

    def __len__(self) -> int:
        return len(self._turns)

    def add(self, claim: Claim) -> None:
        """Let a claimed job take the next turn."""
        work = steps(
            claim, self._heartbeat, device=self._device, memory=self._memory_of_current, **self._options
        )
        self._turns.insert(0, RunInTurn(claim, work, min((t.seconds for t in self._turns), default=0.0)))

    def step(self) -> str | None:
        """Give a turn to the job that has trained least; return how it ended, None if it has not."""
        now = time.monotonic()
        turn = min(self._turns, key=lambda t: (t.not_before > now, t.seconds))
        if turn is not self._current:
            self._switch_to(turn)
        until = min((t.seconds for t in self._turns if t is not turn), default=turn.seconds) + SLICE_SECONDS
        while True:
            begun = time.monotonic()
            try:
                event = turn.steps.send(turn.rests or None)
            except StopIteration as end:
                logger.info("%s %d: %s", turn.claim.table.name, turn.claim.id, end.value)
                self._turns.remove(turn)
                self._current = None
                return str(end.value)
            turn.rests = False
            if isinstance(event, Started):
                turn.rounds, turn.held = event.rounds_total, 0
                turn.mark = devices.used_memory(self._device)
            elif turn.rounds is not None:
                turn.seconds += time.monotonic() - begun
            self._obey_stops()
            if event is None:
                time.sleep(PAUSE_SECONDS)
                turn.not_before = time.monotonic() + RETRY_LOOK_SECONDS
                return None
            if isinstance(event, RoundFinished) and event.round != turn.rounds:
                is_over = event.round == 0 or turn.seconds >= until
                if is_over:
                    return None

    def leave(self) -> None:
        """Queue the resting runs again, so that another process continues them."""
        for turn in [t for t in self._turns if t is not self._current]:
            with suppress(FedLensError):  # then the row is marked when this process has ended
                turn.claim.leave()
            self._turns.remove(turn)
            turn.steps.close()

    def _switch_to(self, turn: RunInTurn) -> None:
        """Let the current job rest and the other one continue."""
        devices.reset_peak_memory(self._device)
        used = devices.used_memory(self._device)
        if (resting := self._current) is not None:
            resting.held = max(0, resting.held + used - resting.mark)
            with suppress(LostClaim, FedLensError):  # it meets the same at its next turn
                resting.claim.rest()
            self._heartbeat.add([resting.claim])
            resting.rests = True
        self._current, turn.mark = turn, used

    def _memory_of_current(self) -> int:
        others = sum(turn.held for turn in self._turns if turn is not self._current)
        peak = devices.peak_memory(self._device) - others
        self.largest = max(self.largest, peak)
        return peak

    def _obey_stops(self) -> None:
        """End the resting runs that are asked to stop, or were taken from this process."""
        if time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + LOOK_SECONDS
        for turn in [t for t in self._turns if t.rests]:
            with suppress(FedLensError):  # of a locked database: there is a next look
                if turn.claim.status() != "running":
                    turn.claim.leave()
                    self._turns.remove(turn)
                    turn.steps.close()


class Following:
    """The queued runs of an experiment that its process claims after or beside the first.

    Args:
        first: the claim of the first run.
    """

    def __init__(self, store: Store, first: Claim, device: str) -> None:
        self._store, self._owner, self._device = store, first.owner, device
        (run,) = store.runs.get([first.id])
        self._experiment = store.experiments.get(run.experiment_id)
        gpu = next((d.id for d in devices.list_devices() if d.id != devices.CPU), None)
        self._accepts = devices.accepts(device, gpu)

    def others_wait(self) -> bool:
        """Return whether runs of another experiment, or another supervisor with its devices, go first."""
        awaited = SupervisorLock(self._store.path).is_awaited()
        return awaited or self._store.jobs.is_overtaken(self._owner, self._accepts)

    def claim(self, turns: Turns) -> Claim | None:
        """Claim the next run, if it fits into the memory beside those that have their turns.

        It stays queued on a full disk, which the supervisor reports.
        """
        is_full = len(turns) >= MOST or (turns and self._experiment.config.order != "in turn")
        if is_full or (turns and not next_fits(self._store, self._device, self._accepts, turns.largest)):
            return None
        try:
            check_room(self._store.path)
        except DiskFull:
            return None
        return self._store.jobs.claim(
            self._owner, self._device, accepts=self._accepts, experiment_id=self._experiment.id
        )
