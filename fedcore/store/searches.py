"""The searches of a store: draws with their validation accuracies, and what follows when they have ended.

Of a draw's accuracies only those on validation samples are read. Everything that follows a search is queued
in one transaction that first makes sure that nobody else has done so, hence exactly once.
"""

import sqlite3
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from fedcore.base.errors import reading_stored
from fedcore.base.events import AFTER_AGGREGATION, VALIDATION
from fedcore.config import Experiment, RunConfig
from fedcore.config.tuning import method_label
from fedcore.store.database import Queries
from fedcore.store.jobs import Claim
from fedcore.store.runs import TRAINED_HERE
from fedcore.store.writer import Created, claim_new, insert_experiment, insert_runs

Claimer = tuple[str, str]
"""The process that trains what follows a search itself, by its owner, and its device."""
Followed = tuple[Created, list[Claim]]
"""The runs that follow a search, and the claims on them if a process trains them itself."""


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
            label, validation = method_label(row["label"]), row["validation"]
            validation = validation if row["status"] == "done" else None
            found.setdefault(label, []).append(
                Draw(
                    row["id"],
                    label,
                    config.method.draw or 0,
                    row["status"],
                    config,
                    validation,
                    row["rounds_done"],
                    row["bytes"],
                    row["seconds"],
                )
            )
        return {label: sorted(draws, key=lambda draw: draw.number) for label, draws in found.items()}

    def add_draws(
        self, experiment_id: int, made: int, configs: Sequence[RunConfig], claimer: Claimer | None = None
    ) -> Followed | None:
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
    ) -> Followed | None:
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
    ) -> Followed:
        """Queue runs with the device and the highest priority of the search's draws, or claim them."""
        device, priority = database.execute(
            "SELECT requested_device, max(priority) FROM runs WHERE experiment_id=?", [search]
        ).fetchone()
        ids = insert_runs(database, experiment_id, configs, device=device, priority=priority)
        claims = claim_new(database, self._file.path, ids, *claimer) if claimer else []
        return Created(experiment_id, ids), claims
