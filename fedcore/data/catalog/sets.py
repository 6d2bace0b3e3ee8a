"""Which data sets there are, how each is described to CLIP, and how to load one by name."""

from __future__ import annotations

import difflib
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from fedcore.data.catalog.entries import ENTRIES, Entry
from fedcore.data.entry import ONE_DOMAIN
from fedcore.data.images import ImageSet
from fedcore.data.readers.archives import Step
from fedcore.errors import FedLensError
from fedcore.paths import ASSETS

DESCRIPTIONS = ASSETS / "descriptions"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DataFacts:
    """What is known of a data set without opening an image."""

    classes: tuple[str, ...]
    domains: tuple[str, ...]
    template: str


def entries() -> list[Entry]:
    """All data sets, the embedded ones first."""
    return list(ENTRIES)


def entry(name: str) -> Entry:
    """One data set by name.

    Raises:
        FedLensError: ``data.name``, with the nearest names.
    """
    by_name = {e.name: e for e in ENTRIES}
    if name in by_name:
        return by_name[name]
    near = difflib.get_close_matches(name.lower(), by_name, n=2, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"choose one of {', '.join(by_name)}"
    raise FedLensError(f"unknown data set '{name}'; {hint}", "data.name")


def facts(
    name: str,
    root: str | None = None,
    domains: Sequence[str] | None = None,
    template: str | None = None,
    columns: Mapping[str, str] | None = None,
) -> DataFacts:
    """Classes, domains and template as ``load`` would give them, from names alone: fit for a form.

    Raises:
        FedLensError: ``data.name``, ``data.root`` or ``data.domains``.
    """
    found = entry(name)
    if found.embedded:
        chosen = _embedded_domains(found, domains)
        return DataFacts(found.classes, chosen, template or found.template)
    from fedcore.data.readers import loaders

    classes, chosen = loaders.names(found, _root(found, root), domains, columns)
    return DataFacts(classes, chosen, template or found.template)


def load(
    name: str,
    root: str | None = None,
    domains: Sequence[str] | None = None,
    template: str | None = None,
    columns: Mapping[str, str] | None = None,
) -> ImageSet:
    """A data set by name, ready to be split; what was left out of it is logged as a warning.

    Args:
        root: folder on this machine, for all but the embedded data.
        domains: those to use; None for all. Their order here does not matter: the data set has its own.
        template: prompt with one ``{}``; None for the data set's own.
        columns: names of the columns of a manifest or Hugging Face data set, where they are its own.

    Raises:
        FedLensError: ``data.name``, ``data.root`` or ``data.domains``.
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
    """As ``load``, with the warnings (files left out, classes without images) handed back, not logged."""
    found = entry(name)
    if found.embedded:
        images, warnings = _embedded(found, domains), []
    else:
        from fedcore.data.readers import loaders

        images, warnings = loaders.load(found, _root(found, root), domains, columns)
        images = replace(images, root=str(root))
        warnings = [*warnings, *count_warnings(found, images)]
    return (replace(images, template=template) if template else images), warnings


def count_warnings(found: Entry, images: ImageSet) -> list[str]:
    """A line where a data set is not as large as the literature says; none where nothing is known of it."""
    if ONE_DOMAIN in found.counts:  # known of the whole set only
        whole = images.domains == found.domains
        pairs = [(ONE_DOMAIN, len(images), found.counts[ONE_DOMAIN])] if whole else []
    else:
        held = np.bincount(images.domain, minlength=len(images.domains)).tolist()
        known = zip(images.domains, held, strict=True)
        pairs = [(name, n, found.counts[name]) for name, n in known if name in found.counts]
    lines = []
    off = [f"{name} {n:,} of {expected:,}" for name, n, expected in pairs if n != expected]
    if off:
        n, expected = sum(n for _, n, _ in pairs), sum(expected for _, _, expected in pairs)
        detail = f" ({', '.join(off)})" if len(pairs) > 1 else ""
        lines.append(f"{found.title}: {expected:,} images expected, {n:,} found{detail}")
    if found.class_count not in (None, len(images.classes)):
        lines.append(f"{found.title}: {found.class_count} classes expected, {len(images.classes)} found")
    return lines


def download(name: str, root: str | Path) -> Iterator[Step]:
    """Fetch a data set through torchvision, on the user's word only; yields how far it is.

    Raises:
        FedLensError: ``data.name`` or ``data.root``, as ``downloads.fetch``.
    """
    from fedcore.data.catalog import downloads

    return downloads.fetch(entry(name), root)


def descriptions(name: str, root: str | None = None) -> dict[str, list[str]]:
    """Written descriptions of each class (FedAlign's GT): embedded, or a folder's ``descriptions.json``.

    The file maps class names, as they enter the prompt, to lists of sentences. It stands in the data set's
    folder or beside it; without one the result is empty.

    Raises:
        FedLensError: ``data.root``, when the file is not such a mapping.
    """
    path = descriptions_file(name, root)
    if path is None:
        return {}
    try:
        content = path.read_bytes()
    except OSError as error:
        raise FedLensError(f"cannot read {path}: {error.strerror}", "data.root") from error
    return read_descriptions(content, str(path))


def descriptions_file(name: str, root: str | None = None) -> Path | None:
    """Where the written descriptions of a data set's classes are; None where nobody has described them."""
    found = entry(name)
    if found.embedded:
        return DESCRIPTIONS / f"{name}.json"
    folder = Path(_root(found, root)).expanduser()
    paths = (folder / "descriptions.json", folder.parent / "descriptions.json")
    return next((path for path in paths if path.is_file()), None)


def descriptions_version(name: str, root: str | None = None) -> str:
    """Another text when the written descriptions change; empty where there are none, or no folder is set."""
    if not entry(name).embedded and not root:
        return ""
    path = descriptions_file(name, root)
    try:
        stat = None if path is None else path.stat()
    except OSError:
        return ""
    return "" if stat is None else f"{path} {stat.st_mtime_ns} {stat.st_size}"


def described(name: str, root: str | None, classes: Sequence[str]) -> dict[str, list[str]]:
    """The written descriptions of these classes; ``fire_engine`` and ``fire engine`` are one name.

    Raises:
        FedLensError: as ``descriptions``.
    """
    names: dict[str, str] = {}
    written: dict[str, list[str]] = {}
    for c, texts in descriptions(name, root).items():
        other = names.setdefault(c.replace("_", " "), c)
        if other != c:
            where = descriptions_file(name, root)
            raise FedLensError(f"{where}: '{other}' and '{c}' are one class; name it once", "data.root")
        written[c.replace("_", " ")] = texts
    return {c: written[c.replace("_", " ")] for c in classes if c.replace("_", " ") in written}


class Described(Mapping[str, Sequence[str]]):
    """``described``, read when it is first looked into: a file that is not needed may be gone or broken."""

    def __init__(self, name: str, root: str | None, classes: Sequence[str]) -> None:
        self._which = name, root, classes

    @cached_property
    def _found(self) -> dict[str, list[str]]:
        return described(*self._which)

    def __getitem__(self, name: str) -> Sequence[str]:
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


def read_descriptions(content: bytes, where: str) -> dict[str, list[str]]:
    """The content of a ``descriptions.json``. where: what it is called in an error.

    Raises:
        FedLensError: ``data.root``, when it does not map classes to lists of texts.
    """
    try:
        found = json.loads(content.decode("utf-8-sig"))
    except ValueError as error:
        raise FedLensError(f"{where}: not readable as JSON ({error})", "data.root") from error
    fits = isinstance(found, dict) and all(
        isinstance(texts, list) and texts and all(isinstance(t, str) and t.strip() for t in texts)
        for texts in found.values()
    )
    if not fits:
        raise FedLensError(f'{where}: expected {{"class": ["a description", ...], ...}}', "data.root")
    return found


def _root(found: Entry, root: str | None) -> str:
    if not root:
        raise FedLensError(f"{found.title} needs its folder on this machine. {found.how}", "data.root")
    return root


def _embedded_domains(found: Entry, domains: Sequence[str] | None) -> tuple[str, ...]:
    """The chosen domains in the data set's order."""
    if domains is None:
        return found.domains
    unknown = sorted(set(domains) - set(found.domains))
    if unknown or not domains:
        what = f"no domain '{unknown[0]}'" if unknown else "no domain chosen"
        raise FedLensError(f"{found.name}: {what}; choose from {', '.join(found.domains)}", "data.domains")
    return tuple(d for d in found.domains if d in domains)


def _embedded(found: Entry, domains: Sequence[str] | None) -> ImageSet:
    from fedcore.data.drawn import digits, shapes

    images = digits.load() if found.name == "rotated-digits" else shapes.load()
    return images.restrict(_embedded_domains(found, domains))
