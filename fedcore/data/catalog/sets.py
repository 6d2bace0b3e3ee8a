"""The known data sets by name: their facts, the written descriptions of their classes, and loading them."""

from __future__ import annotations

import difflib
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fedcore.data.catalog.entries import ENTRIES
from fedcore.data.entry import ONE_DOMAIN, Entry, select_domains
from fedcore.data.images import ImageSet
from fedcore.errors import FedLensError
from fedcore.paths import ASSETS
from fedcore.progress import Work

DESCRIPTIONS = ASSETS / "descriptions"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DataFacts:
    """The facts of a data set that are known without opening an image."""

    classes: tuple[str, ...]
    domains: tuple[str, ...]
    template: str


def entries() -> list[Entry]:
    """Return all data sets, the embedded ones first."""
    return list(ENTRIES)


def entry(name: str) -> Entry:
    """Return a data set by name.

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
    """Return classes, domains and template as ``load`` would give them, fast, from names alone.

    Raises:
        FedLensError: ``data.name``, ``data.root`` or ``data.domains``.
    """
    known = entry(name)
    if known.embedded:
        chosen = select_domains(name, known.domains, domains)
        return DataFacts(known.classes, chosen, template or known.template)
    from fedcore.data.readers import loaders

    classes, chosen = loaders.names(known, _root(known, root), domains, columns)
    return DataFacts(classes, chosen, template or known.template)


def load(
    name: str,
    root: str | None = None,
    domains: Sequence[str] | None = None,
    template: str | None = None,
    columns: Mapping[str, str] | None = None,
) -> ImageSet:
    """Load a data set by name; images that are left out are logged as warnings.

    Args:
        root: folder on this machine, for all but the embedded data.
        domains: the domains to use, None for all; the data set's own order is kept.
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
    """Load a data set as ``load`` does, and return the warnings instead of logging them."""
    known = entry(name)
    warnings: list[str] = []
    if known.embedded:
        images = _embedded(known, domains)
    else:
        from fedcore.data.readers import loaders

        images, warnings = loaders.load(known, _root(known, root), domains, columns)
        images = replace(images, root=str(root))
        warnings = [*warnings, *count_warnings(known, images)]
    return (replace(images, template=template) if template else images), warnings


def count_warnings(entry: Entry, images: ImageSet) -> list[str]:
    """Warn where a data set does not have as many images or classes as the literature says."""
    if ONE_DOMAIN in entry.counts:  # known for the whole set only
        whole = images.domains == entry.domains
        pairs = [(ONE_DOMAIN, len(images), entry.counts[ONE_DOMAIN])] if whole else []
    else:
        held = np.bincount(images.domain, minlength=len(images.domains)).tolist()
        known = zip(images.domains, held, strict=True)
        pairs = [(name, n, entry.counts[name]) for name, n in known if name in entry.counts]
    lines = []
    off = [f"{name} {n:,} of {expected:,}" for name, n, expected in pairs if n != expected]
    if off:
        n, expected = sum(n for _, n, _ in pairs), sum(expected for _, _, expected in pairs)
        detail = f" ({', '.join(off)})" if len(pairs) > 1 else ""
        lines.append(f"{entry.title}: {expected:,} images expected, {n:,} found{detail}")
    if entry.class_count not in (None, len(images.classes)):
        lines.append(f"{entry.title}: {entry.class_count} classes expected, {len(images.classes)} found")
    return lines


def download(name: str, root: str | Path) -> Work[None]:
    """Download a data set through torchvision; call it only when the user asks for it.

    Raises:
        FedLensError: ``data.name`` or ``data.root``, as ``downloads.fetch``.
    """
    from fedcore.data.catalog import downloads

    return downloads.fetch(entry(name), root)


def descriptions(name: str, root: str | None = None) -> dict[str, list[str]]:
    """Read the written descriptions of each class (FedAlign's GT): embedded, or from ``descriptions.json``.

    The file maps class names, as they enter the prompt, to lists of sentences. It is in the data set's folder
    or beside it; without one the result is empty.

    Raises:
        FedLensError: ``data.root``, if the file is not such a mapping.
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
    """Find the file with the written descriptions of a data set's classes; None if there is none."""
    known = entry(name)
    if known.embedded:
        return DESCRIPTIONS / f"{name}.json"
    folder = Path(_root(known, root)).expanduser()
    paths = (folder / "descriptions.json", folder.parent / "descriptions.json")
    return next((path for path in paths if path.is_file()), None)


def descriptions_version(name: str, root: str | None = None) -> str:
    """Return a text that changes with the written descriptions; empty without descriptions or a folder."""
    if not entry(name).embedded and not root:
        return ""
    path = descriptions_file(name, root)
    try:
        stat = None if path is None else path.stat()
    except OSError:
        return ""
    return "" if stat is None else f"{path} {stat.st_mtime_ns} {stat.st_size}"


def descriptions_of(name: str, root: str | None, classes: Sequence[str]) -> dict[str, list[str]]:
    """Return the written descriptions of these classes; ``fire_engine`` and ``fire engine`` are one name.

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


class LazyDescriptions(Mapping[str, Sequence[str]]):
    """``descriptions_of``, read at the first access: a file that is not needed may be missing or broken."""

    def __init__(self, name: str, root: str | None, classes: Sequence[str]) -> None:
        self._arguments = name, root, classes

    @cached_property
    def _texts(self) -> dict[str, list[str]]:
        return descriptions_of(*self._arguments)

    def __getitem__(self, name: str) -> Sequence[str]:
        return self._texts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)


def read_descriptions(content: bytes, where: str) -> dict[str, list[str]]:
    """Read the content of a ``descriptions.json``.

    Args:
        where: name of the file in an error message.

    Raises:
        FedLensError: ``data.root``, if it does not map classes to lists of texts.
    """
    try:
        texts_of: Any = json.loads(content.decode("utf-8-sig"))
    except ValueError as error:
        raise FedLensError(f"{where}: not readable as JSON ({error})", "data.root") from error
    valid = isinstance(texts_of, dict) and all(
        isinstance(texts, list) and texts and all(isinstance(t, str) and t.strip() for t in texts)
        for texts in texts_of.values()
    )
    if not valid:
        raise FedLensError(f'{where}: expected {{"class": ["a description", ...], ...}}', "data.root")
    return dict(texts_of)


def _root(entry: Entry, root: str | None) -> str:
    if not root:
        raise FedLensError(f"{entry.title} needs its folder on this machine. {entry.how_to_get}", "data.root")
    return root


def _embedded(entry: Entry, domains: Sequence[str] | None) -> ImageSet:
    from fedcore.data.drawn import digits, shapes

    images = digits.load() if entry.name == "rotated-digits" else shapes.load()
    return images.restrict(select_domains(entry.name, entry.domains, domains))
