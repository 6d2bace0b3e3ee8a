"""What runs on a node: looking at it, and training one run there. It never opens the database."""

from __future__ import annotations

import os
import platform
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

import fedcore
from fedcore import devices
from fedcore.cluster import parcel
from fedcore.cluster.folders import run_folder
from fedcore.cluster.parcel import Parcel
from fedcore.config import RunConfig
from fedcore.data.slow_work import cache_folder
from fedcore.devices import Device
from fedcore.engine.events import Event, RoundFinished
from fedcore.errors import FedLensError, first_line
from fedcore.methods import registry
from fedcore.progress import Progress
from fedcore.system_errors import SystemFault, Transient, explain

PROGRESS_SECONDS = 0.5
_PACKAGES = ("torch", "torchvision", "open_clip_torch", "numpy", "pillow")


@dataclass(frozen=True)
class NodeReport:
    """What a node says about itself.

    Attributes:
        versions: of FedLens, Python and the packages that compute a run's numbers.
        missing: those of the asked folders that it cannot read.
        readable: those that it can.
        shares: it sees the folder through which checkpoints travel, where there is one, and can write there.
    """

    devices: tuple[Device, ...]
    versions: dict[str, str]
    missing: tuple[str, ...]
    readable: tuple[str, ...] = ()
    shares: bool = True


@dataclass(frozen=True)
class Order:
    """All that a node needs to train a run.

    Attributes:
        key: name of the run in the node's temporary files.
        environment: what an earlier attempt resolved, see ``fedcore.engine.train.train``.
        method_file: content of the user's method file, whose path the config has; the user agreed to it.
        device: torch's name.
        threads: CPU threads of a run that begins, at most.
        artifacts: folder of the encodings where the node shares the supervisor's disk; None: its cache's
            (``FEDLENS_CACHE``).
        working_folder: the supervisor's, where relative paths of the config begin.
        shared: the run's folder through which checkpoints travel; None: Ray's object store.
    """

    config: RunConfig
    key: str
    environment: dict[str, Any]
    method_file: bytes | None
    device: str
    threads: int
    artifacts: str | None
    working_folder: str
    shared: str | None = None


@dataclass(frozen=True)
class Sent:
    """An event on its way to the supervisor.

    Attributes:
        checkpoint: the file that a finished round names.
        peak_memory: bytes that the run used so far on the node.
    """

    event: Event
    checkpoint: Parcel | None
    peak_memory: int


@dataclass(frozen=True)
class Failed:
    """The end of a run that met an error on its node.

    Attributes:
        kind: ``input`` (the user's to mend), ``machine``, ``moment`` (may be over soon) or ``defect``.
    """

    kind: str
    message: str
    field: str | None
    traceback: str


def versions() -> dict[str, str]:
    """Return the versions that a node and the supervisor compare."""
    return {
        "fedlens": fedcore.__version__,
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in _PACKAGES},
    }


def report(folders: tuple[str, ...] = (), working_folder: str = "", marker: str | None = None) -> NodeReport:
    """Describe this node.

    Args:
        folders: of data sets; the report says which of them this node can read.
        working_folder: the supervisor's, where relative paths begin.
        marker: lies in the folder through which checkpoints travel, where there is one.
    """
    paths = {f: Path(working_folder) / Path(f).expanduser() for f in folders}
    readable = tuple(f for f, path in paths.items() if os.access(path, os.R_OK | os.X_OK))
    missing = tuple(f for f in paths if f not in readable)
    shares = marker is None or (os.path.exists(marker) and os.access(Path(marker).parent, os.W_OK | os.X_OK))
    return NodeReport(tuple(devices.list_devices()), versions(), missing, readable, shares)


def train(order: Order, checkpoint: list[tuple[str, Parcel]] | None = None) -> Iterator[Sent | Failed]:
    """Train a run on this node, and yield its events as they happen; an error is the last item.

    Args:
        checkpoint: names and content of the files from which the run goes on.
    """
    devices.reset_peak_memory(order.device)  # Ray gives this process one run after another
    with run_folder(order.key) as folder:
        try:
            yield from _train(order, folder, checkpoint)
        except Exception as error:  # noqa: BLE001 - it is sent to the supervisor, which records it
            yield _failure(error, folder)


def prepare(order: Order) -> Path:
    """Make this process ready for a run, before torch is loaded; returns the folder of the encodings.

    Raises:
        FedLensError: when the node cannot read the data.
    """
    threads = min(order.threads, psutil.cpu_count(logical=False) or order.threads)  # as torch chooses them
    os.environ.update({"FEDLENS_THREADS": str(threads), **devices.PATIENT_THREADS})
    if order.device == devices.CPU:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if os.path.isdir(order.working_folder):
        os.chdir(order.working_folder)
    config = order.config
    registry.forget_received()
    if order.method_file is not None and config.method.file is not None:
        registry.receive(config.method.file, order.method_file)
    if config.data.root is not None and not Path(config.data.root).expanduser().exists():
        raise FedLensError(
            f"the node {platform.node()} has no folder {config.data.root}; copy or mount the data set "
            "there, then resume the run",
            "data.root",
        )
    return Path(order.artifacts) if order.artifacts else cache_folder()


def _train(order: Order, folder: Path, checkpoint: list[tuple[str, Parcel]] | None) -> Iterator[Sent]:
    artifacts = prepare(order)
    from fedcore.engine.train import train as engine

    resume_from = None
    if checkpoint is not None:
        resume_from = folder / checkpoint[0][0]
        for name, file in checkpoint:
            parcel.receive(file, folder / name)
    next_progress = 0.0
    events = engine(
        order.config,
        artifacts=artifacts,
        folder=folder,
        device=order.device,
        resume_from=None if resume_from is None else str(resume_from),
        environment=order.environment or None,
        whole_checkpoints=True,
    )
    with closing(events):  # type: ignore[type-var]  # a generator, as every engine is
        for event in events:
            if isinstance(event, Progress):
                now = time.monotonic()
                if now < next_progress and event.done != event.total:
                    continue
                next_progress = now + PROGRESS_SECONDS
            content = None
            if isinstance(event, RoundFinished) and event.checkpoint is not None:
                content = parcel.send(Path(event.checkpoint), order.shared)
                _delete_others(folder, Path(event.checkpoint))
            yield Sent(event, content, devices.peak_memory(order.device))


def _delete_others(folder: Path, newest: Path) -> None:
    """Delete the checkpoints before the newest, which have been sent."""
    for path in folder.glob("round-*.safetensors"):
        if path != newest:
            path.unlink()


def _failure(error: Exception, folder: Path) -> Failed:
    text = traceback.format_exc()
    fault = explain(error, folder)
    where = f"on the node {platform.node()}: "
    if isinstance(fault, SystemFault):
        return Failed("moment" if isinstance(fault, Transient) else "machine", where + str(fault), None, text)
    if isinstance(error, FedLensError):
        return Failed("input", str(error), error.field, text)
    return Failed("defect", first_line(error), None, text)


def differences(ours: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    """Say in which versions a node differs, in the order of ``versions``."""
    return [f"{name} {theirs.get(name, 'missing')} instead of {value}"
            for name, value in ours.items() if theirs.get(name) != value]  # fmt: skip
