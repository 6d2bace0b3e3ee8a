"""The making of a bundle as a task, which a page submits and whose file it offers."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedcore.base.progress import Work
from fedcore.jobs.handlers import Job
from fedcore.share.checked import ComparisonChoices, checked_comparison
from fedcore.store import Store, TaskRow


def submit(store: Store, experiments: Sequence[int], choice: ComparisonChoices) -> int:
    """Queue the making of a comparison's bundle, even if it was made before; returns the task's id.

    The bundle is deleted with the first experiment.
    """
    args = {"experiments": list(experiments), "choice": asdict(choice), "runs": _runs(store, experiments)}
    first = min(store.runs.versions_in_experiment(experiments[0]))
    return store.tasks.submit("bundle", _key(experiments, choice), args, first, again=True)


def find(store: Store, experiments: Sequence[int], choice: ComparisonChoices) -> TaskRow | None:
    """Return the task that makes a comparison's bundle, None if it was never submitted."""
    return store.tasks.find("bundle", _key(experiments, choice))


def made_file(store: Store, task: TaskRow) -> Path | None:
    """Return the bundle of a task; None if there is none, or if the runs have changed since."""
    file = _file(task.folder)
    is_current = task.status == "done" and task.args["runs"] == _runs(store, task.args["experiments"])
    return file if is_current and file.is_file() else None


def make_bundle(job: Job) -> Work[dict[str, Any]]:
    """Make a bundle. args: experiments; choice, the fields of ``ComparisonChoices``.

    Returns: its ``digest``, and ``counts_only``, a line for each run without predictions.
    """
    from fedcore.share.make import make

    choice = ComparisonChoices(**job.args["choice"])
    with checked_comparison(job.store, job.args["experiments"], choice) as checked:
        made = yield from make(checked)
    job.folder.mkdir(parents=True, exist_ok=True)
    _file(job.folder).write_bytes(made.content)
    return {"digest": made.manifest.digest, "counts_only": list(made.without_predictions)}


def _key(experiments: Sequence[int], choice: ComparisonChoices) -> str:
    return json.dumps([list(experiments), asdict(choice)])


def _runs(store: Store, experiments: Sequence[int]) -> str:
    """Return a text that changes whenever one of the runs does."""
    return repr([store.runs.versions_in_experiment(i) for i in experiments])


def _file(folder: Path) -> Path:
    return folder / "bundle.zip"
