"""The built-in data sets: their facts, and loading them."""

from __future__ import annotations

import json
import logging
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from fedcore.data.drawn import digits, shapes
from fedcore.data.entry import CLASSES, ONE_DOMAIN, Entry, select_domains
from fedcore.data.images import ImageSet
from fedcore.errors import FedLensError, did_you_mean
from fedcore.paths import ASSETS
from fedcore.progress import counted

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DataFacts:
    """The facts of a data set that are known without opening an image."""

    classes: tuple[str, ...]
    domains: tuple[str, ...]
    template: str


_EMBEDDED: dict[str, tuple[DataFacts, Callable[[], ImageSet]]] = {
    "rotated-digits": (DataFacts(digits.CLASSES, digits.DOMAINS, digits.TEMPLATE), digits.load),
    "shapes": (DataFacts(shapes.CLASSES, shapes.DOMAINS, shapes.TEMPLATE), shapes.load),
    **{
        name: (DataFacts(large.classes, large.domains, shapes.TEMPLATE), large.load)
        for name, large in shapes.LARGE_SETS.items()
    },
}
"""Name -> facts of a data set that comes with FedLens, and the function that loads it."""


def _read_entries() -> dict[str, Entry]:
    classes = json.loads(CLASSES.read_text(encoding="utf-8"))
    result = {}
    for name, fields in tomllib.loads((ASSETS / "catalog.toml").read_text(encoding="utf-8")).items():
        if name in _EMBEDDED:
            fields |= asdict(_EMBEDDED[name][0])
        fields["domains"] = tuple(fields.get("domains", ()))
        fields["classes"] = tuple(fields.get("classes") or classes.get(name, ()))
        result[name] = Entry(name=name, embedded=name in _EMBEDDED, **fields)
    return result


_ENTRIES = _read_entries()


def entries() -> list[Entry]:
    """Return all data sets, the embedded ones first."""
    return list(_ENTRIES.values())


def names() -> tuple[str, ...]:
    """Return the names of all data sets."""
    return tuple(_ENTRIES)


def entry(name: str) -> Entry:
    """Return a data set by name; an unknown name is refused with the nearest ones."""
    if name in _ENTRIES:
        return _ENTRIES[name]
    hint = did_you_mean(name, _ENTRIES, f"choose one of {', '.join(_ENTRIES)}", number=2)
    raise FedLensError(f"unknown data set '{name}'; {hint}", "data.name")


def facts(
    name: str,
    root: str | None = None,
    domains: Sequence[str] | None = None,
    template: str | None = None,
    columns: Mapping[str, str] | None = None,
) -> DataFacts:
    """Return classes, domains and template as ``load`` would, without opening an image."""
    found = entry(name)
    if found.embedded:
        chosen = select_domains(name, found.domains, domains)
        return DataFacts(found.classes, chosen, template or found.template)
    from fedcore.data.readers import loaders

    classes, chosen = loaders.names(found, root_of(found, root), domains, columns)
    return DataFacts(classes, chosen, template or found.template)


def load(
    name: str,
    root: str | None = None,
    domains: Sequence[str] | None = None,
    template: str | None = None,
    columns: Mapping[str, str] | None = None,
) -> ImageSet:
    """Load a data set by name; warnings about images that are left out are logged.

    Args:
        root: folder on this machine, except for embedded data.
        domains: the domains to use, in any order; None for all.
        template: prompt with one ``{}``; None for the data set's default.
        columns: names of the columns of a manifest or Hugging Face data set, if they differ from FedLens'.
    """
    images, warnings = load_checked(name, root, domains, template, columns)
    for line in warnings:
        _log.warning(line)
    return images


def load_checked(
    name: str,
    root: str | None = None,
    domains: Sequence[str] | None = None,
    template: str | None = None,
    columns: Mapping[str, str] | None = None,
) -> tuple[ImageSet, list[str]]:
    """Load a data set as ``load`` does, and return the warnings instead of logging them."""
    found = entry(name)
    warnings: list[str] = []
    if found.embedded:
        images = _EMBEDDED[name][1]().restrict(select_domains(name, found.domains, domains))
    else:
        from fedcore.data.readers import loaders

        images, warnings = loaders.load(found, root_of(found, root), domains, columns)
        images = replace(images, root=str(root))
        warnings = [*warnings, *count_warnings(found, images)]
    return (replace(images, template=template) if template else images), warnings


def count_warnings(entry: Entry, images: ImageSet) -> list[str]:
    """Warn if a data set's numbers of images or classes differ from the literature.

    If they are those of an earlier release, the warning says so.
    """
    if ONE_DOMAIN in entry.counts:  # the literature gives only the total of all domains
        complete = images.domains == entry.domains
        pairs = [(ONE_DOMAIN, len(images), entry.counts[ONE_DOMAIN])] if complete else []
    else:
        found = np.bincount(images.domain, minlength=len(images.domains)).tolist()
        by_domain = zip(images.domains, found, strict=True)
        pairs = [(name, n, entry.counts[name]) for name, n in by_domain if name in entry.counts]
    lines = []
    off = [f"{name} {n:,} of {expected:,}" for name, n, expected in pairs if n != expected]
    if off:
        n, expected = sum(n for _, n, _ in pairs), sum(expected for _, _, expected in pairs)
        detail = f" ({', '.join(off)})" if len(pairs) > 1 else ""
        counts = {name: n for name, n, _ in pairs}
        for release, of in entry.releases.items():
            if counts.items() <= of.items():
                detail = f", as in {release}"
        lines.append(f"{entry.title}: {counted(expected, 'image')} expected, {n:,} found{detail}")
    if entry.class_count not in (None, len(images.classes)):
        lines.append(f"{entry.title}: {entry.class_count} classes expected, {len(images.classes)} found")
    return lines


def root_of(entry: Entry, root: str | None) -> str:
    """Return the folder of a data set that is not embedded."""
    if not root:
        raise FedLensError(f"{entry.title} needs its folder on this machine. {entry.how_to_get}", "data.root")
    return root
