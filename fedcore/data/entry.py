"""The facts that the catalog holds of one data set, and how its names are compared; nothing is loaded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedcore.errors import FedLensError, did_you_mean
from fedcore.paths import ASSETS

CLASSES = ASSETS / "classes.json"
"""Class names as the data sets write them in their folders or label files, in the order of their labels."""

ONE_DOMAIN = "all"
"""Name of the only domain of a data set without domains."""


def squash(name: str) -> str:
    """Reduce the spellings of a name (``Real World``, ``real_world``, ``RealWorld``) to one."""
    return "".join(character for character in name.lower() if character.isalnum())


@dataclass(frozen=True)
class Entry:
    """One data set of the catalog.

    Attributes:
        name: key in an experiment, e.g. ``pacs``.
        title: as shown.
        domains: in the data set's order (folder names for data sets on disk); empty if any are accepted.
        classes: the data set's own names, in the order of its labels (sorted for domain sets); empty where
            they are read from the folder.
        template: prompt with one ``{}`` for the class name.
        source: what it is and where it comes from.
        citation: the reference to give.
        licence: what is known of its terms; a note, not advice.
        how_to_get: instructions, for the error message and the page.
        embedded: it comes with FedLens and needs no folder.
        descriptions: file with the written descriptions of an embedded set's classes; empty: its own name.
        loader: name of the reader (a key of ``loaders.LOADERS``) that knows its layout.
        counts: images of each domain where the literature agrees on them; empty if it does not.
        releases: name of an earlier release -> its images of each domain, where papers used it.
        class_count: number of classes, where ``classes`` are read from the folder.
        official_split: a description of its own split; empty if it has none.
        aliases: other spelling of a domain or class -> the data set's own name.
        subset: its folder may hold more classes than the data set uses.
        torchvision: class of ``torchvision.datasets`` that downloads it; empty if there is none.
        megabytes: approximate size of that download.
    """

    name: str
    title: str
    domains: tuple[str, ...]
    classes: tuple[str, ...]
    template: str
    source: str
    licence: str
    how_to_get: str
    citation: str = ""
    embedded: bool = False
    descriptions: str = ""
    loader: str = "domains"
    counts: Mapping[str, int] = field(default_factory=dict)
    releases: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    class_count: int | None = None
    official_split: str = ""
    aliases: Mapping[str, str] = field(default_factory=dict)
    subset: bool = False
    torchvision: str = ""
    megabytes: int | None = None


def select_domains(
    where: str | Path, known: Sequence[str], wanted: Iterable[str] | None, kind: str = "domain"
) -> tuple[str, ...]:
    """Return the wanted ones of a data set's domains, in its own order; all of them for None.

    Args:
        where: the data set's name or path, for the error message.
        kind: what the names are called there.

    Raises:
        FedLensError: ``data.domains``, for an unknown domain or none at all.
    """
    if wanted is None:
        return tuple(known)
    chosen = set(wanted)
    unknown = sorted(chosen - set(known))
    if unknown or not chosen:
        listed = ", ".join(known[:12]) + (", ..." if len(known) > 12 else "")
        problem = f"no {kind} '{unknown[0]}'" if unknown else "no domain chosen"
        hint = did_you_mean(unknown[0] if unknown else "", known, f"choose from {listed}")
        raise FedLensError(f"{where}: {problem}; {hint}", "data.domains")
    return tuple(name for name in known if name in chosen)
