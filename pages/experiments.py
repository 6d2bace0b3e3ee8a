"""The page Experiments: all experiments with their runs, the actions on them, and the queue."""

from collections import Counter
from collections.abc import Mapping, Sequence

import streamlit as st

from fedcore import jobs
from fedcore.base import devices
from fedcore.base.errors import FedLensError
from fedcore.base.progress import counted
from fedcore.jobs import launcher
from fedcore.papers.experiments import DEMO_TIME
from fedcore.results import progress
from fedcore.results.charts.theme import STATUS
from fedcore.results.progress import ExperimentSummary, RunProgress, matches, summaries_of
from fedcore.results.statistics import group_by, spread
from fedcore.store.runs import MAX_SLOTS, Move, QueuedRun
from pages.experiments_view import actions, table
from pages.widgets import background, markup, session

LISTED = "experiments_listed"
MOVES: dict[Move, str] = {"top": "vertical_align_top", "up": "arrow_upward", "down": "arrow_downward"}
QUEUE_TABLE = "queue_table"
NEWEST = 100
"""Experiments that are listed until the reader asks for others."""
SEARCHES = ("every", "find", "status", "tag")
"""Keys of the choices that concern all experiments."""
GROUPS = {"": "nothing", "data": "data set", "tag": "tag"}
POLL_SECONDS = 5
IDLE_SECONDS = 15  # if nothing runs; a script or another tab may start something
RUNS_HEADER = [
    ("Status", ""), ("Method", "wide"), ("Runs", ""), ("Round", "num"), ("Last, %", "num"),
    ("Best on validation, %", "num"), ("Worst client, %", "num"), ("", "prose"),
]  # fmt: skip
session.through_app()
store = session.store()


def welcome() -> None:
    """Explain the page to a newcomer, and offer the demonstration that fills it."""
    with st.container(border=True):
        st.header("No experiments yet")
        st.write(
            "Your comparisons will appear here: federated methods that adapt CLIP, trained on the same data "
            "with the same clients and seeds. **Try it** compares four methods with zero-shot CLIP and "
            "PromptFL on handwritten digits in six rotations. Everything it needs comes with FedLens; "
            f"it takes {DEMO_TIME}."
        )
        st.html(session.ASSETS / "heatmap_key.html")
        with st.container(horizontal=True):
            background.demo_buttons()
            if st.button("New experiment", icon=":material/add:", key="new_empty"):
                st.switch_page("pages/new.py", query_params={})


def draw_runs(chosen: Sequence[ExperimentSummary]) -> None:
    """Draw the table of the runs of every selected experiment."""
    folded = False
    for item in chosen:
        st.markdown(f"**Runs of {markup.md(item.row.name)}**")
        if item.row.notes:
            st.caption(markup.md(item.row.notes))
        runs = progress.run_progress(store, item.row.runs)
        methods = group_by(runs, lambda p: (p.run.label, p.run.group_hash)).values()
        folded = folded or len(runs) > len(methods)
        st.html(markup.table_html(RUNS_HEADER, map(_runs_row, methods), f"Runs of {item.row.name}"))
    if folded:
        st.caption("Several runs are shown as mean ± standard deviation. Click their number to list them.")


def _runs_row(runs: Sequence[RunProgress]) -> list[str]:
    """Return the row of the runs of one method as HTML; accuracies are means over those that have one."""
    first = runs[0].run
    only = runs[0] if len(runs) == 1 else None
    counts = Counter(p.run.state for p in runs)
    status = " ".join(
        markup.status_html(s) + (f" <b>{counts[s]}</b>" if only is None else "") for s in STATUS if counts[s]
    )
    name, best = markup.method_html(first.label, first.method), _mean([p.run.best_test for p in runs])
    seeds = [markup.esc(markup.seed_text(p.run.seed, p.run.held_out)) for p in runs]
    which, attention = seeds[0], runs[0].text
    if only is not None:
        name = markup.run_link(first.id, name)
        best += "" if first.best_round is None else f" {markup.faint(f'round {first.best_round}')}"
    else:  # their number unfolds into a line with a link for each; the first that needs attention is named
        links = [markup.run_link(p.run.id, seed) for p, seed in zip(runs, seeds, strict=True)]
        lines = [
            f"{markup.status_html(p.run.state)} {link} {markup.per_cent(p.run.last_test)} "
            + (markup.faint(p.text) if p.text else "")
            for p, link in zip(runs, links, strict=True)
        ]
        which = markup.unfolding(f"<u>{len(runs)} runs</u>", lines)
        order = ("failed", "interrupted", "running", "stopping")
        attention = next((p.text for s in order for p in runs if p.run.state == s and p.text), "")
    return [
        status,
        name,
        which,
        f"{sum(p.run.rounds_done for p in runs)}/{sum(p.run.rounds_total for p in runs)}",
        _mean([p.run.last_test for p in runs]),
        best,
        _mean([p.run.worst_client for p in runs]),
        markup.esc(attention),
    ]


def _mean(values: Sequence[float | None]) -> str:
    """Return the mean and spread of shares over runs, per cent, or a dash if none is known."""
    stat = spread(None if v is None else 100 * v for v in values)
    return "-" if stat is None else stat.text()


def watch(archived: bool, seen: dict[int, tuple[str, int]], newest: int) -> None:
    """Show the counts of runs and the load of the machine, and announce changes, so that the table stays.

    Args:
        archived: whether the runs of archived experiments count.
        seen: status and rounds of the runs in the table when it was drawn.
        newest: id of the newest run at that time.
    """
    jobs.ensure_worker(store)
    counts = store.runs.counts(archived)
    parts = [f"<span>{markup.status_html(s)} <b>{n}</b></span>" for s in STATUS if (n := counts[s])]
    parts += markup.machine_html()
    now = store.runs.versions(seen)
    changed = sum(i not in now or now[i][:2] != state for i, state in seen.items())
    arrived = store.runs.count_after(newest)
    said = f"{counted(changed, 'run')} changed" if changed else ""
    new = "" if not arrived else f"{arrived} new" if changed else counted(arrived, "new run")
    news = ", ".join(filter(None, (said, new)))
    with st.container(horizontal=True, vertical_alignment="center", horizontal_alignment="distribute"):
        st.html(f'<div class="fl-strip" role="status">{"".join(parts)}</div>', width="content")
        label, icon = f"{news}: refresh" if news else "Up to date", ":material/refresh:"
        if st.button(label, "refresh", icon=icon, disabled=not news, type="tertiary"):
            st.rerun()


def filters(
    number: int, tags: Sequence[str], noted: bool
) -> tuple[str, list[str], str | None, str, list[str]]:
    """Draw the filters, which are kept in the URL; return search text, states, tag, grouping and columns.

    Args:
        number: of experiments that can be listed.
        noted: whether one of those that are listed has notes.
    """
    with st.container(horizontal=True, vertical_alignment="bottom"):
        placeholder = "name, method, data set or tag"
        text = st.text_input("Search", key="find", bind="query-params", placeholder=placeholder)
        states = session.choose(st.multiselect, "Status", list(STATUS), "status", placeholder="any")
        tag = None
        if tags:
            tag = session.choose(st.selectbox, "Tag", tags, "tag", index=None, placeholder="any")
        group: str = session.choose(st.selectbox, "Group by", GROUPS, "group", width=120)
        st.toggle("Include archived", key="archived", bind="query-params")
        if number > NEWEST:
            st.toggle(f"List all {number:,}", key="every", bind="query-params")
        columns = table.choose_columns(noted)
    return text or "", states, tag, group, columns


def draw_queue() -> None:
    """Draw the number of runs per device and the queued runs, with the buttons that move them."""
    waiting = store.queue.runs()
    count = f"{len(waiting)} waiting" if waiting else "empty"
    box = markup.opened(f"Queue: {count}", "low_priority", "queue", bind="query-params")
    if box is None:
        return
    with box:
        cluster = launcher.cluster()
        if cluster is None:
            install = f"`{launcher.HOW_TO_INSTALL}` in a checkout of FedLens (docs/cluster.md)"
            st.caption(f"To train on more machines: {install}.")
        # what queued runs wait for on the machines of a cluster
        waits: Mapping[int, str] | None = None if cluster is None else cluster.draw(slots)
        if waits is None:
            slots({d.id: d.name for d in devices.list_devices()})
            for refused in devices.refused_gpus():
                st.warning(markup.md(refused), icon=":material/memory_alt:")
            cpus, wanted = devices.usable_cpus(), store.queue.slots().get(devices.CPU, 1)
            if wanted > cpus:
                st.caption(
                    f"This machine has {counted(cpus, 'CPU')}. {wanted} runs at once take turns there and "
                    "end no sooner than one after the other."
                )
        if not waiting:
            st.caption("Launched runs wait here while others train.")
            return
        queued_runs(waiting, waits)


def queued_runs(waiting: Sequence[QueuedRun], waits: Mapping[int, str] | None) -> None:
    """Draw the queued runs and the buttons that move them."""
    rows: dict[str, Sequence[object]] = {
        "Position": list(range(1, len(waiting) + 1)),
        "Experiment": [w.experiment for w in waiting],
        "Method": [w.label for w in waiting],
        "Seed": [w.seed for w in waiting],
        "Held out": [w.held_out or "" for w in waiting],
        "Rounds": [w.rounds_total for w in waiting],
        "Device": [w.requested_device for w in waiting],
        "Memory, GB": [None if w.needed_memory is None else w.needed_memory / 1e9 for w in waiting],
    }
    if waits is not None:
        rows["Waits for"] = [waits.get(w.id, "the runs before it") for w in waiting]
    memory = st.column_config.NumberColumn(
        format="%.1f", help="Peak memory of earlier runs with this setting"
    )
    config = {"Experiment": st.column_config.TextColumn(width="medium"), "Memory, GB": memory}
    ids = [w.id for w in waiting]
    selected = table.selectable_table(
        rows, ids, QUEUE_TABLE, column_config=config, placeholder="not measured"
    )
    with st.container(horizontal=True):
        for place, icon in MOVES.items():
            if markup.write_button(place.capitalize(), icon, f"queue_{place}", bool(selected)):
                started = len(selected) - len(store.queue.move(selected, place))
                if started > 0:
                    st.toast(f"{counted(started, 'run')} had already started.")
                st.rerun()
        if markup.write_button("Stop", "stop_circle", "queue_stop", bool(selected)):
            store.runs.stop(selected)
            st.rerun()
    if not selected:
        st.caption(
            "Select rows in the first column to move their runs, or to stop them before they start. "
            "*Run next* in an experiment's menu moves all of its runs.",
            help="With the keyboard, Shift + Space selects a row.",
        )


def slots(titles: dict[str, str]) -> None:
    """Draw the number of runs that may share each of these devices."""
    stored = store.queue.slots()
    with st.container(horizontal=True):
        for device, title in titles.items():
            key = f"slots_{device}"
            st.number_input(
                f"Runs at once on {title}",
                1,
                MAX_SLOTS,
                value=stored.get(device, 1),
                key=key,
                disabled=not session.writable(),
                on_change=store_slots,
                args=(device, key),
                width=240,
                help="Another run starts only if enough memory is free, judged by earlier runs with its "
                "setting. Runs that share the CPU divide its threads.",
            )


def store_slots(device: str, key: str) -> None:
    """Callback: store the number of runs that may share a device."""
    store.queue.set_slots(device, int(st.session_state[key]))


def page() -> None:
    """Draw the page."""
    left, right = st.columns([3, 2], vertical_alignment="bottom")
    left.title("Experiments")
    with right.container(horizontal=True, horizontal_alignment="right"):
        if markup.write_button("Import", "upload_file"):
            actions.import_results()
        if markup.write_button("New experiment", "add", type="primary"):
            st.switch_page("pages/new.py", query_params={})
    actions.show_imports()
    archived = bool(st.session_state.get("archived", st.query_params.get("archived") == "true"))
    newest = store.runs.newest_id()  # read before the list, so that a run added in between counts as new
    titles = store.experiments.titles()
    existing = [e.id for e in titles if archived or not e.archived]
    state, url = st.session_state, st.query_params
    asked = any(state.get(key) if key in state else url.get_all(key) for key in SEARCHES)
    asked = asked or not {*map(str, existing[NEWEST:])}.isdisjoint(url.get_all("chosen"))
    rows, damaged = store.experiments.listed(archived, None if asked else NEWEST)
    summaries = summaries_of(store, rows)
    before: dict[int, str] = st.session_state.get(LISTED, {})
    for number in before.keys() - {e.id for e in titles}:  # perhaps another tab has deleted them
        st.toast(f"{markup.md(markup.clipped(before[number]))} was deleted.", icon=":material/delete:")
    st.session_state[LISTED] = {i.row.id: i.row.name for i in summaries}
    hidden = 0 if summaries else len(titles) - len(damaged)
    for item in damaged:
        left, right = st.columns([9, 1], vertical_alignment="center")
        markup.show_error(FedLensError(f"{item.name}: {item.reason}"), left)
        if session.writable() and right.button("Delete", icon=":material/delete:", key=f"damaged_{item.id}"):
            actions.confirm_delete_damaged(item)
    if not summaries and not hidden and not damaged:
        welcome()
        return
    markup.undo_bar()
    strip = st.container()
    tags, noted = store.experiments.tags(archived), any(i.row.notes for i in summaries)
    text, states, tag, group, columns = filters(len(existing), tags, noted)
    shown = [i for i in summaries if matches(i, text, states, tag)]
    listed = [r for i in shown for r in i.row.runs]
    live = not {"queued", "running", "stopping"}.isdisjoint(store.runs.counts(archived))
    with strip:
        markup.fragment(watch, run_every=POLL_SECONDS if live else IDLE_SECONDS)(
            archived, {r.id: (r.status, r.rounds_done) for r in listed}, newest
        )
    if shown:
        if len(rows) + len(damaged) < len(existing):
            others = "a search finds the others too"
            st.caption(f"The newest {NEWEST} of {len(existing):,} experiments; {others}.")
        chosen, selected = session.ids_in_url("chosen", [i.row.id for i in shown], []), []
        by_tag = group == "tag"
        for name, items in group_by(
            shown, lambda i: "" if not group else (", ".join(i.row.tags) or "no tag") if by_tag else i.data
        ).items():
            if name:
                st.markdown(f"**{markup.md(name)}** ({len(items)})")
            selected += table.draw(items, columns, chosen, name)
        session.remember_ids("chosen", [i.row.id for i in selected])
        table.run_clicked_action(shown)
        if selected:
            actions.bar(selected)
            draw_runs(selected)
        else:
            st.caption(
                "Click a name to open it, or select experiments in the first column.",
                help="With the keyboard, Shift + Space selects a row; End, then Tab leaves the table.",
            )
    elif hidden:
        st.info(
            f"All {hidden} experiments are archived; turn on *Include archived* to see them.",
            icon=":material/archive:",
        )
    else:
        st.info("No experiment matches these filters.", icon=":material/filter_alt_off:")
    draw_queue()


page()
