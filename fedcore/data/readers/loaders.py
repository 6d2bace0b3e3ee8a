"""How each data set of the catalog is read from disk: by the reader that its entry names."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from fedcore.data.entry import Entry
from fedcore.data.images import ImageSet
from fedcore.data.readers import (
    archives,
    ddr,
    folders,
    hf,
    leaf,
    lists,
    manifest,
    tiny_imagenet,
    torchvision_sets,
)
from fedcore.data.readers.layout import chosen_domains, class_folders, layout, named, prompt_names
from fedcore.data.readers.listing import Listing, listing
from fedcore.data.readers.prepare import NotPrepared, do_first
from fedcore.data.readers.walk import NotHere, existing

_Result = TypeVar("_Result")

Found = Listing | tuple[ImageSet, list[str]]
"""Files with their labels, of which the usable ones are taken; or a data set that is no image files."""


def _domains(found: Entry, bases: Sequence[Path], domains: Sequence[str] | None) -> Listing:
    own = named(found, bases, domains)
    return listing(own, prompt_names(own.root, own.classes))


def _folder(found: Entry, bases: Sequence[Path], domains: Sequence[str] | None) -> Listing:
    own = layout(bases[-1], domains)
    return listing(own, prompt_names(own.root, own.classes))


LOADERS: dict[str, Callable[[Entry, Sequence[Path], Sequence[str] | None], Found]] = {
    "folder": _folder,
    "domains": _domains,
    "lists": lists.load,
    "ddr": ddr.load,
    "leaf": leaf.load,
    "classes": torchvision_sets.classes,
    "cifar": torchvision_sets.cifar,
    "pets": torchvision_sets.pets,
    "food": torchvision_sets.food,
    "flowers": torchvision_sets.flowers,
    "dtd": torchvision_sets.dtd,
    "tiny": tiny_imagenet.load,
}
"""Name in ``Entry.loader`` -> reader(entry, bases, domains). The bases are where to look, the root first."""


def find(
    found: Entry, root: str, domains: Sequence[str] | None, columns: Mapping[str, str] | None = None
) -> Found:
    """A data set's files with their labels, not yet opened; or the data set, where it is no image files.

    Args:
        columns: names of the columns of a manifest or Hugging Face data set, where they are its own.

    Raises:
        FedLensError: ``data.root``, ``data.domains`` or ``data.columns``.
    """
    if found.loader == "hf":
        images, report = hf.read(
            root, name=found.name, template=found.template, domains=domains, columns=columns
        )
        return images, report.warnings()
    if found.loader == "manifest":
        return manifest.listing(manifest.read(root, domains, columns))
    return in_bases(found, root, lambda bases: LOADERS[found.loader](found, bases, domains))


def load(
    found: Entry, root: str, domains: Sequence[str] | None, columns: Mapping[str, str] | None = None
) -> tuple[ImageSet, list[str]]:
    """A data set from its folder or archive, and what was left out of it.

    Raises:
        FedLensError: as ``find``; ``data.root`` where no image is readable.
    """
    read = find(found, root, domains, columns)
    if not isinstance(read, Listing):
        return read
    with _named(found, root):
        images, report = folders.collect(read, name=found.name, template=found.template)
    return images, report.warnings()


def names(
    found: Entry, root: str, domains: Sequence[str] | None, columns: Mapping[str, str] | None = None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Classes, as they enter a prompt, and domains as ``load`` would give them; no image is opened.

    Raises:
        FedLensError: ``data.root``, ``data.domains`` or ``data.columns``.
    """
    if found.loader == "hf":
        return hf.names(root, domains, columns)
    if found.loader == "manifest":
        rows = manifest.read(root, domains, columns)
        return prompt_names(rows.path, rows.classes), rows.domains

    def look(bases: Sequence[Path]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        if found.loader == "tiny":
            return tiny_imagenet.names(found, bases), chosen_domains(found, domains)
        if found.loader == "leaf":
            return found.classes, leaf.names(found, bases, domains)
        if found.loader in ("folder", "domains") or not found.classes:
            own = layout(bases[-1], domains) if found.loader == "folder" else named(found, bases, domains)
            return prompt_names(own.root, own.classes), own.domains
        if found.loader == "classes":
            class_folders(found, bases)
        return torchvision_sets.prompts(found), chosen_domains(found, domains)

    return in_bases(found, root, look)


def in_bases(found: Entry, root: str, attempt: Callable[[Sequence[Path]], _Result]) -> _Result:
    """Look for something in a data set's folder or archive, and if it is not there in what is packed in it.

    Raises:
        NotPrepared: ``data.root``, within ``put_off``, with the command that does what is to be done first.
        FedLensError: ``data.root``, when there is no such folder; what ``attempt`` raises; as
            ``archives.unpack``.
    """
    with _named(found, root):
        return _in_bases(root, attempt)


@contextmanager
def _named(found: Entry, root: str) -> Iterator[None]:
    """What has to be prepared is told with the command for this data set."""
    try:
        yield
    except NotPrepared as missing:
        named = "" if found.loader in ("folder", "manifest") else f"{found.name} --root "
        command = f"data check {named}{shlex.quote(root)}"
        raise NotPrepared(missing.what, missing.work, command) from None


def unpacked(packed: Sequence[Path]) -> Path:
    """The folder with what is in the archives; unpacks them first if that has not been done.

    Raises:
        NotPrepared: within ``put_off``.
        FedLensError: as ``archives.unpack``.
    """
    place = archives.target(packed)
    if not place.is_dir():
        more = f" and {len(packed) - 1} more" if len(packed) > 1 else ""
        do_first(f"{packed[0]}{more} has to be unpacked into {place}", lambda: archives.unpack(packed))
    return place


def _in_bases(root: str, attempt: Callable[[Sequence[Path]], _Result]) -> _Result:
    path = Path(root).expanduser()
    if archives.is_archive(path):
        return attempt((unpacked([path.resolve()]),))
    base = existing(root)
    try:
        return attempt((base,))
    except NotHere:
        packed = archives.packed_in(base)
        if not packed:
            raise
    return attempt((base, unpacked(packed)))
