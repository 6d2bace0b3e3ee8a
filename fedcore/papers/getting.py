"""The task behind *Get and queue*: get what some experiments read, then queue their runs.

An experiment cannot be planned before its images are here, so its runs are not queued until then. What is to
be queued stands in the task's row, and so outlasts the page, the browser and the server.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any

from fedcore.base.progress import Progress, Work, prepare_then
from fedcore.clip import tags
from fedcore.config import parse
from fedcore.data import copies, getting
from fedcore.engine.plan import plan
from fedcore.jobs.handlers import Job
from fedcore.papers.cells import Filling


def task_arguments(fillings: Iterable[Filling]) -> dict[str, Any]:
    """Return the arguments of the task that gets what some experiments lack and queues their missing runs."""
    every = list(fillings)
    lacks = dict.fromkeys(lack for filling in every for lack in filling.lacks)
    return {
        "data": [lack.name for lack in lacks if lack.kind == "data"],
        "weights": [lack.name.split() for lack in lacks if lack.kind == "weights"],
        "fillings": [[f.experiment.model_dump(mode="json"), sorted(f.wanted, key=repr)] for f in every],
    }


def get_and_queue(job: Job) -> Work[dict[str, Any]]:
    """Get data sets and weights, then queue the runs of all experiments, or none if one cannot be planned.

    args: as ``task_arguments`` returns them.

    Returns: the number of queued ``runs``.
    """
    for name in job.args["data"]:
        if copies.registered(name) is None:
            yield Progress(f"asking for {name}", 0, 0)
            yield from getting.get(getting.ask(name))
    for model, tag in job.args["weights"]:
        yield from tags.fetch(model, tag)
    plans = []
    for content, wanted in job.args["fillings"]:
        filling = Filling(parse(content), frozenset(map(tuple, wanted)), ())
        yield Progress(f"planning {filling.experiment.name}", 0, 0)
        made = yield from prepare_then(partial(plan, filling.experiment))
        plans.append((filling.experiment, filling.reduced(made).runs))
    for experiment, runs in plans:
        job.store.experiments.create(experiment, runs)
    return {"runs": sum(len(runs) for _, runs in plans)}
