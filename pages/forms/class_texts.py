"""The editor of written class descriptions on the New page, with one row per class and text.

Edited texts are stored in the experiment; otherwise planning takes the data set's own texts.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import streamlit as st

from fedcore.base.errors import FedLensError
from fedcore.base.progress import counted, defer_slow_work
from fedcore.clip.specs import spoken
from fedcore.data import catalog, descriptions
from pages.forms.errors import FieldErrors
from pages.widgets import markup

NAME = "Class descriptions"
Texts = dict[str, list[str]]


def editor(data: Mapping[str, Any], errors: FieldErrors, value: Texts | None, key: str) -> Texts | None:
    """Draw the table of classes and texts, and return the texts that were edited.

    Args:
        data: the form's data part, which determines the classes and the data set's own texts.
        errors: receives files that cannot be used, and texts without a class.
        value: the texts of the experiment; None for the data set's own.
        key: prefix of the widgets' keys.

    Returns: the texts if they differ from the data set's own, else None.
    """
    name, root = data["name"], data.get("root")
    coop = data.get("split") == "coop", data.get("classes") == "coop"
    try:
        version = descriptions.version(name, root)
        classes, defaults = _classes_and_texts(
            name, root, data.get("domains"), data.get("columns") or {}, coop, version
        )
    except FedLensError as error:
        st.caption(f"Class descriptions can be edited once the data set is found: {markup.md(str(error))}")
        return value
    digest = hashlib.sha256(json.dumps([classes, defaults]).encode()).hexdigest()[:8]
    place = f"{key}.{digest}"  # each data set has a separate table
    widget = f"{place}.{st.session_state.setdefault(f'{place}.version', 0)}"
    if widget not in st.session_state:  # Streamlit discards the edits when an editor's first table changes
        edits = st.session_state.get(f"{place}.edits", value)
        st.session_state[f"{place}.start"] = defaults if edits is None else edits
    start = st.session_state[f"{place}.start"]
    edited = st.data_editor(
        _table(start, classes),
        num_rows="dynamic",
        hide_index=True,
        column_config={
            "class": st.column_config.SelectboxColumn("Class", options=list(classes), width="small"),
            "text": st.column_config.TextColumn(
                "Written description",
                help="Each run draws one text per class by its seed; a class without texts uses the prompt",
                width="large",
            ),
        },
        key=widget,
        placeholder="the prompt",
        alt="Written descriptions of the classes",
    )
    texts, stray = _texts_of_table(edited)
    edits = None if texts == defaults else texts
    st.session_state[f"{place}.edits"] = edits
    _captions(start, texts, edits is not None, classes)
    if stray:
        message = (
            f"{stray} text{'s have' if stray > 1 else ' has'} no class; choose the class, or delete the row"
        )
        errors.refuse(NAME, FedLensError(message))
    _buttons(place, texts, classes, errors)
    return edits


@st.cache_data(show_spinner=False, max_entries=16, ttl=300)
def _classes_and_texts(
    name: str,
    root: str | None,
    domains: list[str] | None,
    columns: dict[str, str],
    coop: tuple[bool, bool],
    version: str,
) -> tuple[tuple[str, ...], Texts]:
    """Return the classes of a data set and its own texts, cached until the version of the texts changes.

    Args:
        coop: whether CoOp's split and CoOp's classes are used.
    """
    with defer_slow_work():
        classes = catalog.facts(
            name, root, domains, None, columns, coop_split=coop[0], coop_classes=coop[1]
        ).classes
    return classes, _tidy(descriptions.of_classes(name, root, classes), classes)


def _tidy(texts: Mapping[str, Sequence[str]], classes: Sequence[str]) -> Texts:
    """Return the texts of these classes, in their order and spelling, with single spaces."""
    by_name = {spoken(name): [" ".join(t.split()) for t in written] for name, written in texts.items()}
    return {name: by_name[spoken(name)] for name in classes if by_name.get(spoken(name))}


def _table(texts: Mapping[str, Sequence[str]], classes: Sequence[str]) -> pd.DataFrame:
    tidy = _tidy(texts, classes)
    lines = [(name, text) for name in classes for text in tidy.get(name, [None])]
    return pd.DataFrame(lines, columns=["class", "text"]).astype("string")


def _texts_of_table(edited: pd.DataFrame) -> tuple[Texts, int]:
    """Return the texts of the table, and the number of rows that have a text but no class."""
    texts: Texts = {}
    stray = 0
    for name, text in zip(edited["class"], edited["text"], strict=True):
        words = "" if pd.isna(text) else " ".join(str(text).split())
        if words and pd.isna(name):
            stray += 1
        elif words:
            texts.setdefault(str(name), []).append(words)
    return texts, stray


def _captions(
    start: Mapping[str, Sequence[str]], texts: Texts, are_edited: bool, classes: Sequence[str]
) -> None:
    """Tell the user where the texts come from and which of them are ignored."""
    origin = "edited, stored with the experiment" if are_edited else "the data set's own"
    count = sum(map(len, texts.values()))
    st.caption(f"{counted(count, 'text')} for {len(texts)} of {counted(len(classes), 'class')} ({origin}).")
    spoken_names = {spoken(name) for name in classes}
    ignored = [name for name in start if spoken(name) not in spoken_names]
    if ignored:
        more = ", ..." if len(ignored) > 3 else ""
        names = markup.md(", ".join(ignored[:3]) + more)
        st.caption(f":material/info: Ignored because the data set has no such class: {names}")


def _buttons(place: str, texts: Texts, classes: Sequence[str], errors: FieldErrors) -> None:
    """Draw the buttons that reset the texts, save them to a file and load them from one."""
    unedited = st.session_state[f"{place}.edits"] is None
    with st.container(horizontal=True):
        st.button(
            "Reset to the data set's texts",
            key=f"{place}.reset",
            icon=":material/restart_alt:",
            disabled=unedited,
            on_click=_restart_table,
            args=(place, None),
        )
        saved = json.dumps(texts, indent=2, ensure_ascii=False) + "\n"
        markup.download("Save as descriptions.json", saved, "descriptions.json", f"{place}.save")
        with st.popover("Load from a file", icon=":material/upload:", key=f"{place}.file"):
            version = st.session_state[f"{place}.version"]
            file = st.file_uploader(
                "File like descriptions.json", type="json", key=f"{place}.upload.{version}"
            )
    if file is None:
        return
    try:
        given = descriptions.parse(file.getvalue(), file.name)
    except FedLensError as error:
        errors.refuse(NAME, error)
        return
    if not _tidy(given, classes):
        message = f"{file.name} describes none of this data set's classes; use its class names as keys"
        errors.refuse(NAME, FedLensError(message))
        return
    _restart_table(place, given)
    st.rerun()


def _restart_table(place: str, texts: Texts | None) -> None:
    """Callback: start a new table with these texts; None stands for the data set's own."""
    st.session_state[f"{place}.edits"] = texts
    st.session_state[f"{place}.version"] += 1
