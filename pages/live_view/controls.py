"""The choices of the page Live: the experiment, its seeds and held-out domains, the charts, the replay."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

import streamlit as st

from fedcore.base.events import AFTER_AGGREGATION, BEFORE_AGGREGATION, FULL_MATRIX_CLIENTS, TEST, VALIDATION
from fedcore.results import curves
from fedcore.results.charts.theme import Theme
from fedcore.results.matrices import VIEWS, PanelView
from fedcore.results.metrics import BY_ROUND, METRICS, SCORE_COLUMNS, metrics_by_round
from fedcore.results.panels import ORDERS, RowOrder
from fedcore.store import ExperimentRow, RunRow
from pages.widgets import charts, markup, session

SPLITS = {TEST: "test samples", VALIDATION: "validation samples"}
STAGE_TITLES = {
    AFTER_AGGREGATION: "after aggregation",
    BEFORE_AGGREGATION: "before aggregation (own samples only)",
}
CURVES: dict[str, str] = {
    "personal": "Personal accuracy, mean",
    "worst": "Worst client",
    "global": "Global model",
    **{metric: METRICS[metric].title for metric in BY_ROUND if metric not in SCORE_COLUMNS},
}
CHARTS = {**CURVES, "loss": "Training loss", "traffic": "Traffic of all clients, up and down (MB)"}
AUTOMATIC = "auto"
NEWEST = -1
STEP_SECONDS = 0.8  # of a replay
MAX_STEPS = 50  # a long training is replayed in larger steps


def choose() -> ExperimentRow | None:
    """Let the reader choose an experiment; preselect that of the URL, else a running one, else the newest.

    Returns: None if the experiment of the URL does not exist, since another one must not appear in its place.
    """
    asked = st.query_params.get_all("id")
    experiments = session.store().experiments
    # archived experiments are opened only by their links
    offered = {e.id: e.text for e in experiments.titles() if not e.archived or str(e.id) in asked}
    rows: list[ExperimentRow] = []
    if not asked or experiments.listed(ids=map(int, filter(str.isdecimal, asked)))[0]:
        unfinished = [] if asked else experiments.newest_with_runs("queued", "running", "stopping")
        rows = session.experiments_in_url("id", offered, [] if asked else [*unfinished, *offered])
    if not offered:
        return None
    chosen = rows[0] if rows else None
    st.session_state["live_choice"] = None if chosen is None else chosen.id
    st.selectbox(
        "Experiment",
        list(offered),
        format_func=offered.__getitem__,
        key="live_choice",
        placeholder="Choose an experiment",
        label_visibility="collapsed",
        on_change=lambda: session.remember_ids("id", [st.session_state["live_choice"]]),
    )
    if chosen is not None:
        session.look_at(chosen.id)
    return chosen


def choose_variant(experiment: ExperimentRow) -> list[RunRow]:
    """Return the runs of the chosen seed and held-out domain, or of all of them."""
    offers = variant_offers(experiment.runs)
    if len(offers) <= 1:
        return list(experiment.runs)
    first = next((r for r in experiment.runs if r.state in ("running", "stopping")), experiment.runs[0])
    chosen = session.choose(
        st.selectbox,
        "Seed and held-out domain" if first.held_out else "Seed",
        list(offers),
        f"live_variant_{experiment.id}",
        index=list(offers).index(markup.seed_text(first.seed, first.held_out)),
        label_visibility="collapsed",
        width=160,
    )
    return offers[chosen]


def variant_offers(runs: Sequence[RunRow]) -> dict[str, list[RunRow]]:
    """Return the runs that can be shown together, by name: all or one seed, all or one held-out domain."""
    several_seeds = len({r.seed for r in runs}) > 1
    several_domains = len({r.held_out for r in runs}) > 1
    offers: dict[str, list[RunRow]] = {}
    for all_seeds, all_domains in ((True, True), (False, True), (True, False), (False, False)):
        if (all_seeds and not several_seeds) or (all_domains and not several_domains):
            continue
        for r in runs:
            name = "all seeds" if all_seeds else f"seed {r.seed}"
            if all_domains:
                name += ", all held-out domains"
            elif r.held_out:
                name += f", without {r.held_out}"
            offers.setdefault(name, []).append(r)
    return offers


@dataclass(frozen=True)
class Settings:
    """The reader's choices for the charts.

    Attributes:
        until: the round to show, None for the newest.
        width: pixels.
        over_seeds: whether the mean over several seeds is shown.
        paused: whether the charts stay as they are while the runs continue.
        as_launched: whether ended runs stay in the order of their launch.
        hidden: labels of methods that are not shown.
    """

    view: PanelView
    split: int
    stage: int
    fitted: bool
    order: RowOrder
    columns: int
    charts: tuple[str, ...]
    until: int | None
    theme: Theme
    width: int
    over_seeds: bool
    paused: bool
    as_launched: bool
    hidden: Sequence[str]
    lines: int = 0
    """Number of lines in a chart, one per method and held-out domain; the page counts them."""


def choose_settings(runs: list[RunRow]) -> Settings:
    """Draw the choices for the charts, kept in the URL, and return them."""
    store = session.store()
    kinds = store.cells.kinds(r.id for r in runs)
    paused = any(not r.ended for r in runs) and st.toggle(
        "Pause updates",
        key="live_paused",
        help="The charts stay as they are; the runs continue",
        bind="query-params",
    )
    no_round = max((r.rounds_done for r in runs), default=0) < 1
    replay = st.popover("Replay", icon=":material/replay:", disabled=no_round)
    with st.popover("View", icon=":material/tune:"):
        labels = [r.label for r in runs]
        hidden = session.choose(st.multiselect, "Hidden methods", labels, "hidden_rows", placeholder="none")
        charts.colour_choice(r.method for r in runs)
        runs = [r for r in runs if r.label not in hidden] or runs  # the choices stay while all are hidden
        view = _view(runs, kinds.values())
        charts.table_switch()
        as_launched = session.launch_order_switch()
        split = session.choose(st.radio, "Evaluated on", SPLITS, "live_split")
        stage = session.choose(st.radio, "Models", STAGE_TITLES, "live_stage")
        fitted = st.toggle(
            "Fit colours to the values",
            key="live_fitted",
            help="Colours span the values shown instead of 0 to 100 %",
            bind="query-params",
        )
        order = session.choose(st.selectbox, "Order of rows", ORDERS, "live_rows")
        described = curves.recorded_charts(store, runs)
        by_round = metrics_by_round(kinds.get(runs[0].id, ()) if runs else ())
        titles = {n: title for n, title in CHARTS.items() if n in by_round or n not in METRICS}
        titles |= {c.key: c.heading for c in described}
        chosen = session.choose(
            st.multiselect,
            "Charts",
            titles,
            "live_charts",
            placeholder="automatic",
            help="Automatic: accuracy, loss and the most informative values that these methods record",
        )
    if not chosen:
        primary = ("local", "base", "new") if "new" in by_round else ("personal",)
        first = [metric for metric in (*primary, "unseen", "transfer") if metric in by_round]
        chosen = [*first, "loss", *(c.key for c in curves.default_charts(described))]
    panels = {(r.label, r.group_hash, None if view == "held_out" else r.held_out) for r in runs}
    with replay:
        until = _until(runs, split, stage)
    return Settings(
        view,
        split,
        stage,
        fitted,
        order,
        columns=session.in_a_row(len(panels)),
        charts=tuple(chosen),
        until=until,
        theme=session.theme(),
        width=session.figure_width(),
        over_seeds=len({r.seed for r in runs}) > 1,
        paused=paused,
        as_launched=as_launched,
        hidden=hidden,
    )


def _view(runs: list[RunRow], kinds: Iterable[Mapping[tuple[str, str | None], int]]) -> PanelView:
    """Let the reader choose among the heatmaps that these runs have (``Cells.kinds``)."""
    store = session.store()
    clients = [{domain: n for (kind, domain), n in of_run.items() if kind == "client"} for of_run in kinds]
    views: list[PanelView] = ["matrix", "clients", "helps"]
    if any(domain for of_run in clients for domain in of_run):
        views.append("domains")
    if any(r.held_out is not None for r in runs):
        views.append("held_out")
    titles = {m.name: m.title for m in curves.recorded_matrix_charts(store, runs).values()} | VIEWS
    views += [name for name in titles if name not in VIEWS]
    offered = {AUTOMATIC: "Automatic", **{view: titles[view] for view in views}}
    chosen: str = session.choose(st.radio, "Heatmaps", offered, "live_view")
    if chosen != AUTOMATIC:
        return chosen
    if len({r.held_out for r in runs}) > 1:
        return "held_out"
    most = max((sum(of_run.values()) for of_run in clients), default=0)
    return "matrix" if most <= FULL_MATRIX_CLIENTS else "clients"  # of more it is not recorded every round


def _until(runs: list[RunRow], split: int, stage: int) -> int | None:
    """Draw the replay and its slider; return the chosen round, None for the newest."""
    last = max((r.rounds_total for r in runs), default=0)
    if last < 1:
        return None
    at_end = "live" if any(not r.ended for r in runs) else "last round"
    playing = bool(st.session_state.get("live_playing"))
    st.button(
        "Pause" if playing else "Play",
        icon=":material/pause:" if playing else ":material/play_arrow:",
        key="live_play",
        help="Replays the training round by round",
        on_click=_play_or_pause,
        args=([r.id for r in runs], split, stage),
    )
    chosen = st.select_slider(
        "Round",
        [*range(last), NEWEST],
        value=NEWEST,
        format_func=lambda r: at_end if r == NEWEST else f"round {r}",
        key="live_until",
        bind="query-params",
        help="Shows all panels and charts as they were after this round",
        width=200,
    )
    if playing:
        st.session_state["live_armed"] = False
        markup.fragment(_step, run_every=STEP_SECONDS)([r.id for r in runs], split, stage)
    return None if chosen == NEWEST else chosen


def _play_or_pause(run_ids: list[int], split: int, stage: int) -> None:
    """Start or pause the replay; from the newest round it starts at the first one."""
    state = st.session_state
    state["live_playing"] = playing = not state.get("live_playing")
    if playing and state["live_until"] == NEWEST:
        state["live_until"] = next(iter(steps(run_ids, split, stage)), NEWEST)


def _step(run_ids: list[int], split: int, stage: int) -> None:
    # A rerun of the whole page calls this function too, outside the timer: that call only arms the next one.
    state = st.session_state
    if not state["live_armed"]:
        state["live_armed"] = True
        return
    shown = state["live_until"]
    later = (r for r in steps(run_ids, split, stage) if shown != NEWEST and r > shown)
    state["live_until"] = following = next(later, NEWEST)
    state["live_playing"] = following != NEWEST
    st.rerun()


def steps(run_ids: list[int], split: int, stage: int) -> list[int]:
    """Return the rounds that a replay shows before the newest."""
    store = session.store()
    rounds = sorted({r for of in store.rounds.evaluated_of_runs(run_ids, split, stage).values() for r in of})
    return rounds[: -1 : ceil(len(rounds) / MAX_STEPS)] if rounds else []
