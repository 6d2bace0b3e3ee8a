"""Numbered protocols: the presets as they were frozen, such as ``fedot/table1-pacs@1``, and their errata.

A preset that is corrected gets the next number and an erratum. The former one stays in ``assets/frozen`` and
can be run by its number. A test compares every preset with the digest of its newest number.
"""

from __future__ import annotations

import hashlib
import json
from functools import cache
from typing import NamedTuple

from fedcore.config.experiment import load
from fedcore.config.models import Experiment
from fedcore.errors import FedLensError
from fedcore.files import ASSETS

FILE, FORMER = ASSETS / "frozen.json", ASSETS / "frozen"
_NOT_THE_PROTOCOL = (
    "name", "seeds", "notes", "tags", "reproduces", "time_limit", "keep_checkpoints",
)  # fmt: skip
"""Fields that a user may change without leaving the protocol."""


class Version(NamedTuple):
    """One number of a protocol.

    Attributes:
        erratum: the mistake in the preceding number; empty for the first.
    """

    number: int
    digest: str
    erratum: str


def digest_of(experiment: Experiment) -> str:
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
def versions() -> dict[str, tuple[Version, ...]]:
    """Return all numbers of each frozen protocol by the preset's name, the first number first."""
    content = json.loads(FILE.read_text(encoding="utf-8"))
    return {
        name: tuple(Version(i, one["digest"], one.get("erratum", "")) for i, one in enumerate(listed, 1))
        for name, listed in content.items()
    }


@cache
def _by_digest() -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for name, listed in versions().items():
        for version in listed:
            found[version.digest] = (*found.get(version.digest, ()), f"{name}@{version.number}")
    return found


def protocols_of(experiment: Experiment, trained_here: bool = True) -> tuple[str, ...]:
    """Return the numbered protocols that runs of an experiment follow; several presets may be one protocol.

    Args:
        trained_here: False for results of other code. What they followed only their file can say, whose
            number is a tag of the experiment; a tag that a user gives to runs of FedLens says nothing.
    """
    if trained_here:
        return _by_digest().get(digest_of(experiment), ())
    protocols = {name for names in _by_digest().values() for name in names}
    return tuple(t for t in experiment.tags if t in protocols)


def split_number(name: str) -> tuple[str, int | None]:
    """Return a preset's name without its number, and the number if there is one.

    Raises:
        FedLensError: for a number that the protocol does not have.
    """
    base, at, number = name.partition("@")
    if not at:
        return name, None
    listed = versions().get(base, ())
    if not number.isdecimal() or not 1 <= int(number[:9]) <= len(listed):
        existing = ", ".join(f"{base}@{v.number}" for v in listed) or "none"
        raise FedLensError(f"unknown protocol '{name}'; there are: {existing}", "preset")
    return base, int(number)


def former(name: str, number: int) -> Experiment | None:
    """Return an earlier number of a protocol as it was; None for the newest, which the preset is."""
    return None if number == len(versions()[name]) else load(FORMER / f"{name}@{number}.toml")
