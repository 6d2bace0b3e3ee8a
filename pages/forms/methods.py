"""The methods of the New page: their choice, their hyper-parameters, and one table of all of them."""

import re
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import streamlit as st

from fedcore.base.files import PROJECT
from fedcore.config.field_names import field_phrase, field_title, value_text
from fedcore.methods import consent
from fedcore.methods.base import Method
from fedcore.methods.class_texts import EDITOR
from fedcore.methods.hyperparameters import MethodConfig
from pages.forms import class_texts, drafts, inputs
from pages.forms.drafts import MethodDraft
from pages.forms.errors import FieldErrors
from pages.widgets import markup, session

SHARED = ("optimiser", "lr", "batch_size", "local_epochs", "weight_decay")
"""Columns of the table: fields of nearly every method, which a comparison must agree on or explain."""
OWN_FIELDS = 2
"""Further fields of a method that the table names, besides those that were changed."""


GUIDES = PROJECT / "docs" / "methods"
_HEAD = re.compile(r"\A# [^\n]+\n+Name: `[\w-]+`\.\n")
_GENERATED = re.compile(r"<!-- row: .*? -->\n|<!-- (?:idea|fields): .*?<!-- end -->\n*", re.DOTALL)
"""Blocks that repeat the form beside the text, and the page's row in a table."""
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
    """Draw the choice of methods and the hyper-parameters of each; ``data`` is the form's data part."""
    methods = drafts.available_methods()
    st.multiselect(
        "Methods",
        list(methods),
        format_func=lambda n: methods[n].about.title,
        key=f"{key}.choice",
        default=list(dict.fromkeys(e.name for e in drafts.form().methods if e.name in methods)),
        on_change=drafts.sync_methods,
        args=(f"{key}.choice",),
        wrap=True,
    )
    errors.place("methods")
    entries = drafts.form().methods
    for i, entry in enumerate(entries):
        method = methods.get(entry.name)
        if method is None:
            errors.place(f"methods.{i}.name")
            continue
        # Streamlit identifies an expander by its label: with the label that is being typed, each keystroke
        # would replace it by another, closed one.
        box = st.expander(
            f"{markup.md(entry.title or method.about.title)}: hyper-parameters",
            icon=":material/tune:",
            key=f"{key}.{entry.uid}.box",
            on_change="rerun",
        )
        if entry.set_open(box.open):  # a closed form is not drawn: the browser takes a second for 100 widgets
            with box:
                _method_form(entry, method, data, f"{key}.{entry.uid}.{entry.config.version}", errors)
        elif len(entries) == 1:  # several have the table
            _changes(entry, method)
        errors.place(f"methods.{i}")
    shown = [(entry, methods[entry.name]) for entry in entries if entry.name in methods]
    if len(entries) > 1 and shown:
        st.html(_table_html(shown))
        st.caption("\\* differs from the paper; hover over it for the paper's value.")
    return [entry.content() for entry in entries]


def _changes(entry: MethodDraft, method: type[Method]) -> None:
    """Name the hyper-parameters that differ from the paper's."""
    paper = inputs.default_values(method.Config)
    changed = [
        f"{field_phrase(path)} {value_text(path, value)}"
        for name, value in entry.config.values.items()
        if (path := f"methods.{entry.name}.{name}") and (name not in paper or paper[name] != value)
    ]
    if changed:
        st.caption(f"Changed from the paper: {markup.md(', '.join(changed))}")


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
        "Name in tables", value=entry.start_label or "", placeholder=method.about.title, key=f"{key}.label"
    )
    entry.label = label.strip() or None
    editors = {EDITOR: partial(class_texts.editor, data, errors)}
    entry.config.values = inputs.config_form(
        method.Config, entry.config.start, key, editors, f"methods.{entry.name}"
    )
    buttons = (
        ("Reset to the paper's values", ":material/restart_alt:", drafts.reset),
        ("Add a variant", ":material/content_copy:", drafts.add_variant),
        ("Remove", ":material/close:", drafts.remove),
    )
    with st.container(horizontal=True):
        for text, icon, act in buttons:
            st.button(text, key=f"{key}.{text}", on_click=act, args=(entry.uid,), icon=icon)


def _table_html(entries: Sequence[tuple[MethodDraft, type[Method]]]) -> str:
    """Return a row per method: shared fields, then some of its own; changes from the paper are marked."""
    trained = [e.name for e, method in entries if "lr" in method.Config.model_fields] or [entries[0][0].name]
    titles = [field_title(f"methods.{trained[0]}.{name}") for name in SHARED]
    header = [("Method", "wide"), *((title, "") for title in titles), ("Method-specific", "prose")]
    return markup.table_html(header, [_row(*entry) for entry in entries], "Hyper-parameters of the methods")


def _row(entry: MethodDraft, method: type[Method]) -> list[str]:
    paper = inputs.default_values(method.Config)
    values = paper | entry.config.values
    specific = [name for name in values if name not in MethodConfig.model_fields]
    specific = [name for name in specific if isinstance(values[name], (str, int, float, bool))]
    changed = [name for name in values if values[name] != paper.get(name) and name not in SHARED]
    named = list(dict.fromkeys([*changed, *specific[:OWN_FIELDS]]))
    more = f" and {len(specific) - OWN_FIELDS} more" if len(specific) > OWN_FIELDS else ""
    texts = [
        f"{markup.esc(field_phrase(f'methods.{entry.name}.{name}'))} {_value(entry, name, values, paper)}"
        for name in named
    ]
    label = entry.label or entry.title or method.about.title
    return [
        markup.method_html(label, entry.name),
        *(_value(entry, name, values, paper) if name in paper else "-" for name in SHARED),
        (", ".join(texts) + more) or "-",
    ]


def _value(entry: MethodDraft, name: str, values: Mapping[str, Any], paper: Mapping[str, Any]) -> str:
    """Return a value as HTML, marked if it differs from the paper's."""
    path = f"methods.{entry.name}.{name}"
    value = values[name]
    text = markup.esc(value_text(path, value) if not isinstance(value, (dict, list)) else "changed")
    if value == paper.get(name):
        return text
    printed = markup.esc(value_text(path, paper.get(name)))
    return f'<b class="fl-nowrap" title="paper: {printed}">{text} *</b>'


def show_file(file: Path, content: bytes, sentence: str) -> None:
    """Show a method file before the user agrees to run it; the sentence ends in its name."""
    st.markdown(
        f"{sentence} {markup.md(str(file))}. It runs with the rights of your account and can do whatever you "
        "can do. Read it first, especially if you did not write it."
    )
    with st.expander("Read the file", icon=":material/code:", key=f"method_file_{consent.digest(content)}"):
        st.code(content.decode("utf-8", "replace"), language="python", wrap_lines=True)


def ask_to_run_file(error: consent.NotAgreed) -> None:
    """Show a method file that the experiment names, and let the user agree to run it as it is."""
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
        show_file(error.file, content, "The experiment names the method file")
        if st.button(
            "I have read it: run it",
            icon=":material/check:",
            key="method_file_agreed",
            disabled=not session.writable(),
        ):
            consent.agree(error.file, error.sha256)
            st.rerun()
