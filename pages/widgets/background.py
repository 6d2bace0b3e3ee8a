"""Work that a page starts: plans and launches, tasks with their progress, and the report of a comparison."""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from fedcore import jobs
from fedcore.base import consent
from fedcore.base.errors import FedLensError
from fedcore.base.progress import Progress, Work, about, result_of
from fedcore.config import Experiment, RunConfig
from fedcore.config.field_names import error_text, size_text
from fedcore.data import descriptions
from fedcore.engine.plan import Plan, Planner, PlanResult, plan
from fedcore.jobs import analysis, forecast
from fedcore.papers.experiments import DEMO, preset
from fedcore.results.exports import file_name
from fedcore.share import SUFFIXES, Format, TableName
from fedcore.share.checked import WRITERS, ComparisonChoices, checked_comparison
from fedcore.share.content import PARTS, Wording, read_report
from fedcore.share.views import views
from fedcore.store import ExperimentRow, RunRow, Store, TaskRow
from fedcore.store.tasks import TaskKind
from pages.widgets import markup, session

LOG_CHARACTERS = 4000
Asked = tuple[int, analysis.AnalysisKind | analysis.Against, int | None, int]
"""An analysis: the run, what is asked of it, and the entity codes of a model and a test set."""
_File = TypeVar("_File", str, bytes)


def keep_working() -> None:
    """Start the worker if runs are queued, and mark runs whose process has died; nothing if read-only."""
    if session.writable():
        jobs.ensure_worker(session.store())
        session.store().jobs.reconcile()


def launch(
    experiment: Experiment,
    runs: Sequence[RunConfig],
    device: str = "auto",
    twins: Mapping[int, int] | None = None,
) -> None:
    """Queue the runs of an experiment but the ``twins``, start the worker, and open it on Live."""
    store = session.store()
    created = store.experiments.create(experiment, runs, device=device, twins=twins)
    jobs.ensure_worker(store)
    st.switch_page("pages/live.py", query_params={"id": str(created.experiment_id)})


def can_stop(run: RunRow) -> bool:
    """Return whether a run is queued or running."""
    return run.state in ("queued", "running")


def can_resume(run: RunRow) -> bool:
    """Return whether a run has ended early and was trained here."""
    return run.state in ("stopped", "interrupted", "failed") and run.origin == "engine"


def demo_buttons() -> None:
    """Draw the button that starts the demonstration, and the one that shows its settings first."""
    if markup.write_button("Try it", "play_circle", "try_it", type="primary"):
        demo = preset(DEMO)
        with markup.errors_shown():
            with st.spinner("Starting…"):
                runs = plan(demo).runs
            launch(demo, runs)
    if st.button("Look at the settings first", icon=":material/tune:", key="try_it_settings"):
        st.switch_page("pages/new.py", query_params={"preset": "demo"})
    if session.writable():
        with suppress(FedLensError):  # the click starts one too, and says why if none can be started
            jobs.ensure_worker(session.store(), ahead=True)


def submit(kind: TaskKind, key: str, args: Mapping[str, Any]) -> None:
    """Queue a task, even if it was done before, and start the worker."""
    store = session.store()
    store.tasks.submit(kind, key, args, again=True)
    jobs.ensure_worker(store)


def show_task(task: TaskRow, title: str) -> None:
    """Show a running task's progress bar and stop button, or why it failed until that is dismissed."""
    if not task.ended:
        _progress_bar(task.id, title)
        if markup.write_button("Stop", "stop_circle", f"stop_task_{task.id}"):
            session.store().tasks.stop(task.id)
            st.rerun()
        return
    if task.status == "done":
        return
    left, right = st.columns([8, 1], vertical_alignment="center")
    if task.status == "stopped":
        left.info(markup.md(f"{title}: stopped."), icon=":material/stop_circle:")
    else:
        left.error(markup.md(f"{title}: {error_text(task.error or task.status)}"), icon=":material/error:")
    dismiss = f"dismiss_task_{task.id}"
    if right.button("Dismiss", dismiss, disabled=not session.writable(), type="tertiary"):
        session.store().tasks.delete(task.id)
        st.rerun()
    if task.status == "failed" and task.log.is_file():
        with st.expander("Details", key=f"log_task_{task.id}"):
            st.code(task.log.read_text(encoding="utf-8", errors="replace")[-LOG_CHARACTERS:], language=None)


def analyse(store: Store, asked: Sequence[Asked]) -> None:
    """Queue analyses, even if they were done before, and start the worker."""
    for one in asked:
        analysis.submit(store, *one, again=True)
    jobs.ensure_worker(store)


def ask_for(
    store: Store,
    wanted: Mapping[str, Asked],
    obstacles: Sequence[str],
    label: str,
    key: str,
    begin: bool = False,
) -> None:
    """Draw what prevents some analyses, the progress of their tasks, and the button that asks for them.

    Args:
        wanted: the analyses by title.
        begin: whether those that nobody has asked for yet begin without the button.
    """
    for text in obstacles:
        st.info(markup.md(text), icon=":material/search_off:")
    possible = not obstacles and session.writable()
    if begin and possible:
        analyse(store, [asked for asked in wanted.values() if analysis.find(store, *asked) is None])
    tasks = {title: task for title, asked in wanted.items() if (task := analysis.find(store, *asked))}
    for title, task in tasks.items():
        show_task(task, title)
    if possible and any(task.status == "done" for task in tasks.values()):
        st.warning("The results are missing; compute them again.", icon=":material/folder_off:")
    ended, text = all(task.ended for task in tasks.values()), "Try again" if tasks else label
    if ended and markup.write_button(text, "search_insights", key, possible, type="primary"):
        analyse(store, list(wanted.values()))
        st.rerun()


@markup.fragment(run_every=1)
def _progress_bar(task_id: int, title: str) -> None:
    """Redraw the progress bar every second, and the whole page when the task has ended."""
    store = session.store()
    jobs.ensure_worker(store)
    task = store.tasks.get(task_id)
    if task.ended:
        st.rerun()
    number = size_text if (task.status_text or "").startswith("downloading") else "{:,}".format
    counted = f" {number(task.done)} of {number(task.total)}" if task.total else ""
    left = f", {about(task.seconds_left)} left" if task.seconds_left else ""
    idle = {"queued": "waiting for its turn", "stopping": "stopping"}
    text = idle.get(task.status) or f"{task.status_text or 'starting'}{counted}{left}"
    st.progress(task.share, text=markup.md(f"{title}: {text}"))


@st.cache_resource(show_spinner=False)
def _planner() -> Planner:
    return Planner()


def request(experiment: Experiment, version: str = "") -> Future[PlanResult]:
    """Return the plan of an experiment, and start to make it if there is none for this version.

    Args:
        version: changes with whatever the caller knows to affect the plan, such as a check of the data. Class
            descriptions and agreed method files, which affect every plan, are added here.
    """
    try:
        texts = descriptions.version(experiment.data.name, experiment.data.root)
    except FedLensError:  # an unknown data set, which the plan reports
        texts = ""
    return _planner().request(experiment, f"{texts} {consent.version()} {version}")


def planned(request: Future[PlanResult]) -> Plan | FedLensError:
    """Return the plan of a request that is done, or the user's error that prevents it."""
    answer = request.result().answer
    if isinstance(answer, Plan | FedLensError):
        return answer
    raise answer


def reading_data(began: float) -> None:
    """Say for how long the data of a plan have been read."""
    said = f"Reading the data for {time.monotonic() - began:.0f} s; a large folder takes a while."
    st.info(said, icon=":material/hourglass_top:")


@st.cache_data(show_spinner=False, ttl=20, hash_funcs={Store: repr})
def precedents(store: Store) -> forecast.Precedents:
    """Return the cost of the runs recorded on this machine, from which a plan's cost is estimated."""
    return forecast.precedents(store.path)


def file_button(
    experiments: Sequence[ExperimentRow],
    label: str,
    table: TableName,
    format: Format,
    choice: ComparisonChoices | None,
    printed: bool = True,
    **options: Any,
) -> None:
    """Draw the button that saves a table of a comparison, which is checked for it."""

    def written() -> str:
        with checked_comparison(session.store(), [e.id for e in experiments], choice, printed) as checked:
            return "".join(WRITERS[table, format](checked))

    suffix = SUFFIXES[format]
    name = file_name(experiments, table, suffix)
    markup.download(label, written, name, f"file_{table}_{suffix}", **options)


def csv_button(experiments: Sequence[ExperimentRow], choice: ComparisonChoices | None = None) -> None:
    """Draw the button that saves the summary of a comparison; default: the last round of finished runs."""
    about = "One row per method and metric, with differences and p"
    file_button(experiments, "Download CSV", "summary", "csv", choice, help=about)


def report_button(
    store: Store, experiments: Sequence[ExperimentRow], key: str, choice: ComparisonChoices | None = None
) -> None:
    """Draw the button behind which a report is worded, and made as one HTML file."""
    about = "One HTML file that opens and prints anywhere"
    with st.popover("Report", icon=":material/description:", key=key, help=about):
        # A form, because the click that ends the typing of a title would otherwise draw the page again, and
        # a download that is requested meanwhile sometimes never arrives.
        with st.form(f"{key}_words", border=False):
            names, why = ", ".join(e.name for e in experiments), "Why these runs, and what follows from them"
            title = st.text_input("Title", key="report_title", placeholder=names)
            notes = st.text_area("Notes", key="report_notes", placeholder=why)
            titles = {part: part.capitalize() for part in PARTS}
            titles |= {name: view.title for name, view in views().items()}
            parts = st.multiselect("Parts", PARTS, PARTS, titles.__getitem__, "report_parts")
            asked = st.form_submit_button("Make report", type="primary", icon=":material/description:")
        ids = [e.id for e in experiments]
        if asked:
            st.session_state["report_wording"] = ids, Wording(title, notes, tuple(parts))

        def work() -> Work[str]:
            from fedcore.share.page import report_html

            with checked_comparison(store, ids, choice) as checked:
                report = yield from read_report(checked, wording(experiments))
            return (yield from report_html(report))

        if page := made("report_made", ([e.version for e in experiments], choice), asked, work):
            name = file_name(experiments, "report", "html")
            file_help = "One HTML file that opens and prints without FedLens or network"
            markup.download("Save report", page, name, f"{key}_file", help=file_help)


def made(key: str, subject: object, asked: bool, work: Callable[[], Work[_File]]) -> _File | None:
    """Return the file that was last made of a subject in this session; make it first, with a bar, if asked.

    Args:
        key: of the file in the session, which has one subject at a time.
    """
    if asked:
        st.session_state.pop(key, None)
        bar = st.empty()
        _show_step(bar, Progress("checking the runs", 0, 0))
        with markup.errors_shown():
            st.session_state[key] = subject, result_of(work(), partial(_show_step, bar))
        bar.empty()
    made_of, file = st.session_state.get(key, (None, None))
    return file if made_of == subject else None


def _show_step(bar: DeltaGenerator, step: Progress) -> None:
    counted = f": {step.done} of {step.total}" if step.total else ""
    bar.progress(step.done / max(step.total, 1), text=f"{step.message.capitalize()}{counted}")


def wording(experiments: Sequence[ExperimentRow]) -> Wording:
    """Return the title, notes and parts of the last report, if it was made of these experiments."""
    ids, given = st.session_state.get("report_wording", (None, Wording()))
    return given if ids == [e.id for e in experiments] else Wording()
