"""Checkpoints: everything that a run remembers between rounds, in one safetensors file per round.

If the clients' own state (local parameters and optimisers) is large, writing all of it every round would cost
more than training. ``rows-N.safetensors`` then holds the rows of the clients that changed in round N, and the
checkpoint of a round names, for each client, the file with its row. A client that has never trained has no
row; its initial parameters follow from the seed. Row files are deleted with the last checkpoint that needs
them. So that a checkpoint never needs more and more of them, a round also rewrites the rows of the oldest
file as soon as all clients could have trained since.

No generator state is stored: every draw is keyed by (seed, purpose, round, client), so the next round draws
the same numbers after a restart as without one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedcore.cache.durable import make_folder, publish
from fedcore.cache.integrity import new_digest
from fedcore.engine.clients.memory import size_of
from fedcore.engine.clients.optimisers import ClientOptimiser
from fedcore.errors import FedLensError, first_line
from fedcore.methods.base import STATE_PARTS, Params, State

if TYPE_CHECKING:
    import torch

LARGE = 2**28
"""Bytes of local parameters and optimiser states from which on a round writes only the rows that changed."""
_WRITTEN = "written"
"""Name of the tensor that holds, for each client, the round whose row file has its row; -1: none."""
_ROW_FILE = re.compile(r"rows-(\d+)\.safetensors")
_NO_DIGEST = "0" * 32
_DIGEST = re.compile(rb'"digest":"([0-9a-f]{32})"')


def path_of(folder: Path, round_: int) -> Path:
    """Return the path of the checkpoint after a round."""
    return folder / f"round-{round_}.safetensors"


def row_file(folder: Path, round_: int) -> Path:
    """Return the path of the rows that changed in a round."""
    return folder / f"rows-{round_}.safetensors"


def row_files(folder: Path) -> dict[int, Path]:
    """Return the row files of a folder by round."""
    found = ((_ROW_FILE.fullmatch(path.name), path) for path in folder.glob("rows-*.safetensors"))
    return {int(match[1]): path for match, path in found if match}


def needs_row_files(state: State, optimiser: ClientOptimiser) -> bool:
    """Return whether the clients' rows are too large to be written in full every round."""
    return size_of(state.local) + size_of(optimiser.slots) > LARGE


def save(
    folder: Path,
    state: State,
    optimiser: ClientOptimiser,
    round_: int,
    run: str,
    written: torch.Tensor | None = None,
) -> Path:
    """Write the state after a round; when this returns, it survives a power failure.

    Args:
        written: the round whose row file has each client's row, -1 if the row is still to be written; it is
            updated. None: all rows are written into the checkpoint. Shape: (clients,).
    """
    tensors: dict[str, torch.Tensor] = {}
    parts = [part for part in STATE_PARTS if part != "local" or written is None]
    for part in parts:
        tensors |= {f"{part}/{n}": t for n, t in getattr(state, part).items()}
    tensors["taken"] = state.rounds_trained  # type: ignore[assignment]  # set when the loop is made
    if written is None:
        tensors |= {f"optimiser/{n}": t for n, t in optimiser.slots.items()}
    else:
        clients = due_rows(written, tensors["taken"], round_)
        if len(clients):
            rows = {f"local/{n}": v[clients.to(v.device)] for n, v in state.local.items()}
            rows |= {f"optimiser/{n}": v[clients.to(v.device)] for n, v in optimiser.slots.items()}
            _write(row_file(folder, round_), rows | {"clients": clients}, round_, run)
        written[clients] = round_
        tensors[_WRITTEN] = written
    # The row file comes first: a checkpoint that exists must never name a row that is not on the disk yet.
    return _write(path_of(folder, round_), tensors, round_, run)


def due_rows(written: torch.Tensor, trained: torch.Tensor, round_: int) -> torch.Tensor:
    """Return the clients whose rows a round writes.

    Args:
        written: see ``save``.
        trained: rounds in which each client took part.

    Shape: (clients,) each -> (rows,), ascending.
    """
    due = (trained > 0) & (written < 0)
    old = written[written >= 0]
    if len(old) and (round_ - int(old.min())) * int(due.sum()) > len(written):
        due = due | (written == old.min())
    return due.nonzero()[:, 0]


def _write(path: Path, tensors: dict[str, torch.Tensor], round_: int, run: str) -> Path:
    from safetensors.torch import save as to_bytes

    content = to_bytes(
        {n: t.detach().cpu().contiguous().clone() for n, t in tensors.items()},
        metadata={"round": str(round_), "run": run, "digest": _NO_DIGEST},
    )
    make_folder(path.parent)
    part = path.with_name(f".{path.stem}.part")
    try:
        with part.open("wb") as file:
            file.writelines(with_digest(content))
        publish(part, path)
    except OSError:
        part.unlink(missing_ok=True)  # a full disk needs the space
        raise
    return path


def with_digest(content: bytes) -> tuple[memoryview, bytes, memoryview]:
    """Return the parts of a safetensors file, with its digest in the place reserved in the metadata."""
    place = _DIGEST.search(content)
    assert place is not None, "the metadata reserve a place for the digest"
    view = memoryview(content)
    return view[: place.start(1)], _digest(content, place).encode(), view[place.end(1) :]


def _digest(content: bytes, place: re.Match[bytes]) -> str:
    """Return the digest of a file's bytes, taken with zeros in the digest's own place."""
    view = memoryview(content)
    digest = new_digest(view[: place.start(1)])
    digest.update(_NO_DIGEST.encode())
    digest.update(view[place.end(1) :])
    return digest.hexdigest()


def prune(folder: Path, keep: Collection[int] | None) -> None:
    """Delete the checkpoints of a run except those after the rounds in ``keep``; None keeps all of them."""
    if keep is None:
        return
    retained = {path_of(folder, round_) for round_ in keep}
    for path in folder.glob("round-*.safetensors"):
        if path.is_file() and path not in retained:
            path.unlink(missing_ok=True)
    surplus = row_files(folder)
    try:
        for path in filter(Path.is_file, retained if surplus else ()):
            for needed in rows_needed(path):
                surplus.pop(needed, None)
    except FedLensError:  # a damaged checkpoint does not tell what it needs
        return
    for path in surplus.values():
        path.unlink(missing_ok=True)


def rows_needed(path: Path) -> list[int]:
    """Return the rounds whose row files a checkpoint needs, without reading its other tensors."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            if _WRITTEN not in file.keys():  # noqa: SIM118 - it is not a dict
                return []
            written = file.get_tensor(_WRITTEN)
    except (OSError, SafetensorError) as error:
        raise FedLensError(f"{path.name} is damaged ({first_line(error)})") from error
    return sorted({int(round_) for round_ in written if round_ >= 0})


def files_of(path: Path) -> list[Path]:
    """Return a checkpoint and the row files that it needs."""
    return [path, *(row_file(path.parent, round_) for round_ in rows_needed(path))]


def newest_intact(files: Iterable[tuple[int, Path]]) -> tuple[tuple[int, Path] | None, list[str]]:
    """Return the newest intact checkpoint by its round, and what is wrong with those that are newer.

    Args:
        files: round and path, the newest first.
    """
    wrong: list[str] = []
    for round_, path in files:
        findings = verify(path)
        if not findings:
            return (round_, path), wrong
        wrong += findings
    return None, wrong


def verify(path: Path) -> list[str]:
    """Return what is wrong with a checkpoint, in one line each; its tensors are not loaded."""
    try:
        _read(path)
        for needed in files_of(path)[1:]:
            _read(needed)
    except FedLensError as error:
        return [str(error)]
    return []


def _read(path: Path) -> tuple[bytes, dict[str, str]]:
    """Return the bytes of a checkpoint and its metadata, once its digest has been compared."""
    try:
        content = path.read_bytes()
        end = 8 + int.from_bytes(content[:8], "little")
        header: dict[str, Any] = json.loads(content[8:end])
        metadata: dict[str, str] = header.pop("__metadata__")
        tensors = max((entry["data_offsets"][1] for entry in header.values()), default=0)
        place = _DIGEST.search(content, 8, end)
        digest = _digest(content, place) if place else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise FedLensError(f"{path.name} is damaged ({first_line(error)})") from error
    if metadata.get("digest") != digest or set(metadata) != {"round", "run", "digest"}:
        raise FedLensError(f"{path.name} is damaged: its bytes are not those that were written")
    if len(content) != end + tensors:
        raise FedLensError(
            f"{path.name} is damaged: it has {len(content):,} bytes instead of {end + tensors:,}"
        )
    round_ = int(metadata["round"])
    if path not in (path_of(path.parent, round_), row_file(path.parent, round_)):
        raise FedLensError(f"{path.name} is the checkpoint after round {round_}; it was renamed")
    return content, metadata


@dataclass(frozen=True)
class Loaded:
    """The content of a checkpoint.

    Attributes:
        state: without local parameters if these are in row files.
        slots: the optimisers' state, unless it is in row files.
        rows: round and content of the row files that it needs.
        written: the row file that has each client's row, see ``save``; None without row files.
    """

    state: State
    slots: dict[str, torch.Tensor]
    round: int
    rows: Iterator[tuple[int, dict[str, torch.Tensor]]]
    written: torch.Tensor | None

    def put_rows(self, local: Params, optimiser: ClientOptimiser) -> None:
        """Copy the rows of the row files to where they belong.

        Args:
            local: initial parameters, which clients that have never trained keep.
        """
        assert self.written is not None, "the checkpoint has row files"
        for round_, content in self.rows:
            clients = content["clients"].cpu()
            current = self.written[clients] == round_
            slots: Params = {}
            for name, values in content.items():
                part, _, rest = name.partition("/")
                if part == "local":
                    local[rest][clients[current].to(local[rest].device)] = values[current.to(values.device)]
                elif rest:
                    slots[rest] = values[current.to(values.device)]
            optimiser.put(clients[current], ClientOptimiser(optimiser.config, int(current.sum()), slots))


def load(path: str | Path, run: str, device: torch.device) -> Loaded:
    """Read a checkpoint; one that is damaged or of another config, weights or images is refused."""
    path = Path(path)
    tensors, round_ = _load(path, run, device)
    parts: dict[str, dict[str, torch.Tensor]] = {part: {} for part in (*STATE_PARTS, "optimiser")}
    for name, tensor in tensors.items():
        part, _, rest = name.partition("/")
        if rest:
            parts[part][rest] = tensor
    slots = parts.pop("optimiser")
    written = tensors[_WRITTEN].cpu() if _WRITTEN in tensors else None
    rounds = [] if written is None else sorted({int(r) for r in written.tolist() if r >= 0})
    # Row files are read one at a time as they are copied: together they may not fit into memory twice.
    rows = ((r, _load(row_file(path.parent, r), run, device)[0]) for r in rounds)
    return Loaded(State(**parts, rounds_trained=tensors["taken"].cpu()), slots, round_, rows, written)


def _load(path: Path, run: str, device: torch.device) -> tuple[dict[str, torch.Tensor], int]:
    """Return the tensors of a file and its round, once its digest and its run have been compared."""
    from safetensors import SafetensorError
    from safetensors.torch import load as from_bytes

    try:
        content, metadata = _read(path)
        tensors = {name: tensor.to(device) for name, tensor in from_bytes(content).items()}
    except (FedLensError, SafetensorError) as error:
        raise FedLensError(f"cannot resume from {path}: {error}; clone the run to start again") from error
    if metadata["run"] != run:
        raise FedLensError(
            f"{path} was made with another config, other weights or other images; "
            "clone the run to start again"
        )
    return tensors, int(metadata["round"])
