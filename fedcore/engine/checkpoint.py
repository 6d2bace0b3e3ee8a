"""Checkpoints: everything that a run remembers between rounds, in one safetensors file per round.

No generator state is stored: every draw is keyed by (seed, purpose, round, client), so that the next round
draws the same numbers after a restart as it would have without one. The file's metadata hold a digest of all
its bytes, taken with zeros in the digest's place; files of earlier releases have none, and are accepted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedcore.cache.durable import make_folder, publish
from fedcore.cache.integrity import new_digest
from fedcore.engine.optimisers import ClientOptimiser
from fedcore.errors import FedLensError, first_line
from fedcore.methods.base import State

if TYPE_CHECKING:
    import torch

PARTS = ("shared", "personal", "local", "server")
"""Parts of ``State`` that hold parameters."""
_NO_DIGEST = "0" * 32
_DIGEST = re.compile(rb'"digest":"([0-9a-f]{32})"')
_FIRST_METADATA = {"round", "run"}
"""Metadata of files without a digest; a file with any other name in it must have one."""


def path_of(folder: Path, round_: int) -> Path:
    """Return the path of the checkpoint after a round."""
    return folder / f"round-{round_}.safetensors"


def save(folder: Path, state: State, optimiser: ClientOptimiser, round_: int, run: str) -> Path:
    """Write the state after a round; when this returns, it survives a power failure."""
    from safetensors.torch import save as to_bytes

    tensors = {f"{part}/{n}": t for part in PARTS for n, t in getattr(state, part).items()}
    tensors["taken"] = state.rounds_trained
    tensors.update({f"optimiser/{n}": t for n, t in optimiser.slots.items()})
    content = to_bytes(
        {n: t.detach().cpu().contiguous().clone() for n, t in tensors.items()},
        metadata={"round": str(round_), "run": run, "digest": _NO_DIGEST},
    )
    make_folder(folder)
    path, part = path_of(folder, round_), folder / f".round-{round_}.part"
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
    for path in folder.glob("round-*.safetensors") if keep is not None else ():
        if path.is_file() and path not in {path_of(folder, round_) for round_ in keep or ()}:
            path.unlink(missing_ok=True)


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
    except FedLensError as error:
        return [str(error)]
    return []


def has_digest(path: Path) -> bool:
    """Return whether an intact checkpoint has a digest; those of earlier releases have none."""
    return "digest" in _read(path)[1]


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
        place = None if set(metadata) == _FIRST_METADATA else _DIGEST.search(content, 8, end)
        digest = _digest(content, place) if place else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise FedLensError(f"{path.name} is damaged ({first_line(error)})") from error
    if metadata.get("digest") != digest or set(metadata) - {"digest"} != _FIRST_METADATA:
        raise FedLensError(f"{path.name} is damaged: its bytes are not those that were written")
    if len(content) != end + tensors:
        raise FedLensError(
            f"{path.name} is damaged: it has {len(content):,} bytes instead of {end + tensors:,}"
        )
    if path.name != path_of(path.parent, int(metadata["round"])).name:
        raise FedLensError(f"{path.name} is the checkpoint after round {metadata['round']}; it was renamed")
    return content, metadata


def load(path: str | Path, run: str, device: torch.device) -> tuple[State, dict[str, torch.Tensor], int]:
    """Read the state, the optimiser slots and the round of a checkpoint.

    Raises:
        FedLensError: when the file is missing or damaged, or was made with another config, other weights or
            other images.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load as from_bytes

    try:
        content, metadata = _read(Path(path))
        tensors = {name: tensor.to(device) for name, tensor in from_bytes(content).items()}
    except (FedLensError, SafetensorError) as error:
        raise FedLensError(f"cannot resume from {path}: {error}; clone the run to start again") from error
    if metadata["run"] != run:
        raise FedLensError(
            f"{path} was made with another config, other weights or other images; "
            "clone the run to start again"
        )
    parts: dict[str, dict[str, torch.Tensor]] = {part: {} for part in (*PARTS, "optimiser")}
    for name, tensor in tensors.items():
        part, _, rest = name.partition("/")
        if rest:
            parts[part][rest] = tensor
    slots = parts.pop("optimiser")
    return State(**parts, rounds_trained=tensors["taken"].cpu()), slots, int(metadata["round"])
