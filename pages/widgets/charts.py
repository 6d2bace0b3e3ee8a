"""Charts with a text alternative, or tables of their numbers if the reader has chosen tables."""

from collections.abc import Iterable, Mapping, Sequence

import streamlit as st

from fedcore.results.charts.lines import line_chart, series_table
from fedcore.results.charts.theme import Chart
from fedcore.results.curves import Series
from fedcore.share.views import Figure, NumberColumns
from pages.widgets import markup, plotly_chart, session


def draw(
    chart: Chart, key: str, table: Mapping[str, Sequence[object]] | None = None, title: str = ""
) -> None:
    """Draw a chart with its text alternative, or its numbers if the reader has chosen tables.

    Args:
        title: shown above the numbers, for charts whose title is inside the chart.
    """
    if table is not None and st.session_state.get("as_tables"):
        if title:
            st.markdown(f"**{markup.md(title)}**")
        st.dataframe(dict(table), hide_index=True, key=f"{key}_table")
        return
    plotly_chart.draw(plotly_chart.payload(chart), key)


def draw_figure(figure: Figure, key: str, with_alt: bool = False) -> None:
    """Draw a figure of the comparison, or its numbers if the reader has chosen tables."""
    chart = figure.chart(session.theme(), session.figure_width())
    if not st.session_state.get("as_tables"):
        draw(chart, key)
    elif len(numbers := figure.numbers()) == 1:
        title, columns = numbers[0]
        draw(chart, key, columns, title)
    else:
        draw_tables(numbers)
    if with_alt:
        st.caption(markup.md(chart.alt))


def draw_tables(tables: Iterable[tuple[str, NumberColumns]]) -> None:
    """Draw tables of numbers, each below its title."""
    for title, columns in tables:
        st.markdown(f"**{markup.md(title)}**")
        st.dataframe(dict(columns), hide_index=True)


def draw_rounds(lines: Sequence[Series], key: str, title: str, per_cent: bool) -> Chart:
    """Draw lines over the rounds, and return the chart."""
    chart = line_chart(lines, session.theme(), "Round", "", per_cent=per_cent, height=320, name=title)
    draw(chart, key, series_table(lines, "round", "%" if per_cent else ""), title)
    return chart


def table_switch() -> None:
    """Draw the switch between charts and tables, one for all pages."""
    st.toggle(
        "Show as table",
        key="as_tables",
        persist_state="session",
        help="Shows the numbers behind every chart",
    )
