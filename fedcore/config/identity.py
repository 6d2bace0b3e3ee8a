"""The identity of runs and experiments: groups of runs, and numbered protocols.

A table averages over a group, whose runs differ only in seed and held-out domain. Its hash is stored with
each run, and a checkpoint holds its run's config. Neither may change when FedLens gains fields, so both
consist of the values that differ from a field's default. Hence a rule for new fields: the default means "as
before", and the default of a field never changes.

A numbered protocol is a preset as it was frozen, such as ``fedot/table1-pacs@1``. A preset that is corrected
gets the next number and an erratum. The former one stays in ``assets/frozen`` and can be run by its number. A
test compares every preset with the digest of its newest number.
"""

import hashlib
import json
from functools import cache
from typing import Any, NamedTuple

from fedcore.config.experiment import load
from fedcore.config.models import Experiment, MethodEntry, RunConfig
from fedcore.errors import FedLensError
from fedcore.files import ASSETS
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
    entry, defaults = content["method"], _default_hyper_parameters(run.method)
    config = {n: v for n, v in entry.get("config", {}).items() if n not in defaults or v != defaults[n]}
    return content | {"method": entry | {"config": config}}


def _default_hyper_parameters(method: MethodEntry) -> dict[str, Any]:
    """Return the values that do not tell groups apart; in results from elsewhere all values do."""
    if method.file is not None:
        # its checksum identifies the user's own defaults, and the file need not be on this machine
        return _defaults(MethodConfig)
    found = registry.loaded().get(method.name)
    if found is None or registry.file_of(method.name) is not None:
        return {}
    return _defaults(found.Config)


@cache
def _defaults(model: type[MethodConfig]) -> dict[str, Any]:
    """Return the defaults of a model's fields, as a run's config stores them."""
    optional = {name for name, field in model.model_fields.items() if not field.is_required()}
    return model.model_construct().model_dump(mode="json", include=optional)


PROTOCOLS, FORMER_PROTOCOLS = ASSETS / "frozen.json", ASSETS / "frozen"
_NOT_THE_PROTOCOL = (
    "name",
    "seeds",
    "notes",
    "tags",
    "reproduces",
    "time_limit",
    "keep_checkpoints",
)
"""Fields that a user may change without leaving the protocol."""


class ProtocolVersion(NamedTuple):
    """One number of a protocol.

    Attributes:
        erratum: the mistake in the preceding number; empty for the first.
    """

    number: int
    digest: str
    erratum: str


def protocol_digest(experiment: Experiment) -> str:
    """Return a digest of everything that a protocol fixes: data, partition, methods, rounds, backbone.

    Seeds, names and the places of files do not count, nor do fields with their default, so that later fields
    change no digest.
    """
    content = experiment.model_dump(mode="json", exclude_defaults=True)
    for name in _NOT_THE_PROTOCOL:
        content.pop(name, None)
    for place in (content.get("data", {}), *content.get("transfer", ()), *content.get("further_data", ())):
        place.pop("root", None)
    for entry in content.get("methods", ()):
        for name in ("label", "file", "sha256"):
            entry.pop(name, None)
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


@cache
def protocol_versions() -> dict[str, tuple[ProtocolVersion, ...]]:
    """Return all numbers of each frozen protocol by the preset's name, the first number first."""
    content = json.loads(PROTOCOLS.read_text(encoding="utf-8"))
    return {
        name: tuple(
            ProtocolVersion(i, one["digest"], one.get("erratum", "")) for i, one in enumerate(listed, 1)
        )
        for name, listed in content.items()
    }


@cache
def _by_digest() -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for name, listed in protocol_versions().items():
        for version in listed:
            found[version.digest] = (*found.get(version.digest, ()), f"{name}@{version.number}")
    return found


def protocols_of(experiment: Experiment, trained_by_fedlens: bool = True) -> tuple[str, ...]:
    """Return the numbered protocols that runs of an experiment follow; several presets may be one protocol.

    Args:
        trained_by_fedlens: False for results of other code. Only their file says which protocol they
            followed; its number is a tag of the experiment. A tag that a user gives to runs of FedLens says
            nothing.
    """
    if trained_by_fedlens:
        return _by_digest().get(protocol_digest(experiment), ())
    protocols = {name for names in _by_digest().values() for name in names}
    return tuple(t for t in experiment.tags if t in protocols)


def split_number(name: str) -> tuple[str, int | None]:
    """Return a preset's name without its number, and the number if there is one."""
    base, at, number = name.partition("@")
    if not at:
        return name, None
    listed = protocol_versions().get(base, ())
    if not number.isdecimal() or not 1 <= int(number[:9]) <= len(listed):
        existing = ", ".join(f"{base}@{v.number}" for v in listed) or "none"
        raise FedLensError(f"unknown protocol '{name}'; there are: {existing}", "preset")
    return base, int(number)


def former_protocol(name: str, number: int) -> Experiment | None:
    """Return an earlier number of a protocol as it was; None for the newest, which the preset is."""
    return (
        None if number == len(protocol_versions()[name]) else load(FORMER_PROTOCOLS / f"{name}@{number}.toml")
    )
