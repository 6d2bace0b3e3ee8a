"""The parts of the page Live around its charts: actions on runs, their states and log, and their search."""

from collections import Counter
from pathlib import Path

import streamlit as st

from fedcore import jobs
from fedcore.base.errors import FedLensError
from fedcore.base.progress import about, counted
from fedcore.config.field_names import data_titles, field_title
from fedcore.jobs import forecast
from fedcore.jobs.tuning import problem_of
from fedcore.results import progress
from fedcore.results.charts.sweep import DrawPoint, search_chart, search_table
from fedcore.results.charts.theme import STATUS
from fedcore.results.leaderboard import more_seeds
from fedcore.results.progress import methods_of
from fedcore.results.settings import backbone_title
from fedcore.store import ExperimentRow, RunRow
from pages.widgets import background, browser, charts, markup, session

CHOOSE = "Choose by name"
TITLE_SECONDS = 5
"""Seconds between two polls; browsers run timers of hidden tabs less often."""
ShownSearch = tuple[object, str | None, str | None]
"""The state on which the buttons and the outcome above a search depend."""
_notice = st.components.v2.component(
    "live_notice",
    html='<button type="button" hidden>Notify me</button>',
    css=(session.ASSETS / "button.css").read_text(encoding="utf-8"),
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


def buttons(experiment: ExperimentRow, has_results: bool = False) -> None:
    """Draw the buttons of what can be done now, outside the fragment that follows the runs.

    A redraw of a fragment can lose a click.
    """
    store = session.store()
    stoppable = [r for r in experiment.runs if background.can_stop(r)]
    stuck = [r for r in experiment.runs if r.state == "stopping"]
    resumable = [r for r in experiment.runs if background.can_resume(r)]
    # a rerun of the page would close an open dialog, so ``tick`` waits for it
    st.session_state["live_dialog_open"] = False
    if stoppable and markup.write_button("Stop", "stop_circle", "live_stop"):
        confirm_stop(stoppable)
        st.session_state["live_dialog_open"] = True
    if stuck and markup.write_button("Force stop", "dangerous", help="Kills the process"):
        confirm_kill(stuck)
        st.session_state["live_dialog_open"] = True
    if resumable and markup.write_button("Resume", "resume", "live_resume"):
        store.runs.resume([r.id for r in resumable])
        jobs.ensure_worker(store)
        st.rerun()
    if has_results:
        queue_more_seeds(experiment)
    if st.button("Compare", icon=":material/compare:", key="live_compare"):
        st.switch_page("pages/compare.py", query_params={"ids": [str(experiment.id)]})
    if has_results:
        background.csv_button([experiment])
        background.report_button(store, [experiment], "live_report")


def run_names(runs: list[RunRow]) -> dict[int, str]:
    """Return a unique name for every run, by run id."""
    names = {r.id: f"{r.label}, {markup.seed_text(r.seed, r.held_out)}" for r in runs}
    count = Counter(names.values())
    return {i: name if count[name] == 1 else f"{name} (run {i})" for i, name in names.items()}


@markup.dialog("Stop runs", on_dismiss="rerun")
def confirm_stop(stoppable: list[RunRow]) -> None:
    """Ask which runs to stop: those that are running, all of one seed, all, or some by name."""
    offers = stop_offers(stoppable)
    titles = {name: f"{name}: {counted(len(runs), 'run')}" for name, runs in offers.items()}
    titles[CHOOSE] = CHOOSE
    which = st.radio("Runs", list(offers), list(offers).index("All"), titles.__getitem__)
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
        refused = False
        for run in stuck:
            try:
                jobs.force_stop(session.store(), run.id)
            except FedLensError as error:  # a rerun would close the dialog, and nobody could read it
                markup.show_error(error)
                refused = True
        if not refused:
            st.rerun()


def queue_more_seeds(experiment: ExperimentRow) -> None:
    """Offer as many more seeds as a test needs."""
    store = session.store()
    runs = more_seeds(store, experiment)
    if not runs:
        return
    seeds = len({run.seed for run in runs})
    time = forecast.seconds(forecast.precedents(store.path), runs)
    needed = f", {about(time)} in all" if time else ""
    if markup.write_button(
        f"Queue {seeds} more seed{'s' * (seeds > 1)}",
        "playlist_add",
        "live_more_seeds",
        help=f"{counted(len(runs), 'run')}{needed}. They join this experiment",
    ):
        store.experiments.extend(experiment.id, runs)
        jobs.ensure_worker(store)
        st.rerun()


@markup.fragment
def log(runs: list[RunRow]) -> None:
    """Draw the end of a run's log; for a failed run, its whole error."""
    store = session.store()
    failed = any(r.state == "failed" for r in runs)
    box = markup.opened("Log", "terminal", f"live_log_open_{failed}", expanded=failed)
    if box is None:
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
        if run.state == "failed":
            why = run.status_text or "failed for an unknown reason; its log may say more"
            st.error(markup.md(why), icon=":material/error:")
        text = store.runs.error(run.id) or progress.log_tail(store, run.id) or "No output yet."
        # autoscroll keeps the browser busy at every frame, so only a growing log has it
        with st.container(height=260, autoscroll=run.state == "running"):
            st.code(text, language=None, wrap_lines=True)


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


def status_strip(experiment: ExperimentRow, outcome: str = "") -> str:
    """Return a line of HTML: runs by state, data, backbone, and the load of the machine or the outcome."""
    counts = {s: sum(r.state == s for r in experiment.runs) for s in STATUS}
    parts = [f"<span>{markup.status_html(s)} <b>{n}</b></span>" for s, n in counts.items() if n]
    parts.append(markup.faint(f"{data_titles(experiment.config)}, {backbone_title(experiment.config)}"))
    if outcome:  # a click shows all of it
        parts.append(f"<details><summary>{markup.esc(outcome)}</summary></details>")
    if any(not r.ended for r in experiment.runs):  # else the load would be that of the last drawing
        parts += markup.machine_html()
    return f'<div class="fl-strip fl-line" role="status">{"".join(parts)}</div>'


@markup.fragment
def follow_search(experiment: int, drawn: ShownSearch) -> None:
    """Draw the search and follow its draws; draw the whole page again once its other parts must change."""
    store = session.store()
    background.keep_working()
    seen = store.runs.digest(experiment)
    row = store.experiments.get(experiment)
    longest = browser.LONGEST_SECONDS if any(not run.ended for run in row.runs) else None
    if row.id in store.searches.waiting():  # the worker follows it at once, which changes no run of it
        longest = browser.POLL_SECONDS
    try:
        st.html(status_strip(row))
        with markup.errors_shown():
            draw_search(row)
    finally:
        browser.rerun_on_change(experiment, seen, browser.POLL_SECONDS, longest)
    if state_of_search(row) != drawn and not st.session_state["live_dialog_open"]:
        st.rerun()


def state_of_search(experiment: ExperimentRow) -> ShownSearch:
    """Return the state from which the page above the search is drawn."""
    tuning = experiment.config.tuning
    final = None if tuning is None else tuning.final
    return button_flags(experiment), final, waits_for(experiment)


def waits_for(experiment: ExperimentRow) -> str | None:
    """Return what holds up a search: empty for the worker, None if its draws have not ended or it went on."""
    store = session.store()
    return (problem_of(store, experiment.id) or "") if experiment.id in store.searches.waiting() else None


def outcome_of_search(experiment: ExperimentRow) -> None:
    """Show the outcome of a search, and offer the experiment with the selected values."""
    store, tuning = session.store(), experiment.config.tuning
    if tuning is None:
        return
    if tuning.final is None:  # the experiment with the selected values is not made yet
        if all(run.state == "failed" for run in experiment.runs):
            failed = "Every draw of this search failed, so no values were selected; the logs say why."
            st.error(failed, icon=":material/error:")
        held = sum(run.state in ("stopped", "interrupted") for run in experiment.runs)
        if held and all(run.ended for run in experiment.runs):
            what = f"{counted(held, 'stopped draw')}: resume or delete {'it' if held == 1 else 'them'}"
            st.info(f"The search waits for {what}.", icon=":material/hourglass_empty:")
        if problem := waits_for(experiment):
            markup.show_error(FedLensError(f"the search cannot go on: {problem}"))
        elif problem is not None:
            st.info("The worker queues the runs that follow these draws.", icon=":material/hourglass_empty:")
        return
    number = store.searches.by_uuid(tuning.final)
    where = "" if number is not None else " The experiment with these values is not in this database."
    selected = [f"{markup.md(m.label)}: {markup.md(m.text)}" for m in methods_of(store, experiment)]
    markup.show_finding([f"The search has selected on validation samples.{where}", *selected])
    if number is not None and st.button(
        "Open the runs with these values", icon=":material/arrow_forward:", key="live_final"
    ):
        session.remember_ids("id", [number])
        st.rerun()


def origin_of_values(experiment: ExperimentRow) -> None:
    """Say which search selected an experiment's hyper-parameters, with a link to it."""
    tuned = [entry.tuned for entry in experiment.config.methods if entry.tuned is not None]
    for identity in dict.fromkeys(t.search for t in tuned):
        number = session.store().searches.by_uuid(identity)
        found = [t for t in tuned if t.search == identity]
        draws = counted(max(t.draws for t in found), "draw")
        data = next((t.data for t in found if t.data != experiment.config.data.name), None)
        elsewhere = f", on {markup.esc(data)} instead of this data" if data is not None else ""
        link = "a search that is not in this database"
        if number is not None:
            link = f'<a href="{session.link("live", number)}" target="_self">this search</a>'
        said = f"Hyper-parameters selected on validation samples by {link}, {draws} per method{elsewhere}."
        st.html(f'<span class="fl-faint">{said}</span>')


def draw_search(experiment: ExperimentRow) -> None:
    """Draw a table of the methods' searches, and validation accuracy over a searched field."""
    found = methods_of(session.store(), experiment)
    rows = []
    for method in found:
        best = method.best
        texts = ["-", "-", "-"]
        if best is not None:
            texts = [str(best.number), markup.esc(method.values_text(best) or method.text)]
            texts.append(f"{100 * (best.validation or 0):.1f}")
        name = markup.method_html(method.label, method.method)
        rows.append([name, f"{method.done} of {method.budget}", str(method.failed), *texts])
    header = [("Method", "wide"), ("Draws done", "num"), ("Failed", "num"), ("Best draw", "num")]
    header += [("Its values", "prose"), ("Validation, %", "num")]
    st.html(markup.table_html(header, rows, "Search"))
    st.caption(
        "Validation: accuracy of the clients' own models on their validation samples in the last round, mean "
        "over clients. Draw 1 is the method as written. Test samples choose nothing."
    )
    fields = list(dict.fromkeys(name for method in found for name in method.fields))
    if not fields:
        return
    field = fields[0]
    if len(fields) > 1:
        field = st.selectbox("Draws over", fields, format_func=field_title, key="live_search_field")
    points = [
        DrawPoint(
            method.label,
            method.method,
            method.values(draw)[field],
            100 * draw.validation,
            f"{method.label}, draw {draw.number}: {method.values_text(draw)}",
            draw is method.best,
        )
        for method in found
        if field in method.fields
        for draw in method.draws
        if draw.validation is not None
    ]
    if points:
        chart = search_chart(points, session.theme(), field)
        charts.draw(chart, "live_search_chart", search_table(points, field))
