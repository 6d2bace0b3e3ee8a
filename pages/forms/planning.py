"""Plan the form's experiment in the background, and estimate its cost."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import CancelledError, Future, wait
from contextlib import suppress
from typing import Any

import streamlit as st

from fedcore.config import Experiment, parse
from fedcore.data import descriptions
from fedcore.engine.plan import Plan
from fedcore.engine.planner import Planner, PlanResult
from fedcore.errors import FedLensError
from fedcore.jobs import forecast
from fedcore.methods import consent
from fedcore.store import Store
from pages.forms import fields, own_data
from pages.widgets import markup

WAIT_SECONDS = 1.2
"""Seconds that a page waits for a plan before it is drawn without one."""
_REQUEST, _PENDING, _DRAWN = "plan_request", "plan_pending", "plan_drawn"


@st.cache_resource(show_spinner=False)
def _planner() -> Planner:
    return Planner()


def request(experiment: Experiment) -> Future[PlanResult]:
    """Return the plan of an experiment that is in no form, and start it if there is no fresh one."""
    return _planner().request(experiment, f"{_texts_version(experiment)} {consent.version()}")


def plan_form(values: Mapping[str, Any]) -> tuple[Experiment | None, Plan | None, FedLensError | None]:
    """Return the form's experiment and its plan, or the error; neither while the plan is being made."""
    content = {**values, "methods": [_without_none(entry) for entry in values["methods"]]}
    for part in ("data", "partition", "backbone"):
        content[part] = _without_none(values[part])
    try:
        if not any(c.isprintable() and not c.isspace() for c in values["name"]):
            raise FedLensError("the name is blank; give the experiment a name", "name")
        content["seeds"] = fields.seeds_of(values["seeds"])
        experiment = parse(content)
    except FedLensError as error:
        return None, None, error
    answer = _plan(experiment, own_data.check_state(values["data"]))
    return (experiment, None, answer) if isinstance(answer, FedLensError) else (experiment, answer, None)


def preview_partition(values: Mapping[str, Any], error: FedLensError) -> Plan | None:
    """Plan the partition alone where an error elsewhere prevents the whole plan.

    Args:
        error: the error; if it concerns the data, there is nothing to preview.
    """
    if (error.field or "").partition(".")[0] == "data":
        return None
    shared: dict[str, Any] = {p: _without_none(values[p]) for p in ("data", "partition", "backbone")}
    shared["methods"] = [{"name": "zero-shot"}]
    for more in (("held_out",), ()):
        try:
            seeds = {"seeds": fields.seeds_of(values["seeds"])} if more else {}
            alone = parse(shared | {name: values[name] for name in more} | seeds)
        except FedLensError:
            continue
        answer = _plan(alone)
        if not isinstance(answer, FedLensError):
            return answer
    return None


def _plan(experiment: Experiment, checked: str = "") -> Plan | FedLensError | None:
    """Return the plan or its error; None while it is being made, which ``show_pending`` then watches.

    Args:
        checked: changes with the checks of the data set, after which the plan may be another.
    """
    version = f"{_texts_version(experiment)} {consent.version()} {checked}"
    request = _planner().request(experiment, version)
    before: Future[PlanResult] | None = st.session_state.get(_REQUEST)
    if before is not None and before is not request:
        before.cancel()  # nobody waits for that plan any more
    st.session_state[_REQUEST] = request
    with suppress(CancelledError):  # by another tab with the same request: the next rerun requests it again
        if wait([request], WAIT_SECONDS).done:
            answer = request.result().answer
            if isinstance(answer, Plan | FedLensError):
                return answer
            raise answer
    st.session_state[_PENDING] = request
    return None


def _texts_version(experiment: Experiment) -> str:
    """Return the version of the class descriptions, which are part of the plan."""
    try:
        return descriptions.version(experiment.data.name, experiment.data.root)
    except FedLensError:  # an unknown data set, which the plan reports
        return ""


def _without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def plan_to_draw(data: Mapping[str, object], plan: Plan | None) -> Plan | None:
    """Return the plan to draw: this one, or while it is pending the last plan of the same data."""
    key = str(sorted(data.items()))
    if plan is not None:
        st.session_state[_DRAWN] = key, plan
        return plan
    before, last = st.session_state.get(_DRAWN, ("", None))
    return last if _PENDING in st.session_state and before == key else None


def show_pending() -> None:
    """Tell the user that the plan is still being made, and draw the page anew once it is there."""
    request = st.session_state.pop(_PENDING, None)
    if request is not None:
        _watch(request, time.monotonic() - WAIT_SECONDS)


@markup.fragment(run_every=1)
def _watch(request: Future[PlanResult], began: float) -> None:
    if request.done():
        st.rerun()
    st.info(
        f"Reading the data for {time.monotonic() - began:.0f} s; a large folder takes a while.",
        icon=":material/hourglass_top:",
    )


@st.cache_data(show_spinner=False, ttl=20, hash_funcs={Store: repr})
def precedents(store: Store) -> forecast.Precedents:
    """Return what the runs recorded on this machine needed, from which a plan's cost is estimated."""
    return forecast.precedents(store.path)
