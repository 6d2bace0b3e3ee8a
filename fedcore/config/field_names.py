"""Titles of fields and values for display: ``partition.alpha`` is "Dirichlet alpha".

Titles are declared with the fields (see ``MethodConfig``); this module finds the field of a path. It does not
import torch, and loads methods only if a path leads to one of their fields.
"""

import json
from collections.abc import Iterable
from functools import lru_cache
from pathlib import PurePath
from typing import Any

from pydantic import BaseModel

from fedcore.config.models import (
    TABLES,
    BackboneConfig,
    CohortConfig,
    DataConfig,
    Experiment,
    RunConfig,
    Tuned,
)
from fedcore.methods import class_texts, registry

ModelTypes = tuple[type[BaseModel], ...]
_USER_DATA = ("folder", "manifest", "hf-dataset", "embeddings")
_SECTIONS = {name: TABLES[name] for name in ("data", "partition", "backbone", "tuning")}
_SECTIONS["method"] = TABLES["methods"]
_VERBATIM = ("data", "backbone")
"""Sections with names of files and prompts, whose underscores must not become spaces."""


def data_title(data: DataConfig) -> str:
    """Return a data set's title: its name in the catalog, or the folder or file of the user's own data."""
    folder = PurePath(data.root).name if data.name in _USER_DATA and data.root else ""
    return f"{folder} ({data.name})" if folder else data.name


def data_titles(config: Experiment | RunConfig) -> str:
    """Return the titles of all data sets that clients train on: ``shapes-39 + rotated-digits``."""
    return " + ".join(
        data_title(data) for data in (config.data, *(other.data for other in config.further_data))
    )


def number_ranges(numbers: Iterable[int]) -> str:
    """Return numbers with runs of neighbours joined: ``1 to 3, 7``."""
    spans: list[list[int]] = []
    for number in sorted(set(numbers)):
        if spans and number == spans[-1][-1] + 1:
            spans[-1] = [spans[-1][0], number]
        else:
            spans.append([number])
    return ", ".join(f"{s[0]} to {s[-1]}" if len(s) > 1 else str(s[0]) for s in spans)


def seeds_text(seeds: Iterable[int]) -> str:
    """Return seeds in a sentence: ``seed 1``, ``seeds 2 and 3`` or ``seeds 1 to 3, 7``."""
    distinct = sorted(set(seeds))
    named = " and ".join(map(str, distinct)) if len(distinct) < 3 else number_ranges(distinct)
    return f"seed{'s' * (len(distinct) != 1)} {named}"


def error_text(reason: str) -> str:
    """Return an error with the title of its field: "Folder: no folder /x" for ``data.root: no folder /x``."""
    field, sep, what = reason.partition(": ")
    section, _, name = field.partition(".")
    is_field = section in _SECTIONS and name in _SECTIONS[section].model_fields
    return f"{field_title(field)}: {what}" if sep and is_field else reason


def field_title(path: str) -> str:
    """Return the title of a field for a widget or a column.

    Args:
        path: dotted, as in TOML files, sweeps, errors and flattened configs (``partition.alpha``,
            ``methods.fedot.lr``, ``method.config.lr``, ``cohorts.0.clients``); of a method's field the last
            part is enough (``lr``), and built-in methods then come before the user's. The title does not
            include the method.
    """
    words = field_phrase(path)
    return words[:1].upper() + words[1:]


def field_phrase(path: str) -> str:
    """Return the title of a field within a sentence: ``learning rate``, ``Dirichlet alpha``."""
    path = path.removeprefix("sweep.")
    part, _, rest = path.partition(".")
    if part != "cohorts" or not rest:
        return _title_and_words(*_declarations(path))[0]
    number, _, name = rest.partition(".")
    who = f"cohort {int(number) + 1}" if number.isdecimal() else "cohorts"
    return f"{who}: {_title_and_words(*_declarations(path))[0]}" if name or who == "cohorts" else who


def value_text(path: str, value: object) -> str:
    """Return a value of a field in words: options without underscores, the meaning of an empty field."""
    if isinstance(value, (str, type(None))):
        words = _title_and_words(*_declarations(path))[1]
        if value in words:
            return words[value]
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    if class_texts.is_texts(value):
        return class_texts.summary(value)  # type: ignore[arg-type]
    if isinstance(value, (list, tuple)):
        return ", ".join(value_text(path, v) for v in value)
    if not isinstance(value, str):
        return json.dumps(value, default=str)
    return value if path.partition(".")[0] in _VERBATIM else value.replace("_", " ")


def _declarations(path: str) -> tuple[ModelTypes, str]:
    """Return the models that may declare a field, the most likely one first, and the field's name."""
    path = path.removeprefix("sweep.")
    part, _, rest = path.partition(".")
    before, _, name = path.rpartition(".")
    if part == "cohorts" and rest:
        return (BackboneConfig if before.endswith(".backbone") else CohortConfig,), name
    if before == "method.tuned":
        return (Tuned,), name
    if before == part and part in _SECTIONS:
        return (_SECTIONS[part],), name
    if part in _SECTIONS and part != "method":  # a name of a column
        return (), name
    if not before and (name in Experiment.model_fields or name in RunConfig.model_fields):
        return (Experiment,), name
    methods = registry.loaded()
    who = before.removeprefix("methods.")
    if part == "methods" and who in methods:
        return (methods[who].Config,), name
    # by module, so that a title does not depend on which method was imported first
    built_in_first = sorted(methods, key=lambda n: (registry.file_of(n) is not None, methods[n].__module__))
    return (*(methods[n].Config for n in built_in_first), CohortConfig), name


@lru_cache(maxsize=2048)
def _title_and_words(models: ModelTypes, name: str) -> tuple[str, dict[str | None, str]]:
    """Return a field's title and the words for its values, which a base class may declare."""
    title = ""
    words: dict[str | None, str] = {}
    for model in dict.fromkeys(base for m in models for base in m.__mro__ if issubclass(base, BaseModel)):
        info = model.model_fields.get(name)
        if info is not None:
            title = title or info.title or ""
            extra: dict[str, Any] = info.json_schema_extra if isinstance(info.json_schema_extra, dict) else {}
            empty: dict[str | None, str] = {None: extra["empty"]} if "empty" in extra else {}
            words = {**empty, **extra.get("words", {}), **words}
    return title or name.replace("_", " "), words


def size_text(size: float) -> str:
    """Format a number of bytes: ``1.2 GB``, ``34 MB``, ``4.6 kB``."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            value = size / scale
            return f"{value:,.{int(value < 9.95)}f} {unit}"
    return f"{size:.0f} bytes"
