"""The plan of the form's experiment: made in the background, drawn with its partition and cost, launched."""

import time
from collections.abc import Mapping
from concurrent.futures import CancelledError, Future, wait
from contextlib import suppress
from typing import Any

import streamlit as st

from fedcore.base.errors import FedLensError
from fedcore.base.progress import counted
from fedcore.config import Experiment, parse
from fedcore.engine import environment
from fedcore.engine.plan import Plan, PlanResult
from fedcore.jobs import forecast
from fedcore.results.charts.partition import partition_picture
from pages.forms import dataset, drafts, fields
from pages.widgets import background, markup, session

WAIT_SECONDS = 1.2
"""Seconds that a page waits for a plan before it is drawn without one."""
MANY_RUNS, LONG_SECONDS = 20, 8 * 3600  # a larger plan is launched only when confirmed
_REQUEST, _PENDING, _DRAWN = "plan_request", "plan_pending", "plan_drawn"


def plan_form(values: Mapping[str, Any]) -> tuple[Experiment | None, Plan | None, FedLensError | None]:
    """Return the form's experiment and its plan, or the error; neither while the plan is being made."""
    content = {**values, **_parts(values), "methods": [_without_none(entry) for entry in values["methods"]]}
    try:
        if not any(c.isprintable() and not c.isspace() for c in values["name"]):
            raise FedLensError("the name is blank; give the experiment a name", "name")
        content["seeds"] = fields.seeds_of(values["seeds"])
        experiment = parse(content)
    except FedLensError as error:
        return None, None, error
    answer = _plan(experiment, dataset.check_state(values["data"]))
    return (experiment, None, answer) if isinstance(answer, FedLensError) else (experiment, answer, None)


def preview_partition(values: Mapping[str, Any], error: FedLensError) -> Plan | None:
    """Plan the partition alone when an error elsewhere in the form prevents the whole plan."""
    if (error.field or "").partition(".")[0] == "data":
        return None
    shared = _parts(values) | {"methods": [{"name": "zero-shot"}], "further_data": values["further_data"]}
    for with_schedule in (True, False):  # the schedule may be what is wrong
        try:
            seeds = {"seeds": fields.seeds_of(values["seeds"])} if with_schedule else {}
            experiment = parse(shared | seeds | ({"held_out": values["held_out"]} if with_schedule else {}))
        except FedLensError:
            continue
        answer = _plan(experiment)
        if not isinstance(answer, FedLensError):
            return answer
    return None


def _plan(experiment: Experiment, checked: str = "") -> Plan | FedLensError | None:
    """Return the plan or its error; None while it is being made, which ``show_pending`` then watches.

    Args:
        checked: changes when the data set is checked, after which the plan may be another.
    """
    request = background.request(experiment, checked)
    before: Future[PlanResult] | None = st.session_state.get(_REQUEST)
    if before is not None and before is not request:
        before.cancel()  # each keystroke asks for a plan; the outdated ones need not be made
    st.session_state[_REQUEST] = request
    with suppress(CancelledError):  # by another tab with the same request: the next rerun requests it again
        if wait([request], WAIT_SECONDS).done:
            return background.planned(request)
    st.session_state[_PENDING] = request
    return None


def _parts(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of an experiment that determine its partition."""
    return {part: _without_none(values[part]) for part in ("data", "partition", "backbone")}


def _without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def plan_to_draw(data: Mapping[str, object], plan: Plan | None) -> Plan | None:
    """Return the plan to draw: this one, or while it is pending the last plan of the same data."""
    key = str(sorted(data.items()))
    if plan is not None:
        st.session_state[_DRAWN] = key, plan
        return plan
    last_key, last = st.session_state.get(_DRAWN, ("", None))
    return last if _PENDING in st.session_state and last_key == key else None


def show_pending() -> None:
    """Tell the user that the plan is still being made, and redraw the page once it is ready."""
    request = st.session_state.pop(_PENDING, None)
    if request is not None:
        _watch(request, time.monotonic() - WAIT_SECONDS)


@markup.fragment(run_every=1)
def _watch(request: Future[PlanResult], began: float) -> None:
    if request.done():
        st.rerun()
    background.reading_data(began)


def draw_partition(plan: Plan) -> None:
    """Draw the partition of the planned experiment."""
    picture = partition_picture(plan.counts, plan.clients, plan.classes, session.theme())
    if st.session_state.get("as_tables"):
        by_class = zip(plan.classes, plan.counts.T.tolist(), strict=True)
        table = {"client": list(plan.clients), **dict(by_class)}
        st.dataframe(table, hide_index=True, key="partition_table")
    else:
        st.html(picture.html)
    st.caption(markup.md(picture.alt))
    if plan.runs[0].held_out is not None:
        st.caption(f"Shown for the runs that hold out {markup.md(plan.runs[0].held_out)}.")
    if len(plan.clients) > 1:
        st.caption(
            f"Heterogeneity {plan.heterogeneity:.2f}; mean label entropy {plan.entropy:.2f} of at most "
            f"{plan.max_entropy:.2f} bits.",
            help="Heterogeneity is the mean Jensen-Shannon distance between the training labels of two "
            "clients, from 0 (equal class shares) to 1 (no class in common). A client's label entropy is "
            "highest with equal class shares.",
        )


def plan_line(experiment: Experiment, plan: Plan) -> None:
    """Show how many runs the experiment has, what they cost, and the plan's warnings."""
    path, precedents = session.store().path, background.precedents(session.store())
    disk = forecast.disk(path, precedents, plan)
    costs = forecast.cost_text(precedents, plan, disk)
    st.markdown(f"**{markup.md(forecast.runs_text(experiment, plan))}**, {costs}.")
    if plan.spaces:
        lines = "\n".join(f"- {markup.md(line)}" for line in plan.spaces)
        st.caption(f"Searched, the first draw being the method as written:\n\n{lines}")
    for warning in plan.warnings:
        st.warning(markup.md_with_code(markup.sentence(warning)), icon=":material/info:")
    shortage = forecast.lack_of_room(path, disk)
    if shortage is not None:
        st.warning(markup.md(f"{shortage}."), icon=":material/hard_drive:")


def launch_button(experiment: Experiment | None, plan: Plan | None) -> None:
    """Draw the Launch button, and before a large plan a box to confirm it."""
    confirmed = True
    if plan is not None:
        seconds = forecast.seconds(background.precedents(session.store()), plan.all_runs) or 0
        total = len(plan.all_runs)
        if total > MANY_RUNS or seconds > LONG_SECONDS:
            runs = f"all {total} runs" if total > 1 else "this run"
            confirmed = st.checkbox(f"Yes, queue {runs}", key="launch_sure")
    twins = {} if plan is None else session.store().runs.twins(plan.runs, plan.images, environment.code())
    if twins:
        one = f"{counted(len(twins), 'run')} that exist{'s' * (len(twins) == 1)}"
        help_ = (
            "Same config, seed, code and images on disk. They are copied with their checkpoints instead of "
            "trained again; a notice names the run. A weights file replaced under its name is not noticed."
        )
        twins = twins if st.checkbox(f"Take over {one} already", True, "launch_twins", help=help_) else {}
    ready = plan is not None and experiment is not None and confirmed
    with st.container(horizontal=True, vertical_alignment="center"):
        pressed = markup.write_button("Launch", "rocket_launch", "launch", ready, type="primary")
    if pressed and experiment is not None and plan is not None:
        # Of the widgets, Streamlit keeps some and forgets others when it opens Live: on return all are new.
        drafts.fill(experiment, drafts.form().origin)
        with markup.errors_shown():
            device = st.session_state.get("new_device") or "auto"
            background.launch(experiment, plan.runs, device, twins)
