"""The blocks of docs/methods/: each method's idea and its table of fields."""

from __future__ import annotations

import json
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from fedcore.methods import registry
from fedcore.methods.hyperparameters import MethodConfig
from tools.docs.blocks import FOLDER, fill

PAGES = FOLDER / "methods"
SIGNS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


def render(text: str) -> str:
    """Return a page with every block written from the code.

    Raises:
        FedLensError: for a marker that names no method.
    """
    return fill(text, {"idea": idea, "fields": fields})


def idea(name: str) -> str:
    """Return a method's paper and its idea."""
    about = registry.get(name).about
    return f"*{about.source}.*\n\n{about.summary}\n"


def fields(name: str) -> str:
    """Return a table of a method's own fields, or of those that all methods have (``all``)."""
    if name == "all":
        return table(MethodConfig, {})
    config = registry.get(name).Config
    return table(config, MethodConfig.model_fields if issubclass(config, MethodConfig) else {})


def table(config: type[BaseModel], common: dict[str, FieldInfo]) -> str:
    """Return a row for each field that is not exactly as in ``common``."""
    specific = {n: f for n, f in config.model_fields.items() if n not in common or not _equal(f, common[n])}
    if not specific:
        return "No field of its own.\n"
    rows = ["| field | default | allowed | meaning |", "|---|---|---|---|"]
    for name, field in specific.items():
        cells = f"`{name}`", _default(field), _allowed(field), field.description or ""
        rows.append("| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |")
    return "\n".join(rows) + "\n"


def _equal(one: FieldInfo, other: FieldInfo) -> bool:
    return (one.default, one.description) == (other.default, other.description)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value: Any = field.get_default(call_default_factory=True)
    if value is None:
        return str((field.json_schema_extra or {}).get("empty", "none"))  # type: ignore[union-attr]
    return f"`{value or '(empty)' if isinstance(value, str) else json.dumps(value, default=str)}`"


def _allowed(field: FieldInfo) -> str:
    """Return the choices or the range of a field, in short."""
    kinds = get_args(field.annotation) if get_origin(field.annotation) is not Literal else ()
    choices = [c for k in (field.annotation, *kinds) if get_origin(k) is Literal for c in get_args(k)]
    if choices:
        return ", ".join([f"`{c}`" for c in choices] + ["a number"] * (float in kinds))
    if field.annotation is bool:
        return "`true`, `false`"
    limits = [(SIGNS[n], getattr(m, n)) for m in field.metadata for n in SIGNS if hasattr(m, n)]
    return ", ".join(f"{sign} {limit:g}" for sign, limit in limits) or "see meaning"
