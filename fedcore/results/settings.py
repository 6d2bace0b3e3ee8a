"""Settings that make runs comparable, their titles, and a config as a flat table."""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from fedcore.base.consent import CALLABLE
from fedcore.base.errors import FedLensError, first_line
from fedcore.config import (
    PARTITION_FIELDS,
    Experiment,
    PartitionConfig,
    RunConfig,
    Tuned,
    backbone_names,
    backbones,
    data_names,
)
from fedcore.config.field_names import data_titles, field_phrase, value_text
from fedcore.data import catalog
from fedcore.methods import class_texts, registry
from fedcore.results.statistics import group_by
from fedcore.store import RunRow, Store
from fedcore.store.runs import FinishedRun

NOT_COMPARED = (
    "seed",
    "held_out",
    "method.label",
    "method.file",
    "data.root",
    "time_limit",
    "keep_checkpoints",
    *(f"method.tuned.{name}" for name in Tuned.model_fields if name not in ("search", "draws", "sampler")),
)
"""Fields that never make rows differ: the seed, names and places of things, what changes no number, and what
follows from a search."""
_OTHER_ROOT = re.compile(r"(transfer|further_data)\.\d+\.root")
NAMED_FIELDS = 2
"""Differing fields that are added to equal labels of rows; more are added only if needed."""
OF_SETTING = ("data.", "partition.", "backbone.", "cohorts", "transfer", "further_data")
"""Beginnings of the fields that rows of one setting have in common."""
_EMBEDDED = {entry.name for entry in catalog.entries() if entry.embedded}


def setting_key(config: RunConfig, environment: Mapping[str, Any] | None = None) -> str:
    """Return a key that is equal for runs of the same data, partition, backbone and held-out protocol.

    Values that are defaults are left out of this key and of ``row_key``, so that a field which FedLens gains
    later changes neither, and links stay valid.

    Args:
        environment: recorded with the run. Its fingerprints ``data`` and ``transfer`` distinguish data sets
            of one name, wherever they are stored; runs without them are distinguished by their folders.
            Embedded data is the same everywhere. ``weights`` tells versions of a ``callable`` apart.
    """
    places: dict[str, Any] = {
        "data": {"root"},
        "transfer": {"__all__": {"root"}},
        "further_data": {"__all__": {"root"}},
    }
    part = config.model_dump(
        mode="json",
        include={*places, "partition", "backbone", "cohorts"},
        exclude=places,
        exclude_defaults=True,
    )
    unused = unused_fields(config.partition)
    part["partition"] = {n: v for n, v in part.get("partition", {}).items() if n not in unused}
    if {other.name for other in config.transfer} - _EMBEDDED:
        fingerprint = (environment or {}).get("transfer")
        roots = [other.root for other in config.transfer]
        part["transfer_content"] = {"root": roots} if fingerprint is None else {"data": fingerprint}
    if not _is_embedded(config):
        fingerprint = (environment or {}).get("data")
        part["content"] = {"root": config.data.root} if fingerprint is None else {"data": fingerprint}
    if _is_own_encoder(config):
        part["encoder"] = (environment or {}).get("weights")
    part["lodo"] = config.held_out is not None
    if config.held_out is not None and config.held_out_share == "all":
        part["held_out_share"] = "all"
    return hashlib.sha256(json.dumps(part, sort_keys=True).encode()).hexdigest()[:12]


def _is_embedded(config: RunConfig) -> bool:
    """Return whether all data that clients train on come with FedLens."""
    return {config.data.name, *(other.name for other in config.further_data)} <= _EMBEDDED


def _is_own_encoder(config: RunConfig) -> bool:
    return CALLABLE in {backbone.name for backbone in backbones(config)}


def unused_fields(partition: PartitionConfig) -> set[str]:
    """Return the fields that a partition of this kind ignores."""
    unused = set(PartitionConfig.model_fields) - {"kind", *PARTITION_FIELDS[partition.kind]}
    return unused | {"dirichlet_form"} if partition.alpha is None else unused


def row_key(config: RunConfig, trained_by_fedlens: bool = True) -> str:
    """Return a key that is equal for runs if their configs differ only in seed, held-out domain and label.

    A default counts as its value, written out or not, and fields that the partition ignores do not count;
    the stored ``group_hash`` is different for such runs.

    Args:
        trained_by_fedlens: False for results of other code, which do not count as seeds of our methods.
    """
    values = non_defaults(config, trained_by_fedlens)
    content = [trained_by_fedlens, {n: v for n, v in values.items() if is_compared(n)}]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def non_defaults(config: RunConfig, trained_by_fedlens: bool) -> dict[str, Any]:
    """Return ``flatten`` of the values that differ from the defaults, those of the method included."""
    values = _hyper_parameters(config, trained_by_fedlens, exclude_defaults=True)
    method = config.method.model_copy(update={"config": values})
    return flatten(config.model_copy(update={"method": method}), exclude_defaults=True)


def is_compared(field: str) -> bool:
    """Return whether a field can make rows differ, see ``NOT_COMPARED``."""
    return field not in NOT_COMPARED and not _OTHER_ROOT.fullmatch(field)


def setting_title(config: RunConfig) -> str:
    """Return data, partition and backbone as a title, ``rotated-digits · by domain · mini-vit``."""
    return f"{data_titles(config)} · {protocol_title(config)}"


def protocol_title(config: RunConfig) -> str:
    """Return a setting's title without its data: settings that share it differ in these alone."""
    partition = config.partition
    kinds = {
        "domain": "by domain",
        "iid": "IID",
        "dirichlet": f"Dirichlet({partition.alpha:g})" if partition.alpha else "Dirichlet",
    }
    if partition.kind == "blocks":
        kinds["blocks"] = f"blocks of {partition.classes_per_client} classes"
    kind = kinds.get(partition.kind, partition.kind)
    parts = [kind, backbone_title(config)]
    parts += [f"transfer to {', '.join(other.name for other in config.transfer)}"] if config.transfer else []
    parts += ["unseen clients"] if partition.unseen else []
    parts += ["cross-class"] if config.data.training_classes == "own" else []
    parts += ["base to new classes"] if config.data.training_classes == "base" else []
    whole = ", tested on all its images" if config.held_out_share == "all" else ""
    parts += [f"one domain held out{whole}"] if config.held_out is not None else []
    return " · ".join(parts)


def worth(config: RunConfig | Experiment) -> str:
    """Say what results of a config are no evidence about; empty if nothing limits them."""
    return catalog.miniature_note((b.name for b in backbones(config)), data_names(config))


NO_EVIDENCE = " (no evidence)"


def backbone_title(config: RunConfig | Experiment) -> str:
    """Name the CLIP models of a config, marked like a rehearsal's values if they say nothing about CLIP."""
    return backbone_names(config) + (NO_EVIDENCE if worth(config) else "")


def setting_keys(
    store: Store, runs: Iterable[RunRow | FinishedRun], configs: Mapping[int, RunConfig]
) -> dict[int, str]:
    """Return the ``setting_key`` of each run with a config, computed once for all with one stored hash."""
    cached: dict[tuple[str, bool], str] = {}
    keys = {}
    for run in runs:
        if (config := configs.get(run.id)) is None:
            continue
        stored = run.group_hash, run.held_out is None
        if stored not in cached and is_same_everywhere(config):
            cached[stored] = setting_key(config)
        keys[run.id] = cached.get(stored) or setting_key(config, store.runs.environment(run.id))
    return keys


def is_same_everywhere(config: RunConfig) -> bool:
    """Return whether a config alone tells which data and encoder its runs had."""
    others = {other.name for other in config.transfer} - _EMBEDDED
    return _is_embedded(config) and not others and not _is_own_encoder(config)


def distinct_titles(settings: Mapping[str, RunConfig]) -> dict[str, str]:
    """Return a title per setting; what differs is added to equal titles, or else the start of the key."""
    titles = {key: setting_title(config) for key, config in settings.items()}
    for title, keys in group_by(settings, titles.__getitem__).items():
        if len(keys) == 1:
            continue
        flat = [{n: v for n, v in flatten(settings[k]).items() if n.startswith(OF_SETTING)} for k in keys]
        names = [n for n in flat[0] if len({str(f.get(n)) for f in flat}) > 1]
        texts = [", ".join(f"{field_phrase(n)} {value_text(n, f.get(n))}" for n in names) for f in flat]
        distinct = len(keys) == len(set(texts)) and len(texts[0]) <= 80
        for key, text in zip(keys, texts, strict=True):
            titles[key] = f"{title} [{text if distinct else key[:4]}]"
    return titles


def flatten(config: RunConfig, *, exclude_defaults: bool = False) -> dict[str, Any]:
    """Return a config with dotted names, lists as tuples, cohorts by number (``cohorts.0.clients``).

    Texts by class become one short text. Fields that the partition ignores are left out, and those of a
    search in a run that comes from none.
    """
    unused = {f"partition.{name}" for name in unused_fields(config.partition)}
    unused |= {f"method.{name}" for name in ("draw", "tuned") if getattr(config.method, name) is None}

    def walk(value: Any, prefix: str) -> Iterable[tuple[str, Any]]:
        if isinstance(value, list) and any(isinstance(inner, dict) for inner in value):
            value = {str(i): inner for i, inner in enumerate(value)}
        if isinstance(value, dict) and not class_texts.is_texts(value):
            for key, inner in value.items():
                yield from walk(inner, f"{prefix}.{key}" if prefix else key)
        else:
            yield prefix, _plain(value)

    content = config.model_dump(mode="json", exclude_defaults=exclude_defaults)
    return {name: v for name, v in walk(content, "") if name not in unused}


def config_for_display(config: RunConfig, trained_by_fedlens: bool) -> dict[str, Any]:
    """Return ``flatten``, where FedLens trained also with hyper-parameters that were left at their defaults.

    Those of a method that is not known here, such as one from a user's file, are as recorded.
    """
    values = _hyper_parameters(config, trained_by_fedlens)
    return flatten(config) | {f"method.config.{name}": _plain(value) for name, value in values.items()}


def _hyper_parameters(
    config: RunConfig, trained_by_fedlens: bool, *, exclude_defaults: bool = False
) -> dict[str, Any]:
    if trained_by_fedlens:
        with suppress(FedLensError):
            known = registry.build_config(config.method.name, config.method.config)
            return known.model_dump(mode="json", exclude_defaults=exclude_defaults)
    return config.method.config


def distinguishing_texts(flat: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a text per config with the first fields that differ, and more where two texts would be equal.

    Numbers that are equal as printed are written with all their digits.
    """
    differing = [n for n in dict.fromkeys(n for f in flat for n in f) if is_compared(n)]
    differing = [n for n in differing if len({str(f.get(n)) for f in flat}) > 1]
    named = differing[:NAMED_FIELDS]
    for name in differing[NAMED_FIELDS:]:
        count, larger = (len({str([f.get(n) for n in ns]) for f in flat}) for ns in (named, [*named, name]))
        named += [name] if larger > count else []
    rounded, exact = (
        [", ".join(f"{field_phrase(n)} {text(n, f[n])}" for n in named if n in f) for f in flat]
        for text in (value_text, lambda _, value: str(value))
    )
    return rounded if len(set(rounded)) == len(flat) else exact


def _plain(value: Any) -> Any:
    if class_texts.is_texts(value):
        return class_texts.summary(value)
    return tuple(value) if isinstance(value, list) else value


def result_caveat(config: RunConfig) -> str:
    """Say how a finished run departs from its config; empty if it does not, or if that is unknown."""
    try:
        method_config = registry.build_config(config.method.name, config.method.config)
    except FedLensError:  # a method from a user's own file
        return ""
    method = registry.get(config.method.name)
    try:
        caveat: object = method.result_caveat(method_config, _is_embedded(config))
    except Exception as error:  # noqa: BLE001 - code of the user; results stay readable
        return f"{method.__name__}.result_caveat raised {first_line(error)}"
    if not isinstance(caveat, str):
        return f"{method.__name__}.result_caveat returns {caveat!r}, and not a text"
    return caveat
