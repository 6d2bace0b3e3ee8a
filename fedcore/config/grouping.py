"""Which runs a table averages over: those whose configs say the same, seed and held-out domain aside.

A group's name is stored with each run, so it must outlive the fields that FedLens grows. The fields of the
first release (``assets/first_fields.json``) always count; one that came later counts only where it differs
from its default, so that a run of before it existed and one that leaves it alone stay in one group. Hence a
rule for later fields: their default says "as before", and it does not change.
"""

from __future__ import annotations

import hashlib
import json
from functools import cache
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from fedcore.paths import ASSETS

if TYPE_CHECKING:
    from fedcore.config import RunConfig

_FIRST = ASSETS / "first_fields.json"
_PLACES = (("method", "label"), ("method", "file"), ("data", "root"))
"""Where the data and the method's file lie, and what it is called, does not matter."""


def group_hash(run: RunConfig) -> str:
    """Equal for runs that differ by seed or held-out domain only: what a table averages over."""
    content = lasting(run)
    del content["seed"], content["held_out"]
    for part, name in _PLACES:
        content[part].pop(name)
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def lasting(run: RunConfig) -> dict[str, Any]:
    """A run's whole config without the later fields that have their default: the same in every release."""
    content = run.model_dump(mode="json")
    first = _first_fields()
    for part in ("data", "partition", "backbone", "method"):
        _drop_later(content[part], type(getattr(run, part)), first[part])
    _drop_later(content, type(run), first["run"])
    _drop_later_of_method(content["method"])
    return content


@cache
def _first_fields() -> dict[str, Any]:
    return json.loads(_FIRST.read_text(encoding="utf-8"))


def _drop_later(content: dict[str, Any], model: type[BaseModel], first: list[str]) -> None:
    """Take out the later fields that have their default, as the model writes it in JSON."""
    for name, field in model.model_fields.items():
        if name in content and name not in first and not field.is_required():
            default = model.model_construct(**{name: field.get_default(call_default_factory=True)})
            if content[name] == default.model_dump(mode="json", include={name})[name]:
                del content[name]


def _drop_later_of_method(entry: dict[str, Any]) -> None:
    """Likewise for the hyper-parameters of the first methods; of others, every value written counts.

    A method of the user's own is known by what is in its file, whose hash a new field changes anyway.
    """
    first = _first_fields()["methods"].get(entry["name"])
    if first is None or entry["sha256"]:
        return
    from fedcore.methods import registry

    _drop_later(entry["config"], registry.get(entry["name"]).Config, first)
