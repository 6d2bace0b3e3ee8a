"""The database, the theme, user text shown as text, ids in the URL, and charts that can also be read."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import streamlit as st

from fedcore import jobs
from fedcore.errors import FedLensError
from fedcore.jobs import devices
from fedcore.plots.chart import NARROW_PIXELS, WIDE_PIXELS, Chart
from fedcore.plots.theme import STATUS, Theme, apply_theme
from fedcore.store import Access, Store

STYLE = Path(__file__).with_name("style.css")
LONGEST = 80
"""Characters of a method's name in a cell."""
_SPECIAL = re.compile(r"([\\`*_{}\[\]()#+\-.!|~$<>:^&=])")
_CODE = re.compile(r"(`[^`]+`)")


def pages() -> list[st.Page]:
    """Return the pages in the order of the navigation; the page Run is reached by links only.

    Without icons: Streamlit makes a page's icon the tab's, which the browser fetches from Google.
    """
    return [
        st.Page("pages/experiments.py", title="Experiments", default=True),
        st.Page("pages/new.py", title="New", url_path="new"),
        st.Page("pages/live.py", title="Live", url_path="live"),
        st.Page("pages/compare.py", title="Compare", url_path="compare"),
        st.Page("pages/data.py", title="Data & models", url_path="data"),
        st.Page("pages/run.py", title="Run", url_path="run", visibility="hidden"),
    ]


def through_app() -> None:
    """Rerun the page through dashboard.py if it was started without it; every page calls this first.

    Streamlit runs the files of a folder called ``pages`` by itself until dashboard.py has called
    ``st.navigation`` once: a fresh server whose first visitor follows a link would show a page
    without navigation and database.
    """
    if "writable" not in st.session_state:
        st.navigation(pages(), position="hidden")
        st.rerun()


def style() -> None:
    """Apply the style rules that Streamlit's theme does not cover."""
    st.html(STYLE)


def store() -> Store:
    """Return the store of this app: FEDLENS_DB, or ``runs.db`` beside app.py."""
    return Store()


def database() -> Path:
    """Return the path of the app's database."""
    return store().path


@st.cache_resource(ttl=20, show_spinner=False)
def _prepared(path: str, there: bool) -> Access:
    """Create or migrate the database; repeated from time to time, since permissions and disks change."""
    return Store(path).prepare()


def open_database() -> bool:
    """Prepare the database and start the worker if runs are queued; problems are shown on the page.

    Returns: whether there is a database that pages can read.
    """
    opened = store()
    try:
        access = _prepared(str(opened.path), opened.path.exists())
        if access.writable:
            jobs.ensure_worker(opened)
            opened.jobs.reconcile()
        else:
            st.warning(md(access.why or ""), icon=":material/lock:")
    except FedLensError as error:
        show_error(error)
        return False
    st.session_state["writable"] = access.writable
    return True


def writable() -> bool:
    """Whether runs can be started and changed here."""
    return bool(st.session_state.get("writable"))


def theme() -> Theme:
    """Return the theme that the reader has chosen, light or dark."""
    return Theme(dark=st.context.theme.type == "dark")


def md(text: str) -> str:
    """Escape text for Markdown; names may hold anything."""
    return _escaped(" ".join(text.split()))


def _escaped(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", text.replace(":material/", ":\u2060material/"))  # an icon even where escaped


def esc(text: object) -> str:
    """Escape text for HTML."""
    return html.escape(str(text))


def show_error(error: FedLensError, where: object = st) -> None:
    """Show an error on the page; commands, which errors write in backticks, stand out."""
    parts = _CODE.split(" ".join(str(error).split()))
    text = "".join(part if i % 2 else _escaped(part) for i, part in enumerate(parts))
    where.error(text, icon=":material/error:")  # type: ignore[attr-defined]


def status_html(state: str) -> str:
    """Return a status as symbol and word in its colour, as HTML."""
    symbol, light, dark = STATUS[state]
    colour = dark if theme().dark else light
    icon = f'<span aria-hidden="true">{symbol}</span>'
    return f'<span class="fl-status" style="color:{colour}">{icon} {state}</span>'


def clipped(name: str) -> str:
    """Cut the middle out of a name that is too long for a cell."""
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 13]}…{name[-12:]}"


def method_html(label: str, method: str) -> str:
    """Return a method's name with its colour as HTML; hovering over a cut name shows all of it."""
    swatch = f'<span class="fl-swatch" style="background:{theme().colour(method)}" aria-hidden="true"></span>'
    if len(label) <= LONGEST:
        return swatch + esc(label)
    return f'{swatch}<span title="{esc(label)}">{esc(clipped(label))}</span>'


def faint(text: str) -> str:
    """Return less important text as HTML."""
    return f'<span class="fl-faint">{esc(text)}</span>'


def machine_html() -> list[str]:
    """Return the load and memory of each device of this machine as HTML."""
    found = []
    for d in devices.list_devices():
        load = "" if d.load is None else f" at {d.load:.0%}"
        found.append(faint(f"{d.name}{load}, {d.memory_used / 2**30:.1f} of {d.memory_total / 2**30:.0f} GB"))
    return found


def status_text(state: str) -> str:
    """Return a status as symbol and word."""
    return f"{STATUS[state][0]} {state}"


def per_cent(share: float | None) -> str:
    """Format a share as per cent, or a dash if there is none."""
    return "-" if share is None else f"{100 * share:.1f}"


def number(value: float | None, digits: int) -> str:
    """Format a number, or a dash if there is none."""
    return "-" if value is None else f"{value:.{digits}f}"


def table_html(header: Sequence[tuple[str, str]], rows: Iterable[Sequence[str]], label: str) -> str:
    """Return a table. header: (title, css class) per column; cells are HTML, escaped by the caller."""
    head = "".join(
        f'<th scope="col" class="{css}">{esc(title)}</th>' if title else f'<td class="{css}"></td>'
        for title, css in header
    )
    body = "".join(
        "<tr>"
        + "".join(f'<td class="{css}">{cell}</td>' for cell, (_, css) in zip(row, header, strict=True))
        + "</tr>"
        for row in rows
    )
    table = f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    return (
        f'<div class="fl-scroll" tabindex="0" role="region" aria-label="{esc(label)}">'
        f'<table class="fl-table" aria-label="{esc(label)}">{table}</table></div>'
    )


def ids_in_url(name: str, known: Iterable[int], fallback: Sequence[int]) -> list[int]:
    """Return the known ids that the URL names, else those last shown, else ``fallback``."""
    there = set(known)
    asked = [int(text) for text in st.query_params.get_all(name) if text.isdecimal()]
    asked = asked or st.session_state.get(f"last_{name}", [])
    chosen = [i for i in asked if i in there] or [i for i in fallback if i in there]
    remember_ids(name, chosen)
    return chosen


def remember_ids(name: str, ids: Sequence[int]) -> None:
    """Write ids to the URL, so that it can be shared, and keep them for a return to this page."""
    st.session_state[f"last_{name}"] = list(ids)
    if st.query_params.get_all(name) != [str(i) for i in ids]:
        st.query_params[name] = [str(i) for i in ids]


def draw(
    chart: Chart, key: str, table: Mapping[str, Sequence[object]] | None = None, title: str = ""
) -> None:
    """Draw a chart with its text alternative, or its numbers if the reader has chosen tables.

    Args:
        title: shown above the numbers, for charts whose title is inside the chart.
    """
    if table is not None and st.session_state.get("as_tables"):
        if title:
            st.markdown(f"**{md(title)}**")
        st.dataframe(dict(table), hide_index=True, key=f"{key}_table")
        return
    apply_theme(chart.figure, theme())
    st.plotly_chart(chart.figure, key=key, alt=chart.alt, config={"displaylogo": False})


def table_switch() -> None:
    """Draw the switch between charts and tables, one for all pages."""
    st.toggle(
        "Show as table",
        key="as_tables",
        persist_state="session",
        help="Shows the numbers behind every chart",
    )


def narrow() -> bool:
    """Whether the reader uses a telephone; panels then stand below each other."""
    return "Mobi" in (st.context.headers.get("User-Agent") or "")


def figure_width() -> int:
    """Return the approximate width in pixels of a chart across the page."""
    return NARROW_PIXELS if narrow() else WIDE_PIXELS
