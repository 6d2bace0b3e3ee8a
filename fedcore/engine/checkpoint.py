"""Checkpoints: everything that a run remembers between rounds, in one safetensors file per round.

What many clients keep is in files of its own, see ``row_files``.

No generator state is stored: every draw is keyed by (seed, purpose, round, client), so that the next round
draws the same numbers after a restart as it would have without one. The file's metadata hold a digest of all
its bytes, taken with zeros in the digest's place.
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
from fedcore.engine import row_files
from fedcore.engine.clients.optimisers import ClientOptimiser
from fedcore.errors import FedLensError, first_line
from fedcore.methods.base import STATE_PARTS, State

if TYPE_CHECKING:
    import torch

_NO_DIGEST = "0" * 32
_DIGEST = re.compile(rb'"digest":"([0-9a-f]{32})"')


def path_of(folder: Path, round_: int) -> Path:
    """Return the path of the checkpoint after a round."""
    return folder / f"round-{round_}.safetensors"


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
        written: which round's row file has each client's row, -1 where the row is still to be written; it is
            brought up to date. None: all rows are written with the state. Shape: (clients,).
    """
    tensors: dict[str, torch.Tensor] = {}
    parts = [part for part in STATE_PARTS if part != "local" or written is None]
    for part in parts:
        tensors |= {f"{part}/{n}": t for n, t in getattr(state, part).items()}
    tensors["taken"] = state.rounds_trained  # type: ignore[assignment]  # set when the loop is made
    if written is None:
        tensors |= {f"optimiser/{n}": t for n, t in optimiser.slots.items()}
    else:
        clients = row_files.due_rows(written, tensors["taken"], round_)
        if len(clients):
            rows = row_files.rows_of(clients, state, optimiser)
            _write(row_files.path_of(folder, round_), rows, round_, run)
        written[clients] = round_
        tensors[row_files.WRITTEN] = written
    return _write(path_of(folder, round_), tensors, round_, run)


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
        part.unlink(missing_ok=True)  # a full disk needs the room
        raise
    return path


def with_digest(content: bytes) -> tuple[memoryview, bytes, memoryview]:
    """Return the parts of a safetensors file, with its digest in the place that its metadata keep for it."""
    place = _DIGEST.search(content)
    assert place is not None, "the metadata keep a place for the digest"
    view = memoryview(content)
    return view[: place.start(1)], _digest(content, place).encode(), view[place.end(1) :]


def _digest(content: bytes, place: re.Match[bytes]) -> str:
    """Return the digest of a file's bytes, with zeros where the digest stands."""
    view = memoryview(content)
    digest = new_digest(view[: place.start(1)])
    digest.update(_NO_DIGEST.encode())
    digest.update(view[place.end(1) :])
    return digest.hexdigest()


def prune(folder: Path, keep: Collection[int] | None) -> None:
    """Delete the checkpoints of a run, except those after some rounds; None keeps all of them."""
    if keep is None:
        return
    kept = {path_of(folder, round_) for round_ in keep}
    for path in folder.glob("round-*.safetensors"):
        if path.is_file() and path not in kept:
            path.unlink(missing_ok=True)
    surplus = dict(row_files.rounds_in(folder))
    try:
        for path in filter(Path.is_file, kept if surplus else ()):
            for needed in rows_needed(path):
                surplus.pop(needed, None)
    except FedLensError:  # a damaged checkpoint does not say what it needs
        return
    for path in surplus.values():
        path.unlink(missing_ok=True)


def rows_needed(path: Path) -> list[int]:
    """Return the rounds whose row files a checkpoint needs, without reading its other tensors.

    Raises:
        FedLensError: when it cannot be read.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            if row_files.WRITTEN not in file.keys():  # noqa: SIM118 - it is no dict
                return []
            written = file.get_tensor(row_files.WRITTEN)
    except (OSError, SafetensorError) as error:
        raise FedLensError(f"{path.name} is damaged ({first_line(error)})") from error
    return sorted({int(round_) for round_ in written if round_ >= 0})


def files_of(path: Path) -> list[Path]:
    """Return a checkpoint and the row files that it needs.

    Raises:
        FedLensError: when it cannot be read.
    """
    return [path, *(row_files.path_of(path.parent, round_) for round_ in rows_needed(path))]


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
    """Return the bytes of a checkpoint and its metadata.

    Raises:
        FedLensError: when it cannot be read, or its bytes are not those that were written.
    """
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
    if path.name not in [of(path.parent, int(metadata["round"])).name for of in (path_of, row_files.path_of)]:
        raise FedLensError(f"{path.name} is the checkpoint after round {metadata['round']}; it was renamed")
    return content, metadata


@dataclass(frozen=True)
class Loaded:
    """What a checkpoint holds.

    Attributes:
        state: without local parameters where these are in row files.
        slots: the optimisers' state, where it is not in row files.
        rows: round and content of the row files that it needs.
        written: which of these has each client's row, -1: none; None where there are no row files.
    """

    state: State
    slots: dict[str, torch.Tensor]
    round: int
    rows: Iterator[tuple[int, dict[str, torch.Tensor]]]
    written: torch.Tensor | None


def load(path: str | Path, run: str, device: torch.device) -> Loaded:
    """Read a checkpoint.

    Raises:
        FedLensError: when the file is missing or damaged, or was made with another config, other weights or
            other images.
    """
    path = Path(path)
    tensors, round_ = _load(path, run, device)
    parts: dict[str, dict[str, torch.Tensor]] = {part: {} for part in (*STATE_PARTS, "optimiser")}
    for name, tensor in tensors.items():
        part, _, rest = name.partition("/")
        if rest:
            parts[part][rest] = tensor
    slots = parts.pop("optimiser")
    written = tensors[row_files.WRITTEN].cpu() if row_files.WRITTEN in tensors else None
    rounds = [] if written is None else sorted({int(r) for r in written.tolist() if r >= 0})
    rows = ((r, _load(row_files.path_of(path.parent, r), run, device)[0]) for r in rounds)
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
