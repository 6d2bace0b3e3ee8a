"""The rounds of a store: mean accuracies, loss, seconds, traffic and diagnostics, by run and round."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from fedcore.base.events import AFTER_AGGREGATION, TEST, VALIDATION, RoundMeasures
from fedcore.store.database import ID_LIST, Queries, as_json
from fedcore.store.schema import columns


class MeanAccuracy(NamedTuple):
    """Mean accuracies of one round (see ``writer.SCORES``), 0 to 1; None if a method has no such model."""

    run_id: int
    round: int
    personal_mean: float | None
    personal_weighted: float | None
    personal_worst: float | None
    global_mean: float | None
    classes_mean: float | None


@dataclass(frozen=True, kw_only=True)
class RoundRow(RoundMeasures):
    """Loss, seconds and traffic of one round."""

    run_id: int
    round: int


class ClientRoundRow(NamedTuple):
    """A participant in a round."""

    round: int
    client: int
    steps: int
    train_loss: float | None
    bytes_up: int | None
    bytes_down: int | None


class Rounds(Queries):
    """The rounds of a store (``Store.rounds``)."""

    def of_runs(self, run_ids: Iterable[int]) -> list[RoundRow]:
        """Return loss, seconds and traffic of some runs, by run, then round."""
        rows = self._file.rows(
            f"SELECT {', '.join(columns('rounds'))} FROM rounds WHERE run_id IN {ID_LIST} "
            "ORDER BY run_id, round",
            {"ids": as_json(run_ids)},
        )
        return [RoundRow(**dict(row)) for row in rows]

    def traffic(self, run_ids: Iterable[int]) -> dict[int, tuple[int | None, int | None]]:
        """Return the bytes sent and received so far by all clients of a run; None if not measured.

        A sum is None if a round but number 0 was not measured, or a script left it out, as in ``row_costs``.
        """
        rows = self._file.rows(
            f"""
            SELECT run_id,
              iif(max(round) = sum(round > 0 AND bytes_up IS NOT NULL), sum(bytes_up), NULL) AS up,
              iif(max(round) = sum(round > 0 AND bytes_down IS NOT NULL), sum(bytes_down), NULL) AS down
            FROM rounds WHERE run_id IN {ID_LIST} GROUP BY run_id
            """,
            {"ids": as_json(run_ids)},
        )
        return {row["run_id"]: (row["up"], row["down"]) for row in rows}

    def seconds(self, run_ids: Iterable[int]) -> dict[int, float]:
        """Return the seconds of training, aggregation and evaluation in all rounds of each run."""
        rows = self._file.rows(
            f"""
            SELECT run_id, total(seconds_train) + total(seconds_aggregate) + total(seconds_evaluate)
            FROM rounds WHERE run_id IN {ID_LIST} GROUP BY run_id
            """,
            {"ids": as_json(run_ids)},
        )
        return dict(map(tuple, rows))

    def clients(self, run_id: int) -> list[ClientRoundRow]:
        """Return the participants with steps, loss and traffic, by round, then client."""
        rows = self._file.rows(
            """
            SELECT round, client, steps, train_loss, bytes_up, bytes_down FROM client_rounds
            WHERE run_id=:run ORDER BY round, client
            """,
            {"run": run_id},
        )
        return [ClientRoundRow(*row) for row in rows]

    def evaluated(self, run_id: int, split: int = TEST, stage: int = AFTER_AGGREGATION) -> list[int]:
        """Return the rounds that have an accuracy matrix."""
        return self.evaluated_of_runs([run_id], split, stage).get(run_id, [])

    def evaluated_of_runs(
        self, run_ids: Iterable[int], split: int = TEST, stage: int = AFTER_AGGREGATION
    ) -> dict[int, list[int]]:
        """Return the rounds with an accuracy matrix by run, in order; runs without one are left out."""
        rows = self._file.rows(
            f"""
            SELECT run_id, round FROM scores
            WHERE run_id IN {ID_LIST} AND split=:split AND stage=:stage ORDER BY run_id, round
            """,
            {"ids": as_json(run_ids), "split": split, "stage": stage},
        )
        rounds: dict[int, list[int]] = {}
        for run_id, round_ in rows:
            rounds.setdefault(run_id, []).append(round_)
        return rounds

    def mean_accuracy(
        self, run_ids: Iterable[int], split: int = TEST, stage: int = AFTER_AGGREGATION
    ) -> list[MeanAccuracy]:
        """Return the mean accuracies of some runs, by run, then round."""
        rows = self._file.rows(
            f"""
            SELECT run_id, round, personal_mean, personal_weighted, personal_worst, global_mean, classes_mean
            FROM scores
            WHERE run_id IN {ID_LIST} AND split=:split AND stage=:stage ORDER BY run_id, round
            """,
            {"ids": as_json(run_ids), "split": split, "stage": stage},
        )
        return [MeanAccuracy(*row) for row in rows]

    def personal_curves(self, run_ids: Iterable[int]) -> dict[int, list[float]]:
        """Return the clients' mean test accuracy by round, 0 to 1; runs without one are left out."""
        rows = self._file.rows(
            f"""
            SELECT run_id, personal_mean FROM scores
            WHERE run_id IN {ID_LIST} AND split=:split AND stage=:stage AND personal_mean IS NOT NULL
            ORDER BY run_id, round
            """,
            {"ids": as_json(run_ids), "split": TEST, "stage": AFTER_AGGREGATION},
        )
        curves: dict[int, list[float]] = {}
        for run_id, mean in rows:
            curves.setdefault(run_id, []).append(mean)
        return curves

    def validated(self, run_ids: Iterable[int]) -> dict[int, float]:
        """Return the clients' mean validation accuracy at the best round; runs without one are left out."""
        rows = self._file.rows(
            f"""
            SELECT r.id, s.personal_mean FROM runs r
            JOIN scores s ON s.run_id=r.id AND s.split=:split AND s.stage=:stage AND s.round=r.best_round
            WHERE r.id IN {ID_LIST} AND s.personal_mean IS NOT NULL
            """,
            {"ids": as_json(run_ids), "split": VALIDATION, "stage": AFTER_AGGREGATION},
        )
        return dict(map(tuple, rows))


@dataclass(frozen=True)
class DiagnosticMean:
    """One diagnostic of one round over its clients; ``count`` is 1 for a diagnostic of the whole round."""

    run_id: int
    round: int
    mean: float
    low: float
    high: float
    count: int


class DiagnosticRow(NamedTuple):
    """One value of one round; the clients are entity codes, or -1 for a value without client or pair."""

    round: int
    client_a: int
    client_b: int
    value: float | None


class Diagnostics(Queries):
    """The diagnostics of a store (``Store.diagnostics``)."""

    def names(self, run_id: int, matrices: bool = True) -> list[str]:
        """Return the names of a run's diagnostics; ``matrices`` includes those of pairs of clients."""
        # The recursion jumps from name to name in the primary key instead of scanning all rows; the first row
        # of a name tells whether it belongs to pairs of clients.
        rows = self._file.rows(
            """
            WITH RECURSIVE found(name) AS (
              SELECT min(name) FROM diagnostics WHERE run_id=:run
              UNION ALL
              SELECT (SELECT min(d.name) FROM diagnostics d WHERE d.run_id=:run AND d.name>found.name)
              FROM found WHERE found.name IS NOT NULL)
            SELECT name,
              (SELECT d.client_b FROM diagnostics d WHERE d.run_id=:run AND d.name=found.name LIMIT 1)
                AS client_b
            FROM found WHERE name IS NOT NULL
            """,
            {"run": run_id},
        )
        return [row["name"] for row in rows if matrices or row["client_b"] == -1]

    def means(self, run_ids: Iterable[int], name: str) -> list[DiagnosticMean]:
        """Return mean, minimum and maximum over clients of one diagnostic, by run, then round."""
        rows = self._file.rows(
            f"""
            SELECT run_id, round, avg(value) AS mean, min(value) AS low, max(value) AS high,
              count(value) AS count
            FROM diagnostics WHERE run_id IN {ID_LIST} AND name=:name AND value IS NOT NULL
            GROUP BY run_id, round ORDER BY run_id, round
            """,
            {"ids": as_json(run_ids), "name": name},
        )
        return [DiagnosticMean(*row) for row in rows]

    def of_run(self, run_id: int, name: str) -> list[DiagnosticRow]:
        """Return one diagnostic of a run over all rounds."""
        rows = self._file.rows(
            """
            SELECT round, client_a, client_b, value FROM diagnostics WHERE run_id=:run AND name=:name
            ORDER BY round, client_a, client_b
            """,
            {"run": run_id, "name": name},
        )
        return [DiagnosticRow(*row) for row in rows]

    def at_round(self, run_id: int, name: str, round_: int) -> list[DiagnosticRow]:
        """Return the values of one diagnostic in the last round up to ``round_`` that recorded it."""
        rows = self._file.rows(
            """
            SELECT round, client_a, client_b, value FROM diagnostics
            WHERE run_id=:run AND name=:name AND round=(
              SELECT max(round) FROM diagnostics WHERE run_id=:run AND name=:name AND round<=:round)
            ORDER BY client_a, client_b
            """,
            {"run": run_id, "name": name, "round": round_},
        )
        return [DiagnosticRow(*row) for row in rows]
