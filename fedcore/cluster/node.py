"""The code that runs on a node: it describes the node and trains a run, and never opens the database."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

import fedcore
from fedcore import devices
from fedcore.clip import tags
from fedcore.cluster import transfer
from fedcore.cluster.transfer import Files, Payload, run_folder
from fedcore.config import RunConfig, backbones
from fedcore.config.models import WEIGHTS, FurtherDataConfig, TransferConfig
from fedcore.data.slow_work import cache_folder
from fedcore.devices import Device
from fedcore.engine.environment import code
from fedcore.errors import FedLensError, first_line
from fedcore.methods import FedLensMethodError, registry
from fedcore.progress import Progress
from fedcore.records.events import Event, RoundFinished
from fedcore.system_errors import SystemFault, Transient, check_room, explain

PROGRESS_SECONDS = 0.5
TRIAL_SECONDS = 120
_PACKAGES = ("torch", "torchvision", "open_clip_torch", "numpy", "pillow")


@dataclass(frozen=True)
class NodeReport:
    """A node's description of itself.

    Attributes:
        versions: of FedLens, Python and the packages that compute a run's numbers.
        missing: the requested folders and weights that it cannot read.
        readable: those that it can read.
        problem: the reason why no run can train there; None if it can.
    """

    devices: tuple[Device, ...]
    versions: dict[str, str]
    missing: tuple[str, ...]
    readable: tuple[str, ...] = ()
    problem: str | None = None


@dataclass(frozen=True)
class RunRequest:
    """Everything that a node needs to train a run.

    Attributes:
        key: name of the run in the node's temporary files.
        environment: the values that an earlier attempt resolved, see ``fedcore.engine.train.train``.
        method_file: content of the user's method file, to which the user has agreed.
        device: torch's name.
        threads: maximum number of CPU threads of a run that begins.
        artifacts: folder of the encodings if the node shares the supervisor's disk; None: the node's cache
            (``FEDLENS_CACHE``).
        working_folder: the supervisor's; relative paths of the config start there.
        shared: the run's folder for checkpoints in transit; None: they travel in Ray's object store.
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
    """An event that a node sends to the supervisor.

    Attributes:
        checkpoint: the content of a finished round's checkpoint.
        peak_memory: peak memory of the run on the node so far, in bytes.
    """

    event: Event
    checkpoint: Payload | None
    peak_memory: int


@dataclass(frozen=True)
class Failed:
    """The end of a run that met an error on its node.

    Attributes:
        kind: ``method`` (a fault of the method), ``input`` (a user error), ``machine``, ``moment``
            (a transient fault of the machine) or ``defect``.
    """

    kind: str
    message: str
    field: str | None
    traceback: str


def versions() -> dict[str, str]:
    """Return the versions that a node and the supervisor compare."""
    return {
        "fedlens": fedcore.__version__,
        "code": code(),
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in _PACKAGES},
    }


def report(
    needs: tuple[str, ...] = (),
    working_folder: str = "",
    marker: str | None = None,
    gpus: int = 0,
    trial: bool = False,
) -> NodeReport:
    """Describe this node.

    Args:
        needs: folders and weights (see ``RunConfig``); the report says which of them it can read.
        working_folder: the supervisor's; relative paths start there.
        marker: path of a folder in the shared folder of checkpoints; None: none is used.
        gpus: that Ray gives to tasks here.
        trial: whether to compute something on each device, which takes seconds.
    """
    readable = tuple(need for need in needs if _can_read(need, working_folder))
    missing = tuple(need for need in needs if need not in readable)
    found = tuple(devices.list_devices())
    return NodeReport(found, versions(), missing, readable, _problem(marker, found, gpus, trial))


def _needs(config: RunConfig) -> list[str]:
    """Return the folders and weights that a run reads, without those that come with FedLens."""
    others: list[TransferConfig | FurtherDataConfig] = [*config.transfer, *config.further_data]
    folders = [config.data.root, *(data.root for data in others)]
    weights = (f"{WEIGHTS}{used.name} {used.pretrained}" for used in backbones(config) if used.pretrained)
    return [*filter(None, folders), *weights]


def in_words(needs: Iterable[str]) -> str:
    """Return folders and weights as words."""
    return " and ".join(
        f"the weights {need.removeprefix(WEIGHTS)}" if need.startswith(WEIGHTS) else f"the folder {need}"
        for need in sorted(needs)
    )


def _can_read(need: str, working_folder: str) -> bool:
    name, _, weights = need.removeprefix(WEIGHTS).partition(" ")
    is_folder = not need.startswith(WEIGHTS)
    path = Path(working_folder) / Path(need if is_folder else weights).expanduser()
    if is_folder or path.suffix or "/" in weights or path.is_file():
        return os.access(path, os.R_OK | (os.X_OK if path.is_dir() else 0))
    return tags.cached(name, weights) is not None


def _problem(marker: str | None, found: tuple[Device, ...], gpus: int, trial: bool) -> str | None:
    """Return why no run can train on this node."""
    try:
        for folder in (Path(tempfile.gettempdir()), cache_folder()):
            folder.mkdir(parents=True, exist_ok=True)
            check_room(folder)
            tempfile.TemporaryFile(dir=folder).close()
    except (OSError, SystemFault) as error:
        return str(explain(error, "its temporary folder") or error).partition(", then")[0]
    if marker is not None and not (
        os.path.exists(marker) and os.access(Path(marker).parent, os.W_OK | os.X_OK)
    ):
        return f"it does not see the folder {Path(marker).parent}, or cannot write there; mount it"
    ids = [device.id for device in found if device.id != devices.CPU]
    if len(ids) < gpus:
        return f"Ray gives {gpus} GPUs there, and its driver shows {len(ids)}; check it (nvidia-smi, dmesg)"
    return next(filter(None, map(_trial, ids or [devices.CPU])), None) if trial else None


def _trial(device: str) -> str | None:
    """Compute a sum on a device in a process of its own; returns how that failed."""
    code = f"import torch; print(torch.ones(64, device={devices.torch_name(device)!r}).sum().item())"
    variables = {**os.environ, **devices.environment_for(device)}
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], env=variables, capture_output=True, text=True, timeout=TRIAL_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return f"its device {device} does not answer within {TRIAL_SECONDS} s"
    if done.stdout.strip() == "64.0":
        return None
    said = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
    return f"its device {device} cannot compute ({said[:200]})"


def train(request: RunRequest, checkpoint: Files | None = None) -> Iterator[Sent | Failed]:
    """Train a run on this node, and yield its events as they happen; an error is the last item.

    Args:
        checkpoint: names and content of the files from which the run goes on.
    """
    place = Path()
    try:
        place = Path(tempfile.gettempdir())
        devices.reset_peak_memory(request.device)  # Ray reuses this process for one run after another
        with run_folder(request.key) as folder:
            place = folder
            yield from _train(request, folder, checkpoint)
    except Exception as error:  # noqa: BLE001 - it is sent to the supervisor, which records it
        yield _failure(error, place)


def prepare(request: RunRequest) -> Path:
    """Prepare this process for a run before torch is loaded; returns the folder of the encodings."""
    cores = psutil.cpu_count(logical=False) or request.threads
    threads = min(request.threads, cores)  # never more than the physical cores, as torch chooses them
    os.environ.update({"FEDLENS_THREADS": str(threads), **devices.PATIENT_THREADS})
    if request.device == devices.CPU:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if os.path.isdir(request.working_folder):
        os.chdir(request.working_folder)
    config = request.config
    registry.forget_received()
    if request.method_file is not None and config.method.file is not None:
        registry.receive(config.method.file, request.method_file)
    if lacking := [need for need in _needs(config) if not _can_read(need, request.working_folder)]:
        raise SystemFault(f"{in_words(lacking)} cannot be read; copy or mount that there, then resume")
    return Path(request.artifacts) if request.artifacts else cache_folder()


def _train(request: RunRequest, folder: Path, checkpoint: Files | None) -> Iterator[Sent]:
    artifacts = prepare(request)
    from fedcore.engine.train import train as engine

    resume_from = None
    if checkpoint is not None:
        resume_from = folder / checkpoint[0][0]
        for name, file in checkpoint:
            transfer.receive(file, folder / name)
    next_progress = 0.0
    events = engine(
        request.config,
        artifacts=artifacts,
        folder=folder,
        device=request.device,
        resume_from=None if resume_from is None else str(resume_from),
        environment=request.environment or None,
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
                content = transfer.send(Path(event.checkpoint), request.shared)
                for path in folder.glob("round-*.safetensors"):
                    if path != Path(event.checkpoint):  # earlier ones have been sent
                        path.unlink()
            yield Sent(event, content, devices.peak_memory(request.device))


def _failure(error: Exception, folder: Path) -> Failed:
    text = traceback.format_exc()
    fault = explain(error, folder)
    if fault is None and isinstance(error, OSError):  # the folder cannot be made, or is read-only
        fault = SystemFault(f"{error.filename or folder} cannot be used ({error.strerror or error})")
    where = f"on the node {platform.node()}: "
    if isinstance(fault, SystemFault):
        return Failed("moment" if isinstance(fault, Transient) else "machine", where + str(fault), None, text)
    if isinstance(error, FedLensError):
        kind = "method" if isinstance(error, FedLensMethodError) else "input"
        return Failed(kind, str(error), error.field, text)
    return Failed("defect", first_line(error), None, text)


def differences(ours: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    """Describe the versions in which a node differs, in the order of ``versions``."""
    return [f"{name} {theirs.get(name, 'missing')} instead of {value}"
            for name, value in ours.items() if theirs.get(name) != value]  # fmt: skip
