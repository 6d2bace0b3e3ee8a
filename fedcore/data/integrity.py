"""Digests of files: a change on the disk is noticed before an array or a result of slow work is used.

``NAME.json`` holds a digest of all bytes of ``NAME.npy`` and of the description itself. Without it, a flipped
bit of a disk, a file cut short by a full one or a copied file of another data set would become numbers in the
results, and nobody would know. An array without a digest counts as damaged.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError
from typing import Any, Literal

import numpy as np
import xxhash

from fedcore.base.errors import DAMAGE, first_line
from fedcore.base.files import new_digest, write_whole
from fedcore.base.progress import Progress, Work, result_of

_DIGEST = "digest"
_BLOCK = 1 << 20
_REPORT_EVERY = 256 * _BLOCK
FileIdentity = tuple[tuple[int, ...] | None, ...]
_checked: dict[Path, FileIdentity] = {}
"""Arrays that this process has found intact -> identity of their files at that time."""
_log = logging.getLogger(__name__)


def description_file(path: Path) -> Path:
    """Return the path of an array's description."""
    return path.with_suffix(".json")


def description_with_digest(description: Mapping[str, object], array: xxhash.xxh3_128) -> dict[str, object]:
    """Return an array's description with the digest of both; ``array`` has read all bytes of the file."""
    content = {k: v for k, v in description.items() if k != _DIGEST}
    both = array.copy()
    both.update(json.dumps(content, sort_keys=True).encode())
    return content | {_DIGEST: both.hexdigest()}


def write_description(path: Path, description: Mapping[str, object]) -> None:
    """Write an array's description, completely or not at all."""
    write_whole(description_file(path), json.dumps(description).encode())


def identity(path: Path) -> FileIdentity:
    """Return an identity that changes if an array or its description is rewritten; None if it is missing."""
    return tuple(stat_identity(file) for file in (path, description_file(path)))


def stat_identity(file: Path) -> tuple[int, ...] | None:
    """Return an identity that changes if a file is written or replaced; None if it is missing."""
    try:
        stat = file.stat()
    except FileNotFoundError:
        return None
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


@dataclass(frozen=True)
class Checked:
    """The result of checking an array.

    Attributes:
        seen: identity of the files that were read.
        damage: the defect of a damaged array, else "".
    """

    state: Literal["intact", "damaged", "missing"]
    seen: FileIdentity
    damage: str = ""


def check(path: Path, expected: Mapping[str, object] | None = None) -> Work[Checked]:
    """Read an array and compare it with its digest; once per process, unless its files change.

    Args:
        expected: ``shape`` and ``dtype`` that the array must have, and values of its description.
    """
    seen = identity(path)
    if seen[0] is None:
        return Checked("missing", seen)
    try:
        header, description = _read_header(path), _read_description(path)
        for name, value in (expected or {}).items():
            for recorded in (header, description):
                if recorded.get(name, value) != value:
                    return Checked("damaged", seen, f"its {name} is {recorded[name]}, not {value}")
        if _checked.get(path) == seen:
            return Checked("intact", seen)
        complete = description_with_digest(header | description, (yield from _read(path)))
    except (OSError, ValueError, SyntaxError, TokenError) as error:  # the last two: numpy parses the header
        return Checked("damaged", seen, first_line(error))
    if description != complete:
        return Checked("damaged", seen, "its bytes are not those that were written")
    _checked[path] = seen
    return Checked("intact", seen)


def _read(path: Path) -> Work[xxhash.xxh3_128]:
    digest, buffer = new_digest(), memoryview(bytearray(_BLOCK))
    done, total = 0, path.stat().st_size
    with path.open("rb", buffering=0) as file:
        while size := file.readinto(buffer):
            digest.update(buffer[:size])
            done += size
            if done % _REPORT_EVERY == 0:
                yield Progress(f"checking {path.stem}", done, total)
    return digest


def _read_header(path: Path) -> dict[str, object]:
    """Return the shape and dtype that an array's file declares; refuse a file of another length."""
    with path.open("rb") as file:
        np.lib.format.read_magic(file)
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        declared = file.tell() + math.prod(shape) * dtype.itemsize
    size = path.stat().st_size
    if size != declared:
        raise ValueError(f"{size:,} bytes where its header declares {declared:,}")
    return {"shape": list(shape), "dtype": dtype.name}


def _read_description(path: Path) -> dict[str, object]:
    """Return an array's description; empty if it has none. It must be exactly as FedLens writes it."""
    file = description_file(path)
    if not file.exists():
        return {}
    text = file.read_text(encoding="utf-8")
    description = json.loads(text)
    if not isinstance(description, dict) or json.dumps(description) != text:
        raise ValueError(f"{file.name} is damaged")
    return description


def changed_since(path: Path, seen: FileIdentity) -> str:
    """Describe a change of an array's file since ``seen``; empty if its bytes are the same.

    The file is read again only if its size or times differ.
    """
    before, now = seen[0], identity(path)[0]
    if now == before:
        return ""
    if now is None or before is None or now[:2] != before[:2]:
        return "it was deleted" if now is None else "it was replaced"
    return result_of(check(path)).damage


def file_digest(path: Path) -> str:
    """Return the digest of a whole file."""
    return result_of(_read(path)).hexdigest()


def verify(path: Path) -> list[str]:
    """Return a line for each defect of a finished array; nothing is changed."""
    checked = result_of(check(path))
    return [f"{path.name}: {checked.damage}"] if checked.state == "damaged" else []


def version_line(path: Path, name: str) -> bytes:
    """Return a line for a hash that changes with a file: its name, size and modification time.

    Raises:
        OSError: if the file is gone.
    """
    stat = path.stat()
    line = f"{name}\0{stat.st_size}\0{stat.st_mtime_ns}\n"
    return line.encode(errors="surrogateescape")  # names that are not UTF-8 exist on disks


def hash_versions(files: Iterable[tuple[Path, str]]) -> str:
    """Hash the version lines of files and their names: cheap, and it changes when a file does or goes."""
    content = hashlib.sha256()
    for path, name in files:
        try:
            content.update(version_line(path, name))
        except OSError:
            content.update(f"{name}\0gone\n".encode(errors="surrogateescape"))
    return content.hexdigest()


def write_result(path: Path, content: Mapping[str, object]) -> None:
    """Write a result as JSON; the file appears under its name only when it is complete.

    It contains a digest of its content and of the file's name, which identifies the input: a damaged result,
    or one that was copied to another input's name, would decide which images are trained on.
    """
    write_whole(path, json.dumps(_with_digest(path, content)).encode())


def read_result(path: Path) -> dict[str, Any] | None:
    """Return a result of ``write_result``; None if it is missing or damaged, so that the work is redone."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict) or content != _with_digest(path, content):
            raise ValueError("its content is not what was written")
    except FileNotFoundError:
        return None
    except (OSError, *DAMAGE) as error:
        _log.warning("%s is not used and will be made again: %s", path, first_line(error))
        return None
    return dict(content)


def _with_digest(path: Path, content: Mapping[str, object]) -> dict[str, object]:
    return description_with_digest(content, new_digest(path.name.encode()))
