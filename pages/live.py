"""The page Live: progress, heatmaps, curves and log of the runs of one experiment while they train."""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import streamlit as st

from fedcore.base import devices
from fedcore.base.errors import FedLensError
from fedcore.base.events import NO_VALUE
from fedcore.base.progress import counted, duration
from fedcore.methods import registry
from fedcore.results import curves, progress
from fedcore.results.charts import heatmaps
from fedcore.results.charts.client_graph import ABOUT, client_graphs
from fedcore.results.charts.lines import line_chart, series_table
from fedcore.results.charts.theme import Theme
from fedcore.results.finding import verdict
from fedcore.results.matrices import run_panels
from fedcore.results.panels import Panel, ordered_panels, transfer_finding, with_shared_row
from fedcore.results.progress import NewestRounds
from fedcore.results.rows import sample_text
from fedcore.store import ExperimentRow, RunRow, Store
from fedcore.store.liveness import is_local
from pages.live_view import actions, controls
from pages.live_view.controls import CHARTS, CURVES, Settings
from pages.widgets import background, browser, charts, markup, session

FAST_POLL_SECONDS = 0.5  # while the first rounds of a run come quickly
YOUNG_ROUNDS, YOUNG_SECONDS = 12, 15
SHOWN_SECONDS = 0.4  # minimum time between two drawings
REDRAW_SECONDS = 5
EARLY_DRAWS = 4
CHART_COLUMNS, CHART_HEIGHT = 3, 260
MANY_LINES = 12  # charts with more lines are as wide as the page
ALL_HIDDEN = "All methods are hidden; *View* above, under *Hidden methods*, shows them again."
MANY_RUNS = 15  # a longer table scrolls, with running runs first
CAPTIONS = {
    "held_out": "Each row is the run that held out its domain. On the framed diagonal: the global model "
    "on the held-out domain (G). Elsewhere: the clients' models on their own domains (P).",
}
CLIENT_GRAPH = "helps"  # its name in URLs
ABOUT_SEEDS = (
    "Heatmaps: mean over the seeds. Lines: mean over the seeds that have reached a round; band: one sample "
    "standard deviation over them. Hover over a round that only some seeds have reached for their number."
)
RerunSchedule = tuple[str, float, float | None]  # as ``browser.rerun_on_change`` takes it
Flags = tuple[bool, bool, bool, int]
Lines = tuple[tuple[int, float, str], ...]
"""The runs in the order of their panels, each with the state that is drawn there: share of rounds, text."""
session.through_app()
store = session.store()


@st.cache_resource(hash_funcs={Store: repr}, max_entries=16, show_spinner=False)
def grid(
    store: Store, token: NewestRounds, settings: Settings, lines_of_runs: Lines
) -> tuple[bytes, list[Panel]]:
    """Return the heatmaps of a snapshot; the browser does not draw equal bytes again."""
    until = {t[0]: t[1] for t in token}
    place = {run: i for i, (run, _, _) in enumerate(lines_of_runs)}
    runs = sorted(store.runs.get(until), key=lambda run: place.get(run.id, len(place)))
    panels = run_panels(store, runs, settings.view, settings.split, settings.stage, until)
    if settings.view == CLIENT_GRAPH:
        chart = client_graphs(panels, settings.theme, settings.columns)
    else:
        panels = ordered_panels(panels, settings.order)
        states = {run: (share, text) for run, share, text in lines_of_runs}
        if settings.view == "matrix":
            common = store.runs.with_common_model(until)
            panels = [with_shared_row(p) if common.issuperset(p.runs) else p for p in panels]
        notes = [panel_note(panel, states, settings.theme) for panel in panels]
        chart = heatmaps.heatmap_grid(
            panels, settings.theme, settings.columns, settings.fitted, width=settings.width, notes=notes
        )
    return charts.payload(chart, f"{list(until)} {settings.view} {settings.order}"), panels


@st.cache_data(hash_funcs={Store: repr}, max_entries=16, show_spinner=False)
def outcome_of(store: Store, _experiment: ExperimentRow, version: str) -> str | None:
    """Return the outcome of an experiment in words; computed again when a run or its marks have changed."""
    return verdict(store, _experiment)


def panel_note(panel: Panel, states: dict[int, tuple[float, str]], theme: Theme) -> heatmaps.PanelNote:
    """Return the line below a panel's title: the state of its run, or how many of its runs have ended."""
    of_panel = [states[run] for run in panel.runs if run in states]
    share = sum(share for share, _ in of_panel) / max(1, len(of_panel))
    ended = sum(share >= 1 for share, _ in of_panel)
    text = of_panel[0][1] if len(of_panel) == 1 else f"{ended} of {counted(len(of_panel), 'run')} trained"
    return heatmaps.PanelNote(text, share, theme.colour(panel.method))


@st.cache_resource(hash_funcs={Store: repr}, max_entries=64, show_spinner=False)
def lines(
    store: Store, token: NewestRounds, what: str, split: int, stage: int, theme: Theme, over_seeds: bool
) -> tuple[bytes, list[curves.Series], str]:
    """Return one chart of curves of a snapshot, with its lines and the note below it."""
    until = {t[0]: t[1] for t in token}
    title, note, per_cent = CHARTS.get(what, ""), "", what in CURVES
    if what in ("loss", "traffic", *CURVES):
        series = curves.run_lines(store, until, cast(curves.CurveValue, what), split, stage)
    else:
        recorded = curves.recorded_charts(store, store.runs.get(until))
        chosen = next((c for c in recorded if c.key == what), None) or curves.default_chart(what)
        series = curves.diagnostic_series(store, until, chosen)
        title, per_cent = chosen.heading, chosen.unit == "%"
        note = chosen.explanation if over_seeds else curves.chart_note(chosen, series)
    if over_seeds:
        series = curves.lines_over_seeds(series)
    chart = line_chart(series, theme, "Round", "", per_cent=per_cent, height=CHART_HEIGHT, name=title)
    return charts.payload(chart, f"{list(until)} {what}"), series, note


def snapshot_to_draw(now: NewestRounds, paused: bool) -> NewestRounds:
    """Return the snapshot to draw: the newest one, or the previous one to draw less often.

    The first rounds of a run are drawn at once and one by one, so that the reader sees it train; later ones
    at most every five seconds. While updates are paused, the snapshot stays.
    """
    key = tuple(t[0] for t in now)
    shown: NewestRounds
    shown, when, draws = st.session_state.get("live_drawn", {}).get(key, (now, 0.0, {}))
    if not paused and shown != now and time.monotonic() - when >= SHOWN_SECONDS:
        target = progress.next_snapshot(shown, now, draws, EARLY_DRAWS)
        changed = [n[0] for n, o in zip(target, shown, strict=True) if n[1] != o[1]]
        early = any(draws.get(i, 0) < EARLY_DRAWS for i in changed)
        if early or not changed or time.monotonic() - when >= REDRAW_SECONDS:
            shown, when = target, time.monotonic()
            draws = {**draws, **{i: draws.get(i, 0) + 1 for i in changed}}
    st.session_state["live_drawn"] = {key: (shown, when, draws)}
    return shown


def lines_to_draw(drawn: NewestRounds, shown: list[progress.RunProgress]) -> Lines:
    """Return the lines of the panels; time alone changes none, so that nothing is drawn again."""
    key = drawn, tuple((p.run.id, p.run.state) for p in shown)
    before: tuple[object, Lines] = st.session_state.get("live_lines", (None, ()))
    if before[0] != key:
        before = key, tuple((p.run.id, p.share, p.line) for p in shown)
        st.session_state["live_lines"] = before
    return before[1]


def run_rows(shown: list[progress.RunProgress], theme: Theme) -> str:
    """Return the progress of every run as an HTML table."""
    rows = []
    names = curves.run_labels(session.store(), (p.run for p in shown))
    if len({p.run.seed for p in shown}) > 1:
        names = {p.run.id: f"{names[p.run.id]}, seed {p.run.seed}" for p in shown}
    many = len(shown) > MANY_RUNS
    if many:
        shown = sorted(shown, key=lambda p: p.run.state not in ("running", "stopping"))
    for p in shown:
        r = p.run
        colour = theme.colour(r.method)
        bar = (
            f'<div class="fl-bar" role="progressbar" aria-valuemin="0" aria-valuemax="{r.rounds_total}" '
            f'aria-valuenow="{r.rounds_done}" aria-label="rounds of {markup.esc(names[r.id])}">'
            f'<span style="width:{100 * p.share:.0f}%;background:{colour}"></span></div>'
        )
        rows.append(
            [
                markup.status_html(r.state),
                # each tick replaces the table with any focus in it; by keyboard, the log opens runs
                f'<a href="{session.link("run", r.id)}" target="_self" tabindex="-1">'
                f"{markup.method_html(names[r.id], r.method)}</a>",
                bar,
                f"{r.rounds_done}/{r.rounds_total}",
                markup.per_cent(r.last_test),
                markup.per_cent(r.worst_client),
                markup.number(p.megabytes_up, 2),
                markup.number(p.megabytes_down, 2),
                duration(p.loading) if p.run.ended and p.loading else "",
                markup.esc(p.text),
            ]
        )
    header = [("Status", ""), ("Method", "wide"), ("Progress", ""), ("Round", "num"), ("Accuracy, %", "num")]
    header += [("Worst client, %", "num"), ("Up, MB", "num"), ("Down, MB", "num")]
    header += [("Loading, encoding", "num"), ("", "prose")]
    table = markup.table_html(header, rows, "Progress of the runs")
    if not many:
        return table
    about = markup.faint(f"{len(shown)} runs, running ones first; scroll for the others")
    return f'<div class="fl-many">{table}<p>{about}</p></div>'


def poll_seconds(shown: list[progress.RunProgress]) -> float:
    """Return the seconds between two polls: fewer while the first rounds of a run come quickly."""
    young = (p for p in shown if p.run.state == "running" and p.run.rounds_done < YOUNG_ROUNDS)
    quick = any(
        p.seconds_per_round < REDRAW_SECONDS / 2 if p.seconds_per_round else (p.seconds or 0) < YOUNG_SECONDS
        for p in young
    )
    return FAST_POLL_SECONDS if quick else browser.POLL_SECONDS


def draw_load(runs: Sequence[RunRow], theme: Theme) -> None:
    """Draw the load of this machine's devices while runs trained here, within the last hour."""
    runs = [r for r in runs if is_local(r.owner)]
    began = min((r.started_at for r in runs if r.started_at), default=None)
    ended = max(r.finished_at or time.time() for r in runs) if runs else 0
    samples = [] if began is None else [s for s in devices.recorded_loads() if began <= s[0] <= ended]
    if not samples:
        return
    box = markup.opened("Load of CPU and GPU", "memory", "live_load")
    if box is None:
        return
    names = dict.fromkeys(name for _, loads in samples for name in loads)
    series = []
    for name in names:
        points = [(t, load) for t, loads in samples if (load := loads.get(name)) is not None]
        x, y = tuple((t - samples[0][0]) / 60 for t, _ in points), tuple(100 * load for _, load in points)
        series.append(curves.Series(name, name, x, y, (None,) * len(x), 1))
    title = f"Load of {', '.join(names)}"
    with box:
        chart = line_chart(series, theme, "Minutes", "", height=CHART_HEIGHT, name=title)
        chart.figure.update_yaxes(range=[0, 105])
        charts.draw(chart, "live_load_chart", dict(series_table(series, "minutes", "%")))


@markup.fragment
def tick(ids: list[int], experiment: int, settings: Settings, flags: Flags, outcome: str) -> None:
    """Draw the part of the page that follows the runs; rerun the page when its buttons must change."""
    clock: RerunSchedule = ("", browser.POLL_SECONDS, browser.POLL_SECONDS)  # after an error: try again soon
    now = flags
    if st.session_state.pop("live_fit_clicked", False):
        st.rerun()
    try:
        now, clock = draw_current(ids, experiment, settings, outcome)
    except FedLensError as error:
        if experiment not in {e.id for e in store.experiments.titles()}:
            st.rerun()  # the experiment was deleted, which the page then reports
        markup.show_error(error)
    finally:
        if not settings.paused:
            browser.rerun_on_change(experiment, *clock)
    if now != flags and not st.session_state["live_dialog_open"]:
        st.rerun()


def draw_current(
    ids: list[int], experiment: int, settings: Settings, outcome: str
) -> tuple[Flags, RerunSchedule]:
    """Draw the current state; return the flags of the buttons and the schedule of the next check."""
    background.keep_working()
    seen = store.runs.digest(experiment)  # before the data: a change while drawing counts
    row = store.experiments.get(experiment)
    runs = [r for r in row.runs if r.id in ids]
    shown = progress.run_progress(store, runs if settings.as_launched else progress.best_first(runs))
    now = progress.newest_snapshot(store, ids)
    with st.container(key="live_watch"):
        st.html(actions.status_strip(row, outcome))
        drawn = snapshot_to_draw(now, settings.paused)
        last = settings.until
        until = drawn if last is None else tuple((run, min(r, last), identity) for run, r, identity in drawn)
        if ids:
            draw_all(until, settings, lines_to_draw(drawn, shown))
            if (samples := row.config.test_sample) is not None:
                st.caption(sample_text(samples))
            st.html(run_rows(shown, settings.theme))
            draw_load(runs, settings.theme)
        else:
            st.info(ALL_HIDDEN, icon=":material/visibility_off:")
    every, flags = poll_seconds(shown), actions.button_flags(row)
    if drawn != now:  # a newer snapshot waits to be drawn
        return flags, (seen, every, every)
    return flags, (seen, every, browser.LONGEST_SECONDS if flags[0] else None)


def draw_all(shown: NewestRounds, settings: Settings, lines_of_runs: Lines) -> None:
    """Draw the heatmaps and curves of a snapshot, or their tables."""
    content, drawn = grid(store, shown, settings, lines_of_runs)
    if st.session_state.get("as_tables"):
        charts.draw_tables((panel.title, heatmaps.panel_table(panel)) for panel in drawn)
    else:
        charts.draw_payload(content, "live_grid")
        alike = list[str]()
        if settings.view == "matrix":  # why panels have a column without values, or rows that are alike
            ids = [i for panel in drawn for i in panel.runs]
            runs = {r.id: r for r in store.runs.get(ids)}
            gaps = [
                f"{runs[i].label}: {notice.message}"
                for i in ids
                for notice in runs[i].notices
                if notice.message.startswith(NO_VALUE)
            ]
            methods = (registry.find(panel.method) for panel in drawn)
            gaps += [method.about.alike for method in methods if method is not None]
            alike = list(dict.fromkeys(filter(None, gaps)))
        usual = CAPTIONS.get(settings.view, "Hover over a cell for its counts.")
        about = next((p.matrix.note for p in drawn if p.matrix), usual)
        graph = settings.view == CLIENT_GRAPH
        if graph:
            about = "\n".join(f"- {markup.md(text)}" for text in map(transfer_finding, drawn))
            st.caption(f"{ABOUT}\n\n{about}")
        else:
            said = [f"{about} All heatmaps share one colour scale.".strip(), *map(markup.md, alike)]
            st.caption("  \n".join(said))
        spread = None if settings.fitted or graph else heatmaps.narrow_spread(drawn)
        if spread is not None:
            st.button(
                f"Fit colours to the values, {spread}",
                icon=":material/palette:",
                key="live_fit_now",
                type="tertiary",
                on_click=st.session_state.update,  # ``tick`` then reruns the page
                args=({"live_fitted": True, "live_fit_clicked": True},),
            )
    draw_curves(shown, settings, settings.charts[:CHART_COLUMNS])
    further = settings.charts[CHART_COLUMNS:]
    if further and (box := markup.opened(f"{len(further)} more curves", "show_chart", "live_further")):
        with box:
            draw_curves(shown, settings, further)
    if settings.over_seeds:
        st.caption(ABOUT_SEEDS)


def draw_curves(shown: NewestRounds, settings: Settings, names: Sequence[str]) -> None:
    """Draw charts of curves beside each other, or below each other where they have many lines."""
    in_a_row = 1 if settings.lines > MANY_LINES else CHART_COLUMNS
    choices = settings.split, settings.stage, settings.theme, settings.over_seeds
    for start in range(0, len(names), in_a_row):
        for column, name in zip(st.columns(in_a_row), names[start : start + in_a_row], strict=False):
            with column:
                content, series, note = lines(store, shown, name, *choices)
                if st.session_state.get("as_tables"):
                    charts.draw_tables([(CHARTS.get(name, name), series_table(series, "round"))])
                else:
                    charts.draw_payload(content, f"live_chart_{name}")
                if note:
                    st.caption(note)


def page() -> None:
    """Draw the page."""
    settings: Settings | None = None
    with st.container(horizontal=True, vertical_alignment="center", key="live_head"):
        st.title("Live", width="content")
        experiment = controls.choose()
        if experiment is not None:
            searches = experiment.config.tuning is not None
            runs = controls.choose_variant(experiment)
            draws = "Heatmaps, curves and logs of the draws. Their test accuracies select nothing"
            if searches and not st.toggle("Draws as runs", key="live_draws", bind="query-params", help=draws):
                actions.buttons(experiment)
                charts.table_switch()
            else:
                outcome = None
                with markup.errors_shown():  # the heatmaps of the runs that can be read are still drawn
                    if not searches:
                        outcome = outcome_of(store, experiment, repr(experiment.version))
                actions.buttons(experiment, has_results=outcome is not None)
                settings = controls.choose_settings(runs)
            actions.notification(experiment)
    if experiment is None:
        if missing := st.query_params.get("id"):
            gone = f"Experiment {markup.md(missing[:20])} does not exist; it may have been deleted."
            st.info(gone, icon=":material/search_off:")
            if st.button("Experiments", icon=":material/arrow_back:"):
                st.switch_page("pages/experiments.py", query_params={})
            return
        nothing = "No experiment has been started yet. Launched runs appear here while they train."
        st.info(nothing, icon=":material/monitoring:")
        with st.container(horizontal=True):
            background.demo_buttons()
        return
    actions.outcome_of_search(experiment)
    if settings is None:
        actions.follow_search(experiment.id, actions.state_of_search(experiment))
        return
    if settings.view == "held_out":
        seeds = {r.seed for r in runs}
        runs = [r for r in experiment.runs if r.seed in seeds]
    runs = [r for r in runs if r.label not in settings.hidden]
    settings = replace(settings, lines=len({(r.label, r.group_hash, r.held_out) for r in runs}))
    actions.origin_of_values(experiment)
    tick([r.id for r in runs], experiment.id, settings, actions.button_flags(experiment), outcome or "")
    actions.log(runs)


page()
