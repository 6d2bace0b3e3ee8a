"""Settings that make runs comparable, their titles, and a config as a flat table."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedcore.config import PARTITION_FIELDS, PartitionConfig, RunConfig, backbone_names
from fedcore.config.field_names import data_words, field_words, value_text
from fedcore.data.catalog.entries import ENTRIES
from fedcore.errors import FedLensError
from fedcore.methods import class_texts, registry
from fedcore.methods.optional import ClassTexts
from fedcore.store import Store

NOT_COMPARED = ("seed", "held_out", "method.label", "method.file", "data.root")
"""What rows of a table do not differ in: the seed, and where things lie or what they are called."""
NAMED_FIELDS = 2
"""Fields that differ between rows of one name and are told with it, and as many more as tell them apart."""
_SETTING = ("data.", "partition.", "backbone.", "cohorts")
_EMBEDDED = {entry.name for entry in ENTRIES if entry.embedded}


def setting_key(config: RunConfig, environment: Mapping[str, Any] | None = None) -> str:
    """Equal for runs that pose the same problem. What their kind of partition does not read is no part of it.

    Args:
        environment: what the run ran under. Its ``data`` tells data sets of one name apart, wherever they
            lie; runs without it are told apart by their folder. Embedded data is the same everywhere.
    """
    part = config.model_dump(mode="json", include={"data", "partition", "backbone", "cohorts"})
    part["partition"] = {
        n: v for n, v in part["partition"].items() if n not in unused_fields(config.partition)
    }
    root = part["data"].pop("root")
    if config.data.name not in _EMBEDDED:
        found = (environment or {}).get("data")
        part["content"] = {"root": root} if found is None else {"data": found}
    part["lodo"] = config.held_out is not None
    return hashlib.sha256(json.dumps(part, sort_keys=True).encode()).hexdigest()[:12]


def unused_fields(partition: PartitionConfig) -> set[str]:
    """Fields of a partition that change nothing: other kinds', and the shares' form where none are drawn."""
    found = set(PartitionConfig.model_fields) - {"kind", *PARTITION_FIELDS[partition.kind]}
    return found | {"dirichlet_form"} if partition.alpha is None else found


def row_key(config: RunConfig, here: bool = True) -> str:
    """Equal for runs of one setting that do the same: seed, held-out domain and label aside.

    A default counts as itself, written out or not, and what the partition does not read counts for nothing;
    ``group_hash``, which is stored, tells such runs apart.

    Args:
        here: whether FedLens trained it. Other code is no further seed of a method of the same name.
    """
    content = {
        name: value for name, value in config_for_display(config, here).items() if name not in NOT_COMPARED
    }
    content["here"] = here
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def setting_title(config: RunConfig) -> str:
    """``rotated-digits · domain · mini-vit``: the data, who holds what, the CLIP."""
    part = config.partition
    who = {
        "domain": "by domain",
        "iid": "IID",
        "dirichlet": f"Dirichlet({part.alpha:g})" if part.alpha else "Dirichlet",
    }
    parts = [data_words(config.data), who.get(part.kind, part.kind), backbone_names(config)]
    parts += ["one domain held out"] if config.held_out is not None else []
    return " · ".join(parts)


def setting_keys(store: Store, configs: Mapping[int, RunConfig]) -> dict[int, str]:
    """``setting_key`` of recorded runs. What embedded data ran under is not read: it tells nothing apart."""
    return {
        i: setting_key(c, None if c.data.name in _EMBEDDED else store.runs.environment(i))
        for i, c in configs.items()
    }


def distinct_titles(settings: Mapping[str, RunConfig]) -> dict[str, str]:
    """Key -> title. Where titles are equal, what differs is added; where nothing does, the key."""
    titles = {key: setting_title(config) for key, config in settings.items()}
    found = {}
    for key, title in titles.items():
        twins = [k for k, t in titles.items() if t == title]
        flat = {k: {n: v for n, v in flatten(settings[k]).items() if n.startswith(_SETTING)} for k in twins}
        names = [n for n in flat[key] if len({str(flat[k].get(n)) for k in twins}) > 1]
        said = [", ".join(f"{field_words(n)} {value_text(n, flat[k].get(n))}" for n in names) for k in twins]
        distinct = len(twins) == len(set(said)) and len(said[0]) <= 80
        more = said[twins.index(key)] if distinct else key[:4]
        found[key] = title if len(twins) == 1 else f"{title} [{more}]"
    return found


def flatten(config: RunConfig) -> dict[str, Any]:
    """A run's config as dotted names; lists as tuples, cohorts by their number (``cohorts.0.clients``).

    Texts by class are one short text. What the kind of partition does not read is left out.
    """
    idle = {f"partition.{name}" for name in unused_fields(config.partition)}

    def walk(value: Any, prefix: str) -> Iterable[tuple[str, Any]]:
        if isinstance(value, list) and any(isinstance(inner, dict) for inner in value):
            value = {str(i): inner for i, inner in enumerate(value)}
        if isinstance(value, dict) and not class_texts.is_texts(value):
            for key, inner in value.items():
                yield from walk(inner, f"{prefix}.{key}" if prefix else key)
        else:
            yield prefix, _plain(value)

    return {name: v for name, v in walk(config.model_dump(mode="json"), "") if name not in idle}


def flatten_with_defaults(config: RunConfig) -> dict[str, Any]:
    """``flatten`` with the hyper-parameters that were left at their defaults too.

    Those of a method that is not known here, say one of somebody's own file, are as recorded.
    """
    flat = flatten(config)
    try:
        known = registry.build_config(config.method.name, config.method.config)
    except FedLensError:
        return flat
    own = {f"method.config.{k}": v for k, v in known.model_dump(mode="json").items()}
    return flat | {name: _plain(value) for name, value in own.items()}


def config_for_display(config: RunConfig, here: bool) -> dict[str, Any]:
    """``in_full`` of what FedLens trained; of a run from elsewhere only what was recorded with it."""
    return flatten_with_defaults(config) if here else flatten(config)


def distinguishing_texts(flat: Sequence[Mapping[str, Any]]) -> list[str]:
    """A text per config: the first fields that differ, then those without which two texts would be equal.

    Numbers that are equal as printed are written out.
    """
    differing = [n for n in dict.fromkeys(n for f in flat for n in f) if n not in NOT_COMPARED]
    differing = [n for n in differing if len({str(f.get(n)) for f in flat}) > 1]
    named = differing[:NAMED_FIELDS]
    for name in differing[NAMED_FIELDS:]:
        apart, wider = (len({str([f.get(n) for n in ns]) for f in flat}) for ns in (named, [*named, name]))
        named += [name] if wider > apart else []
    rounded, exact = (
        [", ".join(f"{field_words(n)} {text(n, f[n])}" for n in named if n in f) for f in flat]
        for text in (value_text, lambda _, value: str(value))
    )
    return rounded if len(set(rounded)) == len(flat) else exact


def _plain(value: Any) -> Any:
    if class_texts.is_texts(value):
        return class_texts.summary(value)
    return tuple(value) if isinstance(value, list) else value


def result_caveat(config: RunConfig) -> str:
    """How a finished run departs from what its method's config promises; empty: it does not, or who knows."""
    try:
        own = registry.build_config(config.method.name, config.method.config)
    except FedLensError:  # a method of somebody's own file
        return ""
    method = registry.get(config.method.name)
    return method.result_caveat(own, config.data.name in _EMBEDDED) if issubclass(method, ClassTexts) else ""
