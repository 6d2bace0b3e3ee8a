"""How fast something slow goes, and when it will be done."""

from __future__ import annotations

import time
from collections.abc import Callable


class Pace:
    """Speed since the first look: what was there before (an interrupted attempt's rows) does not count."""

    def __init__(self, unit: str = "images", clock: Callable[[], float] = time.monotonic) -> None:
        self._unit, self._clock = unit, clock
        self._first: tuple[float, int] | None = None

    def text(self, done: int, total: int) -> str:
        """``312 images/s, 25 s left``; empty until there is something to tell."""
        now = self._clock()
        if self._first is None:
            self._first = (now, done)
        seconds, steps = now - self._first[0], done - self._first[1]
        if seconds <= 0 or steps <= 0:
            return ""
        rate = steps / seconds
        shown = f"{rate:,.0f}" if rate >= 10 else f"{rate:.1f}"
        return f"{shown} {self._unit}/s, {span((total - done) / rate)} left"


def span(seconds: float) -> str:
    """``25 s``, ``4 min 10 s`` or ``2 h 5 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
