"""The server behind ``streamlit run app.py``: the dashboard, its guard, and the address that Live polls."""

from __future__ import annotations

import asyncio
import sys
import webbrowser
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path

import streamlit as st
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import RedirectResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fedcore.files import state_folder
from pages.guard import visitors
from pages.guard.guard import Guard, limit_header_time
from pages.live_view import chart as live_chart
from pages.widgets import ahead, browser, pulse, session

CHART_PAGES = ("compare", "leaderboard", "new", "run")
"""Addresses of the pages that draw with ``st.plotly_chart``; Live has a plotly.js of its own."""
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


@cache
def chart_library() -> str | None:
    """Return the address of Streamlit's chart component with plotly.js; None if it has another name."""
    found = (Path(st.__file__).parent / "static" / "static" / "js").glob("PlotlyChart.*.js")
    return next((f"{session.base_path()}/static/js/{path.name}" for path in found), None)


def early_library(page: str) -> str | None:
    """Return the header with which browsers fetch a page's plotly.js at once; None if it draws no charts."""
    if page in CHART_PAGES and (library := chart_library()) is not None:
        return f"<{library}>; rel=modulepreload"
    if page == "live" and (library := live_chart.plotly_url()) is not None:
        return f"<{library}>; rel=preload; as=script"
    return None


def _is_plain(headers: MutableHeaders) -> bool:
    """Return whether a body is sent as it is, and its length is known."""
    return "content-length" in headers and "content-encoding" not in headers


class EarlyCharts:
    """Names plotly.js in the headers of pages with charts, and has it compiled as a whole.

    Browsers then fetch and compile its 4.7 MB while the page's script runs, instead of afterwards.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        of_library = scope["path"] == chart_library() and scope["method"] == "GET"

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=message["headers"])
                if headers.get("content-type", "").startswith("text/html"):
                    if link := early_library(scope["path"].rpartition("/")[2]):
                        headers.append("Link", link)
                elif of_library and message["status"] == 200 and _is_plain(headers):
                    headers["content-length"] = str(len(browser.EAGER) + int(headers["content-length"]))
                    headers["accept-ranges"] = "none"  # parts would be counted without the comment
                    await send(message)
                    message = {"type": "http.response.body", "body": browser.EAGER, "more_body": True}
            await send(message)

        await self.app(scope, receive, sent)


def to_experiments(request: Request) -> RedirectResponse:
    """Redirect from the name of the page Experiments, which has the address of the dashboard itself."""
    query = f"?{request.url.query}" if request.url.query else ""
    return RedirectResponse(f"{session.base_path()}/{query}")


limit_header_time()
app = st.App(
    "dashboard.py",
    lifespan=announced,
    routes=[Route(f"{session.base_path()}/experiments", to_experiments), *pulse.routes()],
    middleware=[Middleware(Guard), Middleware(EarlyCharts)],
)
