"""The table of bad inputs: a good data set, one way to break it, and what is to be said of it.

Refused: the message names the place and the remedy. Left out (``good`` images remain): the warning names the
image.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from PIL import Image

from fedcore.data import catalog
from tests.support.data import layouts

CLASSES = ("dog", "snow_owl")
DOMAINS = ("art", "photo", "sketch")


def image(path: Path, label: int = 0, domain: int = 0, size: int = 12, **options: Any) -> Path:
    """A picture whose colour says its class and domain."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (size, size), layouts.colour(label, domain)).save(path, **options)
    return path


def folder(base: Path) -> Path:
    """Three domains, two classes, two images each: twelve."""
    for d, domain in enumerate(DOMAINS):
        for c, name in enumerate(CLASSES):
            for i in range(2):
                image(base / "set" / domain / name / f"{i}.png", c, d)
    return base / "set"


def pacs(base: Path) -> Path:
    return layouts.pacs(base / "pacs") / "kfold"


def manifest(base: Path) -> Path:
    """The folder's images in a list."""
    root = folder(base)
    rows = [
        f"{d}/{c}/{i}.png,{c},{d},w{i},{('train', 'test')[i]}"
        for d in DOMAINS
        for c in CLASSES
        for i in range(2)
    ]
    (root / "list.csv").write_text("\n".join(["path,label,domain,client,split", *rows]) + "\n")
    return root / "list.csv"


def saved(base: Path) -> Path:
    """Twelve rows of a Hugging Face data set."""
    datasets.disable_progress_bars()
    _dataset(base).save_to_disk(str(base / "saved"))
    return base / "saved"


def _dataset(base: Path, **change: Any) -> datasets.Dataset:
    files = sorted(folder(base).rglob("*.png"))
    content = {
        "image": [{"bytes": f.read_bytes(), "path": None} for f in files],
        "label": [CLASSES.index(f.parent.name) for f in files],
        "domain": [f.parent.parent.name for f in files],
    }
    features = {
        "image": datasets.Image(), "label": datasets.ClassLabel(names=list(CLASSES)),
        "domain": datasets.Value("string"),
    }  # fmt: skip
    content.update({k: v[0] for k, v in change.items()})
    features.update({k: v[1] for k, v in change.items()})
    return datasets.Dataset.from_dict(content, features=datasets.Features(features))


def femnist(base: Path) -> Path:
    return layouts.femnist(base / "leaf")


def first(root: Path) -> Path:
    return root / "photo" / "dog" / "0.png"


# --- breaking a good data set: each gives the root to load, None for the one it was given ---


def write(name: str, content: bytes | str) -> Callable[[Path], None]:
    def spoil(root: Path) -> None:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)

    return spoil


def rename(old: str, new: str) -> Callable[[Path], None]:
    def spoil(root: Path) -> None:
        (root / old).rename(root / new)

    return spoil


def remove(name: str) -> Callable[[Path], None]:
    def spoil(root: Path) -> None:
        for path in sorted((root / name).rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        (root / name).rmdir()

    return spoil


def cut(name: str, kind: str, keep: float = 0.5, **options: Any) -> Callable[[Path], None]:
    def spoil(root: Path) -> None:
        pixels = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(root / name, kind, **options)
        content = (root / name).read_bytes()
        (root / name).write_bytes(content[: int(len(content) * keep)])

    return spoil


def bomb(root: Path) -> None:
    body = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    head = b"IHDR" + body
    content = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", len(body)) + head + struct.pack(">I", zlib.crc32(head))
    (root / "photo/dog/x.png").write_bytes(content + b"\0\0\0\0IDAT")


def wrong_sum(root: Path) -> None:
    """A flipped bit in the pixels of a PNG."""
    content = bytearray(first(root).read_bytes())
    content[content.index(b"IDAT") + 8] ^= 1
    (root / "photo/dog/x.png").write_bytes(content)


def link(name: str, target: str) -> Callable[[Path], None]:
    def spoil(root: Path) -> None:
        (root.parent / "elsewhere" / "dog").mkdir(parents=True, exist_ok=True)
        image(root.parent / "outside.png")
        (root / name).symlink_to(root / target)

    return spoil


def row(*lines: str, header: str | None = None) -> Callable[[Path], None]:
    """Append lines to a manifest, and change its header."""

    def spoil(path: Path) -> None:
        text = path.read_text().splitlines()
        path.write_text("\n".join([header or text[0], *text[1:], *lines]) + "\n")

    return spoil


def spoil_all(root: Path) -> None:
    for path in root.rglob("*.png"):
        path.write_bytes(b"")


def arrow(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def spoil(root: Path) -> None:
        (file,) = root.glob("*.arrow")
        file.write_bytes(change(file.read_bytes()))

    return spoil


def resave(**change: Any) -> Callable[[Path], Path]:
    def spoil(root: Path) -> Path:
        _dataset(root.parent, **change).save_to_disk(str(root.parent / "again"))
        return root.parent / "again"

    return spoil


def beside_train(root: Path) -> Path:
    data = _dataset(root.parent)
    parts = datasets.DatasetDict({"train": data, "photos": data})
    parts.save_to_disk(str(root.parent / "parts"))
    return root.parent / "parts"


def broken_rows(root: Path) -> Path:
    whole = _dataset(root.parent).cast_column("image", datasets.Image(decode=False)).to_dict()
    whole["image"] += [{"bytes": b"<html>", "path": None}, {"bytes": b"", "path": None}, None]
    whole["label"] += [0, 1, 1]
    whole["domain"] += ["photo"] * 3
    datasets.Dataset.from_dict(whole, features=_dataset(root.parent).features).save_to_disk(
        str(root.parent / "again")
    )
    return root.parent / "again"


def leaf(change: Callable[[dict], None]) -> Callable[[Path], None]:
    def spoil(root: Path) -> None:
        path = root / "femnist/data/all_data/all_data_2.json"
        content = json.loads(path.read_text())
        change(content)
        path.write_text(json.dumps(content))

    return spoil


def _short_image(content: dict) -> None:
    content["user_data"][layouts.WRITERS[0]]["x"][0].pop()


def _fewer_labels(content: dict) -> None:
    content["user_data"][layouts.WRITERS[0]]["y"].pop()


def _wrong_label(content: dict) -> None:
    content["user_data"][layouts.WRITERS[0]]["y"][0] = 62


@dataclass(frozen=True)
class Bad:
    """One row. says: patterns that the message holds; good: images that still load, None where it refuses.

    at: the field that the error names.
    """

    given: Callable[[Path], Path]
    spoil: Callable[[Path], Path | None]
    says: tuple[str, ...]
    name: str = "folder"
    good: int | None = None
    at: str = "data.root"
    options: dict[str, Any] = field(default_factory=dict)


def _csv(spoil: Callable[[Path], Path | None], *says: str, **more: Any) -> Bad:
    return Bad(manifest, spoil, says, "manifest", **more)


def _hf(spoil: Callable[[Path], Path | None], *says: str, **more: Any) -> Bad:
    return Bad(saved, spoil, says, "hf-dataset", **more)


def _leaf(spoil: Callable[[Path], Path | None], *says: str, **more: Any) -> Bad:
    return Bad(femnist, spoil, says, "femnist", **more)


def same(root: Path) -> None:
    """Nothing broken: the request itself is wrong."""


X = "photo/dog/x"
BAD = {
    # folders of one's own
    "a folder that is not there": Bad(folder, lambda r: r / "nowhere", (r"set/nowhere", "give the folder")),
    "a file": Bad(folder, first, (r"photo/dog/0\.png is a file", "give the folder")),
    "an empty folder": Bad(
        folder,
        lambda r: (r / "hollow").mkdir() or r / "hollow",
        ("hollow: no folders in it", "expected domain/class/image"),
    ),
    "images at the top only": Bad(
        folder, lambda r: r / "photo" / "dog", ("photo/dog", "expected domain/class/image")
    ),
    "a class missing": Bad(
        folder, remove("sketch/dog"), ("set: domain 'sketch' has no class folder 'dog'", "add it")
    ),
    "a class misspelled": Bad(
        folder, rename("sketch/dog", "sketch/dgo"), ("'dgo'", r"rename it \('dog'\?\)")
    ),
    "images beside class folders": Bad(
        folder, write("stray/0.png", b"x"), ("folder 'stray' holds images", "domain/class/image throughout")
    ),
    "a folder of lists": Bad(
        folder, write("lists/train.txt", "x"), ("folder 'lists'", "remove it or name the domains")
    ),
    "two classes of one name": Bad(
        folder,
        lambda r: [(r / d / "snow owl").mkdir() for d in DOMAINS] and None,
        ("'snow owl' and 'snow_owl' read the same", "rename one"),
    ),
    "a link to a file outside": Bad(
        folder,
        link("photo/dog/x.png", "../outside.png"),
        (r"photo/dog/x\.png is a link that leaves the folder", "copy what it points to"),
    ),
    "a link to a folder outside": Bad(
        folder, link("more", "../elsewhere"), ("set/more is a link that leaves", "copy what it points to")
    ),
    "an unknown domain": Bad(
        folder,
        same,
        ("no domain folder 'foto'", "did you mean 'photo'"),
        options={"domains": ["foto"]},
        at="data.domains",
    ),
    "nothing readable": Bad(folder, spoil_all, ("no readable image", r"art/dog/0\.png: empty file")),
    # data sets of the catalog
    "a domain renamed beyond recognition": Bad(
        pacs, rename("sketch", "pencil"), ("kfold: no domain folder 'sketch'", "Give the folder"), "pacs"
    ),
    "a domain missing": Bad(pacs, remove("photo"), ("no domain folder 'photo'", "Give the folder"), "pacs"),
    "a class of the catalog's missing": Bad(
        pacs,
        lambda r: [remove(f"{d}/horse")(r) for d in catalog.entry("pacs").domains] and None,
        ("kfold: no class folder 'horse', which PACS has", "complete the folder"),
        "pacs",
    ),
    "a class of the catalog's renamed": Bad(
        pacs,
        lambda r: [rename(f"{d}/horse", f"{d}/pony")(r) for d in catalog.entry("pacs").domains] and None,
        ("'horse'|'pony'", "complete the folder"),
        "pacs",
    ),
    "a class too many": Bad(
        pacs,
        lambda r: [write(f"{d}/zebra/0.jpg", b"")(r) for d in catalog.entry("pacs").domains] and None,
        ("unknown class folder 'zebra', which PACS does not have", "load it as 'folder'"),
        "pacs",
    ),
    # images
    "a file of zero bytes": Bad(
        folder, write(f"{X}.jpg", b""), (rf"1 images left out \({X}\.jpg: empty file\)",), good=12
    ),
    "text": Bad(folder, write(f"{X}.png", "no image"), (rf"{X}\.png: not an image",), good=12),
    "a web page": Bad(folder, write(f"{X}.jpg", "<html>404</html>"), (rf"{X}\.jpg: not an image",), good=12),
    "a truncated JPEG": Bad(
        folder, cut(f"{X}.jpg", "JPEG"), (rf"{X}\.jpg: unreadable: .*truncated",), good=12
    ),
    "a truncated progressive JPEG": Bad(
        folder,
        cut(f"{X}.jpg", "JPEG", 0.9, progressive=True),
        (rf"{X}\.jpg: unreadable: .*truncated",),
        good=12,
    ),
    "a truncated PNG": Bad(folder, cut(f"{X}.png", "PNG"), (rf"{X}\.png: unreadable: .*truncated",), good=12),
    "a truncated WebP": Bad(
        folder, cut(f"{X}.webp", "WEBP", lossless=True), (rf"{X}\.webp: (unreadable|not an image)",), good=12
    ),
    "the head of a JPEG only": Bad(
        folder, cut(f"{X}.jpg", "JPEG", 0.01), (rf"{X}\.jpg: (unreadable|not an image)",), good=12
    ),
    "a decompression bomb": Bad(folder, bomb, (rf"{X}\.png: more than 89,478,485 pixels",), good=12),
    "a PNG with a flipped bit": Bad(folder, wrong_sum, (rf"{X}\.png: unreadable",), good=12),
    "a link to nothing": Bad(
        folder, link(f"{X}.png", "photo/dog/gone.png"), (rf"{X}\.png: unreadable: .*No such file",), good=12
    ),
    "a folder called like an image": Bad(folder, lambda r: (r / f"{X}.png").mkdir(), (), good=12),
    "what a Mac leaves behind": Bad(folder, write("photo/dog/._0.png", b"x"), (), good=12),
    # manifests
    "a list that is not there": _csv(
        lambda p: p.with_name("gone.csv"), r"no file .*gone\.csv", "give the CSV file"
    ),
    "the folder of the list": _csv(lambda p: p.parent, "is a folder", r"give .*set/list\.csv"),
    "an empty list": _csv(
        lambda p: p.write_text("") and None, r"list\.csv: no column 'path' in line 1", "rename one or name it"
    ),
    "a header only": _csv(
        lambda p: p.write_text("path,label\n") and None, r"list\.csv: no rows", "add a line for each image"
    ),
    "no label column": _csv(
        row(header="path,klass,domain,client,split"),
        r"list\.csv: no column 'label'",
        "its columns are path, klass",
    ),
    "semicolons": _csv(
        lambda p: p.write_text(p.read_text().replace(",", ";")) and None,
        "no column 'path'",
        "separated by ';'; save it with commas",
    ),
    "two columns of one name": _csv(
        row(header="path,label,domain,label,split"), "two columns are called 'label'", "rename one"
    ),
    "a list in another encoding": _csv(
        lambda p: p.write_bytes(p.read_bytes() + b"\xff\xfe") and None,
        r"list\.csv: not UTF-8",
        "save it as UTF-8",
    ),
    "an unclosed quote": _csv(
        row('"photo/dog/0.png,dog,photo,w,train'), r"list\.csv: line 14: ", "save it as CSV"
    ),
    "a comma too many": _csv(
        row("photo/dog/7.png,dog,big,photo,w,train"), "line 14: 6 values for 5 columns", "quote values"
    ),
    "a row without label": _csv(
        row("photo/dog/7.png,,photo,w,train"), "line 14: no label", "correct these lines"
    ),
    "an unknown split": _csv(
        row("photo/dog/7.png,dog,photo,w,dev"), "line 14: split 'dev' is none of train, validation, test"
    ),
    "one image twice": _csv(
        row("./photo/dog/0.png,snow_owl,photo,w,train"),
        r"line 14: '\./photo/dog/0\.png' is already in line 6",
    ),
    "many bad rows": _csv(
        row(*[f"{i}.png,,photo,w,train" for i in range(9)]),
        "line 14: no label; line 15: no label",
        "and 4 more",
    ),
    "a path that leaves the folder": _csv(
        row("../outside.png,dog,photo,w,train"),
        r"line 14: '\.\./outside\.png' leaves the manifest's folder",
        "copy them into its folder",
    ),
    "an absolute path elsewhere": _csv(
        row("/etc/hostname,dog,photo,w,train"), "line 14: '/etc/hostname' leaves", "copy them into its folder"
    ),
    "a listed image that is gone": _csv(
        row("photo/dog/7.png,dog,photo,w,train"),
        r"photo/dog/7\.png: no such file \(line 14 of list\.csv\)",
        good=12,
    ),
    "a listed image of zero bytes": _csv(
        lambda p: write("x.png", b"")(p.parent) or row("x.png,dog,photo,w,train")(p),
        r"x\.png: empty file",
        good=12,
    ),
    "an unknown domain of a list": _csv(
        same,
        r"list\.csv: no domain 'foto'; did you mean 'photo'",
        options={"domains": ["foto"]},
        at="data.domains",
    ),
    "a column that a list does not have": _csv(
        same, r"list\.csv: no column 'species' in line 1", options={"columns": {"label": "species"}}
    ),
    # Hugging Face data sets
    "no saved data set": _hf(
        lambda r: r.parent / "set", "set: neither dataset_dict.json nor state.json", "save_to_disk"
    ),
    "an arrow file cut short": _hf(arrow(lambda b: b[:200]), "saved: a damaged data set", "save it again"),
    "an arrow file of something else": _hf(
        arrow(lambda b: b"x" * 100), "saved: a damaged data set", "save it again"
    ),
    "an arrow file missing": _hf(
        lambda r: next(r.glob("*.arrow")).unlink(), "saved: a damaged data set", "save it again"
    ),
    "a damaged state.json": _hf(write("state.json", "{"), "saved: a damaged data set", "save it again"),
    "labels without names": _hf(
        resave(label=([0, 1] * 6, datasets.Value("int64"))),
        "column 'label' holds neither a ClassLabel nor text",
        "cast_column",
        at="data.columns.label",
    ),
    "two image columns": _hf(
        resave(
            mask=([None] * 12, datasets.Image()),
            picture=([None] * 12, datasets.Image()),
            image=(["x"] * 12, datasets.Value("string")),
        ),
        "2 columns of type Image among .*mask",
        "name the one to use",
        at="data.columns",
    ),
    "a part beside train": _hf(
        beside_train, "parts: part 'photos' beside train and test", "one part per domain"
    ),
    "rows without a domain": _hf(
        resave(domain=([None] * 12, datasets.Value("string"))),
        "again: rows without a domain",
        "complete the column 'domain'",
    ),
    "an unknown column": _hf(
        same,
        "saved: no column 'species'; there are .*image, label",
        options={"columns": {"label": "species"}},
        at="data.columns.label",
    ),
    "broken rows": _hf(
        broken_rows,
        r"3 images left out \(row/0000012: not an image; row/0000013: empty file; row/0000014: empty file\)",
        good=12,
    ),
    # LEAF
    "LEAF json cut short": _leaf(
        lambda r: [p.write_text(p.read_text()[:-20]) for p in r.rglob("*_2.json")] and None,
        r"all_data_2\.json: not as LEAF writes it",
        "preprocess.sh again",
    ),
    "LEAF json of something else": _leaf(
        lambda r: [p.write_text("[]") for p in r.rglob("*_2.json")] and None,
        r"all_data_2\.json: .*expected users, num_samples and user_data",
        "again",
    ),
    "an image of 783 numbers": _leaf(
        leaf(_short_image), r"all_data_2\.json: not as LEAF writes it \(", "preprocess.sh again"
    ),
    "a label too few": _leaf(
        leaf(_fewer_labels), r"all_data_2\.json: .*user 'f0000_14'", "preprocess.sh again"
    ),
    "a label that no character has": _leaf(
        leaf(_wrong_label), r"all_data_2\.json: .*labels 0 to 61", "preprocess.sh again"
    ),
    "no LEAF json": _leaf(
        lambda r: [p.unlink() for p in r.rglob("*.json")] and None, "leaf: no json files of LEAF"
    ),
    "an unknown writer": _leaf(
        same, "no writer 'f9'; name one as LEAF does", options={"domains": ["f9"]}, at="data.domains"
    ),
}
