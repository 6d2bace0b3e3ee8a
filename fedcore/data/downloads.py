"""Download a data set through torchvision, which imports torch: only for jobs and the command line."""

import contextlib
from pathlib import Path

from fedcore.base.errors import FedLensError, first_line
from fedcore.base.files import user_path
from fedcore.base.progress import Progress, Work, in_thread
from fedcore.data import catalog
from fedcore.data.images import FolderError

POLL_SECONDS = 0.5
_ARCHIVES = (".zip", ".gz", ".tgz", ".tar", ".mat")


def download(name: str, root: str | Path) -> Work[None]:
    """Download a data set into a folder and unpack it; call this only when the user asks for it.

    Progress is in bytes, and approximate. Existing files are not downloaded again, since torchvision compares
    checksums. If this work is stopped early, the download continues until the process ends.
    """
    entry = catalog.entry(name)
    if not entry.torchvision:
        remedy = "comes with FedLens; there is nothing to download"
        if not entry.embedded:
            remedy = f"has no automatic download. {entry.how_to_get}"
        raise FedLensError(f"{entry.title} {remedy}", "data.name")
    folder = user_path(root, "data.root")
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

    yield Progress(f"downloading {entry.title}", 0, total)
    try:
        for _ in in_thread(fetch, POLL_SECONDS):
            done = min(_size(folder), total)
            yield Progress(f"{'downloading' if done < total else 'unpacking'} {entry.title}", done, total)
    except Exception as error:  # of the network library, of checksums, of the disk
        raise FolderError(
            f"{entry.title} cannot be downloaded into {folder} ({first_line(error)}); try again with "
            "a network connection and enough space, or download it yourself"
        ) from error
    yield Progress(f"{entry.title} is in {folder}", total, total)


def _size(folder: Path) -> int:
    """Return the bytes of archives downloaded so far, which torchvision writes one or two folders down."""
    size = 0
    for path in (*folder.glob("*"), *folder.glob("*/*")):
        if path.name.endswith(_ARCHIVES):
            with contextlib.suppress(FileNotFoundError):  # deleted after unpacking
                size += path.stat().st_size
    return size
