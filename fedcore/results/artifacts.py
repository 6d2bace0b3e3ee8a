"""Files on this machine: those of a run, cached encodings, and how a run is repeated."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fedcore.cache import arrays
from fedcore.config import SHARED, DataConfig, Experiment, dumps
from fedcore.config.field_names import data_title, field_title, value_text
from fedcore.data.images import ImageSet
from fedcore.errors import FedLensError
from fedcore.store import Store

_ENVIRONMENT_TITLES = {
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
_FILE_KINDS = {".safetensors": "checkpoint", ".txt": "log", ".log": "log", ".npz": "analysis"}


@dataclass(frozen=True)
class KeptFile:
    """One file of a run. ``name`` is its path below the run's folder."""

    name: str
    what: str
    megabytes: float
    written: str


def kept_files(store: Store, run_id: int) -> list[KeptFile]:
    """Checkpoints, logs and analyses of a run by name; none where it was trained elsewhere.

    Raises:
        FedLensError: when there is no such run.
    """
    folder = store.runs.folder(run_id)
    found = []
    for path in sorted(folder.rglob("*")):
        with suppress(FileNotFoundError):  # a checkpoint that a running run has replaced since it was listed
            if path.is_file():
                stat = path.stat()
                written = time.strftime("%Y-%m-%d %H:%M", time.localtime(stat.st_mtime))
                what = _FILE_KINDS.get(path.suffix, "file")
                found.append(KeptFile(path.relative_to(folder).as_posix(), what, stat.st_size / 1e6, written))
    return found


def environment_texts(environment: Mapping[str, object]) -> dict[str, str]:
    """What a run was resolved to, in words: title -> value, in the order in which it was recorded."""
    return {
        _ENVIRONMENT_TITLES.get(name, field_title(name)): value_text(f"data.{name}", value)
        for name, value in environment.items()
    }


def repeat_command(file: str, environment: Mapping[str, object]) -> str:
    """The command that repeats a run from its experiment file.

    The number of threads decides the last bits of a sum on a CPU, and the file does not hold it. A run of the
    CPU says so: on a machine with a GPU it would take that.
    """
    if environment.get("device") != "cpu":
        return f"fedlens run {file}"
    threads = environment.get("threads")
    return f"{f'FEDLENS_THREADS={threads} ' if threads else ''}fedlens run {file} --device cpu"


@dataclass(frozen=True)
class DataCounts:
    """Images per domain and class. Shape: counts (domains, classes)."""

    domains: tuple[str, ...]
    classes: tuple[str, ...]
    counts: np.ndarray


def count_images(images: ImageSet) -> DataCounts:
    """Images per domain and class."""
    counts = np.zeros((len(images.domains), len(images.classes)), dtype=np.int64)
    np.add.at(counts, (np.asarray(images.domain), np.asarray(images.labels)), 1)
    return DataCounts(images.domains, images.classes, counts)


ENCODING_DETAILS = ("folder", "domains", "weights", "precision", "decode", "device", "content")
"""What tells two encodings of one data set, backbone and depth apart; most telling first."""


@dataclass(frozen=True)
class Encoding:
    """A file of cached image features; made again when it is needed and not there.

    Attributes:
        name: of its file without suffix; what ``delete_encoding`` takes.
        backbone, reads: empty for files of an older release, which did not say.
        images: rows on the disk.
        total: rows when it is complete.
        details: what else it depends on, by ``DETAILS``; empty for files of an older release.
    """

    name: str
    megabytes: float
    written: str
    data: str = ""
    backbone: str = ""
    reads: str = ""
    images: int = 0
    total: int = 0
    details: dict[str, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """The data set's name, of one's own data its folder's; the file's where that is not recorded."""
        return data_title(DataConfig(name=self.data, root=self.details.get("folder"))) or self.name

    @property
    def complete(self) -> bool:
        """Whether runs can use it; an interrupted one goes on where it was when a run wants it."""
        return self.images == self.total


def size_text(size: float) -> str:
    """Bytes in words: ``1.2 GB``, ``34 MB``, ``4.6 kB``."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            value = size / scale
            return f"{value:,.{int(value < 9.95)}f} {unit}"
    return f"{size:.0f} bytes"


def cached_encodings(store: Store) -> list[Encoding]:
    """Cached encodings beside the database, unfinished ones too, largest first."""
    folder = _encodings_folder(store)
    found = []
    for path in [*folder.glob("*.npy"), *folder.glob("*.part")]:
        with suppress(FileNotFoundError):  # a part that was finished, and so renamed, since it was listed
            found.append(_encoding(path))
    return sorted(found, key=lambda e: (-e.megabytes, e.name))


def encoding_differences(found: Sequence[Encoding]) -> list[str]:
    """What tells each encoding from others of the same data set, backbone and depth; empty for a single one.

    The first details that make every one of them different are named, and no more.
    """
    alike: dict[tuple[str, str, str], list[Encoding]] = {}
    for e in found:
        alike.setdefault((e.title if e.data else "", e.backbone, e.reads), []).append(e)
    texts = {name: text for group in alike.values() for name, text in _differences(group).items()}
    return [texts[e.name] for e in found]


def _differences(group: Sequence[Encoding]) -> dict[str, str]:
    parts: dict[str, list[str]] = {e.name: [] for e in group}
    for detail in (*ENCODING_DETAILS, "file"):
        if len({tuple(p) for p in parts.values()}) == len(group):
            break
        values = {
            e.name: e.name.removeprefix(f"{e.data}-")[:8] if detail == "file" else e.details.get(detail, "")
            for e in group
        }
        if len(set(values.values())) > 1:
            for name, value in values.items():
                parts[name].append(f"{detail} {value or 'not recorded'}")
    return {name: "; ".join(p) for name, p in parts.items()}


def delete_encoding(store: Store, name: str) -> float:
    """Delete a cached encoding by its name. Returns: megabytes that came free.

    Raises:
        FedLensError: when there is none of that name, or a run reads or writes it.
    """
    if name not in {e.name for e in cached_encodings(store)}:
        raise FedLensError(f"no encoding '{name}' any more; reload the page")
    return arrays.delete(_encodings_folder(store) / f"{name}.npy") / 1e6


def _encodings_folder(store: Store) -> Path:
    return store.artifacts / "encodings"


def _encoding(path: Path) -> Encoding:
    stat, about = path.stat(), arrays.description(path)
    shape = about.get("shape")
    total = int(shape[0]) if isinstance(shape, list) and shape else 0
    return Encoding(
        path.stem,
        stat.st_size / 1e6,
        time.strftime("%Y-%m-%d %H:%M", time.localtime(stat.st_mtime)),
        *(str(about.get(key, "")) for key in ("data", "backbone", "reads")),
        total if path.suffix == ".npy" else arrays.rows_on_disk(path),
        total,
        {key: str(about[key]) for key in ENCODING_DETAILS if key in about},
    )


def run_toml(store: Store, run_id: int) -> str:
    """An experiment file that repeats one run, with all of its method's hyper-parameters written out."""
    run = store.runs.config(run_id)
    shared = run.model_dump(include=SHARED)
    held_out = (run.held_out,) if run.held_out is not None else ()
    experiment = Experiment(
        name=f"Run {run_id} again", methods=(run.method,), seeds=(run.seed,), held_out=held_out, **shared
    )
    return dumps(experiment)
