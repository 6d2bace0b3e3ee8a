"""The tab Sweep of the page Compare: accuracy over the fields that take several values."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import streamlit as st

from fedcore.config.field_names import field_phrase, field_title, value_text
from fedcore.plots.sweep import colour_range, parallel_chart, sweep_heatmap, sweep_line_chart
from fedcore.progress import counted
from fedcore.results import sweeps
from fedcore.results.metrics import METRICS, RULES, Metric
from fedcore.results.sweeps import SweepFamily
from pages.compare_view.controls import ShownComparison
from pages.widgets import charts, markup, session

MAX_LINES = 12


def draw(shown: ShownComparison) -> None:
    """Draw all combinations in parallel coordinates, then one method over one field and over two."""
    compared, metric = shown.comparison, shown.metric
    families = sweeps.sweep_families(
        compared, metric, [e.config.sweep for e in shown.experiments if e.config.sweep]
    )
    if not families:
        st.info(
            "No field takes several values in these runs. Sweeps (page New) and variants of one method "
            "appear here.",
            icon=":material/tune:",
        )
        return
    st.markdown(f"**{METRICS[metric]} of all combinations**")
    chart = parallel_chart(families, session.theme(), METRICS[metric])
    charts.draw(chart, "sweep_parallel", table(families, metric))
    st.caption(
        markup.md(chart.alt) + " Drag along an axis to keep only the lines that pass through that range."
    )
    for said in [s for f in families for s in sweeps.findings(compared, f, metric, shown.choice.test)]:
        st.markdown(markup.md(said))
    family = families[0]
    if len(families) > 1:
        index = st.selectbox(
            "Method", range(len(families)), format_func=lambda i: _name(families, i), key="sweep_family"
        )
        family = families[index]
    over_one(family, metric)
    if len(family.fields) > 1:
        over_two(family, metric, colour_range(families))
    st.caption(f"Mean ± sample standard deviation over seeds; reported round: {RULES[compared.rule]}.")


def _name(families: Sequence[SweepFamily], index: int) -> str:
    """Return a unique name of a family; titles may be equal where settings differ."""
    family = families[index]
    fields = ", ".join(field_phrase(f) for f in family.fields)
    return f"{family.title} over {fields} ({counted(len(family.rows), 'combination')})"


def over_one(family: SweepFamily, metric: Metric) -> None:
    """Draw accuracy over one field, a line per value of the others."""
    field = family.fields[0]
    if len(family.fields) > 1:
        field = st.selectbox("Plotted over", family.fields, format_func=field_title, key="sweep_over")
    lines = sweeps.sweep_lines(family, field)
    shown = lines[:MAX_LINES]
    chart = sweep_line_chart(shown, session.theme(), field, METRICS[metric])
    name = field_title(field)
    cells = [
        (line.label, value_text(field, x), s)
        for line in shown
        for x, s in zip(line.x, line.stats, strict=True)
    ]
    columns: dict[str, Sequence[object]] = {
        "line": [c[0] for c in cells],
        name: [c[1] for c in cells],
        "mean": [round(c[2].mean, 2) for c in cells],
        "std": [None if c[2].std is None else round(c[2].std, 2) for c in cells],
        "n": [c[2].n for c in cells],
    }
    charts.draw(chart, "sweep_line", columns)
    if len(lines) > len(shown):
        st.caption(
            f"{len(shown)} of {len(lines)} lines are drawn; the chart of all combinations has the others."
        )


def over_two(family: SweepFamily, metric: Metric, colours: tuple[int, int]) -> None:
    """Draw a heatmap over two fields, with every other field at one value, in the colours of all charts."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        row = st.selectbox("Rows", family.fields, format_func=field_title, key="sweep_row")
        rest = [f for f in family.fields if f != row]
        column = st.selectbox("Columns", rest, format_func=field_title, key="sweep_column")
        fixed = {
            f: st.selectbox(
                field_title(f),
                family.values(f),
                format_func=partial(value_text, f),
                key=f"sweep_at_{f}",
            )
            for f in rest
            if f != column
        }
    found = sweeps.sweep_grid(family, row, column, fixed)
    chart = sweep_heatmap(found, session.theme(), METRICS[metric], colours)
    columns: dict[str, list[object]] = {field_title(row): [value_text(row, v) for v in found.rows]}
    for j, value in enumerate(found.columns):
        name = f"{field_phrase(column)} {value_text(column, value)}"
        columns[name] = [
            None if stat is None else stat.text() for stat in (row_stats[j] for row_stats in found.stats)
        ]
    charts.draw(chart, "sweep_grid", columns)
    st.caption(markup.md(chart.alt))


def table(families: Sequence[SweepFamily], metric: Metric) -> dict[str, list[object]]:
    """Return every combination as a row of a table."""
    points = [(f, p) for f in families for p in f.rows]
    columns: dict[str, list[object]] = {"method": [f.title for f, _ in points]}
    for field in dict.fromkeys(field for f in families for field in f.fields):
        columns[field_title(field)] = [
            value_text(field, p.values[field]) if field in p.values else "" for _, p in points
        ]
    columns[METRICS[metric]] = [p.stat.text(2) for _, p in points]
    columns["n"] = [p.stat.n for _, p in points]
    return columns
