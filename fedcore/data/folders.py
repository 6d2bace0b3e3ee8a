"""Data sets from a folder: ``domain/class/image`` or ``class/image``, checked before anything trains."""

from __future__ import annotations

import difflib
import hashlib
import io
import os
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from fedcore.data.images import ImageSet
from fedcore.errors import FedLensError

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")
MAX_PIXELS = 89_478_485
"""Larger images are left out (Pillow's own limit): a small file can unpack to more memory than there is."""

ONE_DOMAIN = "all"
"""Name of the only domain of a ``class/image`` folder."""


@dataclass(frozen=True)
class LeftOut:
    """A file that is not used. path: relative to the folder; reason: e.g. ``empty file``."""

    path: str
    reason: str


@dataclass(frozen=True)
class FolderReport:
    """What was found. left_out: unusable images; empty: (domain, class) pairs without images."""

    root: str
    images: int
    left_out: tuple[LeftOut, ...]
    empty: tuple[tuple[str, str], ...]

    def warnings(self) -> list[str]:
        """One line per kind of trouble, none where all is well."""
        lines = []
        if self.left_out:
            first = "; ".join(f"{x.path}: {x.reason}" for x in self.left_out[:3])
            more = "; ..." if len(self.left_out) > 3 else ""
            lines.append(f"{self.root}: {len(self.left_out)} images left out ({first}{more})")
        if self.empty:
            pairs = ", ".join(f"{d}/{c}" for d, c in self.empty[:5]) + (
                ", ..." if len(self.empty) > 5 else ""
            )
            lines.append(f"{self.root}: no images of {pairs}")
        return lines


@dataclass(frozen=True)
class Layout:
    """Domains and classes by folder name, sorted; ``nested`` is False for ``class/image``."""

    root: Path
    domains: tuple[str, ...]
    classes: tuple[str, ...]
    nested: bool

    def folder(self, domain: str, name: str) -> Path:
        """The folder that holds one class of one domain."""
        return self.root / domain / name if self.nested else self.root / name


def layout(root: str | Path, domains: Iterable[str] | None = None) -> Layout:
    """Which domains and classes a folder has, from its folder names alone (quick: no image is opened).

    Args:
        root: the data set's folder.
        domains: the domains to use; other folders beside them are then not looked at.

    Raises:
        FedLensError: ``data.root`` or ``data.domains``, when the folder is missing, has no images or its
            domains differ in their classes.
    """
    root = _existing(root)
    top = _folders(root, root)
    if not top:
        raise FedLensError(
            f"{root}: no folders in it; expected domain/class/image or class/image", "data.root"
        )
    wanted = None if domains is None else set(domains)
    flat = [name for name in top if any(_images_in(root, root / name))]
    if wanted is None and len(flat) == len(top):
        return Layout(root, (ONE_DOMAIN,), tuple(top), nested=False)
    if wanted == {ONE_DOMAIN} and flat and ONE_DOMAIN not in top:
        return layout(root)
    used = top if wanted is None else _chosen(root, top, wanted)
    classes = {domain: set(_folders(root, root / domain)) for domain in used}
    _refuse_mixture(root, used, flat, classes)
    return Layout(root, tuple(used), _agreed(root, classes), nested=True)


def read(
    root: str | Path,
    *,
    name: str = "folder",
    template: str = "a picture of a {}.",
    domains: Iterable[str] | None = None,
) -> tuple[ImageSet, FolderReport]:
    """The images of a folder, and what was left out of them.

    Files are opened once: empty, unreadable, truncated and huge ones are listed in the report, so that none
    stops a run in its middle. Pixels are decoded later, by ``ImageSet.read``: upright (EXIF), RGB.

    Raises:
        FedLensError: as ``layout``; also for links that leave the folder, and where no image is readable.
    """
    found = layout(root, domains)
    labels, domain, files, left_out, empty = [], [], [], [], []
    for d, domain_name in enumerate(found.domains):
        for c, class_name in enumerate(found.classes):
            folder = found.folder(domain_name, class_name)
            before = len(files)
            for path in sorted(_images_in(found.root, folder)):
                reason = fault(path)
                if reason:
                    left_out.append(LeftOut(path.relative_to(found.root).as_posix(), reason))
                    continue
                files.append(path)
                labels.append(c)
                domain.append(d)
            if len(files) == before:
                empty.append((domain_name, class_name))
    report = FolderReport(str(found.root), len(files), tuple(left_out), tuple(empty))
    if not files:
        reasons = f" ({report.left_out[0].path}: {report.left_out[0].reason})" if left_out else ""
        raise FedLensError(
            f"{found.root}: no readable image of type {', '.join(SUFFIXES)}{reasons}", "data.root"
        )
    keys = tuple(path.relative_to(found.root).as_posix() for path in files)
    images = ImageSet(
        name=name,
        classes=prompt_names(found.root, found.classes),
        domains=found.domains,
        template=template,
        labels=np.array(labels, dtype=np.int64),
        domain=np.array(domain, dtype=np.int64),
        keys=keys,
        fingerprint=_fingerprint(keys, files),
        read=lambda index: decode(files[index]),
    )
    return images, report


def prompt_names(root: Path, classes: tuple[str, ...]) -> tuple[str, ...]:
    """Class names as they enter a prompt: ``Alarm_Clock`` is written "Alarm Clock".

    Raises:
        FedLensError: when two folders would share a name.
    """
    names = tuple(" ".join(c.replace("_", " ").split()) for c in classes)
    twice = next((i for i, n in enumerate(names) if n in names[:i]), None)
    if twice is not None:
        other = classes[names.index(names[twice])]
        raise FedLensError(
            f"{root}: classes '{other}' and '{classes[twice]}' read the same; rename one", "data.root"
        )
    return names


def decode(path: Path) -> Image.Image:
    """An image as a viewer shows it: EXIF orientation applied, RGB.

    Raises:
        FedLensError: naming the file, when it has become unreadable since it was checked.
    """
    try:
        with Image.open(path) as image:
            return to_rgb(ImageOps.exif_transpose(image))
    except (OSError, SyntaxError, ValueError) as error:
        raise FedLensError(
            f"{path}: cannot be decoded any more ({error}); restore or remove it", "data.root"
        ) from error


def to_rgb(image: Image.Image) -> Image.Image:
    """Any mode to RGB. 16-bit grey is scaled to 8 bits, where Pillow alone would clip it to white."""
    if image.mode.startswith("I"):
        grey = np.asarray(image, dtype=np.float64)
        return Image.fromarray((grey / 257 + 0.5).clip(0, 255).astype(np.uint8)).convert("RGB")
    return image.convert("RGB")


def fault(path: Path) -> str | None:
    """Why an image cannot be used, or None. A JPEG is read at both ends only, the rest is decoded."""
    try:
        if path.stat().st_size == 0:
            return "empty file"
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path) as image:
                if image.format == "JPEG" and _ends_with(path, b"\xff\xd9"):
                    return None
                image.load()
    except (Image.DecompressionBombWarning, Image.DecompressionBombError):
        return f"more than {MAX_PIXELS:,} pixels"
    except Image.UnidentifiedImageError:
        return "not an image"
    except (OSError, SyntaxError, ValueError) as error:
        return f"unreadable: {error}"
    return None


def _ends_with(path: Path, marker: bytes) -> bool:
    """Whether a marker stands in the last 64 bytes (cameras pad their files)."""
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, io.SEEK_END) - 64))
        return marker in file.read()


def _existing(root: str | Path) -> Path:
    path = Path(root).expanduser()
    if not path.exists():
        raise FedLensError(f"no folder {path}; give the folder that holds the data set", "data.root")
    if not path.is_dir():
        raise FedLensError(f"{path} is a file; unpack it and give the folder", "data.root")
    return path.resolve()


def _visible(entry: os.DirEntry[str]) -> bool:
    return not entry.name.startswith(".") and entry.name != "__MACOSX"


def _folders(root: Path, folder: Path) -> list[str]:
    """Names of the folders in a folder, sorted, hidden ones left out."""
    with os.scandir(folder) as entries:
        found = sorted(e.name for e in entries if _visible(e) and e.is_dir())
    for name in found:
        _refuse_leaving(root, folder / name)
    return found


def _images_in(root: Path, folder: Path) -> Iterable[Path]:
    if not folder.is_dir():
        return
    with os.scandir(folder) as entries:
        for entry in entries:
            if _visible(entry) and Path(entry.name).suffix.lower() in SUFFIXES and not entry.is_dir():
                path = folder / entry.name
                if entry.is_symlink():
                    _refuse_leaving(root, path)
                yield path


def _refuse_leaving(root: Path, path: Path) -> None:
    if path.is_symlink() and not path.resolve().is_relative_to(root):
        raise FedLensError(
            f"{path} is a link that leaves the folder; copy what it points to, "
            "or give the folder it points to as root",
            "data.root",
        )


def _chosen(root: Path, top: list[str], wanted: set[str]) -> list[str]:
    missing = sorted(wanted - set(top))
    if missing:
        near = difflib.get_close_matches(missing[0], top, n=1, cutoff=0.5)
        hint = f"did you mean '{near[0]}'?" if near else f"its folders are {', '.join(top[:12])}"
        raise FedLensError(f"{root}: no domain folder '{missing[0]}'; {hint}", "data.domains")
    return [name for name in top if name in wanted]


def _refuse_mixture(root: Path, used: list[str], flat: list[str], classes: dict[str, set[str]]) -> None:
    """Folders of images beside folders of folders: which level are the classes?"""
    images_only = next((d for d in used if d in flat), None)
    if images_only is not None:
        raise FedLensError(
            f"{root}: folder '{images_only}' holds images where the others hold class folders; expected "
            "domain/class/image throughout",
            "data.root",
        )
    bare = next((d for d in used if not classes[d]), None)
    if bare is not None:
        raise FedLensError(
            f"{root}: folder '{bare}' holds neither images ({', '.join(SUFFIXES)}) nor class folders; "
            "remove it or name the domains to use in data.domains",
            "data.root",
        )


def _agreed(root: Path, classes: dict[str, set[str]]) -> tuple[str, ...]:
    """The classes that all domains have.

    Raises:
        FedLensError: where a domain lacks a class that most others have, or has one that they lack.
    """
    every = sorted(set().union(*classes.values()))
    for name in every:
        holders = [d for d in classes if name in classes[d]]
        if len(holders) == len(classes):
            continue
        if len(holders) * 2 < len(classes):
            near = difflib.get_close_matches(name, [c for c in every if c != name], n=1, cutoff=0.6)
            hint = f"rename it ('{near[0]}'?)" if near else "remove it"
            raise FedLensError(
                f"{root}: domain '{holders[0]}' has a class folder '{name}' that the other domains lack; "
                f"{hint} or add it to them (an empty folder will do)",
                "data.root",
            )
        lacking = next(d for d in classes if name not in classes[d])
        raise FedLensError(
            f"{root}: domain '{lacking}' has no class folder '{name}' that the other domains have; "
            "add it (an empty folder will do) or leave the domain out of data.domains",
            "data.root",
        )
    return tuple(every)


def _fingerprint(keys: tuple[str, ...], files: list[Path]) -> str:
    """From relative paths, sizes and modification times: cheap, and it changes when a file does."""
    content = hashlib.sha256()
    for key, path in zip(keys, files, strict=True):
        stat = path.stat()
        line = f"{key}\0{stat.st_size}\0{stat.st_mtime_ns}\n"
        content.update(line.encode(errors="surrogateescape"))  # names that are not UTF-8 exist on disks
    return content.hexdigest()[:16]
