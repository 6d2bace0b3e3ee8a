"""The files of checkpoints: written whole or not at all, and read with a digest of all their bytes.

``RunState`` decides what a checkpoint holds; here are the files' names, bytes, damage and deletion.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from fedcore.cache.integrity import new_digest
from fedcore.errors import FedLensError, first_line
from fedcore.files import make_folder, publish
from fedcore.lazy import torch

WRITTEN = "written"
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


def write(path: Path, tensors: dict[str, torch.Tensor], round_: int, run: str) -> Path:
    """Write tensors of a round and of a run; when this returns, they survive a power failure."""
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
            if WRITTEN not in file.keys():  # noqa: SIM118 - it is not a dict
                return []
            written = file.get_tensor(WRITTEN)
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


def load(path: Path, run: str, device: torch.device) -> tuple[dict[str, torch.Tensor], int]:
    """Return the tensors and the round of a file; one that is damaged or of another run is refused."""
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
