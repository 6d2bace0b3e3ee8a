"""The tab Sweep of the page Compare: accuracy over the fields that take several values."""

from collections.abc import Sequence
from functools import partial

import streamlit as st

from fedcore.base.progress import counted
from fedcore.config.field_names import field_phrase, field_title, value_text
from fedcore.results import sweeps
from fedcore.results.charts.sweep import colour_range, sweep_heatmap
from fedcore.results.metrics import METRICS, RULES, Metric
from fedcore.results.sweeps import SweepFamily
from fedcore.share.views.sweep import MAX_LINES, VIEW, families_of, joint_figure, line_figure, parallel_figure
from pages.compare_view.controls import ShownComparison
from pages.widgets import charts, markup, session


def draw(shown: ShownComparison) -> None:
    """Draw all methods over one field, one method over one and over two, and all combinations."""
    compared, metric = shown.comparison, shown.metric
    families = families_of(compared, metric)
    if not families:
        st.info(VIEW.absent, icon=":material/tune:")
        return
    for said in [s for f in families for s in sweeps.findings(compared, f, metric, shown.choice.test)]:
        st.markdown(markup.md(said))
    joint, alone = sweeps.joint_families(families)
    for i, (field, together) in enumerate(joint.items()):
        figure = joint_figure(together, field, metric)
        st.markdown(f"**{markup.md(figure.title)}**")
        charts.draw_figure(figure, f"sweep_all_{i}", with_alt=True)
    if alone:
        one_method(alone, metric, colour_range(families))
    figure = parallel_figure(families, metric)
    st.markdown(f"**{figure.title}**")
    charts.draw_figure(figure, "sweep_parallel", with_alt=True)
    st.caption("Drag along an axis to keep only the lines that pass through that range.")
    st.caption(f"Mean ± sample standard deviation over seeds; reported round: {RULES[compared.rule]}.")


def one_method(families: Sequence[SweepFamily], metric: Metric, colours: tuple[int, int]) -> None:
    """Draw one of the methods that no chart of all methods has, over one of its fields and over two."""
    family = families[0]
    if len(families) > 1:
        index = st.selectbox(
            "Method", range(len(families)), format_func=lambda i: _name(families, i), key="sweep_family"
        )
        family = families[index]
    over_one(family, metric)
    if len(family.fields) > 1:
        over_two(family, metric, colours)


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
    charts.draw_figure(line_figure(family, field, metric), "sweep_line")
    lines = len(sweeps.sweep_lines(family, field))
    if lines > MAX_LINES:
        st.caption(f"{MAX_LINES} of {lines} lines are drawn; the chart of all combinations has the others.")


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
    chart = sweep_heatmap(found, session.theme(), METRICS[metric].title, colours, METRICS[metric].unit)
    columns: dict[str, list[object]] = {field_title(row): [value_text(row, v) for v in found.rows]}
    for j, value in enumerate(found.columns):
        name = f"{field_phrase(column)} {value_text(column, value)}"
        columns[name] = [
            None if stat is None else stat.text() for stat in (row_stats[j] for row_stats in found.stats)
        ]
    charts.draw(chart, "sweep_grid", columns)
    st.caption(markup.md(chart.alt))
