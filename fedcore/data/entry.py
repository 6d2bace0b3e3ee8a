"""A data set's entry in the catalog, and how its names are compared; nothing is loaded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedcore.errors import FedLensError, did_you_mean
from fedcore.files import ASSETS

CLASSES = ASSETS / "classes.json"
"""Class names as in the data sets' folders or label files, in the order of their labels."""

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
        classes: as the data set spells them, in the order of its labels (sorted for domain sets); empty if
            they are read from the folder.
        template: prompt with one ``{}`` for the class name.
        source: its content and origin.
        citation: the reference to give, and ``bibtex`` the same for LaTeX.
        licence: a note on its terms, not legal advice.
        how_to_get: instructions, for the error message and the page.
        embedded: it comes with FedLens and needs no folder.
        descriptions: file with the written descriptions of an embedded set's classes; empty: ``name``.
        loader: name of its reader (a key of ``loaders.LOADERS``).
        counts: images of each domain if the literature agrees on them, else empty.
        releases: name of an earlier release that papers used -> its images of each domain.
        class_count: number of classes, if ``classes`` are read from the folder.
        official_split: a description of its split; empty if it has none.
        split_coop: file of CoOp's few-shot split, in which ``*`` matches any text; empty if CoOp has none.
        classes_coop: class as it enters a prompt -> its name in CoOp's code, "" if that leaves it out;
            classes that are not listed have the same name.
        template_coop: CoOp's prompt; empty if CoOp does not have the data set.
        aliases: other spelling of a domain or class -> the name in ``domains`` or ``classes``.
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
    bibtex: str = ""
    embedded: bool = False
    descriptions: str = ""
    loader: str = "domains"
    counts: Mapping[str, int] = field(default_factory=dict)
    releases: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    class_count: int | None = None
    official_split: str = ""
    split_coop: str = ""
    classes_coop: Mapping[str, str] = field(default_factory=dict)
    template_coop: str = ""
    aliases: Mapping[str, str] = field(default_factory=dict)
    subset: bool = False
    torchvision: str = ""
    megabytes: int | None = None


def select_domains(
    where: str | Path, domains: Sequence[str], wanted: Iterable[str] | None, kind: str = "domain"
) -> tuple[str, ...]:
    """Return the wanted domains of a data set in its order; all of them for None.

    Args:
        where: the data set's name or path, for the error message.
        kind: the word for a domain, for the error message.
    """
    if wanted is None:
        return tuple(domains)
    chosen = set(wanted)
    unknown = sorted(chosen - set(domains))
    if unknown or not chosen:
        listed = ", ".join(domains[:12]) + (", ..." if len(domains) > 12 else "")
        problem = f"no {kind} '{unknown[0]}'" if unknown else "no domain chosen"
        hint = did_you_mean(unknown[0] if unknown else "", domains, f"choose from {listed}")
        raise FedLensError(f"{where}: {problem}; {hint}", "data.domains")
    return tuple(name for name in domains if name in chosen)
