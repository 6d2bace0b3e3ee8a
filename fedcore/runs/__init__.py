"""Runs and their records: ``runs.db`` (SQLite) is the only truth about what was asked for and what came out.

``store`` writes experiments, ``queries`` answers pages and reports, ``lease`` is a claimed run's right to
write, ``worker`` the supervisor that starts processes, ``job`` the process that trains, ``tasks`` the other
work in the background, ``recorder`` and ``importing`` the doors for results made elsewhere. Nothing here
loads torch but those processes.
"""

from fedcore.runs.database import Access, artifacts_folder, default_path, prepare
from fedcore.runs.importing import import_csv, merge
from fedcore.runs.liveness import reconcile
from fedcore.runs.recorder import Recorder
from fedcore.runs.store import (
    Created,
    archive,
    clone,
    create_experiment,
    delete,
    edit,
    prioritise,
    resume,
    retry,
    set_priority,
    stop,
)
from fedcore.runs.transfer import import_file, import_json
from fedcore.runs.worker import ensure_worker, force_stop

__all__ = [
    "Access",
    "Created",
    "Recorder",
    "archive",
    "artifacts_folder",
    "clone",
    "create_experiment",
    "default_path",
    "delete",
    "edit",
    "ensure_worker",
    "force_stop",
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
