"""Fetching a data set through torchvision. The process that does it imports torch; the pages' never does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

from fedcore.data.entry import Entry
from fedcore.data.readers.archives import Step
from fedcore.errors import FedLensError

LOOK_SECONDS = 0.5
_PACKED = (".zip", ".gz", ".tgz", ".tar", ".mat")


def fetch(found: Entry, root: str | Path) -> Iterator[Step]:
    """Download a data set into a folder and unpack it; yields how far it is, about.

    What is there already is not fetched again: torchvision compares checksums. Stopping early leaves the
    download to end with this process.

    Raises:
        FedLensError: ``data.name``, with how to get it, for a data set that torchvision does not fetch;
            ``data.root``, where the folder cannot be written or the download fails.
    """
    if not found.torchvision:
        if found.embedded:
            raise FedLensError(f"{found.title} comes with FedLens; there is nothing to fetch", "data.name")
        raise FedLensError(f"{found.title} cannot be fetched for you. {found.how}", "data.name")
    folder = Path(root).expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FedLensError(
            f"cannot make the folder {folder} ({error.strerror}); choose another root", "data.root"
        ) from error
    total = (found.megabytes or 0) * 1_000_000
    failed: list[Exception] = []
    thread = threading.Thread(target=_download, args=(found, folder, failed), daemon=True)
    yield Step(f"downloading {found.title}", 0, total)
    thread.start()
    while thread.is_alive():
        done = min(_size(folder), total)
        yield Step(f"{'downloading' if done < total else 'unpacking'} {found.title}", done, total)
        thread.join(LOOK_SECONDS)
    if failed:
        why = f"{type(failed[0]).__name__}: {failed[0]}".splitlines()[0]
        raise FedLensError(
            f"{found.title} cannot be downloaded into {folder} ({why}); try again where there is a network "
            "and room, or fetch it by hand",
            "data.root",
        ) from failed[0]
    yield Step(f"{found.title} is in {folder}", total, total)


def _download(found: Entry, folder: Path, failed: list[Exception]) -> None:
    try:
        import torchvision.datasets

        getattr(torchvision.datasets, found.torchvision)(str(folder), download=True)
    except Exception as error:  # noqa: BLE001 - the network library's, RuntimeError for a checksum, OSError
        failed.append(error)


def _size(folder: Path) -> int:
    """Bytes of the archives so far; torchvision writes them one or two folders down."""
    size = 0
    for path in (*folder.glob("*"), *folder.glob("*/*")):
        if path.name.endswith(_PACKED):
            try:
                size += path.stat().st_size
            except FileNotFoundError:  # deleted once it is unpacked
                continue
    return size
