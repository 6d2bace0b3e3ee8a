"""Walking a data set's folder: hidden files are passed over, links that leave it are refused."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from fedcore.data.entry import Entry
from fedcore.errors import FedLensError

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")

DEPTH = 4
"""Folders between the given root and what is looked for, at most."""


class NotHere(FedLensError):
    """The folder does not hold the data set (which may still lie packed in it)."""


def locate(found: Entry, bases: Sequence[Path], *needles: str) -> Path:
    """The folder that holds all of these files or folders, nearest to the root first.

    Raises:
        NotHere: ``data.root``, naming the first that is nowhere together with the others.
    """
    level = list(bases)
    for _ in range(DEPTH + 1):
        for folder in level:
            if all((folder / needle).exists() for needle in needles):
                return folder
        level = [folder / name for folder in level for name in folders_in(folder, folder)]
    wanted = " and ".join(f"'{n}'" for n in needles)
    raise NotHere(f"{bases[0]}: no folder with {wanted} in it. {found.how}", "data.root")


def lines(path: Path) -> list[str]:
    """The lines of a label file, stripped; empty ones and comments (#) are passed over.

    Raises:
        FedLensError: ``data.root``, when it cannot be read as text.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FedLensError(f"{path}: damaged ({error}); get the set again", "data.root") from error
    return [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]


def existing(root: str | Path) -> Path:
    """A folder's real path.

    Raises:
        FedLensError: ``data.root``, when there is none.
    """
    path = Path(root).expanduser()
    if not path.exists():
        raise FedLensError(f"no folder {path}; give the folder that holds the data set", "data.root")
    if not path.is_dir():
        raise FedLensError(f"{path} is a file; unpack it and give the folder", "data.root")
    return path.resolve()


def folders_in(root: Path, folder: Path) -> list[str]:
    """Names of the folders in a folder, sorted, hidden ones left out.

    Raises:
        FedLensError: ``data.root``, for a link that leaves the root.
    """
    with os.scandir(folder) as entries:
        found = sorted(e.name for e in entries if _visible(e) and e.is_dir())
    for name in found:
        _refuse_leaving(root, folder / name)
    return found


def images_in(root: Path, folder: Path) -> Iterator[Path]:
    """The image files of a folder by their suffix, hidden ones left out, in no order.

    Raises:
        FedLensError: ``data.root``, for a link that leaves the root.
    """
    if not folder.is_dir():
        return
    with os.scandir(folder) as entries:
        for entry in entries:
            if _visible(entry) and os.path.splitext(entry.name)[1].lower() in SUFFIXES and not entry.is_dir():
                path = folder / entry.name
                if entry.is_symlink():
                    _refuse_leaving(root, path)
                yield path


def _visible(entry: os.DirEntry[str]) -> bool:
    hidden = entry.name.startswith(".") or entry.name == "__MACOSX"
    return not hidden and not entry.name.startswith("unpacked-")


def _refuse_leaving(root: Path, path: Path) -> None:
    if path.is_symlink() and not path.resolve().is_relative_to(root):
        raise FedLensError(
            f"{path} is a link that leaves the folder; copy what it points to, "
            "or give the folder it points to as root",
            "data.root",
        )
