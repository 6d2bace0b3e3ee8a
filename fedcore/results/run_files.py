"""Files on this machine: those of a run, and cached encodings; also how to repeat a run."""

import shlex
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from fedcore.config import SHARED, DataConfig, Experiment, dumps
from fedcore.config.field_names import data_title, field_title, value_text
from fedcore.data import arrays
from fedcore.results.statistics import group_by
from fedcore.store import Store

_ENVIRONMENT_TITLES = {
    "chunk": "Clients trained at once",
    "passes_halved": "Passes of evaluation, halved for lack of memory (times)",
    "tf32": "TF32",
    "device_name": "Name of the device",
    "common_model": "All clients predict with the global model",
    "clients_device": "Device that trained the clients",
    "processors": "Machines that trained the clients",
    "fedlens": "FedLens",
    "code": "Digest of FedLens's code",
    "commit": "Commit of FedLens",
    "checkout": "Commit of the working folder",
    "method_checkout": "Commit of the method's file",
    "torch": "torch",
    "torchvision": "torchvision",
    "numpy": "numpy",
    "open_clip_torch": "open_clip",
    "processor_features": "Vector instructions of the processor",
    "weights": "Weights and preprocessing",
    "weights_digest": "Digest of the weights' files",
    "data": "Data set's fingerprint",
    "pixels": "Fingerprint of its pixels, as cached",
}
_FILE_KINDS = {".safetensors": "checkpoint", ".txt": "log", ".log": "log", ".npz": "analysis"}


@dataclass(frozen=True)
class StoredFile:
    """One file of a run; ``name`` is its path below the run's folder."""

    name: str
    kind: str
    megabytes: float
    written: str


def stored_files(store: Store, run_id: int) -> list[StoredFile]:
    """Return checkpoints, logs and analyses of a run by name; empty if it was trained elsewhere."""
    folder = store.runs.folder(run_id)
    files = []
    for path in sorted(folder.rglob("*")):
        with suppress(FileNotFoundError):  # a running run has replaced this checkpoint since it was listed
            if path.is_file():
                name, kind = path.relative_to(folder).as_posix(), _FILE_KINDS.get(path.suffix, "file")
                stat = path.stat()
                files.append(StoredFile(name, kind, stat.st_size / 1e6, _time_text(stat.st_mtime)))
    return files


def _time_text(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def environment_texts(environment: Mapping[str, object]) -> dict[str, str]:
    """Return the recorded environment of a run as titles and values, in the order of recording."""
    return {
        _ENVIRONMENT_TITLES.get(name, field_title(name)): value_text(f"data.{name}", value)
        for name, value in environment.items()
    }


def repeat_command(file: str, environment: Mapping[str, object]) -> str:
    """Return the command that repeats a run from its experiment file.

    For a run on the CPU it names the number of threads, which decides the last bits of a sum and is not in
    the file, and the device, since a machine with a GPU would use that.
    """
    if environment.get("device") != "cpu":
        return f"fedlens run {file}"
    threads = environment.get("threads")
    chosen = f"FEDLENS_THREADS={shlex.quote(str(threads))} " if threads else ""
    return f"{chosen}fedlens run {file} --device cpu"


def run_toml(store: Store, run_id: int) -> str:
    """Return an experiment file that repeats one run, with all hyper-parameters of its method.

    Its first line names the FedLens that trained the run.
    """
    run = store.runs.config(run_id)
    shared = run.model_dump(include=SHARED)
    held_out = (run.held_out,) if run.held_out is not None else ()
    experiment = Experiment(
        name=f"Run {run_id} again", methods=(run.method,), seeds=(run.seed,), held_out=held_out, **shared
    )
    return f"# {trained_with(store.runs.environment(run_id))}\n{dumps(experiment)}"


def trained_with(environment: Mapping[str, object]) -> str:
    """Name the FedLens that trained a run: ``Trained with FedLens 0.1.0, commit 1b6fd86``."""
    if "fedlens" not in environment:
        return "Trained with a FedLens that did not record its version"
    commit = f", commit {environment['commit']}" if "commit" in environment else ""
    said = f"Trained with FedLens {environment['fedlens']}{commit}"
    for name, what in (("checkout", "in a working folder"), ("method_checkout", "with a method's file")):
        said += f", {what} at {environment[name]}" if name in environment else ""
    return " ".join(said.split())  # one line whatever an imported database holds: it is a comment of files


ENCODING_DETAILS = ("folder", "domains", "weights", "precision", "decode", "device", "content")
"""Possible differences between encodings of one data set, backbone and depth, most informative first."""


@dataclass(frozen=True)
class Encoding:
    """A file of cached image features; a run creates it again if it is missing.

    Attributes:
        name: of its file without suffix; ``retention.delete_encoding`` takes it.
        backbone, reads: empty if the description beside the file cannot be read.
        images: rows on the disk.
        total: rows when it is complete.
        details: values of ``ENCODING_DETAILS``; empty if the description cannot be read.
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
        """The data set's name (of the folder for the user's own data), or else the file's name."""
        return data_title(DataConfig(name=self.data, root=self.details.get("folder"))) or self.name

    @property
    def complete(self) -> bool:
        """Return whether runs can use it; the next run that needs an interrupted one completes it."""
        return self.images == self.total


def cached_encodings(store: Store) -> list[Encoding]:
    """Return the cached encodings beside the database, unfinished ones too, largest first."""
    encodings = []
    for path in arrays.files(store.artifacts / "encodings"):
        with suppress(FileNotFoundError):  # it was completed, and so renamed, since it was listed
            stat, recorded = path.stat(), arrays.description(path)
            shape = recorded.get("shape")
            total = int(shape[0]) if isinstance(shape, list) and shape else 0
            encodings.append(
                Encoding(
                    name=path.stem,
                    megabytes=stat.st_size / 1e6,
                    written=_time_text(stat.st_mtime),
                    data=str(recorded.get("data", "")),
                    backbone=str(recorded.get("backbone", "")),
                    reads=str(recorded.get("reads", "")),
                    images=total if path.suffix == ".npy" else arrays.rows_on_disk(path),
                    total=total,
                    details={key: str(recorded[key]) for key in ENCODING_DETAILS if key in recorded},
                )
            )
    return sorted(encodings, key=lambda e: (-e.megabytes, e.name))


def encoding_differences(encodings: Sequence[Encoding]) -> list[str]:
    """Return how each encoding differs from others of the same data set, backbone and depth.

    As few details as distinguish all of them; empty for a single one.
    """
    parts: dict[str, list[str]] = {e.name: [] for e in encodings}
    for alike in group_by(encodings, lambda e: (e.title if e.data else "", e.backbone, e.reads)).values():
        for detail in (*ENCODING_DETAILS, "file"):
            if len({tuple(parts[e.name]) for e in alike}) == len(alike):
                break
            values = {e.name: e.details.get(detail, "") for e in alike}
            if detail == "file":
                values = {e.name: e.name.removeprefix(f"{e.data}-")[:8] for e in alike}
            if len(set(values.values())) > 1:
                for name, value in values.items():
                    parts[name].append(f"{detail} {value or 'not recorded'}")
    return ["; ".join(parts[e.name]) for e in encodings]
