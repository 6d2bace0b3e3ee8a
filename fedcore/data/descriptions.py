"""The written descriptions of classes (FedAlign's GT): from ``descriptions.json``, or those of FedLens."""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from fedcore.base.errors import first_repeated
from fedcore.base.files import ASSETS, user_path
from fedcore.data import catalog
from fedcore.data.images import FolderError


def read(name: str, root: str | None = None) -> dict[str, list[str]]:
    """Read the written descriptions of each class.

    The file maps class names, as they enter the prompt, to lists of sentences. It is in the data set's folder
    or beside it; without it they are those of FedLens, which has some for few data sets, or none.
    """
    path = file_of(name, root)
    if path is None:
        return {}
    try:
        content = path.read_bytes()
    except OSError as error:
        raise FolderError(f"cannot read {path}: {error.strerror}") from error
    return parse(content, str(path))


def file_of(name: str, root: str | None = None) -> Path | None:
    """Find the file with the written descriptions of a data set's classes; None if there is none."""
    entry = catalog.entry(name)
    ours = ASSETS / "descriptions" / f"{entry.descriptions or name}.json"
    if entry.embedded:
        return ours
    folder = user_path(catalog.place(entry, root)[0], "data.root")
    paths = (folder / "descriptions.json", folder.parent / "descriptions.json", ours)
    return next((path for path in paths if path.is_file()), None)


def version(name: str, root: str | None = None) -> str:
    """Return a text that changes with the written descriptions; empty if there are none, or no folder."""
    try:
        path = file_of(name, root)
        return f"{path} {path.stat().st_mtime_ns} {path.stat().st_size}" if path else ""
    except (FolderError, OSError):
        return ""


def of_classes(name: str, root: str | None, classes: Sequence[str]) -> dict[str, list[str]]:
    """Return the written descriptions of these classes, with ``fire_engine`` equal to ``fire engine``."""
    names: dict[str, str] = {}
    written: dict[str, list[str]] = {}
    for c, texts in read(name, root).items():
        other = names.setdefault(c.replace("_", " "), c)
        if other != c:
            where = file_of(name, root)
            raise FolderError(f"{where}: '{other}' and '{c}' are one class; name it once")
        written[c.replace("_", " ")] = texts
    return {c: written[c.replace("_", " ")] for c in classes if c.replace("_", " ") in written}


class LazyDescriptions(Mapping[str, Sequence[str]]):
    """``of_classes``, read at the first access, since a file that is not used may be damaged."""

    def __init__(self, name: str, root: str | None, classes: Sequence[str]) -> None:
        self._arguments = name, root, classes

    @cached_property
    def _texts(self) -> dict[str, list[str]]:
        return of_classes(*self._arguments)

    def __getitem__(self, name: str) -> Sequence[str]:
        return self._texts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object; json.loads alone would keep only the last of two values of one name."""
    twice = first_repeated([name for name, _ in pairs])
    if twice is not None:
        raise ValueError(f"'{twice}' is named twice; name it once, with all its descriptions")
    return dict(pairs)


def parse(content: bytes, where: str) -> dict[str, list[str]]:
    """Read the content of a ``descriptions.json``; ``where`` is its name in an error message."""
    try:
        texts_of: Any = json.loads(content.decode("utf-8-sig"), object_pairs_hook=_once)
    except ValueError as error:
        raise FolderError(f"{where}: not valid as JSON ({error})") from error
    valid = isinstance(texts_of, dict) and all(
        isinstance(texts, list) and texts and all(isinstance(t, str) and t.strip() for t in texts)
        for texts in texts_of.values()
    )
    if not valid:
        raise FolderError(f'{where}: expected {{"class": ["a description", ...], ...}}')
    return dict(texts_of)
