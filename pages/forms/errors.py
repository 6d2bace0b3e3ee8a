"""Errors of the form, shown beside their fields and in the form's own words."""

import re
from collections.abc import Iterable

import streamlit as st
from pydantic import BaseModel

from fedcore.base.errors import FedLensError
from fedcore.config import BackboneConfig, DataConfig, PartitionConfig
from fedcore.config.field_names import field_phrase, field_title
from fedcore.methods import registry
from pages.forms import drafts
from pages.widgets import markup

FOLDER = "Folder on this machine"
"""Label of the field for a data set's folder or file."""
_NAME = re.compile(
    r"(?<![\w./`'\"-])(?:(?:data|partition|backbone)\.)?[a-z]+(?:_[a-z0-9]+)*(?![\w/`'\"-]|\.\w)"
)
"""Matches a word that may be a field's name: no part of a path, of quoted text or of a command."""


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
    title = entry.title or registry.title(entry.name)
    return f"{title}, {field_phrase(f'methods.{entry.name}.{parts[-1]}')}" if len(parts) > 2 else title


def with_field_titles(text: str) -> str:
    """Return an error's text with the form's titles: ``lower min_samples`` is lower "Minimum samples"."""
    sections: dict[str, type[BaseModel]] = {
        "data": DataConfig,
        "partition": PartitionConfig,
        "backbone": BackboneConfig,
    }
    paths = {
        name: f"methods.{m}.{name}"
        for m, cls in registry.registered().items()
        for name in cls.Config.model_fields
    }
    for section, model in sections.items():
        paths |= {n: f"{section}.{name}" for name in model.model_fields for n in (name, f"{section}.{name}")}

    def title(match: re.Match[str]) -> str:
        name = match[0]
        is_field = name in paths and ("_" in name or "." in name)  # without either it may be a plain word
        return f'"{field_title(paths[name])}"' if is_field else name

    return _NAME.sub(title, text)
