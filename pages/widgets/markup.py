"""Escaping of users' text, and what pages share: errors, dialogs, pieces of HTML, and the marks of runs."""

import html
import mimetypes
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any, ParamSpec

import streamlit as st
from streamlit.elements.lib.mutable_expander_container import ExpanderContainer

from fedcore.base import devices
from fedcore.base.errors import FedLensError, lacks_room
from fedcore.results.charts.theme import STATUS, rounds_as_python
from fedcore.store import ExperimentRow, RunRow
from pages.widgets import session

Arguments = ParamSpec("Arguments")
LONGEST = 80
"""Characters of a method's name in a cell."""
MAX_NOTES = 10_000
"""Characters of the notes of a run or an experiment."""
STAR = "★"
UNDO, UNDO_SECONDS = "undo_offer", 60
MARKS_EDITOR = "marks_editor"
_SPECIAL = re.compile(r"([\\`*_{}\[\]()#+\-.!|~$<>:^&=])")
_DRAWN = re.compile(r"(?<=:)(?=//|material/)|(?<=www)(?=\.)|(?<=@)(?=[-\w]+\.[-\w])", re.IGNORECASE)
_CODE = re.compile(r"(`[^`]+`)")


def download(
    label: str,
    content: bytes | str | Callable[[], bytes | str],
    name: str,
    key: str | None = None,
    icon: str = ":material/download:",
    **options: Any,
) -> None:
    """Draw the button that saves a file, for which the page is not drawn again."""
    mime, _ = mimetypes.guess_type(name)
    st.download_button(label, content, name, mime=mime, on_click="ignore", icon=icon, key=key, **options)


def write_button(
    label: str, icon: str, key: str | None = None, possible: bool = True, where: Any = st, **options: Any
) -> bool:
    """Draw a button that changes the database, which is disabled while that can only be read."""
    disabled = not possible or not session.writable()
    pressed: bool = where.button(label, key, icon=f":material/{icon}:", disabled=disabled, **options)
    return pressed


def opened(label: str, icon: str, key: str, **options: Any) -> ExpanderContainer | None:
    """Draw a box (``st.expander``) whose content is drawn while it is open; None while it is closed."""
    box = st.expander(label, icon=f":material/{icon}:", key=key, on_change="rerun", **options)
    return box if box.open else None


def md(text: str) -> str:
    """Escape text for Markdown, since names may contain anything."""
    return _escaped(" ".join(text.split()))


def _escaped(text: str) -> str:
    # word joiners, since Streamlit draws an icon, and links an address, even if its characters are escaped
    return _SPECIAL.sub(r"\\\1", _DRAWN.sub("\u2060", text))


def md_with_code(text: str) -> str:
    """Escape text for Markdown, except for commands in backticks, which are shown as code."""
    parts = _CODE.split(" ".join(text.split()))
    return "".join(part if i % 2 else _escaped(part) for i, part in enumerate(parts))


def esc(text: object) -> str:
    """Escape text for HTML."""
    return html.escape(str(text))


def sentence(text: str) -> str:
    """Return a text that begins with a capital letter, unless its first word is a name, a path or code."""
    first = text.split(maxsplit=1)[0] if text.strip() else ""
    plain = first.isalpha() and first.islower() and first.isascii()
    return text[:1].upper() + text[1:] if plain else text


def show_error(error: FedLensError, where: object = st) -> None:
    """Show an error on the page, with commands, which errors put in backticks, as code."""
    where.error(md_with_code(sentence(str(error))), icon=":material/error:")  # type: ignore[attr-defined]


@contextmanager
def errors_shown() -> Iterator[None]:
    """Show a ``FedLensError`` of the block on the page, and go on behind the block."""
    try:
        yield
    except FedLensError as error:
        show_error(error)


def confirmed(action: str, key: str) -> bool:
    """Draw the buttons that confirm or cancel a dialog, and return whether the action was confirmed."""
    with st.container(horizontal=True):
        sure = st.button(action, type="primary", key=f"{key}_confirmed")
        if st.button("Cancel", key=f"{key}_cancelled"):
            st.rerun()
    return sure


def offer_undo(text: str, undo: Callable[[], object]) -> None:
    """Offer to undo what was just done, in place of a toast; ``undo_bar`` draws it."""
    st.session_state[UNDO] = time.monotonic(), text, undo


def undo_bar() -> None:
    """Say what was done last, with a button that undoes it, for a minute."""
    began, text, undo = st.session_state.get(UNDO, (-UNDO_SECONDS, "", None))
    if time.monotonic() - began < UNDO_SECONDS:
        with st.container(horizontal=True, vertical_alignment="center"):
            st.caption(f"{md(text)}.", width="content")
            if st.button("Undo", key="undo", type="tertiary", icon=":material/undo:"):
                del st.session_state[UNDO]
                undo()
                st.rerun()


def show_finding(texts: Sequence[str]) -> None:
    """Show what was found, in words, the same way on every page; the texts are Markdown."""
    if texts:
        st.info("  \n".join(texts), icon=":material/lightbulb:")


def fragment(
    function: Callable[Arguments, None] | None = None, run_every: float | None = None
) -> Callable[..., Any]:
    """Make a fragment (``st.fragment``) that shows a ``FedLensError`` as a message instead of a traceback."""
    if function is None:
        return partial(fragment, run_every=run_every)
    return st.fragment(_with_errors_shown(function), run_every=run_every)


def dialog(title: str, **options: Any) -> Callable[[Callable[Arguments, None]], Callable[Arguments, None]]:
    """Make a dialog (``st.dialog``) that shows a ``FedLensError`` as a message instead of a traceback."""

    def made(function: Callable[Arguments, None]) -> Callable[Arguments, None]:
        return st.dialog(title, **options)(_with_errors_shown(function))

    return made


def _with_errors_shown(function: Callable[Arguments, None]) -> Callable[Arguments, None]:
    @wraps(function)
    def told(*args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
        with errors_shown(), session.store().one_connection():
            function(*args, **kwargs)

    return told


def status_html(state: str) -> str:
    """Return a status as symbol and word in its colour, as HTML."""
    symbol, light, dark = STATUS[state]
    colour = dark if session.theme().dark else light
    icon = f'<span aria-hidden="true">{symbol}</span>'
    return f'<span class="fl-status" style="color:{colour}">{icon} {state}</span>'


def clipped(name: str) -> str:
    """Shorten a name that is too long for a cell, in its middle."""
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 13]}…{name[-12:]}"


def method_html(label: str, method: str) -> str:
    """Return a method's name with its colour as HTML; hovering shows a shortened name in full."""
    colour = session.theme().colour(method)
    swatch = f'<span class="fl-swatch" style="background:{colour}" aria-hidden="true"></span>'
    if len(label) <= LONGEST:
        return swatch + esc(label)
    return f'{swatch}<span title="{esc(label)}">{esc(clipped(label))}</span>'


def run_link(run: int, content: str | None = None) -> str:
    """Return a link to a run's page as HTML; ``content`` is HTML, by default the run's number."""
    return f'<a href="{session.link("run", run)}" target="_self">{content or run}</a>'


def faint(text: str) -> str:
    """Return less important text as HTML."""
    return f'<span class="fl-faint">{esc(text)}</span>'


def machine_html() -> list[str]:
    """Return the load and memory of this machine's devices as HTML, and whether its disk is almost full."""
    parts = []
    for d in devices.list_devices():
        load = "" if d.load is None else f" at {100 * d.load:.0f} %"
        parts.append(faint(f"{d.name}{load}, {d.memory_used / 1e9:.1f} of {d.memory_total / 1e9:.0f} GB"))
    folder = session.store().path.parent
    if lacks_room(folder):  # the supervisor starts nothing, and can record nothing
        full = f"The disk that holds {folder} is almost full: no run starts until there is space"
        parts.append(f"<b>{esc(full)}</b>")
    return parts


def seed_text(seed: int, held_out: str | None) -> str:
    """Return the name of a seed, and of the domain that its runs held out, if any."""
    return f"seed {seed}" + (f", without {held_out}" if held_out else "")


def rounded_alike(value: float | None, digits: int) -> float | None:
    """Return a number that a column of the browser (``format="%.1f"``) rounds as this file's texts do."""
    return None if value is None else float(rounds_as_python([value], digits)[0])


def per_cent(share: float | None) -> str:
    """Format a share as per cent, or None as a dash."""
    return "-" if share is None else f"{100 * share:.1f}"


def number(value: float | None, digits: int) -> str:
    """Format a number, or None as a dash."""
    return "-" if value is None else f"{value:.{digits}f}"


def table(columns: Mapping[str, Sequence[object]], label: str) -> None:
    """Draw a table of Markdown cells, which the caller has escaped; screen readers read its label."""
    st.table(columns, border="horizontal", hide_index=True, hide_header=False, alt=label)


def table_html(header: Sequence[tuple[str, str]], rows: Iterable[Sequence[str]], label: str) -> str:
    """Return a table as HTML, for cells that need more than Markdown: links in this tab, bars, hover texts.

    Args:
        header: title and CSS class of each column.
        rows: cells as HTML, which the caller has escaped.
    """
    head = "".join(
        f'<th scope="col" class="{css}">{esc(title)}</th>' if title else f'<td class="{css}"></td>'
        for title, css in header
    )
    body = ""
    for row in rows:
        cells = (f'<td class="{css}">{cell}</td>' for cell, (_, css) in zip(row, header, strict=True))
        body += f"<tr>{''.join(cells)}</tr>"
    return scrolled_table(f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>", label)


def scrolled_table(content: str, label: str, css: str = "fl-scroll", table_css: str = "fl-table") -> str:
    """Return the rows of a table as HTML that can be scrolled sideways, with the keyboard too."""
    return (
        f'<div class="{css}" tabindex="0" role="region" aria-label="{esc(label)}">'
        f'<table class="{table_css}" aria-label="{esc(label)}">{content}</table></div>'
    )


def unfolding(content: str, lines: Sequence[str]) -> str:
    """Return a cell as HTML that unfolds into further lines."""
    below = "<br>".join(lines)
    return f'<details class="fl-cell"><summary>{content}</summary><small>{below}</small></details>'


def marks_html(run: RunRow) -> str:
    """Return a run's star, tags and notes as HTML, the notes as hover text; empty without any."""
    parts = [f'<span aria-label="starred">{STAR}</span>'] if run.starred else []
    parts += [esc(tag) for tag in run.tags]
    parts += [f'<span title="{esc(run.notes)}">note</span>'] if run.notes else []
    return ", ".join(parts)


def tags_and_notes(row: RunRow | ExperimentRow, key: str) -> dict[str, Any]:
    """Draw the fields of the tags and notes of a run or an experiment, and return their values by name."""
    own = list(row.tags)
    tags = st.multiselect("Tags", own, own, accept_new_options=True, key=f"{key}_tags_{row.id}")
    notes = st.text_area("Notes", value=row.notes, max_chars=MAX_NOTES, key=f"{key}_notes_{row.id}")
    return {"tags": tags, "notes": notes}


@dialog("Star, tags and notes")
def edit_marks(run: RunRow) -> None:
    """Edit the marks of one run; its results cannot be edited."""
    starred = st.toggle("Star", value=run.starred, key=f"mark_star_{run.id}")
    given = tags_and_notes(run, "mark")
    if st.button("Save", type="primary", key="marks_saved"):
        session.store().runs.mark([run.id], starred=starred, **given)
        st.rerun()


def marks_editor(runs: Sequence[RunRow]) -> None:
    """Draw a table in which the marks of runs are edited; changes are stored at once."""
    used_tags, column = sorted({tag for run in runs for tag in run.tags}), st.column_config
    rows: dict[str, list[Any]] = {
        "Star": [r.starred for r in runs],
        "Run": [r.id for r in runs],
        "Method": [r.label for r in runs],
        "Seed": [r.seed for r in runs],
        "Tags": [list(r.tags) for r in runs],
        "Notes": [r.notes for r in runs],
    }
    st.data_editor(
        rows,
        key=MARKS_EDITOR,
        hide_index=True,
        disabled=True if not session.writable() else ["Run", "Method", "Seed"],
        column_config={
            "Star": column.CheckboxColumn(width="small"),
            "Tags": column.MultiselectColumn(options=used_tags, accept_new_options=True),
            "Notes": column.TextColumn(width="large", max_chars=MAX_NOTES),
        },
        on_change=_store_marks,
        args=([r.id for r in runs],),
    )


def _store_marks(ids: Sequence[int]) -> None:
    """Callback: store the marks that were edited in the table of these runs."""
    names = {"Star": "starred", "Tags": "tags", "Notes": "notes"}
    try:
        for row, cells in st.session_state[MARKS_EDITOR]["edited_rows"].items():
            given = {names[name]: value for name, value in cells.items() if value is not None}
            session.store().runs.mark([ids[int(row)]], **given)
    except FedLensError as error:
        st.toast(md(str(error)), icon=":material/error:")
