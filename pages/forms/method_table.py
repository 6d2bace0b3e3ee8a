"""The hyper-parameters of the form's methods in one table, marked where they differ from the paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from fedcore.config.field_names import field_phrase, field_title, value_text
from fedcore.methods.base import Method
from fedcore.methods.hyperparameters import MethodConfig
from pages.forms import inputs
from pages.forms.drafts import MethodDraft
from pages.widgets import markup

SHARED = ("optimiser", "lr", "batch_size", "local_epochs", "weight_decay")
"""Columns: fields that nearly every method has and that a comparison must agree on or explain."""
OWN_FIELDS = 2
"""Further fields of a method that are named; those that were changed are named in any case."""


def is_drawn(entries: Sequence[MethodDraft]) -> bool:
    """Return whether the table is drawn: not for a single method."""
    return len(entries) > 1


def draw(entries: Sequence[MethodDraft], known: Mapping[str, type[Method]]) -> None:
    """Draw the table of the methods that are known."""
    shown = [(entry, known[entry.name]) for entry in entries if entry.name in known]
    if is_drawn(entries) and shown:
        st.html(table_html(shown))
        st.caption("\\* differs from the paper; hover over it for the paper's value.")


def table_html(entries: Sequence[tuple[MethodDraft, type[Method]]]) -> str:
    """Return a row per method: the shared fields, then some of its own."""
    trained = [e.name for e, method in entries if "lr" in method.Config.model_fields] or [entries[0][0].name]
    titles = [field_title(f"methods.{trained[0]}.{name}") for name in SHARED]
    header = [("Method", "wide"), *((title, "") for title in titles), ("Of this method only", "prose")]
    return markup.table_html(header, [_row(*entry) for entry in entries], "Hyper-parameters of the methods")


def _row(entry: MethodDraft, method: type[Method]) -> list[str]:
    paper = inputs.paper_values(method.Config)
    values = paper | entry.config
    own = [name for name in values if name not in MethodConfig.model_fields]
    own = [name for name in own if isinstance(values[name], (str, int, float, bool))]
    changed = [name for name in values if values[name] != paper.get(name) and name not in SHARED]
    named = list(dict.fromkeys([*changed, *own[:OWN_FIELDS]]))
    more = f" and {len(own) - OWN_FIELDS} more" if len(own) > OWN_FIELDS else ""
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
    """Return a value as HTML, marked where it differs from the paper's."""
    path = f"methods.{entry.name}.{name}"
    value = values[name]
    text = markup.esc(value_text(path, value) if not isinstance(value, (dict, list)) else "changed")
    if value == paper.get(name):
        return text
    printed = markup.esc(value_text(path, paper.get(name)))
    return f'<b class="fl-nowrap" title="paper: {printed}">{text} *</b>'
