"""A form made from a method's Config: a new method has its form without a line here."""

from __future__ import annotations

import json
import types
from typing import Any, Literal, Union, get_args, get_origin

import streamlit as st
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from pages.parts import common

COLUMNS = 3


def config_form(config: type[BaseModel], values: dict[str, Any], key: str) -> dict[str, Any]:
    """Widgets for all fields of a config.

    Args:
        values: what differs from the defaults.
        key: prefix of the widgets' keys; another key is another form.

    Returns: the values that differ from the config's defaults (the paper's), as they were typed.
    """
    defaults = paper_values(config)
    given: dict[str, Any] = {}
    fields = list(config.model_fields.items())
    for start in range(0, len(fields), COLUMNS):
        columns = st.columns(COLUMNS, vertical_alignment="top")
        for column, (name, info) in zip(columns, fields[start : start + COLUMNS], strict=False):
            with column:
                default = defaults[name]
                value = field_widget(name, info, values.get(name, default), f"{key}.{name}")
                if value != default:
                    given[name] = value
                    st.caption(f"differs from {common.md(shown(default))}")
    return given


def paper_values(config: type[BaseModel]) -> dict[str, Any]:
    """Defaults by field, as plain values; None for a field without one."""
    return {
        name: None if info.is_required() else plain_value(info.get_default(call_default_factory=True))
        for name, info in config.model_fields.items()
    }


def plain_value(value: Any) -> Any:
    """Tuples as lists, models as dicts: as TOML and JSON know them."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    return list(value) if isinstance(value, (tuple, set)) else value


def shown(value: Any) -> str:
    """A value in words."""
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value)


def bounds(info: FieldInfo) -> tuple[float | None, float | None, str]:
    """Lowest and highest value that a widget allows, and both in words; open ends are left to the check."""
    low = high = None
    words = []
    for item in info.metadata:
        for name, sign in (("ge", "≥"), ("gt", ">"), ("le", "≤"), ("lt", "<")):
            limit = getattr(item, name, None)
            if limit is not None:
                words.append(f"{sign} {limit:g}")
                if name in ("ge", "gt"):
                    low = limit
                else:
                    high = limit
    return low, high, ", ".join(words)


def field_widget(name: str, info: FieldInfo, value: Any, key: str, label: str | None = None) -> Any:
    """The widget that fits a field's type; returns what it holds."""
    kinds = union(info.annotation)
    optional = type(None) in kinds
    kinds = [k for k in kinds if k is not type(None)]
    low, high, words = bounds(info)
    default = None if info.is_required() else plain_value(info.get_default(call_default_factory=True))
    parts = [info.description or "", f"Range: {words}." if words else "", f"Default: {shown(default)}."]
    help_ = common.md(" ".join(p for p in parts if p))
    label = label or name.replace("_", " ").capitalize()
    if len(kinds) == 1:
        kind = kinds[0]
        if get_origin(kind) is Literal:
            options = [*([None] if optional else []), *get_args(kind)]
            index = options.index(value) if value in options else 0
            return st.selectbox(label, options, index=index, format_func=shown, key=key, help=help_)
        if kind is bool:
            return st.checkbox(label, value=bool(value), key=key, help=help_)
        if kind in (int, float):
            return number(label, kind, value, low, high, optional, key, help_)
    text = st.text_input(label, value="" if value is None else as_text(value), key=key, help=help_)
    return from_text(text, kinds, optional)


def union(annotation: Any) -> list[Any]:
    """The alternatives of a type."""
    if get_origin(annotation) in (Union, types.UnionType):
        return list(get_args(annotation))
    return [annotation]


def number(
    label: str,
    kind: type,
    value: Any,
    low: float | None,
    high: float | None,
    optional: bool,
    key: str,
    help_: str,
) -> Any:
    """A number, whole or not; empty where the field may be left out."""
    whole = kind is int
    if value is not None and not isinstance(value, (int, float)):
        value = None
    options: dict[str, Any] = {"placeholder": "default"} if optional else {}
    given = None if value is None else kind(value)
    step = 1 if whole else max(abs(given or 0.0) / 10, 1e-9) if given else 0.1
    low_, high_ = (None if low is None else kind(low)), (None if high is None else kind(high))
    return st.number_input(
        label,
        min_value=low_,
        max_value=high_,
        value=given,
        step=step,
        format="%d" if whole else "%g",
        key=key,
        help=help_,
        **options,
    )


def as_text(value: Any) -> str:
    """A value as one types it: lists with commas."""
    if isinstance(value, (list, tuple)):
        return ", ".join(str(v) for v in value)
    return str(value)


def from_text(text: str, kinds: list[Any], optional: bool) -> Any:
    """What was typed, as the type wants it; the check has the last word."""
    text = text.strip()
    if not text and optional:
        return None
    if any(get_origin(k) in (tuple, list, set) or k in (tuple, list, set) for k in kinds):
        return [scalar(part) for part in text.split(",") if part.strip()]
    if str in kinds and not any(k in (int, float) for k in kinds):
        return text
    return scalar(text)


def scalar(text: str) -> Any:
    """A number where it is one, else the text."""
    text = text.strip()
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
