"""The data sets that torchvision knows, read from the files that it downloads.

torchvision's own classes would bring torch into the process of the pages, so the files are read here; the
tests hold every reader to torchvision's class on the same files: the same images, labels and classes. Class
names are the files' own, in the order of the labels.
"""

from __future__ import annotations

import hashlib
import io
import json
import pickle
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from PIL import Image

from fedcore.data.entry import ONE_DOMAIN, Entry, squash
from fedcore.data.images import TEST, TRAIN, VALIDATION, ImageSet
from fedcore.data.readers.layout import chosen_domains, class_folders, prompt_names, refuse_other_classes
from fedcore.data.readers.listing import Listing, listing
from fedcore.data.readers.walk import lines, locate
from fedcore.errors import FedLensError

_BATCHES = tuple(f"data_batch_{i}" for i in range(1, 6))
_CIFAR = {
    "cifar10": ("batches.meta", "label_names", {**dict.fromkeys(_BATCHES, TRAIN), "test_batch": TEST}),
    "cifar100": ("meta", "fine_label_names", {"train": TRAIN, "test": TEST}),
}
"""Name -> file of the class names, its key, and the part that each other file belongs to."""


def readable(name: str) -> str:
    """A class name as it enters a prompt: ``AnnualCrop`` and ``apple_pie`` are written in two words."""
    spaced = "".join(
        f" {c}" if c.isupper() and i and name[i - 1].islower() else c for i, c in enumerate(name)
    )
    return " ".join(spaced.replace("_", " ").split())


def prompts(found: Entry) -> tuple[str, ...]:
    """The classes of a data set as they enter a prompt. Pets' are capitalised, as torchvision does."""
    if found.loader == "pets":
        return tuple(" ".join(part.title() for part in name.split("_")) for name in found.classes)
    return tuple(readable(name) for name in found.classes)


def classes(found: Entry, bases: Sequence[Path], domains: Sequence[str] | None) -> Listing:
    """EuroSAT and Caltech-101: class folders, without an official split.

    Raises:
        FedLensError: ``data.root``, when class folders are missing or unknown.
    """
    chosen_domains(found, domains)
    layout = class_folders(found, bases)
    return listing(layout, prompt_names(layout.root, prompts(found)))


def pets(found: Entry, bases: Sequence[Path], domains: Sequence[str] | None) -> Listing:
    """Oxford-IIIT Pets: ``images/NAME_1.jpg``, labels in ``annotations/trainval.txt`` and ``test.txt``.

    Raises:
        FedLensError: ``data.root``, for a missing file or a line that is none of theirs.
    """
    chosen_domains(found, domains)
    root = locate(found, bases, "annotations/trainval.txt", "annotations/test.txt", "images")
    result = Listing(root, prompts(found))
    number = {squash(name): i for i, name in enumerate(found.classes)}
    for part, name in ((TRAIN, "trainval"), (TEST, "test")):
        path = root / "annotations" / f"{name}.txt"
        result.label_files.append(path)
        for line in lines(path):
            image, label, *rest = line.split()
            known = number.get(squash(image.rpartition("_")[0]))
            if len(rest) != 2 or known is None or str(known + 1) != label:
                raise FedLensError(
                    f"{path}: '{line}' is not 'breed_number class species breed' with a class that fits the "
                    "breed; get the annotations again",
                    "data.root",
                )
            result.add(root / "images" / f"{image}.jpg", f"images/{image}.jpg", known, part=part)
    return result


def food(found: Entry, bases: Sequence[Path], domains: Sequence[str] | None) -> Listing:
    """Food-101: ``images/apple_pie/1.jpg``, listed by class in ``meta/train.json`` and ``test.json``.

    Raises:
        FedLensError: ``data.root``, for a missing file or one of another form.
    """
    chosen_domains(found, domains)
    root = locate(found, bases, "meta/train.json", "meta/test.json", "images")
    result = Listing(root, prompts(found))
    for part, name in ((TRAIN, "train"), (TEST, "test")):
        path = root / "meta" / f"{name}.json"
        result.label_files.append(path)
        listed = _json(path)
        if not isinstance(listed, dict):
            raise FedLensError(f"{path}: expected a list of images for each class", "data.root")
        refuse_other_classes(found, path, tuple(listed))
        for label, class_name in enumerate(found.classes):
            for image in listed[class_name]:
                result.add(root / "images" / f"{image}.jpg", f"images/{image}.jpg", label, part=part)
    return result


def flowers(found: Entry, bases: Sequence[Path], domains: Sequence[str] | None) -> Listing:
    """Flowers-102: ``jpg/image_00001.jpg``, labels in ``imagelabels.mat``, parts in ``setid.mat``.

    Raises:
        FedLensError: ``data.root``, for a missing or damaged file.
    """
    chosen_domains(found, domains)
    root = locate(found, bases, "imagelabels.mat", "setid.mat")
    images = locate(found, bases, "jpg") / "jpg"  # may have been unpacked beside the labels
    labels = _mat(root / "imagelabels.mat", "labels")
    result = Listing(bases[0], prompts(found))
    result.label_files += [root / "imagelabels.mat", root / "setid.mat"]
    for part, name in ((TRAIN, "trnid"), (VALIDATION, "valid"), (TEST, "tstid")):
        for image in _mat(root / "setid.mat", name).tolist():
            if not (1 <= image <= len(labels) and 1 <= labels[image - 1] <= len(found.classes)):
                raise FedLensError(
                    f"{root}: setid.mat names image {image}, which imagelabels.mat gives no class of "
                    f"1 to {len(found.classes)}; get both again",
                    "data.root",
                )
            file = f"image_{image:05d}.jpg"
            result.add(images / file, f"jpg/{file}", int(labels[image - 1]) - 1, part=part)
    return result


def dtd(found: Entry, bases: Sequence[Path], domains: Sequence[str] | None) -> Listing:
    """DTD: ``images/banded/banded_0002.jpg``; the first of its ten partitions, as torchvision has it.

    Raises:
        FedLensError: ``data.root``, for a missing file or an unknown class.
    """
    chosen_domains(found, domains)
    root = locate(found, bases, "labels/train1.txt", "labels/val1.txt", "labels/test1.txt", "images")
    result = Listing(root, prompts(found))
    number = {name: i for i, name in enumerate(found.classes)}
    for part, name in ((TRAIN, "train1"), (VALIDATION, "val1"), (TEST, "test1")):
        path = root / "labels" / f"{name}.txt"
        result.label_files.append(path)
        for line in lines(path):
            class_name, _, image = line.partition("/")
            if class_name not in number or not image:
                raise FedLensError(
                    f"{path}: '{line}' names no class of DTD; get the labels again", "data.root"
                )
            result.add(root / "images" / class_name / image, f"images/{line}", number[class_name], part=part)
    return result


class CifarPixels:
    """Index -> image. A file of pixels is read when the first of its images is asked for, and kept."""

    def __init__(self, files: Sequence[Path], starts: Sequence[int]) -> None:
        self._files, self._starts = tuple(files), np.array(starts)
        self._loaded: dict[int, np.ndarray] = {}

    def __call__(self, index: int) -> Image.Image:
        """Image of a row, RGB."""
        file = int(np.searchsorted(self._starts, index, side="right")) - 1
        if file not in self._loaded:
            self._loaded[file] = _cifar_file(self._files[file])[b"data"]
        flat = self._loaded[file][index - self._starts[file]]
        return Image.fromarray(np.ascontiguousarray(flat.reshape(3, 32, 32).transpose(1, 2, 0)))


def cifar(found: Entry, bases: Sequence[Path], domains: Sequence[str] | None) -> tuple[ImageSet, list[str]]:
    """CIFAR-10 and CIFAR-100: pickled arrays of pixels and labels.

    Raises:
        FedLensError: ``data.root``, for a missing or damaged file.
    """
    chosen_domains(found, domains)
    meta, key, parts = _CIFAR[found.name]
    root = locate(found, bases, meta, *parts)
    named = _cifar_file(root / meta).get(key.encode())
    if named is None or tuple(_text(n) for n in named) != found.classes:
        raise FedLensError(f"{root / meta}: not the classes of {found.title}; get the set again", "data.root")
    labels: list[int] = []
    marks: list[int] = []
    keys: list[str] = []
    starts: list[int] = []
    content = hashlib.sha256()
    for name, part in parts.items():
        path = root / name
        held = _cifar_file(path)
        own, pixels = held.get(b"labels", held.get(b"fine_labels")), held.get(b"data")
        if own is None or np.shape(pixels) != (len(own), 3072) or not 0 <= min(own) <= max(own) < len(named):
            raise FedLensError(f"{path}: not a file of CIFAR's; get the set again", "data.root")
        starts.append(len(labels))
        labels += own
        marks += [part] * len(own)
        keys += [f"{name}/{i:05d}" for i in range(len(own))]
        stat = path.stat()
        content.update(f"{name}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode())
    return ImageSet(
        name=found.name,
        classes=prompts(found),
        domains=(ONE_DOMAIN,),
        template=found.template,
        labels=np.array(labels, dtype=np.int64),
        domain=np.zeros(len(labels), dtype=np.int64),
        keys=tuple(keys),
        fingerprint=content.hexdigest()[:16],
        read=CifarPixels([root / name for name in parts], starts),
        split=np.array(marks, dtype=np.int8),
    ), []


_ARRAY_PARTS = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy._core.numeric", "_frombuffer"),
    ("_codecs", "encode"),
}


class _Plain(pickle.Unpickler):
    """Arrays, numbers, text, and nothing else: a pickle from the network could name any function."""

    def find_class(self, module: str, name: str) -> object:
        """One of the few things that an array is made with; CIFAR's files know numpy by its old names."""
        module = module.replace("numpy.core", "numpy._core")
        if (module, name) not in _ARRAY_PARTS:
            raise pickle.UnpicklingError(f"names {module}.{name}, which no array needs")
        owner = import_module(module if find_spec(module) else module.replace("numpy._core", "numpy.core"))
        return getattr(owner, name)


def _cifar_file(path: Path) -> dict[bytes, object]:
    try:
        held = _Plain(io.BytesIO(path.read_bytes()), encoding="bytes").load()
    except (OSError, EOFError, ValueError, AttributeError, KeyError, IndexError, TypeError) as error:
        raise _damaged(path, error) from error
    except (pickle.UnpicklingError, ImportError) as error:
        raise _damaged(path, error) from error
    if not isinstance(held, dict):
        raise _damaged(path, "no table of arrays")
    return {key.encode() if isinstance(key, str) else key: value for key, value in held.items()}


def _damaged(path: Path, why: object) -> FedLensError:
    return FedLensError(f"{path}: damaged ({why}); get the set again", "data.root")


def _text(name: bytes | str) -> str:
    return name.decode() if isinstance(name, bytes) else name


def _json(path: Path) -> object:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _damaged(path, error) from error


def _mat(path: Path, name: str) -> np.ndarray:
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    try:
        return np.atleast_1d(loadmat(path, squeeze_me=True)[name])
    except (OSError, LookupError, ValueError, TypeError, MatReadError) as error:
        raise _damaged(path, error) from error
