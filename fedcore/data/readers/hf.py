"""Read images with Hugging Face's ``datasets``: folders of ``save_to_disk``, commits in the Hub's cache."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from fedcore.base.errors import FedLensError, first_line
from fedcore.base.events import PARTS
from fedcore.base.progress import Progress, Work, in_thread, require_slow_work
from fedcore.data.image_files import BROKEN, decode_content, reasons_once
from fedcore.data.images import ONE_DOMAIN, Entry, FolderError, ImageSet, select_domains, squash
from fedcore.data.integrity import version_line
from fedcore.data.readers.files import LeftOut, existing_folder, leaves
from fedcore.data.readers.layout import check_columns, prompt_names, refuse_other_classes, spellings

if TYPE_CHECKING:
    from datasets import Dataset, DatasetBuilder, DatasetDict

COLUMNS = ("image", "label", "domain", "client")
"""The columns that are read; the first two are required."""
_CLIENT_COLUMNS = ("client", "writer")
"""Names by which a column of clients is recognised."""
_BATCH = 64
"""Images held in memory at a time while they are checked."""
MARKERS = ("dataset_dict.json", "state.json")
"""Every folder that ``save_to_disk`` wrote has one of these files."""


@dataclass(frozen=True)
class _Part:
    """One ``Dataset`` of the folder.

    Attributes:
        rows: all columns except the images.
        images: the images, as bytes or paths.
        columns: name in ``COLUMNS`` -> name of the column.
        split: code of its split, if the parts are splits.
        domain: its domain, if the parts are domains.
    """

    name: str
    rows: "Dataset"
    images: "Dataset"
    columns: Mapping[str, str]
    split: int | None
    domain: str | None


def is_saved(folder: Path) -> bool:
    """Return whether a folder was written by ``save_to_disk``."""
    return any((folder / name).is_file() for name in MARKERS)


def is_snapshot(folder: Path) -> bool:
    """Return whether a folder is a commit of a data set in the Hub's cache."""
    return folder.parent.name == "snapshots" and folder.parent.parent.name.startswith("datasets--")


def prepare(folder: Path) -> Work[None]:
    """Write the Arrow files of a commit into the cache of ``datasets``, where rows are found at once."""
    title = folder.parent.parent.name.removeprefix("datasets--").replace("--", "/")
    builder = _builder(folder)
    try:
        for _ in in_thread(builder.download_and_prepare):
            yield Progress(f"preparing {title}", 0, 0)
    except Exception as error:  # arrow, fsspec and the builders raise different errors on damaged files
        raise FolderError(
            f"{title} cannot be read as a table of images ({first_line(error)}); if the disk is full, free "
            f"space and try again, else delete {folder} and get it again"
        ) from error


def _builder(folder: Path) -> "DatasetBuilder":
    import datasets

    datasets.disable_progress_bars()
    try:
        return datasets.load_dataset_builder(str(folder))
    except Exception as error:  # of a script, which is not executed, of several configurations, of no images
        raise FedLensError(f"{folder}: no table of images ({first_line(error)})", "data.name") from error


def class_names(root: str | Path, columns: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Return the classes without opening an image."""
    path = existing_folder(root)
    return prompt_names(path, _classes(path, _parts(path, dict(columns or {}))))


def read(
    root: str | Path,
    *,
    name: str = "hf-dataset",
    template: str = "a picture of a {}.",
    domains: Iterable[str] | None = None,
    columns: Mapping[str, str] | None = None,
) -> tuple[ImageSet, list[LeftOut]]:
    """Return the usable images of a saved ``Dataset`` or ``DatasetDict``, and those that are left out.

    The image column is the only one of that type, and the label column the only ``ClassLabel`` or a text
    column called ``label``; ``columns`` names them if that is ambiguous, and also ``domain`` and ``client``.
    The parts train, validation and test of a ``DatasetDict`` are the official split; parts with other names
    are the domains. Keys are ``part/row``.
    """
    path = existing_folder(root)
    parts = _parts(path, dict(columns or {}))
    classes, all_domains = _classes(path, parts), _domains(path, parts)
    places = [(part, i) for part in parts for i in range(len(part.rows))]
    keys = [_key(part, i) for part, i in places]
    label_of = {name: i for i, name in enumerate(classes)}
    domain_of = {name: i for i, name in enumerate(all_domains)}
    labels = np.array([label_of.get(text, -1) for p in parts for text in _texts(p, "label")], dtype=np.int64)
    domain = np.array([domain_of[text] for p in parts for text in _texts(p, "domain")], dtype=np.int64)
    split = np.array([part.split or 0 for part, _ in places], dtype=np.int8)
    owner = [text for part in parts for text in _texts(part, "client")]
    content = hashlib.sha256(repr(sorted((columns or {}).items())).encode())
    if is_snapshot(path):
        content.update(f"{path.parent.parent.name} {path.name}".encode())
    else:
        for file in sorted(p for p in path.rglob("*") if p.is_file()):
            content.update(version_line(file, str(file.relative_to(path))))
    reasons = reasons_once(
        content.hexdigest(), len(places), path, lambda: (image for _, image in contents(path, columns))
    )
    rows, left_out = [], []
    for row, (label, reason) in enumerate(zip(labels, reasons, strict=True)):
        if label < 0 or reason:
            left_out.append(LeftOut(keys[row], "no label" if label < 0 else reason or ""))
        else:
            rows.append(row)
    if not rows:
        raise FolderError(f"{path}: no readable image ({left_out[0].path}: {left_out[0].reason})")

    def read_row(index: int, side: int | None = None) -> Image.Image:
        (part, row), key = places[rows[index]], keys[rows[index]]
        content = _content(path, part.images[row][part.columns["image"]], key)
        try:
            return decode_content(content, side)
        except BROKEN as error:
            raise FolderError(
                f"{path}: {key} can no longer be decoded ({error}); remove it and save the data set again"
            ) from error

    used_keys = tuple(keys[r] for r in rows)
    content.update("\0".join(used_keys).encode())
    images = ImageSet(
        name=name,
        classes=prompt_names(path, classes),
        domains=all_domains,
        template=template,
        labels=labels[rows],
        domain=domain[rows],
        keys=used_keys,
        fingerprint=content.hexdigest()[:16],
        read=read_row,
        draft=read_row,
        split=split[rows] if len({part.split for part in parts}) > 1 else None,
        owner=tuple(owner[r] for r in rows) if any(owner) else None,
    ).restrict(select_domains(path, all_domains, domains))
    return images, left_out


def catalog_copy(
    entry: Entry, root: Path, prompts: tuple[str, ...], domains: Iterable[str] | None
) -> tuple[ImageSet, list[LeftOut]]:
    """Read a data set of the catalog from the Hub's cache, with its own classes, domains and keys.

    Keys are those of the folders, ``domain/class/file``, if the repository stores the names of files, so that
    both forms of a data set get the same splits.

    Args:
        prompts: the entry's classes as they enter a prompt; empty for those of the repository.
    """
    images, left_out = read(root, name=entry.name, template=entry.template)
    spelled = spellings(entry, entry.classes)
    found = tuple(spelled.get(squash(name), name) for name in images.classes)
    if not entry.subset:
        refuse_other_classes(entry, root, found)
    classes = entry.classes or found
    labels = replace(images, classes=found).labels_among(classes)
    spelled = spellings(entry, entry.domains)
    known = [spelled.get(squash(name), name) for name in images.domains]
    if missing := set(entry.domains) - set(known):
        raise FolderError(f"{root}: no images of the domain '{min(missing)}'; get the data set again")
    place = np.array([entry.domains.index(d) if d in entry.domains else -1 for d in known])[images.domain]
    rows = np.flatnonzero((labels >= 0) & (place >= 0))
    named = {"classes": prompts or images.classes, "labels": labels[rows]}
    images = images.changed(rows, classes, **named, domains=entry.domains, domain=place[rows])
    files: dict[str, str] = {}
    for part in _parts(existing_folder(root), {}):
        column = part.images.data.flatten().column(f"{part.columns['image']}.path").to_pylist()
        files |= {_key(part, row): Path(name or "").name for row, name in enumerate(column)}
    keys = tuple(
        f"{entry.domains[d]}/{classes[c]}/{files[key]}"
        for key, d, c in zip(images.keys, images.domain, images.labels, strict=True)
    )
    if len({*keys}) == len(keys) and all(files.values()):
        images = replace(images, keys=keys)
    return images.restrict(select_domains(entry.name, entry.domains, domains)), left_out


FEMNIST_COLUMNS = {"label": "character", "client": "writer_id"}
_CHARACTERS = 62


def femnist(entry: Entry, root: str | Path, domains: Sequence[str] | None) -> tuple[ImageSet, list[LeftOut]]:
    """Read FEMNIST as ``flwrlabs/femnist`` has it; a set of fewer than 62 classes has the first ones only.

    Without ``domains`` all images are one domain, and their writers own them. Otherwise the named writers are
    the domains: by name (``f0000_14``), or by place among all writers' names, since papers count them.
    """
    path = existing_folder(root)
    if not is_saved(path) and not is_snapshot(path):
        raise FolderError(f"{path}: neither {' nor '.join(MARKERS)} is in it. {entry.how_to_get}")
    images, left_out = read(path, name=entry.name, template=entry.template, columns=FEMNIST_COLUMNS)
    if len(images.classes) != _CHARACTERS:
        raise FolderError(
            f"{path}: {len(images.classes)} classes instead of FEMNIST's {_CHARACTERS}. {entry.how_to_get}"
        )
    in_classes = images.labels < len(entry.classes)
    if domains is None:
        rows = np.flatnonzero(in_classes)
        return images.changed(rows, (entry.name,), classes=entry.classes), left_out
    names, owner = images.owners()
    number = np.full(len(names) + 1, -1, dtype=np.int64)  # the last one: images without a writer
    number[_writers(entry, names, domains)] = np.arange(len(domains))
    domain = number[owner]
    rows = np.flatnonzero(in_classes & (domain >= 0))
    chosen = {"domains": tuple(domains), "domain": domain[rows], "owner": None}
    return images.changed(rows, (entry.name, *domains), classes=entry.classes, **chosen), left_out


def _writers(entry: Entry, names: Sequence[str], domains: Sequence[str]) -> list[int]:
    """Return the places of the chosen writers."""
    if not domains:
        raise FedLensError(f"{entry.name}: no domain chosen; name writers, or omit domains", "data.domains")
    place_of = {str(place): place for place in range(len(names))}
    place_of |= {name: place for place, name in enumerate(names)}
    places: dict[int, str] = {}
    for wanted in domains:
        place = place_of.get(wanted, -1)
        if place < 0:
            raise FedLensError(
                f"{entry.name}: no writer '{wanted}'; name one as the data set does ({names[0]}), or by its "
                f"place from 0 to {len(names) - 1}",
                "data.domains",
            )
        if other := places.get(place):
            raise FedLensError(
                f"{entry.name}: '{other}' and '{wanted}' are the same writer; drop one", "data.domains"
            )
        places[place] = wanted
    return list(places)


def contents(root: str | Path, columns: Mapping[str, str] | None) -> Iterator[tuple[str, Path | bytes]]:
    """Yield the key and stored image of every row, in the order of ``read``."""
    path = existing_folder(root)
    for part in _parts(path, dict(columns or {})):
        cells = (cell for batch in part.images.iter(_BATCH) for cell in batch[part.columns["image"]])
        for row, cell in enumerate(cells):
            key = _key(part, row)
            yield key, _content(path, cell, key)


def _key(part: _Part, row: int) -> str:
    return f"{part.name or 'row'}/{row:07d}"


def _parts(path: Path, columns: dict[str, str]) -> list[_Part]:
    """Open the parts, sorted by name; a single ``Dataset`` is called ""."""
    import datasets

    opened = _opened(path)
    opened = dict(opened) if isinstance(opened, datasets.DatasetDict) else {"": opened}
    if not opened or not any(len(rows) for rows in opened.values()):
        raise FolderError(f"{path}: it has no rows; save the data set again")
    by_split = {name: PARTS.get(name.lower()) for name in opened}
    official = all(mark is not None for mark in by_split.values())
    if not official and any(mark is not None for mark in by_split.values()):
        odd = next(name for name, mark in by_split.items() if mark is None)
        raise FolderError(
            f"{path}: part '{odd}' beside train and test; save a DatasetDict of train, validation and test, "
            "or of one part per domain"
        )
    parts = []
    for name, rows in sorted(opened.items()):
        chosen = _columns(path, rows, columns)
        domain = None if official or not name or "domain" in chosen else name
        images = rows.select_columns(chosen["image"])
        images = images.cast_column(chosen["image"], datasets.Image(decode=False))
        others = rows.remove_columns(chosen["image"])
        parts.append(_Part(name, others, images, chosen, by_split[name], domain))
    return parts


def _opened(path: Path) -> "Dataset | DatasetDict":
    import datasets

    if is_snapshot(path):
        if not Path(_builder(path).cache_dir).is_dir():
            require_slow_work(f"{path} has to be prepared", lambda: prepare(path))
        return _builder(path).as_dataset()
    if not is_saved(path):
        raise FolderError(
            f"{path}: neither {' nor '.join(MARKERS)} is in it; give the folder that "
            "save_to_disk(FOLDER) of the datasets library wrote"
        )
    try:
        return datasets.load_from_disk(str(path))
    except Exception as error:  # arrow, json and fsspec raise different errors on damaged files
        raise FolderError(f"{path}: a damaged data set ({first_line(error)}); save it again") from error


def _columns(path: Path, rows: "Dataset", named: dict[str, str]) -> dict[str, str]:
    """Choose the columns for ``COLUMNS``: those that the user named, or else by type and name."""
    import datasets

    features = rows.features
    check_columns(named, COLUMNS, "Hugging Face data set")
    for what, name in named.items():
        if name not in features:
            raise FedLensError(
                f"{path}: no column '{name}'; there are {', '.join(features)}", f"data.columns.{what}"
            )
    result = dict(named)
    if "domain" not in result and "domain" in features:
        result["domain"] = "domain"
    if "client" not in result:
        result.update([("client", name) for name in _CLIENT_COLUMNS if name in features][:1])
    images = [n for n, kind in features.items() if isinstance(kind, datasets.Image)]
    others = set(result.values()) - {result.get("label")}
    labels = [n for n, k in features.items() if isinstance(k, datasets.ClassLabel) and n not in others]
    for what, candidates in (("image", images), ("label", labels)):
        if what in result:
            continue
        if len(candidates) == 1 or what in candidates:
            result[what] = what if what in candidates else candidates[0]
        elif what == "label" and "label" in features and not candidates:
            result[what] = "label"
        else:
            kind = {"image": "Image", "label": "ClassLabel"}[what]
            listed = ", ".join(f"{n} ({type(k).__name__})" for n, k in features.items())
            raise FedLensError(
                f"{path}: {len(candidates)} columns of type {kind} among {listed}; "
                f'name the one to use, columns = {{ {what} = "..." }}',
                "data.columns",
            )
    if result["image"] not in images:
        raise FedLensError(f"{path}: column '{result['image']}' holds no images", "data.columns.image")
    return result


def _texts(part: _Part, what: str) -> list[str]:
    """Return a column as text, with class names instead of their numbers, and "" for missing values."""
    name = part.columns.get(what)
    if name is None:
        missing = (part.domain or ONE_DOMAIN) if what == "domain" else ""
        return [missing] * len(part.rows)
    classes = getattr(part.rows.features[name], "names", None)
    values = part.rows[name][:]
    if classes is None:
        return ["" if v is None else str(v) for v in values]
    return ["" if v is None or v < 0 else classes[v] for v in values]


def _classes(path: Path, parts: list[_Part]) -> tuple[str, ...]:
    """Return the names of the ``ClassLabel`` in its order, or the sorted values of a text column."""
    column = [p.rows.features[p.columns["label"]] for p in parts]
    class_names = [tuple(getattr(feature, "names", None) or ()) for feature in column]
    if len(set(class_names)) > 1:
        raise FolderError(f"{path}: its parts name different classes; save them with one ClassLabel")
    if class_names[0]:
        return class_names[0]
    if any(getattr(feature, "dtype", None) not in ("string", "large_string") for feature in column):
        raise FedLensError(
            f"{path}: column '{parts[0].columns['label']}' holds neither a ClassLabel nor text; give its "
            "classes names with cast_column(..., ClassLabel(names=[...])) and save it again",
            "data.columns.label",
        )
    return tuple(sorted({text for p in parts for text in _texts(p, "label") if text}))


def _domains(path: Path, parts: list[_Part]) -> tuple[str, ...]:
    domains = {part.domain or ONE_DOMAIN for part in parts if "domain" not in part.columns}
    domains |= {text for part in parts for text in _texts(part, "domain")}
    if "" in domains:
        raise FolderError(
            f"{path}: rows without a domain; complete the column '{parts[0].columns['domain']}'"
        )
    return tuple(sorted(domains))


def _content(path: Path, cell: dict[str, Any] | None, key: str) -> Path | bytes:
    """Return the bytes of an image, or the file that its row points to."""
    cell = cell or {}
    content: bytes | None = cell.get("bytes")
    if content is not None:
        return content
    if not cell.get("path"):
        return b""
    file = path / str(cell["path"])
    folders = [path]
    if is_snapshot(path):  # its files are links into the cache, or were unpacked by ``datasets``
        from datasets.config import HF_DATASETS_CACHE

        folders = [path.parent.parent, Path(HF_DATASETS_CACHE).resolve()]
    if all(leaves(folder, file) for folder in folders):
        raise FolderError(
            f"{path}: {key} points to {file}, outside the folder; load the images into the data set before "
            "save_to_disk"
        )
    return file
