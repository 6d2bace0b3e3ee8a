"""The chart of the page Live: a new round replaces its data in place, so that zoom, pan and hover stay.

``st.plotly_chart`` draws a chart anew whenever its data change; this one goes through ``Plotly.react``.
The browser takes plotly.js from this machine: it comes with the installed plotly package and is copied into
``static/`` when the app starts, which Streamlit serves.
"""

from __future__ import annotations

import json
import os
import tempfile
from importlib import resources
from pathlib import Path

import streamlit as st
from plotly.offline import get_plotlyjs_version

from fedcore.plots.chart import Chart
from pages.widgets import charts, session

STATIC = Path(__file__).resolve().parents[2] / "static"
EAGER = b"//# allFunctionsCalledOnLoad\n"
"""A comment put before plotly.js, which makes Chromium compile it in the background.

The page then stands still for 0.05 s instead of 0.4 s; other browsers ignore it."""
LIBRARY = Path(__file__).with_name("plotly_library.js").read_text(encoding="utf-8")
HTML = '<div class="fl-chart" role="figure" tabindex="0"></div>'
CSS = """
.fl-chart { width: 100%; }
.fl-chart:focus-visible { outline: 2px solid var(--st-primary-color); outline-offset: 2px; }
"""


def plotly_url(folder: Path = STATIC) -> str | None:
    """Return the address of plotly.js, copied first if it is missing; None if ``folder`` cannot be written.

    Another process never sees half a file: it is written beside its place and then renamed. Its name holds
    its version, so a browser may keep it for good.
    """
    target = folder / f"plotly-{get_plotlyjs_version()}.eager.js"
    source = resources.files("plotly") / "package_data" / "plotly.min.js"
    with resources.as_file(source) as path:
        if not target.exists() or target.stat().st_size != len(EAGER) + path.stat().st_size:
            try:
                folder.mkdir(exist_ok=True)
                handle, made = tempfile.mkstemp(dir=folder, suffix=".part")
                with os.fdopen(handle, "wb") as file:
                    file.write(EAGER + path.read_bytes())
                Path(made).chmod(0o644)
                os.utime(made, (0, 0))  # as old as can be: browsers then keep it without asking again
                os.replace(made, target)
            except OSError:
                return None
    return f"{session.base_path()}/app/static/{target.name}"


def payload(chart: Chart, revision: str) -> bytes | None:
    """Return a chart as the bytes sent to the browser, which redraws only when they change.

    Args:
        revision: what the chart is of; while it stays, the reader's zoom stays.
    """
    url = plotly_url()
    if url is None:
        return None
    head = json.dumps({"url": url, "alt": chart.alt, "config": charts.CONFIG})
    figure = chart.figure.update_layout(uirevision=revision)
    return f'{head[:-1]}, "figure": {figure.to_json()}}}'.encode()


_component = st.components.v2.component(
    "live_chart",
    html=HTML,
    css=CSS,
    js=LIBRARY + Path(__file__).with_suffix(".js").read_text(encoding="utf-8"),
    isolate_styles=False,
)


def fetch() -> None:
    """Have the browser fetch and compile plotly.js now instead of at the first chart."""
    url = plotly_url()
    if url is not None:
        with st.container(key="live_fetch"):
            st.html(fetching(url), unsafe_allow_javascript=True)


def fetching(url: str) -> str:
    """Return the invisible element that fetches plotly.js."""
    style = "<style>.st-key-live_fetch { display: none; }</style>"
    return f"{style}<script>{LIBRARY}\nlibrary({json.dumps(url)}).catch(() => {{}});</script>"


def draw(chart: Chart, content: bytes | None, key: str) -> None:
    """Draw the chart in place, or anew each time if this machine cannot serve plotly.js."""
    if content is None:
        st.plotly_chart(chart.figure, key=key, alt=chart.alt, config=charts.CONFIG)
    else:
        _component(key=key, data=content)
