"""Get a data set: say what it is, download it, read and count it, and only then register it."""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from fedcore.base import hub
from fedcore.base.errors import FedLensError, first_line
from fedcore.base.files import cache_folder, user_path
from fedcore.base.progress import Progress, Work, in_thread, prepare_then
from fedcore.data import catalog, copies
from fedcore.data.check import contact_sheet
from fedcore.data.copies import HUB, Copy
from fedcore.data.images import Entry, FolderError
from fedcore.data.readers import hf

State = Literal["included", "here", "get", "by hand"]
"""Where a data set is: it comes with FedLens, was got, can be got, or its user has to download it."""
_ARCHIVES = (".zip", ".gz", ".tgz", ".tar", ".mat")


@dataclass(frozen=True)
class Item:
    """A data set, where it is, and what a get would download.

    Attributes:
        copy: what a get has brought.
        address: where a get has its images from; empty if the data set cannot be got.
        licence: what is known of its terms.
        size: bytes to download: those of the catalog, or after ``ask`` the Hub's; None if unknown.
        remark: what else the user should know before the first byte; may be empty.
        upstream: the answer of the Hub; None for an authors' archive, and before ``ask``.
    """

    entry: Entry
    state: State
    copy: Copy | None
    address: str
    licence: str
    size: int | None
    remark: str = ""
    upstream: hub.Upstream | None = None


def shelf() -> list[Item]:
    """Return where every data set is, the copies called ``hf:owner/name`` first, without a network."""
    names = [copy.name for copy in copies.every() if copy.name.startswith(HUB)]
    names += [entry.name for entry in catalog.entries() if entry.embedded or not entry.is_own]
    return [item(name) for name in names]


def item(name: str) -> Item:
    """Return where a data set is, without a network."""
    entry, copy = catalog.entry(name), copies.registered(name)
    size = None if entry.megabytes is None else entry.megabytes * 1_000_000
    address = "the authors' archive, through torchvision" if entry.torchvision else ""
    address = hub.address(entry.hub.repo) if entry.hub is not None else address
    state: State = "here" if copy else "get" if address else "included" if entry.embedded else "by hand"
    return Item(entry, state, copy, address, entry.licence, size)


def ask(name: str, revision: str | None = None) -> Item:
    """Return a data set with what ``get`` would download, as the Hub says at this moment.

    Args:
        revision: a commit, tag or branch; default: that of the catalog, of an earlier get, or the newest.
    """
    found = item(name)
    entry = found.entry
    if not found.address:
        remedy = "comes with FedLens; there is nothing to download"
        if not entry.embedded:
            remedy = f"has no automatic download. {entry.how_to_get}"
        raise FedLensError(f"{entry.title} {remedy}", "data.name")
    if entry.hub is None:
        return found
    pinned = entry.hub.revision or (found.copy.revision if found.copy else None)
    upstream = hub.ask(entry.hub.repo, revision or pinned, [entry.hub.archive] * bool(entry.hub.archive))
    remarks = []
    if upstream.gated:
        remarks.append(f"Its terms must have been accepted on {found.address} (then `hf auth login`).")
    if pinned and not revision and upstream.newest != pinned:
        remarks.append(f"The repository has changed since; this is its revision {pinned[:7]}, as before.")
    if upstream.here:
        remarks.append("All of it is in the Hub's cache, so that nothing is downloaded.")
    licence = f"{entry.licence}; its card says {upstream.licence}" if upstream.licence else entry.licence
    return replace(found, licence=licence, size=upstream.size, remark=" ".join(remarks), upstream=upstream)


def get(offer: Item, root: str | None = None, columns: Mapping[str, str] | None = None) -> Work[Copy]:
    """Download a data set, count its images, and register it, if they are those that the catalog expects.

    Progress is in bytes while it downloads. What is complete is not downloaded again.

    Args:
        offer: the answer of ``ask``.
        root: folder for an authors' archive; default: a folder in FedLens' cache.
        columns: of a repository of the Hub, as in ``data.columns``.
    """
    entry, upstream = offer.entry, offer.upstream
    if upstream is None:
        folder = yield from _from_archive(entry, root)
    else:
        folder = yield from hub.download(upstream, entry.title)
        if upstream.file:
            folder = (folder / upstream.file).parent
        else:
            yield from hf.prepare(folder)
    yield Progress(f"counting the images of {entry.title}", 0, 0)
    images, _ = yield from prepare_then(lambda: catalog.load(entry.name, str(folder), columns=columns))
    if wrong := catalog.count_warnings(entry, images):
        own = f' or use it under its own name, "{HUB}{upstream.repo}"' if upstream else " or get it by hand"
        remedy = f"it is not used as {entry.title}: choose another --revision,{own}"
        raise FolderError(f"{wrong[0]} at {offer.address}; {remedy}")
    copy = Copy(
        name=entry.name,
        root=str(folder),
        repo=upstream.repo if upstream else "",
        revision=upstream.revision if upstream else "",
        licence=offer.licence,
        size=offer.size or 0,
        columns=dict(columns or {}),
        domains=images.domains,
        classes=images.classes,
        counts=images.class_counts().tolist(),
    )
    copies.register(copy, contact_sheet(images))
    return copy


def _from_archive(entry: Entry, root: str | None) -> Work[Path]:
    """Download the authors' archive through torchvision, which compares checksums, and unpack it."""
    folder = user_path(root or cache_folder() / "data" / entry.name, "data.root")
    total = (entry.megabytes or 0) * 1_000_000

    def fetch() -> None:
        import torchvision.datasets

        folder.mkdir(parents=True, exist_ok=True)
        getattr(torchvision.datasets, entry.torchvision)(str(folder), download=True)

    try:
        for _ in in_thread(fetch):
            done = min(_size(folder), total)
            step = "downloading" if done < total else "unpacking"
            yield Progress(f"{step} {entry.title}", done, total, in_bytes=True)
    except Exception as error:  # of the network library, of checksums, of the disk
        raise FolderError(
            f"{entry.title} cannot be downloaded into {folder} ({first_line(error)}); try again with "
            "a network connection, a folder that can be written and enough space, or download it yourself"
        ) from error
    return folder


def _size(folder: Path) -> int:
    """Return the bytes of archives downloaded so far, which torchvision writes one or two folders down."""
    size = 0
    for path in (*folder.glob("*"), *folder.glob("*/*")):
        if path.name.endswith(_ARCHIVES):
            with contextlib.suppress(FileNotFoundError):  # deleted after unpacking
                size += path.stat().st_size
    return size
