"""The search of an experiment on the page Live: its draws as one search, and where it leads."""

from collections.abc import Callable, Sequence

import streamlit as st

from fedcore.base.errors import FedLensError
from fedcore.base.progress import counted
from fedcore.config.field_names import field_title
from fedcore.jobs.tuning import problem_of
from fedcore.results import progress
from fedcore.results.charts.sweep import DrawPoint, search_chart, search_table
from fedcore.results.progress import SearchedMethod, methods_of
from fedcore.store import ExperimentRow
from pages.live_view import actions
from pages.widgets import background, browser, charts, markup, session

POLL_SECONDS, LONGEST_SECONDS = 2, 15
COLUMNS = (
    ("Method", "wide"),
    ("Draws done", "num"),
    ("Failed", "num"),
    ("Best draw", "num"),
    ("Its values", "prose"),
    ("Validation, %", "num"),
)


ShownSearch = tuple[object, str | None, str | None]
"""The state on which the buttons and the outcome above a search depend."""


@markup.fragment
def follow(experiment: int, strip: Callable[[ExperimentRow], str], drawn: ShownSearch) -> None:
    """Draw the search and follow its draws; draw the whole page again once its other parts must change.

    Args:
        strip: returns the line with the states of the runs.
        drawn: the state that the page was drawn with.
    """
    store = session.store()
    background.keep_working()
    seen = progress.activity_digest(store, experiment)
    row = store.experiments.get(experiment)
    longest = LONGEST_SECONDS if any(not run.ended for run in row.runs) else None
    if row.id in store.searches.waiting():  # the worker follows it at once, which changes no run of it
        longest = POLL_SECONDS
    try:
        st.html(strip(row))
        draw(row)
    finally:
        browser.rerun_on_change(experiment, seen, POLL_SECONDS, longest)
    if state(row) != drawn and not st.session_state["live_dialog_open"]:
        st.rerun()


def state(experiment: ExperimentRow) -> ShownSearch:
    """Return the state from which the page above the search is drawn."""
    return actions.button_flags(experiment), final_of(experiment), waits_for(experiment)


def final_of(experiment: ExperimentRow) -> str | None:
    """Return the UUID of the experiment with the selected values; None before it is made."""
    return experiment.config.tuning.final if experiment.config.tuning is not None else None


def waits_for(experiment: ExperimentRow) -> str | None:
    """Return what holds up a search: empty for the worker, None if its draws have not ended or it went on."""
    store = session.store()
    return (problem_of(store, experiment.id) or "") if experiment.id in store.searches.waiting() else None


def outcome(experiment: ExperimentRow) -> None:
    """Show the outcome of the search, and offer the experiment with the selected values."""
    store, identity = session.store(), final_of(experiment)
    if identity is None:
        if all(run.state == "failed" for run in experiment.runs):
            st.error(
                "Every draw of this search failed, so no values were selected; the logs say why.",
                icon=":material/error:",
            )
        held = sum(run.state in ("stopped", "interrupted") for run in experiment.runs)
        if held and all(run.ended for run in experiment.runs):
            st.info(
                f"The search waits for {counted(held, 'stopped draw')}: resume or delete "
                f"{'it' if held == 1 else 'them'}.",
                icon=":material/hourglass_empty:",
            )
        if problem := waits_for(experiment):
            markup.show_error(FedLensError(f"the search cannot go on: {problem}"))
        elif problem is not None:
            st.info("The worker queues the runs that follow these draws.", icon=":material/hourglass_empty:")
        return
    number = store.searches.by_uuid(identity)
    where = "" if number is not None else " The experiment with these values is not in this database."
    selected = [f"{markup.md(m.label)}: {markup.md(m.text)}" for m in methods_of(store, experiment)]
    markup.show_finding([f"The search has selected on validation samples.{where}", *selected])
    if number is not None and st.button(
        "Open the runs with these values", icon=":material/arrow_forward:", key="live_final"
    ):
        session.remember_ids("id", [number])
        st.rerun()


def origin(experiment: ExperimentRow) -> None:
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
        st.html(
            f'<span class="fl-faint">Hyper-parameters selected on validation samples by {link}, '
            f"{draws} per method{elsewhere}.</span>"
        )


def draw(experiment: ExperimentRow) -> None:
    """Draw a table of the methods' searches, and validation accuracy over a searched field."""
    try:
        found = methods_of(session.store(), experiment)
    except FedLensError as error:
        markup.show_error(error)
        return
    rows = []
    for method in found:
        best = method.best
        rows.append(
            [
                markup.method_html(method.label, method.method),
                f"{method.done} of {method.budget}",
                str(method.failed),
                "-" if best is None else str(best.number),
                "-" if best is None else markup.esc(method.values_text(best) or method.text),
                "-" if best is None else f"{100 * (best.validation or 0):.1f}",
            ]
        )
    st.html(markup.table_html(COLUMNS, rows, "Search"))
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
    points = _points(found, field)
    if points:
        chart = search_chart(points, session.theme(), field)
        charts.draw(chart, "live_search_chart", search_table(points, field))


def _points(found: Sequence[SearchedMethod], field: str) -> list[DrawPoint]:
    """Return the finished draws of the methods that search a field."""
    return [
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
