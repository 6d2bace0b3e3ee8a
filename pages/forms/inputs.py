"""Draw fields from their declarations, so that a new method has a form without code here.

Their errors stand beside them, in the form's own words.
"""

import re
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, Union, get_args, get_origin

import streamlit as st
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from fedcore.base import devices
from fedcore.base.errors import FedLensError
from fedcore.config import BackboneConfig, DataConfig, Experiment, PartitionConfig, TuningConfig
from fedcore.config.field_names import field_phrase, field_title, value_text
from fedcore.methods import registry
from pages.forms import drafts
from pages.widgets import markup

FOLDER = "Folder on this machine"
"""Label of the field for a data set's folder or file."""
_NAME = re.compile(
    r"(?<![\w./`'\"-])(?:(?:data|partition|backbone)\.)?[a-z]+(?:_[a-z0-9]+)*(?![\w/`'\"-]|\.\w)"
)
"""Matches a word that may be a field's name: no part of a path, of quoted text or of a command."""
TF32_SINCE = 8, 0
"""Compute capability from which on a GPU multiplies in TF32."""
COLUMNS = 3
Row = tuple[Sequence[str], int | Sequence[int]]
"""Names of fields side by side, and the number of columns or their widths."""
PARTS: Mapping[str, type[BaseModel]] = {
    "": Experiment,
    "data": DataConfig,
    "partition": PartitionConfig,
    "backbone": BackboneConfig,
    "tuning": TuningConfig,
}
WITHOUT: Mapping[str, tuple[str, object]] = {
    "data.class_order": ("training_classes", "all"),
    "partition.dirichlet_form": ("alpha", None),
    "held_out_share": ("held_out", []),
}
"""Fields that mean nothing, and are not drawn, while one before them has this value."""
Editor = Callable[[Any, str], Any]
"""Draws a field that needs more than one widget: (value, key) -> the edited value."""


class FieldErrors:
    """A place under every field for its error message."""

    def __init__(self) -> None:
        self._places: dict[str, st.delta_generator.DeltaGenerator] = {}
        self._in_rows: set[str] = set()
        self.refused: list[str] = []
        """Names of inputs that cannot be used, although the rest of the form is valid."""

    def place(self, field: str) -> None:
        """Reserve room for errors of a field at the current position of the page."""
        self._places[field] = st.empty()

    def place_row(self, fields: Iterable[str]) -> None:
        """Reserve room below a row of fields, since an error cannot be read in a narrow column."""
        below = st.empty()
        for field in fields:
            self._places[field] = below
            self._in_rows.add(field)

    def refuse(self, name: str, error: FedLensError) -> None:
        """Show an error beside an input, such as a file, whose content the form has not taken over.

        Nothing is launched until it is corrected.
        """
        markup.show_error(error)
        self.refused.append(name)

    def show(self, error: FedLensError) -> None:
        """Show an error below its field, or below the nearest enclosing part that has a place."""
        field = error.field or ""
        while field and field not in self._places:
            field = field.rpartition(".")[0]
        place = self._places.get(field) or self._places[""]
        in_table = field == "cohorts" and error.field != field  # the table cannot mark one of its rows
        if error.field and (field in self._in_rows or in_table):
            error = FedLensError(f"{name_in_form(error.field)}: {error}", error.field)
        elif error.field and str(error).startswith(("must ", "is ")):
            error = FedLensError(f"{name_in_form(error.field)} {error}", error.field)
        markup.show_error(FedLensError(with_field_titles(str(error)), error.field), place)


def name_in_form(field: str) -> str:
    """Return the form's name of a field: ``methods.3.config.lr`` is "FedDEAP, learning rate"."""
    parts = field.split(".")
    while len(parts) > 1 and parts[-1].isdecimal() and parts[0] not in ("methods", "cohorts"):
        parts.pop()  # the position in a list: ``seeds.0``
    if parts[:2] == ["data", "columns"]:
        parts = parts[:2]  # one field for all columns
    if parts == ["data", "root"]:
        return FOLDER
    field = ".".join(parts)
    if parts[0] != "methods" or len(parts) < 2 or not parts[1].isdecimal():
        return field_title(field)
    entry = drafts.form().methods[int(parts[1])]
    title = entry.label or registry.title(entry.name)
    return f"{title}, {field_phrase(f'methods.{entry.name}.{parts[-1]}')}" if len(parts) > 2 else title


def with_field_titles(text: str) -> str:
    """Return an error's text with the form's titles: ``lower min_samples`` is lower "Minimum samples"."""
    paths = {
        name: f"methods.{m}.{name}"
        for m, cls in registry.registered().items()
        for name in cls.Config.model_fields
    }
    for part in ("data", "partition", "backbone"):
        names = PARTS[part].model_fields
        paths |= {n: f"{part}.{name}" for name in names for n in (name, f"{part}.{name}")}

    def title(match: re.Match[str]) -> str:
        name = match[0]
        is_field = name in paths and ("_" in name or "." in name)  # without either it may be a plain word
        return f'"{field_title(paths[name])}"' if is_field else name

    return _NAME.sub(title, text)


def config_form(
    config: type[BaseModel], values: dict[str, Any], key: str, editor: Editor, path: str
) -> dict[str, Any]:
    """Draw widgets for all fields of a config.

    Args:
        values: the values that differ from the defaults.
        editor: for fields whose ``json_schema_extra`` asks for one; it is drawn below the other fields while
            these have the values of ``when``.
        path: of the part that has the fields, as ``field_title`` takes it, e.g. ``methods.fedot``.

    Returns: the values that differ from the config's defaults (the paper's), as they were typed.
    """
    defaults = default_values(config)
    given: dict[str, Any] = {}
    paths = {name: f"{path}.{name}" for name in config.model_fields}
    own_editors: dict[str, dict[str, Any]] = {
        name: dict(info.json_schema_extra)
        for name, info in config.model_fields.items()
        if isinstance(info.json_schema_extra, dict) and "editor" in info.json_schema_extra
    }
    boxes = [name for name, info in config.model_fields.items() if info.annotation is bool]
    others = [name for name in config.model_fields if name not in (*boxes, *own_editors)]
    for names in (others, boxes):  # boxes to tick have separate rows
        for first in range(0, len(names), COLUMNS):
            row = names[first : first + COLUMNS]
            for column, name in zip(st.columns(COLUMNS, vertical_alignment="top"), row, strict=False):
                info, default = config.model_fields[name], defaults[name]
                with column:
                    value = field_widget(paths[name], info, values.get(name, default), f"{key}.{name}")
                    if value != default:
                        given[name] = value
                        st.caption(f"paper: {markup.md(value_text(paths[name], default))}")
    for name, extra in own_editors.items():
        value, current = values.get(name, defaults[name]), defaults | given
        if all(current[n] == wanted for n, wanted in extra.get("when", {}).items()):
            about = help_text(paths[name], config.model_fields[name])
            st.markdown(f"**{field_title(paths[name])}**", help=about)
            value = editor(value, f"{key}.{name}")
        if value != defaults[name]:
            given[name] = value
    return given


def default_values(config: type[BaseModel]) -> dict[str, Any]:
    """Return the default of each field as TOML and JSON hold it; None for a field without a default."""
    return {name: default_of(info) for name, info in config.model_fields.items()}


def default_of(info: FieldInfo) -> Any:
    """Return a field's default as TOML and JSON hold it; None for a field without a default."""
    return None if info.is_required() else to_jsonable_python(info.get_default(call_default_factory=True))


def field_widget(
    path: str, info: FieldInfo, value: Any, key: str, label: str | None = None, empty: str | None = None
) -> Any:
    """Draw the widget that fits a field's type, and return its value.

    Args:
        path: of the field, as ``field_title`` takes it.
        empty: the meaning of an empty widget; default: the one that the field declares.
    """
    kinds, options = alternatives(info.annotation), options_of(info)
    optional = type(None) in kinds
    help_, label = help_text(path, info), label or field_title(path)
    if options == (True, False):
        return st.checkbox(label, value=bool(value), key=key, help=help_)
    if options:
        if path.startswith("methods."):
            options = tuple(option for option in options if option not in drafts.form().cannot_run)
        options = (None, *options) if optional else options
        index = options.index(value) if value in options else 0
        return st.selectbox(label, options, index, partial(value_text, path), key, help_)
    if optional and not empty:  # the field's description, or else its word for None, says what that means
        meaning, empty = (info.description or "").partition("default: ")[2], value_text(path, None)
        empty = meaning.partition(";")[0] if meaning and empty == "none" else empty
    # Numbers are typed as text, so that whatever is typed reaches the validation: Streamlit's number input
    # shows a number outside its range, but returns the previous one, which would go into the experiment.
    items = value if isinstance(value, (list, tuple)) else [] if value is None else [value]
    typed = ", ".join(map(str, items))
    text = st.text_input(label, value=typed, placeholder=empty if optional else None, key=key, help=help_)
    return from_text(text, [kind for kind in kinds if kind is not type(None)], optional)


def field_rows(
    part: str,
    rows: Iterable[Row],
    start: Mapping[str, Any],
    key: str,
    errors: FieldErrors,
    own: Mapping[str, Callable[[], Any]] | None = None,
    empty: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Draw rows of fields, with room for their errors below each, and return the values of those drawn.

    Args:
        own: draws the fields that need another widget than their type's.
        empty: the meaning of empty widgets, as ``field_widget`` takes it.
    """
    values: dict[str, Any] = {}
    for names, columns in rows:
        paths = [f"{part}.{name}".lstrip(".") for name in names]
        places = st.columns(columns, vertical_alignment="bottom")
        for column, name, path in zip(places, names, paths, strict=False):
            with column:
                if own and name in own:
                    values[name] = own[name]()
                elif path not in WITHOUT or {**start, **values}[WITHOUT[path][0]] != WITHOUT[path][1]:
                    info, meaning = PARTS[part].model_fields[name], (empty or {}).get(name)
                    values[name] = field_widget(path, info, start[name], f"{key}.{name}", None, meaning)
        errors.place_row(paths)
    return values


def say_changes(part: str, values: Mapping[str, Any], texts: Mapping[str, str] | None = None) -> None:
    """Name the fields of a closed box that differ from the defaults; ``texts`` has values in words."""
    fields = PARTS[part].model_fields
    changes = [
        f"{field_phrase(path)} {(texts or {}).get(name) or value_text(path, value)}"
        for name, value in values.items()
        if (value or None) != (default_of(fields[name]) or None) and (path := f"{part}.{name}".lstrip("."))
    ]
    if changes:
        st.caption(f"Changed from the defaults: {markup.md('; '.join(changes))}")


def choose(label: str, titles: Mapping[str, str], current: str, key: str, help_: str | None = None) -> str:
    """Draw a choice among titled options; a current one that is not among them is offered too."""
    options = list(titles) if current in titles else [current, *titles]
    return st.selectbox(
        label,
        options,
        index=options.index(current),
        format_func=lambda option: titles.get(option, option),
        key=key,
        help=help_,
    )


def offer_tf32(what: str, key: str, take: Callable[..., None], *args: object) -> None:
    """Offer to compute something in TF32, if a GPU of this machine has it; the button calls ``take``."""
    gpu = next((d.name for d in devices.list_devices() if d.capability >= TF32_SINCE), None)
    if gpu is not None:
        with st.container(horizontal=True, vertical_alignment="center"):
            text = f"{gpu} can {what} in TF32: faster, with as many correct predictions in the demonstration."
            st.caption(markup.md(text), width="content")
            st.button("Use TF32", key, on_click=take, args=args, type="tertiary", icon=":material/speed:")


def help_text(path: str, info: FieldInfo) -> str:
    """Return a field's description, range, default and name in files, as Markdown."""
    about, signs = info.description or "", (("ge", "≥"), ("gt", ">"), ("le", "≤"), ("lt", "<"))
    limits = ((sign, getattr(item, name, None)) for item in info.metadata for name, sign in signs)
    words = ", ".join(f"{sign} {limit:g}" for sign, limit in limits if limit is not None)
    for option in options_of(info):
        if "_" in str(option):  # files write it so; the form does not
            about = about.replace(option, value_text(path, option))
    default = default_of(info)
    if "default:" not in about:
        about += f"{'' if not about or about.endswith('.') else '.'} Default: {value_text(path, default)}"
    sentences = [
        part.rstrip(".") + "." for part in (about.strip(), f"Range: {words}" if words else "") if part
    ]
    return f"{markup.md(' '.join(sentences))} In files: `{path.rpartition('.')[2]}`."


def options_of(info: FieldInfo) -> tuple[Any, ...]:
    """Return the values that a field can have; empty if they cannot be listed."""
    kinds = [k for k in alternatives(info.annotation) if k is not type(None)]
    if kinds == [bool]:
        return (True, False)
    return get_args(kinds[0]) if len(kinds) == 1 and get_origin(kinds[0]) is Literal else ()


def alternatives(annotation: Any) -> list[Any]:
    """Return the alternatives of a union type, or the type itself."""
    if get_origin(annotation) in (Union, types.UnionType):
        return list(get_args(annotation))
    return [annotation]


def from_text(text: str, kinds: list[Any], optional: bool) -> Any:
    """Convert typed text to the field's type where possible; validation reports the rest."""
    text = text.strip()
    if not text and optional:
        return None
    if any(get_origin(k) in (tuple, list, set) or k in (tuple, list, set) for k in kinds):
        return [scalar(part) for part in text.split(",") if part.strip()]
    if str in kinds and not any(k in (int, float) for k in kinds):
        return text
    return scalar(text, (float,) if kinds == [float] else (int, float))


def scalar(text: str, kinds: Sequence[type[int] | type[float]] = (int, float)) -> Any:
    """Return the number that a text holds, of the first kind that fits it, else the text."""
    text = text.strip()
    for kind in kinds:
        try:
            return kind(text)
        except ValueError:
            continue
    return text
