"""Good data sets of each layout, and ways to break one."""

import struct
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from PIL import Image

from tests.support.data import layouts

CLASSES = ("dog", "snow_owl")
DOMAINS = ("art", "photo", "sketch")


def folder(base: Path) -> Path:
    """Three domains, two classes, two images each: twelve."""
    for d, domain in enumerate(DOMAINS):
        for c, name in enumerate(CLASSES):
            for i in range(2):
                layouts.image(base / "set" / domain / name / f"{i}.png", c, d)
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
        "image": datasets.Image(),
        "label": datasets.ClassLabel(names=list(CLASSES)),
        "domain": datasets.Value("string"),
    }
    content.update({k: v[0] for k, v in change.items()})
    features.update({k: v[1] for k, v in change.items()})
    return datasets.Dataset.from_dict(content, features=datasets.Features(features))


def femnist(base: Path) -> Path:
    return layouts.femnist(base / "femnist")


def first(root: Path) -> Path:
    return root / "photo" / "dog" / "0.png"


# --- breaking a good data set: each gives the root to load, None for the one it was given ---


def sampled(cases: Mapping[str, Any], kind: Callable[[Any], object]) -> list[Any]:
    """Return cases as parameters of a test; those after the first of each kind are slow."""
    seen: set[object] = set()
    parameters = []
    for name, case in cases.items():
        marks = [pytest.mark.slow] if kind(case) in seen else []
        seen.add(kind(case))
        parameters.append(pytest.param(*(case if isinstance(case, tuple) else (case,)), id=name, marks=marks))
    return parameters


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
        layouts.image(root.parent / "outside.png", 0)
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


def digits_only(root: Path) -> Path:
    saved = datasets.load_from_disk(str(root))["train"].filter(lambda row: row["character"] < 10)
    names = datasets.ClassLabel(names=[str(digit) for digit in range(10)])
    saved.cast_column("character", names).save_to_disk(str(root.parent / "digits"))
    return root.parent / "digits"


def leafs_json(root: Path) -> Path:
    folder = root.parent / "leaf" / "all_data"
    folder.mkdir(parents=True)
    (folder / "all_data_0.json").write_text("{}")
    return folder.parent
