"""What a check found: one list of paths for each kind of trouble, with what happens to them."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fedcore.data.check.pictures import Look
from fedcore.data.images import TEST, TRAIN
from fedcore.data.readers.listing import Listing
from fedcore.data.readers.walk import SUFFIXES

KINDS: Mapping[str, tuple[str, str]] = {
    "link": ("links that leave the folder", "refused: copy what they point to, or give that folder"),
    "missing": ("files that are listed but not there", "left out"),
    "empty": ("files of zero bytes", "left out"),
    "truncated": ("truncated images", "left out"),
    "unreadable": ("unreadable images", "left out"),
    "huge": ("images beyond the limit on pixels", "left out"),
    "not an image": ("files that are no images in spite of their name", "left out"),
    "no label": ("rows without a label", "left out"),
    "no grade": ("images that the data set itself calls ungradable", "left out"),
    "no images": (
        "classes without images in a domain",
        "they stay; the domain has none to learn",
    ),
    "train and test": (
        "groups of identical images in train and in test",
        "used as they are: remove one of each",
    ),
    "labels": ("groups of identical images of different classes", "used as they are: decide for one"),
    "domains": (
        "groups of identical images in different domains",
        "used as they are: a held-out domain is not unseen",
    ),
    "copies": ("groups of identical images of one class", "used as they are: a seeded split may part them"),
    "animated": ("animated images", "their first frame is used"),
    "CMYK": ("images in CMYK", "converted to RGB"),
    "16 bit": ("images of 16 bits a channel", "scaled to 8 bits"),
    "turned": ("images with an EXIF rotation", "turned upright"),
    "unused": ("images that belong to no domain and class in use", "not looked at"),
    "other": ("files that are no images", "not looked at"),
}
"""Kind of finding -> what it is, what happens to it. In order of weight."""

LEFT_OUT = ("missing", "empty", "truncated", "unreadable", "huge", "not an image", "no label", "no grade")

LISTED = 50
"""Paths (or groups of them) that a finding lists; it counts all."""

SAMPLES = 6
"""Sample images of each domain."""


@dataclass(frozen=True)
class Finding:
    """One kind of trouble. paths: relative to the folder, identical files joined by `` = ``; the first."""

    kind: str
    count: int
    paths: tuple[str, ...]

    @property
    def line(self) -> str:
        """``3 truncated images (left out): a.jpg; b.jpg; ...``."""
        what, treatment = KINDS[self.kind]
        more = "; ..." if self.count > 3 else ""
        return f"{self.count:,} {what} ({treatment}): {'; '.join(self.paths[:3])}{more}"


@dataclass(frozen=True)
class CheckReport:
    """What a data set is like.

    Attributes:
        error: why it cannot be used as it is, in one line; None where it can.
        images: usable ones.
        counts: usable images. Shape: (domains, classes).
        samples: a few usable images of each domain: paths, or keys where they are no files.
        findings: in the order of ``KINDS``.
        notes: what the loader says besides, e.g. that the literature knows more images.
    """

    name: str
    root: str
    error: str | None
    images: int
    domains: tuple[str, ...]
    classes: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]
    samples: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def left_out(self) -> int:
        """How many images are not used."""
        return sum(f.count for f in self.findings if f.kind in LEFT_OUT)

    def finding(self, kind: str) -> Finding | None:
        """The finding of one kind, or None."""
        return next((f for f in self.findings if f.kind == kind), None)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> CheckReport:
        """The report that ``to_dict`` wrote, also by way of JSON."""
        values = dict(content)
        values["findings"] = tuple(
            Finding(f["kind"], f["count"], tuple(f["paths"])) for f in values["findings"]
        )
        values["samples"] = {domain: tuple(paths) for domain, paths in values["samples"].items()}
        values["counts"] = tuple(map(tuple, values["counts"]))
        for name in ("domains", "classes", "notes"):
            values[name] = tuple(values[name])
        return cls(**values)

    def to_json(self) -> str:
        """As text."""
        return json.dumps(self.to_dict())


_HIDDEN = (".", "__MACOSX", "unpacked-", "converted-", "fedlens-")


class Tally:
    """Findings as they come up."""

    def __init__(self, root: Path | None) -> None:
        self._root = root
        self._found: dict[str, list[str]] = defaultdict(list)

    def shown(self, file: Path | str) -> str:
        """A path as the report writes it."""
        if isinstance(file, Path) and self._root is not None and file.is_relative_to(self._root):
            return file.relative_to(self._root).as_posix()
        return str(file)

    def add(self, kind: str, file: Path | str) -> None:
        """One more of a kind."""
        self._found[kind].append(self.shown(file))

    def look(self, file: Path | str, look: Look) -> None:
        """What one image file is like."""
        marks = {
            look.kind: look.reason is not None,
            "animated": look.frames > 1,
            "CMYK": look.mode == "CMYK",
            "16 bit": look.deep,
            "turned": look.turned,
        }
        for kind, is_so in marks.items():
            if is_so:
                self.add(kind, file)

    def empty(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Classes without images in a domain."""
        for domain, name in pairs:
            self.add("no images", f"{domain}/{name}")

    def walk(self, root: Path, found: Listing | None) -> list[Path]:
        """Note links that leave the folder, files that are no images, and images that are not in use.

        Returns: the image files, sorted.
        """
        used: set[Path] = set()
        if found is not None:
            used = {*found.files, *found.label_files, *(file for file, _ in found.left_out)}
        pictures = []
        for file in _files(root) if root.is_dir() else ():
            if file.is_symlink() and not file.resolve().is_relative_to(root):
                self.add("link", file)
            elif file.is_dir() or file in used:
                continue
            elif file.suffix.lower() in SUFFIXES:
                pictures.append(file)
                if found is not None:
                    self.add("unused", file)
            else:
                self.add("other", file)
        return pictures

    def twins(
        self,
        digests: Mapping[int, str],
        paths: Mapping[int, str] | Sequence[str],
        labels: Sequence[int],
        domain: Sequence[int],
        split: Sequence[int] | None,
    ) -> None:
        """Groups of identical images, each under the gravest of its kinds."""
        groups: dict[str, list[int]] = defaultdict(list)
        for row, digest in digests.items():
            groups[digest].append(row)
        for rows in groups.values():
            if len(rows) < 2:
                continue
            parts = set() if split is None else {split[r] for r in rows}
            if {TRAIN, TEST} <= parts:
                kind = "train and test"
            elif len({labels[r] for r in rows}) > 1:
                kind = "labels"
            else:
                kind = "domains" if len({domain[r] for r in rows}) > 1 else "copies"
            self._found[kind].append(" = ".join(sorted(paths[r] for r in rows)))

    def findings(self) -> tuple[Finding, ...]:
        """All of them, the gravest first."""
        return tuple(
            Finding(kind, len(self._found[kind]), tuple(sorted(self._found[kind])[:LISTED]))
            for kind in KINDS
            if self._found[kind]
        )


def _files(root: Path) -> Iterator[Path]:
    """Files of a folder and links in it, sorted; hidden ones and what FedLens put there are passed over."""
    for folder, inside, names in os.walk(root):
        inside[:] = sorted(n for n in inside if not n.startswith(_HIDDEN))
        links = [n for n in inside if Path(folder, n).is_symlink()]
        for name in sorted([*names, *links]):
            if not name.startswith(_HIDDEN):
                yield Path(folder, name)
