"""What a data set may need once before it can be listed: unpacked archives, converted json, measured photos.

That takes minutes, so a page never does it: within ``put_off`` a loader raises ``NotPrepared`` instead, and
the reader is told how to have it done. Jobs, checks and the command line do it with progress (``Prepared``).
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Generic, TypeVar

from fedcore.data.readers.archives import Step
from fedcore.errors import FedLensError

_Result = TypeVar("_Result")
_put_off: ContextVar[bool] = ContextVar("put_off", default=False)
_log = logging.getLogger(__name__)


class NotPrepared(FedLensError):
    """Something slow has to be done first. work: does it, step by step, and keeps the result on disk."""

    def __init__(self, what: str, work: Callable[[], Iterator[Step]], command: str = "data check") -> None:
        super().__init__(
            f"{what} once, which takes a while; check the data set first: `fedlens {command}`, or "
            "the page Data & models",
            "data.root",
        )
        self.what, self.work = what, work


@contextmanager
def put_off() -> Iterator[None]:
    """Within it (and its thread) nothing slow is begun."""
    token = _put_off.set(True)
    try:
        yield
    finally:
        _put_off.reset(token)


def do_first(what: str, work: Callable[[], Iterator[Step]]) -> None:
    """Do slow work whose result stays, unless it is put off. what: ``/data/x.zip has to be unpacked``.

    Raises:
        NotPrepared: within ``put_off``.
        FedLensError: what the work raises.
    """
    if _put_off.get():
        raise NotPrepared(what, work)
    _log.warning("%s", what)
    for _ in work():
        pass


def cache() -> Path:
    """FEDLENS_CACHE, or ``fedlens`` in the user's cache folder; may not exist yet."""
    own = os.environ.get("FEDLENS_CACHE")
    return Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedlens"


def kept_in(folder: Path) -> Path | None:
    """Where what is made of a data set's folder is kept: there, else in a folder of the cache of its own.

    None where neither can be written: the work is then done each time, and cannot be put off.
    """
    if os.access(folder, os.W_OK):
        return folder
    name = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:16]
    return writable(cache() / "prepared" / name)


def writable(folder: Path) -> Path | None:
    """A folder, made where it is not there; None where it cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return folder if os.access(folder, os.W_OK) else None


class Prepared(Generic[_Result]):
    """Iterate over it for the steps of what has to be done first (mostly none), then take ``result``."""

    result: _Result

    def __init__(self, attempt: Callable[[], _Result]) -> None:
        self._attempt = attempt

    def __iter__(self) -> Iterator[Step]:
        """The steps.

        Raises:
            FedLensError: what the attempt or the work raises.
        """
        done: set[str] = set()
        while True:
            try:
                with put_off():
                    self.result = self._attempt()
                return
            except NotPrepared as missing:
                if missing.what in done:
                    raise
                done.add(missing.what)
                work = missing.work
            yield from work()
