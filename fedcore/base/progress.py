"""Slow work: a function that works for long yields ``Progress`` and returns its result.

What a data set needs once before its images can be listed (unpacking, converting, measuring) takes minutes,
so a page never does it: within ``defer_slow_work`` a reader raises ``NotPrepared`` with a message that says
how to start the work. Jobs, checks and the command line do it with ``prepare_then``.
"""

import logging
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeVar

from fedcore.base.errors import FedLensError

_Result = TypeVar("_Result")
_Step = TypeVar("_Step")
_deferred: ContextVar[bool] = ContextVar("slow_work_deferred", default=False)
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Progress:
    """One report of slow work, e.g. ``encoding 300/1800``.

    Attributes:
        message: names the step, e.g. ``encoding``.
        done: amount done so far, in units of the work.
        total: amount in all; 0 if it is unknown.
        in_bytes: whether both are bytes of a download.
    """

    message: str
    done: int
    total: int
    in_bytes: bool = False


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: ``1 run``, ``1,200 runs``, ``2 classes``."""
    plural = f"{noun}es" if noun.endswith(("s", "x", "ch")) else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


def listed(names: Sequence[str], most: int | None = None) -> str:
    """Return names in a sentence: ``a``, ``a and b``, or with ``most`` = 2 ``a, b and 3 more``."""
    shown = list(
        names if most is None or len(names) <= most else [*names[:most], f"{len(names) - most} more"]
    )
    return " and ".join(filter(None, [", ".join(shown[:-1]), *shown[-1:]]))


def first_few(texts: Sequence[str], most: int, between: str = ", ") -> str:
    """Return texts side by side, at most ``most`` of them: with ``most`` = 2 ``a, b and 3 more``."""
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return between.join(texts[:most]) + more


def shortened(text: str, most: int) -> str:
    """Return a text, cut at its end if it has more than ``most`` characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


Work = Generator[Progress, None, _Result]
"""Slow work in progress: ``result = yield from work`` passes its progress on and takes its result."""


def result_of(
    work: Generator[_Step, None, _Result], report: Callable[[_Step], object] = lambda step: None
) -> _Result:
    """Run slow work to its end and return its result; ``report`` is called with each of its reports."""
    with closing(work):  # ``report`` may raise, or a page end in it; what the work has open is closed at once
        while True:
            try:
                step = next(work)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]  # StopIteration.value is untyped
            report(step)


def relay(
    work: Generator[_Step, None, _Result], keep: Callable[[_Step], bool]
) -> Generator[_Step, None, _Result]:
    """Pass on those reports of slow work for which ``keep`` returns True, and return the work's result."""
    with closing(work):
        while True:
            try:
                step = next(work)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]  # StopIteration.value is untyped
            if keep(step):
                yield step


def in_thread(function: Callable[[], object]) -> Generator[None, None, None]:
    """Call a function in a thread, yield at first and every quarter of a second, and raise its error.

    If the caller stops early, the function continues until the process ends.
    """
    errors: list[Exception] = []

    def call() -> None:
        try:
            function()
        except Exception as error:  # noqa: BLE001 - raised below, in the caller's thread
            errors.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    while thread.is_alive():
        yield
        thread.join(0.25)
    if errors:
        raise errors[0]


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


class Pace:
    """The speed at which images are encoded, since the first report.

    Work done before that report, e.g. by an interrupted attempt, does not count.
    """

    def __init__(self) -> None:
        self._first: tuple[float, int] | None = None

    def text(self, done: int, total: int) -> str:
        """Return ``312 images/s, 25 s left``, or an empty text until the speed is known."""
        now = time.monotonic()
        if self._first is None:
            self._first = (now, done)
        seconds, steps = now - self._first[0], done - self._first[1]
        if seconds <= 0 or steps <= 0:
            return ""
        rate = steps / seconds
        shown = f"{rate:,.0f}" if rate >= 10 else f"{rate:.1f}"
        return f"{shown} images/s, {duration((total - done) / rate)} left"


def about(seconds: float) -> str:
    """Write an estimated duration as ``about 40 s``, ``about 11 min`` or ``about 3 h``: not to the second."""
    if seconds < 57.5:
        return f"about {max(5, 5 * round(seconds / 5))} s"
    if seconds < 5400:
        return f"about {max(1, round(seconds / 60))} min"
    return f"about {seconds / 3600:.1f} h".replace(".0 h", " h")


def duration(seconds: float | None) -> str:
    """Write a duration as ``42 s``, ``3 min 20 s`` or ``2 h 05 min``; None as an empty text."""
    if seconds is None:
        return ""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
