"""What fields and their values are called, for people: ``partition.alpha`` is "Dirichlet alpha". No torch.

The names stand with the fields (``MethodConfig`` says how); here a path finds its field. Methods are loaded
once a path leads to a field of theirs.
"""

from __future__ import annotations

import json
from contextlib import suppress
from functools import cache, lru_cache
from pathlib import PurePath
from typing import Any

from pydantic import BaseModel

from fedcore.config.models import (
    BackboneConfig,
    CohortConfig,
    DataConfig,
    Experiment,
    MethodEntry,
    PartitionConfig,
    RunConfig,
)
from fedcore.errors import FedLensError
from fedcore.methods import class_texts, registry

Models = tuple[type[BaseModel], ...]
_OWN = ("folder", "manifest", "hf-dataset")
_SECTIONS: dict[str, type[BaseModel]] = {
    "data": DataConfig,
    "partition": PartitionConfig,
    "backbone": BackboneConfig,
    "method": MethodEntry,
}
_AS_TYPED = ("data", "backbone")
"""Parts whose texts are names, files and prompts: an underscore there belongs to them."""


def data_words(data: DataConfig) -> str:
    """A data set's name; of one's own data, which all bear the name of their form, its folder's or file's."""
    own = PurePath(data.root).name if data.name in _OWN and data.root else ""
    return f"{own} ({data.name})" if own else data.name


def reason_words(reason: str) -> str:
    """Why a run ended, its field by title: ``data.root: no folder /x`` is "Folder: no folder /x"."""
    field, sep, what = reason.partition(": ")
    section, _, name = field.partition(".")
    known = section in _SECTIONS and name in _SECTIONS[section].model_fields
    return f"{field_title(field)}: {what}" if sep and known else reason


def field_title(path: str) -> str:
    """The title of a field of an experiment, a run or a method, as it stands above a widget or a column.

    Args:
        path: dotted, as in TOML files, sweeps, errors and flattened configs (``partition.alpha``,
            ``methods.fedot.lr``, ``method.config.lr``, ``cohorts.0.clients``); of a method's field the last
            part is enough (``lr``), and FedLens' own methods then come first. A method in the path is not
            named by the title.
    """
    words = field_words(path)
    return words[:1].upper() + words[1:]


def field_words(path: str) -> str:
    """The title as it stands within a sentence: ``learning rate``, ``Dirichlet alpha``."""
    path = path.removeprefix("sweep.")
    part, _, rest = path.partition(".")
    if part != "cohorts" or not rest:
        return _said(*_declared(path))[0]
    number, _, name = rest.partition(".")
    who = f"cohort {int(number) + 1}" if number.isdecimal() else "cohorts"
    return f"{who}: {_said(*_declared(path))[0]}" if name or who == "cohorts" else who


def value_text(path: str, value: object) -> str:
    """A value of a field in words: options without underscores, what an empty field stands for, lists."""
    if isinstance(value, (str, type(None))):
        words = _said(*_declared(path))[1]
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
    return value if path.partition(".")[0] in _AS_TYPED else value.replace("_", " ")


def _declared(path: str) -> tuple[Models, str]:
    """Where the field of a path may be declared, those that come first first, and its name there."""
    path = path.removeprefix("sweep.")
    part, _, rest = path.partition(".")
    before, _, name = path.rpartition(".")
    if part == "cohorts" and rest:
        return (BackboneConfig if before.endswith(".backbone") else CohortConfig,), name
    if before == part and part in _SECTIONS:
        return (_SECTIONS[part],), name
    if part in _SECTIONS and part != "method":  # a name of a column
        return (), name
    if not before and (name in Experiment.model_fields or name in RunConfig.model_fields):
        return (Experiment,), name
    _load_methods()
    methods = registry.known()
    who = before.removeprefix("methods.")
    if part == "methods" and who in methods:
        return (methods[who].Config,), name
    own_first = sorted(methods, key=lambda n: registry.file_of(n) is not None)
    return (*(methods[n].Config for n in own_first), CohortConfig), name


@cache
def _load_methods() -> None:
    """Once: it looks for files, and a page asks for names by the thousand."""
    with suppress(FedLensError):  # a broken file of the user's own is told where methods are chosen
        registry.load_all()


@lru_cache(maxsize=2048)
def _said(models: Models, name: str) -> tuple[str, dict[str | None, str]]:
    """A field's title within a sentence, and words for its values; a base may say what a Config does not."""
    title = ""
    words: dict[str | None, str] = {}
    for model in dict.fromkeys(base for m in models for base in m.__mro__ if issubclass(base, BaseModel)):
        info = model.model_fields.get(name)
        if info is not None:
            title = title or info.title or ""
            extra: dict[str, Any] = info.json_schema_extra if isinstance(info.json_schema_extra, dict) else {}
            empty = {None: extra["empty"]} if "empty" in extra else {}
            words = {**empty, **extra.get("words", {}), **words}
    return title or name.replace("_", " "), words
