"""Runs and their records: ``runs.db`` (SQLite) is the only truth about runs and their results."""

from fedcore.store.database import Access, artifacts_folder, default_path, prepare
from fedcore.store.exchange import import_file, import_json
from fedcore.store.experiments import (
    Created,
    archive,
    clone,
    create_claimed,
    create_experiment,
    delete,
    edit,
    prioritise,
    resume,
    retry,
    set_priority,
    stop,
)
from fedcore.store.importing import import_csv, merge
from fedcore.store.liveness import reconcile
from fedcore.store.recorder import Recorder

__all__ = [
    "Access",
    "Created",
    "Recorder",
    "archive",
    "artifacts_folder",
    "clone",
    "create_claimed",
    "create_experiment",
    "default_path",
    "delete",
    "edit",
    "import_csv",
    "import_file",
    "import_json",
    "merge",
    "prepare",
    "prioritise",
    "reconcile",
    "resume",
    "retry",
    "set_priority",
    "stop",
]
