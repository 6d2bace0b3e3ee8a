"""Slow work that a data set may need once before its images can be listed: unpack, convert or measure.

It takes minutes, so a page never does it: within ``defer_slow_work`` a reader raises ``NotPrepared`` with a
message that says how to start the work. Jobs, checks and the command line do it with ``prepare_then``.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar

from fedcore.cache.integrity import description_with_digest, new_digest
from fedcore.errors import DAMAGE, FedLensError, first_line
from fedcore.progress import Work, result_of

_Result = TypeVar("_Result")
_deferred: ContextVar[bool] = ContextVar("slow_work_deferred", default=False)
_log = logging.getLogger(__name__)


class NotPrepared(FedLensError):
    """A data set cannot be read before some slow work has been done.

    Attributes:
        task: the necessary work as a clause, such as ``/data/x.zip has to be unpacked``.
        work: starts the work, which stores its result on disk.
    """

    def __init__(self, task: str, work: Callable[[], Work[None]], command: str = "data check") -> None:
        super().__init__(
            f"{task} once, which takes a while; check the data set first: `fedlens {command}`, or "
            "the page Data & models",
            "data.root",
        )
        self.task, self.work = task, work


@contextmanager
def defer_slow_work() -> Iterator[None]:
    """Raise ``NotPrepared`` instead of beginning slow work, within this block and its thread."""
    token = _deferred.set(True)
    try:
        yield
    finally:
        _deferred.reset(token)


def require_slow_work(task: str, work: Callable[[], Work[None]]) -> None:
    """Do slow work, which stores its result on disk; within ``defer_slow_work`` raise ``NotPrepared``.

    Args:
        task: the necessary work as a clause, such as ``/data/x.zip has to be unpacked``.
    """
    if _deferred.get():
        raise NotPrepared(task, work)
    _log.warning("%s", task)
    result_of(work())


def prepare_then(attempt: Callable[[], _Result]) -> Work[_Result]:
    """Call a function after doing, with progress, all slow work that it requires; return its result."""
    done: set[str] = set()
    while True:
        try:
            with defer_slow_work():
                return attempt()
        except NotPrepared as missing:
            if missing.task in done:
                raise
            done.add(missing.task)
            work = missing.work
        yield from work()


def version_line(path: Path, name: str = "") -> bytes:
    """Return a line for a hash that changes with a file: its name, size and modification time.

    Raises:
        OSError: if the file is gone.
    """
    stat = path.stat()
    line = f"{name or path.name}\0{stat.st_size}\0{stat.st_mtime_ns}\n"
    return line.encode(errors="surrogateescape")  # names that are not UTF-8 exist on disks


def hash_versions(files: Iterable[tuple[Path, str]]) -> hashlib._Hash:
    """Hash the version lines of files and their names: cheap, and it changes when a file does."""
    content = hashlib.sha256()
    for path, name in files:
        content.update(version_line(path, name))
    return content


def write_result(path: Path, content: Mapping[str, object]) -> None:
    """Write a result as JSON; the file appears under its name only when it is complete.

    It contains a digest of its content and of the file's name, which identifies the input: a damaged result,
    or one that was copied to another input's name, would decide which images are trained on.
    """
    part = path.with_name(f"{path.name}.part-{os.getpid()}")
    part.write_text(json.dumps(_with_digest(path, content)), encoding="utf-8")
    part.replace(path)


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


def cache_folder() -> Path:
    """Return the folder FEDLENS_CACHE, or ``fedlens`` in the user's cache folder; it may not exist yet."""
    folder = os.environ.get("FEDLENS_CACHE")
    if folder:
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedlens"


def results_folder(folder: Path) -> Path | None:
    """Return the folder for results of slow work: that of the data set, or else one in the cache.

    It is None if neither can be written: the work is then repeated each time and cannot be deferred.
    """
    if os.access(folder, os.W_OK):
        return folder
    name = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:16]
    return make_writable(cache_folder() / "prepared" / name)


def make_writable(folder: Path) -> Path | None:
    """Create a folder if necessary and return it; None if it cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return folder if os.access(folder, os.W_OK) else None
