"""Files that can be deleted: checkpoints of finished runs, with their sizes, and cached encodings."""

from collections.abc import Collection
from dataclasses import dataclass

from fedcore.base.errors import FedLensError
from fedcore.config.models import KeepCheckpoints
from fedcore.data import arrays
from fedcore.engine.checkpoint import prune
from fedcore.jobs.handlers import rounds_to_keep
from fedcore.store import RunRow, Store


@dataclass(frozen=True)
class RunCheckpoints:
    """Checkpoints of one finished run; ``sizes``: round -> bytes."""

    experiment: str
    run: RunRow
    sizes: dict[int, int]

    @property
    def size(self) -> int:
        return sum(self.sizes.values())


def finished(store: Store, run_ids: Collection[int] = ()) -> list[RunCheckpoints]:
    """Return the checkpoints of these finished runs, or of all (archived ones too), the oldest runs first."""
    folders = (path.parent.name for path in store.artifacts.glob("run-*/round-*"))
    with_files = {int(name.split("-")[1]) for name in folders if name.split("-")[1].isdigit()}
    return [
        RunCheckpoints(experiment.name, run, {r: p.stat().st_size for r, p in files})
        for experiment in sorted(store.experiments.all(include_archived=True), key=lambda e: e.id)
        for run in sorted(experiment.runs, key=lambda r: r.id)
        if run.state == "done" and run.id in with_files and (not run_ids or run.id in run_ids)
        if (files := store.runs.checkpoints(run.id))
    ]


def surplus(
    store: Store, keep: KeepCheckpoints, quota: float | None = None, run_ids: Collection[int] = ()
) -> list[RunCheckpoints]:
    """Return the checkpoints that would be deleted; nothing is deleted yet.

    Unfinished runs keep theirs, from which they are resumed.

    Args:
        keep: the checkpoints that each finished run keeps; if its best round has none, the newest.
        quota: bytes that the folder of artifacts may take; the oldest runs lose checkpoints until it is met.
        run_ids: only these runs; empty: all.
    """
    over = float("inf") if quota is None else artifacts_size(store) - quota
    chosen: list[RunCheckpoints] = []
    for entry in finished(store, run_ids):
        rounds = rounds_to_keep(entry.run, keep)
        if rounds is None:
            continue
        if keep != "none" and rounds.isdisjoint(entry.sizes):
            rounds = {max(entry.sizes)}  # its best round has no checkpoint, so it keeps the newest
        extra = {r: size for r, size in entry.sizes.items() if r not in rounds}
        if extra and over > 0:
            chosen.append(RunCheckpoints(entry.experiment, entry.run, extra))
            over -= chosen[-1].size
    return chosen


def delete(store: Store, chosen: Collection[RunCheckpoints]) -> int:
    """Delete checkpoints that ``surplus`` has named, and return the bytes that were freed.

    Raises:
        FedLensError: at a run that keeps some and whose recorded rounds are damaged.
    """
    freed = 0
    for extra in chosen:
        (run,) = store.runs.get([extra.run.id])
        if run.state == "done":  # it may have been restarted since
            remaining = {r for r, _ in store.runs.checkpoints(run.id)} - set(extra.sizes)
            if remaining:  # chosen by what was recorded
                store.integrity.require_rounds(run.id, f"the checkpoints of run {run.id} stay")
            prune(store.runs.folder(run.id), remaining)
            freed += extra.size
    return freed


def delete_encoding(store: Store, name: str) -> float:
    """Delete a cached encoding by its name and return the freed megabytes; refused while a run uses it."""
    folder = store.artifacts / "encodings"
    if name not in {path.stem for path in arrays.files(folder)}:
        raise FedLensError(f"no encoding '{name}'; it may have been deleted: reload the page")
    return arrays.delete(folder / f"{name}.npy") / 1e6


def artifacts_size(store: Store) -> int:
    """Return the bytes of all files beside the database: encodings, checkpoints, logs and analyses."""
    return sum(path.stat().st_size for path in store.artifacts.rglob("*") if path.is_file())
