"""Get a data set: say what it is, download it, read and count it, and only then register it."""

import contextlib
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
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
_POLL_SECONDS = 0.5


@dataclass(frozen=True)
class Offer:
    """A data set that can be got.

    Attributes:
        address: where its images come from.
        licence: what is known of its terms.
        size: bytes to download: those of the catalog, or after ``ask`` the Hub's; None if unknown.
        revision: the commit that will be read, if it is known already.
        remark: what else the user should know before the first byte; may be empty.
    """

    entry: Entry
    address: str
    licence: str
    size: int | None
    revision: str = ""
    remark: str = ""


@dataclass(frozen=True)
class Item:
    """A data set and where it is; ``offer`` says what a get would download, ``copy`` what one has brought."""

    entry: Entry
    state: State
    offer: Offer | None = None
    copy: Copy | None = None


def shelf() -> list[Item]:
    """Return all data sets but those of the user's own folders: the copies ``hf:...``, then the catalog."""
    own = [Item(catalog.entry(copy.name), "here", None, copy) for copy in copies.every()]
    return [item for item in own if item.entry.name.startswith(HUB)] + [
        item(entry.name) for entry in catalog.entries() if entry.embedded or not entry.is_own
    ]


def item(name: str) -> Item:
    """Return where a data set is, without a network."""
    entry = catalog.entry(name)
    offer, copy = _offer(entry), copies.registered(name)
    state: State = "here" if copy else "get" if offer else "included" if entry.embedded else "by hand"
    return Item(entry, state, offer, copy)


def _offer(entry: Entry) -> Offer | None:
    size = None if entry.megabytes is None else entry.megabytes * 1_000_000
    if entry.hub is not None:
        return Offer(entry, hub.address(entry.hub.repo), entry.licence, size, entry.hub.revision)
    if entry.torchvision:
        return Offer(entry, "the authors' archive, through torchvision", entry.licence, size)
    return None


def ask(name: str, revision: str | None = None) -> Offer:
    """Return what ``get`` would download, as the Hub says at this moment.

    Args:
        revision: a commit, tag or branch; default: that of the catalog, of an earlier get, or the newest.
    """
    entry = catalog.entry(name)
    offer = _offer(entry)
    if offer is None:
        remedy = "comes with FedLens; there is nothing to download"
        if not entry.embedded:
            remedy = f"has no automatic download. {entry.how_to_get}"
        raise FedLensError(f"{entry.title} {remedy}", "data.name")
    if entry.hub is None:
        return offer
    pinned = _pinned(entry)
    found = hub.ask(entry.hub.repo, revision or pinned, entry.hub.archive)
    remarks = []
    if found.gated:
        remarks.append(f"Its terms must have been accepted on {found.address} (then `hf auth login`).")
    if pinned and not revision and found.newest != pinned:
        remarks.append(f"The repository has changed since; this is its revision {pinned[:7]}, as before.")
    if found.here:
        remarks.append("All of it is in the Hub's cache, so that nothing is downloaded.")
    licence = "; ".join(filter(None, (entry.licence, found.licence and f"its card says {found.licence}")))
    return Offer(entry, found.address, licence, found.size, found.revision, " ".join(remarks))


def _pinned(entry: Entry) -> str | None:
    """Return the commit that a data set is read from: the catalog's, or that of an earlier get."""
    assert entry.hub is not None
    copy = copies.registered(entry.name)
    return entry.hub.revision or (copy.revision if copy else None)


def get(offer: Offer, root: str | None = None, columns: Mapping[str, str] | None = None) -> Work[Copy]:
    """Download a data set, count its images, and register it, if they are those that the catalog expects.

    Progress is in bytes while it downloads. What is complete is not downloaded again.

    Args:
        offer: the answer of ``ask``.
        root: folder for an authors' archive; default: a folder in FedLens' cache.
        columns: of a repository of the Hub, as in ``data.columns``.
    """
    entry = offer.entry
    if entry.hub is not None:
        folder = yield from _from_hub(offer)
    else:
        folder = yield from _from_archive(entry, root)
    yield Progress(f"counting the images of {entry.title}", 0, 0)
    images, _ = yield from prepare_then(
        lambda: catalog.load_checked(entry.name, str(folder), columns=columns)
    )
    wrong = catalog.count_warnings(entry, images)
    if wrong:
        remedy = "choose another --revision"
        if entry.hub is not None:
            remedy += f', or use it under its own name, "{HUB}{entry.hub.repo}"'
        raise FolderError(f"{wrong[0]} at {offer.address}; it is not used as {entry.title}: {remedy}")
    copy = Copy(
        name=entry.name,
        root=str(folder),
        repo=entry.hub.repo if entry.hub else "",
        revision=offer.revision,
        licence=offer.licence,
        size=offer.size or 0,
        columns=dict(columns or {}),
        domains=images.domains,
        classes=images.classes,
        counts=tuple(map(tuple, images.class_counts().tolist())),
    )
    copies.register(copy, contact_sheet(images))
    yield Progress(f"{entry.title} is on this machine", copy.size, copy.size)
    return copy


def _from_hub(offer: Offer) -> Work[Path]:
    """Download a commit of a repository into the Hub's cache, and make it readable."""
    entry, title = offer.entry, offer.entry.title
    assert entry.hub is not None
    folder = hub.snapshot_folder(entry.hub.repo, offer.revision)
    size = offer.size or 0
    _require_room(folder, size, entry)
    for done, _ in hub.snapshot(entry.hub.repo, offer.revision, entry.hub.archive):
        yield Progress(f"downloading {title}", done, size, in_bytes=True)
    if entry.hub.archive:
        return (folder / entry.hub.archive).parent
    yield from hf.prepare(folder)
    return folder


def _require_room(folder: Path, size: int, entry: Entry) -> None:
    """Refuse a download for which the disk has no room: its files, and as much again to read them from."""
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if free < 2 * size:
        raise FolderError(
            f"{entry.title} needs about {2 * size / 1e9:,.1f} GB, and the disk of {folder} has "
            f"{free / 1e9:,.1f} GB free; free space, or set HF_HOME to a folder on a larger disk"
        )


def _from_archive(entry: Entry, root: str | None) -> Work[Path]:
    """Download the authors' archive through torchvision, which compares checksums, and unpack it."""
    folder = user_path(root or cache_folder() / "data" / entry.name, "data.root")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FolderError(
            f"cannot create the folder {folder} ({error.strerror}); choose another root"
        ) from error
    total = (entry.megabytes or 0) * 1_000_000

    def fetch() -> None:
        import torchvision.datasets

        getattr(torchvision.datasets, entry.torchvision)(str(folder), download=True)

    try:
        for _ in in_thread(fetch, _POLL_SECONDS):
            done = min(_size(folder), total)
            step = "downloading" if done < total else "unpacking"
            yield Progress(f"{step} {entry.title}", done, total, in_bytes=True)
    except Exception as error:  # of the network library, of checksums, of the disk
        raise FolderError(
            f"{entry.title} cannot be downloaded into {folder} ({first_line(error)}); try again with "
            "a network connection and enough space, or download it yourself"
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
