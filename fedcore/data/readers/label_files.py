"""Data sets whose images are named in label files (DomainNet, UCF-101, SUN-397, CoOp), and ImageNet's family.

The readers yield the listing as ``loaders._reading`` explains.
"""

import json
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from fedcore.base.errors import DAMAGE
from fedcore.base.events import TEST, TRAIN, VALIDATION
from fedcore.base.files import ASSETS
from fedcore.data.images import Entry, FolderError
from fedcore.data.readers.files import (
    Listing,
    NotInFolder,
    damaged,
    folders_in,
    images_in,
    locate,
    read_lines,
)
from fedcore.data.readers.layout import (
    catalog_layout,
    chosen_domains,
    list_images,
    prompt_names,
    refuse_other_classes,
)

_DOMAINNET_LISTS: tuple[Mapping[str, int | None], ...] = (
    {"{}_list.txt": None},
    {"{}_train.txt": TRAIN, "{}_test.txt": TEST},
)
"""Alternative sets of lists for each domain: file -> the part of the official split that it lists. The first
set is that of DomainNet-126, the second one is the split of DomainNet's authors."""


def domainnet(entry: Entry, roots: Sequence[Path], domains: Sequence[str] | None) -> Iterator[Listing]:
    """List the images named in txt files beside the domains' folders, or else all images in the folders.

    A line is ``clipart/aircraft_carrier/clipart_001_000001.jpg 0``. A folder may hold the lists of both
    DomainNet and DomainNet-126; only those of the wanted data set are read.
    """
    wanted = chosen_domains(entry, domains)
    for parts in _DOMAINNET_LISTS if entry.subset else _DOMAINNET_LISTS[1:]:
        files = {(d, pattern.format(d)): part for d in wanted for pattern, part in parts.items()}
        with suppress(NotInFolder):
            root = locate(entry, roots, *(name for _, name in files))
            break
    else:
        yield from list_images(catalog_layout(entry, roots, domains))
        return
    folders = {d: _domain_folder(entry, root, roots, d) for d in wanted}
    result = Listing(roots[0], (), wanted)
    rows: list[tuple[int, str, str, int | None]] = []
    number: dict[str, str] = {}
    for (domain, name), part in files.items():
        result.label_files.append(root / name)
        for line in read_lines(root / name):
            path, _, label = line.rpartition(" ")
            pieces = path.split("/")
            if len(pieces) < 3 or pieces[-3] != domain or ".." in pieces or not label.isdecimal():
                raise damaged(root / name, f"'{line}' is not '{domain}/class/image.jpg number'", "list")
            if entry.classes and pieces[-2] not in entry.classes:
                if part is None:
                    refuse_other_classes(entry, root / name, (*entry.classes, pieces[-2]))
                continue  # DomainNet's lists name more classes than DomainNet-126 has
            if number.setdefault(pieces[-2], label) != label:
                why = f"class '{pieces[-2]}' has the numbers {number[pieces[-2]]} and {label}"
                raise damaged(root / name, why, "lists")
            rows.append((wanted.index(domain), pieces[-2], pieces[-1], part))
    classes = entry.classes or tuple(sorted(number))
    refuse_other_classes(entry, root, tuple(number))
    result.classes = prompt_names(root, classes)
    yield result
    label_of = {name: i for i, name in enumerate(classes)}
    for d, class_name, image, part in sorted(rows, key=lambda row: row[:3]):
        file = folders[wanted[d]] / class_name / image
        result.add(file, f"{wanted[d]}/{class_name}/{image}", label_of[class_name], d, part)


def _domain_folder(entry: Entry, root: Path, roots: Sequence[Path], domain: str) -> Path:
    for base in (root, *roots):
        for folder in (base / domain / domain, base / domain):
            if folder.is_dir():
                return folder
    raise NotInFolder(f"{roots[0]}: no domain folder '{domain}' beside its list. {entry.how_to_get}")


def tiny_imagenet(entry: Entry, roots: Sequence[Path]) -> Iterator[Listing]:
    """List training images and, as test set, validation images, since its own test images have no labels.

    Training images are ``train/n01443537/images/n01443537_0.JPEG``; a file lists the labels of ``val``. The
    classes are in the order of their WordNet ids. ``words.txt`` gives several words for most of them: the
    first one is used, or all of them if two classes share the first.
    """
    root = locate(entry, roots, "wnids.txt", "words.txt", "train", "val/val_annotations.txt")
    ids = sorted(set(read_lines(root / "wnids.txt")))
    words = dict(line.split("\t", 1) for line in read_lines(root / "words.txt") if "\t" in line)
    unknown = [i for i in ids if i not in words]
    if unknown:
        raise damaged(root / "words.txt", f"no words for '{unknown[0]}', which wnids.txt names")
    first = [words[i].split(",")[0].strip() for i in ids]
    names = (words[i].strip() if first.count(name) > 1 else name for i, name in zip(ids, first, strict=True))
    listed = root / "val" / "val_annotations.txt"
    result = Listing(root, tuple(names), label_files=[root / "wnids.txt", root / "words.txt", listed])
    yield result
    present = set(folders_in(root, root / "train"))
    missing = [i for i in ids if i not in present]
    if missing:
        raise damaged(root / "train", f"no folder '{missing[0]}', which wnids.txt names")
    for label, wnid in enumerate(ids):
        for path in sorted(images_in(root, root / "train" / wnid / "images")):
            result.add(path, f"train/{wnid}/{path.name}", label, part=TRAIN)
    number = {wnid: label for label, wnid in enumerate(ids)}
    for line in read_lines(listed):
        image, wnid, *_ = [*line.split("\t"), ""]
        if wnid not in number:
            raise damaged(listed, f"'{line}' names no class of wnids.txt")
        result.add(root / "val" / "images" / image, f"val/{image}", number[wnid], part=TEST)


_UCF_FRAMES, _UCF_CLASSES = "UCF-101-midframes", "ucfTrainTestlist/classInd.txt"
_UCF_LISTS = {"ucfTrainTestlist/trainlist01.txt": TRAIN, "ucfTrainTestlist/testlist01.txt": TEST}


def ucf101(entry: Entry, roots: Sequence[Path]) -> Iterator[Listing]:
    """List the middle frames of UCF-101's videos, with the first of its three splits.

    The frame of ``ApplyEyeMakeup/v_ApplyEyeMakeup_g08_c01.avi`` is
    ``UCF-101-midframes/Apply_Eye_Makeup/v_ApplyEyeMakeup_g08_c01.jpg``.
    """
    root = locate(entry, roots, _UCF_CLASSES, *_UCF_LISTS)
    numbered = [line.partition(" ") for line in read_lines(root / _UCF_CLASSES)]
    if [number for number, _, _ in numbered] != [str(i + 1) for i in range(len(numbered))]:
        raise damaged(root / _UCF_CLASSES, "its lines are not '1 ApplyEyeMakeup' and so on", "lists")
    label_of = {name: label for label, (_, _, name) in enumerate(numbered)}
    classes = tuple(_spaced(name) for _, _, name in numbered)
    result = Listing(roots[0], classes, label_files=[root / name for name in _UCF_LISTS])
    yield result
    frames = locate(entry, roots, _UCF_FRAMES) / _UCF_FRAMES  # often in another archive than the lists
    for name, part in _UCF_LISTS.items():
        for line in read_lines(root / name):
            action, _, video = line.split(" ")[0].partition("/")
            if action not in label_of or not video.endswith(".avi"):
                raise damaged(root / name, f"'{line}' is not 'Action/video.avi' of an action", "lists")
            key = f"{_spaced(action).replace(' ', '_')}/{video.removesuffix('.avi')}.jpg"
            result.add(frames / key, key, label_of[action], part=part)


def _spaced(action: str) -> str:
    """Write ``ApplyEyeMakeup`` as "Apply Eye Makeup"; each capital begins a word, also in ``YoYo``."""
    return "".join(f" {c}" if c.isupper() and i else c for i, c in enumerate(action))


_SUN_LISTS = {"Training_01.txt": TRAIN, "Testing_01.txt": TEST}


def sun397(entry: Entry, roots: Sequence[Path]) -> Iterator[Listing]:
    """List the images of SUN-397's first partition: ``/a/abbey/sun_aakbdcgfpksytcwj.jpg`` a line.

    A class enters a prompt as in CoOp, for example "outdoor apartment building".
    """
    root = locate(entry, roots, "ClassName.txt", *_SUN_LISTS)
    places = read_lines(root / "ClassName.txt")
    # of /a/apartment_building/outdoor, the words after the letter, the last part first
    words = (" ".join(reversed(place.strip("/").split("/")[1:])) for place in places)
    names = prompt_names(root, tuple(words))
    result = Listing(roots[0], names, label_files=[root / name for name in _SUN_LISTS])
    yield result
    number = {place: label for label, place in enumerate(places)}
    rows = [(line, name) for name in _SUN_LISTS for line in read_lines(root / name)]
    if not rows:
        raise damaged(root / "Training_01.txt", "it lists no image", "partitions")
    images = locate(entry, roots, rows[0][0].lstrip("/"))
    for line, name in rows:
        place = line.rpartition("/")[0]
        if place not in number:
            raise damaged(root / name, f"'{line}' is in no folder of ClassName.txt", "partitions")
        key = line.lstrip("/")
        result.add(images / key, key, number[place], part=_SUN_LISTS[name])


_COOP_PARTS = {"train": TRAIN, "val": VALIDATION, "test": TEST}


def coop(entry: Entry, roots: Sequence[Path]) -> Iterator[Listing]:
    """List the images of a few-shot split such as ``split_zhou_Caltech101.json``, with its classes and parts.

    Other images of the data set are not used.

    Source: Zhou et al., Learning to Prompt for Vision-Language Models, IJCV 2022, whose code publishes the
    files.
    """
    folder = locate(entry, roots, entry.split_coop)
    path, *others = sorted(folder.glob(entry.split_coop))
    if others:
        listed = " and ".join(file.name for file in (path, *others))
        raise FolderError(f"{folder}: {listed}; leave one, that of the data set to read")
    rows = _coop_rows(path)
    by_label: dict[int, str] = {}
    for _, _, label, name in rows:
        if by_label.setdefault(label, name) != name:
            raise damaged(path, f"label {label} is both '{by_label[label]}' and '{name}'", "split")
    missing = sorted(set(range(len(by_label))) - set(by_label))
    if missing:
        raise damaged(path, f"no image has label {missing[0]}", "split")
    names = tuple(by_label[label].replace("_", " ") for label in range(len(by_label)))
    if len(set(names)) < len(names):
        raise damaged(path, "two labels have one name", "split")
    result = Listing(roots[0], names, label_files=[path])
    yield result
    images = locate(entry, roots, rows[0][1])
    for part, image, label, _ in rows:
        result.add(images / image, image, label, part=part)


def _coop_rows(path: Path) -> list[tuple[int, str, int, str]]:
    """Return each image's part, path, label and class name; refuse a file that names an image twice."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, *DAMAGE) as error:
        raise damaged(path, f"damaged ({error})", "split") from error
    if not isinstance(content, dict) or not all(isinstance(content.get(name), list) for name in _COOP_PARTS):
        raise damaged(path, "expected lists of images named train, val and test", "split")
    rows: list[tuple[int, str, int, str]] = []
    for name, part in _COOP_PARTS.items():
        for row in content[name]:
            match row:
                case [str(image), int(label), str(class_name)] if label >= 0 and class_name:
                    if image != posixpath.normpath(image) or image[0] in "/." or "*" in image:
                        raise damaged(path, f"{image!r:.100} is not a plain path within its folder", "split")
                    rows.append((part, image, label, class_name))
                case _:
                    raise damaged(path, f"{row!r} is not [image, label, class name]", "split")
    images = {image for _, image, _, _ in rows}
    if not rows or len(images) < len(rows):
        raise damaged(path, "it lists no image" if not rows else "it lists an image twice", "split")
    return rows


_FOLDER = "n[0-9]*[0-9]"
"""Pattern of a folder of ImageNet's, which is named by the WordNet id of its class (in V2 by its label)."""


@cache
def class_names() -> Mapping[str, str]:
    """Return WordNet id -> name of ImageNet's 1,000 classes, in the order of its labels.

    The names are those of CLIP's authors. Two of them, missile and sunglasses, belong to two classes each;
    n04008634 and n04355933 get the first of WordNet's words instead, projectile and sunglass.
    """
    names: dict[str, str] = json.loads((ASSETS / "imagenet.json").read_text(encoding="utf-8"))
    return names


def imagenet(entry: Entry, roots: Sequence[Path]) -> Iterator[Listing]:
    """List ``train/n01440764/*.JPEG`` and, as test set, ``val/n01440764/*.JPEG``."""
    root = locate(entry, roots, f"train/{_FOLDER}", f"val/{_FOLDER}")
    ids, tested = (_known_ids(root, root / part) for part in ("train", "val"))
    if ids != tested:
        other = sorted(set(ids) ^ set(tested))[0]
        where = "val" if other in ids else "train"
        raise damaged(root, f"no folder '{other}' in {where}, which the other part has")
    listing = Listing(root, tuple(class_names()[wnid] for wnid in ids))
    yield listing
    for part, mark in (("train", TRAIN), ("val", TEST)):
        for label, wnid in enumerate(ids):
            _add(listing, f"{part}/{wnid}", label, mark)


def imagenet_test(entry: Entry, roots: Sequence[Path]) -> Iterator[Listing]:
    """List ImageNet-V2, -Sketch, -A or -R: folders of classes, all of whose images are for testing."""
    if entry.loader == "imagenet-v2":  # its folders are named by the labels of their classes
        root = locate(entry, roots, "[0-9]*/*.jpeg")
        ids = list(class_names())
        numbered = [name for name in folders_in(root, root) if name.isdecimal()]
        unknown = [name for name in numbered if name not in map(str, range(len(ids)))]
        if unknown:
            raise damaged(root, f"folder '{unknown[0]}' is not a label of ImageNet; labels go from 0 to 999")
        folder_of = {ids[label]: str(label) for label in sorted(map(int, numbered))}
    else:
        root = locate(entry, roots, _FOLDER)
        folder_of = {wnid: wnid for wnid in _known_ids(root, root)}
    listing = Listing(root, tuple(class_names()[wnid] for wnid in folder_of))
    yield listing
    for label, folder in enumerate(folder_of.values()):
        _add(listing, folder, label, TEST)


def _add(listing: Listing, folder: str, label: int, part: int) -> None:
    for path in sorted(images_in(listing.root, listing.root / folder), key=lambda p: p.name):
        listing.add(path, f"{folder}/{path.name}", label, part=part)


def _known_ids(root: Path, folder: Path) -> list[str]:
    """Return the folders that are WordNet ids of ImageNet's classes; refuse other ids."""
    ids = [name for name in folders_in(root, folder) if name[:1] == "n" and name[1:].isdecimal()]
    unknown = [wnid for wnid in ids if wnid not in class_names()]
    if unknown:
        raise damaged(folder, f"folder '{unknown[0]}' is not a class of ImageNet")
    return sorted(ids)
