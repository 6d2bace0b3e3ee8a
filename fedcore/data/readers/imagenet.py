"""ImageNet and the test sets that were made for it: V2, Sketch, A and R, whose classes are ImageNet's.

A folder is named by the WordNet id of its class (in V2 by its label), a class by the name that CLIP's authors
give it. Two of their names, missile and sunglasses, belong to two classes each; n04008634 and n04355933
get the first of WordNet's words instead, projectile and sunglass.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from fedcore.base.codes import TEST, TRAIN
from fedcore.base.files import ASSETS
from fedcore.data.images import Entry
from fedcore.data.readers.files import damaged, folders_in, images_in, locate
from fedcore.data.readers.listing import Listing

_FOLDER = "n[0-9]*[0-9]"
"""Pattern of a folder that is named by a WordNet id."""


@cache
def class_names() -> Mapping[str, str]:
    """Return WordNet id -> name of ImageNet's 1,000 classes, in the order of its labels."""
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
    root, folder_of = _class_folders(entry, roots)
    listing = Listing(root, tuple(class_names()[wnid] for wnid in folder_of))
    yield listing
    for label, folder in enumerate(folder_of.values()):
        _add(listing, folder, label, TEST)


def _add(listing: Listing, folder: str, label: int, part: int) -> None:
    for path in sorted(images_in(listing.root, listing.root / folder), key=lambda p: p.name):
        listing.add(path, f"{folder}/{path.name}", label, part=part)


def _class_folders(entry: Entry, roots: Sequence[Path]) -> tuple[Path, dict[str, str]]:
    """Return a test set's folder, and WordNet id -> the folder of the class in it."""
    if entry.loader != "imagenet-v2":
        root = locate(entry, roots, _FOLDER)
        return root, {wnid: wnid for wnid in _known_ids(root, root)}
    root = locate(entry, roots, "[0-9]*/*.jpeg")
    ids = list(class_names())
    numbered = [name for name in folders_in(root, root) if name.isdecimal()]
    unknown = [name for name in numbered if name not in map(str, range(len(ids)))]
    if unknown:
        raise damaged(root, f"folder '{unknown[0]}' is not a label of ImageNet; labels go from 0 to 999")
    return root, {ids[label]: str(label) for label in sorted(map(int, numbered))}


def _known_ids(root: Path, folder: Path) -> list[str]:
    """Return the folders that are WordNet ids of ImageNet's classes; refuse other ids."""
    ids = [name for name in folders_in(root, folder) if name[:1] == "n" and name[1:].isdecimal()]
    unknown = [wnid for wnid in ids if wnid not in class_names()]
    if unknown:
        raise damaged(folder, f"folder '{unknown[0]}' is not a class of ImageNet")
    return sorted(ids)
