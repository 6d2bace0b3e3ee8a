"""Runs and their records: ``runs.db`` (SQLite) is the only record of runs and their results."""

from fedcore.store.cells import EntityRow, NamedCell
from fedcore.store.database import Access
from fedcore.store.experiments import ExperimentRow
from fedcore.store.recorder import Recorder
from fedcore.store.rounds import DiagnosticMean, MeanAccuracy, RoundRow
from fedcore.store.runs import RunRow
from fedcore.store.store import Store
from fedcore.store.tasks import TaskRow
from fedcore.store.writer import Created
