"""Charts with a text alternative, or tables of their numbers if the reader has chosen tables.

The browser updates a chart in place, so that the reader's zoom, pan and hover stay. ``st.plotly_chart``
draws a chart from scratch whenever its data change, and each chart twice; this component uses
``Plotly.react``. plotly.js comes from the installed plotly package, as a route of ``app.py``.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import resources
from typing import Any

import streamlit as st
from plotly.io.json import to_json_plotly
from plotly.offline import get_plotlyjs_version
from starlette.requests import Request
from starlette.responses import Response

from fedcore.methods import registry
from fedcore.results.charts.heatmaps import Place
from fedcore.results.charts.theme import Chart
from fedcore.share.views import Figure, NumberColumns
from pages.widgets import markup, session

EAGER = b"//# allFunctionsCalledOnLoad\n"
"""A comment at the start of plotly.js, with which Chromium compiles all of it in the background.

It blocks the page for 0.05 s instead of 0.4 s; other browsers ignore the comment.
"""
CHART_PAGES = ("compare", "leaderboard", "live", "new", "run")
"""Addresses of the pages that need plotly.js at once; others load it when nothing else is to be done."""
CONFIG: dict[str, Any] = {
    "displayModeBar": "hover",
    "displaylogo": False,
    "showSendToCloud": False,  # plotly.js would offer to upload charts
    "modeBarButtonsToRemove": ["select2d", "lasso2d", "autoScale2d"],  # zoom buttons stay, for keyboards
}
"""Options of plotly.js: few buttons, which appear while the pointer is on the chart."""
AXIS = {"automargin": True, "ticks": ""}
TEMPLATE = {
    "layout": {
        "margin": {"pad": 8},
        "clickmode": "none",  # every click that plotly reports draws the page again; see ``draw_figure``
        "xaxis": {**AXIS, "showgrid": False, "zeroline": False, "title": {"standoff": 20}},
        "yaxis": {**AXIS, "title": {"standoff": 24}},
    }
}
"""What a chart does not say itself; plotly's own template would be as long as many a chart."""
CSS = """
.fl-chart { width: 100%; }
.fl-chart:focus-visible { outline: 2px solid var(--st-primary-color); outline-offset: 2px; }
.fl-chart:fullscreen { background: var(--st-background-color); }
"""
OnCell = Callable[[Place], None]
"""Called with each clicked cell of a heatmap; the page is then drawn again."""
LIBRARY = (session.ASSETS / "plotly_library.js").read_text(encoding="utf-8")

_component = st.components.v2.component(
    "chart",
    html='<div class="fl-chart" role="figure" tabindex="0"></div>',
    css=CSS,
    js=LIBRARY + (session.ASSETS / "chart.js").read_text(encoding="utf-8"),
    isolate_styles=False,
)


def plotly_url() -> str:
    """Return the address of plotly.js. It names the version, so that browsers may keep the file forever."""
    return f"{session.base_path()}/plotly-{get_plotlyjs_version()}.js"


def plotly_js(_: Request) -> Response:
    """Answer with plotly.js; the route is behind the guard like all others."""
    code = (resources.files("plotly") / "package_data" / "plotly.min.js").read_bytes()
    kept = {"cache-control": "private, max-age=31536000, immutable"}
    return Response(EAGER + code, media_type="text/javascript", headers=kept)


def fetching(page: str) -> str:
    """Return the invisible element that fetches plotly.js before the first chart needs it."""
    begin = "fetchLibrary" if page in CHART_PAGES else "fetchLibraryWhenIdle"
    return f"<script>{LIBRARY}\n{begin}({json.dumps(plotly_url())});</script>"


def payload(chart: Chart, revision: str = "") -> bytes:
    """Return a chart as the bytes sent to the browser, which redraws only when they change.

    Args:
        revision: identifies the content of the chart; the reader's zoom stays while it is equal.
    """
    figure = chart.figure.to_dict()
    figure["layout"]["template"] = TEMPLATE  # plotly's own check of it would take as long as all the rest
    if revision:
        figure["layout"]["uirevision"] = revision
    sent = {"url": plotly_url(), "alt": chart.alt, "config": CONFIG, "figure": figure}
    text: str = to_json_plotly(sent)
    return text.encode()


def draw_payload(content: bytes, key: str, on_cell: OnCell | None = None) -> None:
    """Draw a chart that was made into bytes by ``payload``."""

    def clicked() -> None:
        if on_cell is not None and (cell := st.session_state[key].get("cell")):
            on_cell((int(cell["panel"]), int(cell["row"]), int(cell["column"])))

    _component(key=key, data=content, on_cell_change=None if on_cell is None else clicked)


def draw(chart: Chart, key: str, table: Mapping[str, Sequence[object]] | None = None) -> None:
    """Draw a chart with its text alternative, or its numbers if the reader has chosen tables."""
    if table is not None and st.session_state.get("as_tables"):
        st.dataframe(dict(table), hide_index=True, key=f"{key}_table")
    else:
        draw_payload(payload(chart), key)


def draw_figure(
    figure: Figure, key: str, with_alt: bool = False, share: float = 1.0, on_cell: OnCell | None = None
) -> None:
    """Draw a figure of the comparison, or its numbers if the reader has chosen tables.

    Args:
        share: of the page's width that the figure has in a wide window.
        on_cell: called with each clicked cell; without it, clicks go unnoticed.
    """
    width = session.figure_width() * (1.0 if session.is_narrow() else share)
    chart = figure.chart(session.theme(), round(width))
    if st.session_state.get("as_tables"):
        draw_tables(figure.numbers())
    else:
        if on_cell is not None:
            chart.figure.update_layout(clickmode="event")
        draw_payload(payload(chart), key, on_cell)
    if with_alt:
        st.caption(markup.md(chart.alt))


def draw_tables(tables: Iterable[tuple[str, NumberColumns]]) -> None:
    """Draw tables of numbers, each below its title."""
    for title, columns in tables:
        st.markdown(f"**{markup.md(title)}**")
        st.dataframe(dict(columns), hide_index=True)


def table_switch() -> None:
    """Draw the switch between charts and tables, one for all pages."""
    about = "Shows the numbers behind every chart"
    st.toggle("Show as table", key="as_tables", persist_state="session", help=about)


def colour_choice(methods: Iterable[str]) -> None:
    """Draw the choice of a method's colour, which charts and tables of all pages obey."""
    names = list(dict.fromkeys(methods))
    if not names:
        return
    with st.container(horizontal=True, vertical_alignment="bottom"):
        method = st.selectbox("Colour of", names, format_func=registry.title, key="colour_of", width=200)
        now = session.theme().colour(method)
        key = f"colour_{method}_{now}"  # another widget once the colour is another
        st.color_picker(
            "Its colour", now, key, on_change=session.set_colour, args=(method, key), width="content"
        )
        if st.session_state.get(session.COLOURS):
            st.button("Usual colours", key="colours_reset", on_click=session.reset_colours)
