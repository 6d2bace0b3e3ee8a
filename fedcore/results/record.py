"""What a run leaves behind: its files, what it ran under, and the command that repeats it. No torch."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fedcore.config.field_names import field_title, value_text
from fedcore.store.lease import run_folder

_TITLES = {
    "chunk": "Clients trained at once",
    "tf32": "TF32",
    "device_name": "Name of the device",
    "python": "Python",
    "torch": "torch",
    "numpy": "numpy",
    "weights": "Weights and preprocessing",
    "data": "Data set's fingerprint",
    "pixels": "Fingerprint of its pixels, as cached",
}
_WHAT = {".safetensors": "checkpoint", ".txt": "log", ".log": "log", ".npz": "analysis"}


@dataclass(frozen=True)
class KeptFile:
    """One file of a run. ``name`` is its path below the run's folder."""

    name: str
    what: str
    megabytes: float
    written: str


def files(db: str | Path, run_id: int) -> list[KeptFile]:
    """Checkpoints, logs and analyses of a run by name; none where it was trained elsewhere.

    Raises:
        FedLensError: when there is no such run.
    """
    folder = run_folder(db, run_id)
    found = []
    for path in sorted(folder.rglob("*")):
        with suppress(FileNotFoundError):  # a checkpoint that a running run has replaced since it was listed
            if path.is_file():
                stat = path.stat()
                written = time.strftime("%Y-%m-%d %H:%M", time.localtime(stat.st_mtime))
                what = _WHAT.get(path.suffix, "file")
                found.append(KeptFile(path.relative_to(folder).as_posix(), what, stat.st_size / 1e6, written))
    return found


def ran_under(environment: Mapping[str, object]) -> dict[str, str]:
    """What a run was resolved to, in words: title -> value, in the order in which it was recorded."""
    return {
        _TITLES.get(name, field_title(name)): value_text(f"data.{name}", value)
        for name, value in environment.items()
    }


def command(file: str, environment: Mapping[str, object]) -> str:
    """The command that repeats a run from its experiment file.

    The number of threads decides the last bits of a sum on a CPU, and the file does not hold it. A run of the
    CPU says so: on a machine with a GPU it would take that.
    """
    if environment.get("device") != "cpu":
        return f"fedlens run {file}"
    threads = environment.get("threads")
    return f"{f'FEDLENS_THREADS={threads} ' if threads else ''}fedlens run {file} --device cpu"
