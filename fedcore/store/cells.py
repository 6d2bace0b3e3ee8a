"""The accuracy cells of a store: one per model and test set, at each evaluated round."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple, TypeVar

import numpy as np

from fedcore.base.errors import FedLensError
from fedcore.base.events import AFTER_AGGREGATION, MAX_EVALUATED_CLIENTS, TEST
from fedcore.store.database import ID_LIST, Queries, as_json

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
CROSS JOIN accuracy a ON a.run_id=json_extract(p.value, '$[0]') AND a.split=:split AND a.stage=:stage
  AND a.round=json_extract(p.value, '$[1]')
"""
"""The cells of (run, round) pairs; ``pairs`` is a JSON list."""
IN_ORDER = "ORDER BY a.run_id, a.round, a.model, a.test_set"
OF_MODELS = """
WITH RECURSIVE models(run_id, round, model) AS (
  {rounds}
  UNION ALL
  SELECT run_id, round, (SELECT min(a.model) FROM accuracy a WHERE a.run_id=models.run_id
    AND a.split=:split AND a.stage=:stage AND a.round=models.round AND a.model>models.model)
  FROM models WHERE model IS NOT NULL)
"""
"""The evaluated models of some rounds, given as rows (run, round, -1).

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

    def own_accuracy(self, run_id: int) -> list[OwnAccuracy]:
        """Return the accuracy of every client's own model on its own test samples, by round, then client."""
        rows = self._file.rows(
            """
            SELECT round, model AS client, correct, total, loss FROM accuracy
            WHERE run_id=:run AND split=:split AND stage=:stage AND model=test_set ORDER BY round, model
            """,
            {"run": run_id, "split": TEST, "stage": AFTER_AGGREGATION},
        )
        return _with_samples([OwnAccuracy(*row) for row in rows])

    def own_of_participants(
        self, run_id: int, split: int = TEST, stage: int = AFTER_AGGREGATION
    ) -> list[OwnAccuracy]:
        """Return those of ``own_accuracy`` whose client took part in the round, without a scan of all cells.

        Of a round for which no participants were recorded, such as round 0, all are returned.
        """
        rounds = """
        SELECT run_id, round, -1 FROM scores WHERE run_id=:run AND split=:split AND stage=:stage
        AND round NOT IN (SELECT round FROM client_rounds WHERE run_id=:run)
        """
        cell = "a.split=:split AND a.stage=:stage"
        rows = self._file.rows(
            f"""
            {OF_MODELS.format(rounds=rounds)}
            SELECT a.round, a.model, a.correct, a.total, a.loss FROM client_rounds c
            CROSS JOIN accuracy a ON a.run_id=c.run_id AND {cell} AND a.round=c.round AND a.model=c.client
              AND a.test_set=c.client
            WHERE c.run_id=:run
            UNION ALL
            SELECT a.round, a.model, a.correct, a.total, a.loss FROM models o
            CROSS JOIN accuracy a ON a.run_id=o.run_id AND {cell} AND a.round=o.round AND a.model=o.model
              AND a.test_set=o.model
            ORDER BY 1, 2
            """,
            {"run": run_id, "split": split, "stage": stage},
        )
        return _with_samples([OwnAccuracy(*row) for row in rows])

    def of_runs(
        self, run_ids: Iterable[int], split: int = TEST, stage: int = AFTER_AGGREGATION
    ) -> Iterator[NamedCell]:
        """Yield all cells of some runs in every round, with names, reading a part at a time."""
        with self._file.reading() as connection:
            rows = connection.execute(
                f"""
                SELECT {NAMED_CELL} FROM runs r
                CROSS JOIN accuracy a ON a.run_id=r.id AND a.split=:split AND a.stage=:stage {NAMES}
                WHERE r.id IN {ID_LIST} {IN_ORDER}
                """,
                {"ids": as_json(run_ids), "split": split, "stage": stage},
            )
            while part := rows.fetchmany(_AT_ONCE):
                yield from _with_samples(list(map(NamedCell._make, part)))

    def coded_of_runs(
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
        self, rounds_by_run: Mapping[int, Iterable[int]], split: int = TEST, stage: int = AFTER_AGGREGATION
    ) -> list[NamedCell]:
        """Return the cells of some rounds of each run, with names: heatmaps by domain."""
        rows = self._file.rows(
            f"SELECT {NAMED_CELL} FROM {AT_ROUNDS} {NAMES} {IN_ORDER}",
            {"pairs": _pairs(rounds_by_run), "split": split, "stage": stage},
        )
        return _with_samples([NamedCell(*row) for row in rows])

    def coded(
        self, rounds_by_run: Mapping[int, Iterable[int]], split: int = TEST, stage: int = AFTER_AGGREGATION
    ) -> np.recarray:
        """Return the cells of some rounds of each run, by run, round, model and test set.

        Shape: (cells,), records of ``CODED``.
        """
        # One text per column, in the order of SQLite's loops: seven times as fast as a tuple per cell, and as
        # the pairs are sorted, the cells are too.
        columns = ", ".join(f"group_concat(a.{name})" for name in CODED.names or ())
        (texts,) = self._file.rows(
            f"SELECT {columns} FROM {AT_ROUNDS}",
            {"pairs": _pairs(rounds_by_run), "split": split, "stage": stage},
        )
        values = [np.fromstring(text or "", np.int64, sep=",") for text in texts]
        _require_samples(int(values[-1].min(initial=1)))
        return np.rec.fromarrays(values, dtype=CODED)

    def own_and_global(
        self, rounds_by_run: Mapping[int, Iterable[int]], split: int = TEST, stage: int = AFTER_AGGREGATION
    ) -> list[NamedCell]:
        """Return the cells of own models on own samples and of the global model on every test set."""
        rounds = "SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), -1 FROM json_each(:pairs)"
        rows = self._file.rows(
            f"""
            {OF_MODELS.format(rounds=rounds)}
            SELECT {NAMED_CELL} FROM models o
            CROSS JOIN accuracy a ON a.run_id=o.run_id AND a.split=:split AND a.stage=:stage
              AND a.round=o.round AND a.model=o.model
              AND a.test_set BETWEEN o.model AND iif(o.model=0, :last, o.model)
            {NAMES} {IN_ORDER}
            """,
            {"pairs": _pairs(rounds_by_run), "split": split, "stage": stage, "last": LAST_CODE},
        )
        return _with_samples([NamedCell(*row) for row in rows])

    def on_kinds(
        self,
        rounds_by_run: Mapping[int, Iterable[int]],
        kinds: Sequence[str],
        split: int = TEST,
        stage: int = AFTER_AGGREGATION,
    ) -> list[NamedCell]:
        """Return the cells of all models on test sets of some kinds, such as ``base`` and ``new``."""
        rows = self._file.rows(
            f"""
            SELECT {NAMED_CELL} FROM json_each(:pairs) p
            CROSS JOIN entities t ON t.run_id=json_extract(p.value, '$[0]')
              AND t.kind IN (SELECT value FROM json_each(:kinds))
            CROSS JOIN accuracy a ON a.run_id=t.run_id AND a.split=:split AND a.stage=:stage
              AND a.round=json_extract(p.value, '$[1]') AND a.test_set=t.entity
            CROSS JOIN entities m ON m.run_id=a.run_id AND m.entity=a.model
            {IN_ORDER}
            """,
            {
                "pairs": _pairs(rounds_by_run),
                "kinds": json.dumps(list(kinds)),
                "split": split,
                "stage": stage,
            },
        )
        return _with_samples([NamedCell(*row) for row in rows])


def _pairs(rounds_by_run: Mapping[int, Iterable[int]]) -> str:
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
