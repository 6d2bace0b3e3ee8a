"""The dialog of the page Papers: details of some cells, and the button that queues their missing runs."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from dataclasses import replace

import streamlit as st

from fedcore import jobs
from fedcore.base.errors import FedLensError
from fedcore.base.progress import counted
from fedcore.config.field_names import size_text
from fedcore.engine.plan import Plan
from fedcore.jobs import forecast
from fedcore.papers.cells import (
    STATUSES,
    Filling,
    TableCell,
    counts_text,
    fillings,
    missing_parts,
    seconds,
)
from fedcore.papers.choices import caveat_weights
from fedcore.papers.comparability import evidence_for
from fedcore.results.charts.theme import STATUS
from fedcore.results.metrics import RULES
from fedcore.store import RunRow
from pages.papers_view import state
from pages.papers_view.state import Snapshot
from pages.papers_view.table import cost_text
from pages.widgets import background, markup, session

OPEN = "papers_dialog"
"""Key of the session for the table and cells of the open dialog."""
WAIT_SECONDS = 0.3
LISTED = 12


def closed() -> None:
    """Callback: forget the dialog, so that a rerun does not open it again."""
    st.session_state.pop(OPEN, None)


@markup.dialog("Fill the table", width="large", on_dismiss=closed)
def open_dialog(title: str, cells_in: Callable[[Snapshot], Sequence[TableCell]], rehearsal: bool) -> None:
    """Show details of some cells, and offer to queue their missing runs.

    The cells are read again at each click, so that runs queued in another tab are not queued twice.
    """
    st.subheader(markup.md(title), anchor=False)
    snapshot = state.now(session.store(), rehearsal)
    cells = cells_in(snapshot)
    values = {cell.value for cell in cells}
    if len(cells) == 1:
        _describe(cells[0], snapshot)
    elif len(cells) > len(values):
        st.markdown(f"**{counted(len(values), 'printed value')} in {len(cells)} variants.**")
    else:
        st.markdown(f"**{len(cells)} printed values:** {counts_text(c.status for c in cells)}.")
    _offer(cells, snapshot)


def _describe(cell: TableCell, snapshot: Snapshot) -> None:
    """Draw the printed value, ours, the reasons against comparing them, and links to the runs."""
    value, ours = cell.value, "-" if cell.stat is None else cell.stat.text(cell.value.digits)
    if cell.stat is not None and cell.status == "rehearsed":
        ours += " (rehearsal, no evidence)"
    rows = [
        ["Printed", f"{markup.esc(cell.value.text)} ({markup.esc(value.source)})"],
        ["Ours", markup.esc(ours) + (f", n = {cell.stat.n}" if cell.stat else "")],
        ["Difference", markup.esc(cell.gap_text or "-")],
        ["Metric", markup.esc(f"{value.metric}; the paper reports {RULES[value.rule]}")],
        ["Status", markup.esc(f"{cell.status}: {STATUSES[cell.status]}")],
    ]
    if cell.source is not None:
        rows.append(["Method", markup.esc(f"{cell.source.variant.title} of the preset {cell.source.preset}")])
    if cell.reason:
        rows.append(["Reason", markup.esc(cell.reason)])
    st.html(markup.table_html([("Property", "name"), ("Value", "prose")], rows, "Details of the cell"))
    weights: dict[str, str] = {}
    if cell.comparability.reasons:  # by runs of the value's readings, else by their rehearsals
        weights = caveat_weights(snapshot.recorded, value, False)
        weights = weights or caveat_weights(state.now(snapshot.store, True).recorded, value, True)
    for _, reason in cell.comparability.reasons:
        weight = f" (**{markup.md(weights[reason])}**)" if reason in weights else ""
        st.caption(f":material/balance: {markup.md(reason)}{weight}")
    if cell.source is not None and not cell.source.rehearsal and not cell.comparability.reasons:
        for evidence in evidence_for(value):
            st.caption(f":material/verified: {markup.md(evidence.text)}")
    if cell.measurement is not None and cell.measurement.runs:
        _links("Measured by", snapshot.store.runs.get(cell.measurement.runs))
    _links("In progress", cell.active)
    _links("Ended before their last round", cell.ended_early)


def _links(title: str, runs: Sequence[RunRow]) -> None:
    if not runs:
        return
    shown = [
        f"{markup.run_link(r.id, f'{STATUS[r.state][0]} run {r.id}')} "
        + markup.faint(", ".join(filter(None, (f"seed {r.seed}", r.held_out and f"held out {r.held_out}"))))
        for r in runs[:LISTED]
    ]
    more = [f"and {len(runs) - LISTED} more"] if runs[LISTED:] else []
    st.html(
        f'<div class="fl-strip"><b>{title}</b> {" ".join(f"<span>{s}</span>" for s in [*shown, *more])}</div>'
    )


def _offer(cells: Sequence[TableCell], snapshot: Snapshot) -> None:
    """Draw the choice of seeds, the plan of the missing runs and the button that queues them."""
    if not missing_parts(cells):
        return
    most = max(len(c.source.experiment.seeds) for c in cells if c.source is not None)
    seeds = most
    if most > 1:
        seeds = st.segmented_control(
            "Seeds",
            range(1, most + 1),
            default=most,
            required=True,
            key="papers_seeds",
            format_func=lambda n: f"first {n}" if n < most else f"all {most}",
        )
    every = fillings(cells, snapshot.available, seeds)
    for lack in dict.fromkeys(lack for f in every for lack in f.lacks if lack.kind == "data"):
        st.warning(
            markup.md(
                f"This machine lacks {lack.text}. {lack.how} Then check its folder on the page Data & models."
            ),
            icon=":material/folder_off:",
        )
    possible = [f for f in every if all(lack.kind != "data" for lack in f.lacks)]  # weights can be downloaded
    if not possible:
        if every:
            missing = missing_parts(cells, seeds)
            runs = counted(sum(map(len, missing.values())), "run")
            time_text = cost_text(seconds(snapshot.past, missing))
            st.markdown(f"**{runs}** missing; time on this machine: {time_text}.")
            st.page_link("pages/data.py", label="Data & models", icon=":material/folder:")
        else:
            st.info("The runs of these seeds are done or queued.", icon=":material/check:")
        return
    _queue(possible, _plans(possible))


def _plans(wanted: Sequence[Filling]) -> list[Plan | FedLensError]:
    """Return the plan of each experiment or its error; while waiting, show the seconds so far."""
    requests = [background.request(f.experiment) for f in wanted]
    place, began = st.empty(), time.monotonic()
    while wait(requests, WAIT_SECONDS).not_done:
        with place:
            background.reading_data(began)
    place.empty()
    return [background.planned(request) for request in requests]


def _queue(wanted: Sequence[Filling], answers: Sequence[Plan | FedLensError]) -> None:
    """Draw the number, time and disk space of the runs, errors and warnings, and the button."""
    store = session.store()
    planned = [
        (f, f.reduced(answer)) for f, answer in zip(wanted, answers, strict=True) if isinstance(answer, Plan)
    ]
    for filling, answer in zip(wanted, answers, strict=True):
        if isinstance(answer, FedLensError):
            markup.show_error(FedLensError(f"{filling.experiment.name}: {answer}", answer.field))
    if not planned:
        return
    past = background.precedents(store)
    runs = [run for _, plan in planned for run in plan.runs]
    disk = forecast.Disk(0, True)
    for i, (_, plan) in enumerate(planned):
        needed = forecast.disk(
            store.path, past, plan if i == 0 else _without_shared_encodings(planned[:i], plan)
        )
        disk = forecast.Disk(disk.size + needed.size, disk.complete and needed.complete)
    rounds = sum(run.rounds for run in runs)
    text = f"**{counted(len(runs), 'run')}**, {rounds:,} rounds; time on this machine: "
    text += cost_text(forecast.seconds(past, runs))
    if disk.size:
        text += f"; {'about' if disk.complete else 'at least'} {size_text(disk.size)} on disk"
    st.markdown(f"{text}.")
    warnings = dict.fromkeys(w for _, plan in planned for w in plan.warnings)
    lack = forecast.lack_of_room(store.path, disk)
    for warning in [*warnings, *([f"{lack}."] if lack else [])]:
        st.warning(markup.md(warning), icon=":material/info:")
    if st.button(
        f"Queue {counted(len(runs), 'run')}",
        type="primary",
        icon=":material/rocket_launch:",
        key="papers_queue",
        disabled=not session.writable(),
    ):
        for filling, plan in planned:
            store.experiments.create(filling.experiment, plan.runs)
        jobs.ensure_worker(store)
        closed()
        st.session_state["papers_queued"] = len(runs)
        st.rerun()


def _without_shared_encodings(before: Sequence[tuple[Filling, Plan]], plan: Plan) -> Plan:
    """Return a plan without the encodings that an earlier plan already writes."""
    shared = {encoding for _, earlier in before for encoding in earlier.encodings}
    return replace(plan, encodings=tuple(e for e in plan.encodings if e not in shared))
