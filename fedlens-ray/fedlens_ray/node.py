"""A node's description of itself, the files of a run in transit to and from it, and the run's folders."""

import os
import platform
import shutil
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import numpy as np

import fedcore
from fedcore.base import devices
from fedcore.base.devices import Device
from fedcore.base.errors import FedLensError, SystemFault, check_room, explain_file
from fedcore.base.files import cache_folder, publish, try_lock
from fedcore.clip import tags
from fedcore.config.models import WEIGHTS
from fedcore.engine.environment import code, code_on_disk

Payload = np.ndarray | str
"""The bytes of a file, or the path of its copy in the shared folder."""
Files = list[tuple[str, Payload]]
"""The names and the payloads of a checkpoint's files."""
_OWNER = ".owner"
_MACHINE = platform.node().encode()[:255]
_PACKAGES = ("torch", "torchvision", "open_clip_torch", "numpy", "pillow")


@dataclass(frozen=True)
class NodeReport:
    """A node's description of itself.

    Attributes:
        versions: of FedLens, Python and the packages that compute a run's numbers.
        readable: the requested folders and weights that it can read.
        problem: the reason why no run can train there; None if it can.
    """

    devices: tuple[Device, ...]
    versions: dict[str, str]
    readable: tuple[str, ...] = ()
    problem: str | None = None


def versions() -> dict[str, str]:
    """Return the versions that a node and the supervisor compare."""
    return {
        "fedlens": fedcore.__version__,
        "code": code(),
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in _PACKAGES},
    }


class Reporter:
    """A Ray actor that describes its node.

    Ray may end an idle process after a second, so that each report of a task would need a new one.
    """

    def report(
        self,
        needs: tuple[str, ...] = (),
        working_folder: str = "",
        marker: str | None = None,
        gpus: int = 0,
        trial: bool = False,
    ) -> NodeReport:
        """Describe this node.

        Args:
            needs: folders and weights (see ``RunConfig``) that runs read from the supervisor's folder.
            marker: path of a folder in the shared folder of checkpoints.
            gpus: that Ray gives to tasks here.
            trial: whether to compute something on each device, which takes seconds.
        """
        readable = tuple(need for need in needs if can_read(need, working_folder))
        found = tuple(devices.list_devices())
        now = versions() | {"code": code_on_disk()}
        return NodeReport(found, now, readable, _problem(marker, found, gpus, trial))


def in_words(needs: Iterable[str]) -> str:
    """Return folders and weights as words."""
    return " and ".join(
        f"the weights {need.removeprefix(WEIGHTS)}" if need.startswith(WEIGHTS) else f"the folder {need}"
        for need in sorted(needs)
    )


def can_read(need: str, working_folder: str) -> bool:
    """Return whether this machine has a folder or weights that a run reads."""
    name, _, weights = need.removeprefix(WEIGHTS).partition(" ")
    is_folder = not need.startswith(WEIGHTS)
    path = Path(working_folder) / Path(need if is_folder else weights).expanduser()
    if is_folder or path.suffix or "/" in weights or path.is_file():
        return os.access(path, os.R_OK | (os.X_OK if path.is_dir() else 0))
    return tags.cached(name, weights) is not None


def _problem(marker: str | None, found: tuple[Device, ...], gpus: int, trial: bool) -> str | None:
    try:
        for folder in (Path(tempfile.gettempdir()), cache_folder()):
            folder.mkdir(parents=True, exist_ok=True)
            check_room(folder)
            tempfile.TemporaryFile(dir=folder).close()
    except SystemFault as fault:
        return str(fault).partition(", then")[0]
    except OSError as error:
        return str(explain_file(error, "its temporary folder")).partition(", then")[0]
    if marker is not None and not (
        os.path.exists(marker) and os.access(Path(marker).parent, os.W_OK | os.X_OK)
    ):
        return f"it does not see the folder {Path(marker).parent}, or cannot write there; mount it"
    ids = [device.id for device in found if device.id != devices.CPU]
    if len(ids) < gpus:
        return f"Ray gives {gpus} GPUs there, and its driver shows {len(ids)}; check it (nvidia-smi, dmesg)"
    faults = {d: devices.trial(d) for d in (ids or [devices.CPU] if trial else ())}
    return next((f"its device {d} cannot compute ({fault})" for d, fault in faults.items() if fault), None)


def differences(ours: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    """Describe the versions in which a node differs, in the order of ``versions``."""
    return [
        f"{name} {theirs.get(name, 'missing')} instead of {value}"
        for name, value in ours.items()
        if theirs.get(name) != value
    ]


def send(file: Path, folder: str | None) -> Payload:
    """Return the payload of a file: its bytes, or the path of a copy in the shared folder of the run."""
    if folder is None:
        return np.fromfile(file, dtype=np.uint8)
    path = Path(folder) / f"{uuid.uuid4().hex}-{file.name}"
    part = path.with_suffix(".part")
    shutil.copyfile(file, part)
    publish(part, path)
    return str(path)


def receive(payload: Payload, to: Path) -> None:
    """Write a payload to a file; a copy in the shared folder is moved."""
    if isinstance(payload, str):
        shutil.move(payload, to)
    else:
        payload.tofile(to)


@contextmanager
def marked(shared: Path) -> Iterator[str]:
    """Yield the path of a marker in the shared folder, by which a node recognises that folder."""
    if not shared.is_absolute():
        raise FedLensError(f"{shared} is not an absolute path; nodes have other working folders", "shared")
    with ExitStack() as opened:
        try:
            marker = opened.enter_context(run_folder("run-marker", shared))
        except OSError as error:
            raise FedLensError(f"{shared} cannot be written ({error.strerror})", "shared") from error
        yield str(marker)


@contextmanager
def run_folder(key: str, parent: Path | None = None) -> Iterator[Path]:
    """Make a folder for a run's files, which is deleted after the block.

    A killed process leaves its folder behind, so each new run deletes the folders of dead ones. A run's
    process holds a lock on a file in its folder, which the system frees however the process ends. The file
    names the machine, because on a network file system another machine's lock may look free.
    """
    parent = parent or Path(tempfile.gettempdir())
    _remove_dead_folders(parent)
    folder = Path(tempfile.mkdtemp(prefix=f"fedlens-{key}-", dir=parent))
    owner = _lock(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if owner is not None:
            os.close(owner)


def _remove_dead_folders(parent: Path) -> None:
    """Remove the folders of this machine's dead runs; a folder without a lock file stays."""
    for folder in parent.glob("fedlens-run-*"):
        try:
            owner = os.open(folder / _OWNER, os.O_RDONLY)
        except OSError:  # another account's, not complete yet, or on a file system without locks
            continue
        try:
            is_ours = not folder.is_symlink() and os.read(owner, 255) == _MACHINE
            if is_ours and try_lock(owner, exclusive=True):
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue
        finally:
            os.close(owner)


def _lock(folder: Path) -> int | None:
    """Lock the owner's file of a folder; returns None if the file system has no locks."""
    # The file is locked before it gets its name: others delete the folder of a free lock.
    owner, name = tempfile.mkstemp(dir=folder)
    try:
        os.write(owner, _MACHINE)
        if not try_lock(owner, exclusive=True):
            raise OSError("a new file is locked")
        Path(name).rename(folder / _OWNER)
    except OSError:
        os.close(owner)
        Path(name).unlink()
        return None
    return owner
