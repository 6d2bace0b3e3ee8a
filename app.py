"""The server behind ``streamlit run app.py``: the dashboard, its guard, and the address that Live polls."""

from __future__ import annotations

import asyncio
import sys
import webbrowser
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import streamlit as st
from starlette.middleware import Middleware

from fedcore.files import state_folder
from pages.guard import visitors
from pages.guard.guard import Guard, limit_header_time
from pages.widgets import pulse, session

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
    """Print the addresses, and open the page in a browser unless headless."""
    print(announcement(sys.stdout.isatty()), flush=True)
    if not st.get_option("server.headless"):
        # only Linux tells the guard which account the browser belongs to; elsewhere it needs the token
        opened = address() if sys.platform == "linux" else f"{address()}?token={visitors.account_token()}"
        asyncio.get_running_loop().call_later(READY_SECONDS, webbrowser.open, opened)
    yield


limit_header_time()
app = st.App(
    "dashboard.py",
    lifespan=announced,
    routes=pulse.routes(),
    middleware=[Middleware(Guard)],
)
