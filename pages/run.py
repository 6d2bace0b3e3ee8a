"""One run: what it did, round by round, under which config, and how to do it again."""

from __future__ import annotations

import time
from dataclasses import replace

import streamlit as st

from fedcore import runs
from fedcore.config import Experiment, loads
from fedcore.errors import FedLensError
from fedcore.report import curves, figures, heatmaps, inventory, panels, progress
from fedcore.runs import queries
from fedcore.runs.queries import RunRow
from pages.parts import common, drafts, run_analyses


def header(run: RunRow) -> None:
    """Status, the figures that matter, and what can be done."""
    name = queries.experiment(common.database(), run.experiment_id).name
    st.title(f"{common.md(run.label)}, seed {run.seed}")
    parts = [
        common.status_html(run.state),
        f'in <a href="/live?id={run.experiment_id}" target="_self">{common.esc(name)}</a>',
    ]
    parts += [f"without {common.esc(run.held_out)}"] if run.held_out else []
    parts.append(common.faint(f"run {run.id}, attempt {run.attempt}, {run.device or 'no device yet'}"))
    st.html(f'<div class="fl-strip">{"".join(f"<span>{p}</span>" for p in parts)}</div>')
    if run.reason and run.state != "done":
        st.warning(common.md(run.reason), icon=":material/info:")
    best = f"at round {run.best_round}" if run.best_round is not None else None
    figures_ = [
        ("Last round, %", common.per_cent(run.last_test), None),
        ("Best on validation, %", common.per_cent(run.best_test), best),
        ("Worst client, %", common.per_cent(run.worst_client), None),
        ("Rounds", f"{run.rounds_done}/{run.rounds_total}", None),
        ("Took", progress.duration(progress.elapsed(run)) or "-", None),
    ]
    with st.container(horizontal=True, gap="medium"):  # on a telephone beside each other, too
        for label, value, note in figures_:
            st.metric(label, value, note, delta_color="off", delta_arrow="off", width="content")


def actions(run: RunRow) -> None:
    """Stop, resume, clone."""
    db, may = common.database(), common.writable()
    with st.container(horizontal=True, vertical_alignment="center"):
        if st.button("Clone", icon=":material/content_copy:", disabled=not may):
            drafts.use(single(run), f"run:{run.id}")
            st.switch_page("pages/new.py", query_params={})
        if run.state in ("queued", "running") and st.button(
            "Stop", icon=":material/stop_circle:", disabled=not may
        ):
            runs.stop(db, [run.id])
            st.rerun()
        can_resume = run.state in ("stopped", "interrupted", "failed") and run.origin == "engine"
        if can_resume and st.button("Resume", icon=":material/resume:", disabled=not may):
            runs.resume(db, [run.id])
            runs.ensure_worker(db)
            st.rerun()
        common.table_switch()


def single(run: RunRow) -> Experiment:
    """The run as an experiment of its own."""
    return loads(inventory.run_toml(common.database(), run.id), "the run's config").model_copy(
        update={"name": f"{run.label}, seed {run.seed} (copy)"}
    )


def accuracy(run: RunRow) -> None:
    """Matrices and curves."""
    matrices(run)
    lines(run)


def matrices(run: RunRow) -> None:
    """The accuracy matrix of any round, and every client over the rounds."""
    db = common.database()
    rounds = queries.evaluated_rounds(db, run.id)
    if not rounds:
        st.info("No round has been evaluated yet.", icon=":material/hourglass:")
        return
    chosen = rounds[-1]
    if len(rounds) > 1:
        chosen = st.select_slider("Round", rounds, value=rounds[-1], key=f"run_round_{run.id}_{rounds[-1]}")
    shown = [
        replace(panels.live_panel(db, run, until=chosen), title=f"Model by test set, round {chosen}"),
        replace(panels.live_panel(db, run, "clients"), title="Clients' own accuracy by round"),
    ]
    columns = st.columns(1 if common.narrow() else 2)
    for i, panel in enumerate(shown):
        with columns[i % len(columns)]:
            chart = heatmaps.heatmap_grid([panel], common.look(), 1)
            common.draw(chart, f"run_heat_{i}", heatmaps.panel_table(panel))


def lines(run: RunRow) -> None:
    """Accuracy and loss by round."""
    db = common.database()
    kinds = (
        ("Personal accuracy, mean", curves.live_accuracy(db, {run.id: run.rounds_total}), True),
        ("Training loss", curves.live_loss(db, {run.id: run.rounds_total}), False),
    )
    for column, (title, series, per_cent) in zip(st.columns(2), kinds, strict=True):
        with column:
            chart = figures.curves(
                series, common.look(), "Round", "", per_cent=per_cent, height=320, name=title
            )
            common.draw(chart, f"run_{title}", figures.series_table(series, "round"))


def clients(run: RunRow) -> None:
    """Who took part, with what, and how it ended for them."""
    db = common.database()
    entities = [e for e in queries.entities(db, run.id) if e.kind == "client"]
    last = {o.client: o for o in queries.own_accuracy(db, run.id)}
    sent: dict[int, int] = {}
    took: dict[int, int] = {}
    for row in queries.client_rounds(db, run.id):
        sent[row.client] = sent.get(row.client, 0) + (row.bytes_up or 0) + (row.bytes_down or 0)
        took[row.client] = took.get(row.client, 0) + 1
    header_ = [
        ("Client", "wide"),
        ("Domain", "wide"),
        ("Training samples", "num"),
        ("Own accuracy, %", "num"),
    ]
    header_ += [("Test samples", "num"), ("Rounds", "num"), ("Traffic, MB", "num")]
    rows = [
        [
            common.esc(e.name),
            common.esc(e.domain or "mixed"),
            str(e.samples if e.samples is not None else "-"),
            common.per_cent(last[e.entity].correct / last[e.entity].total) if e.entity in last else "-",
            str(last[e.entity].total) if e.entity in last else "-",
            str(took.get(e.entity, 0)),
            f"{sent.get(e.entity, 0) / curves.MEGABYTE:.2f}",
        ]
        for e in entities
    ]
    st.html(common.table_html(header_, rows, "Clients"))


def reproduce(run: RunRow) -> None:
    """Config, environment, and the command that repeats the run."""
    text = inventory.run_toml(common.database(), run.id)
    st.download_button(
        "Download run.toml", text, f"run-{run.id}.toml", on_click="ignore", icon=":material/download:"
    )
    st.code(f"python -m fedcore run run-{run.id}.toml", language="bash", wrap_lines=True)
    st.caption(
        "Same machine, same versions, same config: the same numbers. All hyper-parameters are written below."
    )
    st.code(text, language="toml", wrap_lines=True)
    environment = queries.environment(common.database(), run.id)
    if environment:
        st.markdown("**Ran under**")
        st.json(environment)


def log(run: RunRow) -> None:
    """Notices, the error, the log."""
    db = common.database()
    for note in run.notices:
        st.markdown(f"- {common.md(str(note['message']))}")
    trace = queries.error_text(db, run.id)
    if trace:
        st.code(trace, language=None, wrap_lines=True)
    st.code(progress.log_tail(db, run.id, 400) or "no log", language=None, wrap_lines=True)
    st.caption(common.md(f"{queries.log_path(db, run.id)}; looked at {time.strftime('%H:%M:%S')}"))


def page() -> None:
    """The page."""
    asked = st.query_params.get("id", "")
    found = queries.runs(common.database(), [int(asked)]) if asked.isdecimal() else []
    if not found:
        st.title("Run")
        st.info("No such run. Select an experiment to see its runs.", icon=":material/search_off:")
        if st.button("Experiments", icon=":material/arrow_back:"):
            st.switch_page("pages/experiments.py", query_params={})
        return
    run = found[0]
    try:
        header(run)
        actions(run)
        draw = {"Accuracy": accuracy, "Clients": clients, **run_analyses.tabs_of(run)}
        draw |= {"Log": log, "Reproduce": reproduce}
        tabs = st.tabs(list(draw), key="run_tab", on_change="rerun", bind="query-params")
        for (_, show), tab in zip(draw.items(), tabs, strict=True):
            if tab.open:
                with tab:
                    show(run)
    except FedLensError as error:
        common.show_error(error)


common.through_app()
page()
