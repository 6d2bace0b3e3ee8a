"""Serve the dashboard with ``streamlit run app.py``, and the address that the Live page polls."""

from __future__ import annotations

import asyncio
import webbrowser
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import streamlit as st

from pages.live_view import pulse

READY_SECONDS = 0.5  # until the server answers


@asynccontextmanager
async def open_browser(_: st.App) -> AsyncIterator[None]:
    """Open the page in a browser, as ``streamlit run`` does for a plain script, unless headless."""
    if not st.get_option("server.headless"):
        address = f"http://localhost:{st.get_option('server.port')}"
        asyncio.get_running_loop().call_later(READY_SECONDS, webbrowser.open, address)
    yield


app = st.App("dashboard.py", lifespan=open_browser, routes=[pulse.route()])
