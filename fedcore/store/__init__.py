"""Runs and their records: ``runs.db`` (SQLite) is the only record of runs and their results."""

from fedcore.store.cells import EntityRow, HeatCell, NamedCell, OwnAccuracy
from fedcore.store.database import Access, default_path
from fedcore.store.diagnostics import DiagnosticMean, DiagnosticRow
from fedcore.store.exchange import Merged
from fedcore.store.experiments import ExperimentRow
from fedcore.store.own_results.recorder import Recorder
from fedcore.store.queue import QueuedRun
from fedcore.store.rounds import (
    AFTER_AGGREGATION,
    BEFORE_AGGREGATION,
    ClientRoundRow,
    MeanAccuracy,
    RoundRow,
)
from fedcore.store.runs import RunRow
from fedcore.store.store import Store
from fedcore.store.tasks import TaskRow
from fedcore.store.writer import Created

__all__ = [
    "AFTER_AGGREGATION",
    "BEFORE_AGGREGATION",
    "Access",
    "ClientRoundRow",
    "Created",
    "DiagnosticMean",
    "DiagnosticRow",
    "EntityRow",
    "ExperimentRow",
    "HeatCell",
    "MeanAccuracy",
    "Merged",
    "NamedCell",
    "OwnAccuracy",
    "QueuedRun",
    "Recorder",
    "RoundRow",
    "RunRow",
    "Store",
    "TaskRow",
    "default_path",
]
