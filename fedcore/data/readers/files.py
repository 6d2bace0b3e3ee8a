"""Files and folders of a data set; hidden ones are skipped, links that leave the folder are refused."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fedcore.base.errors import FedLensError
from fedcore.base.files import user_path
from fedcore.data.images import Entry, FolderError

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")
MAX_DEPTH = 4
"""Levels of folders below the given one that are searched."""
WHOLE_SYSTEMS = ("/", "/proc", "/sys", "/dev")
"""Folders that would take hours to search, or forever."""


class NotInFolder(FolderError):
    """The folder does not hold the data set, though an archive in it may."""


def locate(entry: Entry, roots: Sequence[Path], *needles: str) -> Path:
    """Find the folder nearest to the roots with all of these paths (globs), or raise ``NotInFolder``."""
    for folders in levels(roots):
        for folder in folders:
            if all(any(folder.glob(n)) if "*" in n else (folder / n).exists() for n in needles):
                return folder
    wanted = " and ".join(f"'{n}'" for n in needles)
    raise NotInFolder(f"{roots[0]}: no folder with {wanted} in it. {entry.how_to_get}")


def levels(roots: Sequence[Path]) -> Iterator[list[Path]]:
    """Yield the roots, then the visible folders in them, and so on down to ``MAX_DEPTH``."""
    level = list(roots)
    for _ in range(MAX_DEPTH + 1):
        yield level
        level = [folder / name for folder in level for name in folders_in(folder, folder)]


def read_lines(path: Path) -> list[str]:
    """Read the lines of a label file, stripped, without empty lines and comments (#)."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise damaged(path, f"damaged ({error})") from error
    return [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]


def existing_folder(root: str | Path) -> Path:
    """Return a folder's real path; refuse a path that is missing or a file."""
    path = user_path(root, "data.root")
    if str(path.resolve()) in WHOLE_SYSTEMS:
        raise FolderError(f"{path} is not a data set; give the folder that holds one")
    if not path.exists():
        raise FolderError(f"no folder {path}; give the folder that holds the data set, or move it back")
    if not path.is_dir():
        raise FolderError(f"{path} is a file; unpack it and give the folder")
    return path.resolve()


def folders_in(root: Path, folder: Path) -> list[str]:
    """Return the names of the visible folders in a folder, sorted.

    A link is refused if it leaves ``root``, or points to a folder that it lies in, which would never end.
    """
    with _readable(folder), os.scandir(folder) as entries:
        names = sorted(e.name for e in entries if _visible(e) and _is_folder(e))
    for name in names:
        _refuse_leaving(root, folder / name)
    return names


def images_in(root: Path, folder: Path) -> Iterator[Path]:
    """Yield the visible files of a folder with the suffix of an image, in no particular order."""
    if not folder.is_dir():
        return
    with _readable(folder), os.scandir(folder) as entries:
        for entry in entries:
            if (
                _visible(entry)
                and os.path.splitext(entry.name)[1].lower() in SUFFIXES
                and not _is_folder(entry)
            ):
                path = folder / entry.name
                if entry.is_symlink():
                    _refuse_leaving(root, path)
                yield path


@contextmanager
def _readable(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise FolderError(
            f"cannot read {folder}: {error.strerror}; give a folder that holds only the data set"
        ) from error


def holds_images(root: Path, folder: Path) -> bool:
    """Return whether a folder directly holds an image."""
    return any(True for _ in images_in(root, folder))


def damaged(path: Path, why: object, again: str = "set") -> FedLensError:
    """Return the error for a file that differs from what the data set's authors distribute."""
    return FolderError(f"{path}: {why}; get the {again} again")


def _visible(entry: os.DirEntry[str]) -> bool:
    hidden = entry.name.startswith(".") or entry.name == "__MACOSX"
    return not hidden and not entry.name.startswith("unpacked-")


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def leaves(root: Path, path: Path) -> bool:
    """Return whether a path lies outside a folder after following its links; a broken link leads nowhere."""
    if os.path.islink(path) and not os.path.exists(path):
        return False
    return not Path(os.path.realpath(path)).is_relative_to(root)


def _refuse_leaving(root: Path, path: Path) -> None:
    if not path.is_symlink():
        return
    if leaves(root, path):
        raise FolderError(
            f"{path} is a link that leaves the folder; copy its target, or give the target's folder as root"
        )
    if path.is_dir() and not leaves(Path(os.path.realpath(path)), path.parent):
        raise FolderError(f"{path} is a link to a folder that it lies in; remove the link")
