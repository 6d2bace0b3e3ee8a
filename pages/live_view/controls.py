"""The controls of the page Live: the choice of charts, stop and resume, and the log."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import ceil

import streamlit as st

from fedcore import jobs
from fedcore.errors import FedLensError
from fedcore.plots.theme import Theme
from fedcore.records.codes import AFTER_AGGREGATION, BEFORE_AGGREGATION, TEST, VALIDATION
from fedcore.results import diagnostics, progress
from fedcore.results.panels.panel import ORDERS, RowOrder
from fedcore.results.panels.run_panels import VIEWS, PanelView, default_view
from fedcore.store import ExperimentRow, RunRow
from pages.widgets import markup, session

SPLITS = {TEST: "test samples", VALIDATION: "validation samples"}
STAGE_TITLES = {
    AFTER_AGGREGATION: "after aggregation",
    BEFORE_AGGREGATION: "before aggregation (own samples only)",
}
CURVES = {"personal": "Personal accuracy, mean", "worst": "Worst client", "global": "Global model"}
CHARTS = {**CURVES, "loss": "Training loss", "traffic": "Traffic of all clients, up and down (MB)"}
AUTOMATIC = "auto"
CHOOSE = "Choose by name"
NEWEST = -1
STEP_SECONDS = 0.8  # of a replay
MAX_STEPS = 50  # a long training is replayed in larger steps
STOPPABLE = frozenset({"queued", "running", "stopping"})
RESUMABLE = frozenset({"stopped", "interrupted", "failed"})


@dataclass(frozen=True)
class Settings:
    """The reader's choices for the charts.

    Attributes:
        until: the round to show, None for the newest.
        width: pixels.
        over_seeds: whether the mean over several seeds is shown.
        lines: number of lines in a chart, one per method and held-out domain.
    """

    view: PanelView
    split: int
    stage: int
    fitted: bool
    order: RowOrder
    columns: int
    charts: tuple[str, ...]
    until: int | None
    theme: Theme
    width: int
    over_seeds: bool
    lines: int


def choose_settings(runs: list[RunRow]) -> Settings:
    """Draw the choices for the charts, kept in the URL, and return them."""
    store = session.store()
    with st.popover("View", icon=":material/tune:"):
        view = _view(runs)
        split = st.radio(
            "Evaluated on",
            list(SPLITS),
            format_func=SPLITS.__getitem__,
            key="live_split",
            bind="query-params",
        )
        stage = st.radio(
            "Models",
            list(STAGE_TITLES),
            format_func=STAGE_TITLES.__getitem__,
            key="live_stage",
            bind="query-params",
        )
        columns = st.selectbox(
            "Panels per row",
            [AUTOMATIC, "1", "2", "3", "4"],
            key="live_columns",
            bind="query-params",
            format_func=lambda c: "Automatic" if c == AUTOMATIC else c,
        )
        fitted = st.toggle(
            "Fit colours to the values",
            key="live_fitted",
            help="Colours span the values shown instead of 0 to 100 %",
            bind="query-params",
        )
        order = st.selectbox(
            "Order of rows", list(ORDERS), 0, ORDERS.__getitem__, "live_rows", bind="query-params"
        )
        described = diagnostics.recorded_charts(store, runs)
        titles = {**CHARTS, **{c.key: c.heading for c in described}}
        charts = st.multiselect(
            "Charts",
            list(titles),
            format_func=lambda key: titles.get(key, key),
            placeholder="automatic",
            key="live_charts",
            bind="query-params",
            help="Automatic: accuracy, loss and the most informative values that these methods record",
        )
    if not charts:
        charts = ["personal", "loss", *(c.key for c in diagnostics.default_charts(described))]
    panels = {(r.label, r.group_hash, None if view == "held_out" else r.held_out) for r in runs}
    in_a_row = _columns(len(panels)) if columns == AUTOMATIC else int(columns)
    until = _until(runs, split, stage)
    return Settings(
        view=view,
        split=split,
        stage=stage,
        fitted=fitted,
        order=order,
        columns=in_a_row,
        charts=tuple(charts),
        until=until,
        theme=session.theme(),
        width=session.figure_width(),
        over_seeds=len({r.seed for r in runs}) > 1,
        lines=count_lines(runs),
    )


def count_lines(runs: list[RunRow]) -> int:
    """Return the number of lines in a chart of runs: one per method and held-out domain."""
    return len({(r.label, r.group_hash, r.held_out) for r in runs})


def _columns(panels: int) -> int:
    """Return the automatic number of panels per row; four panels are shown two by two."""
    return 1 if session.is_narrow() else 2 if panels == 4 else 3


def _view(runs: list[RunRow]) -> PanelView:
    """Let the reader choose among the heatmaps that these runs have."""
    store = session.store()
    clients = [[e for e in store.cells.entities(r.id) if e.kind == "client"] for r in runs]
    views: list[PanelView] = ["matrix", "clients", "helps"]
    if any(e.domain for each in clients for e in each):
        views.append("domains")
    if any(r.held_out is not None for r in runs):
        views.append("held_out")
    titles = {m.name: m.title for m in diagnostics.recorded_matrix_charts(store, runs).values()} | VIEWS
    views += [name for name in titles if name not in VIEWS]
    chosen = st.radio(
        "Heatmaps",
        [AUTOMATIC, *views],
        format_func=lambda v: "Automatic" if v == AUTOMATIC else titles[v],
        key="live_view",
        bind="query-params",
    )
    if chosen != AUTOMATIC:
        return chosen
    if len({r.held_out for r in runs}) > 1:
        return "held_out"
    return default_view(max(map(len, clients), default=0))


def _until(runs: list[RunRow], split: int, stage: int) -> int | None:
    """Draw the replay and its slider; return the chosen round, None for the newest."""
    last = max((r.rounds_total for r in runs), default=0)
    if last < 1:
        return None
    idle = max(r.rounds_done for r in runs) < 1
    at_end = "live" if any(not r.ended for r in runs) else "last round"
    playing = bool(st.session_state.get("live_playing")) and not idle
    st.button(
        "Pause replay" if playing else "Replay",
        icon=":material/pause:" if playing else ":material/play_arrow:",
        key="live_play",
        width=150,  # fits the longer text, so that changing it moves nothing
        disabled=idle,
        help="Replays the training round by round",
        on_click=_play_or_pause,
        args=([r.id for r in runs], split, stage),
    )
    chosen = st.select_slider(
        "Round",
        [*range(last), NEWEST],
        value=NEWEST,
        format_func=lambda r: at_end if r == NEWEST else f"round {r}",
        key="live_until",
        disabled=idle,
        bind="query-params",
        help="Shows all panels and charts as they were after this round",
        width=280,
    )
    if playing:
        st.session_state["live_armed"] = False
        markup.fragment(_step, run_every=STEP_SECONDS)([r.id for r in runs], split, stage)
    return None if chosen == NEWEST else chosen


def _play_or_pause(run_ids: list[int], split: int, stage: int) -> None:
    """Start or pause the replay; from the newest round it starts at the first one."""
    playing = not st.session_state.get("live_playing")
    st.session_state["live_playing"] = playing
    if playing and st.session_state["live_until"] == NEWEST:
        st.session_state["live_until"] = next(iter(steps(run_ids, split, stage)), NEWEST)


def _step(run_ids: list[int], split: int, stage: int) -> None:
    """Advance the replay by one step.

    A rerun of the whole page calls this function too, outside the timer; that call only arms the next one.
    """
    if not st.session_state["live_armed"]:
        st.session_state["live_armed"] = True
        return
    shown = st.session_state["live_until"]
    later = [r for r in steps(run_ids, split, stage) if r > shown] if shown != NEWEST else []
    following = later[0] if later else NEWEST
    st.session_state["live_until"] = following
    st.session_state["live_playing"] = following != NEWEST
    st.rerun()


def steps(run_ids: list[int], split: int, stage: int) -> list[int]:
    """Return the rounds that a replay shows before the newest."""
    store = session.store()
    rounds = sorted({r for i in run_ids for r in store.rounds.evaluated(i, split, stage)})
    return rounds[: -1 : ceil(len(rounds) / MAX_STEPS)] if rounds else []


def button_flags(experiment: ExperimentRow) -> tuple[bool, bool, bool, int]:
    """Return whether runs can be stopped, resumed or killed, and the number of runs with recorded rounds."""
    states = {r.state for r in experiment.runs}
    begun = sum(r.rounds_done > 0 for r in experiment.runs)
    return bool(states & STOPPABLE), bool(states & RESUMABLE), "stopping" in states, begun


def buttons(experiment: ExperimentRow) -> None:
    """Draw the buttons outside the part that is redrawn by itself, since a redraw can lose a click."""
    store, may = session.store(), session.writable()
    stoppable = [r for r in experiment.runs if r.state in ("queued", "running")]
    stuck = [r for r in experiment.runs if r.state == "stopping"]
    resumable = [r for r in experiment.runs if r.state in RESUMABLE and r.origin == "engine"]
    # ``tick`` must not rerun the page while a dialog is open: a rerun would close it
    st.session_state["live_dialog_open"] = False
    if st.button("Stop", icon=":material/stop_circle:", disabled=not stoppable or not may, key="live_stop"):
        confirm_stop(stoppable)
        st.session_state["live_dialog_open"] = True
    if stuck and st.button(
        "Force stop", icon=":material/dangerous:", disabled=not may, help="Kills the process"
    ):
        confirm_kill(stuck)
        st.session_state["live_dialog_open"] = True
    if st.button("Resume", icon=":material/resume:", disabled=not resumable or not may, key="live_resume"):
        store.runs.resume([r.id for r in resumable])
        jobs.ensure_worker(store)
        st.rerun()
    if st.button("Compare", icon=":material/compare:", key="live_compare"):
        st.switch_page("pages/compare.py", query_params={"ids": [str(experiment.id)]})


def run_names(runs: list[RunRow]) -> dict[int, str]:
    """Return a unique name for every run, by run id."""
    names = {
        r.id: f"{r.label}, seed {r.seed}" + (f", without {r.held_out}" if r.held_out else "") for r in runs
    }
    alike = Counter(names.values())
    return {i: name if alike[name] == 1 else f"{name} (run {i})" for i, name in names.items()}


@st.dialog("Stop runs", on_dismiss="rerun")
def confirm_stop(stoppable: list[RunRow]) -> None:
    """Ask which runs to stop: those that are running, all of one seed, all, or some by name."""
    offers = stop_offers(stoppable)
    which = st.radio(
        "Runs",
        list(offers),
        index=list(offers).index("All"),
        format_func=lambda offer: offer if offer == CHOOSE else f"{offer}: {_count(len(offers[offer]))}",
    )
    chosen = [r.id for r in offers[which]]
    if which == CHOOSE:
        names = run_names(stoppable)
        chosen = st.multiselect("Names", list(names), format_func=lambda run: names.get(run, ""))
    methods = Counter(r.label for r in stoppable if r.id in chosen)
    st.caption(markup.md(", ".join(f"{label} ({count})" for label, count in methods.items())))
    st.caption("Finished rounds are kept and stopped runs can be resumed; the current round is discarded.")
    with st.container(horizontal=True):
        # a callback runs even if a rerun of the page closes the dialog at this moment
        text = f"Stop {_count(len(chosen))}"
        if st.button(text, type="primary", disabled=not chosen, on_click=_stop, args=(chosen,)):
            st.rerun()
        if st.button("Cancel", key="live_stop_cancelled"):
            st.rerun()


def _stop(runs: list[int]) -> None:
    session.store().runs.stop(runs)


def stop_offers(stoppable: list[RunRow]) -> dict[str, list[RunRow]]:
    """Return the groups of runs that can be stopped together, by title."""
    running = [r for r in stoppable if r.state == "running"]
    seeds = list(dict.fromkeys(r.seed for r in stoppable))
    offers = {"Running now": running} if running and len(running) < len(stoppable) else {}
    offers |= {f"Seed {seed}": [r for r in stoppable if r.seed == seed] for seed in seeds if len(seeds) > 1}
    return offers | {"All": stoppable, CHOOSE: []}


def _count(runs: int) -> str:
    return f"{runs} run{'s' * (runs != 1)}"


@st.dialog("Force stop", on_dismiss="rerun")
def confirm_kill(stuck: list[RunRow]) -> None:
    """Ask before killing the processes of runs that do not stop."""
    st.write(
        "These runs were asked to stop but have not finished their current step. Killing their processes "
        "loses only the current round."
    )
    for name in run_names(stuck).values():
        st.markdown(f"- {markup.md(name)}")
    if st.button("Kill", type="primary"):
        for r in stuck:
            try:
                jobs.force_stop(session.store(), r.id)
            except FedLensError as error:
                markup.show_error(error)
        st.rerun()


@markup.fragment
def log(runs: list[RunRow]) -> None:
    """Draw the end of a run's log; for a failed run, its whole error."""
    store = session.store()
    failed = any(r.state == "failed" for r in runs)
    box = st.expander(
        "Log", failed, key=f"live_log_open_{failed}", icon=":material/terminal:", on_change="rerun"
    )
    if not box.open:
        return
    with box:
        names, by_id = run_names(runs), {r.id: r for r in runs}
        relevant = [r.id for state in ("failed", "running") for r in runs if r.state == state]
        chosen = st.selectbox(
            "Run",
            list(names),
            index=list(names).index(relevant[0]) if relevant else 0,
            format_func=lambda run: names.get(run, ""),
            key="live_log",
        )
        if chosen is None or chosen not in by_id:  # the choice is left over from another experiment
            return
        run = by_id[chosen]
        with st.container(horizontal=True):
            st.button("Refresh", icon=":material/refresh:", key="live_log_refresh")
            if st.button("Open run", icon=":material/arrow_forward:", key="live_log_run"):
                st.switch_page("pages/run.py", query_params={"id": str(run.id)})
        for note in run.notices:
            st.markdown(f"- {markup.md(str(note['message']))}")
        trace = store.runs.error(run.id)
        if run.state == "failed":
            st.error(
                markup.md(run.status_text or "failed for an unknown reason; its log may say more"),
                icon=":material/error:",
            )
        # autoscroll keeps the browser busy at every frame, so only a growing log has it
        with st.container(height=260, autoscroll=run.state == "running"):
            st.code(
                trace or progress.log_tail(store, run.id) or "No output yet.", language=None, wrap_lines=True
            )
