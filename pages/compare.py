"""Finished runs side by side: summary, heatmaps, curves, cost, what differs in the configs, export."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from fedcore.report import curves, export, figures, heatmaps, panels, tables
from fedcore.report.tables import METRIC_HEADS, METRIC_HELP, METRICS, RULES, Comparison, Group, Metric, Rule
from fedcore.runs import queries
from fedcore.runs.queries import ExperimentRow
from pages.parts import common

TABS = ("Summary", "Heatmaps", "Curves", "Cost", "Config", "Export")
Token = tuple[tuple[int, str, int], ...]


@st.cache_data(max_entries=32, show_spinner=False)
def comparison(path: str, ids: tuple[int, ...], rule: Rule, unfinished: bool, token: Token) -> Comparison:
    """The comparison at one moment; computed again when a run of it has a new round."""
    return tables.compare(path, ids, rule, unfinished=unfinished)


@st.cache_data(max_entries=64, show_spinner=False)
def matrices(path: str, found: Comparison, setting: str) -> dict[str, panels.Panel]:
    """The mean matrix of every row."""
    return panels.compared_panels(path, found, setting)


def choose(path: str) -> list[ExperimentRow]:
    """The compare set, in the URL."""
    known = {e.id: e for e in queries.experiments(path)}
    finished = [i for i, e in known.items() if any(r.state == "done" for r in e.runs)]
    st.session_state["compare_ids"] = common.ids_in_url("ids", known, (finished or list(known))[:1])
    st.multiselect(
        "Experiments",
        list(known),
        format_func=lambda i: f"{known[i].name} (no. {i})",
        key="compare_ids",
        placeholder="choose what to compare",
        on_change=lambda: common.remember_ids("ids", st.session_state["compare_ids"]),
    )
    return [known[i] for i in st.session_state["compare_ids"]]


def controls(found: Sequence[ExperimentRow]) -> tuple[Rule, str | None, bool]:
    """How a round is chosen, what differences are taken to."""
    labels = list(dict.fromkeys(r.label for e in found for r in e.runs))
    left, middle, right = st.columns([3, 3, 2], vertical_alignment="bottom")
    rule = left.selectbox(
        "Round of a run",
        list(RULES),
        format_func=RULES.get,
        key="rule",
        help="Never by test accuracy. Best on validation: the round of the highest mean accuracy there, "
        "the earliest of equals.",
    )
    baseline = middle.selectbox(
        "Baseline", labels, index=None, placeholder="none: no differences", key="compare_baseline",
        help="Differences to this method, in points, on the same data, clients and backbone",
    )  # fmt: skip
    unfinished = right.toggle("Unfinished runs too", key="compare_unfinished")
    return rule, baseline, unfinished


def summary(found: Comparison, baseline: str | None) -> None:
    """Mean and spread of every method, one table per setting."""
    for setting, title in found.settings.items():
        groups = found.of(setting)
        pinned = next((g for g in groups if g.label == baseline), None)
        metrics = [m for m in found.metrics if any(m in g.stats for g in groups)]
        st.markdown(f"**{common.md(title)}**")
        header = [("Method", "wide"), *((f"{METRIC_HEADS[m]}, %", "num") for m in metrics)]
        header += [("Difference, points", "num")] if pinned else []
        header += [("Seeds (n)", "num"), ("Rounds", "num")]
        marks = {m: tables.ranks(groups, m) for m in metrics}
        rows = [row(g, metrics, marks, pinned) for g in groups]
        st.html(common.table_html(header, rows, f"Summary of {title}"))
    several = any(len(g.seeds) > 1 for g in found.groups)
    spread = "mean ± sample standard deviation over seeds" if several else "one seed, hence no spread"
    st.caption(
        f"Test accuracy, {spread}; round chosen: {RULES[found.rule]}. **Bold**: best, underlined: second. "
        + " ".join(f"*{METRIC_HEADS[m]}*: {METRIC_HELP[m]}." for m in found.metrics)
    )
    sources(found)


def row(group: Group, metrics: Sequence[Metric], marks: dict, pinned: Group | None) -> list[str]:
    """One method as cells."""
    cells = [common.method_html(group.label, group.method)]
    for metric in metrics:
        stat = group.stats.get(metric)
        text = "-" if stat is None else stat.text()
        if group.key in marks[metric][0]:
            text = f"<b>{text}</b>"
        elif group.key in marks[metric][1]:
            text = f"<u>{text}</u>"
        cells.append(text)
    if pinned:
        gap = tables.difference(group, pinned, "personal")
        cells.append("baseline" if group.key == pinned.key else "-" if gap is None else f"{gap:+.1f}")
    done = {v.run.rounds_done for v in group.runs}
    rounds = (
        str(group.config.rounds) if done == {group.config.rounds} else f"{min(done)} of {group.config.rounds}"
    )
    counts = sorted({s.n for m in metrics if (s := group.stats.get(m)) is not None}, reverse=True)
    return [*cells, "/".join(map(str, counts)) or "0", rounds]


def sources(found: Comparison) -> None:
    """Every number leads to its runs."""
    with st.expander("Where these numbers come from", icon=":material/fact_check:"):
        header = [
            ("Method", "wide"),
            ("Run", "num"),
            ("Experiment", "num"),
            ("Seed", "num"),
            ("Held out", ""),
        ]
        header += [("Rounds taken", ""), ("Personal accuracy, %", "num"), ("State", "")]
        rows = []
        for group in found.groups:
            for v in group.runs:
                value = v.values["personal"]
                rows.append(
                    [
                        common.esc(group.label),
                        f'<a href="/run?id={v.run.id}" target="_self">{v.run.id}</a>',
                        str(v.run.experiment_id),
                        str(v.run.seed),
                        common.esc(v.run.held_out or ""),
                        common.esc(v.taken),
                        "-" if value is None else f"{value:.2f}",
                        common.status_html(v.run.state),
                    ]
                )
        st.html(common.table_html(header, rows, "Runs behind the numbers"))
        st.caption("A run's page has its whole config and the command that repeats it.")


def heatmap_tab(path: str, found: Comparison, baseline: str | None) -> None:
    """Every method's matrix under one colour axis, and the differences to the baseline."""
    with st.container(horizontal=True):
        fitted = st.toggle("Fit colours to the values", key="compare_fitted")
    columns = 1 if common.narrow() else 3
    for i, (setting, title) in enumerate(found.settings.items()):
        by_key = matrices(path, found, setting)
        st.markdown(f"**{common.md(title)}**")
        grid(
            heatmaps.heatmap_grid(list(by_key.values()), common.look(), columns, fitted),
            by_key,
            f"compare_heat_{i}",
        )
        pinned = next((g for g in found.of(setting) if g.label == baseline), None)
        if pinned is not None:
            base = by_key[pinned.key]
            gaps = {k: panels.minus(p, base) for k, p in by_key.items() if k != pinned.key}
            st.markdown(f"**Difference to {common.md(pinned.label)}, points**")
            grid(
                heatmaps.difference_grid(list(gaps.values()), common.look(), columns),
                gaps,
                f"compare_gap_{i}",
            )
    if baseline is None:
        st.caption("Choose a baseline above to see the differences, cell by cell.")


def grid(chart: figures.Chart, shown: dict[str, panels.Panel], key: str) -> None:
    """Panels as one chart, or as tables."""
    if not st.session_state.get("as_tables"):
        common.draw(chart, key)
        return
    for panel in shown.values():
        st.markdown(f"**{common.md(panel.title)}**")
        st.dataframe(heatmaps.panel_table(panel), hide_index=True)


def curve_tab(path: str, found: Comparison) -> None:
    """Mean and band over seeds against rounds, seconds or traffic."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        metric = st.selectbox("Accuracy", list(curves.CURVE_METRICS), format_func=METRICS.get, key="metric")
        axis = st.selectbox("Against", list(curves.AXES), format_func=curves.AXES.get, key="axis")
    for i, (setting, title) in enumerate(found.settings.items()):
        series = curves.compared(path, found, setting, metric, axis)
        st.markdown(f"**{common.md(title)}**")
        chart = figures.curves(series, common.look(), curves.AXES[axis], METRICS[metric], height=460)
        common.draw(chart, f"compare_curves_{i}", figures.series_table(series, axis))
    st.caption("Band: one sample standard deviation over seeds. No smoothing.")


def cost_tab(path: str, found: Comparison) -> None:
    """Accuracy against what it cost."""
    against = st.segmented_control(
        "Against", ["megabytes", "seconds"], default="megabytes", required=True, key="compare_cost",
        format_func=lambda a: {"megabytes": "Traffic", "seconds": "Time"}[a],
    )  # fmt: skip
    for i, (setting, title) in enumerate(found.settings.items()):
        costs = curves.costs(path, found, setting)
        st.markdown(f"**{common.md(title)}**")
        common.draw(
            figures.cost_chart(costs, common.look(), against, METRICS["personal"] + ", %"),
            f"compare_cost_{i}",
        )
        header = [("Method", "wide"), ("Personal accuracy, %", "num"), ("Up, MB", "num"), ("Down, MB", "num")]
        header += [("Training, s", "num"), ("Aggregation, s", "num"), ("Evaluation, s", "num")]
        rows = [
            [
                common.esc(c.label),
                "-" if c.accuracy is None else f"{c.accuracy:.1f}",
                *(common.number(v, 2) for v in (c.megabytes_up, c.megabytes_down)),
                *(common.number(v, 1) for v in (c.seconds_train, c.seconds_aggregate, c.seconds_evaluate)),
            ]
            for c in costs
        ]
        st.html(common.table_html(header, rows, f"Cost on {title}"))
    st.caption("Traffic of all clients over all rounds (1 MB = 1,000,000 bytes), time of whole runs; means.")


def config_tab(found: Comparison) -> None:
    """Only what differs."""
    names = [g.label for g in found.groups]
    differing = tables.config_differences(found.groups)
    if not differing:
        st.info("All rows have the same config.")
        return
    header = [("Field", ""), *((n, "wide") for n in names)]
    rows = [[common.esc(f), *(common.esc(v) for v in values)] for f, values in differing.items()]
    st.html(common.table_html(header, rows, "Config fields that differ"))
    st.caption("A dash: the method has no such field.")


def export_tab(
    path: str, ids: Sequence[int], found: Comparison, baseline: str | None, unfinished: bool
) -> None:
    """Files with the numbers of this page, made when clicked."""
    name, rule = "-".join(found.settings.values()), found.rule
    latex = export.summary_latex(path, ids, rule, unfinished=unfinished)
    files = {
        "Summary CSV": ("summary", "csv", lambda: summary_text(path, ids, rule, baseline, unfinished)),
        "Rounds CSV": ("rounds", "csv", lambda: export.rounds_csv(path, ids)),
        "LaTeX table": ("summary", "tex", lambda: latex),
        "JSON with configs": (
            "summary",
            "json",
            lambda: export.summary_json(path, ids, (rule,), unfinished=unfinished),
        ),
    }
    with st.container(horizontal=True):
        for label, (table, suffix, made) in files.items():
            st.download_button(
                label,
                made,
                export.file_name(name, table, suffix),
                on_click="ignore",
                icon=":material/download:",
                key=f"file_{table}_{suffix}",
            )
    st.caption(
        f"Summary: a row per method and metric, two decimals, {RULES[rule]}, as on this page. "
        "Rounds: a row per run, round, split, model and test set, with counts, of all these runs. "
        "Charts: the camera in their menu."
    )
    st.code(latex, language="latex")


def summary_text(path: str, ids: Sequence[int], rule: Rule, baseline: str | None, unfinished: bool) -> str:
    """The summary table as CSV."""
    return export.summary_csv(path, ids, (rule,), baseline, unfinished=unfinished)


def page() -> None:
    """The page."""
    path = str(common.database())
    st.title("Compare")
    found = choose(path)
    if not found:
        st.info("Choose experiments above; finished runs appear here as tables, heatmaps and curves.")
        if not queries.experiments(path) and st.button(
            "Try it", type="primary", icon=":material/play_circle:"
        ):
            st.switch_page("pages/new.py", query_params={"preset": "demo"})
        return
    rule, baseline, unfinished = controls(found)
    ids = tuple(e.id for e in found)
    token = tuple((r.id, r.state, r.rounds_done) for e in found for r in e.runs)
    shown = comparison(path, ids, rule, unfinished, token)
    for note in shown.notes:
        st.caption(f":material/info: {common.md(note)}")
    if not shown.groups:
        st.info(
            "None of these runs is finished yet. Unfinished runs too shows what there is.",
            icon=":material/hourglass:",
        )
        return
    common.table_switch()
    tabs = dict(zip(TABS, st.tabs(TABS, key="tab", on_change="rerun", bind="query-params"), strict=True))
    draw = {
        "Summary": lambda: summary(shown, baseline),
        "Heatmaps": lambda: heatmap_tab(path, shown, baseline),
        "Curves": lambda: curve_tab(path, shown),
        "Cost": lambda: cost_tab(path, shown),
        "Config": lambda: config_tab(shown),
        "Export": lambda: export_tab(path, ids, shown, baseline, unfinished),
    }
    for name, tab in tabs.items():
        if tab.open:
            with tab:
                draw[name]()


common.through_app()
page()
