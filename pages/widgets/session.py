"""The session of a visitor: database, permission to write, theme, chart width, and ids in the URL."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import streamlit as st

from fedcore.plots.chart import NARROW_PIXELS, WIDE_PIXELS
from fedcore.plots.theme import Theme
from fedcore.store import Store
from pages.components import viewport


def pages() -> list[st.Page]:
    """Return the pages in the order of the navigation; the page Run is reached only by links.

    The pages have no icons: Streamlit would use a page's icon for the tab, and fetch it from Google.
    """
    return [
        st.Page("pages/experiments.py", title="Experiments", default=True),
        st.Page("pages/new.py", title="New", url_path="new"),
        st.Page("pages/live.py", title="Live", url_path="live"),
        st.Page("pages/compare.py", title="Compare", url_path="compare"),
        st.Page("pages/leaderboard.py", title="Leaderboard", url_path="leaderboard"),
        st.Page("pages/papers.py", title="Papers", url_path="papers"),
        st.Page("pages/data.py", title="Data & models", url_path="data"),
        st.Page("pages/run.py", title="Run", url_path="run", visibility="hidden"),
    ]


def through_app() -> None:
    """Rerun the page through dashboard.py if it was started without it; every page calls this first.

    Until dashboard.py has called ``st.navigation`` once, Streamlit itself runs the files of a folder named
    ``pages``. If the first visitor of a new server follows a link to a page, that page would otherwise run
    without navigation and database.
    """
    if "writable" not in st.session_state:
        st.navigation(pages(), position="hidden")
        st.rerun()


def base_path() -> str:
    """Return the path below which the server is configured to serve everything: "" or "/fedlens"."""
    path = (st.get_option("server.baseUrlPath") or "").strip("/")
    return f"/{path}" if path else ""


def link(page: str, number: int) -> str:
    """Return the address of a page with an id, for a link in HTML."""
    return f"{base_path()}/{page}?id={number}"


def store() -> Store:
    """Return the store of this app: FEDLENS_DB, or ``runs.db`` beside app.py."""
    return Store()


def writable() -> bool:
    """Return whether runs can be started and changed, that is, whether the database can be written."""
    return bool(st.session_state.get("writable"))


def theme() -> Theme:
    """Return the theme that the reader has chosen, light or dark."""
    return Theme(dark=viewport.is_dark())


def figure_width() -> int:
    """Return the approximate width in pixels of a chart across the page."""
    return NARROW_PIXELS if viewport.is_narrow() else WIDE_PIXELS


def ids_in_url(name: str, existing: Iterable[int], fallback: Sequence[int]) -> list[int]:
    """Return those ids in the URL that exist, else those last shown, else those of ``fallback``."""
    valid = set(existing)
    asked = [int(text) for text in st.query_params.get_all(name) if text.isdecimal()]
    asked = asked or st.session_state.get(f"last_{name}", [])
    chosen = [i for i in asked if i in valid] or [i for i in fallback if i in valid]
    remember_ids(name, chosen)
    return chosen


def remember_ids(name: str, ids: Sequence[int]) -> None:
    """Write ids to the URL, so that it can be shared, and to the session, for a return to this page."""
    st.session_state[f"last_{name}"] = list(ids)
    if st.query_params.get_all(name) != [str(i) for i in ids]:
        st.query_params[name] = [str(i) for i in ids]
