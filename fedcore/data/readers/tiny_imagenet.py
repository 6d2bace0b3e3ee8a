"""Tiny-ImageNet: ``train/n01443537/images/n01443537_0.JPEG``, and ``val`` with a list of labels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedcore.data.entry import Entry
from fedcore.data.readers.files import damaged, folders_in, images_in, locate, read_lines
from fedcore.data.readers.layout import chosen_domains
from fedcore.data.readers.listing import Listing
from fedcore.records.codes import TEST, TRAIN


def names(entry: Entry, roots: Sequence[Path]) -> tuple[str, ...]:
    """Return the classes as they enter a prompt, in the order of their WordNet ids.

    ``words.txt`` gives several words for most classes; the first is used, or all of them where two classes
    share the first.

    Raises:
        FedLensError: ``data.root``.
    """
    root = _root(entry, roots)
    return tuple(_words(root, _ids(root)))


def load(entry: Entry, roots: Sequence[Path], domains: Sequence[str] | None) -> Listing:
    """List training and validation images; the latter are the test set, as the set's own has no labels.

    Raises:
        FedLensError: ``data.root``, for a missing file or folder, or a label that ``wnids.txt`` lacks.
    """
    chosen_domains(entry, domains)
    root = _root(entry, roots)
    ids = _ids(root)
    listed = root / "val" / "val_annotations.txt"
    result = Listing(root, tuple(_words(root, ids)))
    result.label_files += [root / "wnids.txt", root / "words.txt", listed]
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
    return result


def _root(entry: Entry, roots: Sequence[Path]) -> Path:
    return locate(entry, roots, "wnids.txt", "words.txt", "train", "val/val_annotations.txt")


def _ids(root: Path) -> list[str]:
    return sorted(set(read_lines(root / "wnids.txt")))


def _words(root: Path, ids: list[str]) -> list[str]:
    words = dict(line.split("\t", 1) for line in read_lines(root / "words.txt") if "\t" in line)
    unknown = [i for i in ids if i not in words]
    if unknown:
        raise damaged(root / "words.txt", f"no words for '{unknown[0]}', which wnids.txt names")
    first = [words[i].split(",")[0].strip() for i in ids]
    return [words[i].strip() if first.count(name) > 1 else name for i, name in zip(ids, first, strict=True)]
