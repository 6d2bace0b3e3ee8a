"""The data sets that can be named: their facts, and loading them."""

import json
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields, replace
from typing import Any, NamedTuple

import numpy as np

from fedcore.base.errors import FedLensError, did_you_mean
from fedcore.base.files import ASSETS
from fedcore.base.progress import counted
from fedcore.data import copies
from fedcore.data.copies import HUB
from fedcore.data.drawn import digits, shapes
from fedcore.data.images import (
    CLASSES,
    MINI_MODELS,
    ONE_DOMAIN,
    Entry,
    FolderError,
    Hub,
    ImageSet,
    select_domains,
)

_CATALOG = ASSETS / "catalog.toml"


class _Embedded(NamedTuple):
    """A data set that comes with FedLens."""

    classes: Sequence[str]
    domains: Sequence[str]
    template: str
    load: Callable[[], ImageSet]


_EMBEDDED = {
    "rotated-digits": _Embedded(digits.CLASSES, digits.DOMAINS, digits.TEMPLATE, digits.load),
    "shapes": _Embedded(shapes.CLASSES, shapes.DOMAINS, shapes.TEMPLATE, shapes.load),
    **{
        name: _Embedded(large.classes, large.domains, shapes.TEMPLATE, large.load)
        for name, large in shapes.LARGE_SETS.items()
    },
}


def read_entry(name: str, given: Mapping[str, Any]) -> Entry:
    """Return an entry from its fields in the file; missing and unknown ones are refused."""
    required = {f.name: f.default is MISSING and f.default_factory is MISSING for f in fields(Entry)}
    values: dict[str, Any] = {"domains": (), "classes": (), **given, "name": name}
    faults = [f"'{field}' is missing" for field in required if required[field] and field not in values]
    faults += [f"'{field}' is not a field" for field in values if field not in required]
    if faults:
        raise FedLensError(
            f"{_CATALOG.name}: [{name}]: {', '.join(faults)}; fedcore/data/images.py explains each field"
        )
    if "hub" in values:
        values["hub"] = Hub(**values["hub"])
    if "hub" in values or "torchvision" in values:
        size = f" ({values['megabytes']:,} MB)" if "megabytes" in values else ""
        get = f"`fedlens data get {name}` downloads it{size}. Or by hand: "
        values["how_to_get"] = get + values["how_to_get"]
    return Entry(**values | {field: tuple(values[field]) for field in ("domains", "classes")})


def _read_entries() -> dict[str, Entry]:
    classes = json.loads(CLASSES.read_text(encoding="utf-8"))
    result = {}
    for name, given in tomllib.loads(_CATALOG.read_text(encoding="utf-8")).items():
        if name in _EMBEDDED:
            ours = _EMBEDDED[name]
            given |= {"classes": ours.classes, "domains": ours.domains, "template": ours.template}
            given["embedded"] = True
        elif name in classes:
            given["classes"] = classes[name]
        result[name] = read_entry(name, given)
    return result


_ENTRIES = _read_entries()


def entries() -> list[Entry]:
    """Return all data sets, the embedded ones first."""
    return list(_ENTRIES.values())


def names() -> tuple[str, ...]:
    """Return the names of all data sets."""
    return tuple(_ENTRIES)


def entry(name: str) -> Entry:
    """Return a data set by name, or one of the Hub (``hf:owner/name``); unknown names are refused."""
    if name in _ENTRIES:
        return _ENTRIES[name]
    if name.startswith(HUB):
        return _hub_entry(name)
    hint = did_you_mean(name, _ENTRIES, f"choose one of {', '.join(_ENTRIES)}", number=2)
    raise FedLensError(f"unknown data set '{name}'; {hint}", "data.name")


def miniature_note(backbones: Iterable[str], data: Iterable[str]) -> str:
    """Say what results on some data are worth if a miniature backbone never saw such images; else empty."""
    mini = [name for name in dict.fromkeys(backbones) if name in MINI_MODELS]
    if not mini or all(name in _ENTRIES and _ENTRIES[name].embedded for name in data):
        return ""
    trained = "was trained" if len(mini) == 1 else "were trained"
    return f"No evidence about CLIP: {' and '.join(mini)} {trained} on drawings and digits alone."


def _hub_entry(name: str) -> Entry:
    repo = name.removeprefix(HUB)
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repo):
        raise FedLensError(f"'{name}' names no data set of the Hub; write it as {HUB}owner/name", "data.name")
    return replace(
        _ENTRIES["hf-dataset"],
        name=name,
        title=repo,
        source="a data set of the Hugging Face Hub",
        how_to_get=f"`fedlens data get {name}` downloads it.",
        hub=Hub(repo),
    )


def prompt(name: str, template: str | None) -> str | None:
    """Return the prompt that ``data.template`` asks for; None for the data set's own."""
    if template != "coop":
        return template
    found = entry(name)
    if not found.template_coop:
        raise FedLensError(f"CoOp has no prompt for {found.title}; write one", "data.template")
    return found.template_coop


def _read_as(name: str, coop_split: bool, coop_classes: bool) -> Entry:
    """Return a data set's entry, adapted if the split or the classes are CoOp's."""
    found = entry(name)
    if coop_classes and not coop_split and not found.classes_coop:
        raise FedLensError(f"CoOp has no other classes of {found.title}; set classes = all", "data.classes")
    if not coop_split:
        return found if coop_classes else replace(found, classes_coop={})
    if not found.split_coop:
        raise FedLensError(
            f"CoOp has no split for {found.title}; choose official, 60/20/20 or 80/20", "data.split"
        )
    return replace(
        found,
        loader="coop",
        classes=(),
        class_count=None,
        counts={},
        releases={},
        hub=None,  # a table of images lacks the file
        classes_coop={},  # the file has CoOp's names already
        how_to_get=entry("coop-split").how_to_get,
    )


def class_names(
    name: str,
    root: str | None = None,
    domains: Sequence[str] | None = None,
    columns: Mapping[str, str] | None = None,
    *,
    coop_split: bool = False,
    coop_classes: bool = False,
) -> tuple[str, ...]:
    """Return the classes that ``load`` would find, without listing images or opening one."""
    found = _read_as(name, coop_split, coop_classes)
    if found.embedded:
        return found.classes
    from fedcore.data.readers import loaders

    root, columns = place(found, root, columns)
    classes = loaders.class_names(found, root, domains, columns)
    return tuple(filter(None, (found.classes_coop.get(one, one) for one in classes)))


def load(
    name: str,
    root: str | None = None,
    domains: Sequence[str] | None = None,
    template: str | None = None,
    columns: Mapping[str, str] | None = None,
    *,
    coop_split: bool = False,
    coop_classes: bool = False,
) -> tuple[ImageSet, list[str]]:
    """Load a data set by name; also return warnings about images that are left out.

    Args:
        root: folder on this machine, except for embedded data.
        domains: the domains to use, in any order; None for all.
        template: prompt with one ``{}``, or ``coop`` for CoOp's; None for the data set's default.
        columns: names of the columns of a manifest or Hugging Face data set, if they differ from FedLens'.
        coop_split: read the images, classes and parts of CoOp's split file in the folder.
        coop_classes: leave out the classes that CoOp's code leaves out, and use its names.
    """
    found = _read_as(name, coop_split, coop_classes)
    template = prompt(name, template)
    warnings: list[str] = []
    if found.embedded:
        images = _EMBEDDED[name].load().restrict(select_domains(name, found.domains, domains))
    else:
        from fedcore.data.readers import loaders

        root, columns = place(found, root, columns)
        images, warnings = loaders.load(found, root, domains, columns)
        images = replace(images, root=str(root))
        warnings = [*warnings, *count_warnings(found, images)]
        images = _with_classes(images, found.classes_coop)
    return (replace(images, template=template) if template else images), warnings


def _with_classes(images: ImageSet, names: Mapping[str, str]) -> ImageSet:
    """Return the images with some classes renamed; those of classes with an empty new name are left out."""
    if not names:
        return images
    renamed = tuple(names.get(name, name) for name in images.classes)
    classes = tuple(filter(None, renamed))
    labels = replace(images, classes=renamed).labels_among(classes)
    rows = np.flatnonzero(labels >= 0)
    return images.changed(rows, classes, classes=classes, labels=labels[rows])


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


def place(
    entry: Entry, root: str | None, columns: Mapping[str, str] | None = None
) -> tuple[str, Mapping[str, str] | None]:
    """Return folder and columns of a data set that is not embedded: those given, or those of ``data get``."""
    if root:
        return root, columns
    copy = copies.registered(entry.name)
    if copy is None or (copy.repo and entry.hub is None):
        raise FolderError(f"{entry.title} is not on this machine. {entry.how_to_get}")
    return copy.root, columns or copy.columns
