"""Files and folders of a data set; hidden ones are skipped, links that leave the folder are refused."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedcore.base.errors import FedLensError
from fedcore.base.files import user_path
from fedcore.base.progress import counted
from fedcore.data.image_files import cached_reasons, decode
from fedcore.data.images import ONE_DOMAIN, Entry, FolderError, ImageSet
from fedcore.data.integrity import hash_versions

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
    names = sorted(entry.name for entry in _entries(folder) if _is_folder(entry))
    for name in names:
        _refuse_leaving(root, folder / name)
    return names


def images_in(root: Path, folder: Path) -> Iterator[Path]:
    """Yield the visible files of a folder with the suffix of an image, in no particular order."""
    if not folder.is_dir():
        return
    for entry in _entries(folder):
        if os.path.splitext(entry.name)[1].lower() in SUFFIXES and not _is_folder(entry):
            path = folder / entry.name
            if entry.is_symlink():
                _refuse_leaving(root, path)
            yield path


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Yield the visible entries of a folder."""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if not entry.name.startswith((".", "unpacked-")) and entry.name != "__MACOSX":
                    yield entry
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


@dataclass
class Listing:
    """The image files of a data set and their labels, before a file is opened.

    ``files``, ``keys``, ``labels``, ``domain``, ``split`` and ``owner`` are parallel lists.

    Attributes:
        classes: as they enter a prompt.
        split: the official split (values as in ``fedcore.base.events``), None without one.
        owner: the clients that the data set names ("" for none), None without clients.
        left_out: (path, reason) of files that cannot be used.
        label_files: the files that the labels and the split were read from.
    """

    root: Path
    classes: tuple[str, ...]
    domains: tuple[str, ...] = (ONE_DOMAIN,)
    files: list[Path] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    domain: list[int] = field(default_factory=list)
    split: list[int] | None = None
    owner: list[str] | None = None
    left_out: list[tuple[Path, str]] = field(default_factory=list)
    label_files: list[Path] = field(default_factory=list)

    def add(self, path: Path, key: str, label: int, domain: int = 0, part: int | None = None) -> None:
        """Add an image; refuse a path in a label file that leads out of the folder."""
        if ".." in path.parts or not str(path).startswith(os.path.join(self.root, "")):
            raise FolderError(f"{self.root}: '{path}' is outside the folder; get the label files again")
        self.files.append(path)
        self.keys.append(key)
        self.labels.append(label)
        self.domain.append(domain)
        if part is not None:
            self.split = self.split if self.split is not None else []
            self.split.append(part)


class LeftOut(NamedTuple):
    """An image that is not used, with its path in the folder and a reason such as ``empty file``."""

    path: str
    reason: str


def warnings(root: Path, images: ImageSet, left_out: Sequence[LeftOut]) -> list[str]:
    """Return a line on images that are left out, and one on classes without images in a domain."""
    lines = []
    if left_out:
        first = "; ".join(f"{path}: {reason}" for path, reason in left_out[:3])
        more = "; ..." if len(left_out) > 3 else ""
        lines.append(f"{root}: {counted(len(left_out), 'image')} left out ({first}{more})")
    if empty := images.empty_cells():
        pairs = ", ".join(f"{d}/{c}" for d, c in empty[:5])
        lines.append(f"{root}: no images of {pairs}{', ...' if len(empty) > 5 else ''}")
    return lines


def usable_images(
    listing: Listing, *, name: str, template: str, reasons: Sequence[str | None] | None = None
) -> tuple[ImageSet, list[LeftOut]]:
    """Return the usable images of a listing, and those that are left out.

    Files are opened once here: empty, unreadable, truncated and huge ones are reported, so that they do not
    stop a run halfway. Pixels are decoded later, by ``ImageSet.read``.

    Args:
        reasons: why each file cannot be used (None: it can), if they have been checked already.
    """
    part_of: dict[str, int] = {}
    for key, part in zip(listing.keys, listing.split or (), strict=False):
        if part_of.setdefault(key, part) != part:
            raise FolderError(
                f"{listing.root}: '{key}' is listed for two parts of the split; get the label files again"
            )
    left_out = [LeftOut(within(listing.root, path), reason) for path, reason in listing.left_out]
    rows = []
    for row, reason in enumerate(cached_reasons(listing.files) if reasons is None else reasons):
        if reason:
            left_out.append(LeftOut(within(listing.root, listing.files[row]), reason))
        else:
            rows.append(row)
    if not rows:
        example = f" ({left_out[0].path}: {left_out[0].reason})" if left_out else ""
        raise FolderError(f"{listing.root}: no readable image of type {', '.join(SUFFIXES)}{example}")
    files = [listing.files[row] for row in rows]
    keys = tuple(listing.keys[row] for row in rows)
    images = ImageSet(
        name=name,
        classes=listing.classes,
        domains=listing.domains,
        template=template,
        labels=np.array(listing.labels, dtype=np.int64)[rows],
        domain=np.array(listing.domain, dtype=np.int64)[rows],
        keys=keys,
        fingerprint=hash_versions(zip(files, keys, strict=True))[:16],
        read=lambda index: decode(files[index]),
        draft=lambda index, side: decode(files[index], side),
        split=None if listing.split is None else np.array(listing.split, dtype=np.int8)[rows],
        owner=None if listing.owner is None else tuple(listing.owner[row] for row in rows),
    )
    return images, left_out


def within(root: Path, path: Path) -> str:
    """Return a path relative to a folder if it lies in it."""
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)
