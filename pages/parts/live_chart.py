"""The chart of the Live page: a new round exchanges its data in place, so that zoom, pan and hover stay.

``st.plotly_chart`` draws a chart anew whenever its data change; this one goes through ``Plotly.react``.
The browser takes plotly.js from this machine: it comes with the installed plotly package and is copied into
``static/`` when the app starts, which Streamlit serves.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from importlib import resources
from pathlib import Path

import streamlit as st
from plotly.offline import get_plotlyjs_version

from fedcore.report.charts import Chart

STATIC = Path(__file__).resolve().parents[2] / "static"
HTML = '<div class="fl-chart" role="figure" tabindex="0"></div>'
CSS = """
.fl-chart { width: 100%; }
.fl-chart:focus-visible { outline: 2px solid var(--st-primary-color); outline-offset: 2px; }
"""


def library(folder: Path = STATIC) -> str | None:
    """The address of plotly.js, made where it is missing; None where ``folder`` cannot be written.

    Another process never sees half a file: it is written beside its place and then renamed. Its name holds
    its version, so a browser may keep it for good.
    """
    target = folder / f"plotly-{get_plotlyjs_version()}.min.js"
    source = resources.files("plotly") / "package_data" / "plotly.min.js"
    with resources.as_file(source) as path:
        if not target.exists() or target.stat().st_size != path.stat().st_size:
            try:
                folder.mkdir(exist_ok=True)
                handle, made = tempfile.mkstemp(dir=folder, suffix=".part")
                os.close(handle)
                shutil.copyfile(path, made)
                Path(made).chmod(0o644)
                os.utime(made, (0, 0))  # as old as can be: browsers then keep it without asking again
                os.replace(made, target)
            except OSError:
                return None
    return f"/app/static/{target.name}"


def payload(chart: Chart, revision: str) -> bytes | None:
    """What the browser is told of a chart: the same bytes are not drawn again. None without plotly.js.

    Args:
        revision: what the chart is of; while it stays, the reader's zoom stays.
    """
    url = library()
    if url is None:
        return None
    head = json.dumps({"url": url, "alt": chart.alt})
    figure = chart.figure.update_layout(uirevision=revision)
    return f'{head[:-1]}, "figure": {figure.to_json()}}}'.encode()


_component = st.components.v2.component(
    "live_chart",
    html=HTML,
    css=CSS,
    js=Path(__file__).with_suffix(".js").read_text(encoding="utf-8"),
    isolate_styles=False,
)


def draw(chart: Chart, content: bytes | None, key: str) -> None:
    """The chart in place; where this machine cannot serve plotly.js, a chart that is drawn anew each time."""
    if content is None:
        st.plotly_chart(chart.figure, key=key, alt=chart.alt, config={"displaylogo": False})
    else:
        _component(key=key, data=content)
