"""The methods of the New page: their choice, hyper-parameters and class texts, and one table of them all."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import pandas as pd
import streamlit as st

from fedcore.base import consent
from fedcore.base.errors import FedLensError
from fedcore.base.files import ASSETS, PROJECT
from fedcore.base.progress import counted, defer_slow_work, first_few
from fedcore.clip.specs import spoken
from fedcore.config.field_names import field_phrase, field_title, value_text
from fedcore.data import catalog, descriptions
from fedcore.methods import registry
from fedcore.methods.base import Method
from fedcore.methods.hyperparameters import MethodConfig
from pages.forms import drafts, inputs
from pages.forms.drafts import MethodDraft
from pages.forms.inputs import FieldErrors
from pages.widgets import markup

SHARED = ("optimiser", "lr", "batch_size", "local_epochs", "weight_decay")
"""Columns of the table: fields of nearly every method, which a comparison must agree on or explain."""
OWN_FIELDS = 2
"""Further fields of a method that the table names, besides those that were changed."""
FEW, HEIGHT, NAME_WIDTH = 10, 440, 170
"""Methods that are listed in full, and the pixels in which more are scrolled; those of a name."""
CLASS_TEXTS = "Class descriptions"
Texts = dict[str, list[str]]
GUIDES = PROJECT / "docs" / "methods"
_HEAD = re.compile(r"\A# [^\n]+\n+Name: `[\w-]+`\.\n")
_GENERATED = re.compile(r"<!-- (?:idea|fields): .*?<!-- end -->\n*|<!-- [^\n]*? -->\n", re.DOTALL)
"""Blocks that repeat the form beside the text, and the marks of others."""
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")


@cache
def guide(method: str) -> str:
    """Return the equations and readings of a method as Markdown; empty if it has no installed page."""
    try:
        page = (GUIDES / f"{method}.md").read_text(encoding="utf-8")
    except OSError:
        return ""
    head = _HEAD.match(page)
    return _LINK.sub(r"\1", _GENERATED.sub("", page[head.end() :])).strip() if head else ""


def method_fields(data: Mapping[str, object], key: str, errors: FieldErrors) -> list[dict[str, object]]:
    """Draw the choice of methods, and a table of them whose rows open their hyper-parameters."""
    methods, entries = drafts.available_methods(), drafts.form().methods
    st.multiselect(
        "Methods",
        list(methods),
        format_func=lambda n: methods[n].about.title,
        key=f"{key}.choice",
        default=list(dict.fromkeys(e.name for e in entries if e.name in methods)),
        on_change=drafts.sync_methods,
        args=(f"{key}.choice",),
        label_visibility="collapsed",
        wrap=len(entries) <= FEW,
    )
    errors.place("methods")
    trained = next(
        (e.name for e in entries if e.name in methods and "lr" in methods[e.name].Config.model_fields), ""
    )
    with st.container(key="new_methods", gap=None, height="content" if len(entries) <= FEW else HEIGHT):
        titles = [field_title(f"methods.{trained}.{name}") for name in SHARED]
        st.html(_cells(["Method", *titles, "Method-specific"], "fl-hyper fl-head"))
        for i, entry in enumerate(entries):
            if entry.name in methods:
                _method(entry, methods[entry.name], data, f"{key}.{entry.uid}", errors)
            errors.place(f"methods.{i}" if entry.name in methods else f"methods.{i}.name")
    with st.container(horizontal=True, vertical_alignment="center"):
        st.caption("Click a name to set its hyper-parameters; \\* differs from the paper.", width="content")
        add_file()
    unchanged = registry.unchanged_by_tf32("arithmetic")
    if plain := [e for e in entries if e.name in unchanged and e.config.get("arithmetic", "fp32") == "fp32"]:
        named = first_few([e.label or registry.title(e.name) for e in plain], 4)
        inputs.offer_tf32(f"train {named}", f"{key}.train_tf32", drafts.train_in_tf32, plain)
    return [entry.content() for entry in entries]


def _method(
    entry: MethodDraft, method: type[Method], data: Mapping[str, object], key: str, errors: FieldErrors
) -> None:
    """Draw a row of the table, and below it the method's form if it is open."""
    row = st.container(
        horizontal=True, wrap=False, vertical_alignment="center", gap="xsmall"
    )  # drawn after the form
    if entry.opened:  # a closed form is not drawn: the browser takes a second for 100 widgets
        with st.container(border=True):
            _method_form(entry, method, data, f"{key}.{entry.version}", errors)
    row.button(
        markup.md(markup.clipped(entry.label or method.about.title)),
        key=f"{key}.open",
        on_click=drafts.toggle,
        args=(entry,),
        type="tertiary",
        icon=f":material/{'expand_more' if entry.opened else 'chevron_right'}:",
        width=NAME_WIDTH,
    )
    row.html(_cells(_row(entry, method), "fl-hyper"))


def _cells(cells: Sequence[str], css: str) -> str:
    """Return the cells of a row as HTML, of which the first is the name in the head only."""
    return f'<div class="{css}">{"".join(f"<span>{cell}</span>" for cell in cells)}</div>'


def add_file() -> None:
    """Draw the field that adds the methods of the user's own file, once the user has agreed to run it."""
    with st.popover("Add a method file…", icon=":material/note_add:", key="method_file", type="tertiary"):
        file = st.text_input(
            "Python file on this machine",
            key="method_file_path",
            placeholder="/home/me/my_method.py",
            help="With a class under @method; docs/own-method.md has an example.",
        ).strip()
        if not file:
            return
        try:
            names = registry.load_agreed(file)
        except consent.NotAgreed as error:
            ask_to_run_file(error, "file_to_add")
        except FedLensError as error:
            markup.show_error(error)
        else:
            titles = ", ".join(map(registry.title, names))
            st.button(
                f"Add {markup.md(titles)}", on_click=drafts.add, args=(names, file), icon=":material/add:"
            )


def _method_form(
    entry: MethodDraft, method: type[Method], data: Mapping[str, object], key: str, errors: FieldErrors
) -> None:
    """Draw a method's name and hyper-parameters, and keep the typed values in ``entry``."""
    st.caption(f"{markup.md(method.about.summary)} {markup.md(method.about.source)}.")
    text = guide(entry.name)
    if text:
        more = st.popover(
            "Equations and notes on the paper",
            icon=":material/menu_book:",
            width="content",
            key=f"{key}.guide",
            on_change="rerun",
        )
        if more.open:
            more.markdown(text)
    label = st.text_input(
        "Name in tables", value=entry.label or "", placeholder=method.about.title, key=f"{key}.label"
    )
    entry.label = label.strip() or None
    editor = partial(text_editor, data, errors)
    entry.config = inputs.config_form(method.Config, entry.config, key, editor, f"methods.{entry.name}")
    buttons = [
        ("Reset to the paper's values", ":material/restart_alt:", drafts.reset),
        ("Add a variant", ":material/content_copy:", drafts.add_variant),
        ("Remove", ":material/close:", drafts.remove),
    ]
    if len(drafts.form().methods) > 1:
        buttons.append(("Only this method", ":material/filter_1:", drafts.only))
    with st.container(horizontal=True):
        for text, icon, act in buttons:
            st.button(text, key=f"{key}.{text}", on_click=act, args=(entry,), icon=icon)


def _row(entry: MethodDraft, method: type[Method]) -> list[str]:
    """Return the cells of a row: shared fields, then some of the method's own; changes are marked."""
    paper = inputs.default_values(method.Config)
    values = paper | entry.config
    specific = [name for name in values if name not in MethodConfig.model_fields]
    specific = [name for name in specific if isinstance(values[name], (str, int, float, bool))]
    changed = [name for name in values if values[name] != paper.get(name) and name not in SHARED]
    named = list(dict.fromkeys([*changed, *specific[:OWN_FIELDS]]))
    more = f" and {len(specific) - OWN_FIELDS} more" if len(specific) > OWN_FIELDS else ""
    texts = [
        f"{markup.esc(field_phrase(f'methods.{entry.name}.{name}'))} {_value(entry, name, values, paper)}"
        for name in named
    ]
    shared = [_value(entry, name, values, paper) if name in paper else "-" for name in SHARED]
    return [*shared, (", ".join(texts) + more) or "-"]


def _value(entry: MethodDraft, name: str, values: Mapping[str, Any], paper: Mapping[str, Any]) -> str:
    """Return a value as HTML, marked if it differs from the paper's."""
    path = f"methods.{entry.name}.{name}"
    value = values[name]
    text = markup.esc(value_text(path, value))
    if value == paper.get(name):
        return text
    printed = markup.esc(value_text(path, paper.get(name)))
    return f'<b class="fl-nowrap" title="paper: {printed}">{text} *</b>'


def show_file(file: Path, content: bytes, sentence: str, key: str = "method_file") -> None:
    """Show a method file before the user agrees to run it; the sentence ends in its name."""
    st.markdown(
        f"{sentence} {markup.md(str(file))}. It runs with the rights of your account and can do whatever you "
        "can do. Read it first, especially if you did not write it."
    )
    with st.expander("Read the file", icon=":material/code:", key=f"{key}_{consent.digest(content)}"):
        st.code(content.decode("utf-8", "replace"), language="python", wrap_lines=True)


def ask_to_run_file(error: consent.NotAgreed, key: str = "method_file") -> None:
    """Show a file that the experiment or the user names, and let the user agree to run it as it is."""
    with st.container(border=True):
        st.markdown(f"**Run {markup.md(error.file.name)}?**")
        try:
            content = error.file.read_bytes()
        except OSError:
            content = b""
        # the user agrees to what is shown here, which must be the content that the plan has refused
        if consent.digest(content) != error.sha256:
            st.caption("The file has just changed; the plan is made again in a moment.")
            return
        show_file(error.file, content, "This is the file", key)
        if markup.write_button("I have read it: run it", "check", f"{key}_agreed"):
            consent.agree(error.file, error.sha256)
            st.rerun()


def text_editor(data: Mapping[str, Any], errors: FieldErrors, value: Texts | None, key: str) -> Texts | None:
    """Draw the table of written class descriptions, and return the texts that were edited.

    Edited texts are stored in the experiment; otherwise planning takes the data set's own texts.

    Args:
        data: the form's data part, which determines the classes and the data set's own texts.
        errors: receives files that cannot be used, and texts without a class.
        value: the texts of the experiment; None for the data set's own.
        key: prefix of the widgets' keys.

    Returns: the texts if they differ from the data set's own, else None.
    """
    name, root = data["name"], data.get("root")
    try:
        read = {f: data.get(f) for f in ("name", "root", "domains", "columns", "split", "classes")}
        classes, defaults = _classes_and_texts(read, descriptions.version(name, root))
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
        _text_table(start, classes),
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
    origin = "the data set's own" if edits is None else "edited, stored with the experiment"
    count, total = counted(sum(map(len, texts.values())), "text"), counted(len(classes), "class")
    st.caption(f"{count} for {len(texts)} of {total} ({origin}).")
    spoken_names = {spoken(name) for name in classes}
    if ignored := [name for name in start if spoken(name) not in spoken_names]:
        names = markup.md(", ".join(ignored[:3]) + ", ..." * (len(ignored) > 3))
        st.caption(f":material/info: Ignored because the data set has no such class: {names}")
    source = descriptions.file_of(name, root)
    if texts == defaults and source is not None and source.is_relative_to(ASSETS):
        st.caption("These texts were written for FedLens; FedAlign's own are not public.")
    if stray:
        have = "texts have" if stray > 1 else "text has"
        message = f"{stray} {have} no class; choose the class, or delete the row"
        errors.refuse(CLASS_TEXTS, FedLensError(message))
    restart, icon = partial(_restart_table, place, None), ":material/restart_alt:"
    with st.container(horizontal=True):
        reset = "Reset to the data set's texts"
        st.button(reset, f"{place}.reset", icon=icon, disabled=edits is None, on_click=restart)
        saved = json.dumps(texts, indent=2, ensure_ascii=False) + "\n"
        markup.download("Save as descriptions.json", saved, "descriptions.json", f"{place}.save")
        _load_texts(place, classes, errors)
    return edits


def _load_texts(place: str, classes: Sequence[str], errors: FieldErrors) -> None:
    """Draw the upload of a file with descriptions, which replace those of the table."""
    with st.popover("Load from a file", icon=":material/upload:", key=f"{place}.file"):
        upload = f"{place}.upload.{st.session_state[f'{place}.version']}"
        file = st.file_uploader("File like descriptions.json", type="json", key=upload)
    if file is None:
        return
    try:
        given = descriptions.parse(file.getvalue(), file.name)
        if not _tidy_texts(given, classes):
            raise FedLensError(
                f"{file.name} describes none of this data set's classes; use its class names as keys"
            )
        _restart_table(place, given)
        st.rerun()
    except FedLensError as error:
        errors.refuse(CLASS_TEXTS, error)


@st.cache_data(show_spinner=False, max_entries=16, ttl=300)
def _classes_and_texts(data: dict[str, Any], version: str) -> tuple[tuple[str, ...], Texts]:
    """Return the classes of a data set and its own texts, cached until the version of the texts changes."""
    place = data["name"], data["root"]
    coop = {"coop_split": data["split"] == "coop", "coop_classes": data["classes"] == "coop"}
    with defer_slow_work():
        classes = catalog.class_names(*place, data["domains"], data["columns"], **coop)
    return classes, _tidy_texts(descriptions.of_classes(*place, classes), classes)


def _tidy_texts(texts: Mapping[str, Sequence[str]], classes: Sequence[str]) -> Texts:
    """Return the texts of these classes, in their order and spelling, with single spaces."""
    by_name = {spoken(name): [" ".join(t.split()) for t in written] for name, written in texts.items()}
    return {name: by_name[spoken(name)] for name in classes if by_name.get(spoken(name))}


def _text_table(texts: Mapping[str, Sequence[str]], classes: Sequence[str]) -> pd.DataFrame:
    tidy = _tidy_texts(texts, classes)
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


def _restart_table(place: str, texts: Texts | None) -> None:
    """Callback: start a new table with these texts; None stands for the data set's own."""
    st.session_state[f"{place}.edits"] = texts
    st.session_state[f"{place}.version"] += 1
