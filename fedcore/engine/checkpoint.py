"""Checkpoints: everything that a run remembers between rounds, in one safetensors file per round.

No generator state is stored: every draw is keyed by (seed, purpose, round, client), so that the next round
draws the same numbers after a restart as it would have without one.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from fedcore.engine.optimisers import ClientOptimiser
from fedcore.errors import FedLensError
from fedcore.methods.base import State

if TYPE_CHECKING:
    import torch

_PARTS = ("shared", "personal", "local", "server")
MAX_FILES = 2
"""Files kept per run: the database may be one round behind the newest file."""


def path_of(folder: Path, round_: int) -> Path:
    """Return the path of the checkpoint after a round."""
    return folder / f"round-{round_}.safetensors"


def save(folder: Path, state: State, optimiser: ClientOptimiser, round_: int, run: str) -> Path:
    """Write the state after a round under a temporary name, rename it, and remove the oldest file."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    tensors = {f"{part}/{n}": t for part in _PARTS for n, t in getattr(state, part).items()}
    tensors["taken"] = state.rounds_trained
    tensors.update({f"optimiser/{n}": t for n, t in optimiser.slots.items()})
    path, part = path_of(folder, round_), folder / f".round-{round_}.part"
    save_file(
        {n: t.detach().cpu().contiguous().clone() for n, t in tensors.items()},
        part,
        metadata={"round": str(round_), "run": run},
    )
    os.replace(part, path)
    path_of(folder, round_ - MAX_FILES).unlink(missing_ok=True)
    return path


def load(path: str | Path, run: str, device: torch.device) -> tuple[State, dict[str, torch.Tensor], int]:
    """Read the state, the optimiser slots and the round of a checkpoint.

    Raises:
        FedLensError: when the file is missing or damaged, or was made with another config, other weights or
            other images.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="pt", device=str(device)) as file:
            meta = file.metadata()
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (OSError, SafetensorError) as error:
        raise FedLensError(f"cannot resume from {path}: {error}; clone the run to start again") from error
    if meta["run"] != run:
        raise FedLensError(
            f"{path} was made with another config, other weights or other images; "
            "clone the run to start again"
        )
    parts: dict[str, dict[str, torch.Tensor]] = {part: {} for part in (*_PARTS, "optimiser")}
    for name, tensor in tensors.items():
        part, _, rest = name.partition("/")
        if rest:
            parts[part][rest] = tensor
    slots = parts.pop("optimiser")
    return State(**parts, rounds_trained=tensors["taken"].cpu()), slots, int(meta["round"])
