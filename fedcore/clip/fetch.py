"""Download the weights of an open_clip tag into this machine's Hugging Face cache, with progress."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tqdm import tqdm

from fedcore.clip import tags

POLL_SECONDS = 0.25


class _ByteCounter(tqdm):  # type: ignore[type-arg]  # tqdm is generic only in its stubs
    """A progress bar that counts the bytes of a download and draws nothing."""

    latest: _ByteCounter | None = None

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{**options, "disable": False, "file": _NullFile()})
        _ByteCounter.latest = self


class _NullFile:
    def write(self, text: str) -> None:
        """Discard the text."""

    def flush(self) -> None:
        """Do nothing; tqdm calls it."""


def fetch(name: str, tag: str) -> Iterator[tuple[int, int]]:
    """Download the weights of a tag unless they are cached; yields (bytes, total), total 0 at first.

    If the caller stops early, the download ends with this process; the hub's cache resumes it next time.

    Raises:
        FedLensError: for a tag that the model does not have, or if the hub cannot be reached.
    """
    tags.check(name, tag)
    if (file := tags.cached(name, tag)) is not None:
        yield file.stat().st_size, file.stat().st_size
        return
    errors: list[Exception] = []
    _ByteCounter.latest = None
    repo, files = tags.repository(name, tag)
    thread = threading.Thread(target=_download, args=(repo, files, errors), daemon=True)
    thread.start()
    while thread.is_alive():
        counter = _ByteCounter.latest
        yield (0, 0) if counter is None else (int(counter.n), int(counter.total or 0))
        time.sleep(POLL_SECONDS)
    if errors:
        raise tags.download_error(name, tag, errors[0]) from errors[0]
    path: Path | None = tags.cached(name, tag)
    size = 0 if path is None else path.stat().st_size
    yield size, size


def _download(repo: str, files: tuple[str, ...], errors: list[Exception]) -> None:
    """Download the first of the files that the repository has; ``errors`` receives what failed."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    for file in files:
        try:
            hf_hub_download(repo, file, tqdm_class=_ByteCounter)
            errors.clear()
            return
        except EntryNotFoundError as error:
            errors[:] = [error]
        except Exception as error:  # noqa: BLE001 - the hub's client raises its own, the network library's, OSError
            errors[:] = [error]
            return
