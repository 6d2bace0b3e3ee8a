"""The tab Curves of the page Compare: accuracy, loss and recorded values by round, time or traffic."""

from typing import Literal

import streamlit as st

from fedcore.base.presentation import DiagnosticChart
from fedcore.results.curves import AXES, BANDS, Band, smoothed, with_band
from fedcore.results.metrics import BY_ROUND, METRICS
from fedcore.share.views.curves import LOSS, Curves, lines_of, recorded_values
from pages.compare_view.controls import ShownComparison
from pages.widgets import charts, markup, session

FEW_LINES = 10
"""Rows up to which all lines of a chart are shown at first."""
Direction = Literal["x", "y"]


def draw(shown: ShownComparison) -> None:
    """Draw the mean over seeds with its band, a chart per setting."""
    compared, source = shown.comparison, shown.source
    recorded = recorded_values(source)
    titles: dict[str, str] = {m: METRICS[m].title for m in BY_ROUND if m in compared.metrics}
    titles |= {LOSS: "Training loss"} | {key: chart.heading for key, chart in recorded.items()}
    with st.container(horizontal=True, vertical_alignment="bottom"):
        value = session.choose(st.selectbox, "Value", titles, "curve")
        axis = session.choose(st.selectbox, "Against", AXES, "axis")
        band: Band = session.choose(st.selectbox, "Band", BANDS, "band")
        highlighted = st.selectbox(
            "Highlight",
            list(dict.fromkeys(row.drawn_label for row in compared.rows)),
            index=None,
            key="highlight",
            bind="query-params",
            placeholder="none",
            help="This line stands out, and the others fade. The pointer over a line does so for a moment.",
        )
        end = "lowest" if value == LOSS else "highest"
        best = best_lines(max(len(compared.rows_in(s)) for s in compared.settings), end)
        with st.popover("Axes and smoothing", icon=":material/show_chart:"):
            scales: list[Direction] = []
            scales += ["x"] if st.toggle("Logarithmic, horizontal", key="log_x", bind="query-params") else []
            scales += ["y"] if st.toggle("Logarithmic, vertical", key="log_y", bind="query-params") else []
            weight = st.slider(
                "Smoothing",
                0.0,
                0.95,
                0.0,
                0.05,
                key="smoothing",
                bind="query-params",
                help="Exponential moving average; the raw line stays visible behind it.",
            )
    in_per_cent = value in METRICS or (value in recorded and recorded[value].unit == "%")
    for i, (setting, title) in enumerate(compared.settings.items()):
        st.markdown(f"**{markup.md(title)}**")
        lines = [
            smoothed(with_band(line, band), weight)
            for line in lines_of(source, setting, value, axis, recorded)
        ]
        if not lines:
            st.info("No row here has recorded this value.", icon=":material/hourglass_empty:")
            continue
        figure = Curves(
            "curves",
            titles[value],
            tuple(lines),
            AXES[axis],
            titles[value],
            in_per_cent,
            460,
            best,
            scales,
            lower_is_better=value == LOSS,
            band=band,
            highlighted=highlighted,
        )
        charts.draw_figure(figure, f"compare_curves_{i}", with_alt=True)
    st.caption(_caption(band, weight, recorded.get(value)))


def _caption(band: Band, weight: float, chart: DiagnosticChart | None) -> str:
    said = {
        "std": "Band: one sample standard deviation over seeds.",
        "se": "Band: one standard error of the mean over seeds.",
        "ci95": "Band: 95 % interval of the mean over seeds (Student's t).",
    }[band]
    said += f" Thick: smoothed with weight {weight:g}; faint: as measured." if weight else " No smoothing."
    return f"{said} {markup.md(chart.explanation)}".strip() if chart else said


def best_lines(lines: int, end: str) -> int | None:
    """Draw the number of lines to show where there are many, and return it; None: all of them.

    Args:
        end: which last values are the best, ``highest`` or ``lowest``.
    """
    if lines <= FEW_LINES:
        return None
    return st.number_input(
        "Best rows shown",
        min_value=1,
        max_value=lines,
        value=FEW_LINES,
        key="best_lines",
        bind="query-params",
        width=160,
        help=f"The rows with the {end} last values. A click on a name in the legend shows or hides a row, a "
        "double click shows it alone; the pointer over a line or a name brings it out.",
    )
