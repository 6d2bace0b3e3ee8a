"""The chart of the page Live, which a new round updates in place, so that zoom, pan and hover stay.

``st.plotly_chart`` draws a chart from scratch whenever its data change; this component uses ``Plotly.react``.
The browser loads plotly.js from this machine: the file of the installed plotly package is copied into
``static/``, which Streamlit serves.
"""

import json
import os
import tempfile
from importlib import resources
from pathlib import Path

import streamlit as st
from plotly.offline import get_plotlyjs_version

from fedcore.plots.chart import Chart
from pages.widgets import browser, charts, session

STATIC = Path(__file__).resolve().parents[2] / "static"
LIBRARY = Path(__file__).with_name("plotly_library.js").read_text(encoding="utf-8")
HTML = '<div class="fl-chart" role="figure" tabindex="0"></div>'
CSS = """
.fl-chart { width: 100%; }
.fl-chart:focus-visible { outline: 2px solid var(--st-primary-color); outline-offset: 2px; }
"""


def plotly_url(folder: Path = STATIC) -> str | None:
    """Return the address of plotly.js, copied first if it is missing; None if ``folder`` cannot be written.

    The file is written under a temporary name and then renamed, so that other processes never read half of
    it. Its name contains its version, so that browsers may cache it forever.
    """
    target = folder / f"plotly-{get_plotlyjs_version()}.eager.js"
    source = resources.files("plotly") / "package_data" / "plotly.min.js"
    with resources.as_file(source) as path:
        if not target.exists() or target.stat().st_size != len(browser.EAGER) + path.stat().st_size:
            try:
                folder.mkdir(exist_ok=True)
                handle, made = tempfile.mkstemp(dir=folder, suffix=".part")
                with os.fdopen(handle, "wb") as file:
                    file.write(browser.EAGER + path.read_bytes())
                Path(made).chmod(0o644)
                os.utime(made, (0, 0))  # browsers cache a file longer, the older it is
                os.replace(made, target)
            except OSError:
                return None
    return f"{session.base_path()}/app/static/{target.name}"


def payload(chart: Chart, revision: str) -> bytes | None:
    """Return a chart as the bytes sent to the browser, which redraws only when they change.

    Args:
        revision: identifies the content of the chart; the reader's zoom stays while it is equal.
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
    """Let the browser fetch and compile plotly.js before the first chart needs it."""
    url = plotly_url()
    if url is not None:
        with st.container(key="live_fetch"):
            st.html(fetching(url), unsafe_allow_javascript=True)


def fetching(url: str) -> str:
    """Return the invisible element that fetches plotly.js."""
    style = "<style>.st-key-live_fetch { display: none; }</style>"
    return f"{style}<script>{LIBRARY}\nlibrary({json.dumps(url)}).catch(() => {{}});</script>"


def draw(chart: Chart, content: bytes | None, key: str) -> None:
    """Draw the chart in place, or with ``st.plotly_chart`` if this machine cannot serve plotly.js."""
    if content is None:
        st.plotly_chart(chart.figure, key=key, alt=chart.alt, config=charts.CONFIG)
    else:
        _component(key=key, data=content)
