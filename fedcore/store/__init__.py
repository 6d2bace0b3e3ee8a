"""Runs and their records: ``runs.db`` (SQLite) is the only record of runs and their results.

The ``Store`` has all queries of it, so that pages and the command line contain no SQL.
"""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path

from fedcore.store.damage import Integrity
from fedcore.store.database import DatabaseFile, artifacts_folder, one_connection, resolve
from fedcore.store.experiments import ExperimentRow, Experiments, SavedViews, Searches
from fedcore.store.imports import Imports
from fedcore.store.jobs import Jobs
from fedcore.store.preparing import prepare
from fedcore.store.recorder import Recorder
from fedcore.store.rounds import (
    Cells,
    DiagnosticMean,
    Diagnostics,
    EntityRow,
    MeanAccuracy,
    NamedCell,
    Rounds,
)
from fedcore.store.runs import Queue, RunRow, Runs
from fedcore.store.tasks import TaskRow, Tasks
from fedcore.store.writer import Created


class Store:
    """The runs and results in one database file, by subject: ``store.runs.get([1])``.

    A store is cheap to create and holds no connection. No query scans the accuracy table; a test reads all
    query plans.

    Args:
        path: the database; default: FEDLENS_DB, or ``runs.db``.
    """

    def __init__(self, path: str | Path | DatabaseFile | None = None) -> None:
        file = path if isinstance(path, DatabaseFile) else DatabaseFile(resolve(path))
        self.path = file.path
        self._file = file
        self.experiments = Experiments(file)
        self.runs = Runs(file)
        self.searches = Searches(file)
        self.queue = Queue(file)
        self.jobs = Jobs(file)
        self.tasks = Tasks(file)
        self.rounds = Rounds(file)
        self.cells = Cells(file)
        self.diagnostics = Diagnostics(file)
        self.imports = Imports(file)
        self.saved_views = SavedViews(file)
        self.integrity = Integrity(file)

    @contextmanager
    def checked(
        self, experiment_ids: Iterable[int], consequence: str = "nothing is exported"
    ) -> Iterator["Store"]:
        """Check some experiments and yield a snapshot of the store, for numbers that are exported or decide.

        All its reads see one snapshot, so that they agree with each other and with the check while a run is
        recording, or deletes rounds to resume.

        Args:
            consequence: what does not happen if they are damaged, for the error.
        """
        ids = frozenset(experiment_ids)
        with self._file.reading() as connection:
            connection.execute("BEGIN")
            snapshot = replace(self._file, snapshot=connection)
            Integrity(snapshot).require(ids, consequence)
            yield Store(replace(snapshot, checked=ids))

    def one_connection(self) -> AbstractContextManager[None]:
        """Let all reads of this thread share one connection (see ``database.one_connection``)."""
        return one_connection(self.path)

    @property
    def artifacts(self) -> Path:
        """The folder of checkpoints, logs and encodings, beside the database."""
        return artifacts_folder(self.path)

    def prepare(self) -> str:
        """Create the database if there is none; call it once before any read (see ``preparing.prepare``)."""
        return prepare(self.path)

    def __repr__(self) -> str:
        """Return a text by which the caches of pages tell databases apart."""
        return f"Store({str(self.path)!r})"
