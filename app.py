"""The server behind ``streamlit run app.py``: the dashboard, its guard, and the address that Live polls."""

from __future__ import annotations

import ast
import asyncio
import importlib
import inspect
import logging
import sys
import threading
import webbrowser
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
import streamlit as st
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import RedirectResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fedcore.base.files import state_folder
from fedcore.cli.own_settings import read_own_only
from fedcore.methods import registry
from fedcore.results.charts.heatmaps import PanelNote, heatmap_grid
from fedcore.results.charts.lines import line_chart
from fedcore.results.charts.ranks import bar_chart
from fedcore.results.charts.theme import Theme
from fedcore.results.curves import Series
from fedcore.results.panels import Panel
from fedcore.share.views import views
from pages.guard import guard
from pages.widgets import browser, charts, session

READY_SECONDS = 0.5  # from the start of the app until the server accepts connections


def address() -> str:
    """Return the address of the dashboard on this machine."""
    scheme = "https" if st.get_option("server.sslCertFile") else "http"
    return f"{scheme}://localhost:{st.get_option('server.port')}{session.base_path()}/"


@asynccontextmanager
async def announced(_: st.App) -> AsyncIterator[None]:
    """Print the addresses, open the page in a browser unless headless, and load what the pages need."""
    others = f"{address()}?token={guard.account_token()}"
    if not sys.stdout.isatty():  # a log, which others may read
        others = f"{address()}?token= followed by the token in {state_folder() / guard.TOKEN_FILE}"
    print(f"\n  FedLens: {address()}\n  For other accounts and machines: {others}\n", flush=True)
    if not st.get_option("server.headless"):
        # only Linux tells the guard which account the browser belongs to; elsewhere it needs the token
        opened = address() if sys.platform == "linux" else f"{address()}?token={guard.account_token()}"
        asyncio.get_running_loop().call_later(READY_SECONDS, webbrowser.open, opened)
    # what cannot be loaded is reported by the page that needs it, and in the terminal
    threading.Thread(target=load_pages, name="loads ahead", daemon=True).start()
    yield


def load_pages() -> None:
    """Load what the pages import, the methods and the classes of a chart, so that no visitor waits for them.

    Loading libraries and methods takes a second of the processor, and a page's own work a tenth of that.
    """
    pandas = importlib.import_module("pandas")  # whole, before plotly first looks for it, as in dashboard.py
    pandas.DataFrame([[0]]).stack().unstack().to_dict()  # pandas loads what reshapes results at its first use
    for page in session.PAGES:
        load_imports((session.ASSETS.parent / f"{page.file}.py").read_text(encoding="utf-8"))
    registry.load_built_in()
    views()
    counts = np.ones((1, 1), dtype=int)
    panel = Panel("", "", ("a",), ("b",), np.ones((1, 1)), counts, counts, own_columns=(0,))
    line = Series("", "", (0.0, 1.0), (0.0, 1.0), (None, None), 1, low=(0.0, 0.0), high=(1.0, 1.0))
    heatmap = heatmap_grid([panel], Theme(), notes=[PanelNote("", 1.0, Theme().ink)])
    lines = line_chart([line], Theme(), "Round", "", name="a")
    for chart in (heatmap, lines, bar_chart([], "personal", Theme())):
        chart.figure.to_json()  # for which plotly loads its classes
    inspect.stack()  # finds the file of every module once, as Streamlit's first element would


def load_imports(code: str) -> None:
    """Import what the code of a page imports, without running it."""
    for line in ast.parse(code).body:
        if isinstance(line, ast.ImportFrom):
            __import__(line.module or "", fromlist=[name.name for name in line.names])
        elif isinstance(line, ast.Import):
            for name in line.names:
                importlib.import_module(name.name)


class EarlyCharts:
    """Names plotly.js in the headers of pages with charts: browsers fetch it while the page's script runs."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=message["headers"])
                if headers.get("content-type", "").startswith("text/html"):
                    headers.append("Link", f"<{charts.plotly_url()}>; rel=preload; as=script")
            await send(message)

        has_charts = scope["type"] == "http" and scope["path"].rpartition("/")[2] in charts.CHART_PAGES
        await self.app(scope, receive, sent if has_charts else send)


def to_experiments(request: Request) -> RedirectResponse:
    """Redirect from the name of the page Experiments, which has the address of the dashboard itself."""
    query = f"?{request.url.query}" if request.url.query else ""
    return RedirectResponse(f"{session.base_path()}/{query}")


read_own_only()
guard.limit_header_time()
logging.getLogger("uvicorn.access").disabled = True  # addresses may hold the token, and others may read a log
ROUTES = [
    Route(f"{session.base_path()}/experiments", to_experiments),
    Route(session.base_path() + browser.PULSE, browser.answer),
    Route(session.base_path() + browser.COUNTS, browser.answer),
    Route(charts.plotly_url(), charts.plotly_js),
]
app = st.App(
    "dashboard.py",
    lifespan=announced,
    routes=ROUTES,
    middleware=[Middleware(guard.Guard), Middleware(EarlyCharts)],
)
