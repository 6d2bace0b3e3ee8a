"""The server behind ``streamlit run app.py``: the dashboard, its guard, and the address that Live polls."""

from __future__ import annotations

import asyncio
import logging
import sys
import webbrowser
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import streamlit as st
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import RedirectResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fedcore.base.files import state_folder
from fedcore.cli.own_settings import read_own_only
from pages.guard import visitors
from pages.guard.guard import Guard, limit_header_time
from pages.widgets import ahead, plotly_chart, pulse, session

READY_SECONDS = 0.5  # from the start of the app until the server accepts connections


def address() -> str:
    """Return the address of the dashboard on this machine."""
    scheme = "https" if st.get_option("server.sslCertFile") else "http"
    return f"{scheme}://localhost:{st.get_option('server.port')}{session.base_path()}/"


def announcement(to_terminal: bool) -> str:
    """Return the addresses for the start of the output, without the token if the output is a log."""
    others = f"{address()}?token={visitors.account_token()}"
    if not to_terminal:
        others = f"{address()}?token= followed by the token in {state_folder() / visitors.TOKEN_FILE}"
    return f"\n  FedLens: {address()}\n  For other accounts and machines: {others}\n"


@asynccontextmanager
async def announced(_: st.App) -> AsyncIterator[None]:
    """Print the addresses, open the page in a browser unless headless, and load what the pages need."""
    print(announcement(sys.stdout.isatty()), flush=True)
    if not st.get_option("server.headless"):
        # only Linux tells the guard which account the browser belongs to; elsewhere it needs the token
        opened = address() if sys.platform == "linux" else f"{address()}?token={visitors.account_token()}"
        asyncio.get_running_loop().call_later(READY_SECONDS, webbrowser.open, opened)
    ahead.start()
    yield


class EarlyCharts:
    """Names plotly.js in the headers of pages with charts: browsers fetch it while the page's script runs."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=message["headers"])
                if headers.get("content-type", "").startswith("text/html"):
                    headers.append("Link", f"<{plotly_chart.plotly_url()}>; rel=preload; as=script")
            await send(message)

        charts = scope["type"] == "http" and scope["path"].rpartition("/")[2] in plotly_chart.CHART_PAGES
        await self.app(scope, receive, sent if charts else send)


def to_experiments(request: Request) -> RedirectResponse:
    """Redirect from the name of the page Experiments, which has the address of the dashboard itself."""
    query = f"?{request.url.query}" if request.url.query else ""
    return RedirectResponse(f"{session.base_path()}/{query}")


read_own_only()
limit_header_time()
logging.getLogger("uvicorn.access").disabled = True  # addresses may hold the token, and others may read a log
app = st.App(
    "dashboard.py",
    lifespan=announced,
    routes=[
        Route(f"{session.base_path()}/experiments", to_experiments),
        *pulse.routes(),
        *plotly_chart.routes(),
    ],
    middleware=[Middleware(Guard), Middleware(EarlyCharts)],
)
