"""Slow work that a data set may need once before its images can be listed: unpack, convert or measure.

It takes minutes, so a page never does it: within ``defer_slow_work`` a reader raises ``NotPrepared``, whose
message says how to have the work done. Jobs, checks and the command line do it with ``prepare_then``.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping
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
        work: starts the work, which keeps its result on disk.
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
    """Do slow work whose result stays on disk, unless slow work is deferred.

    Args:
        task: the necessary work as a clause, such as ``/data/x.zip has to be unpacked``.

    Raises:
        NotPrepared: within ``defer_slow_work``.
        FedLensError: whatever the work raises.
    """
    if _deferred.get():
        raise NotPrepared(task, work)
    _log.warning("%s", task)
    result_of(work())


def prepare_then(attempt: Callable[[], _Result]) -> Work[_Result]:
    """Return what a function returns, after doing any slow work that it requires, with progress.

    Raises:
        FedLensError: whatever the function or the work raises.
    """
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
        OSError: where the file is gone.
    """
    stat = path.stat()
    line = f"{name or path.name}\0{stat.st_size}\0{stat.st_mtime_ns}\n"
    return line.encode(errors="surrogateescape")  # names that are not UTF-8 exist on disks


def write_result(path: Path, content: Mapping[str, object]) -> None:
    """Write a result as JSON with a digest of its content and of the file's name, which identifies the input.

    The file appears under its name only when it is complete.
    """
    part = path.with_name(f"{path.name}.part-{os.getpid()}")
    part.write_text(json.dumps(_with_digest(path, content)), encoding="utf-8")
    part.replace(path)


def read_result(path: Path) -> dict[str, Any] | None:
    """Return a result that ``write_result`` has written; None if there is none, or it is damaged.

    A damaged result is never used, because it decides which images are trained on; the work is done again.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content != _with_digest(path, content):
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
    own = os.environ.get("FEDLENS_CACHE")
    return Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedlens"


def results_folder(folder: Path) -> Path | None:
    """Return the folder for results of slow work: that of the data set, or else one in the cache.

    None if neither can be written; the work is then repeated each time and cannot be deferred.
    """
    if os.access(folder, os.W_OK):
        return folder
    name = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:16]
    return make_writable(cache_folder() / "prepared" / name)


def make_writable(folder: Path) -> Path | None:
    """Return a folder, made where it does not exist yet; None if it cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return folder if os.access(folder, os.W_OK) else None
