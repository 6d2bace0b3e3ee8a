"""Data sets saved with ``save_to_disk``, written here by the datasets library itself."""

import io
from pathlib import Path

import datasets
import pytest
from datasets.arrow_writer import ArrowWriter
from PIL import Image

from fedcore.base.errors import FedLensError
from fedcore.base.events import TEST, TRAIN
from fedcore.data.readers import hf

NAMES = ["zebra", "ant", "snow_owl"]


@pytest.fixture(scope="module", autouse=True)
def quiet():
    datasets.disable_progress_bars()
    yield
    datasets.enable_progress_bars()


def picture(label: int, number: int) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (4, 4), (50 * label, number, 7)).save(out, "PNG")
    return out.getvalue()


def made(rows: int = 9, first: int = 0, **columns: tuple[object, list]) -> datasets.Dataset:
    """Images whose colour says their label and number; ``columns`` are further (feature, values)."""
    features = {"image": datasets.Image(), "label": datasets.ClassLabel(names=NAMES)}
    content = {
        "image": [{"bytes": picture(i % 3, first + i), "path": None} for i in range(rows)],
        "label": [i % 3 for i in range(rows)],
    }
    features.update({name: feature for name, (feature, _) in columns.items()})
    content.update({name: values for name, (_, values) in columns.items()})
    return datasets.Dataset.from_dict(content, features=datasets.Features(features))


def saved(folder: Path, data: datasets.Dataset | datasets.DatasetDict) -> Path:
    data.save_to_disk(str(folder / "saved"))
    return folder / "saved"


TEXT = datasets.Value("string")


def test_rows_are_followed_from_disk_to_their_pixels(tmp_path: Path):
    images, left_out = hf.read(saved(tmp_path, made()))
    assert images.classes == ("zebra", "ant", "snow owl"), "in the order of the ClassLabel"
    assert images.domains == ("all",) and images.split is None and images.owner is None
    assert left_out == [] and len(images) == 9
    for i in range(9):
        assert images.read(i).getpixel((0, 0)) == (50 * images.labels[i], int(images.keys[i][-3:]), 7)


def test_train_and_test_are_the_official_split(tmp_path: Path):
    both = datasets.DatasetDict({"train": made(9), "test": made(6, first=100)})
    images, _ = hf.read(saved(tmp_path, both))
    assert len(images) == 15 and images.domains == ("all",)
    for i in range(15):
        number = images.read(i).getpixel((0, 0))[1]
        assert images.split[i] == (TEST if number >= 100 else TRAIN)
        assert images.keys[i].startswith("test/" if number >= 100 else "train/")


def test_parts_of_other_names_are_domains(tmp_path: Path):
    both = datasets.DatasetDict({"sketch": made(6), "photo": made(3, first=100)})
    images, _ = hf.read(saved(tmp_path, both))
    assert images.domains == ("photo", "sketch") and images.split is None
    assert hf.class_names(tmp_path / "saved") == images.classes == ("zebra", "ant", "snow owl")
    for i in range(9):
        photo = images.read(i).getpixel((0, 0))[1] >= 100
        assert images.domains[images.domain[i]] == ("photo" if photo else "sketch")
    some, _ = hf.read(tmp_path / "saved", domains=["photo"])
    assert some.domains == ("photo",) and len(some) == 3
    assert all(some.read(i).getpixel((0, 0))[1] >= 100 for i in range(3))


def test_columns_of_domain_and_client_are_found_or_named(tmp_path: Path):
    where = datasets.ClassLabel(names=["paint", "draw"])
    data = made(
        6, domain=(where, [0, 0, 1, 1, 0, 0]), hand=(TEXT, list("abcabc")), writer=(TEXT, list("xyxyxy"))
    )
    images, _ = hf.read(saved(tmp_path, data))
    assert images.domains == ("draw", "paint")
    assert [images.domains[d] for d in images.domain] == ["paint", "paint", "draw", "draw", "paint", "paint"]
    assert images.owner == tuple("xyxyxy")
    assert hf.read(tmp_path / "saved", columns={"client": "hand"})[0].owner == tuple("abcabc")


def test_two_labels_must_be_chosen_between(tmp_path: Path):
    coarse = datasets.ClassLabel(names=["animal", "thing"])
    data = made(6, coarse=(coarse, [0, 1] * 3)).rename_column("label", "fine")
    path = saved(tmp_path, data)
    with pytest.raises(FedLensError, match="2 columns of type ClassLabel among .*fine.*coarse") as caught:
        hf.read(path)
    assert caught.value.field == "data.columns"
    assert hf.read(path, columns={"label": "coarse"})[0].classes == ("animal", "thing")
    assert hf.read(path, columns={"label": "fine"})[0].classes == ("zebra", "ant", "snow owl")


def test_labels_may_be_text(tmp_path: Path):
    data = made(6).cast_column("label", datasets.Value("int64")).remove_columns("label")
    data = data.add_column("label", ["b", "a", "b", "a", "b", "a"])
    images, _ = hf.read(saved(tmp_path, data))
    assert images.classes == ("a", "b") and images.labels.tolist() == [1, 0] * 3


def test_rows_that_cannot_be_used_are_left_out(tmp_path: Path):
    data = made(9).cast_column("image", datasets.Image(decode=False)).to_dict()
    data["label"][2] = -1
    data["image"][3] = {"bytes": b"no image", "path": None}
    data["image"][4] = {"bytes": data["image"][4]["bytes"][:40], "path": None}
    data["image"][5] = None
    broken = datasets.Dataset.from_dict(data, features=made().features)
    images, left_out = hf.read(saved(tmp_path, broken))
    reasons = dict(left_out)
    assert list(reasons) == [f"row/000000{i}" for i in (2, 3, 4, 5)]
    assert reasons["row/0000002"] == "no label" and reasons["row/0000003"] == "not an image"
    assert reasons["row/0000005"] == "empty file"
    assert len(images) == 5
    for i in range(5):
        assert images.read(i).getpixel((0, 0)) == (50 * images.labels[i], int(images.keys[i][-3:]), 7)


def test_images_that_lie_outside_the_folder_are_refused(tmp_path: Path):
    outside = tmp_path / "outside.png"
    outside.write_bytes(picture(0, 0))
    path = saved(tmp_path, made(1))
    (arrow,) = path.glob("*.arrow")  # save_to_disk would copy the image in; other writers do not
    with ArrowWriter(path=str(arrow), features=made(1).features) as writer:
        writer.write({"image": {"bytes": None, "path": str(outside)}, "label": 0})
        writer.finalize()
    with pytest.raises(FedLensError, match=r"row/0000000 points to .*outside.png, outside the folder; load"):
        hf.read(path)


def test_the_fingerprint_follows_the_data_and_the_columns(tmp_path: Path):
    coarse = datasets.ClassLabel(names=["animal", "thing"])
    one = saved(tmp_path, made(6, coarse=(coarse, [0, 1] * 3)))
    first = hf.read(one, columns={"label": "label"})[0].fingerprint
    assert hf.read(one, columns={"label": "label"})[0].fingerprint == first
    assert hf.read(one, columns={"label": "coarse"})[0].fingerprint != first
    (tmp_path / "again").mkdir()
    assert hf.read(saved(tmp_path / "again", made(9)))[0].fingerprint != first


def test_large_jpegs_can_be_read_in_draft(tmp_path: Path):
    out = io.BytesIO()
    Image.new("RGB", (512, 384), (200, 10, 10)).save(out, "JPEG")
    data = datasets.Dataset.from_dict(
        {"image": [{"bytes": out.getvalue(), "path": None}], "label": [0]}, features=made().features
    )
    images, _ = hf.read(saved(tmp_path, data))
    assert images.read(0).size == (512, 384)
    assert images.draft is not None and images.draft(0, 90).size == (128, 96)
