"""A file of embeddings with their labels, and perhaps a file with a vector of each class beside it."""

import hashlib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from fedcore.base.errors import first_line, first_repeated
from fedcore.base.events import PARTS
from fedcore.base.files import user_path
from fedcore.data.images import ONE_DOMAIN, Entry, FolderError, Given, ImageSet, select_domains
from fedcore.data.integrity import file_digest
from fedcore.data.readers.layout import check_columns, prompt_names

SUFFIXES = (".npy", ".npz", ".parquet", ".safetensors")
COLUMNS = ("embedding", "label", "domain", "client", "split", "path")
"""Arrays of the file, or columns of a CSV file of the same name beside it; the first two are required."""


def read(
    entry: Entry, root: str, domains: Sequence[str] | None, columns: Mapping[str, str] | None = None
) -> ImageSet:
    """Read a file of embeddings, a row per image, and the file ``NAME.classes.*`` beside it if there is one.

    That file has the same form, with a row per class, whose label is the class's name; its order is that of
    the classes, and a number among the labels is the place of a row in it. Without it classes are sorted.
    """
    path, named = user_path(root, "data.root").resolve(), dict(columns or {})
    check_columns(named, COLUMNS, "file of embeddings")
    if path.suffix.lower() not in SUFFIXES or not path.is_file():
        raise FolderError(f"no file {path} of type {', '.join(SUFFIXES)}; give the file of embeddings")
    beside = class_file(path)
    files = [file for one in (path, beside) for file in (one, one.with_suffix(".csv")) if file.is_file()]
    digests = list(map(file_digest, files))
    table = _table(path, named)
    width, labels = _vectors(path, table).shape[1], _texts(path, table, "label")
    raw = tuple(sorted(set(labels), key=int if all(map(str.isdecimal, labels)) else None))
    spelled = dict(zip(raw, names := prompt_names(path, raw), strict=True))
    place, class_vectors = {}, np.empty((0, width), dtype=np.float32)
    if beside.is_file():
        of_classes = _table(beside, named)
        names = prompt_names(beside, tuple(_texts(beside, of_classes, "label")))
        place = {str(i): i for i in range(len(names))}
        class_vectors = _vectors(beside, of_classes)
        if class_vectors.shape[1] != width:
            raise FolderError(
                f"{beside}: its vectors have {class_vectors.shape[1]} numbers, the embeddings {width}; make "
                "both with one encoder"
            )
    place |= {name: i for i, name in enumerate(names)}
    if unknown := [text for text in raw if spelled[text] not in place]:
        raise FolderError(f"{beside}: no row of class '{unknown[0]}', which {path.name} has; add it")
    of_rows = _texts(path, table, "domain", ONE_DOMAIN)
    all_domains = sorted(set(of_rows))
    clients, parts = (_texts(path, table, what, "") for what in ("client", "split"))
    if wrong := sorted({part for part in parts if part and part.lower() not in PARTS}):
        raise FolderError(f"{path}: split '{wrong[0]}' is not one of train, validation, test; rename it")
    keys = _texts(path, table, "path") if "path" in table else [f"{i:08d}" for i in range(len(labels))]
    if (twice := first_repeated(keys)) is not None:
        raise FolderError(f"{path}: two rows have the path '{twice}'; each needs its own")

    def rows() -> np.ndarray:
        embeddings = _vectors(path, _table(path, named))
        if file_digest(path) != digests[0]:
            raise FolderError(f"{path} changed while it was read; start the run again")
        return embeddings

    def no_pixels(index: int) -> NoReturn:
        raise FolderError(f"{path} holds embeddings without their images, so there is nothing to show")

    return ImageSet(
        name=entry.name,
        classes=names,
        domains=tuple(all_domains),
        template=entry.template,
        labels=np.array([place[spelled[text]] for text in labels], dtype=np.int64),
        domain=np.array([all_domains.index(name) for name in of_rows], dtype=np.int64),
        keys=tuple(keys),
        fingerprint=hashlib.sha256(repr((sorted(named.items()), digests)).encode()).hexdigest()[:16],
        read=no_pixels,
        split=np.array([PARTS[part.lower()] for part in parts], dtype=np.int8) if all(parts) else None,
        owner=tuple(clients) if any(clients) else None,
        given=Given(width, cache(rows), dict(zip(names, class_vectors, strict=False))),
    ).restrict(select_domains(path, all_domains, domains))


def class_file(path: Path) -> Path:
    """Return where the class vectors of a file of embeddings lie, if it has any."""
    return path.parent / f"{path.stem}.classes{path.suffix}"


def _table(path: Path, columns: Mapping[str, str]) -> dict[str, Any]:
    """Return the columns of a file by their names here, and those of the CSV file beside it."""
    beside = path.with_suffix(".csv")
    try:
        found = _arrays(path) | (_arrays(beside) if beside.is_file() else {})
    except Exception as error:  # each library raises its own errors on a damaged file
        raise FolderError(
            f"{path} or its CSV file cannot be read ({first_line(error)}); write it again"
        ) from error
    named = {what: columns.get(what, what) for what in COLUMNS}
    for what, name in named.items():
        if name not in found and (what in columns or what in COLUMNS[:2]):
            raise FolderError(
                f"{path}: no column '{name}' here or in {beside.name}, only {', '.join(found)}; add it, or "
                "name it in data.columns"
            )
    return {what: found[name] for what, name in named.items() if name in found}


def _arrays(path: Path) -> dict[str, Any]:
    """Return the arrays of a file by name; that of a .npy file is called embedding."""
    suffix = path.suffix.lower()
    if suffix == ".npy":
        return {"embedding": np.load(path)}
    if suffix == ".npz":
        with np.load(path) as arrays:
            return dict(arrays)
    if suffix == ".safetensors":
        from safetensors.numpy import load_file

        return dict(load_file(path))
    import pandas as pd

    if suffix == ".csv":
        frame = pd.read_csv(path, dtype=str, keep_default_na=False, encoding="utf-8-sig")
    else:
        frame = pd.read_parquet(path)
    return {str(name): np.array(frame[name].tolist()) for name in frame}


def _vectors(path: Path, table: Mapping[str, Any]) -> np.ndarray:
    """Return the embeddings, checked. Shape: -> (rows, d) float32."""
    given: np.ndarray = table["embedding"]
    if given.ndim != 2 or not given.size or given.dtype.kind not in "fiu":
        raise FolderError(
            f"{path}: its embeddings are {given.dtype} {given.shape}; give numbers (rows, width)"
        )
    with np.errstate(over="ignore"):  # checked in the next line
        vectors: np.ndarray = given.astype(np.float32)
    if (bad := np.flatnonzero(~np.isfinite(vectors).all(1))).size:
        raise FolderError(
            f"{path}: {len(bad)} of {len(vectors)} embeddings are not finite, the first in row {bad[0]} "
            "(counted from 0); encode these again, or leave them out"
        )
    return vectors


def _texts(path: Path, table: Mapping[str, Any], what: str, default: str | None = None) -> list[str]:
    """Return a column as text with one value for each embedding; ``default`` stands for a missing column.

    Raises:
        FolderError: for another number of values, and for missing ones unless the default is "".
    """
    rows = len(table["embedding"])
    if what not in table:
        return [default or ""] * rows
    values = np.asarray(table[what])
    if values.shape != (rows,):
        raise FolderError(
            f"{path}: '{what}' has shape {values.shape}; give one value for each of {rows} embeddings"
        )
    values = values.astype(str) if values.dtype.kind == "S" else values
    texts = ["" if value is None or value != value else str(value).strip() for value in values.tolist()]
    if default != "" and "" in texts:
        raise FolderError(f"{path}: row {texts.index('')} (counted from 0) has no {what}; complete it")
    return texts
