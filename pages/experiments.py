"""The page Experiments: all experiments with their runs, the actions on them, and the queue."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

import streamlit as st

from fedcore import jobs
from fedcore.errors import FedLensError
from fedcore.plots.theme import STATUS
from fedcore.progress import duration
from fedcore.results.runs import progress
from fedcore.results.runs.overview import ExperimentSummary, experiment_summaries, matches
from pages.widgets import demo, importing, markup, queue, session, viewport
from pages.widgets import experiment_actions as actions
from pages.widgets.selectable_table import ids_on_screen, selectable_table

TABLE, MENU = "experiment_table", "experiment_menu"
LISTED = "experiments_listed"
FEW_ROWS, HEIGHT = 10, 544  # pixels: a longer table shows 14 rows, and half of one to say that it goes on
POLL_SECONDS = 5
IDLE_SECONDS = 15  # where nothing runs: a script or another tab may start something
session.through_app()
store = session.store()


def welcome() -> None:
    """Explain the page to a newcomer, and offer the demonstration that fills it."""
    with st.container(border=True):
        st.header("No experiments yet")
        st.write(
            "Your comparisons will appear here: federated methods that adapt CLIP, trained on the same data "
            "with the same clients and seeds. **Try it** compares four methods with zero-shot CLIP and "
            "PromptFL on handwritten digits in six rotations. Everything it needs comes with FedLens; it "
            "takes about two minutes."
        )
        with st.container(horizontal=True):
            demo.buttons()
            if st.button("New experiment", icon=":material/add:", key="new_empty"):
                st.switch_page("pages/new.py", query_params={})


def watch(every: list[int], seen: dict[int, tuple[str, int]], newest: int) -> None:
    """Show the counts of runs and the load of the machine, and announce changes instead of moving the table.

    Args:
        every: all runs that are counted.
        seen: status and rounds of those in the table when it was drawn.
        newest: the newest run at that time.
    """
    jobs.ensure_worker(store)
    now = store.runs.get(every)
    counts = {state: sum(r.state == state for r in now) for state in STATUS}
    parts = [f"<span>{markup.status_html(s)} <b>{n}</b></span>" for s, n in counts.items() if n]
    parts += markup.machine_html()
    news = changes_text({r.id: (r.status, r.rounds_done) for r in now}, seen, store.runs.count_after(newest))
    with st.container(horizontal=True, vertical_alignment="center", horizontal_alignment="distribute"):
        st.html(f'<div class="fl-strip" role="status">{"".join(parts)}</div>', width="content")
        if st.button(
            f"{news}: refresh" if news else "Up to date",
            icon=":material/refresh:",
            key="refresh",
            disabled=not news,
            type="tertiary",
        ):
            st.rerun()


def changes_text(now: dict[int, tuple[str, int]], seen: dict[int, tuple[str, int]], arrived: int) -> str:
    """Describe what has changed since the table was drawn; empty if nothing has."""
    changed = sum(1 for run, state in seen.items() if now.get(run) != state)
    parts = [f"{changed} run{'s' * (changed > 1)} changed"] if changed else []
    parts += [f"{arrived} new" if changed else f"{arrived} new run{'s' * (arrived > 1)}"] if arrived else []
    return ", ".join(parts)


def experiment_table(summaries: list[ExperimentSummary]) -> list[ExperimentSummary]:
    """Draw the table of experiments, and return those that are selected in it."""
    rows: dict[str, Sequence[object]] = {
        "Status": [markup.status_text(i.state) + ", archived" * i.row.archived for i in summaries],
        "Experiment": [i.row.name for i in summaries],
        "": [actions.menu(i) for i in summaries],
        "Methods": [", ".join(i.methods) for i in summaries],
        "Data": [i.data for i in summaries],
        "Seeds": [i.seeds for i in summaries],
        "Rounds": [100 * i.share for i in summaries],
        "Runs": [f"{i.done}/{len(i.row.runs)}" for i in summaries],
        "Best": [i.best_text for i in summaries],
        "Last": [i.last for i in summaries],
        "Validated": [i.best for i in summaries],
        "Worst client": [i.worst for i in summaries],
        "Curve": [i.curve for i in summaries],
        "Duration": [duration(i.seconds) for i in summaries],
        "Tags": [list(i.row.tags) for i in summaries],
        "Created": [time.strftime("%Y-%m-%d %H:%M", time.localtime(i.row.created_at)) for i in summaries],
    }
    text, number = st.column_config.TextColumn, st.column_config.NumberColumn
    per_cent = partial(number, format="%.1f", width=75)
    ids = [i.row.id for i in summaries]
    selected = selectable_table(
        rows,
        ids,
        TABLE,
        first=session.ids_in_url("chosen", ids, []),
        height=HEIGHT if len(ids) > FEW_ROWS and not viewport.is_narrow() else "auto",
        column_config={
            "": st.column_config.ButtonColumn(
                "",
                type="tertiary",
                width=44,
                help="Actions for this experiment",
                key=MENU,
                on_click=remember_click,
            ),
            "Experiment": text(width="medium"),
            "Methods": text(width=170),
            "Best": text(width="small"),
            "Rounds": st.column_config.ProgressColumn(
                format="%.0f %%", min_value=0, max_value=100, width=110
            ),
            "Seeds": text(width=60),
            "Runs": text(width=60),
            "Last": per_cent(
                help="Personal accuracy at the last round of the method that is best on validation, %"
            ),
            "Validated": per_cent(help="Personal accuracy of that method at its best validation round, %"),
            "Worst client": number(
                help="Lowest accuracy of a client at the last round of that method, %",
                format="%.1f",
                width=100,
            ),
            "Curve": st.column_config.LineChartColumn(
                help="Personal test accuracy of that method over the rounds, %", y_min=0, y_max=100, width=110
            ),
            "Tags": st.column_config.ListColumn(),
        },
        placeholder="-",
    )
    session.remember_ids("chosen", selected)
    return [i for i in summaries if i.row.id in selected]


def remember_click() -> None:
    """Remember the action and the experiment of a click in a row's menu, before the rows can change."""
    click, ids = st.session_state[MENU], ids_on_screen(TABLE)
    if click["row"] < len(ids):
        st.session_state["clicked_action"] = (click["label"], ids[click["row"]])


def run_clicked_action(summaries: list[ExperimentSummary]) -> None:
    """Run the action that was clicked in a row's menu, if it is still possible."""
    label, number = st.session_state.pop("clicked_action", ("", 0))
    items = [i for i in summaries if i.row.id == number]
    if label and items and (action := actions.chosen(label)).possible(items):
        action.do(items)


def damaged_experiments() -> int:
    """Draw a line for each experiment that cannot be read, with the reason; return their number."""
    damaged = store.experiments.unreadable()
    for item in damaged:
        left, right = st.columns([9, 1], vertical_alignment="center")
        markup.show_error(FedLensError(f"{item.name}: {item.reason}"), left)
        if session.writable() and right.button("Delete", icon=":material/delete:", key=f"damaged_{item.id}"):
            actions.confirm_delete_damaged(item)
    return len(damaged)


def run_table(chosen: list[ExperimentSummary]) -> None:
    """Draw a table of the runs of every selected experiment."""
    for item in chosen:
        st.markdown(f"**Runs of {markup.md(item.row.name)}**")
        rows = []
        for p in progress.run_progress(store, item.row.runs):
            r = p.run
            name = f'<a href="{session.link("run", r.id)}" target="_self">{markup.esc(r.label)}</a>'
            held_out = f", without {markup.esc(r.held_out)}" if r.held_out else ""
            rows.append(
                [
                    markup.status_html(r.state),
                    name,
                    f"{r.seed}{held_out}",
                    f"{r.rounds_done}/{r.rounds_total}",
                    markup.per_cent(r.last_test),
                    markup.per_cent(r.best_test)
                    + (
                        f' <span class="fl-faint">round {r.best_round}</span>'
                        if r.best_round is not None
                        else ""
                    ),
                    markup.per_cent(r.worst_client),
                    markup.esc(p.text),
                ]
            )
        header = [("Status", ""), ("Method", "wide"), ("Seed", ""), ("Round", "num"), ("Last, %", "num")]
        header += [("Best on validation, %", "num"), ("Worst client, %", "num"), ("", "prose")]
        st.html(markup.table_html(header, rows, f"Runs of {item.row.name}"))


def tell_deleted(listed: dict[int, str]) -> None:
    """Name the experiments that were listed here and have been deleted elsewhere, as in another tab."""
    before: dict[int, str] = st.session_state.get(LISTED, {})
    gone = [number for number in before if number not in listed]
    there = {row.id for row in store.experiments.all(include_archived=True)} if gone else set()
    for number in gone:
        if number not in there:
            st.toast(f"{markup.md(markup.clipped(before[number]))} was deleted.", icon=":material/delete:")
    st.session_state[LISTED] = listed


def filters() -> tuple[str, list[str]]:
    """Draw the filters, which are kept in the URL; return the search text and the states."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        text = st.text_input(
            "Search", key="find", bind="query-params", placeholder="name, method, data set or tag"
        )
        states = st.multiselect("Status", list(STATUS), key="status", bind="query-params", placeholder="any")
        st.toggle("Include archived", key="archived", bind="query-params")
    return text or "", states


def title_row() -> None:
    """Draw the title and the buttons that import and create experiments."""
    left, right = st.columns([3, 2], vertical_alignment="bottom")
    left.title("Experiments")
    locked = not session.writable()
    with right.container(horizontal=True, horizontal_alignment="right"):
        if st.button("Import", icon=":material/upload_file:", disabled=locked):
            importing.dialog()
        if st.button("New experiment", type="primary", icon=":material/add:", disabled=locked):
            st.switch_page("pages/new.py", query_params={})


def page() -> None:
    """Draw the page."""
    title_row()
    importing.show_imports()
    archived = bool(st.session_state.get("archived", st.query_params.get("archived") == "true"))
    newest = store.runs.newest_id()  # before the list is read: what comes between is news
    summaries = experiment_summaries(store, archived=archived)
    tell_deleted({i.row.id: i.row.name for i in summaries})
    hidden = 0 if summaries or archived else len(store.experiments.all(include_archived=True))
    damaged = damaged_experiments()
    if not summaries and not hidden and not damaged:
        welcome()
        return
    strip = st.container()
    text, states = filters()
    shown = [i for i in summaries if matches(i, text, states)]
    listed = [r for i in shown for r in i.row.runs]
    every = [r for i in summaries for r in i.row.runs]
    live = any(not r.ended for r in every)
    with strip:
        markup.fragment(watch, run_every=POLL_SECONDS if live else IDLE_SECONDS)(
            [r.id for r in every], {r.id: (r.status, r.rounds_done) for r in listed}, newest
        )
    if shown:
        selected = experiment_table(shown)
        actions.bar(selected)
        run_clicked_action(shown)
        if selected:
            run_table(selected)
        else:
            st.caption(
                "Select experiments in the first column, or open the menu of a row. With the keyboard, "
                "Shift + Space selects a row; End, then Tab leaves the table."
            )
    elif hidden:
        st.info(
            f"All {hidden} experiments are archived; turn on *Include archived* to see them.",
            icon=":material/archive:",
        )
    else:
        st.info("No experiment matches these filters.", icon=":material/filter_alt_off:")
    queue.section()


page()
