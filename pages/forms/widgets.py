"""A form made from a method's Config: a new method has its form without a line here."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from typing import Any, Literal, Union, get_args, get_origin

import streamlit as st
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from fedcore.config.field_names import field_title, value_text
from pages.widgets import common

COLUMNS = 3


Editor = Callable[[Any, str], Any]
"""Draws what no single widget can hold: (value, key) -> the value as edited."""


def config_form(
    config: type[BaseModel],
    values: dict[str, Any],
    key: str,
    editors: Mapping[str, Editor] | None = None,
    path: str = "",
) -> dict[str, Any]:
    """Widgets for all fields of a config.

    Args:
        values: what differs from the defaults.
        key: prefix of the widgets' keys; another key is another form.
        editors: for fields whose ``json_schema_extra`` names one as ``editor``; it is shown below the others
            while these are as ``when`` says. Without its editor such a field keeps its value.
        path: where the fields belong, as ``field_title`` takes it: ``methods.fedot``.

    Returns: the values that differ from the config's defaults (the paper's), as they were typed.
    """
    defaults = paper_values(config)
    given: dict[str, Any] = {}
    paths = {name: f"{path}.{name}".lstrip(".") for name in config.model_fields}
    fields = [(n, i) for n, i in config.model_fields.items() if not _extra(i)]
    boxes = [f for f in fields if f[1].annotation is bool]  # in rows of their own
    for row in (*_rows([f for f in fields if f not in boxes]), *_rows(boxes)):
        for column, (name, info) in zip(st.columns(COLUMNS, vertical_alignment="top"), row, strict=False):
            with column:
                default = defaults[name]
                value = field_widget(paths[name], info, values.get(name, default), f"{key}.{name}")
                if value != default:
                    given[name] = value
                    st.caption(f"paper: {common.md(value_text(paths[name], default))}")
    for name, info in config.model_fields.items():
        if extra := _extra(info):
            value, now = values.get(name, defaults[name]), defaults | given
            draw = (editors or {}).get(extra["editor"])
            if draw and all(now[n] == wanted for n, wanted in extra.get("when", {}).items()):
                st.markdown(f"**{field_title(paths[name])}**", help=explained(paths[name], info))
                value = draw(value, f"{key}.{name}")
            if value != defaults[name]:
                given[name] = value
    return given


def _rows(fields: list[Any]) -> list[list[Any]]:
    """In rows of as many as stand beside each other."""
    return [fields[start : start + COLUMNS] for start in range(0, len(fields), COLUMNS)]


def _extra(info: FieldInfo) -> dict[str, Any]:
    """Which editor a field has, and when; empty for one that a widget holds."""
    extra = info.json_schema_extra
    return dict(extra) if isinstance(extra, dict) and "editor" in extra else {}


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


def field_widget(
    path: str, info: FieldInfo, value: Any, key: str, label: str | None = None, empty: str | None = None
) -> Any:
    """The widget that fits a field's type; returns what it holds.

    Args:
        path: of the field, as ``field_title`` takes it.
        empty: what an empty widget stands for; default: in general words.
    """
    kinds = union(info.annotation)
    optional = type(None) in kinds
    kinds = [k for k in kinds if k is not type(None)]
    low, high, _ = bounds(info)
    help_, label = explained(path, info), label or field_title(path)
    empty = (empty or emptiness(path, info)) if optional else None
    if len(kinds) == 1:
        kind = kinds[0]
        if get_origin(kind) is Literal:
            options = [*([None] if optional else []), *get_args(kind)]
            index = options.index(value) if value in options else 0
            return st.selectbox(
                label, options, index=index, format_func=lambda v: value_text(path, v), key=key, help=help_
            )
        if kind is bool:
            return st.checkbox(label, value=bool(value), key=key, help=help_)
        if kind in (int, float):
            return number(label, kind, value, low, high, empty, key, help_)
    typed = "" if value is None else as_text(value)
    text = st.text_input(label, value=typed, placeholder=empty, key=key, help=help_)
    return from_text(text, kinds, optional)


def emptiness(path: str, info: FieldInfo) -> str:
    """What a field stands for that is left empty."""
    said = (info.description or "").partition("default: ")[2]
    words = value_text(path, None)
    return said.partition(";")[0] if said and words == "none" else words


def explained(path: str, info: FieldInfo) -> str:
    """A field's description, range, default, and its name in files, as Markdown."""
    about, words = info.description or "", bounds(info)[2]
    for option in options_of(info):
        if "_" in str(option):  # files write it so; the form does not
            about = about.replace(option, value_text(path, option))
    default = None if info.is_required() else plain_value(info.get_default(call_default_factory=True))
    if "default:" not in about:
        about += f"{'' if not about or about.endswith('.') else '.'} Default: {value_text(path, default)}"
    said = [part.rstrip(".") + "." for part in (about.strip(), f"Range: {words}" if words else "") if part]
    return f"{common.md(' '.join(said))} In files: `{path.rpartition('.')[2]}`."


def options_of(info: FieldInfo) -> tuple[Any, ...]:
    """The values that a field can have, where they are few and known."""
    kinds = [k for k in union(info.annotation) if k is not type(None)]
    if kinds == [bool]:
        return (True, False)
    return get_args(kinds[0]) if len(kinds) == 1 and get_origin(kinds[0]) is Literal else ()


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
    empty: str | None,
    key: str,
    help_: str,
) -> Any:
    """A number, whole or not. empty: what it stands for where the field may be left out."""
    whole = kind is int
    if value is not None and not isinstance(value, (int, float)):
        value = None
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
        placeholder=empty,
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
