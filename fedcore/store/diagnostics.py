"""The diagnostics of a store: values that a method records beside accuracy, per client or pair of clients."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from fedcore.store.database import ID_LIST, DatabaseFile, as_json


@dataclass(frozen=True)
class DiagnosticMean:
    """One diagnostic of one round over the clients that have it; ``count`` is 1 for one without an index."""

    run_id: int
    round: int
    mean: float
    low: float
    high: float
    count: int


class DiagnosticRow(NamedTuple):
    """One value of one round; the clients are entity codes, -1 where it belongs to no client or no pair."""

    round: int
    client_a: int
    client_b: int
    value: float | None


class Diagnostics:
    """The diagnostics of a store (``Store.diagnostics``)."""

    def __init__(self, file: DatabaseFile) -> None:
        self._file = file

    def names(self, run_id: int, matrices: bool = True) -> list[str]:
        """Return the names of a run's diagnostics, those of pairs of clients only with ``matrices``."""
        # a name's first row says whether it is a matrix; the names are looked up one by one, not by a scan
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
        """Return one diagnostic as last recorded up to a round; empty if it was not recorded."""
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
