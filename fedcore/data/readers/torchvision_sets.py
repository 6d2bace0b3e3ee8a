"""Readers of the data sets that torchvision can download.

Images, labels, classes and parts equal those of torchvision's classes, which the tests compare on the same
files. Those classes are not used themselves. They import torch, which takes a page seconds. They accept a
folder that lacks a class and labels of another breed, and call most other damage "Dataset not found or
corrupted" without naming a file. CIFAR's unpickles its files, which can run any code in them.

Each reader yields the data set as ``loaders._reading`` explains.
"""

import io
import json
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fedcore.base.errors import DAMAGE
from fedcore.base.events import TEST, TRAIN, VALIDATION
from fedcore.data.images import ONE_DOMAIN, Entry, FolderError, ImageSet, squash
from fedcore.data.integrity import hash_versions
from fedcore.data.readers.files import Listing, damaged, locate, read_lines
from fedcore.data.readers.layout import class_folder_layout, list_images, prompt_names, refuse_other_classes

_CIFAR = {
    "cifar10": (
        "batches.meta",
        "label_names",
        {**{f"data_batch_{i}": TRAIN for i in range(1, 6)}, "test_batch": TEST},
    ),
    "cifar100": ("meta", "fine_label_names", {"train": TRAIN, "test": TEST}),
}
"""Data set -> file of the class names, its key, and the part that each other file belongs to."""
_CARS = {
    "devkit/cars_train_annos.mat": ("cars_train", TRAIN),
    "cars_test_annos_withlabels.mat": ("cars_test", TEST),
}
"""File of labels -> the folder of its images, and the part that they belong to."""
_AIRCRAFT = {
    "images_variant_train.txt": TRAIN,
    "images_variant_val.txt": VALIDATION,
    "images_variant_test.txt": TEST,
}


def readable(name: str) -> str:
    """Write a class name as it enters a prompt: ``AnnualCrop`` and ``apple_pie`` become two words."""
    spaced = "".join(
        f" {c}" if c.isupper() and i and name[i - 1].islower() else c for i, c in enumerate(name)
    )
    return " ".join(spaced.replace("_", " ").split())


def prompts(entry: Entry) -> tuple[str, ...]:
    """Return the classes of a data set as they enter a prompt; Pets' are capitalised as in torchvision."""
    if entry.loader == "pets":
        return tuple(" ".join(part.title() for part in name.split("_")) for name in entry.classes)
    if entry.loader == "domains":
        return prompt_names(Path(entry.name), entry.classes)
    return tuple(readable(name) for name in entry.classes)


def classes(entry: Entry, roots: Sequence[Path]) -> Iterator[Listing]:
    """List EuroSAT or Caltech-101, which are class folders without an official split."""
    yield from list_images(class_folder_layout(entry, roots), prompts(entry))


def pets(entry: Entry, roots: Sequence[Path]) -> Iterator[Listing]:
    """List Oxford-IIIT Pets: ``images/NAME_1.jpg``, labels in ``annotations/trainval.txt`` and others."""
    number = {squash(name): i for i, name in enumerate(entry.classes)}

    def rows(path: Path) -> Iterator[tuple[str, int]]:
        for line in read_lines(path):
            image, *fields = line.split()
            label = number.get(squash(image.rpartition("_")[0]))
            if len(fields) != 3 or label is None or str(label + 1) != fields[0]:
                why = f"'{line}' is not 'breed_number class species breed' with the class number of the breed"
                raise damaged(path, why, "annotations")
            yield f"{image}.jpg", label

    return _listed(entry, roots, {"annotations/trainval.txt": TRAIN, "annotations/test.txt": TEST}, rows)


def food(entry: Entry, roots: Sequence[Path]) -> Iterator[Listing]:
    """List Food-101: ``images/apple_pie/1.jpg``, listed by class in ``meta/train.json`` and ``test.json``."""

    def rows(path: Path) -> Iterator[tuple[str, int]]:
        try:
            images = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, *DAMAGE) as error:
            raise damaged(path, f"damaged ({error})") from error
        lists = images.values() if isinstance(images, dict) else (None,)
        if not all(isinstance(names, list) and all(isinstance(n, str) for n in names) for names in lists):
            raise FolderError(f"{path}: expected a list of images for each class")
        refuse_other_classes(entry, path, tuple(images))
        for label, class_name in enumerate(entry.classes):
            yield from ((f"{image}.jpg", label) for image in images[class_name])

    return _listed(entry, roots, {"meta/train.json": TRAIN, "meta/test.json": TEST}, rows)


def dtd(entry: Entry, roots: Sequence[Path]) -> Iterator[Listing]:
    """List DTD: ``images/banded/banded_0002.jpg``, with the first of its ten partitions, as torchvision."""
    number = {name: i for i, name in enumerate(entry.classes)}

    def rows(path: Path) -> Iterator[tuple[str, int]]:
        for line in read_lines(path):
            class_name, _, image = line.partition("/")
            if class_name not in number or not image:
                raise damaged(path, f"'{line}' names no class of DTD", "labels")
            yield line, number[class_name]

    parts = {"labels/train1.txt": TRAIN, "labels/val1.txt": VALIDATION, "labels/test1.txt": TEST}
    return _listed(entry, roots, parts, rows)


def _listed(
    entry: Entry,
    roots: Sequence[Path],
    parts: Mapping[str, int],
    rows: Callable[[Path], Iterator[tuple[str, int]]],
) -> Iterator[Listing]:
    """List the images that label files name; each file is one part of the official split.

    Args:
        parts: label file -> the part that it lists.
        rows: yields the images of a label file, as paths in the folder ``images``, with their labels.
    """
    root = locate(entry, roots, *parts, "images")
    result = Listing(root, prompts(entry), label_files=[root / name for name in parts])
    yield result
    for name, part in parts.items():
        for image, label in rows(root / name):
            result.add(root / "images" / image, f"images/{image}", label, part=part)


def flowers(entry: Entry, roots: Sequence[Path]) -> Iterator[Listing]:
    """List Flowers-102: ``jpg/image_00001.jpg``, labels in ``imagelabels.mat``, parts in ``setid.mat``."""
    root = locate(entry, roots, "imagelabels.mat", "setid.mat")
    images = locate(entry, roots, "jpg") / "jpg"  # often in another archive than the labels
    labels = _mat(root / "imagelabels.mat", "labels")
    files = [root / "imagelabels.mat", root / "setid.mat"]
    result = Listing(roots[0], prompts(entry), label_files=files)
    yield result
    for part, name in ((TRAIN, "trnid"), (VALIDATION, "valid"), (TEST, "tstid")):
        for image in _mat(root / "setid.mat", name).tolist():
            if not (1 <= image <= len(labels) and 1 <= labels[image - 1] <= len(entry.classes)):
                why = f"setid.mat names image {image}, for which imagelabels.mat has no class from 1 to"
                raise damaged(root, f"{why} {len(entry.classes)}", "files")
            file = f"image_{image:05d}.jpg"
            result.add(images / file, f"jpg/{file}", int(labels[image - 1]) - 1, part=part)


def cars(entry: Entry, roots: Sequence[Path]) -> Iterator[Listing]:
    """List Stanford Cars: ``cars_train/00001.jpg`` and ``cars_test``, with labels in files of MATLAB.

    A class is a model of car, such as "AM General Hummer SUV 2000".
    """
    root = locate(entry, roots, *_CARS, "devkit/cars_meta.mat")
    meta = root / "devkit/cars_meta.mat"
    names = prompt_names(meta, tuple(map(str, _mat(meta, "class_names").tolist())))
    result = Listing(root, names, label_files=[*(root / name for name in _CARS), meta])
    yield result
    for name, (folder, part) in _CARS.items():
        rows = _mat(root / name, "annotations")
        if not {"fname", "class"} <= set(rows.dtype.names or ()):
            raise damaged(root / name, "it names no images and classes", "labels")
        for image, label in zip(rows["fname"].tolist(), rows["class"].tolist(), strict=True):
            if not 1 <= int(label) <= len(names):
                why = f"'{image}' has label {label}, cars_meta.mat has {len(names)} classes"
                raise damaged(root / name, why, "labels")
            result.add(root / folder / str(image), f"{folder}/{image}", int(label) - 1, part=part)


def aircraft(entry: Entry, roots: Sequence[Path]) -> Iterator[Listing]:
    """List FGVC Aircraft by variant: ``images/0034309.jpg``, named in ``images_variant_train.txt``..."""
    root = locate(entry, roots, "variants.txt", *_AIRCRAFT, "images")
    variants = read_lines(root / "variants.txt")
    names = prompt_names(root / "variants.txt", tuple(variants))
    result = Listing(root, names, label_files=[root / name for name in _AIRCRAFT])
    yield result
    number = {name: label for label, name in enumerate(variants)}
    for name, part in _AIRCRAFT.items():
        for line in read_lines(root / name):
            image, _, variant = line.partition(" ")
            if variant not in number:
                raise damaged(root / name, f"'{line}' names no variant of variants.txt", "labels")
            path = root / "images" / f"{image}.jpg"
            result.add(path, f"images/{image}.jpg", number[variant], part=part)


def cifar(entry: Entry, roots: Sequence[Path]) -> Iterator[ImageSet]:
    """Load CIFAR-10 or CIFAR-100, pickled arrays; pixels of a file are loaded with its first image."""
    meta, key, parts = _CIFAR[entry.name]
    root = locate(entry, roots, meta, *parts)
    classes = _cifar_file(root / meta).get(key.encode(), ())
    if [n.decode() if isinstance(n, bytes) else n for n in classes] != list(entry.classes):
        raise damaged(root / meta, f"not the classes of {entry.title}")
    labels: list[int] = []
    counts = []
    for name in parts:
        path = root / name
        content = _cifar_file(path)
        in_file, pixels = content.get(b"labels", content.get(b"fine_labels")), content.get(b"data", ())
        if (
            in_file is None
            or np.shape(pixels) != (len(in_file), 3072)
            or not 0 <= min(in_file) <= max(in_file) < len(classes)
        ):
            raise damaged(path, "not a file of CIFAR")
        labels += in_file
        counts.append(len(in_file))
    starts = np.cumsum([0, *counts[:-1]])

    @cache
    def pixels_of(file: int) -> np.ndarray:
        return np.asarray(_cifar_file(root / list(parts)[file])[b"data"])

    def read(index: int) -> Image.Image:
        file = int(np.searchsorted(starts, index, side="right")) - 1
        flat = pixels_of(file)[index - starts[file]]
        return Image.fromarray(np.ascontiguousarray(flat.reshape(3, 32, 32).transpose(1, 2, 0)))

    yield ImageSet(
        name=entry.name,
        classes=prompts(entry),
        domains=(ONE_DOMAIN,),
        template=entry.template,
        labels=np.array(labels, dtype=np.int64),
        domain=np.zeros(len(labels), dtype=np.int64),
        keys=tuple(
            f"{name}/{i:05d}" for name, count in zip(parts, counts, strict=True) for i in range(count)
        ),
        fingerprint=hash_versions((root / name, name) for name in parts)[:16],
        read=read,
        split=np.repeat(np.array(list(parts.values()), dtype=np.int8), counts),
    )


_ARRAY_PARTS = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy._core.numeric", "_frombuffer"),
    ("_codecs", "encode"),
}


class _ArrayUnpickler(pickle.Unpickler):
    """Unpickles arrays, numbers and text only, since a pickle from the network could call any function."""

    def find_class(self, module: str, name: str) -> Any:
        """Return one of the few functions that arrays need; CIFAR's files use numpy's former names."""
        module = module.replace("numpy.core", "numpy._core")
        if (module, name) not in _ARRAY_PARTS:
            raise pickle.UnpicklingError(f"uses {module}.{name}, which no array needs")
        owner = import_module(module if find_spec(module) else module.replace("numpy._core", "numpy.core"))
        return getattr(owner, name)


def _cifar_file(path: Path) -> dict[bytes, Any]:
    """Read one pickled file; depending on the tool that wrote it, its keys are text or bytes."""
    try:
        content = _ArrayUnpickler(io.BytesIO(path.read_bytes()), encoding="bytes").load()
    except (
        OSError,
        EOFError,
        ValueError,
        AttributeError,
        LookupError,
        TypeError,
        ImportError,
        pickle.UnpicklingError,
    ) as error:
        raise damaged(path, f"damaged ({error})") from error
    if not isinstance(content, dict):
        raise damaged(path, "damaged (no table of arrays)")
    return {key.encode() if isinstance(key, str) else key: value for key, value in content.items()}


def _mat(path: Path, name: str) -> np.ndarray:
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    try:
        return np.atleast_1d(loadmat(path, squeeze_me=True)[name])
    except (OSError, LookupError, ValueError, TypeError, MatReadError) as error:
        raise damaged(path, f"damaged ({error})") from error
