"""Forecasts of the time, memory and disk space of planned runs, from finished runs of their kind."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedcore.base.errors import disk_usage, lacks_room
from fedcore.base.events import FULL_MATRIX_CLIENTS, MAX_EVALUATED_CLIENTS
from fedcore.base.progress import about, counted
from fedcore.config import Experiment, RunConfig, backbone_names
from fedcore.config.field_names import field_phrase, size_text
from fedcore.data import arrays
from fedcore.store import Store
from fedcore.store.database import artifacts_folder

if TYPE_CHECKING:
    from fedcore.engine.plan import Plan

NEWEST = 200
"""Number of newest finished runs that are read; runs of other machines do not count, since those differ."""
BYTES_PER_CELL = 36
"""Measured bytes per accuracy cell in the database, including everything that is recorded beside it."""
RunKind = tuple[str, str, str]
"""Method, data set and backbone."""


@dataclass(frozen=True)
class Precedents:
    """The cost of finished runs by kind; a kind that was never measured is missing.

    seconds: mean of a round. loading: the least seconds of a run outside its rounds; the first run of a data
    set also encodes its images, once for all later ones. memory: peak bytes. written: bytes of the newest
    run's files without its checkpoints. checkpoint: bytes of one checkpoint.
    """

    seconds: Mapping[RunKind, float]
    loading: Mapping[RunKind, float]
    memory: Mapping[RunKind, int]
    written: Mapping[RunKind, int]
    checkpoint: Mapping[RunKind, int]


@dataclass(frozen=True)
class Disk:
    """The approximate number of bytes that planned runs will write, too low if it is not ``complete``."""

    size: int
    complete: bool


def precedents(db: str | Path) -> Precedents:
    """Read the costs of finished runs; this takes 0.1 s with many runs, so pages cache the result."""
    store = Store(db)
    if not store.path.exists():  # the first plan of a user
        return Precedents({}, {}, {}, {}, {})
    local, measured = store.runs.trained_locally(NEWEST), store.runs.peak_memory(NEWEST)
    folders, finished = store.runs.folders(local), store.runs.listed(local)[0][::-1]
    configs = store.runs.configs({r.id for r in finished} | set(measured), skip_damaged=True)
    kinds = {run_id: _kind(config) for run_id, config in configs.items()}
    finished = [r for r in finished if r.id in kinds]  # others were deleted since then, or are damaged
    in_rounds = store.rounds.seconds(r.id for r in finished)
    paces: dict[RunKind, list[float]] = {}
    loading: dict[RunKind, float] = {}
    written: dict[RunKind, int] = {}
    checkpoint: dict[RunKind, int] = {}
    memory: dict[RunKind, int] = {}
    for run in finished:
        kind, seconds = kinds[run.id], run.elapsed()
        if seconds is not None and run.id in in_rounds:
            loading[kind] = min(loading.get(kind, math.inf), max(0.0, seconds - in_rounds[run.id]))
            if run.rounds_total:
                paces.setdefault(kind, []).append(in_rounds[run.id] / run.rounds_total)
        sizes: dict[str, int] = {}
        if kind not in checkpoint:
            with suppress(FileNotFoundError):  # it was deleted a moment ago
                sizes = {f.name: f.stat().st_size for f in folders[run.id].glob("*") if f.is_file()}
        if sizes:
            states = [size for name, size in sizes.items() if name.startswith("round-")]
            written.setdefault(kind, sum(sizes.values()) - sum(states))
            if states:  # it may keep none
                checkpoint[kind] = max(states)
    for run_id in measured.keys() & kinds.keys():
        memory[kinds[run_id]] = max(memory.get(kinds[run_id], 0), measured[run_id])
    means = {kind: sum(of_kind) / len(of_kind) for kind, of_kind in paces.items()}
    return Precedents(means, loading, memory, written, checkpoint)


def seconds(past: Precedents, runs: Sequence[RunConfig]) -> float | None:
    """Return the seconds that planned runs will take; None if any has no precedent."""
    known = [(run.rounds, _kind(run)) for run in runs]
    if not all(kind in (past.seconds if rounds else past.loading) for rounds, kind in known):
        return None
    return sum(past.loading[kind] + rounds * past.seconds.get(kind, 0.0) for rounds, kind in known)


def memory(past: Precedents, runs: Sequence[RunConfig]) -> int | None:
    """Return the bytes that the largest of some planned runs will take; None if one has no precedent."""
    kinds = {_kind(run) for run in runs}
    return max(past.memory[k] for k in kinds) if kinds and kinds <= set(past.memory) else None


def disk(db: str | Path, past: Precedents, planned: Plan) -> Disk:
    """Estimate the bytes of missing encodings, results, checkpoints and logs from earlier runs.

    Earlier runs of the same kind count; if there are none, those of the most similar kind with the same
    method. An encoding counts as cached if data set, backbone, layer and number of images agree; different
    weights of one backbone are not distinguished.
    """
    folder = artifacts_folder(db) / "encodings"
    cached = set()
    for known in map(arrays.description, folder.glob("*.npy")):
        shape = known.get("shape")
        images = shape[0] if isinstance(shape, list) and shape else None
        cached.add((known.get("data"), known.get("backbone"), known.get("reads"), images))
    new = [e.size for e in planned.encodings if (e.data, e.backbone, e.reads, e.images) not in cached]
    clients, domains = len(planned.clients), len(planned.domains)
    checkpoints = [
        {"all": run.rounds + 1, "none": 0}.get(run.keep_checkpoints, 1) for run in planned.all_runs
    ]
    runs = list(zip(map(_kind, planned.all_runs), checkpoints, strict=True))
    size = sum(_most_similar(past.written, k) + n * _most_similar(past.checkpoint, k) for k, n in runs)
    size += sum(_cells(run, clients, domains) for run in planned.all_runs) * BYTES_PER_CELL
    complete = all(k in past.written and (k in past.checkpoint or not n) for k, n in runs)
    return Disk(sum(new) + size, complete)


def _most_similar(sizes: Mapping[RunKind, int], kind: RunKind) -> int:
    """Return the size of a kind, or else of the most similar kind with the same method, or else 0."""
    of_method = [k for k in sizes if k[0] == kind[0]]
    shared = {k: 2 * (k[2] == kind[2]) + (k[1] == kind[1]) for k in of_method}  # the backbone counts most
    return sizes[max(of_method, key=lambda k: shared[k])] if of_method else 0


def _cells(run: RunConfig, clients: int, domains: int) -> int:
    """Return the approximate number of accuracy cells that a run records."""
    evaluated = run.rounds // run.evaluate_every + 1
    models = min(clients, MAX_EVALUATED_CLIENTS)
    diagonal = 4 * models + domains  # own samples before and after, validation samples, the global model
    matrix = (models + 1) * (models + domains)
    if clients <= FULL_MATRIX_CLIENTS:
        return evaluated * (diagonal + matrix)
    return evaluated * diagonal + 2 * matrix


def lack_of_room(db: str | Path, disk: Disk) -> str | None:
    """Return a warning if the disk has no room for what planned runs will write."""
    folder = artifacts_folder(db)
    if not lacks_room(folder, disk.size):
        return None
    return (
        f"The runs write {'about' if disk.complete else 'at least'} {size_text(disk.size)}, and the disk "
        f"that holds {folder} has {size_text(disk_usage(folder)[1])} free: free some space, or keep the "
        "database on a larger disk. A run that finds the disk full stops, and can be resumed"
    )


def runs_text(experiment: Experiment, planned: Plan) -> str:
    """Return how many runs an experiment has, and why: ``2 methods x 3 seeds = 6 runs``."""
    if experiment.tuning is not None:
        final = sum(run.seed != experiment.tuning.seed for run in planned.later)
        searching = counted(len(planned.all_runs) - final, "run")
        tuned = f"{counted(len(experiment.methods), 'method')}, tuned first"
        return f"{tuned}: {searching} of the search, then {final} with the selected values"
    factors = [counted(len(experiment.methods), "method"), counted(len(experiment.seeds), "seed")]
    if experiment.held_out:
        factors.append(counted(len({r.held_out for r in planned.runs}), "held-out domain"))
    swept = [
        f"{counted(len(values), 'value')} of {field_phrase(path)}"
        for path, values in experiment.sweep.items()
    ]
    count = counted(len(planned.all_runs), "run")
    if any(path.startswith("methods.") for path in experiment.sweep):  # it multiplies only some methods' runs
        return ", ".join([" x ".join(factors), *swept]) + f": {count}"
    return " x ".join([*factors, *swept]) + f" = {count}"


def cost_text(past: Precedents, planned: Plan, disk: Disk) -> str:
    """Describe the rounds, time, disk and memory that a plan needs, as far as they are known."""
    took, most = seconds(past, planned.all_runs), memory(past, planned.runs)
    fewest, longest = min(r.rounds for r in planned.runs), max(r.rounds for r in planned.runs)
    text = counted(longest, "round") if fewest == longest else f"{fewest} to {longest} rounds"
    text += f", {about(took)} on this machine" if took is not None else ""
    if disk.size:
        text += f", {'about' if disk.complete else 'at least'} {size_text(disk.size)} on disk"
    if most is not None:
        text += f", up to {most / 1e9:.1f} GB of memory a run"
    return text + ("" if took is not None else "; the time is unknown until the first rounds have run")


def _kind(config: RunConfig) -> RunKind:
    data = "+".join([config.data.name, *(other.name for other in config.further_data)])
    return config.method.name, data, backbone_names(config)
