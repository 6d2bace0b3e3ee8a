"""The actions of the page Live: stop, resume and force-stop runs, read their log, ask for a notification."""

from collections import Counter
from pathlib import Path

import streamlit as st

from fedcore import jobs
from fedcore.base.errors import FedLensError
from fedcore.base.progress import about, counted
from fedcore.jobs import forecast
from fedcore.results import progress
from fedcore.results.further_seeds import more_seeds
from fedcore.store import ExperimentRow, RunRow
from pages.widgets import background, browser, markup, session
from pages.widgets.background import report_button

CHOOSE = "Choose by name"
TITLE_SECONDS = 5
"""Seconds between two polls; browsers run timers of hidden tabs less often."""
NOTICE_CSS = """
button { font: inherit; font-size: 0.875rem; color: inherit; background: none; cursor: pointer;
  min-height: 2.5rem; padding: 0.25rem 0.75rem; white-space: nowrap;
  border: 1px solid color-mix(in srgb, currentColor 25%, transparent); border-radius: 0.5rem; }
button:disabled { cursor: default; opacity: 0.75; }
button:focus-visible { outline: 2px solid currentColor; outline-offset: 2px; }
button[hidden] { display: none; }
"""
_notice = st.components.v2.component(
    "live_notice",
    html='<button type="button" hidden>Notify me</button>',
    css=NOTICE_CSS,
    js=Path(__file__).with_name("notice.js").read_text(encoding="utf-8"),
)


def button_flags(experiment: ExperimentRow) -> tuple[bool, bool, bool, int]:
    """Return whether runs can be stopped, resumed or killed, and the number of runs with recorded rounds."""
    states = {r.state for r in experiment.runs}
    begun = sum(r.rounds_done > 0 for r in experiment.runs)
    return (
        bool(states & {"queued", "running", "stopping"}),
        any(background.can_resume(r) for r in experiment.runs),
        "stopping" in states,
        begun,
    )


def buttons(experiment: ExperimentRow) -> None:
    """Draw the buttons, outside the fragment that redraws itself, since a redraw can lose a click."""
    store, locked = session.store(), not session.writable()
    stoppable = [r for r in experiment.runs if background.can_stop(r)]
    stuck = [r for r in experiment.runs if r.state == "stopping"]
    resumable = [r for r in experiment.runs if background.can_resume(r)]
    # a rerun of the page would close an open dialog, so ``tick`` waits for it
    st.session_state["live_dialog_open"] = False
    full = not session.is_narrow()  # a telephone has no room for buttons that do nothing
    if (stoppable or full) and st.button(
        "Stop", icon=":material/stop_circle:", disabled=not stoppable or locked, key="live_stop"
    ):
        confirm_stop(stoppable)
        st.session_state["live_dialog_open"] = True
    if stuck and st.button(
        "Force stop", icon=":material/dangerous:", disabled=locked, help="Kills the process"
    ):
        confirm_kill(stuck)
        st.session_state["live_dialog_open"] = True
    if (resumable or full) and st.button(
        "Resume", icon=":material/resume:", disabled=not resumable or locked, key="live_resume"
    ):
        store.runs.resume([r.id for r in resumable])
        jobs.ensure_worker(store)
        st.rerun()
    if st.button("Compare", icon=":material/compare:", key="live_compare"):
        st.switch_page("pages/compare.py", query_params={"ids": [str(experiment.id)]})


def run_names(runs: list[RunRow]) -> dict[int, str]:
    """Return a unique name for every run, by run id."""
    names = {r.id: f"{r.label}, {markup.seed_text(r.seed, r.held_out)}" for r in runs}
    count = Counter(names.values())
    return {i: name if count[name] == 1 else f"{name} (run {i})" for i, name in names.items()}


@markup.dialog("Stop runs", on_dismiss="rerun")
def confirm_stop(stoppable: list[RunRow]) -> None:
    """Ask which runs to stop: those that are running, all of one seed, all, or some by name."""
    offers = stop_offers(stoppable)
    which = st.radio(
        "Runs",
        list(offers),
        index=list(offers).index("All"),
        format_func=lambda offer: (
            offer if offer == CHOOSE else f"{offer}: {counted(len(offers[offer]), 'run')}"
        ),
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
        text = f"Stop {counted(len(chosen), 'run')}"
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


@markup.dialog("Force stop", on_dismiss="rerun")
def confirm_kill(stuck: list[RunRow]) -> None:
    """Ask before killing the processes of runs that do not stop."""
    st.write(
        "These runs were asked to stop but have not finished their current step. Killing their processes "
        "loses only the current round."
    )
    for name in run_names(stuck).values():
        st.markdown(f"- {markup.md(name)}")
    if st.button("Kill", type="primary"):
        errors = list(filter(None, map(_kill, stuck)))
        for error in errors:  # a rerun would close the dialog, and nobody could read them
            markup.show_error(error)
        if not errors:
            st.rerun()


def _kill(run: RunRow) -> FedLensError | None:
    """Kill a run's process, and return why that was refused."""
    try:
        jobs.force_stop(session.store(), run.id)
    except FedLensError as error:
        return error
    return None


def next_steps(experiment: ExperimentRow) -> None:
    """Offer the next steps after an experiment: enough seeds for a test, and the report."""
    store = session.store()
    with st.container(horizontal=True):
        runs = more_seeds(store, experiment)
        if runs:
            seeds = len({run.seed for run in runs})
            time = forecast.seconds(forecast.precedents(store.path), runs)
            needed = f", {about(time)} in all" if time else ""
            if st.button(
                f"Queue {seeds} more seed{'s' * (seeds > 1)}",
                icon=":material/playlist_add:",
                key="live_more_seeds",
                disabled=not session.writable(),
                help=f"{counted(len(runs), 'run')}{needed}. They join this experiment",
            ):
                store.experiments.extend(experiment.id, runs)
                jobs.ensure_worker(store)
                st.rerun()
        report_button(store, [experiment], "live_report")


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
            st.markdown(f"- {markup.md(note.message)}")
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


def notification(experiment: ExperimentRow) -> None:
    """Show the progress in the tab's title, and until the experiment has ended a button to be notified."""
    _notice(
        key="live_notice",
        width="content",
        data={
            "address": browser.address(browser.COUNTS, experiment.id),
            "every": TITLE_SECONDS,
            "experiment": experiment.id,
            "name": experiment.name,
            "going": any(not run.ended for run in experiment.runs),
        },
    )
