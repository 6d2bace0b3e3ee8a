"""What a store has recorded of rounds: measures, mean accuracies, accuracy cells and diagnostics."""

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

import numpy as np

from fedcore.base.errors import FedLensError
from fedcore.base.events import AFTER_AGGREGATION, MAX_EVALUATED_CLIENTS, MEASURES, TEST, VALIDATION
from fedcore.store.damage import DIAGNOSTIC_NAMES
from fedcore.store.database import ID_LIST, Queries, as_json

RoundsByRun = Mapping[int, Iterable[int]]


class MeanAccuracy(NamedTuple):
    """Mean accuracies of one round (see ``writer.SCORES``), 0 to 1; None if a method has no such model."""

    run_id: int
    round: int
    personal_mean: float | None
    personal_weighted: float | None
    personal_worst: float | None
    global_mean: float | None
    classes_mean: float | None


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

    def totals(self, run_ids: Iterable[int], *names: str) -> dict[int, tuple[float | None, ...]]:
        """Return the sums of some measures over the rounds of each run, as floats, which do not overflow.

        A sum is None if a round but number 0 was not measured, or a script left it out.
        """
        sums = (f"iif(max(round) = sum(round > 0 AND {n} IS NOT NULL), sum({n} + 0.0), NULL)" for n in names)
        rows = self._file.rows(
            f"SELECT run_id, {', '.join(sums)} FROM rounds WHERE run_id IN {ID_LIST} GROUP BY run_id",
            {"ids": as_json(run_ids)},
        )
        return {run_id: tuple(found) for run_id, *found in rows}

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
        return _lists(self._scores("run_id, round", run_ids, split, stage))

    def mean_accuracy(
        self, run_ids: Iterable[int], split: int = TEST, stage: int = AFTER_AGGREGATION
    ) -> list[MeanAccuracy]:
        """Return the mean accuracies of some runs, by run, then round."""
        return [
            MeanAccuracy(*row) for row in self._scores(", ".join(MeanAccuracy._fields), run_ids, split, stage)
        ]

    def mean_accuracy_at(self, rounds_by_run: RoundsByRun) -> list[MeanAccuracy]:
        """Return the mean test accuracies of some rounds of each run, by run, then round."""
        columns = ", ".join(f"a.{name}" for name in MeanAccuracy._fields)
        rows = self._file.rows(
            f"SELECT {columns} FROM {AT_ROUNDS.format(table='scores')}",
            {"pairs": _pairs(rounds_by_run), "split": TEST, "stage": AFTER_AGGREGATION},
        )
        return [MeanAccuracy(*row) for row in rows]

    def last_evaluated(self, run_ids: Iterable[int], back: int = 0) -> dict[int, list[int]]:
        """Return those of ``evaluated_of_runs`` that are at most ``back`` rounds before the last of them."""
        rows = self._file.rows(
            """
            SELECT s.run_id, s.round FROM json_each(:ids) i
            CROSS JOIN scores s ON s.run_id=i.value AND s.split=:split AND s.stage=:stage
              AND s.round >= -:back + (SELECT max(l.round) FROM scores l
                WHERE l.run_id=i.value AND l.split=:split AND l.stage=:stage)
            ORDER BY s.run_id, s.round
            """,
            {"ids": as_json(run_ids), "split": TEST, "stage": AFTER_AGGREGATION, "back": back},
        )
        return _lists(rows)

    def scores(
        self, run_ids: Iterable[int], column: str, split: int = TEST, stage: int = AFTER_AGGREGATION
    ) -> dict[int, dict[int, float]]:
        """Return a mean accuracy of ``MeanAccuracy`` by run and round, 0 to 1, where it is known."""
        values: dict[int, dict[int, float]] = {}
        for run_id, round_, value in self._scores(f"run_id, round, {column}", run_ids, split, stage):
            if value is not None:
                values.setdefault(run_id, {})[round_] = value
        return values

    def measured(self, run_ids: Iterable[int], *names: str) -> list[sqlite3.Row]:
        """Return run, round and some measures (default: all) of some runs, by run, then round."""
        columns = ", ".join(("run_id", "round", *(names or MEASURES)))
        return self._file.rows(
            f"SELECT {columns} FROM rounds WHERE run_id IN {ID_LIST} ORDER BY run_id, round",
            {"ids": as_json(run_ids)},
        )

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

    def _scores(self, columns: str, run_ids: Iterable[int], split: int, stage: int) -> list[sqlite3.Row]:
        return self._file.rows(
            f"SELECT {columns} FROM scores WHERE run_id IN {ID_LIST} AND split=:split AND stage=:stage "
            "ORDER BY run_id, round",
            {"ids": as_json(run_ids), "split": split, "stage": stage},
        )


def _lists(rows: Iterable[Sequence[Any]]) -> dict[int, list[Any]]:
    """Return the second values of rows, in lists by the first."""
    lists: dict[int, list[Any]] = {}
    for run_id, value in rows:
        lists.setdefault(run_id, []).append(value)
    return lists


NAMED_CELL = """
a.run_id, a.split, a.stage, a.round, m.name AS model, m.kind AS model_kind, t.name AS test_set,
t.kind AS test_set_kind, t.domain, a.correct, a.total, a.loss, iif(t.kind='domain', t.samples, NULL) AS size
"""

# CROSS JOIN keeps the order of the tables: 0.7 ms instead of 65 with the planner's choice at a million rows
NAMES = """
CROSS JOIN entities m ON m.run_id=a.run_id AND m.entity=a.model
CROSS JOIN entities t ON t.run_id=a.run_id AND t.entity=a.test_set
"""

AT_ROUNDS = """
json_each(:pairs) p
CROSS JOIN {table} a ON a.run_id=json_extract(p.value, '$[0]') AND a.split=:split AND a.stage=:stage
  AND a.round=json_extract(p.value, '$[1]')
"""
"""The rows of a table that belong to (run, round) pairs; ``pairs`` is a JSON list."""
IN_ORDER = "ORDER BY a.run_id, a.round, a.model, a.test_set"
OF_MODELS = """
WITH RECURSIVE models(run_id, round, model) AS (
  SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), -1 FROM json_each(:pairs)
  UNION ALL
  SELECT run_id, round, (SELECT min(a.model) FROM accuracy a WHERE a.run_id=models.run_id
    AND a.split=:split AND a.stage=:stage AND a.round=models.round AND a.model>models.model)
  FROM models WHERE model IS NOT NULL)
"""
"""The evaluated models of (run, round) pairs.

Each is found by a step in the primary key, for a federation of 200 clients has 200 cells of each model.
"""
LAST_CODE = 2**63 - 1
_AT_ONCE = 2_000
"""Cells that a long export holds at once."""


class EntityRow(NamedTuple):
    """A model or test set: global model (0), clients, domains, class sets."""

    entity: int
    kind: str
    name: str
    domain: str | None
    samples: int | None


class OwnAccuracy(NamedTuple):
    """The accuracy of one client's own model on its own samples in one round."""

    round: int
    client: int
    correct: int
    total: int
    loss: float | None


CODED = np.dtype([(name, np.int64) for name in ("run_id", "model", "test_set", "correct", "total")])
"""The record of a cell with entity codes."""
RecordedCell = tuple[int, int, int, int, int, int, float | None]
"""Run, round, codes of model and test set, correct, total and loss of a cell."""


class NamedCell(NamedTuple):
    """An accuracy cell with names, for tables and exports.

    Attributes:
        size: samples of a domain's whole test set, if recorded; ``total`` is less where it was sampled.
    """

    run_id: int
    split: int
    stage: int
    round: int
    model: str
    model_kind: str
    test_set: str
    test_set_kind: str
    domain: str | None
    correct: int
    total: int
    loss: float | None
    size: int | None = None


AnyCell = TypeVar("AnyCell", OwnAccuracy, NamedCell)


class Cells(Queries):
    """The accuracy cells of a store (``Store.cells``)."""

    def entities(self, run_id: int, evaluated: Iterable[int] | None = None) -> list[EntityRow]:
        """Return models and test sets of a run by code: global model, clients, domains, class sets.

        Args:
            evaluated: codes; of a run with more than ``MAX_EVALUATED_CLIENTS`` clients, only these.
        """
        rows = self._file.rows(
            f"""
            SELECT entity, kind, name, domain, samples FROM entities WHERE run_id=:run
            AND (:ids IS NULL OR entity IN {ID_LIST}
              OR NOT EXISTS (SELECT 1 FROM entities WHERE run_id=:run AND kind='client' LIMIT 1 OFFSET :most))
            ORDER BY entity
            """,
            {
                "run": run_id,
                "ids": None if evaluated is None else as_json(evaluated),
                "most": MAX_EVALUATED_CLIENTS,
            },
        )
        return list(map(EntityRow._make, rows))

    def kinds(self, run_ids: Iterable[int]) -> dict[int, dict[tuple[str, str | None], int]]:
        """Return how many models and test sets of each kind and domain each run has."""
        rows = self._file.rows(
            f"""
            SELECT run_id, kind, domain, count(*) FROM entities WHERE run_id IN {ID_LIST}
            GROUP BY run_id, kind, domain
            """,
            {"ids": as_json(run_ids)},
        )
        kinds: dict[int, dict[tuple[str, str | None], int]] = {}
        for run_id, kind, domain, count in rows:
            kinds.setdefault(run_id, {})[kind, domain] = count
        return kinds

    def class_counts(self, run_id: int) -> dict[int, tuple[int, ...]]:
        """Return the training samples by class of each client of a run by its code."""
        rows = self._file.rows(
            "SELECT entity, class_counts FROM entities WHERE run_id=:run AND class_counts IS NOT NULL "
            "ORDER BY entity",
            {"run": run_id},
        )
        return {row["entity"]: tuple(json.loads(row["class_counts"])) for row in rows}

    def own_accuracy(
        self, run_id: int, split: int = TEST, stage: int = AFTER_AGGREGATION, participants: bool = False
    ) -> list[OwnAccuracy]:
        """Return the accuracy of every client's own model on its own samples, by round, then client.

        Args:
            participants: leave out the clients that took no part in a round, if its participants are known.
        """
        rows = self._file.rows(
            """
            SELECT round, model AS client, correct, total, loss FROM accuracy a
            WHERE run_id=:run AND split=:split AND stage=:stage AND model=test_set AND (:all
              OR EXISTS (SELECT 1 FROM client_rounds WHERE run_id=:run AND round=a.round AND client=a.model)
              OR NOT EXISTS (SELECT 1 FROM client_rounds WHERE run_id=:run AND round=a.round))
            ORDER BY round, model
            """,
            {"run": run_id, "split": split, "stage": stage, "all": not participants},
        )
        return _with_samples([OwnAccuracy(*row) for row in rows])

    def of_runs(
        self, run_ids: Iterable[int], split: int = TEST, stage: int = AFTER_AGGREGATION
    ) -> Iterator[list[RecordedCell]]:
        """Yield all cells of some runs in every round, in parts: the long export."""
        with self._file.reading() as connection:
            cursor = connection.cursor()
            cursor.row_factory = None  # tuples
            rows = cursor.execute(
                f"""
                SELECT a.run_id, a.round, a.model, a.test_set, a.correct, a.total, a.loss FROM runs r
                CROSS JOIN accuracy a ON a.run_id=r.id AND a.split=:split AND a.stage=:stage
                WHERE r.id IN {ID_LIST} {IN_ORDER}
                """,
                {"ids": as_json(run_ids), "split": split, "stage": stage},
            )
            while part := rows.fetchmany(_AT_ONCE):
                yield part

    def at_rounds(
        self, rounds_by_run: RoundsByRun, split: int = TEST, stage: int = AFTER_AGGREGATION
    ) -> list[NamedCell]:
        """Return the cells of some rounds of each run, with names: heatmaps by domain."""
        cells = f"SELECT {NAMED_CELL} FROM {AT_ROUNDS.format(table='accuracy')} {NAMES}"
        return self._named(cells, rounds_by_run, split, stage)

    def coded(
        self, rounds_by_run: RoundsByRun, split: int = TEST, stage: int = AFTER_AGGREGATION
    ) -> np.recarray:
        """Return the cells of some rounds of each run, by run, round, model and test set.

        Shape: (cells,), records of ``CODED``.
        """
        # One text per column, in the order of SQLite's loops: seven times as fast as a tuple per cell, and as
        # the pairs are sorted, the cells are too.
        columns = ", ".join(f"group_concat(a.{name})" for name in CODED.names or ())
        (texts,) = self._file.rows(
            f"SELECT {columns} FROM {AT_ROUNDS.format(table='accuracy')}",
            {"pairs": _pairs(rounds_by_run), "split": split, "stage": stage},
        )
        values = [np.fromstring(text or "", np.int64, sep=",") for text in texts]
        _require_samples(int(values[-1].min(initial=1)))
        return np.rec.fromarrays(values, dtype=CODED)

    def own_and_global(
        self, rounds_by_run: RoundsByRun, split: int = TEST, stage: int = AFTER_AGGREGATION
    ) -> list[NamedCell]:
        """Return the cells of own models on own samples and of the global model on every test set."""
        cells = f"""
        {OF_MODELS}
        SELECT {NAMED_CELL} FROM models o
        CROSS JOIN accuracy a ON a.run_id=o.run_id AND a.split=:split AND a.stage=:stage
          AND a.round=o.round AND a.model=o.model
          AND a.test_set BETWEEN o.model AND iif(o.model=0, :last, o.model)
        {NAMES}
        """
        return self._named(cells, rounds_by_run, split, stage, last=LAST_CODE)

    def on_kinds(
        self,
        rounds_by_run: RoundsByRun,
        kinds: Sequence[str],
        split: int = TEST,
        stage: int = AFTER_AGGREGATION,
    ) -> list[NamedCell]:
        """Return the cells of all models on test sets of some kinds, such as ``base`` and ``new``."""
        cells = f"""
        SELECT {NAMED_CELL} FROM json_each(:pairs) p
        CROSS JOIN entities t ON t.run_id=json_extract(p.value, '$[0]')
          AND t.kind IN (SELECT value FROM json_each(:kinds))
        CROSS JOIN accuracy a ON a.run_id=t.run_id AND a.split=:split AND a.stage=:stage
          AND a.round=json_extract(p.value, '$[1]') AND a.test_set=t.entity
        CROSS JOIN entities m ON m.run_id=a.run_id AND m.entity=a.model
        """
        return self._named(cells, rounds_by_run, split, stage, kinds=json.dumps(list(kinds)))

    def _named(
        self, cells: str, rounds_by_run: RoundsByRun, split: int, stage: int, **values: object
    ) -> list[NamedCell]:
        values |= {"pairs": _pairs(rounds_by_run), "split": split, "stage": stage}
        return _with_samples([NamedCell(*row) for row in self._file.rows(f"{cells} {IN_ORDER}", values)])


def _pairs(rounds_by_run: RoundsByRun) -> str:
    """Return (run, round) pairs as the parameter of ``AT_ROUNDS``."""
    pairs = ((run, int(round_)) for run, rounds in rounds_by_run.items() for round_ in rounds)
    return json.dumps(sorted(pairs))


def _with_samples(cells: list[AnyCell]) -> list[AnyCell]:
    """Refuse cells without samples, which the schema forbids: they have no accuracy."""
    _require_samples(min(map(attrgetter("total"), cells), default=1))
    return cells


def _require_samples(least: int) -> None:
    if least < 1:
        raise FedLensError("a recorded accuracy has no samples; `fedlens doctor` says what is damaged", "db")


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
        # the first row of a name tells whether it belongs to pairs of clients
        rows = self._file.rows(
            f"""
            {DIAGNOSTIC_NAMES} SELECT name,
              (SELECT d.client_b FROM diagnostics d WHERE d.run_id=:run AND d.name=names.name LIMIT 1)
                AS client_b
            FROM names WHERE name IS NOT NULL
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
