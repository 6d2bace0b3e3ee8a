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
    """The pages in the order of the navigation; a run's page is reached by links.

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
    """First line of every page: back through dashboard.py, where the page was started without it.

    Streamlit runs the files of a folder called ``pages`` by itself until dashboard.py has called
    ``st.navigation`` once: a fresh server whose first visitor follows a link would show a page
    without navigation and database.
    """
    if "writable" not in st.session_state:
        st.navigation(pages(), position="hidden")
        st.rerun()


def style() -> None:
    """The few rules that the theme does not know."""
    st.html(STYLE)


def store() -> Store:
    """The store of this app: FEDLENS_DB, or ``runs.db`` beside app.py."""
    return Store()


def database() -> Path:
    """The path of the app's database."""
    return store().path


@st.cache_resource(ttl=20, show_spinner=False)
def _prepared(path: str, there: bool) -> Access:
    """Created and migrated; looked at again from time to time, since permissions and disks change."""
    return Store(path).prepare()


def open_database() -> bool:
    """Create or migrate the database, wake the worker if there is work; says on the page what does not go.

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
    """Light or dark, as the reader has chosen."""
    return Theme(dark=st.context.theme.type == "dark")


def md(text: str) -> str:
    """Text that Markdown shows as it is: names may hold anything."""
    return _escaped(" ".join(text.split()))


def _escaped(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", text.replace(":material/", ":\u2060material/"))  # an icon even where escaped


def esc(text: object) -> str:
    """Text that HTML shows as it is."""
    return html.escape(str(text))


def show_error(error: FedLensError, where: object = st) -> None:
    """What is wrong, where, and what to do; commands stand out, as errors write them in backticks."""
    parts = _CODE.split(" ".join(str(error).split()))
    text = "".join(part if i % 2 else _escaped(part) for i, part in enumerate(parts))
    where.error(text, icon=":material/error:")  # type: ignore[attr-defined]


def status_html(state: str) -> str:
    """A status as mark and word, in its colour."""
    symbol, light, dark = STATUS[state]
    colour = dark if theme().dark else light
    icon = f'<span aria-hidden="true">{symbol}</span>'
    return f'<span class="fl-status" style="color:{colour}">{icon} {state}</span>'


def clipped(name: str) -> str:
    """A name cut to what a cell holds: of 500 characters nobody reads the middle."""
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 13]}…{name[-12:]}"


def method_html(label: str, method: str) -> str:
    """A method's name with its colour; under the pointer the whole of a name that was cut."""
    swatch = f'<span class="fl-swatch" style="background:{theme().colour(method)}" aria-hidden="true"></span>'
    if len(label) <= LONGEST:
        return swatch + esc(label)
    return f'{swatch}<span title="{esc(label)}">{esc(clipped(label))}</span>'


def faint(text: str) -> str:
    """Text that matters less, as HTML."""
    return f'<span class="fl-faint">{esc(text)}</span>'


def machine_html() -> list[str]:
    """How busy this machine's devices are, one HTML text each."""
    found = []
    for d in devices.list_devices():
        load = "" if d.load is None else f" at {d.load:.0%}"
        found.append(faint(f"{d.name}{load}, {d.memory_used / 2**30:.1f} of {d.memory_total / 2**30:.0f} GB"))
    return found


def status_text(state: str) -> str:
    """A status as mark and word."""
    return f"{STATUS[state][0]} {state}"


def per_cent(share: float | None) -> str:
    """A share as per cent, a dash where there is none."""
    return "-" if share is None else f"{100 * share:.1f}"


def number(value: float | None, digits: int) -> str:
    """A number, a dash where there is none."""
    return "-" if value is None else f"{value:.{digits}f}"


def table_html(header: Sequence[tuple[str, str]], rows: Iterable[Sequence[str]], label: str) -> str:
    """A table. header: (title, css class) per column; cells are HTML, escaped by the caller."""
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
    """Ids that the URL names, or those last looked at, or ``fallback``; unknown ones are left out."""
    there = set(known)
    asked = [int(text) for text in st.query_params.get_all(name) if text.isdecimal()]
    asked = asked or st.session_state.get(f"last_{name}", [])
    chosen = [i for i in asked if i in there] or [i for i in fallback if i in there]
    remember_ids(name, chosen)
    return chosen


def remember_ids(name: str, ids: Sequence[int]) -> None:
    """Write ids to the URL, so that it can be shared, and keep them for the way back to this page."""
    st.session_state[f"last_{name}"] = list(ids)
    if st.query_params.get_all(name) != [str(i) for i in ids]:
        st.query_params[name] = [str(i) for i in ids]


def draw(
    chart: Chart, key: str, table: Mapping[str, Sequence[object]] | None = None, title: str = ""
) -> None:
    """A chart with its text alternative, or its numbers where the reader asked for tables.

    Args:
        title: what stands above the numbers, where it is else said within the chart alone.
    """
    if table is not None and st.session_state.get("as_tables"):
        if title:
            st.markdown(f"**{md(title)}**")
        st.dataframe(dict(table), hide_index=True, key=f"{key}_table")
        return
    apply_theme(chart.figure, theme())
    st.plotly_chart(chart.figure, key=key, alt=chart.alt, config={"displaylogo": False})


def table_switch() -> None:
    """The switch between charts and tables, one for all pages."""
    st.toggle(
        "Show as table",
        key="as_tables",
        persist_state="session",
        help="Every chart as the numbers that it is drawn from",
    )


def narrow() -> bool:
    """Whether the reader holds a telephone: panels stand below each other then."""
    return "Mobi" in (st.context.headers.get("User-Agent") or "")


def figure_width() -> int:
    """About how many pixels a figure across the page has."""
    return NARROW_PIXELS if narrow() else WIDE_PIXELS
