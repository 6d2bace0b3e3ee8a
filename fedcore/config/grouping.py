"""Groups of runs that a table averages over: their configs are equal apart from seed and held-out domain.

The hash of a group is stored with each run, so it must not change when FedLens gains fields. The fields of
the first release (``assets/first_fields.json``) always count. A field added later counts only where it
differs from its default, so that a run stored before the field existed stays in one group with a run that
leaves the field alone. Hence a rule for new fields: the default means "as before", and it never changes.
"""

from __future__ import annotations

import hashlib
import json
from functools import cache
from typing import Any, cast

from pydantic import BaseModel

from fedcore.config.former_names import current_config, former_config
from fedcore.config.models import RunConfig
from fedcore.methods import registry
from fedcore.methods.hyperparameters import MethodConfig
from fedcore.paths import ASSETS

_FIRST = ASSETS / "first_fields.json"
_PLACES = (("method", "label"), ("method", "file"), ("data", "root"))
"""Fields that do not count: the method's name in tables, and the paths of its file and of the data."""
_LATER = {"arithmetic"}
"""Hyper-parameters that all methods were given after the first of their runs was stored."""


def group_hash(run: RunConfig) -> str:
    """Return a hash that is equal for runs that differ in seed or held-out domain only.

    The time limit, the checkpoints kept and the paths of the data and of the method's file do not matter; the
    file's content does.
    """
    content = stable_config(run)
    del content["seed"], content["held_out"]
    for name in ("time_limit", "keep_checkpoints"):
        content.pop(name, None)
    for part, name in _PLACES:
        content[part].pop(name)
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def stable_config(run: RunConfig) -> dict[str, Any]:
    """Return a run's config without later fields at their default; all releases give the same values."""
    content = run.model_dump(mode="json")
    first = _first_fields()
    for part in ("data", "partition", "backbone", "method"):
        _drop_later(content[part], type(getattr(run, part)), first[part])
    _drop_later(content, type(run), first["run"])
    method = content["method"]
    _drop_later_of_method(method)
    method["config"] = former_config(method["name"], method["config"])
    return content


@cache
def _first_fields() -> dict[str, Any]:
    return cast("dict[str, Any]", json.loads(_FIRST.read_text(encoding="utf-8")))


def _drop_later(content: dict[str, Any], model: type[BaseModel], first: list[str]) -> None:
    """Remove the later fields that have their default, as the model writes it in JSON."""
    for name, field in model.model_fields.items():
        if name in content and name not in first and not field.is_required():
            default = model.model_construct(**{name: field.get_default(call_default_factory=True)})
            if content[name] == default.model_dump(mode="json", include={name})[name]:
                del content[name]


def _drop_later_of_method(entry: dict[str, Any]) -> None:
    """Remove the later hyper-parameters of the methods of the first release.

    For other methods every value counts, but those that all methods were given later. A user's own method is
    identified by the hash of its file.
    """
    former = _first_fields()["methods"].get(entry["name"])
    if former is None or entry["sha256"]:
        _drop_later(entry["config"], MethodConfig, list(set(entry["config"]) - _LATER))
        return
    first = list(current_config(entry["name"], dict.fromkeys(former)))
    _drop_later(entry["config"], registry.get(entry["name"]).Config, first)
