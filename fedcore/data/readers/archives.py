"""Archives as data sets are handed out: unpacked once, safely, into a folder ``unpacked-...`` beside them.

A member whose path leads outside, a link or a device refuses the whole archive; hidden files are passed over.
An interrupted unpacking goes on where it stopped. Archives inside archives are unpacked where they lie.
"""

from __future__ import annotations

import contextlib
import hashlib
import lzma
import os
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from fedcore.errors import FedLensError

SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
MAX_BYTES = 1_000_000_000_000
"""Unpacked size beyond which an archive is refused, however much room there is."""

NESTED = 2
"""Archives within archives within an archive, at most."""

_CHUNK = 1 << 20
_BROKEN = (OSError, EOFError, ValueError, zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError)


@dataclass(frozen=True)
class Step:
    """Progress of something slow in bytes; ``total`` 0 where nobody knows."""

    message: str
    done: int
    total: int


def is_archive(path: Path) -> bool:
    """By name: it exists, is a file and ends like an archive."""
    return path.name.lower().endswith(SUFFIXES) and not path.name.startswith(".") and path.is_file()


def packed_in(folder: Path) -> list[Path]:
    """The archives that lie in a folder, sorted."""
    return sorted(path for path in folder.iterdir() if is_archive(path))


def target(archives: Sequence[Path]) -> Path:
    """The folder that these archives are unpacked into: another one when one of them changes."""
    content = hashlib.sha256()
    for path in archives:
        stat = path.stat()
        content.update(f"{path.name}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode(errors="surrogateescape"))
    return archives[0].parent / f"unpacked-{content.hexdigest()[:12]}"


def unpack(archives: Sequence[Path]) -> Iterator[Step]:
    """Unpack archives into ``target``; nothing is yielded where that was done before.

    Raises:
        FedLensError: ``data.root``, for a damaged or unsafe archive, or for want of room or permission.
    """
    final = target(archives)
    if final.is_dir():
        return
    making = final.with_name(f"{final.name}.part")
    try:
        making.mkdir(exist_ok=True)
        for path in archives:
            yield Step(f"unpacking {path.name} into {final}", 0, 0)
            for done, total in _into(path, making):
                yield Step(f"unpacking {path.name}", done, total)
        for _ in range(NESTED):
            for path in [p for p in sorted(making.rglob("*")) if is_archive(p)]:
                yield Step(f"unpacking {path.name}", 0, 0)
                for done, total in _into(path, path.parent):
                    yield Step(f"unpacking {path.name}", done, total)
                path.unlink()
        making.rename(final)
    except FedLensError:
        raise
    except OSError as error:
        if final.is_dir():  # another process was quicker
            return
        raise FedLensError(
            f"cannot unpack {archives[0]} beside it ({error.strerror or error}); make room there, or unpack "
            "it yourself and give the folder",
            "data.root",
        ) from error


def _into(archive: Path, folder: Path) -> Iterator[tuple[int, int]]:
    """Unpack one archive; yields (bytes done, bytes in all) after every file."""
    try:
        if zipfile.is_zipfile(archive):
            yield from _unzip(archive, folder)
        else:
            yield from _untar(archive, folder)
    except FedLensError:
        raise
    except _BROKEN as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise FedLensError(
            f"{archive}: damaged ({error}); get it again, or unpack it yourself and give the folder",
            "data.root",
        ) from error


def _unzip(archive: Path, folder: Path) -> Iterator[tuple[int, int]]:
    with zipfile.ZipFile(archive) as content:
        members = []
        for member in content.infolist():
            link = (member.external_attr >> 16) & 0o170000 == 0o120000
            path = None if member.is_dir() else _inside(archive, folder, member.filename, not link)
            if path is not None and not _whole(path, member.file_size):
                members.append((member, path))
        total, done = sum(member.file_size for member, _ in members), 0
        _refuse_size(archive, total, folder)
        for member, path in members:
            with content.open(member) as source:
                _write(source, path, member.file_size)
            done += member.file_size
            yield done, total


def _untar(archive: Path, folder: Path) -> Iterator[tuple[int, int]]:
    size, done = archive.stat().st_size, 0
    with archive.open("rb") as raw, tarfile.open(fileobj=raw, mode="r:*") as content:
        for member in content:
            path = None if member.isdir() else _inside(archive, folder, member.name, member.isreg())
            if path is not None and not _whole(path, member.size):
                done += member.size
                _refuse_size(archive, member.size, folder, done)
                source = content.extractfile(member)
                assert source is not None, "a regular file"
                _write(source, path, member.size)
            yield raw.tell(), size


def _inside(archive: Path, folder: Path, name: str, regular: bool) -> Path | None:
    """Where a member goes; None for hidden ones.

    Raises:
        FedLensError: ``data.root``, for a path that leads outside, and for links and devices.
    """
    parts = PurePosixPath(name.replace("\\", "/")).parts
    if any((p.startswith(".") and p not in (".", "..")) or p == "__MACOSX" for p in parts):
        return None
    outside = not parts or ".." in parts or name.startswith(("/", "\\")) or ":" in parts[0]
    if outside or not regular:
        what = "leads outside" if outside else "is no plain file"
        raise FedLensError(
            f"{archive}: member '{name}' {what}; do not use this archive unless you trust it, then unpack it "
            "yourself and give the folder",
            "data.root",
        )
    return folder.joinpath(*parts)


def _refuse_size(archive: Path, wanted: int, folder: Path, sum_so_far: int = 0) -> None:
    room = shutil.disk_usage(folder).free
    if max(wanted, sum_so_far) > MAX_BYTES or wanted > room:
        raise FedLensError(
            f"{archive}: unpacked it needs {max(wanted, sum_so_far) / 1e9:,.1f} GB, there is room for "
            f"{min(room, MAX_BYTES) / 1e9:,.1f} GB; make room, or unpack it elsewhere and give the folder",
            "data.root",
        )


def _whole(path: Path, size: int) -> bool:
    """Whether an earlier, interrupted unpacking wrote this file already."""
    return path.is_file() and path.stat().st_size == size


def _write(source: IO[bytes], path: Path, size: int) -> None:
    """A file appears under its name only when it is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    making = path.with_name(f".{path.name}.part-{os.getpid()}")
    try:
        with making.open("wb") as out:
            left = size
            while left and (chunk := source.read(min(_CHUNK, left))):
                out.write(chunk)
                left -= len(chunk)
        if left:
            raise EOFError(f"'{path.name}' ends early")
        making.replace(path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            making.unlink()
