"""The page Run: accuracy, clients, diagnostics, analyses, log and config of one run."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from fedcore import jobs
from fedcore.base import consent
from fedcore.base.errors import FedLensError
from fedcore.base.progress import counted, duration, shortened
from fedcore.config import backbones, loads
from fedcore.config.field_names import error_text
from fedcore.results import curves
from fedcore.results.charts.lines import line_chart, series_table
from fedcore.results.matrices import PanelView, run_panel
from fedcore.results.panels import Panel
from fedcore.results.progress import seconds_outside_rounds
from fedcore.results.run_files import run_toml
from fedcore.share.views import Heatmaps
from fedcore.store import RunRow, Store
from pages.forms import drafts, methods
from pages.run_view import tabs
from pages.widgets import background, charts, markup, session

POLL_SECONDS = 5
LABEL = 100
"""Characters of a label in the heading; the tab *Reproduce* has all of it."""


class Again(NamedTuple):
    """What queueing a run again does.

    Attributes:
        restarts: whether its recorded rounds are deleted, because it cannot continue after them.
        effect: a sentence without its full stop.
        of_own_file: whether its method or encoder comes from a file of the user's own.
        unread: path and content of such a file, if it has changed and the user has not agreed to run it.
    """

    restarts: bool
    effect: str
    of_own_file: bool
    unread: tuple[Path, bytes] | None


def attempt_again(run: RunRow) -> Again | None:
    """Return what queueing a run again would do; None for a run that has not ended early."""
    if not background.can_resume(run):
        return None
    file: str | Path | None = None
    has_changed, unread = False, None
    # the page shows what it can of a run whose config is damaged, and the run itself reports a missing file
    with suppress(FedLensError):
        config = session.store().runs.config(run.id)
        method, file = config.method, config.method.file
        if file is not None:
            path, content = consent.read(file)
            now = consent.digest(content)
            has_changed = now != method.sha256
            unread = (path, content) if has_changed and not consent.is_agreed(path, now) else None
        for encoder in (used.pretrained for used in backbones(config) if used.name == consent.CALLABLE):
            file, content = consent.read(str(encoder))
            if not consent.is_agreed(file, consent.digest(content)):
                unread = file, content
    checkpoints = session.store().runs.checkpoints(run.id)
    restart = "*Restart* trains it again from the beginning"
    if not run.rounds_done:
        return Again(False, "*Resume* starts from the beginning", file is not None, unread)
    if has_changed:
        return Again(True, f"{restart}, with the file of its method as it is now", True, unread)
    if not checkpoints:
        return Again(True, f"{restart}, because its checkpoints are gone", file is not None, unread)
    return Again(False, f"*Resume* continues after round {checkpoints[0][0]}", file is not None, None)


def queue_again(run: RunRow, restarts: bool) -> None:
    """Queue a run again, from its last round or from the beginning."""
    store = session.store()
    store.runs.resume([run.id], restart=restarts)
    jobs.ensure_worker(store)
    st.rerun()


@markup.dialog("Start this run again?")
def confirm_again(run: RunRow, again: Again) -> None:
    """Ask before rounds are deleted, or a new file of a method runs."""
    if again.unread is not None:
        methods.show_file(*again.unread, "This run would use the file")
    if again.restarts:
        st.caption(
            f"The records of {counted(run.rounds_done, 'round')} are deleted, and the run starts again from "
            "round 0. To keep them, *Clone* the run instead."
        )
    if markup.confirmed("Restart" if again.unread is None else "I have read it: run it", "run_again"):
        if again.unread is not None:
            path, content = again.unread
            consent.agree(path, consent.digest(content))
        queue_again(run, again.restarts)


def header(run: RunRow, next_attempt: Again | None) -> None:
    """Draw the title, the status, why the run ended, and its main results."""
    experiment = session.store().experiments.get(run.experiment_id)
    st.title(f"{markup.md(shortened(run.label, LABEL))}, seed {run.seed}")
    name = markup.esc(markup.clipped(experiment.name))
    parts = [
        markup.status_html(run.state),
        f'in <a href="{session.link("live", run.experiment_id)}" target="_self">{name}</a>',
    ]
    parts += ["archived"] if experiment.archived else []
    parts += [f"without {markup.esc(run.held_out)}"] if run.held_out else []
    ran = f"attempt {run.attempt}, {run.device or 'no device yet'}" if run.attempt else "not started yet"
    parts.append(markup.faint(f"run {run.id}, {ran if run.origin == 'engine' else 'recorded elsewhere'}"))
    parts += [text] if (text := markup.marks_html(run)) else []
    parts += [markup.esc(run.status_text)] if run.status_text and run.state == "running" else []
    st.html(f'<div class="fl-strip">{"".join(f"<span>{p}</span>" for p in parts)}</div>')
    why_it_ended(run, next_attempt)
    best = f"at round {run.best_round}" if run.best_round is not None else None
    (evaluated,) = session.store().rounds.last_evaluated([run.id]).get(run.id, [None])
    last = f"at round {evaluated}" if evaluated is not None and evaluated < run.rounds_done else None
    elapsed, loading = run.elapsed(), seconds_outside_rounds(session.store(), [run])[run.id]
    before = f"loading, encoding {duration(loading)}" if loading else None
    values = [
        ("Last round, %", markup.per_cent(run.last_test), last),
        ("Best on validation, %", markup.per_cent(run.best_test), best),
        ("Worst client, %", markup.per_cent(run.worst_client), None),
        ("Rounds", f"{run.rounds_done}/{run.rounds_total}", None),
        ("Duration", "-" if elapsed is None else duration(elapsed - loading), before),
    ]
    with st.container(horizontal=True, gap="medium"):  # on a telephone beside each other, too
        for label, value, note in values:
            st.metric(label, value, note, delta_color="off", delta_arrow="off", width="content")
    if run.last_test is not None:
        st.caption("Accuracy: each client's own model on its own test samples, averaged over clients.")


def why_it_ended(run: RunRow, next_attempt: Again | None) -> None:
    """Show why a run ended early, and how to continue."""
    if not run.status_text or run.state in ("running", "done"):
        return
    failed = run.state == "failed"
    reason = error_text(run.status_text)
    text = markup.md(reason if failed else reason[:1].upper() + reason[1:])
    if failed and next_attempt is not None:
        text += "\n\n*Log and files* has the traceback. If the config is to blame, *Clone* opens it"
        text += " in the form to correct it"
        if next_attempt.of_own_file:
            text += "; if the method is, correct its file, and this page offers to run it"
        text += f". {next_attempt.effect}."
    (st.error if failed else st.warning)(text, icon=":material/error:" if failed else ":material/info:")


@markup.dialog("Stop this run?")
def confirm_stop(run: RunRow) -> None:
    """Ask before stopping a run, naming it."""
    st.markdown(f"**{markup.md(shortened(run.label, LABEL))}, seed {run.seed}**")
    st.caption("Its finished rounds are kept and it can be resumed; the current round is discarded.")
    if markup.confirmed("Stop", "run_stop"):
        session.store().runs.stop([run.id])
        st.rerun()


def actions(run: RunRow, next_attempt: Again | None) -> None:
    """Draw the buttons that clone, stop and resume the run."""
    with st.container(horizontal=True, vertical_alignment="center"):
        if run.origin == "engine" and markup.write_button("Clone", "content_copy"):
            alone = loads(run_toml(session.store(), run.id), "the run's config")
            name = f"{run.label}, seed {run.seed} (copy)"
            drafts.fill(alone.model_copy(update={"name": name}), f"run:{run.id}")
            st.switch_page("pages/new.py", query_params={})
        if background.can_stop(run) and markup.write_button("Stop", "stop_circle"):
            confirm_stop(run)
        if next_attempt is not None:
            label, icon = ("Restart", "restart_alt") if next_attempt.restarts else ("Resume", "resume")
            if markup.write_button(label, icon, "run_again"):
                if next_attempt.restarts or next_attempt.unread is not None:
                    confirm_again(run, next_attempt)
                else:
                    queue_again(run, restarts=False)
        if markup.write_button("Star, tags and notes", "sell"):
            markup.edit_marks(run)
        if not run.ended:
            change_notice(run)
        charts.table_switch()


@markup.fragment(run_every=POLL_SECONDS)
def change_notice(run: RunRow) -> None:
    """Draw a button that announces new rounds, so that the page does not move under the reader."""
    jobs.ensure_worker(session.store())
    now = next(iter(session.store().runs.get([run.id])), None)
    text = "Deleted" if now is None else f"Now {now.state}, round {now.rounds_done}: refresh"
    unchanged = now is not None and (now.state, now.rounds_done) == (run.state, run.rounds_done)
    text = "Up to date" if unchanged else text
    if st.button(text, icon=":material/refresh:", key="run_news", disabled=unchanged, type="tertiary"):
        st.rerun()


@st.cache_resource(hash_funcs={Store: repr}, max_entries=16, show_spinner=False)
def panel_of(
    store: Store, _run: RunRow, version: tuple[object, ...], view: PanelView, until: int | None = None
) -> Panel:
    """Return a panel of a run; it is computed again when the run has another ``RunRow.version``."""
    return run_panel(store, _run, view, until=until)


def draw_panel(panel: Panel, key: str) -> None:
    """Draw a heatmap, or its numbers, in half of a wide window."""
    charts.draw_figure(Heatmaps(key, panel.title, (panel,)), key, share=0.5)


def accuracy(run: RunRow) -> None:
    """Draw the accuracy of a chosen round, every client's own, and the curves of accuracy and loss."""
    store = session.store()
    rounds = store.rounds.evaluated(run.id)
    if not rounds:
        tabs.no_round_yet(run)
        return
    chosen = rounds[-1]
    if len(rounds) > 1:
        chosen = st.select_slider("Round", rounds, value=rounds[-1], key=f"run_round_{run.id}_{rounds[-1]}")
    matrix = panel_of(store, run, run.version, "matrix", chosen)
    own = panel_of(store, run, run.version, "clients")
    columns = st.columns(1 if session.is_narrow() else 2)
    with columns[0]:
        draw_panel(replace(matrix, title=f"Model by test set, round {chosen}"), "run_heat_0")
    with columns[-1]:
        draw_panel(replace(own, title="Clients' own accuracy by round"), "run_heat_1")
    until = {run.id: run.rounds_total}
    left, right = st.columns(2)
    curve(left, "Personal accuracy, mean", curves.run_lines(store, until), True)
    if loss := curves.run_lines(store, until, "loss"):  # imported results may have none
        curve(right, "Training loss", loss, False)


def curve(
    where: DeltaGenerator, title: str, series: list[curves.Series], per_cent: bool, note: str = ""
) -> None:
    """Draw one chart over the rounds, with a note below it."""
    with where:
        chart = line_chart(series, session.theme(), "Round", "", per_cent=per_cent, height=320, name=title)
        if st.session_state.get("as_tables"):
            st.markdown(f"**{markup.md(title)}**")
        charts.draw(chart, f"run_{title}", dict(series_table(series, "round", "%" if per_cent else "")))
        if note:
            st.caption(markup.md(note))


def recorded(run: RunRow) -> None:
    """Draw the values and matrices that the method records."""
    store, until = session.store(), {run.id: run.rounds_total}
    recorded_lines = curves.recorded_charts(store, [run])
    recorded_matrices = curves.recorded_matrix_charts(store, [run]).values()
    columns = st.columns(2)
    for i, described in enumerate(recorded_lines):
        series = curves.diagnostic_series(store, until, described)
        note = curves.chart_note(described, series)
        curve(columns[i % 2], described.heading, series, described.unit == "%", note)
    for i, matrix in enumerate(recorded_matrices, len(recorded_lines)):
        panel = replace(panel_of(store, run, run.version, matrix.name), title=matrix.title)
        with columns[i % 2]:
            draw_panel(panel, f"run_{matrix.name}")


def page() -> None:
    """Draw the page."""
    requested = st.query_params.get("id", "")
    runs = session.store().runs.get([int(requested)]) if requested.isdecimal() else []
    if not runs:
        st.title("Run")
        text = "Choose an experiment to see its runs."
        if requested:
            text = f"There is no run {markup.md(requested[:20])} here; it may have been deleted. {text}"
        st.info(text, icon=":material/search_off:")
        if st.button("Experiments", icon=":material/arrow_back:"):
            st.switch_page("pages/experiments.py", query_params={})
        return
    run = runs[0]
    session.look_at(run.experiment_id)
    with markup.errors_shown():
        next_attempt = attempt_again(run)
        header(run, next_attempt)
        actions(run, next_attempt)
        draw = {"Accuracy": accuracy, "Clients": tabs.clients}
        if session.store().diagnostics.names(run.id):
            draw["Diagnostics"] = recorded
        draw |= tabs.analyses_of(run)
        draw |= {"Log and files": tabs.log, "Reproduce": tabs.reproduce}
        shown = st.tabs(list(draw), key="run_tab", on_change="rerun", bind="query-params")
        for show, tab in zip(draw.values(), shown, strict=True):
            if tab.open:
                with tab:
                    show(run)


session.through_app()
page()
