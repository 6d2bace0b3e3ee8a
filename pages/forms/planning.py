"""Plans made in threads: a page waits a moment for one, and looks again where it takes longer.

A folder of half a million files takes many seconds to be listed; the page must not stand still meanwhile.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Mapping
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from threading import Lock

import streamlit as st
from PIL import Image

from fedcore.config import DataConfig, Experiment
from fedcore.data.images import ImageSet
from fedcore.data.slow_work import defer_slow_work
from fedcore.engine.plan import Plan, plan
from fedcore.engine.prepare import read_images
from fedcore.errors import FedLensError

PATIENCE = 1.2
"""Seconds that a page waits for a plan before it shows itself without."""
KEPT, KEPT_ERROR = 300.0, 5.0
"""Seconds for which an answer holds: what is on the disk may change, and an error is there to be mended."""
SLOW = 1.0
"""Seconds from which on what was read of a data set is kept for the next plans."""
MOST_PLANS, MOST_SETS = 32, 2
_ASKED, _WAITED, _DRAWN = "plan_asked", "plan_waited_for", "plan_drawn"


@dataclass(frozen=True)
class Made:
    """A plan or what is wrong with it, and when that was found (``time.monotonic``)."""

    answer: Plan | Exception
    at: float

    @property
    def holds(self) -> bool:
        """Whether nothing need have changed since."""
        return time.monotonic() - self.at < (KEPT if isinstance(self.answer, Plan) else KEPT_ERROR)


class Planner:
    """Makes plans in threads and keeps the last ones; shared by all sessions."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="plan")
        self._lock = Lock()
        self._plans: OrderedDict[tuple[str, str], Future[Made]] = OrderedDict()
        self._sets: OrderedDict[str, tuple[float, tuple[ImageSet, list[str]]]] = OrderedDict()

    def ask(self, experiment: str, texts: str) -> Future[Made]:
        """The plan of an experiment (as JSON), begun where it is not there. texts: another key for it."""
        with self._lock:
            found = self._plans.get((experiment, texts))
            if found is None or found.cancelled() or (found.done() and not found.result().holds):
                found = self._plans[experiment, texts] = self._pool.submit(self._make, experiment)
            self._plans.move_to_end((experiment, texts))
            while len(self._plans) > MOST_PLANS:
                self._plans.popitem(last=False)[1].cancel()
            return found

    def _make(self, experiment: str) -> Made:
        try:
            with defer_slow_work():
                answer: Plan | Exception = plan(Experiment.model_validate_json(experiment), self._read)
        except Exception as error:  # noqa: BLE001 - one that nobody foresaw is for ``made`` to raise
            answer = error
            with self._lock:
                self._sets.clear()  # the folder may be mended meanwhile
        return Made(answer, time.monotonic())

    def _read(self, data: DataConfig, side: int) -> tuple[ImageSet, list[str]]:
        """A data set without its pixels; a large one is read once for all the plans of some minutes."""
        key = f"{side} {data.model_dump_json(include={'name', 'root', 'domains', 'columns', 'decode'})}"
        began = time.monotonic()
        with self._lock:
            at, known = self._sets.get(key, (0.0, None))
        if known is None or began - at > KEPT:
            images, left_out = read_images(data.model_copy(update={"template": None}), side)
            known = replace(images, read=_no_pixels, draft=None), left_out
            if time.monotonic() - began > SLOW:
                with self._lock:
                    self._sets[key] = time.monotonic(), known
                    while len(self._sets) > MOST_SETS:
                        self._sets.popitem(last=False)
        images, left_out = known
        return (replace(images, template=data.template) if data.template else images), left_out


def _no_pixels(index: int) -> Image.Image:
    raise AssertionError("a plan looks at no pixels")


@st.cache_resource(show_spinner=False)
def _planner() -> Planner:
    return Planner()


def made(experiment: Experiment, texts: str) -> Plan | FedLensError | None:
    """The plan, what is wrong, or None where that takes longer than a page waits: ``follow`` looks again."""
    asked = _planner().ask(experiment.model_dump_json(), texts)
    before: Future[Made] | None = st.session_state.get(_ASKED)
    if before is not None and before is not asked:
        before.cancel()  # what nobody waits for any more need not begin
    st.session_state[_ASKED] = asked
    with suppress(CancelledError):  # by another tab that had asked the same: the next look asks anew
        if wait([asked], PATIENCE).done:
            answer = asked.result().answer
            if isinstance(answer, Plan | FedLensError):
                return answer
            raise answer
    st.session_state[_WAITED] = asked
    return None


def drawn(data: Mapping[str, object], found: Plan | None) -> Plan | None:
    """The plan whose picture is shown: this one, or the last of the same data while another is being made."""
    key = str(sorted(data.items()))
    if found is not None:
        st.session_state[_DRAWN] = key, found
        return found
    before, last = st.session_state.get(_DRAWN, ("", None))
    return last if _WAITED in st.session_state and before == key else None


def follow() -> None:
    """Says that the plan asked for last is still being made, and draws the page anew once it is there."""
    asked = st.session_state.pop(_WAITED, None)
    if asked is not None:
        _ticking(asked, time.monotonic() - PATIENCE)


@st.fragment(run_every=1)
def _ticking(asked: Future[Made], began: float) -> None:
    if asked.done():
        st.rerun()
    st.info(
        f"Looking at the data, {time.monotonic() - began:.0f} s so far; a large folder takes a while.",
        icon=":material/hourglass_top:",
    )
