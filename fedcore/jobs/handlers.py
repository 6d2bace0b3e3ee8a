"""The handlers of jobs: each calls one other module, yields its events, and returns JSON values."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from fedcore.errors import FedLensError
from fedcore.progress import Progress, Work
from fedcore.store import Store
from fedcore.store.jobs import TRAINING, Claim
from fedcore.store.tasks import ARRAYS_NAME

if TYPE_CHECKING:
    from fedcore.records.events import Event

HANDLERS = {
    TRAINING: "fedcore.jobs.training:train",
    "check": "fedcore.jobs.handlers:check",
    "encode": "fedcore.jobs.handlers:encode",
    "download": "fedcore.jobs.handlers:download",
    "weights": "fedcore.jobs.handlers:weights",
    "analyse": "fedcore.jobs.analysis:analyse",
    "import_file": "fedcore.jobs.handlers:import_file",
    "bundle": "fedcore.bundles.task:make_bundle",
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
        self.folder.mkdir(parents=True, exist_ok=True)
        part = self.folder / f"{ARRAYS_NAME}.part-{os.getpid()}"
        try:
            with part.open("wb") as file:
                np.savez_compressed(file, allow_pickle=False, **arrays)
            part.replace(self.folder / ARRAYS_NAME)
        finally:
            part.unlink(missing_ok=True)


class Handler(Protocol):
    """Executes a job: yields events (``Progress`` at least) and returns its result, a dict of JSON values."""

    def __call__(self, job: Job) -> Generator[Event, None, dict[str, Any]]: ...


def load_handler(kind: str) -> Handler:
    """Import the function that executes jobs of a kind, which may load torch."""
    if kind not in HANDLERS:
        raise FedLensError(f"unknown kind of job '{kind}'; choose one of {', '.join(HANDLERS)}", "kind")
    module, _, name = HANDLERS[kind].partition(":")
    handler: Handler = getattr(import_module(module), name)
    return handler


def check(job: Job) -> Work[dict[str, Any]]:
    """Check a data set before it is used.

    args: root; name, if the catalog has it; domains; columns.

    Returns: ``name`` and the ``report`` (a ``CheckReport``). The array ``sheet`` shows sample pictures
    of a data set that can be used. Shape: (height, width, 3).
    """
    from fedcore.data import catalog
    from fedcore.data.check import check_dataset, contact_sheet
    from fedcore.data.readers.loaders import detect_format

    root, domains, columns = (job.args.get(name) for name in ("root", "domains", "columns"))
    name = job.args.get("name") or detect_format(job.args["root"])
    report = yield from check_dataset(name, root, domains, columns)
    if report.error is None:
        yield Progress("drawing samples", report.images, report.images)
        images = catalog.load(name, root, domains, columns=columns)
        job.write_arrays(sheet=np.asarray(contact_sheet(images)))
    return {"name": name, "report": report.model_dump(mode="json")}


def encode(job: Job) -> Work[dict[str, Any]]:
    """Encode a data set ahead of its runs.

    args: name, root, domains, columns, decode; backbone, pretrained, precision; reads.

    Returns: number of ``images``, name of the ``file``, and its ``bytes``.
    """
    from fedcore.clip import encodings
    from fedcore.clip.specs import backbone_spec
    from fedcore.config import DataConfig
    from fedcore.data.slow_work import prepare_then
    from fedcore.engine import setup
    from fedcore.engine.prepare import read_images

    yield Progress(f"reading {job.args['name']}", 0, 0)
    fields = ("name", "root", "domains", "columns", "decode")
    data = DataConfig(**{field: job.args[field] for field in fields if job.args.get(field) is not None})
    images, left_out = yield from prepare_then(
        lambda: read_images(data, backbone_spec(job.args["backbone"]).image_size)
    )
    for line in left_out:
        job.log(line)
    yield Progress(f"loading {job.args['backbone']}", 0, 0)
    precision = job.args.get("precision") or "fp32"
    backbone = setup.load_backbone(job.args["backbone"], job.args.get("pretrained"), job.device, precision)
    yield Progress(f"encoding {images.name}", 0, len(images))
    folder, reads = job.store.artifacts / "encodings", job.args.get("reads") or "embedding"
    path = yield from encodings.encode(backbone, images, reads, folder, note=job.log)
    return {"images": len(images), "file": path.name, "bytes": path.stat().st_size}


def download(job: Job) -> Work[dict[str, Any]]:
    """Download a data set through torchvision. args: name, root."""
    from fedcore.data import downloads

    yield from downloads.download(job.args["name"], job.args["root"])
    return {"name": job.args["name"], "root": job.args["root"]}


def weights(job: Job) -> Work[dict[str, Any]]:
    """Fetch the weights of a backbone. args: name, tag."""
    from fedcore.clip import tags

    done = 0
    for done, total in tags.fetch(job.args["name"], job.args["tag"]):
        yield Progress(f"downloading {job.args['tag']}", done, total)
    return {"bytes": done}


def import_file(job: Job) -> Work[dict[str, Any]]:
    """Record results from a file. args: file, name (as the user knows it); experiment, dataset of a CSV file.

    Returns: ``says``, the outcome in one sentence.
    """
    yield Progress(f"recording {job.args['name']}", 0, 0)
    file, name = Path(job.args["file"]), job.args["name"]
    return {"says": job.store.imports.file(file, job.args["experiment"], job.args["dataset"], name)}
