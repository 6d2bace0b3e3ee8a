"""All experiments with their runs: find, open, clone, stop, resume, archive, delete."""

from __future__ import annotations

import time

import streamlit as st

from fedcore import runs
from fedcore.errors import FedLensError
from fedcore.report import progress
from fedcore.report.overview import ExperimentSummary, load, matches
from fedcore.runs import queries
from pages.parts import common

common.through_app()
db = common.database()


def strip(found: list[ExperimentSummary]) -> None:
    """Runs by state, and how busy the machine is."""
    counts: dict[str, int] = {}
    for item in found:
        for state, number in item.states.items():
            counts[state] = counts.get(state, 0) + number
    parts = [f"<span>{common.status_html(s)} <b>{n}</b></span>" for s, n in counts.items() if n]
    parts += common.machine_html()
    st.html(f'<div class="fl-strip" role="status">{"".join(parts)}</div>')


def welcome() -> None:
    """What a newcomer sees: what this is, and the one click that fills it."""
    with st.container(border=True):
        st.subheader("No experiments yet")
        st.write(
            "Here will be your comparisons: federated ways of adapting CLIP, on the same data with the same "
            "clients and seeds. **Try it** compares four methods with zero-shot CLIP and PromptFL on "
            "handwritten digits in six rotations. All of it comes with FedLens; it takes about two minutes."
        )
        with st.container(horizontal=True):
            if st.button("Try it", type="primary", icon=":material/play_circle:", key="try_it"):
                st.switch_page("pages/new.py", query_params={"preset": "demo"})
            if st.button("New experiment", icon=":material/add:", key="new_empty"):
                st.switch_page("pages/new.py")


@st.fragment(run_every=5)
def changes(ids: list[int], seen: dict[int, tuple[str, int]]) -> None:
    """Says that there is news instead of moving the table under the reader's hand."""
    runs.ensure_worker(db)
    now = {i: (t[0], t[1]) for i, t in queries.round_tokens(db, ids).items()}
    changed = sum(1 for i, t in now.items() if seen.get(i) != t)
    if changed and st.button(
        f"{changed} run{'s' * (changed > 1)} changed: refresh", icon=":material/refresh:"
    ):
        st.rerun()


def listing(found: list[ExperimentSummary]) -> list[ExperimentSummary]:
    """The table; returns the experiments that are selected in it."""
    rows = {
        "Status": [common.status_text(i.state) for i in found],
        "Experiment": [i.row.name for i in found],
        "Methods": [", ".join(i.methods) for i in found],
        "Data": [i.data for i in found],
        "Seeds": [i.seeds for i in found],
        "Rounds": [i.share for i in found],
        "Runs": [f"{i.done}/{len(i.row.runs)}" for i in found],
        "Best": [i.best_text for i in found],
        "Last": [i.last for i in found],
        "Validated": [i.best for i in found],
        "Worst client": [i.worst for i in found],
        "Course": [i.course for i in found],
        "Took": [progress.duration(i.seconds) for i in found],
        "Tags": [list(i.row.tags) for i in found],
        "Created": [time.strftime("%Y-%m-%d %H:%M", time.localtime(i.row.created_at)) for i in found],
    }
    per_cent = {"format": "%.1f", "width": "small"}
    number = st.column_config.NumberColumn
    ids = [i.row.id for i in found]
    if (
        st.session_state.get("experiment_rows") != ids
    ):  # a selection is by position: it must not slide to others
        st.session_state["experiment_rows"] = ids
        st.session_state["experiment_table_version"] = st.session_state.get("experiment_table_version", 0) + 1
    event = st.dataframe(
        rows,
        key=f"experiment_table_{st.session_state['experiment_table_version']}",
        hide_index=True,
        on_select="rerun",
        selection_mode="multi-row",
        column_config={
            "Experiment": st.column_config.TextColumn(width="medium"),
            "Methods": st.column_config.TextColumn(width="medium"),
            "Best": st.column_config.TextColumn(width="small"),
            "Rounds": st.column_config.ProgressColumn(format="percent", min_value=0, max_value=1),
            "Last": number(
                help="Personal test accuracy at the last round of the method that is best on validation, %",
                **per_cent,
            ),
            "Validated": number(help="The same at the round that is best on validation, %", **per_cent),
            "Worst client": number(
                help="Least personal accuracy at the last round of that method, %", **per_cent
            ),
            "Course": st.column_config.LineChartColumn(
                help="Personal test accuracy of that method by round, %", y_min=0, y_max=100
            ),
            "Tags": st.column_config.ListColumn(),
        },
    )
    return [found[i] for i in event["selection"]["rows"] if i < len(found)]


def actions(chosen: list[ExperimentSummary]) -> None:
    """What can be done with the selected experiments."""
    ids = [i.row.id for i in chosen]
    one = chosen[0] if len(chosen) == 1 else None
    stoppable = [r.id for i in chosen for r in i.row.runs if r.state in ("queued", "running")]
    resumable = [
        r.id
        for i in chosen
        for r in i.row.runs
        if r.state in ("stopped", "interrupted", "failed") and r.origin == "engine"
    ]
    may = common.writable()
    with st.container(horizontal=True):
        if st.button("Live", icon=":material/monitoring:", disabled=one is None):
            st.switch_page("pages/live.py", query_params={"id": str(ids[0])})
        if st.button("Compare", icon=":material/compare:", disabled=not ids):
            st.switch_page("pages/compare.py", query_params={"ids": [str(i) for i in ids]})
        if st.button("Clone", icon=":material/content_copy:", disabled=one is None or not may):
            st.switch_page("pages/new.py", query_params={"clone": str(ids[0])})
        if st.button("Stop", icon=":material/stop_circle:", disabled=not stoppable or not may):
            confirm_stop(chosen, stoppable)
        if st.button("Resume", icon=":material/resume:", disabled=not resumable or not may):
            runs.resume(db, resumable)
            st.toast(f"{len(resumable)} run(s) queued again; they go on after their last round.")
            st.rerun()
        shown = all(i.row.archived for i in chosen)
        if st.button(
            "Unarchive" if shown and chosen else "Archive",
            icon=":material/archive:",
            disabled=not ids or not may,
        ):
            for i in ids:
                runs.archive(db, i, not shown)
            st.rerun()
        if st.button("Delete", icon=":material/delete:", disabled=one is None or not may) and one is not None:
            confirm_delete(one)


@st.dialog("Stop these runs?")
def confirm_stop(chosen: list[ExperimentSummary], run_ids: list[int]) -> None:
    """Stop names what it stops."""
    for item in chosen:
        names = [f"{r.label} (seed {r.seed})" for r in item.row.runs if r.id in run_ids]
        st.markdown(f"**{common.md(item.row.name)}**: {common.md(', '.join(names))}")
    st.caption("Their finished rounds stay, and they can be resumed; the round in work is discarded.")
    if st.button("Stop", type="primary", key="stop_confirmed"):
        runs.stop(db, run_ids)
        st.rerun()


@st.dialog("Delete this experiment?")
def confirm_delete(item: ExperimentSummary) -> None:
    """Delete asks for the name; archiving is the gentler way."""
    st.write(
        f"This removes {len(item.row.runs)} runs, their rounds, logs and checkpoints. It cannot be undone."
    )
    st.caption("Archive only hides it from this list.")
    typed = st.text_input("Type its name to delete it", placeholder=item.row.name)
    if st.button(
        "Delete", type="primary", disabled=typed.strip() != item.row.name.strip(), key="delete_confirmed"
    ):
        try:
            runs.delete(db, item.row.id)
            st.rerun()
        except FedLensError as error:
            common.show_error(error)


def run_table(chosen: list[ExperimentSummary]) -> None:
    """The runs of the selected experiments."""
    for item in chosen:
        st.markdown(f"**Runs of {common.md(item.row.name)}**")
        rows = []
        for p in progress.progress(db, item.row.runs):
            r = p.run
            name = f'<a href="/run?id={r.id}" target="_self">{common.esc(r.label)}</a>'
            held_out = f", without {common.esc(r.held_out)}" if r.held_out else ""
            rows.append(
                [
                    common.status_html(r.state),
                    name,
                    f"{r.seed}{held_out}",
                    f"{r.rounds_done}/{r.rounds_total}",
                    common.per_cent(r.last_test),
                    common.per_cent(r.best_test)
                    + (
                        f' <span class="fl-faint">round {r.best_round}</span>'
                        if r.best_round is not None
                        else ""
                    ),
                    common.per_cent(r.worst_client),
                    common.esc(p.text),
                ]
            )
        header = [("Status", ""), ("Method", "wide"), ("Seed", ""), ("Round", "num"), ("Last, %", "num")]
        header += [("Best on validation, %", "num"), ("Worst client, %", "num"), ("", "wide")]
        st.html(common.table_html(header, rows, f"Runs of {item.row.name}"))


left, right = st.columns([4, 1], vertical_alignment="bottom")
left.title("Experiments")
archived = bool(st.session_state.get("archived", st.query_params.get("archived") == "true"))
found = load(db, archived=archived)
if right.button(
    "New experiment", type="primary", icon=":material/add:", width="stretch", disabled=not common.writable()
):
    st.switch_page("pages/new.py")
if not found and not archived:
    welcome()
else:
    strip(found)
    with st.container(horizontal=True, vertical_alignment="bottom"):
        text = st.text_input(
            "Search", key="find", bind="query-params", placeholder="name, method, data set or tag"
        )
        states = st.multiselect(
            "Status", list(common.STATUS), key="status", bind="query-params", placeholder="any"
        )
        st.toggle("Archived too", key="archived", bind="query-params")
    shown = [i for i in found if matches(i, text or "", states)]
    all_runs = [r for i in shown for r in i.row.runs]
    if any(not r.ended for r in all_runs):
        changes([r.id for r in all_runs], {r.id: (r.status, r.rounds_done) for r in all_runs})
    if not shown:
        st.info("Nothing fits these filters.", icon=":material/filter_alt_off:")
    else:
        selected = listing(shown)
        actions(selected)
        if selected:
            run_table(selected)
        else:
            st.caption("Select experiments in the first column to open, compare, clone, stop or resume them.")
