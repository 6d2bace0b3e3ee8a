"""Which runs pose the same problem, under what title, and a config as a flat table."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedcore.config import RunConfig
from fedcore.data.entries import ENTRIES
from fedcore.runs import queries

_EMBEDDED = {entry.name for entry in ENTRIES if entry.embedded}


def setting_key(config: RunConfig, environment: Mapping[str, Any] | None = None) -> str:
    """Equal for runs that pose the same problem.

    Args:
        environment: what the run ran under. Its ``data`` tells data sets of one name apart, wherever they
            lie; runs without it are told apart by their folder. Embedded data is the same everywhere.
    """
    part = config.model_dump(mode="json", include={"data", "partition", "backbone"})
    root = part["data"].pop("root")
    if config.data.name not in _EMBEDDED:
        found = (environment or {}).get("data")
        part["content"] = {"root": root} if found is None else {"data": found}
    part["lodo"] = config.held_out is not None
    return hashlib.sha256(json.dumps(part, sort_keys=True).encode()).hexdigest()[:12]


def setting_title(config: RunConfig) -> str:
    """``rotated-digits · domain · mini-vit``: the data, who holds what, the CLIP."""
    part = config.partition
    who = {
        "domain": "by domain",
        "iid": "IID",
        "dirichlet": f"Dirichlet({part.alpha:g})" if part.alpha else "Dirichlet",
    }
    parts = [config.data.name, who.get(part.kind, part.kind), config.backbone.name]
    parts += ["one domain held out"] if config.held_out is not None else []
    return " · ".join(parts)


def keys_of(db: str | Path, configs: Mapping[int, RunConfig]) -> dict[int, str]:
    """``setting_key`` of recorded runs. What embedded data ran under is not read: it tells nothing apart."""
    return {
        i: setting_key(c, None if c.data.name in _EMBEDDED else queries.environment(db, i))
        for i, c in configs.items()
    }


def distinct_titles(settings: dict[str, str]) -> dict[str, str]:
    """Titles that tell settings apart, by key where the words are equal."""
    titles = list(settings.values())
    return {k: f"{t} [{k[:4]}]" if titles.count(t) > 1 else t for k, t in settings.items()}


def flatten(config: RunConfig) -> dict[str, Any]:
    """A run's config as dotted names, lists as text."""

    def walk(value: Any, prefix: str) -> Iterable[tuple[str, Any]]:
        if isinstance(value, dict) and value:
            for key, inner in value.items():
                yield from walk(inner, f"{prefix}.{key}" if prefix else key)
        else:
            yield prefix, json.dumps(value) if isinstance(value, (list, dict)) else value

    return dict(walk(config.model_dump(mode="json"), ""))
