"""The data sets that ``fedlens data get`` has brought to this machine: a small file for each, per account.

A run that names such a data set needs no folder: it reads the copy that is registered here.
"""

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image
from pydantic import BaseModel

from fedcore.base.files import state_folder, write_whole
from fedcore.data.integrity import read_result, write_result

HUB = "hf:"
"""Prefix of the name of any data set of the Hugging Face Hub: ``hf:owner/name``."""


class Copy(BaseModel, frozen=True):
    """One data set on this machine, registered once its images had been counted.

    Attributes:
        name: in an experiment, ``pacs`` or ``hf:owner/name``.
        root: its folder: a commit in the Hub's cache, or that of the official archive.
        repo: repository of the Hub, empty for an official archive, and ``revision`` the commit that was read.
        licence: as the repository's card names it.
        size: bytes that were downloaded.
        columns: those that were named when it was got (``data.columns``).
        counts: images of each class (second) in each domain (first).
    """

    name: str
    root: str
    repo: str = ""
    revision: str = ""
    licence: str = ""
    size: int = 0
    columns: dict[str, str] = {}
    domains: tuple[str, ...]
    classes: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]

    @property
    def images(self) -> int:
        return sum(map(sum, self.counts))


def registered(name: str) -> Copy | None:
    """Return the copy of a data set; None if it was never got, or its folder has been deleted since."""
    return _read(_file(name))


def every() -> Iterator[Copy]:
    """Yield all copies, sorted by name."""
    yield from filter(None, map(_read, sorted(_file("").parent.glob("*.json"))))


def sheet(copy: Copy) -> np.ndarray | None:
    """Return sample pictures of a copy (``check.contact_sheet``), if they are there. Shape: (h, w, 3)."""
    file = _file(copy.name).with_suffix(".png")
    if not file.is_file():
        return None
    with Image.open(file) as pictures:
        return np.asarray(pictures.convert("RGB"))


def register(copy: Copy, pictures: Image.Image) -> None:
    """Record a copy with its sample pictures, completely or not at all."""
    file, content = _file(copy.name), io.BytesIO()
    file.parent.mkdir(parents=True, exist_ok=True)
    pictures.save(content, "PNG")
    write_whole(file.with_suffix(".png"), content.getvalue())
    write_result(file, copy.model_dump(mode="json"))


def _file(name: str) -> Path:
    return state_folder() / "data" / f"{name.replace('/', '--').replace(':', '--')}.json"


def _read(file: Path) -> Copy | None:
    content = read_result(file)
    copy = None if content is None else Copy.model_validate(content)
    return copy if copy and Path(copy.root).is_dir() else None
