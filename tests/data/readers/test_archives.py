"""Archives given as roots, or lying in one: unpacked once, safely, and gone on with after an interruption."""

import io
import shutil
import tarfile
import zipfile
from pathlib import Path
from unittest.mock import Mock

import pytest

from fedcore.base.errors import FedLensError
from fedcore.data import catalog
from fedcore.data.readers import archives, loaders
from tests.support.data.archives import pack
from tests.support.data.layouts import WRITE, label_of
from tests.support.data.loading import loaded


def upstream(name: str, folder: Path) -> Path:
    """What a user has after downloading and nothing else; hands back the root to give."""
    written = WRITE[name](folder / "written")
    root = folder / "root"
    if name == "pacs":
        return pack(written, root / "PACS.zip")
    if name == "oxford-pets":
        for part in ("images", "annotations"):
            inner = folder / "one" / part
            inner.mkdir(parents=True)
            (written / "oxford-iiit-pet" / part).rename(inner / part)
            pack(inner, root / f"{part}.tar.gz")
        return root
    if name == "flowers102":
        (folder / "one").mkdir()
        (written / "flowers-102" / "jpg").rename(folder / "one" / "jpg")
        pack(folder / "one", root / "102flowers.tgz")
        for path in (written / "flowers-102").glob("*.mat"):
            path.rename(root / path.name)
        return root
    if name == "caltech101":
        for part, kind in (("101_ObjectCategories", "tar.gz"), ("Annotations", "tar")):
            inner = folder / "one" / part
            inner.mkdir(parents=True)
            (written / "caltech101" / part).rename(inner / part)
            pack(inner, folder / "two" / "caltech-101" / f"{part}.{kind}")
        return pack(folder / "two", root / "caltech-101.zip")
    for domain in catalog.entry("domainnet").domains:
        (folder / domain).mkdir()
        (written / domain).rename(folder / domain / domain)
        pack(folder / domain, root / f"{domain}.zip")
    for path in written.glob("*.txt"):
        path.rename(root / path.name)
    return root


NAMES = ("pacs", "oxford-pets", "flowers102", "caltech101", "domainnet")


@pytest.mark.parametrize("name", NAMES)
def test_data_sets_load_as_they_were_downloaded(name: str, tmp_path: Path):
    """The same images, keys, labels and parts as from the folders; unpacked once, beside the archive."""
    folders = loaded(name, str(WRITE[name](tmp_path / "folders")))
    root = upstream(name, tmp_path / "packed")
    images = loaded(name, str(root))
    assert (images.classes, images.domains, images.keys) == (folders.classes, folders.domains, folders.keys)
    assert images.labels.tolist() == folders.labels.tolist()
    assert (images.split is None) == (folders.split is None)
    assert images.split is None or images.split.tolist() == folders.split.tolist()
    for row in range(0, len(images), 7):
        assert label_of(images.read(row).getpixel((3, 3))) == (images.labels[row], images.domain[row])
    beside = root if root.is_dir() else root.parent
    (made,) = beside.glob("unpacked-*")
    stamp = made.stat().st_mtime_ns
    assert loaded(name, str(root)).fingerprint == images.fingerprint
    assert [made] == list(beside.glob("unpacked-*")) and made.stat().st_mtime_ns == stamp


@pytest.mark.parametrize("suffix", ["tar", "tgz", "tar.bz2", "tar.xz"])
def test_a_folder_of_ones_own_may_be_packed(suffix: str, tmp_path: Path):
    written = WRITE["pacs"](tmp_path / "w")
    archive = pack(written / "kfold", tmp_path / "own" / f"set.{suffix}")
    assert loaded("folder", str(archive)).domains == catalog.entry("pacs").domains
    assert loaded("folder", str(archive.parent)).domains == catalog.entry("pacs").domains


def test_a_changed_archive_is_unpacked_anew(tmp_path: Path):
    written = WRITE["pacs"](tmp_path / "w")
    archive = pack(written, tmp_path / "own" / "set.zip")
    assert len(loaded("pacs", str(archive))) == 56
    (written / "kfold" / "photo" / "dog" / "pic_001.jpg").unlink()
    pack(written, archive)
    assert len(loaded("pacs", str(archive))) == 55


def test_an_interrupted_unpacking_goes_on(tmp_path: Path):
    archive = pack(WRITE["pacs"](tmp_path / "w"), tmp_path / "own" / "set.zip")
    steps = archives.unpack([archive])
    for _ in range(20):
        next(steps)
    steps.close()
    part = archives.unpacked_folder([archive]).with_name(archives.unpacked_folder([archive]).name + ".part")
    before = {path: path.stat().st_mtime_ns for path in part.rglob("*.jpg")}
    assert 10 < len(before) < 56 and not archives.unpacked_folder([archive]).exists()
    assert len(loaded("pacs", str(archive))) == 56 and not part.exists()
    final = archives.unpacked_folder([archive])
    for path, written in before.items():
        assert (final / path.relative_to(part)).stat().st_mtime_ns == written


def test_hidden_members_are_passed_over(tmp_path: Path):
    archive = tmp_path / "set.zip"
    with zipfile.ZipFile(archive, "w") as out:
        for name in ("__MACOSX/a/._x.jpg", "a/.DS_Store", ".git/config", "a/x/1.txt", "a/Thumbs.db"):
            out.writestr(name, "x")
    found = loaders._unpacked([archive])
    assert sorted(p.name for p in found.rglob("*") if p.is_file()) == ["1.txt", "Thumbs.db"]


def zipped(name: str, *, link: bool = False):
    def write(path: Path) -> None:
        member = zipfile.ZipInfo(name)
        member.external_attr = (0o120777 if link else 0o100644) << 16
        with zipfile.ZipFile(path, "w") as out:
            out.writestr(member, "../../etc/passwd")

    return write


def tarred(name: str, kind: bytes = tarfile.REGTYPE):
    def write(path: Path) -> None:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, "../../outside"
        member.size = 4 if kind == tarfile.REGTYPE else 0
        with tarfile.open(path, "w") as out:
            out.addfile(member, io.BytesIO(b"evil"))

    return write


def half(path: Path) -> None:
    zipfile.ZipFile(path, "w").writestr("a/b.txt", bytes(100_000))
    path.write_bytes(path.read_bytes()[:5_000])


UNSAFE = {
    "zip: above the folder": ("a.zip", zipped("../evil.jpg"), "'../evil.jpg' leads outside"),
    "zip: below and above": ("a.zip", zipped("x/../../evil.jpg"), "leads outside"),
    "zip: absolute": ("a.zip", zipped("/tmp/evil.jpg"), "leads outside"),
    "zip: a drive": ("a.zip", zipped("C:/evil.jpg"), "leads outside"),
    "zip: backslashes": ("a.zip", zipped("..\\evil.jpg"), "leads outside"),
    "zip: a link": ("a.zip", zipped("x/link.jpg", link=True), "'x/link.jpg' is not a regular file"),
    "zip: cut": ("a.zip", half, "a.zip: damaged"),
    "tar: above the folder": ("a.tar", tarred("../evil.jpg"), "leads outside"),
    "tar: absolute": ("a.tar.gz", tarred("/evil.jpg"), "leads outside"),
    "tar: a link": ("a.tar", tarred("x/link", tarfile.SYMTYPE), "is not a regular file"),
    "tar: a hard link": ("a.tar", tarred("x/link", tarfile.LNKTYPE), "is not a regular file"),
    "tar: a device": ("a.tar", tarred("x/null", tarfile.CHRTYPE), "is not a regular file"),
    "tar: text": ("a.tgz", lambda p: p.write_text("this is no archive"), "a.tgz: damaged"),
    "tar: empty": ("a.tar", lambda p: p.write_bytes(b""), "a.tar: damaged"),
}


@pytest.mark.parametrize(("name", "write", "message"), UNSAFE.values(), ids=UNSAFE.keys())
def test_unsafe_and_damaged_archives_are_refused(name, write, message, tmp_path: Path):
    archive = tmp_path / "own" / name
    archive.parent.mkdir()
    write(archive)
    with pytest.raises(FedLensError) as caught:
        loaded("folder", str(archive))
    assert message in str(caught.value) and caught.value.field == "data.root"
    assert "\n" not in str(caught.value)
    outside = [p for p in tmp_path.rglob("*") if p.is_file() and "unpacked" not in str(p)]
    assert outside == [archive] and not archives.unpacked_folder([archive]).exists()


@pytest.mark.parametrize("name", ["a.zip", "a.tar"])
def test_there_must_be_room(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    archive = pack(WRITE["eurosat"](tmp_path / "w"), tmp_path / "own" / name)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(archives.shutil, "disk_usage", lambda _: usage._replace(free=100))
    with pytest.raises(FedLensError, match=r"there is room for 0\.0 GB; free space"):
        loaded("eurosat", str(archive))
    monkeypatch.undo()
    monkeypatch.setattr(archives, "MAX_BYTES", 500)
    with pytest.raises(FedLensError, match="free space, or unpack it elsewhere"):
        loaded("eurosat", str(archive))
    monkeypatch.undo()
    monkeypatch.setattr(archives.shutil, "copyfileobj", Mock(side_effect=OSError(28, "No space left")))
    with pytest.raises(FedLensError, match="No space left"):
        loaded("eurosat", str(archive))
    assert not [path for path in tmp_path.rglob(".*") if path.is_file()], "the begun file takes no room"


def test_a_place_that_cannot_be_written_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    archive = pack(WRITE["eurosat"](tmp_path / "w"), tmp_path / "own" / "set.zip")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(archives.Path, "mkdir", refuse)
    with pytest.raises(FedLensError, match=r"cannot unpack .*set\.zip beside it \(Permission denied\)"):
        loaded("eurosat", str(archive))


def test_nothing_is_unpacked_where_the_folders_are_there(tmp_path: Path):
    root = WRITE["eurosat"](tmp_path / "root")
    (root / "EuroSAT.zip").write_bytes(b"what was downloaded; not opened again")
    assert len(loaded("eurosat", str(root))) == 20
    assert not list(root.glob("unpacked-*"))
