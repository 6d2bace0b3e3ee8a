"""The editor of written class descriptions on the New page: a line per class and text.

What is edited goes into the experiment; untouched, the data set's own texts are taken when it is planned.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import streamlit as st

from fedcore.clip.prompts import spoken
from fedcore.data import catalog
from fedcore.data.slow_work import defer_slow_work
from fedcore.errors import FedLensError
from pages.widgets import common

Texts = dict[str, list[str]]


def editor(data: Mapping[str, Any], value: Texts | None, key: str) -> Texts | None:
    """A table of classes and texts.

    Args:
        data: the form's data part: which classes there are, and how they are described of old.
        value: what the experiment brings; None for the data set's own.
        key: prefix of the widgets' keys.

    Returns: the texts where they differ from the data set's own, else None.
    """
    try:
        classes, own = _known(data)
    except FedLensError as error:
        st.caption(f"Class descriptions can be edited once the data set is found: {common.md(str(error))}")
        return value
    place = f"{key}.{_digest([list(classes), own])}"  # another data set has a table of its own
    version = st.session_state.setdefault(f"{place}.version", 0)
    widget = f"{place}.{version}"
    if widget not in st.session_state:  # the first table must stay as it is while it is edited
        kept = st.session_state.get(f"{place}.kept", value)
        st.session_state[f"{place}.start"] = own if kept is None else kept
    start = st.session_state[f"{place}.start"]
    edited = st.data_editor(
        _table(start, classes),
        num_rows="dynamic",
        hide_index=True,
        column_config={
            "class": st.column_config.SelectboxColumn("Class", options=list(classes), width="small"),
            "text": st.column_config.TextColumn("Written description", width="large"),
        },
        key=widget,
        placeholder="the prompt",
        alt="Written descriptions of the classes",
    )
    texts, stray = _read(edited)
    found = None if texts == own else texts
    st.session_state[f"{place}.kept"] = found
    _say(start, texts, own, classes, stray)
    _buttons(place, texts, classes)
    return found


def _known(data: Mapping[str, Any]) -> tuple[tuple[str, ...], Texts]:
    """Classes of the form's data set, and its own texts of them.

    Raises:
        FedLensError: when the data set is not there, or its descriptions are not readable.
    """
    name, root = str(data["name"]), data.get("root")
    domains, columns = data.get("domains"), data.get("columns")
    token = catalog.descriptions_version(name, root)
    return _read_known(name, root, tuple(domains) if domains else None, tuple((columns or {}).items()), token)


@st.cache_data(show_spinner=False, max_entries=16, ttl=300)
def _read_known(
    name: str,
    root: str | None,
    domains: tuple[str, ...] | None,
    columns: tuple[tuple[str, str], ...],
    token: str,
) -> tuple[tuple[str, ...], Texts]:
    """Read again when the texts have changed. token: tells so."""
    with defer_slow_work():
        classes = catalog.facts(name, root, domains, None, dict(columns)).classes
    return classes, _tidy(catalog.descriptions_of(name, root, classes), classes)


def _tidy(texts: Mapping[str, Sequence[str]], classes: Sequence[str]) -> Texts:
    """Texts with single spaces, of these classes alone and in their order and spelling."""
    by_name = {spoken(name): [" ".join(t.split()) for t in written] for name, written in texts.items()}
    return {name: by_name[spoken(name)] for name in classes if by_name.get(spoken(name))}


def _table(texts: Mapping[str, Sequence[str]], classes: Sequence[str]) -> pd.DataFrame:
    """A line per text; one without for a class that has none."""
    tidy = _tidy(texts, classes)
    lines = [(name, text) for name in classes for text in tidy.get(name, [None])]
    return pd.DataFrame(lines, columns=["class", "text"]).astype("string")


def _read(edited: pd.DataFrame) -> tuple[Texts, int]:
    """The texts of the table, and how many lines have a text but no class."""
    found: Texts = {}
    stray = 0
    for name, text in zip(edited["class"], edited["text"], strict=True):
        words = "" if pd.isna(text) else " ".join(str(text).split())
        if words and pd.isna(name):
            stray += 1
        elif words:
            found.setdefault(str(name), []).append(words)
    return found, stray


def _say(
    start: Mapping[str, Sequence[str]], texts: Texts, own: Texts, classes: Sequence[str], stray: int
) -> None:
    """Whose texts these are, and what of them is not used."""
    whose = "the data set's own" if texts == own else "edited, stored with the experiment"
    st.caption(
        f"{sum(map(len, texts.values()))} texts for {len(texts)} of {len(classes)} classes ({whose}). "
        "Each run draws one per class by its seed; a class without texts uses the prompt."
    )
    known = {spoken(name) for name in classes}
    lost = [name for name in start if spoken(name) not in known]
    if lost:
        more = ", ..." if len(lost) > 3 else ""
        names = common.md(", ".join(lost[:3]) + more)
        st.caption(f":material/info: Ignored because the data set has no such class: {names}")
    if stray:
        st.caption(
            f":material/info: {stray} text{'s' * (stray != 1)} without a class ignored; choose the class"
        )


def _buttons(place: str, texts: Texts, classes: Sequence[str]) -> None:
    """Back to the data set's texts; from and to a file."""
    unedited = st.session_state[f"{place}.kept"] is None
    with st.container(horizontal=True):
        st.button(
            "Reset to the data set's texts", key=f"{place}.reset", icon=":material/restart_alt:",
            disabled=unedited, on_click=_begin_with, args=(place, None),
        )  # fmt: skip
        st.download_button(
            "Save as descriptions.json", json.dumps(texts, indent=2, ensure_ascii=False) + "\n",
            "descriptions.json", on_click="ignore", icon=":material/download:", key=f"{place}.save",
        )  # fmt: skip
        with st.popover("Load from a file", icon=":material/upload:", key=f"{place}.file"):
            version = st.session_state[f"{place}.version"]
            file = st.file_uploader(
                "File like descriptions.json", type="json", key=f"{place}.upload.{version}"
            )
    if file is None:
        return
    try:
        given = catalog.read_descriptions(file.getvalue(), file.name)
    except FedLensError as error:
        common.show_error(error)
        return
    if not _tidy(given, classes):
        common.show_error(
            FedLensError(
                f"{file.name} describes none of this data set's classes; use its class names as keys"
            )
        )
        return
    _begin_with(place, given)
    st.rerun()


def _begin_with(place: str, texts: Texts | None) -> None:
    """Make the table anew. texts: what it begins with; None for the data set's own."""
    st.session_state[f"{place}.kept"] = texts
    st.session_state[f"{place}.version"] += 1


def _digest(content: object) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:8]
