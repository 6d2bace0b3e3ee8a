"""Plans made in background threads, for a page that must not wait while a large folder is listed.

A folder of half a million files takes many seconds to be listed. The planner starts a plan, returns a future
and keeps the last plans and the last large data sets for a while.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from threading import Lock

from PIL import Image

from fedcore.config import DataConfig, Experiment
from fedcore.data.images import ImageSet
from fedcore.data.slow_work import defer_slow_work
from fedcore.engine.plan import Plan, plan
from fedcore.engine.prepare import read_images

PLAN_SECONDS, ERROR_SECONDS = 300.0, 5.0
"""Seconds for which a plan or an error is valid: the disk may change, and the user will fix an error soon."""
SLOW_SECONDS = 1.0
"""Reading a data set for longer than this makes the planner keep it for the next plans."""
MAX_PLANS, MAX_SETS = 32, 2


@dataclass(frozen=True)
class PlanResult:
    """A plan or the error that prevents it, and when it was made (``time.monotonic``)."""

    answer: Plan | Exception
    made_at: float

    @property
    def is_fresh(self) -> bool:
        """Return whether the result still holds."""
        holds = PLAN_SECONDS if isinstance(self.answer, Plan) else ERROR_SECONDS
        return time.monotonic() - self.made_at < holds


class Planner:
    """Makes plans in threads and keeps the last ones; all sessions of the dashboard share one."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="plan")
        self._lock = Lock()
        self._plans: OrderedDict[tuple[str, str], Future[PlanResult]] = OrderedDict()
        self._sets: OrderedDict[str, tuple[float, tuple[ImageSet, list[str]]]] = OrderedDict()

    def request(self, experiment: Experiment, version: str = "") -> Future[PlanResult]:
        """Return the plan of an experiment, and start it if there is no fresh one.

        Args:
            version: changes with what the plan depends on outside of the experiment, as class descriptions.
        """
        key = experiment.model_dump_json(), version
        with self._lock:
            future = self._plans.get(key)
            if future is None or future.cancelled() or (future.done() and not future.result().is_fresh):
                future = self._plans[key] = self._pool.submit(self._make, experiment)
            self._plans.move_to_end(key)
            while len(self._plans) > MAX_PLANS:
                self._plans.popitem(last=False)[1].cancel()
            return future

    def _make(self, experiment: Experiment) -> PlanResult:
        try:
            with defer_slow_work():
                answer: Plan | Exception = plan(experiment, self._read)
        except Exception as error:  # noqa: BLE001 - an unforeseen error is raised by the page that asked
            answer = error
            with self._lock:
                self._sets.clear()  # the user may be repairing the folder
        return PlanResult(answer, time.monotonic())

    def _read(self, data: DataConfig, side: int) -> tuple[ImageSet, list[str]]:
        """Read a data set without its pixels; a large one is read once for all plans of a few minutes."""
        key = f"{side} {data.model_dump_json(include={'name', 'root', 'domains', 'columns', 'decode'})}"
        began = time.monotonic()
        with self._lock:
            read_at, known = self._sets.get(key, (0.0, None))
        if known is None or began - read_at > PLAN_SECONDS:
            images, left_out = read_images(data.model_copy(update={"template": None}), side)
            known = replace(images, read=_no_pixels, draft=None), left_out
            if time.monotonic() - began > SLOW_SECONDS:
                with self._lock:
                    self._sets[key] = time.monotonic(), known
                    while len(self._sets) > MAX_SETS:
                        self._sets.popitem(last=False)
        images, left_out = known
        return (replace(images, template=data.template) if data.template else images), left_out


def _no_pixels(index: int) -> Image.Image:
    raise AssertionError("a plan reads no pixels")
