"""Reading ``runs.db``: every question that a page, a report or the command line asks. Pages hold no SQL.

Each call opens a read-only connection for itself (0.1 ms). None scans the accuracy table; a test reads the
query plans of all ``statements``.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fedcore.config import Experiment, RunConfig
from fedcore.errors import FedLensError
from fedcore.store.database import reading
from fedcore.store.lease import run_folder
from fedcore.store.liveness import state
from fedcore.store.rows import (
    ClientRoundRow,
    CurvePoint,
    DiagnosticMean,
    DiagnosticRow,
    EntityRow,
    ExperimentRow,
    HeatCell,
    NamedCell,
    OwnAccuracy,
    RoundRow,
    RunRow,
    WaitingRow,
)
from fedcore.store.statements import STATEMENTS

TRAIN, VALIDATION, TEST = 0, 1, 2
LOCAL, BROADCAST = 0, 1
LOG_NAME = "log.txt"
LARGEST = 2**63 - 1  # number that SQLite takes; links hold anything


def experiments(db: str | Path, archived: bool = False) -> list[ExperimentRow]:
    """All experiments with their runs, newest first; archived ones only if asked for."""
    with reading(db) as connection:
        rows = connection.execute(STATEMENTS["experiments"], {"archived": int(archived)}).fetchall()
        runs_ = _runs(connection.execute(STATEMENTS["all_runs"]))
    grouped: dict[int, list[RunRow]] = {}
    for run in runs_:
        grouped.setdefault(run.experiment_id, []).append(run)
    return [_experiment(row, grouped.get(row["id"], [])) for row in rows]


def experiment(db: str | Path, experiment_id: int) -> ExperimentRow:
    """One experiment.

    Raises:
        FedLensError: when there is none with this id.
    """
    with reading(db) as connection:
        asked = {"id": min(experiment_id, LARGEST)}
        row = connection.execute(STATEMENTS["experiment"], asked).fetchone()
        if row is None:
            raise FedLensError(f"no experiment {experiment_id}; `fedlens list` shows them")
        return _experiment(row, _runs(connection.execute(STATEMENTS["runs_of"], _ids([experiment_id]))))


def runs_of(db: str | Path, experiment_ids: Iterable[int]) -> list[RunRow]:
    """The runs of some experiments, in order of id."""
    return _runs(_all(db, "runs_of", _ids(experiment_ids)))


def runs(db: str | Path, run_ids: Iterable[int]) -> list[RunRow]:
    """Some runs, in order of id; ids that do not exist are left out."""
    return _runs(_all(db, "runs", _ids(run_ids)))


def newest_run(db: str | Path) -> int:
    """The highest number of a run, 0 where there is none."""
    (row,) = _all(db, "runs_after", {"id": 0})
    return row["newest"] or 0


def runs_after(db: str | Path, run_id: int) -> int:
    """How many runs were recorded since a run was the newest; of all experiments, archived ones too."""
    (row,) = _all(db, "runs_after", {"id": run_id})
    return row["number"]


def run_config(db: str | Path, run_id: int) -> RunConfig:
    """The stored config that repeats a run."""
    return RunConfig.model_validate_json(_run_text(db, run_id)["config"])


def configs(db: str | Path, run_ids: Iterable[int]) -> dict[int, RunConfig]:
    """The stored configs of some runs, by run."""
    return {r["id"]: RunConfig.model_validate_json(r["config"]) for r in _all(db, "configs", _ids(run_ids))}


def environment(db: str | Path, run_id: int) -> dict[str, Any]:
    """What a run ran under: versions, device, threads, chunk; empty before it started."""
    return json.loads(_run_text(db, run_id)["environment"] or "{}")


def newest_checkpoint(db: str | Path, run_id: int) -> tuple[int, Path] | None:
    """Round and file of a run's newest checkpoint whose round is in the database; None: there is none.

    A crash may leave a checkpoint that is one round ahead of the database; its round is then trained again.
    """
    with reading(db) as connection:  # not rounds_done: its 0 is "round 0" and "nothing yet" alike
        (done,) = connection.execute("SELECT max(round) FROM rounds WHERE run_id=?", [run_id]).fetchone()
    if done is None:
        return None
    found = [
        (int(path.stem.removeprefix("round-")), path)
        for path in run_folder(db, run_id).glob("round-*.safetensors")
        if path.stem.removeprefix("round-").isdigit()
    ]
    return max((item for item in found if item[0] <= done), default=None)


def error_text(db: str | Path, run_id: int) -> str | None:
    """The traceback of a failed run."""
    return _run_text(db, run_id)["error"]


def log_path(db: str | Path, run_id: int) -> Path:
    """The run's log file; it may not exist yet."""
    return run_folder(db, run_id) / LOG_NAME


def round_tokens(db: str | Path, run_ids: Iterable[int]) -> dict[int, tuple[str, int, int, str | None]]:
    """What changes when there is something new to draw: {run: (status, rounds done, attempt, message)}."""
    return {
        r["id"]: (r["status"], r["rounds_done"], r["attempt"], r["message"])
        for r in _all(db, "tokens", _ids(run_ids))
    }


def pulse(db: str | Path, experiment_id: int) -> list[tuple[int, str, int, int, str | None]]:
    """What changes with news of an experiment, by run: (run, status, rounds done, attempt, message)."""
    return [tuple(r) for r in _all(db, "pulse", {"id": experiment_id})]


def queue(db: str | Path) -> list[int]:
    """Queued runs in the order in which they will start."""
    return [r["id"] for r in _all(db, "queue", {})]


def waiting(db: str | Path) -> list[WaitingRow]:
    """Queued runs in the order in which they will start, with what a reader needs to move them."""
    return [WaitingRow(*r) for r in _all(db, "waiting", {})]


def entities(db: str | Path, run_id: int) -> list[EntityRow]:
    """Models and test sets of a run in order of their codes: global, clients, domains, class sets."""
    rows = _all(db, "entities", {"run": run_id})
    return [
        EntityRow(*r[:5], tuple(json.loads(r["class_counts"])) if r["class_counts"] else None) for r in rows
    ]


def evaluated_rounds(db: str | Path, run_id: int, split: int = TEST, point: int = BROADCAST) -> list[int]:
    """Rounds that have an accuracy matrix."""
    return [r["round"] for r in _all(db, "evaluated", {"run": run_id, "split": split, "point": point})]


def last_evaluated(
    db: str | Path, run_ids: Iterable[int], split: int = TEST, point: int = BROADCAST
) -> dict[int, int]:
    """The newest round with an accuracy matrix, by run; runs without one are left out."""
    rows = _all(db, "last_evaluated", {**_ids(run_ids), "split": split, "point": point})
    return {r["run_id"]: r["round"] for r in rows}


def heatmap(
    db: str | Path, run_id: int, round_: int | None = None, split: int = TEST, point: int = BROADCAST
) -> list[HeatCell]:
    """The accuracy matrix of a round; default: the last evaluated one. Empty where there is none."""
    where = {"run": run_id, "split": split, "point": point}
    with reading(db) as connection:
        if round_ is None:
            found = connection.execute(STATEMENTS["evaluated"], where).fetchall()
            if not found:
                return []
            round_ = found[-1]["round"]
        return [HeatCell(*r) for r in connection.execute(STATEMENTS["heatmap"], {**where, "round": round_})]


def curves(
    db: str | Path, run_ids: Iterable[int], split: int = TEST, point: int = BROADCAST
) -> list[CurvePoint]:
    """Means per round of some runs, by run, then round."""
    return [CurvePoint(*r) for r in _all(db, "curves", {**_ids(run_ids), "split": split, "point": point})]


def own_accuracy(db: str | Path, run_id: int, split: int = TEST, point: int = BROADCAST) -> list[OwnAccuracy]:
    """Every client's own model on its own samples, by round, then client: the client x round heatmap."""
    return [
        OwnAccuracy(*r) for r in _all(db, "own_accuracy", {"run": run_id, "split": split, "point": point})
    ]


def rounds(db: str | Path, run_ids: Iterable[int]) -> list[RoundRow]:
    """Loss, seconds and traffic, by run, then round."""
    return [RoundRow(*r) for r in _all(db, "rounds", _ids(run_ids))]


def traffic(db: str | Path, run_ids: Iterable[int]) -> dict[int, tuple[int | None, int | None]]:
    """Bytes that all clients of a run have sent and received so far; None where it was not measured."""
    return {r["run_id"]: (r["up"], r["down"]) for r in _all(db, "traffic", _ids(run_ids))}


def client_rounds(db: str | Path, run_id: int) -> list[ClientRoundRow]:
    """Who took part, with steps, loss and traffic, by round, then client."""
    return [ClientRoundRow(*r) for r in _all(db, "client_rounds", {"run": run_id})]


def diagnostic_names(db: str | Path, run_id: int, matrices: bool = True) -> list[str]:
    """Names of the figures that a run recorded; those of pairs of clients only with ``matrices``."""
    return [r["name"] for r in _all(db, "diagnostic_names", {"run": run_id}) if matrices or r["b"] == -1]


def diagnostic_means(db: str | Path, run_ids: Iterable[int], name: str) -> list[DiagnosticMean]:
    """One figure per round, mean and reach over clients, by run, then round."""
    return [DiagnosticMean(*r) for r in _all(db, "diagnostic_means", {**_ids(run_ids), "name": name})]


def diagnostics(db: str | Path, run_id: int, name: str) -> list[DiagnosticRow]:
    """One figure over all rounds."""
    return [DiagnosticRow(*r) for r in _all(db, "diagnostics", {"run": run_id, "name": name})]


def diagnostics_at(db: str | Path, run_id: int, name: str, round_: int) -> list[DiagnosticRow]:
    """One figure as it was last recorded up to a round; empty where it was not."""
    return [
        DiagnosticRow(*r) for r in _all(db, "diagnostics_at", {"run": run_id, "name": name, "round": round_})
    ]


def cells(
    db: str | Path, run_ids: Iterable[int], split: int = TEST, point: int = BROADCAST
) -> list[NamedCell]:
    """All cells of some runs with names, every round: the long export."""
    return [NamedCell(*r) for r in _all(db, "cells", {**_ids(run_ids), "split": split, "point": point})]


def cells_at(
    db: str | Path, rounds_by_run: dict[int, int], split: int = TEST, point: int = BROADCAST
) -> list[NamedCell]:
    """The cells of one chosen round per run, with names: a comparison's tables and heatmaps."""
    pairs = json.dumps([[int(run), int(round_)] for run, round_ in rounds_by_run.items()])
    return [NamedCell(*r) for r in _all(db, "cells_at", {"pairs": pairs, "split": split, "point": point})]


def peak_memory(db: str | Path, latest: int = 200) -> dict[int, int]:
    """Bytes that runs took at most, of the newest runs that were measured."""
    return {r["id"]: r["peak_memory"] for r in _all(db, "peak_memory", {"latest": latest})}


def measured(
    db: str | Path, rounds_by_run: dict[int, Iterable[int]], split: int = TEST, point: int = BROADCAST
) -> list[NamedCell]:
    """Own models on their own samples and the global model on the domains' test sets, in chosen rounds."""
    pairs = json.dumps([[int(run), int(r)] for run, rounds_ in rounds_by_run.items() for r in rounds_])
    return [NamedCell(*r) for r in _all(db, "measured", {"pairs": pairs, "split": split, "point": point})]


def _all(db: str | Path, name: str, values: dict[str, Any]) -> list[sqlite3.Row]:
    with reading(db) as connection:
        return connection.execute(STATEMENTS[name], values).fetchall()


def _ids(ids: Iterable[int]) -> dict[str, str]:
    return {"ids": json.dumps([int(i) for i in ids])}


def _run_text(db: str | Path, run_id: int) -> sqlite3.Row:
    found = _all(db, "run_text", {"id": run_id})
    if not found:
        raise FedLensError(f"no run {run_id}; `fedlens list` shows them")
    return found[0]


def _runs(rows: Iterable[sqlite3.Row]) -> list[RunRow]:
    now, found = time.time(), []
    for row in rows:
        values = dict(row)
        values["state"] = state(values, now)
        values["notices"] = tuple(json.loads(values["notices"]))
        found.append(RunRow(**{name: values[name] for name in RunRow.__dataclass_fields__}))
    return found


def _experiment(row: sqlite3.Row, its_runs: Sequence[RunRow]) -> ExperimentRow:
    return ExperimentRow(
        id=row["id"],
        token=row["token"],
        name=row["name"],
        created_at=row["created_at"],
        config=Experiment.model_validate_json(row["config"]),
        notes=row["notes"],
        tags=tuple(json.loads(row["tags"])),
        archived=bool(row["archived"]),
        runs=tuple(its_runs),
    )
