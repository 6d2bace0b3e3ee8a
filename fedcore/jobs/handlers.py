"""The handlers of jobs: training and each kind of task. A handler yields events and returns JSON values."""

from __future__ import annotations

import io
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedcore.base import devices
from fedcore.base.errors import FedLensError
from fedcore.base.events import Event, Finished, Notice, RoundFinished, Started
from fedcore.base.files import write_whole
from fedcore.base.progress import Progress, Work, prepare_then
from fedcore.config import DataConfig
from fedcore.config.models import KeepCheckpoints
from fedcore.engine.checkpoint import newest_intact, prune
from fedcore.engine.clients.local import Stopped
from fedcore.store import Store
from fedcore.store.jobs import ARRAYS_NAME, TRAINING, Claim
from fedcore.store.runs import RunRow, Runs
from fedcore.store.writer import RunWriter

if TYPE_CHECKING:
    from fedcore.data.images import ImageSet

HANDLERS = {
    TRAINING: "fedcore.jobs.handlers:train",
    "check": "fedcore.jobs.handlers:check",
    "download": "fedcore.jobs.handlers:download",
    "weights": "fedcore.jobs.handlers:weights",
    "analyse": "fedcore.jobs.analysis:analyse",
    "import_file": "fedcore.jobs.handlers:import_file",
    "bundle": "fedcore.share.make:make_bundle",
    "fill": "fedcore.papers.getting:get_and_queue",
}
"""Kind -> ``module:function``, imported only by the job's process, so that pages do not load torch."""


@dataclass(frozen=True)
class Job:
    """A job as its handler sees it.

    Attributes:
        args: JSON values of a task; empty for a run, whose config is its argument.
        folder: used by this job only; it may not exist yet, or contain files of an earlier attempt.
        device: torch's name of the device to use.
        should_stop: returns whether to stop now; call it between steps. What was not yielded by then is lost.
        log: appends a line to the job's log.
    """

    claim: Claim
    args: dict[str, Any]
    folder: Path
    device: str = "cpu"
    should_stop: Callable[[], bool] = lambda: False
    log: Callable[[str], None] = lambda text: None

    @property
    def id(self) -> int:
        return self.claim.id

    @property
    def store(self) -> Store:
        return Store(self.claim.db)

    def write_arrays(self, **arrays: np.ndarray) -> None:
        """Write large results beside the row, for ``TaskRow.arrays`` to read: all of them or none."""
        content = io.BytesIO()
        np.savez_compressed(content, allow_pickle=False, **arrays)
        self.folder.mkdir(parents=True, exist_ok=True)
        write_whole(self.folder / ARRAYS_NAME, content.getvalue())


Handler = Callable[[Job], Generator[Event, None, dict[str, Any]]]
"""Executes a job: yields events (``Progress`` at least) and returns its result, a dict of JSON values."""


def load_handler(kind: str) -> Handler:
    """Import the function that executes jobs of a kind, which may load torch."""
    if kind not in HANDLERS:
        # a task of another version, such as one of 1.0 that encodes ahead
        remedy = "use `fedlens data encode NAME`" if kind == "encode" else "delete the task"
        raise FedLensError(f"this version has no jobs of the kind '{kind}'; {remedy}", "kind")
    module, _, name = HANDLERS[kind].partition(":")
    handler: Handler = getattr(import_module(module), name)
    return handler


def check(job: Job) -> Work[dict[str, Any]]:
    """Check a data set before it is used.

    args: root; name, if the catalog has it; domains; columns.

    Returns: ``name``; ``known``, the data set of the catalog that a user's own data turned out to be, or
    None; and the ``report`` (a ``CheckReport``). The array ``sheet`` shows sample pictures of a data set
    that can be used and has images. Shape: (height, width, 3).
    """
    from fedcore.data import catalog
    from fedcore.data.check import check_dataset, contact_sheet, recognised
    from fedcore.data.readers.loaders import detect_format

    root, domains, columns = (job.args.get(name) for name in ("root", "domains", "columns"))
    name = job.args.get("name") or detect_format(job.args["root"])
    report = yield from check_dataset(name, root, domains, columns)
    if report.error is None:
        yield Progress("drawing samples", report.images, report.images)
        images, _ = catalog.load(name, root, domains, columns=columns)
        if images.given is None:
            job.write_arrays(sheet=np.asarray(contact_sheet(images)))
    known = None if job.args.get("name") or report.error else recognised(report)
    return {"name": name, "known": known, "report": report.model_dump(mode="json")}


def encode_data(
    store: Store,
    data: DataConfig,
    model: tuple[str, str | None, str, str],
    reads: str,
    note: Callable[[str], None],
) -> Work[tuple[ImageSet, Path]]:
    """Encode a data set ahead of its runs; returns its images and the file.

    Args:
        model: name, pretrained, device and precision of the backbone.
        note: called with each remark, for example about images that are left out.
    """
    from fedcore.clip import encodings
    from fedcore.clip.backbone import load_backbones
    from fedcore.clip.specs import backbone_spec
    from fedcore.engine.prepare import read_images

    yield Progress(f"reading {data.name}", 0, 0)
    images, left_out = yield from prepare_then(
        lambda: read_images(data, backbone_spec(*model[:2]).image_size)
    )
    for line in left_out:
        note(line)
    if images.given is not None:
        raise FedLensError(f"{data.root} holds embeddings, which need no encoding; leave it out", "data.name")
    yield Progress(f"loading {model[0]}", 0, 0)
    (backbone,) = load_backbones([model])
    yield Progress(f"encoding {images.name}", 0, len(images))
    path = yield from encodings.encode(backbone, images, reads, store.artifacts / "encodings", note=note)
    return images, path


def download(job: Job) -> Work[dict[str, Any]]:
    """Get a data set. args: name; root of an authors' archive; columns and revision of a Hub repository.

    Returns: the registered ``Copy``.
    """
    from fedcore.data import getting

    offer = getting.ask(job.args["name"], job.args.get("revision"))
    copy = yield from getting.get(offer, job.args.get("root"), job.args.get("columns"))
    return copy.model_dump(mode="json")


def weights(job: Job) -> Work[dict[str, Any]]:
    """Fetch the weights of a backbone. args: name, tag."""
    from fedcore.clip import tags

    file = yield from tags.fetch(job.args["name"], job.args["tag"])
    return {"bytes": file.stat().st_size}


def import_file(job: Job) -> Work[dict[str, Any]]:
    """Record results from a file. args: file, name (as the user knows it); experiment, dataset of a CSV file.

    Returns: ``says``, the outcome in one sentence.
    """
    yield Progress(f"recording {job.args['name']}", 0, 0)
    file, name = Path(job.args["file"]), job.args["name"]
    return {"says": job.store.imports.file(file, job.args["experiment"], job.args["dataset"], name)}


Engine = Callable[..., Iterator[Event]]
"""The engine, with the arguments of ``fedcore.engine.train.train``, which is the real one."""


def load_engine() -> Engine:
    """Import the real engine, and torch with it."""
    from fedcore.engine.train import train

    return train


def train(job: Job, engine: Engine | None = None) -> Generator[Event, None, dict[str, Any]]:
    """Train a run, from its newest intact checkpoint if it has recorded rounds.

    A stop discards the current round. Recorded rounds without a checkpoint, or damaged ones, are a
    ``FedLensError``. The result is empty, since the results of a run are its rounds.
    """
    run = RunWriter(job.claim)
    runs = job.store.runs
    config = runs.config(job.id)
    job.store.integrity.require_rounds(
        job.id, f"run {job.id} does not go on; `fedlens resume {job.id} --restart` trains it again"
    )
    if runs.last_round(job.id) == config.rounds:  # its process died after the last round, before ``finish``
        prune(job.folder, rounds_to_keep(runs.get([job.id])[0], config.keep_checkpoints))
        return {}
    checkpoint, remarks = _find_checkpoint(runs, job.id)
    resuming = f", resuming after round {checkpoint[0]}" if checkpoint else ""
    job.log(f"attempt {job.claim.attempt}{resuming}")
    finished = False
    for event in (engine or load_engine())(
        config,
        artifacts=job.store.artifacts,
        folder=job.folder,
        device=job.device,
        resume_from=str(checkpoint[1]) if checkpoint else None,
        environment=runs.environment(job.id) or runs.fitted(job.id) or None,
        should_stop=job.should_stop,
    ):
        if isinstance(event, Started):
            # Only now has the engine accepted the checkpoint, the config, the data and the weights. If rounds
            # were deleted earlier and it refused one of them, such as another run's checkpoint, they would be
            # lost.
            run.rewind(None if checkpoint is None else checkpoint[0])
            yield from remarks
            if job.device == devices.CPU:
                yield from (Notice(f"trains on the CPU: {refused}") for refused in devices.refused_gpus())
        yield event
        finished = finished or isinstance(event, Finished)
        # `yield` returns once the event is recorded. Only then may older checkpoints be deleted: a process
        # that is killed in between resumes from the newest checkpoint that belongs to a recorded round.
        if isinstance(event, RoundFinished | Finished):
            recorded = runs.get([job.id])[0]
            if config.keep_checkpoints == "best":
                # The best round is that of the checkpoints so far, or the new one. If a damaged score made it
                # another one, that round or the former best, which has a checkpoint, differs from its digest.
                decisive = {recorded.best_round or 0, *(round_ for round_, _ in runs.checkpoints(job.id))}
                job.store.integrity.require_rounds(job.id, "its best round is not known", decisive)
            prune(job.folder, rounds_to_keep(recorded, config.keep_checkpoints, done=finished))
    if not finished:
        if job.should_stop():
            raise Stopped
        raise RuntimeError("the engine ended before its last round")
    return {}


def rounds_to_keep(run: RunRow, keep: KeepCheckpoints, done: bool = True) -> set[int] | None:
    """Return the rounds whose checkpoints a run keeps; None: all of them.

    During training it also keeps the checkpoint before the newest, in case the newest is damaged. Without
    validation samples, ``best`` is the last round.
    """
    if keep == "all":
        return None
    last = run.rounds_done
    best = {last if run.best_round is None else run.best_round}
    if not done:
        return {last - 1, last} | (best if keep == "best" else set())
    return {"best": best, "last": {last}, "none": set[int]()}[keep]


def _find_checkpoint(runs: Runs, run_id: int) -> tuple[tuple[int, Path] | None, list[Notice]]:
    """Find the checkpoint from which a run continues (None: it begins), and the notices to record with it.

    A run with only round 0 begins again, since nothing has been trained. Otherwise recorded rounds are never
    deleted without a checkpoint from which they can be trained again.
    """
    last = runs.last_round(run_id)
    newest, damaged = newest_intact(runs.checkpoints(run_id))
    if last is None:
        return None, []
    why = "; ".join(damaged) or "the checkpoints of its last rounds are gone"
    if newest is None and last == 0:
        return None, [Notice(f"{why}; only round 0 was recorded, so the run begins again")]
    if newest is None:
        raise FedLensError(
            f"the {last} recorded rounds of run {run_id} cannot be continued: {why} "
            f"({runs.folder(run_id)}); put its checkpoints back and resume it, or train it from the "
            f"beginning with `fedlens resume {run_id} --restart`, which deletes the recorded rounds"
        )
    remarks = []
    if newest[0] < last:
        again = f"round {last} is" if newest[0] + 1 == last else f"rounds {newest[0] + 1} to {last} are"
        remarks.append(Notice(f"{why}; the run continues after round {newest[0]}, and {again} trained again"))
    return newest, remarks
