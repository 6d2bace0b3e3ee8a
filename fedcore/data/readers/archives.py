"""Unpack the archives in which data sets are distributed, once and safely, into ``unpacked-...`` beside them.

An archive comes from the network: a link, a device or a path that leads outside could write anywhere on this
machine, so such an archive is refused as a whole. Members are written one by one, each complete or not at
all, instead of with ``extractall``: unpacking 100 GB shows progress, stops before the disk is full, and
continues after an interruption. Archives inside archives are unpacked in place; hidden files are skipped.
"""

import lzma
import os
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import IO

from fedcore.base.errors import FedLensError
from fedcore.base.progress import Progress, Work
from fedcore.data.images import FolderError
from fedcore.data.integrity import hash_versions

SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
MAX_BYTES = 1_000_000_000_000
"""Maximum unpacked size of an archive, even where more space is free."""
MAX_NESTING = 2
"""Levels of archives within an archive that are unpacked."""
_CHUNK = 1 << 20
_BROKEN = (OSError, EOFError, ValueError, zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError)


def is_archive(path: Path) -> bool:
    """Return whether a path is a visible file with an archive's suffix."""
    return path.name.lower().endswith(SUFFIXES) and not path.name.startswith(".") and path.is_file()


def archives_in(folder: Path) -> list[Path]:
    """Return the archives in a folder, sorted."""
    return sorted(path for path in folder.iterdir() if is_archive(path))


def unpacked_folder(archives: Sequence[Path]) -> Path:
    """Return the folder that archives are unpacked into; its name changes with the archives."""
    digest = hash_versions((path, path.name) for path in archives)
    return archives[0].parent / f"unpacked-{digest[:12]}"


def unpack(archives: Sequence[Path]) -> Work[None]:
    """Unpack archives into ``unpacked_folder``, unless it exists."""
    final = unpacked_folder(archives)
    if final.is_dir():
        return
    part = final.with_name(f"{final.name}.part")
    try:
        part.mkdir(exist_ok=True)
        for path in archives:
            yield Progress(f"unpacking {path.name} into {final}", 0, 0)
            yield from _extract(path, part)
        for _ in range(MAX_NESTING):
            for path in [p for p in sorted(part.rglob("*")) if is_archive(p)]:
                yield Progress(f"unpacking {path.name}", 0, 0)
                yield from _extract(path, path.parent)
                path.unlink()
        part.rename(final)
    except FedLensError:
        raise
    except OSError as error:
        if final.is_dir():  # another process was faster
            return
        raise FolderError(
            f"cannot unpack {archives[0]} beside it ({error.strerror or error}); free space there, or "
            "unpack it yourself and give the folder"
        ) from error


def _extract(archive: Path, folder: Path) -> Work[None]:
    """Unpack one archive, with progress in its own bytes; members that are complete already are left."""
    size, unpacked = archive.stat().st_size, 0
    try:
        if not any(folder.iterdir()):  # images are compressed already, so that they need about as much
            _refuse_size(archive, folder, size, size)
        with archive.open("rb") as raw:
            for name, member_size, content in _members(raw):
                path = _destination(archive, folder, name, content is not None)
                if path is None or content is None or (path.is_file() and path.stat().st_size == member_size):
                    continue
                unpacked += member_size
                _refuse_size(archive, folder, member_size, unpacked)
                path.parent.mkdir(parents=True, exist_ok=True)
                # another process may unpack the same member, so it gets its name when it is complete
                part = path.with_name(f".{path.name}.part-{os.getpid()}")
                try:
                    with part.open("wb") as out:
                        shutil.copyfileobj(content, out, _CHUNK)
                    part.replace(path)
                finally:
                    part.unlink(missing_ok=True)  # on a full disk, the space of what was begun
                yield Progress(f"unpacking {archive.name}", raw.tell(), size)
        yield Progress(f"unpacking {archive.name}", size, size)
    except FedLensError:
        raise
    except _BROKEN as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        reason = str(error).partition("\n")[0].rstrip(":") or type(error).__name__  # tarfile gives five lines
        raise FolderError(
            f"{archive}: damaged ({reason}); get it again, or unpack it yourself and give the folder"
        ) from error


def _members(raw: IO[bytes]) -> Iterator[tuple[str, int, IO[bytes] | None]]:
    """Yield name, size and content of an archive's members but folders; links and devices have no content."""
    if not zipfile.is_zipfile(raw):
        raw.seek(0)
        with tarfile.open(fileobj=raw, mode="r:*") as tar:
            for entry in tar:
                if not entry.isdir():
                    yield entry.name, entry.size, tar.extractfile(entry) if entry.isreg() else None
        return
    with zipfile.ZipFile(raw) as archive:
        for member in archive.infolist():
            is_link = (member.external_attr >> 16) & 0o170000 == 0o120000
            if not member.is_dir():
                yield member.filename, member.file_size, None if is_link else archive.open(member)


def _destination(archive: Path, folder: Path, name: str, regular: bool) -> Path | None:
    """Return the path that a member is written to; None for a hidden member. Unsafe members are refused."""
    parts = PurePosixPath(name.replace("\\", "/")).parts
    if any((p.startswith(".") and p not in (".", "..")) or p == "__MACOSX" for p in parts):
        return None
    outside = not parts or ".." in parts or name.startswith(("/", "\\")) or ":" in parts[0]
    if outside or not regular:
        what = "leads outside" if outside else "is not a regular file"
        raise FolderError(
            f"{archive}: member '{name}' {what}; do not use this archive unless you trust it, then unpack it "
            "yourself and give the folder"
        )
    return folder.joinpath(*parts)


def _refuse_size(archive: Path, folder: Path, wanted: int, unpacked: int) -> None:
    free = shutil.disk_usage(folder).free
    if unpacked > MAX_BYTES or wanted > free:
        raise FolderError(
            f"{archive}: unpacked it needs {unpacked / 1e9:,.1f} GB, there is room for "
            f"{min(free, MAX_BYTES) / 1e9:,.1f} GB; free space, or unpack it elsewhere and give the folder"
        )
