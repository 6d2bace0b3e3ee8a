"""Archives and checksums for tests of data readers."""

import hashlib
import tarfile
import zipfile
from pathlib import Path

import pytest
import torchvision.datasets as tv


def pack(folder: Path, archive: Path) -> Path:
    """A folder's content as an archive of the kind that its name says."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive, "w") as out:
            for path in sorted(p for p in folder.rglob("*") if p.is_file()):
                out.write(path, path.relative_to(folder))
    else:
        mode = {".gz": "w:gz", ".tgz": "w:gz", ".tar": "w", ".bz2": "w:bz2", ".xz": "w:xz"}[archive.suffix]
        with tarfile.open(archive, mode) as out:
            out.add(folder, arcname=".", recursive=True)
    return archive


def md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()


def fit_checksums(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    """torchvision compares CIFAR's and the flowers' label files with those of the real set: give it ours."""
    for cls in (tv.CIFAR10, tv.CIFAR100):
        folder = root / cls.base_folder
        if folder.is_dir():
            for listed in ("train_list", "test_list"):
                files = [[name, md5(folder / name)] for name, _ in getattr(cls, listed)]
                monkeypatch.setattr(cls, listed, files)
            monkeypatch.setattr(cls, "meta", {**cls.meta, "md5": md5(folder / cls.meta["filename"])})
    flowers = root / "flowers-102"
    if flowers.is_dir():
        files = {
            key: (name, md5(flowers / name) if key != "image" else value)
            for key, (name, value) in tv.Flowers102._file_dict.items()
        }
        monkeypatch.setattr(tv.Flowers102, "_file_dict", files)
