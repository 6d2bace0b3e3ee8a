"""Fetching the weights of an open_clip tag into this machine's Hugging Face cache, with progress."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tqdm import tqdm

from fedcore.clip import tags
from fedcore.errors import FedLensError

LOOK_SECONDS = 0.25


class _Quiet(tqdm):  # type: ignore[type-arg]  # tqdm is generic in its stubs alone
    """Counts the bytes without drawing a bar."""

    latest: _Quiet | None = None

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{**options, "disable": False, "file": _Nowhere()})
        _Quiet.latest = self


class _Nowhere:
    def write(self, text: str) -> None:
        """Drop it."""

    def flush(self) -> None:
        """Nothing to do."""


def fetch(name: str, tag: str) -> Iterator[tuple[int, int]]:
    """Download the weights of a tag where they are not here yet; yields (bytes, total), total 0 at first.

    Stopping early leaves the download to end with this process; the hub's cache resumes it the next time.

    Raises:
        FedLensError: for a tag that the model does not have, and where the hub cannot be reached.
    """
    tags.check(name, tag)
    if (here := tags.cached(name, tag)) is not None:
        yield here.stat().st_size, here.stat().st_size
        return
    repo, files = tags.repository(name, tag)
    failed: list[Exception] = []
    _Quiet.latest = None
    thread = threading.Thread(target=_download, args=(repo, files, failed), daemon=True)
    thread.start()
    while thread.is_alive():
        bar = _Quiet.latest
        yield (0, 0) if bar is None else (int(bar.n), int(bar.total or 0))
        time.sleep(LOOK_SECONDS)
    if failed:
        why = f"{type(failed[0]).__name__}: {failed[0]}".splitlines()[0]
        raise FedLensError(
            f"the weights '{tag}' of {name} cannot be downloaded ({why}); where there is a network, "
            f"`hf download {repo} {files[0]}` fetches them: copy them into this machine's Hugging Face cache",
            "backbone.pretrained",
        ) from failed[0]
    path: Path | None = tags.cached(name, tag)
    size = 0 if path is None else path.stat().st_size
    yield size, size


def _download(repo: str, files: tuple[str, ...], failed: list[Exception]) -> None:
    """The first of the files that the repository has."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    for file in files:
        try:
            hf_hub_download(repo, file, tqdm_class=_Quiet)
            failed.clear()
            return
        except EntryNotFoundError as error:
            failed[:] = [error]
        except Exception as error:  # noqa: BLE001 - the hub's client raises its own, the network library's, OSError
            failed[:] = [error]
            return
