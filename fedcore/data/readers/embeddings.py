"""A file of embeddings with their labels, and perhaps a file with a vector of each class beside it."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from fedcore.base.errors import FedLensError, first_line, first_repeated
from fedcore.base.events import PARTS
from fedcore.base.files import user_path
from fedcore.data.images import ONE_DOMAIN, Entry, FolderError, Given, ImageSet, select_domains
from fedcore.data.integrity import file_digest
from fedcore.data.readers.layout import prompt_names

SUFFIXES = (".npy", ".npz", ".parquet", ".safetensors")
COLUMNS = ("embedding", "label", "domain", "client", "split", "path")
"""Arrays of the file, or columns of a CSV file of the same name beside it; the first two are required."""


def read(
    entry: Entry, root: str, domains: Sequence[str] | None, columns: Mapping[str, str] | None = None
) -> ImageSet:
    """Read a file of embeddings, a row per image, and the file ``NAME.classes.*`` beside it if there is one.

    That file has the same form, with a row per class, whose label is the class's name; its order is that of
    the classes, and a whole number among the labels is a row of it. Without it classes are sorted.
    """
    path, named = user_path(root, "data.root").resolve(), dict(columns or {})
    if path.suffix.lower() not in SUFFIXES or not path.is_file():
        raise FolderError(f"no file {path}; give a file of type {', '.join(SUFFIXES)}")
    if unknown := sorted(set(named) - set(COLUMNS)):
        raise FedLensError(
            f"embeddings have no column '{unknown[0]}'; they may have {', '.join(COLUMNS)}",
            f"data.columns.{unknown[0]}",
        )
    beside = path.with_name(f"{path.stem}.classes{path.suffix}")
    files = [file for one in (path, beside) for file in (one, one.with_suffix(".csv")) if file.is_file()]
    digests = list(map(file_digest, files))
    table = _table(path, named)
    vectors, labels = _vectors(path, table), _texts(path, table, "label")
    class_vectors: dict[str, np.ndarray] = {}
    if beside.is_file():
        of_classes = _table(beside, named)
        names = prompt_names(beside, tuple(_texts(beside, of_classes, "label")))
        class_vectors = dict(zip(names, _vectors(beside, of_classes), strict=True))
        width = len(class_vectors[names[0]])
        if width != vectors.shape[1]:
            raise FolderError(
                f"{beside}: its vectors have {width} numbers, the embeddings {vectors.shape[1]}; write both "
                "with one encoder"
            )
    else:
        number = all(text.isdecimal() for text in labels)
        names = prompt_names(path, tuple(sorted(set(labels), key=int if number else None)))
    found_domains = _texts(path, table, "domain", ONE_DOMAIN)
    all_domains = sorted(set(found_domains))
    clients = _texts(path, table, "client", "")
    keys = _texts(path, table, "path") if "path" in table else [f"{i:08d}" for i in range(len(labels))]
    if (twice := first_repeated(keys)) is not None:
        raise FolderError(f"{path}: two rows have the path '{twice}'; each needs its own")

    def rows() -> np.ndarray:
        embeddings = _vectors(path, _table(path, named))
        if file_digest(path) != digests[0]:
            raise FolderError(f"{path} changed while it was read; start the run again")
        return embeddings

    def no_pixels(index: int) -> NoReturn:
        raise FolderError(f"{path} holds embeddings; there are no images to show or to encode")

    return ImageSet(
        name=entry.name,
        classes=names,
        domains=tuple(all_domains),
        template=entry.template,
        labels=np.array(list(_label_codes(path, labels, names)), dtype=np.int64),
        domain=np.array([all_domains.index(name) for name in found_domains], dtype=np.int64),
        keys=tuple(keys),
        fingerprint=hashlib.sha256(repr((sorted(named.items()), digests)).encode()).hexdigest()[:16],
        read=no_pixels,
        split=_split(path, table),
        owner=tuple(clients) if any(clients) else None,
        given=Given(vectors.shape[1], cache(rows), class_vectors),
    ).restrict(select_domains(path, all_domains, domains))


def _table(path: Path, columns: Mapping[str, str]) -> dict[str, Any]:
    """Return the columns of a file by their names here, and those of the CSV file beside it."""
    try:
        found = dict(_arrays(path))
    except Exception as error:  # each library raises its own errors on a damaged file
        raise FolderError(f"{path} cannot be read ({first_line(error)}); write it again") from error
    beside = path.with_suffix(".csv")
    if beside.is_file():
        import pandas as pd

        try:
            cells = pd.read_csv(beside, dtype=str, keep_default_na=False, encoding="utf-8-sig")
        except ValueError as error:
            raise FolderError(f"{beside} cannot be read ({first_line(error)}); write it again") from error
        found = {str(name): cells[name].to_numpy() for name in cells} | found
    named = {what: columns.get(what, what) for what in COLUMNS}
    for what, name in named.items():
        if name not in found and (what in columns or what in COLUMNS[:2]):
            where = path if what == "embedding" else f"{path}, or {beside.name} beside it,"
            raise FolderError(
                f"{where} has no column '{name}'; there are {', '.join(found)}; rename one or name it in "
                "data.columns"
            )
    return {what: found[name] for what, name in named.items() if name in found}


def _arrays(path: Path) -> Mapping[str, Any]:
    suffix = path.suffix.lower()
    if suffix == ".npy":
        return {"embedding": np.load(path, mmap_mode="r")}
    if suffix == ".npz":
        with np.load(path) as arrays:
            return dict(arrays)
    if suffix == ".safetensors":
        from safetensors.numpy import load_file

        return load_file(path)
    import pandas as pd

    frame = pd.read_parquet(path)
    return {str(name): np.array(frame[name].tolist()) for name in frame}


def _vectors(path: Path, table: Mapping[str, Any]) -> np.ndarray:
    """Return the embeddings, checked. Shape: -> (rows, d) float32."""
    given: np.ndarray = table["embedding"]
    if given.ndim != 2 or not given.size or given.dtype.kind not in "fiu":
        raise FolderError(
            f"{path}: the embeddings are {given.dtype} of shape {given.shape}; give numbers (rows, width)"
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
        FolderError: for another number of values, and for missing ones of a column without a default of "".
    """
    rows = len(table["embedding"])
    if what not in table:
        return [default or ""] * rows
    values = np.asarray(table[what])
    values = values.astype(str) if values.dtype.kind == "S" else values
    if values.shape != (rows,):
        raise FolderError(
            f"{path}: '{what}' has shape {values.shape}, and there are {rows} embeddings; give one value each"
        )
    texts = ["" if value is None or value != value else str(value).strip() for value in values.tolist()]
    if default != "" and "" in texts:
        raise FolderError(f"{path}: row {texts.index('')} (counted from 0) has no {what}; complete it")
    return texts


def _label_codes(path: Path, labels: Sequence[str], names: tuple[str, ...]) -> Iterator[int]:
    """Yield the class of each label: that of its name, or else of its number."""
    place = {name: i for i, name in enumerate(names)}
    for row, text in enumerate(labels):
        code = place.get(" ".join(text.replace("_", " ").split()))
        if code is None:
            code = int(text) if text.isdecimal() else -1
            if not 0 <= code < len(names):
                raise FolderError(
                    f"{path}: row {row} (counted from 0) has the label '{text}', and {path.stem}.classes"
                    f"{path.suffix} has {len(names)} classes: {', '.join(names[:5])}, ...; add its row there"
                )
        yield code


def _split(path: Path, table: Mapping[str, Any]) -> np.ndarray | None:
    """Return the official split; None unless every row has one. Shape: -> (rows,) int8."""
    texts = [text.lower() for text in _texts(path, table, "split", "")]
    if "" in texts:
        return None
    if unknown := [text for text in texts if text not in PARTS]:
        raise FolderError(f"{path}: split '{unknown[0]}' is not one of train, validation, test; rename it")
    return np.array([PARTS[text] for text in texts], dtype=np.int8)
