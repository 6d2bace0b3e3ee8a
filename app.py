"""Serve the dashboard with ``streamlit run app.py``, and the address that the Live page polls."""

from __future__ import annotations

import asyncio
import sys
import webbrowser
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import streamlit as st
from starlette.middleware import Middleware

from pages.guard import tokens
from pages.guard.guard import Guard
from pages.live_view import pulse
from pages.widgets import session

READY_SECONDS = 0.5  # until the server answers


def address() -> str:
    """Return the address of the dashboard on this machine."""
    scheme = "https" if st.get_option("server.sslCertFile") else "http"
    return f"{scheme}://localhost:{st.get_option('server.port')}{session.base_path()}/"


@asynccontextmanager
async def announced(_: st.App) -> AsyncIterator[None]:
    """Print the addresses, and open the page in a browser unless headless."""
    with_token = f"{address()}?token={tokens.account_token()}"
    print(f"\n  FedLens: {address()}\n  For other accounts and machines: {with_token}\n", flush=True)
    if not st.get_option("server.headless"):
        known = sys.platform == "linux"  # elsewhere the visitor's account cannot be looked up
        opened = address() if known else with_token
        asyncio.get_running_loop().call_later(READY_SECONDS, webbrowser.open, opened)
    yield


app = st.App(
    "dashboard.py",
    lifespan=announced,
    routes=pulse.routes(),
    middleware=[Middleware(Guard)],
)
