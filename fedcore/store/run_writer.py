"""Writes the results of a claimed run: its models and test sets, rounds and notices."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedcore.store.jobs import Claim
from fedcore.store.writer import (
    delete_rounds_after,
    insert_entities,
    insert_round,
    set_config,
    update_summary,
)

if TYPE_CHECKING:
    from fedcore.config import RunConfig
    from fedcore.records.events import RoundFinished, Started


NO_TEXT = "status_text=CASE status WHEN 'stopping' THEN status_text END"
"""SQL: clears the status text, unless it says that a stop was requested."""


@dataclass(frozen=True)
class RunWriter:
    """Writes the results of a claimed run.

    Raises (all methods that write):
        LostClaim: when the run was taken from this process.
    """

    claim: Claim

    @property
    def run_id(self) -> int:
        """The run's id."""
        return self.claim.id

    def notice(self, message: str, repeats_exactly: bool) -> None:
        """Record a notice of the run; one that a resumed run repeats is recorded once.

        Args:
            repeats_exactly: False ends the promise that the run repeats bit by bit.
        """
        item = json.dumps({"message": message, "repeats_exactly": bool(repeats_exactly)})
        self.claim.update(
            "notices=CASE WHEN EXISTS(SELECT 1 FROM json_each(notices) WHERE value=json(:item)) "
            "THEN notices ELSE json_insert(notices, '$[#]', json(:item)) END",
            item=item,
        )

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
        self, event: RoundFinished, peak_memory: int | None = None, grown: RunConfig | None = None
    ) -> None:
        """Record a round in one transaction.

        Args:
            peak_memory: bytes that this process used so far.
            grown: the config of a run that was trained elsewhere and has become longer by this round.
        """
        with self.claim.writing(
            f"rounds_done=max(rounds_done, :round), heartbeat_at=:now, {NO_TEXT}, "
            "peak_memory=coalesce(max(:peak, coalesce(peak_memory, 0)), peak_memory)",
            round=int(event.round),
            peak=peak_memory,
            now=time.time(),
        ) as database:
            insert_round(database, self.run_id, event)
            update_summary(database, self.run_id)
            if grown is not None:
                set_config(database, self.run_id, grown)

    def rewind(self, to_round: int | None) -> None:
        """Delete the rounds after ``to_round`` (None: all), because they have no checkpoint."""
        with self.claim.writing("rounds_done=min(rounds_done, :done)", done=to_round or 0) as database:
            delete_rounds_after(database, self.run_id, to_round)
            update_summary(database, self.run_id)
