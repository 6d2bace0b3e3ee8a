"""The runs behind a paper's tables on the page Papers: their state, the dialog that queues them, readings."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from dataclasses import dataclass, replace
from typing import Any

import streamlit as st

from fedcore import jobs
from fedcore.base.errors import FedLensError
from fedcore.base.progress import about, counted
from fedcore.config.field_names import size_text
from fedcore.data import getting
from fedcore.engine.plan import Plan
from fedcore.jobs import forecast
from fedcore.papers import adding, library
from fedcore.papers.cells import (
    STATUSES,
    Availability,
    Filling,
    TableCell,
    counts_text,
    fillings,
    find_available,
    missing_parts,
    seconds,
    table_cells,
)
from fedcore.papers.choices import Multiverse, caveat_weights, multiverse, rankings, recorded_runs
from fedcore.papers.comparability import evidence_for
from fedcore.papers.getting import task_arguments
from fedcore.papers.layout import PrintedTable, all_tables
from fedcore.papers.published import PublishedValue, findings_of
from fedcore.papers.recorded import RecordedRuns
from fedcore.results.charts.ranks import curve_table, specification_chart
from fedcore.results.charts.theme import STATUS
from fedcore.results.metrics import RULES
from fedcore.results.specification import curve
from fedcore.results.statistics import signed
from fedcore.store import RunRow, Store
from pages.forms import dataset
from pages.papers_view.table import source_html
from pages.widgets import background, charts, markup, session

SECONDS = 20
"""Cache lifetime of checks outside the runs: folders, weights, processes that died."""
OPEN = "papers_dialog"
"""Key of the session for the table and cells of the open dialog."""
WAIT_SECONDS = 0.3
LISTED = 12
MEANING = (
    "A reading takes one alternative of each choice; the first one is FedLens's own. Readings "
    "that differ only in the reported round use the same runs; shared runs are trained once."
)
NO_EVIDENCE = "In a rehearsal these numbers say nothing about those of the paper."


@dataclass(frozen=True)
class Snapshot:
    """The state of a store at one moment."""

    store: Store
    digest: str
    rehearsal: bool
    recorded: RecordedRuns
    available: Availability
    past: forecast.Precedents

    def cells(self, values: Sequence[PublishedValue]) -> dict[PublishedValue, TableCell]:
        return table_cells(self.recorded, values, self.available, self.rehearsal)

    def cost(self, cell: TableCell) -> float | None:
        """Estimate the seconds that a cell's missing runs take; None without similar runs on this machine."""
        return None if cell.source is None else seconds(self.past, missing_parts([cell]))


def now(store: Store, rehearsal: bool) -> Snapshot:
    """Read the current state of a store, and the papers that were added to it."""
    adding.use(store.path)
    return _read(store, store.runs.digest(), rehearsal, library.version())


@st.cache_resource(hash_funcs={Store: repr}, max_entries=8, ttl=SECONDS, show_spinner=False)
def _read(store: Store, digest: str, rehearsal: bool, papers: int) -> Snapshot:
    """Read a store again only when a run or the library, of this version, has changed."""
    recorded, past = recorded_runs(store, rehearsal), background.precedents(store)
    return Snapshot(store, digest, rehearsal, recorded, find_available(store), past)


@st.cache_resource(
    hash_funcs={Snapshot: lambda s: repr((s.store, s.digest, s.rehearsal, library.version()))},
    max_entries=4,
    ttl=SECONDS,
    show_spinner=False,
)
def every_cell(snapshot: Snapshot) -> dict[str, list[TableCell]]:
    """Return the cells of all papers by table."""
    cells = snapshot.cells([value for table in all_tables() for value in table.values])
    return {table.name: [cells[value] for value in table.values] for table in all_tables()}


@st.cache_resource(max_entries=32, show_spinner=False)
def _readings(table: str, rehearsal: bool, papers: int, _table: PrintedTable) -> dict[str, Multiverse]:
    """Return the readings of each ranking of a table by title; ``papers`` is the version of the library."""
    every = [multiverse(r, rehearsal) for r in rankings(_table.values)]
    return {readings.ranking.title: readings for readings in every if readings.choices}


def chosen_cells(table: PrintedTable, choice: str) -> tuple[str, Callable[[Snapshot], Sequence[TableCell]]]:
    """Return the title of a click, and a function that reads its cells.

    A click is ``cell 12``, ``row 0 3`` (panel and row), ``all``, or ``readings`` with the title of a ranking.
    """
    kind, _, which = choice.partition(" ")
    title, values = f"{library.find(table.paper).title}, {table.title}", list(table.values)
    if kind == "readings":
        title = f"{table.title}, all readings{which and f' of {which}'}"
    elif kind == "cell":
        value = table.values[int(which)]
        target = "mean" if value.target == "avg" else value.target
        parts = (value.dataset, value.setting, value.method, target)
        title, values = f"{value.source}: {', '.join(filter(None, parts))}", [value]
    elif kind == "row":
        panel, number = map(int, which.split())
        row = table.panels[panel].rows[number]
        title = f"{table.title}: {', '.join(row.heads)}"
        values = [table.values[i] for i in row.cells if i is not None]

    def cells(snapshot: Snapshot) -> list[TableCell]:
        if kind != "readings":
            by_value = snapshot.cells(values)
            return [by_value[value] for value in values]
        every = _readings(table.name, snapshot.rehearsal, library.version(), table)
        chosen = [every[which]] if which in every else every.values()
        return [cell for each in chosen for cell in each.cells(snapshot.recorded, snapshot.available)]

    return title, cells


def closed() -> None:
    """Callback: forget the dialog, so that a rerun does not open it again."""
    st.session_state.pop(OPEN, None)


def open_dialog(table: PrintedTable, choice: str, rehearsal: bool) -> None:
    """Show details of the cells of a click, and offer to queue their missing runs."""
    title, cells_in = chosen_cells(table, choice)

    @markup.dialog(markup.md(title), width="large", on_dismiss=closed)
    def draw() -> None:  # reads the cells at each click: runs queued in another tab are not queued twice
        snapshot = now(session.store(), rehearsal)
        cells = cells_in(snapshot)
        values = {cell.value for cell in cells}
        if len(cells) == 1:
            _describe(cells[0], snapshot)
        elif len(cells) > len(values):
            st.markdown(f"**{counted(len(values), 'printed value')} in {len(cells)} variants.**")
        else:
            st.markdown(f"**{len(cells)} printed values:** {counts_text(c.status for c in cells)}.")
        _offer(f"{table.name} {choice}", cells, snapshot)

    draw()


def _describe(cell: TableCell, snapshot: Snapshot) -> None:
    """Draw the printed value, ours, the reasons against comparing them, and links to the runs."""
    value, ours = cell.value, "-" if cell.stat is None else cell.stat.text(cell.value.digits)
    if cell.stat is not None and cell.status == "rehearsed":
        ours += " (rehearsal, no evidence)"
    rows = [
        ["Printed", f"{markup.esc(cell.value.text)} ({markup.esc(value.source)})"],
        ["Ours", markup.esc(", ".join(filter(None, (ours, cell.seeds_text))))],
        ["Difference", markup.esc(cell.gap_text or "-")],
        ["Metric", markup.esc(f"{value.metric}; the paper reports {RULES[value.rule]}")],
        ["Status", markup.esc(f"{cell.status}: {STATUSES[cell.status]}")],
    ]
    sources = [part.source for part in cell.parts or (cell,) if part.source is not None]
    rows += [["Method", markup.esc(f"{of.title} of the preset {of.preset}")] for of in sources]
    if cell.reason:
        rows.append(["Reason", markup.esc(cell.reason)])
    rows += [["Audit", markup.esc(f"{found.kind}: {found.text}")] for found in findings_of(value)]
    rows.append(["Source", source_html(library.find(value.paper))])
    st.html(markup.table_html([("Property", "name"), ("Value", "prose")], rows, "Details of the cell"))
    weights: dict[str, str] = {}
    if cell.comparability.reasons:  # by runs of the value's readings, else by their rehearsals
        weights = caveat_weights(snapshot.recorded, value, False)
        weights = weights or caveat_weights(now(snapshot.store, True).recorded, value, True)
    for _, reason in cell.comparability.reasons:
        weight = f" (**{markup.md(weights[reason])}**)" if reason in weights else ""
        st.caption(f":material/balance: {markup.md(reason)}{weight}")
    if cell.source is not None and not cell.source.rehearsal and not cell.comparability.reasons:
        for evidence in evidence_for(value):
            st.caption(f":material/verified: {markup.md(evidence.text)}")
    measured = snapshot.store.runs.get(cell.measurement.runs) if cell.measurement is not None else []
    _links("Measured by", measured)
    _links("In progress", cell.active)
    _links("Ended before their last round", cell.ended_early)


def _links(title: str, runs: Sequence[RunRow]) -> None:
    if not runs:
        return
    shown = []
    for r in runs[:LISTED]:
        named = f"seed {r.seed}" + (f", held out {r.held_out}" if r.held_out else "")
        link = markup.run_link(r.id, f"{STATUS[r.state][0]} run {r.id}")
        shown.append(f"<span>{link} {markup.faint(named)}</span>")
    shown += [f"<span>and {len(runs) - LISTED} more</span>"] if runs[LISTED:] else []
    st.html(f'<div class="fl-strip"><b>{title}</b> {" ".join(shown)}</div>')


def _offer(key: str, cells: Sequence[TableCell], snapshot: Snapshot) -> None:
    """Draw the choice of seeds, the plan of the missing runs, and the buttons that queue them."""
    if not missing_parts(cells):
        return
    most = max(len(c.source.experiment.seeds) for c in cells if c.source is not None)
    seeds, titles = most, {n: f"first {n}" for n in range(1, most)} | {most: f"all {most}"}
    if most > 1:
        options: dict[str, Any] = {"default": most, "required": True, "format_func": titles.__getitem__}
        seeds = st.segmented_control("Seeds", list(titles), key="papers_seeds", **options)
    every = fillings(cells, snapshot.available, seeds)
    lacks = dict.fromkeys(lack for f in every for lack in f.lacks if lack.kind == "data")
    offers = {lack: getting.item(lack.name) for lack in lacks}
    by_hand = [lack for lack, offer in offers.items() if not offer.address]
    for lack in by_hand:
        said = f"This machine lacks {lack.text}. {lack.how} Then check its folder on the page Data & models."
        st.warning(markup.md(said), icon=":material/folder_off:")
    possible = [f for f in every if not lacks.keys() & f.lacks]  # a run downloads weights by itself
    wanted = [f for f in every if f not in possible and not {*by_hand} & {*f.lacks}]
    if possible:
        _queue(possible)
    elif every:
        missing = missing_parts(cells, seeds)
        runs = counted(sum(map(len, missing.values())), "run")
        st.markdown(f"**{runs}** missing; {_time_here(seconds(snapshot.past, missing))}.")
        if not wanted:
            st.page_link("pages/data.py", label="Data & models", icon=":material/folder:")
    else:
        st.info("The runs of these seeds are done or queued.", icon=":material/check:")
    if wanted:
        _get_and_queue(key, wanted, [offer for offer in offers.values() if offer.address])


def _get_and_queue(key: str, wanted: Sequence[Filling], offers: Sequence[getting.Item]) -> None:
    """Draw the terms of the data that some runs lack, and the button that gets them and queues the runs."""
    task = session.store().tasks.find("fill", key)
    if task is not None and not task.ended:
        coming = "The data are on their way; the runs are queued once they are here."
        st.info(coming, icon=":material/download:")
        return
    terms = [dataset.terms(offer) for offer in offers]
    weights = dict.fromkeys(lack for f in wanted for lack in f.lacks if lack.kind == "weights")
    terms += [markup.md(f"{markup.sentence(lack.text)}, from huggingface.co.") for lack in weights]
    st.markdown("\n".join(f"- {text}" for text in terms))
    known = [offer.size for offer in offers if offer.size]
    at_least = "at least " * (len(known) < len(offers) or bool(weights))
    size = f" ({at_least}{size_text(sum(known))})" if known else ""
    runs = counted(sum(len(filling.wanted) for filling in wanted), "run")
    label = f"Get {counted(len(offers), 'data set')}{size} and queue {runs}"
    if markup.write_button(label, "download", "papers_get", type="primary"):
        background.submit("fill", key, task_arguments(wanted))
        closed()
        st.rerun()


def _time_here(seconds: float | None) -> str:
    return f"time on this machine: {'unknown' if seconds is None else about(seconds)}"


def _queue(wanted: Sequence[Filling]) -> None:
    """Plan the runs, and draw their number, time and disk space, errors and warnings, and the button."""
    requests = [background.request(f.experiment) for f in wanted]
    place, began = st.empty(), time.monotonic()
    while wait(requests, WAIT_SECONDS).not_done:
        with place:
            background.reading_data(began)
    place.empty()
    store, past = session.store(), background.precedents(session.store())
    planned: list[tuple[Filling, Plan]] = []
    disk = forecast.Disk(0, True)
    encoded: set[object] = set()  # that an earlier plan already writes
    for filling, answer in zip(wanted, map(background.planned, requests), strict=True):
        if isinstance(answer, FedLensError):
            markup.show_error(FedLensError(f"{filling.experiment.name}: {answer}", answer.field))
            continue
        plan = filling.reduced(answer)
        own = replace(plan, encodings=tuple(e for e in plan.encodings if e not in encoded))
        needed = forecast.disk(store.path, past, own)
        disk = forecast.Disk(disk.size + needed.size, disk.complete and needed.complete)
        encoded |= set(plan.encodings)
        planned.append((filling, plan))
    if not planned:
        return
    runs = [run for _, plan in planned for run in plan.runs]
    text = f"**{counted(len(runs), 'run')}**, {sum(run.rounds for run in runs):,} rounds; "
    text += _time_here(forecast.seconds(past, runs))
    if disk.size:
        text += f"; {'about' if disk.complete else 'at least'} {size_text(disk.size)} on disk"
    st.markdown(f"{text}.")
    warnings = dict.fromkeys(w for _, plan in planned for w in plan.warnings)
    lack = forecast.lack_of_room(store.path, disk)
    for warning in [*warnings, *([f"{lack}."] if lack else [])]:
        st.warning(markup.md_with_code(markup.sentence(warning)), icon=":material/info:")
    queue = f"Queue {counted(len(runs), 'run')}"
    if markup.write_button(queue, "rocket_launch", "papers_queue", type="primary"):
        for filling, plan in planned:
            store.experiments.create(filling.experiment, plan.runs)
        jobs.ensure_worker(store)
        closed()
        st.session_state["papers_queued"] = len(runs)
        st.rerun()


def draw_readings(table: PrintedTable, snapshot: Snapshot) -> None:
    """Draw what a table leaves open; nothing if its paper's folder names no choice."""
    every = _readings(table.name, snapshot.rehearsal, library.version(), table)
    if not every:
        return
    st.subheader("What the paper leaves open", anchor=False)
    st.caption(MEANING + (f" {NO_EVIDENCE}" if snapshot.rehearsal else ""))
    if st.session_state.get("readings_of") not in every:
        st.session_state["readings_of"] = next(iter(every))
    with st.container(horizontal=not session.is_narrow(), vertical_alignment="bottom"):
        title = st.selectbox("Values", list(every), key="readings_of")
        if st.button("Run all readings of the table", icon=":material/account_tree:", key="readings_all"):
            st.session_state[OPEN] = (table.name, "readings")
        if st.button("Only for these values", key="readings_some"):
            st.session_state[OPEN] = (table.name, f"readings {title}")
    chosen = every[title]
    rows = [
        [markup.esc(c.name), markup.esc(c.why), markup.esc(" | ".join(a.label for a in c.alternatives))]
        for c in chosen.choices
    ]
    head = [("Choice", "name"), ("What is open", "prose"), ("Alternatives", "prose")]
    with st.expander(f"{counted(len(rows), 'choice')}, {counted(len(chosen.readings), 'reading')}"):
        st.html(markup.table_html(head, rows, "Choices"))
    shown = chosen.read(snapshot.recorded)
    without = [v.method for v in chosen.ranking.values if v not in shown.ranking.values]
    if without:
        st.caption(f"Left out for lack of runs: {markup.md(', '.join(without))}.")
    if len(shown.found) < 2:
        lacking = f"{counted(shown.missing, 'reading')} of {len(shown.readings)} lack runs"
        said = f"The curve appears when the runs of two readings are done; {lacking}."
        st.info(said, icon=":material/stacked_line_chart:")
        return
    ranking = shown.ranking
    proposed = ranking.proposed.method
    rivals = {f"{proposed} minus {rival.method}": rival for rival in ranking.rivals}
    quantity = st.selectbox("Curve", [*rivals, proposed], key="readings_curve")
    rival = rivals.get(quantity)
    found = curve(shown.values(rival))
    choices = [(c.name, [a.label for a in c.alternatives]) for c in shown.choices]
    method = shown.source(ranking.proposed, shown.readings[0]).config.method.name
    chart = specification_chart(found, choices, quantity, method, session.theme(), session.is_narrow())
    st.markdown(
        f"**{markup.md(chart.alt)}** {markup.md(shown.survival.text(proposed))}."
        + (f" {counted(shown.missing, 'reading')} lack runs." if shown.missing else "")
        + (f" {NO_EVIDENCE}" if shown.rehearsal else "")
    )
    charts.table_switch()
    charts.draw(chart, "readings_chart", curve_table(found, choices))
    effects = shown.named_effects(rival)
    markup.table(
        {
            "choice": [markup.md(choice) for choice, _, _ in effects],
            "alternative": [markup.md(alternative) for _, alternative, _ in effects],
            "mean difference": [signed(e.mean, 2) for _, _, e in effects],
            "largest": [f"{e.largest:.2f}" for _, _, e in effects],
            "pairs": [e.pairs for _, _, e in effects],
            "order changes": [e.reordered for _, _, e in effects],
        },
        "How far each alternative moves a value from the first of its choice, all else equal (points)",
    )
