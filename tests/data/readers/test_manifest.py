"""CSV manifests: every row arrives with its label, domain, client and split; bad rows are named by line."""

from pathlib import Path

import pytest
from PIL import Image

from fedcore.base.errors import FedLensError
from fedcore.base.events import TEST, TRAIN, VALIDATION
from fedcore.data.readers import manifest
from fedcore.data.readers.files import usable_images

CLASSES, DOMAINS = ("cat", "snow_owl"), ("day", "night")


def save(path: Path, colour: tuple[int, int, int]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 4), colour).save(path)


@pytest.fixture
def lines(tmp_path: Path) -> list[str]:
    """Sixteen images whose colour says their domain, class, client and number; their rows in odd order."""
    rows = []
    for d, domain in enumerate(DOMAINS):
        for c, name in enumerate(CLASSES):
            for i in range(4):
                path = f"pictures/{c}{d}{i}.png"
                save(tmp_path / path, (100 * d + 10 * (i % 2), 100 * c, i))
                rows.append(f"{path},{name},{domain},client {i % 2},{('train', 'val', 'test', 'train')[i]}")
    return rows[::-1]


def written(folder: Path, rows: list[str], header: str = "path,label,domain,client,split") -> Path:
    path = folder / "list.csv"
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


def load(path: Path, **options: object):
    (found,) = manifest.read(path, **options)
    return usable_images(found, name="manifest", template="a {}.")


def test_every_row_is_followed_from_the_file_to_its_pixels(tmp_path: Path, lines: list[str]):
    images, left_out = load(written(tmp_path, lines))
    assert images.classes == ("cat", "snow owl") and images.domains == DOMAINS
    assert len(images) == 16 and left_out == []
    for i in range(len(images)):
        red, green, number = images.read(i).getpixel((0, 0))
        assert red // 100 == images.domain[i]
        assert green // 100 == images.labels[i]
        assert images.owner[i] == f"client {red % 100 // 10}"
        assert images.split[i] == (TRAIN, VALIDATION, TEST, TRAIN)[number]
        assert images.keys[i] == f"pictures/{green // 100}{red // 100}{number}.png"


def test_the_order_of_the_rows_changes_nothing(tmp_path: Path, lines: list[str]):
    one, _ = load(written(tmp_path, lines))
    two, _ = load(written(tmp_path, lines[::-1]))
    assert one.keys == two.keys and one.fingerprint == two.fingerprint
    assert one.labels.tolist() == two.labels.tolist() and one.owner == two.owner


def test_path_and_label_are_enough(tmp_path: Path, lines: list[str]):
    rows = [",".join(line.split(",")[:2]) for line in lines]
    images, _ = load(written(tmp_path, rows, "path,label"))
    assert images.domains == ("all",) and images.owner is None and images.split is None
    assert len(images) == 16


def test_columns_may_stand_in_any_order_under_any_name(tmp_path: Path, lines: list[str]):
    rows = [",".join(reversed([*line.split(","), "ignored"])) for line in lines]
    path = written(tmp_path, rows, "notes, Split ,writer,domain,species,PATH")
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())  # as Excel writes it
    renamed, _ = load(path, columns={"label": "species", "client": "writer"})
    plain, _ = load(written(tmp_path, lines))
    assert renamed.labels.tolist() == plain.labels.tolist() and renamed.owner == plain.owner


def test_some_domains(tmp_path: Path, lines: list[str]):
    images, _ = load(written(tmp_path, lines), domains=["night"])
    assert images.domains == ("night",) and len(images) == 8 and len(images.classes) == 2
    with pytest.raises(FedLensError, match="no domain 'nigth'; did you mean 'night'") as caught:
        load(written(tmp_path, lines), domains=["nigth"])
    assert caught.value.field == "data.domains"


def test_other_types_than_of_folders_will_do(tmp_path: Path):
    Image.new("RGB", (4, 4), (1, 2, 3)).save(tmp_path / "a.bmp")
    save(tmp_path / "b.png", (4, 5, 6))
    images, _ = load(written(tmp_path, ["a.bmp,x", "b.png,y"], "path,label"))
    assert [images.read(i).getpixel((0, 0)) for i in (0, 1)] == [(1, 2, 3), (4, 5, 6)]
