"""The session of a visitor: pages, database, permission to write, window, theme, and ids in the URL."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import streamlit as st

from fedcore.results.charts.theme import NARROW_PIXELS, WIDE_PIXELS, Theme
from fedcore.store import ExperimentRow, Store

ASSETS = Path(__file__).parents[1] / "assets"
VIEWPORT = "viewport"
"""Key under which the browser reports its window."""
NARROW_WINDOW = 640
"""Width in pixels up to which panels are stacked, as Streamlit stacks its columns."""
FEW = 5
WIDE_WINDOW = 1700
"""Width in pixels from which more panels are beside each other."""
COLOURS = "colour"
"""Key and parameter of the address of the colours that the reader gave to methods: ``fedot:ff8800``."""


class PageLink(NamedTuple):
    """A page as the navigation and the keyboard shortcuts name it; ``key`` follows a ``g``."""

    file: str
    title: str
    address: str
    key: str


PAGES = (
    PageLink("experiments", "Experiments", "", "e"),
    PageLink("new", "New", "new", "n"),
    PageLink("live", "Live", "live", "l"),
    PageLink("compare", "Compare", "compare", "c"),
    PageLink("leaderboard", "Leaderboard", "leaderboard", "b"),
    PageLink("papers", "Papers", "papers", "p"),
    PageLink("data", "Data & models", "data", "d"),
    PageLink("run", "Run", "run", ""),  # reached only by links
)


def pages() -> list[st.Page]:
    """Return the pages in the order of the navigation.

    They have no icons: Streamlit would use a page's icon for the tab, and fetch it from Google.
    """
    return [
        st.Page(
            f"pages/{page.file}.py",
            title=page.title,
            url_path=page.address or None,
            default=not page.address,
            visibility="visible" if page.key else "hidden",
        )
        for page in PAGES
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
    """Return the theme of charts, light or dark as the reader's."""
    given = (text.rsplit(":", 1) for text in st.session_state.get(COLOURS, ()))
    own = tuple((method, f"#{colour}") for method, colour in given)
    return Theme(dark=st.context.theme.type == "dark", own=own)


def keep_colours() -> None:
    """Take over the colours of methods in the address, or write those of the session to it."""
    asked = [t for t in st.query_params.get_all(COLOURS) if re.fullmatch(r".+:[0-9a-fA-F]{6}", t)]
    if asked:
        st.session_state[COLOURS] = asked
    elif given := st.session_state.get(COLOURS):
        st.query_params[COLOURS] = given


def set_colour(method: str, colour_key: str) -> None:
    """Callback: give a method the colour that was picked."""
    others = [t for t in st.session_state.get(COLOURS, ()) if not t.startswith(f"{method}:")]
    st.query_params[COLOURS] = [*others, f"{method}:{st.session_state[colour_key].removeprefix('#')}"]
    keep_colours()


def reset_colours() -> None:
    """Callback: return to the usual colours."""
    st.session_state.pop(COLOURS, None)
    st.query_params.pop(COLOURS, None)


def is_narrow() -> bool:
    """Return whether the window is narrow; until the browser has reported it, whether it is a telephone."""
    narrow = (st.session_state.get(VIEWPORT) or {}).get("narrow")
    return "Mobi" in (st.context.headers.get("User-Agent") or "") if narrow is None else bool(narrow)


def is_wide() -> bool:
    """Return whether the window has room for five panels beside each other."""
    return bool((st.session_state.get(VIEWPORT) or {}).get("wide"))


def figure_width() -> int:
    """Return the approximate width in pixels of a chart across the page."""
    return NARROW_PIXELS if is_narrow() else WIDE_WINDOW if is_wide() else WIDE_PIXELS


def in_a_row(panels: int) -> int:
    """Return how many of some heatmaps are beside each other, without a gap in the last row if possible."""
    if is_narrow():
        return 1
    if is_wide():
        return next((n for n in (6, 5, 4) if panels % n == 0), 5)
    return 2 if panels == 4 else 3


def choose(draw: Callable[..., Any], label: str, offered: Iterable[Any], key: str, **options: Any) -> Any:
    """Draw a choice kept in the URL, among different options or those of a mapping to their titles.

    Args:
        draw: a widget such as ``st.selectbox``.
    """
    if isinstance(offered, Mapping):
        options["format_func"] = offered.__getitem__
    return draw(label, list(dict.fromkeys(offered)), key=key, bind="query-params", **options)


def launch_order_switch() -> bool:
    """Draw the switch from methods by their results, best first, to the order of their launch."""
    about = "Without it the method with the highest mean stands first, in tables and heatmaps"
    return st.toggle("Methods as launched", key="as_launched", bind="query-params", help=about)


def ids_in_url(name: str, existing: Iterable[int], fallback: Sequence[int]) -> list[int]:
    """Return those ids in the URL that exist, else those last shown, else those of ``fallback``."""
    valid = set(existing)
    asked = [int(text) for text in st.query_params.get_all(name) if text.isdecimal()]
    asked = asked or st.session_state.get(f"last_{name}", [])
    chosen = [i for i in asked if i in valid] or [i for i in fallback if i in valid]
    remember_ids(name, chosen)
    return chosen


def experiments_in_url(name: str, offered: Iterable[int], fallback: Sequence[int]) -> list[ExperimentRow]:
    """Return those of ``ids_in_url`` that can be read, of which no others are read.

    Args:
        fallback: the first that can be read counts, if it is among the first few.
    """
    fallback = fallback[:FEW]
    texts = filter(str.isdecimal, st.query_params.get_all(name))
    wanted = [*map(int, texts), *st.session_state.get(f"last_{name}", []), *fallback]
    rows = {row.id: row for row in store().experiments.listed(ids=wanted)[0]}
    first = [number for number in fallback if number in rows][:1]
    return [rows[number] for number in ids_in_url(name, rows.keys() & set(offered), first)]


def look_at(experiment: int) -> None:
    """Let Compare open with an experiment, unless it is among those that were last compared."""
    if experiment not in st.session_state.get("last_ids", []):
        st.session_state["last_ids"] = [experiment]


def remember_ids(name: str, ids: Sequence[int]) -> None:
    """Write ids to the URL, so that it can be shared, and to the session, for a return to this page."""
    st.session_state[f"last_{name}"] = list(ids)
    if st.query_params.get_all(name) != [str(i) for i in ids]:
        st.query_params[name] = [str(i) for i in ids]
