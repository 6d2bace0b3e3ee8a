"""Checks that TOML files and the database can store a field's value and return it unchanged."""

import math
from collections.abc import Mapping
from datetime import date, time
from types import NoneType
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationInfo, field_validator

from fedcore.methods.hyperparameters import check_number, hyper

LARGEST_INTEGER = 2**63 - 1
"""The largest integer that TOML and SQLite can store."""
LONGEST_PATH = 4096  # bytes
FREE_TABLES = ("config", "sweep", "columns", "space")
"""Fields that are tables with arbitrary keys."""
MAX_DEPTH = 20
"""Maximum nesting of lists and tables."""
_STORABLE = (bool, int, float, str, list, tuple, Mapping, date, time, NoneType)
"""Types of the values in tables with arbitrary keys: those of TOML, and None."""


def _path_text(value: str) -> str:
    # not checked for existence: a stored run may name a folder of another machine
    if "\0" in value or len(_text(value).encode()) > LONGEST_PATH:
        raise ValueError("this cannot be a path: it is too long, or holds a null character")
    return value


def _plain(value: Any, depth: int = 0, tables: bool = True) -> Any:
    """Refuse values that a TOML file or the database cannot store unchanged."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} is not a number that can be stored; give a finite one")
    if isinstance(value, int) and abs(value) > LARGEST_INTEGER:
        raise ValueError("this number is too large to be stored (more than 64 bits); give a smaller one")
    if depth and tables and not isinstance(value, _STORABLE):
        kind = type(value).__name__
        raise ValueError(f"{kind} is not a type that can be stored; give a plain number or text")
    if isinstance(value, str):
        _text(value)
    elif isinstance(value, (list, tuple)) or (tables and isinstance(value, Mapping)):
        if depth == MAX_DEPTH:
            raise ValueError(f"more than {MAX_DEPTH} levels of lists and tables")
        if not isinstance(value, Mapping):
            for item in value:
                _plain(item, depth + 1, tables)
            return value
        for key, item in value.items():
            _plain(key)
            try:
                _plain(item, depth + 1, tables)
            except ValueError as error:  # the field that the error is reported for is the whole table
                raise ValueError(f"{key}: {error}") from None
    return value


def _text(value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{value!r} is not text that can be stored as UTF-8") from None
    return value


field = hyper
"""Declare a field that has a default, as ``hyper`` does; one without is a ``pydantic.Field``."""
PathText = Annotated[str, AfterValidator(_path_text)]


class Part(BaseModel):
    """A part of an experiment: a fixed set of fields that cannot be changed afterwards."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @field_validator("*", mode="before")
    @classmethod
    def _storable(cls, value: Any, info: ValidationInfo) -> Any:
        check_number(value, cls.model_fields[str(info.field_name)].annotation)
        # other tables are ``Part``s, whose errors name the field within them
        return _plain(value, tables=info.field_name in FREE_TABLES)
