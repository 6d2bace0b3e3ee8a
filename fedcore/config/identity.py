"""The identity of runs: groups, and what a checkpoint belongs to.

A table averages over a group, whose runs differ only in seed and held-out domain. Its hash is stored with
each run, and a checkpoint holds its run's config. Neither may change when FedLens gains fields, so both
consist of the values that differ from a field's default. Hence a rule for new fields: the default means "as
before", and the default of a field never changes.
"""

import hashlib
import json
from functools import cache
from typing import Any

from fedcore.config.models import RunConfig
from fedcore.methods import registry
from fedcore.methods.hyperparameters import MethodConfig

_PLACES = (("method", "label"), ("method", "file"), ("data", "root"))
"""Fields that do not count: the method's name in tables, and the paths of its file and of the data."""


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
        content[part].pop(name, None)
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def stable_config(run: RunConfig) -> dict[str, Any]:
    """Return a run's config without the values that are defaults; later versions give the same."""
    content = run.model_dump(mode="json", exclude_defaults=True)
    entry, found, defaults = content["method"], registry.find(run.method.name), dict[str, Any]()
    if run.method.file is not None:
        # its checksum identifies the user's own defaults, and the file need not be on this machine
        defaults = _defaults(MethodConfig)
    elif found is not None and registry.file_of(run.method.name) is None:
        defaults = _defaults(found.Config)  # in results from elsewhere all values tell groups apart
    config = {n: v for n, v in entry.get("config", {}).items() if n not in defaults or v != defaults[n]}
    return content | {"method": entry | {"config": config}}


@cache
def _defaults(model: type[MethodConfig]) -> dict[str, Any]:
    """Return the defaults of a model's fields, as a run's config stores them."""
    optional = {name for name, field in model.model_fields.items() if not field.is_required()}
    return model.model_construct().model_dump(mode="json", include=optional)
