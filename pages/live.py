"""Training as it happens: how far every run is, its heatmaps round by round, curves, log; stop and resume."""

from __future__ import annotations

import time
from dataclasses import dataclass

import streamlit as st

from fedcore import runs
from fedcore.errors import FedLensError
from fedcore.report import curves, figures, heatmaps, panels, progress
from fedcore.report.charts import Chart
from fedcore.report.palette import Look
from fedcore.report.progress import Token
from fedcore.runs import queries
from fedcore.runs.queries import ExperimentRow, RunRow
from pages.parts import common

POLL_SECONDS = 2
FAST_POLL_SECONDS = 0.5  # while a run's first rounds come quickly
YOUNG_ROUNDS, YOUNG_SECONDS = 12, 15
SEEN_SECONDS = 0.4  # that a drawing stays at least
REDRAW_SECONDS = 5
EARLY_DRAWS = 4
SPLITS = {queries.TEST: "test samples", queries.VALIDATION: "validation samples"}
POINTS = {queries.BROADCAST: "after aggregation", queries.LOCAL: "before aggregation (own samples only)"}
CURVES = {"personal": "Personal accuracy, mean", "worst": "Worst client", "global": "Global model"}
STOPPABLE = frozenset({"queued", "running", "stopping"})
RESUMABLE = frozenset({"stopped", "interrupted", "failed"})
Flags = tuple[bool, bool, bool]
common.through_app()
db = common.database()


@dataclass(frozen=True)
class Settings:
    """How the figures are drawn."""

    view: panels.View
    split: int
    point: int
    fitted: bool
    columns: int
    curve: str
    diagnostic: str | None
    look: Look


@st.cache_resource(max_entries=16, show_spinner=False)
def grid(path: str, token: Token, settings: Settings) -> tuple[Chart, list[panels.Panel]]:
    """The heatmaps at one moment; the same moment gives the very same figure, which is not drawn again."""
    until = {t[0]: t[1] for t in token}
    found = [
        panels.live_panel(path, r, settings.view, settings.split, settings.point, until[r.id])
        for r in queries.runs(path, until)
    ]
    return heatmaps.heatmap_grid(found, settings.look, settings.columns, settings.fitted), found


@st.cache_resource(max_entries=32, show_spinner=False)
def lines(path: str, token: Token, what: str, settings: Settings) -> tuple[Chart, dict]:
    """Curves at one moment: ``loss``, an accuracy, or a recorded diagnostic."""
    until = {t[0]: t[1] for t in token}
    if what == "loss":
        series, title = curves.live_loss(path, until), "Training loss"
    elif what in CURVES:
        series, title = curves.live_accuracy(path, until, what, settings.split, settings.point), CURVES[what]
    else:
        series, title = curves.live_diagnostic(path, until, what), what.replace("_", " ")
    chart = figures.curves(
        series, settings.look, "Round", "", per_cent=what in CURVES, height=330, name=title
    )
    return chart, dict(figures.series_table(series, "round"))


def moment(now: Token, paused: bool) -> Token:
    """The moment that is drawn.

    A run's first drawings at once, and in steps where it is quicker than the eye: it is seen to train;
    later ones at most every five seconds, since a chart is drawn anew as a whole. Nothing new while paused.
    """
    key = tuple(t[0] for t in now)
    shown, when, draws = st.session_state.get("live_drawn", {}).get(key, (now, 0.0, {}))
    if not paused and shown != now and time.monotonic() - when >= SEEN_SECONDS:
        target = progress.step(shown, now, draws, EARLY_DRAWS)
        news = [n[0] for n, o in zip(target, shown, strict=True) if n[1] != o[1]]
        early = any(draws.get(i, 0) < EARLY_DRAWS for i in news)
        if early or not news or time.monotonic() - when >= REDRAW_SECONDS:
            shown, when = target, time.monotonic()
            draws = {**draws, **{i: draws.get(i, 0) + 1 for i in news}}
    st.session_state["live_drawn"] = {key: (shown, when, draws)}
    return shown


def behind(now: Token) -> bool:
    """Whether there is more than what is drawn."""
    key = tuple(t[0] for t in now)
    return st.session_state.get("live_drawn", {}).get(key, (now,))[0] != now


def run_rows(found: list[RunRow], look: Look) -> str:
    """Progress of every run as a table."""
    rows = []
    for p in progress.progress(db, found):
        r = p.run
        colour = look.colour(r.method)
        bar = (
            f'<div class="fl-bar" role="progressbar" aria-valuemin="0" aria-valuemax="{r.rounds_total}" '
            f'aria-valuenow="{r.rounds_done}" aria-label="rounds of {common.esc(r.label)}">'
            f'<span style="width:{100 * p.share:.0f}%;background:{colour}"></span></div>'
        )
        rows.append(
            [
                common.status_html(r.state),
                common.method_html(r.label, r.method),
                bar,
                f"{r.rounds_done}/{r.rounds_total}",
                common.per_cent(r.last_test),
                common.per_cent(r.worst_client),
                common.esc(p.text),
            ]
        )
    header = [("Status", ""), ("Method", "wide"), ("Progress", ""), ("Round", "num"), ("Accuracy, %", "num")]
    return common.table_html(
        [*header, ("Worst client, %", "num"), ("", "wide")], rows, "Progress of the runs"
    )


def poll_seconds(found: list[RunRow], before: float) -> float:
    """How often to look: sooner while a run has shown few rounds and they come quickly; else as before."""
    running = [p for p in progress.progress(db, found) if p.run.state == "running"]
    if not running:
        return before
    young = [p for p in running if p.run.rounds_done < YOUNG_ROUNDS]
    quick = any(p.pace < REDRAW_SECONDS / 2 if p.pace else (p.seconds or 0) < YOUNG_SECONDS for p in young)
    return FAST_POLL_SECONDS if quick else POLL_SECONDS


def watch(ids: list[int], experiment: int, settings: Settings, paused: bool) -> None:
    """The ticking part; without a clock where there is nothing to wait for or the reader has paused."""
    every = poll_seconds(queries.runs(db, ids), FAST_POLL_SECONDS)
    flags = button_flags(queries.experiment(db, experiment))
    clock = every if not paused and (flags[0] or behind(progress.token(db, ids))) else None
    st.fragment(tick, run_every=clock)(ids, experiment, settings, clock, flags, paused)


def tick(
    ids: list[int], experiment: int, settings: Settings, clock: float | None, flags: Flags, paused: bool
) -> None:
    """Draw what is new; the page as a whole where its buttons or the clock have to change."""
    try:
        if common.writable():
            runs.ensure_worker(db)
            runs.reconcile(db)
        row = queries.experiment(db, experiment)
        found = [r for r in row.runs if r.id in ids]
        now = progress.token(db, ids)
        strip(row)
        st.html(run_rows(found, settings.look))
        draw_all(moment(now, paused), settings)
        waiting = button_flags(row)[0] or behind(now)
        if clock is not None and (
            button_flags(row) != flags or not waiting or poll_seconds(found, clock) != clock
        ):
            st.rerun()
    except FedLensError as error:
        common.show_error(error)


def button_flags(found: ExperimentRow) -> Flags:
    """Which buttons make sense: something to stop, to resume, to kill."""
    states = {r.state for r in found.runs}
    return bool(states & STOPPABLE), bool(states & RESUMABLE), "stopping" in states


def draw_all(shown: Token, settings: Settings) -> None:
    """Heatmaps, then curves."""
    chart, drawn = grid(str(db), shown, settings)
    if st.session_state.get("as_tables"):
        for i, panel in enumerate(drawn):
            st.markdown(f"**{common.md(panel.title)}**")
            st.dataframe(heatmaps.panel_table(panel), hide_index=True, key=f"live_table_{i}")
    else:
        common.draw(chart, "live_grid")
        st.caption("Grey: no data. Hover a cell for its counts; the colours are the same in all panels.")
    names = [settings.curve, "loss", *([settings.diagnostic] if settings.diagnostic else [])]
    for column, name in zip(st.columns(len(names)), names, strict=True):
        with column:
            common.draw(*with_key(lines(str(db), shown, name, settings), f"live_{name}"))


def with_key(chart: tuple[Chart, dict], key: str) -> tuple[Chart, str, dict]:
    """Arguments of ``common.draw``."""
    return chart[0], key, chart[1]


def choose() -> ExperimentRow | None:
    """The experiment: from the URL, else one that is at work, else the newest."""
    known = {e.id: e for e in queries.experiments(db)}
    asked = [int(t) for t in st.query_params.get_all("id") if t.isdecimal() and int(t) not in known]
    for i in asked:  # an archived one opens by its link
        try:
            known[i] = queries.experiment(db, i)
        except FedLensError as error:
            common.show_error(error)
    if not known:
        return None
    busy = [i for i, e in known.items() if any(not r.ended for r in e.runs)]
    chosen = common.ids_in_url("id", known, [(busy or list(known))[0]])
    st.session_state["live_choice"] = chosen[0]
    st.selectbox(
        "Experiment",
        list(known),
        format_func=lambda i: known[i].name,
        key="live_choice",
        on_change=lambda: common.remember_ids("id", [st.session_state["live_choice"]]),
    )
    return known[st.session_state["live_choice"]]


def variant(found: ExperimentRow) -> list[RunRow]:
    """The runs of one seed and held-out domain: a panel for each method."""
    variants = list(dict.fromkeys((r.seed, r.held_out) for r in found.runs))
    if len(variants) <= 1:
        return list(found.runs)
    busy = [(r.seed, r.held_out) for r in found.runs if r.state in ("running", "stopping")]
    chosen = st.selectbox(
        "Seed",
        variants,
        index=variants.index((busy or variants)[0]),
        format_func=lambda v: f"seed {v[0]}" + (f", without {v[1]}" if v[1] else ""),
        key=f"live_variant_{found.id}",
    )
    return [r for r in found.runs if (r.seed, r.held_out) == chosen]


def settings_of(found: list[RunRow]) -> Settings:
    """The reader's choices for the figures."""
    with st.popover("View", icon=":material/tune:"):
        clients = sum(1 for e in queries.entities(db, found[0].id) if e.kind == "client") if found else 0
        views = list(panels.VIEWS)
        view = st.radio(
            "Heatmaps",
            views,
            index=views.index(panels.default_view(clients)),
            format_func=panels.VIEWS.get,
            key=f"live_view_{clients > panels.FULL_MATRIX_CLIENTS}",
        )
        split = st.radio("Measured on", list(SPLITS), format_func=SPLITS.get, key="live_split")
        point = st.radio("Models", list(POINTS), format_func=POINTS.get, key="live_point")
        curve = st.radio("Curve", list(CURVES), format_func=CURVES.get, key="live_curve")
        columns = st.slider("Panels in a row", 1, 4, 1 if common.narrow() else 3, key="live_columns")
        names = sorted({n for r in found for n in queries.diagnostic_names(db, r.id)})
        diagnostic = st.selectbox("Diagnostic", names, index=None, placeholder="none", key="live_diagnostic")
        fitted = st.toggle("Fit colours to the values", key="live_fitted", help="Instead of 0 to 100 %")
    return Settings(view, split, point, fitted, columns, curve, diagnostic, common.look())


def buttons(found: ExperimentRow) -> None:
    """Stop and resume, outside the ticking part: a click must not coincide with a tick."""
    may = common.writable()
    stoppable = [r for r in found.runs if r.state in ("queued", "running")]
    stuck = [r for r in found.runs if r.state == "stopping"]
    resumable = [
        r for r in found.runs if r.state in ("stopped", "interrupted", "failed") and r.origin == "engine"
    ]
    if st.button("Stop", icon=":material/stop_circle:", disabled=not stoppable or not may, key="live_stop"):
        confirm_stop(stoppable)
    if stuck and st.button(
        "Stop at once", icon=":material/dangerous:", disabled=not may, help="Kills the process"
    ):
        confirm_kill(stuck)
    if st.button("Resume", icon=":material/resume:", disabled=not resumable or not may, key="live_resume"):
        runs.resume(db, [r.id for r in resumable])
        runs.ensure_worker(db)
        st.rerun()
    if st.button("Compare", icon=":material/compare:", key="live_compare"):
        st.switch_page("pages/compare.py", query_params={"ids": [str(found.id)]})


@st.dialog("Stop runs")
def confirm_stop(stoppable: list[RunRow]) -> None:
    """Stop names the runs; finished rounds stay."""
    names = {
        r.id: f"{r.label}, seed {r.seed}" + (f", without {r.held_out}" if r.held_out else "")
        for r in stoppable
    }
    chosen = st.multiselect("Runs", list(names), default=list(names), format_func=names.get)
    st.caption("Finished rounds stay and a stopped run can be resumed; the round in work is discarded.")
    if st.button(f"Stop {len(chosen)} run{'s' * (len(chosen) != 1)}", type="primary", disabled=not chosen):
        runs.stop(db, chosen)
        st.rerun()


@st.dialog("Stop at once")
def confirm_kill(stuck: list[RunRow]) -> None:
    """The second step, for a run that does not heed the first."""
    st.write(
        "These runs were asked to stop and are still in a step. Killing them loses the round in work only."
    )
    for r in stuck:
        st.markdown(f"- {common.md(r.label)}, seed {r.seed}")
    if st.button("Kill", type="primary"):
        for r in stuck:
            try:
                runs.force_stop(db, r.id)
            except FedLensError as error:
                common.show_error(error)
        st.rerun()


@st.fragment
def log(found: list[RunRow]) -> None:
    """What a run last said; a failed one's error in full."""
    with st.expander("Log", icon=":material/terminal:", expanded=any(r.state == "failed" for r in found)):
        failed = [i for i, r in enumerate(found) if r.state in ("failed", "running")]
        run = st.selectbox(
            "Run", found, index=failed[0] if failed else 0, format_func=lambda r: r.label, key="live_log"
        )
        if run is None:
            return
        st.button("Refresh", icon=":material/refresh:", key="live_log_refresh")
        for note in run.notices:
            st.markdown(f"- {common.md(str(note['message']))}")
        trace = queries.error_text(db, run.id)
        if run.state == "failed":
            st.error(common.md(run.reason or "failed without a word"), icon=":material/error:")
        with st.container(height=260, autoscroll=True):
            st.code(trace or progress.log_tail(db, run.id) or "nothing yet", language=None, wrap_lines=True)


def strip(found: ExperimentRow) -> None:
    """How many runs are in which state, what is trained, how busy the machine is."""
    counts = {s: sum(r.state == s for r in found.runs) for s in common.STATUS}
    parts = [f"<span>{common.status_html(s)} <b>{n}</b></span>" for s, n in counts.items() if n]
    parts.append(common.faint(f"{found.config.data.name}, {found.config.backbone.name}"))
    parts += common.machine_html()
    st.html(f'<div class="fl-strip" role="status">{"".join(parts)}</div>')


def page() -> None:
    """The page."""
    st.title("Live")
    with st.container(horizontal=True, vertical_alignment="bottom"):
        experiment = choose()
        found = variant(experiment) if experiment else []
    if experiment is None:
        st.info(
            "Nothing has been started yet. What you launch will be seen training here.",
            icon=":material/monitoring:",
        )
        if st.button("Try it", type="primary", icon=":material/play_circle:"):
            st.switch_page("pages/new.py", query_params={"preset": "demo"})
        return
    with st.container(horizontal=True, vertical_alignment="center"):
        buttons(experiment)
        settings = settings_of(found)
        paused = st.toggle(
            "Pause updates", key="live_paused", help="The figures stay as they are; the runs go on"
        )
        common.table_switch()
    watch([r.id for r in found], experiment.id, settings, paused)
    log(found)


page()
