"""The readers of torchvision's data sets agree with torchvision's own classes on the same files."""

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torchvision.datasets as tv
from PIL import Image

from fedcore.base.errors import FedLensError
from fedcore.base.events import TEST, TRAIN, VALIDATION
from fedcore.data import catalog
from fedcore.data.readers import torchvision_sets
from tests.support.data import layouts
from tests.support.data.archives import fit_checksums
from tests.support.data.layouts import WRITE
from tests.support.data.loading import loaded
from tests.support.data.spoilers import sampled

SPLITS = {TRAIN: {"split": "train"}, VALIDATION: {"split": "val"}, TEST: {"split": "test"}}


def theirs(name: str, root: Path) -> Iterator[tuple[int, Image.Image, int, list[str]]]:
    """(part, image, label, class names) of every sample, as torchvision gives them."""
    cls, arguments = {
        "cifar10": (tv.CIFAR10, {TRAIN: {"train": True}, TEST: {"train": False}}),
        "cifar100": (tv.CIFAR100, {TRAIN: {"train": True}, TEST: {"train": False}}),
        "eurosat": (tv.EuroSAT, {-1: {}}),
        "caltech101": (tv.Caltech101, {-1: {}}),
        "oxford-pets": (tv.OxfordIIITPet, {TRAIN: {"split": "trainval"}, TEST: {"split": "test"}}),
        "food101": (tv.Food101, {TRAIN: {"split": "train"}, TEST: {"split": "test"}}),
        "flowers102": (tv.Flowers102, SPLITS),
        "dtd": (tv.DTD, SPLITS),
        "fgvc-aircraft": (tv.FGVCAircraft, SPLITS),
        "stanford-cars": (tv.StanfordCars, {TRAIN: {"split": "train"}, TEST: {"split": "test"}}),
    }[name]
    made = [(part, cls(root, **options)) for part, options in arguments.items()]
    for part, data in made:
        names = getattr(data, "classes", None) or data.categories
        for image, label in (data[i] for i in range(len(data))):
            yield part, image, label, names


TORCHVISION = [e.name for e in catalog.entries() if e.torchvision]


def test_the_nine_sets_name_a_class_of_torchvision():
    assert len(TORCHVISION) == 9
    assert all(hasattr(tv, catalog.entry(name).torchvision) for name in TORCHVISION)


@pytest.mark.parametrize("name", [*TORCHVISION, "stanford-cars"])
def test_torchvision_reads_the_same_images_labels_classes_and_parts(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    root = WRITE[name](tmp_path)
    fit_checksums(monkeypatch, root)
    images = loaded(name, str(root))
    ours = sorted(
        (
            -1 if images.split is None else int(images.split[i]),
            int(images.labels[i]),
            images.read(i).tobytes(),
        )
        for i in range(len(images))
    )
    samples = list(theirs(name, root))
    assert ours == sorted((part, label, image.convert("RGB").tobytes()) for part, image, label, _ in samples)
    names = samples[0][3]
    assert images.classes == tuple(torchvision_sets.readable(n) for n in names)


def test_cifar_reads_pixels_when_they_are_asked_for(tmp_path: Path):
    root = WRITE["cifar10"](tmp_path)
    images = loaded("cifar10", str(root))
    (root / "cifar-10-batches-py" / "test_batch").unlink()
    rows = np.flatnonzero(images.split == TRAIN)
    assert layouts.label_of(images.read(int(rows[-1])).getpixel((0, 0)))[0] == images.labels[rows[-1]]
    with pytest.raises(FedLensError, match="test_batch: damaged"):
        images.read(int(np.flatnonzero(images.split == TEST)[0]))


class Evil:
    def __reduce__(self):
        return print, ("this ran",)


def test_a_pickle_that_would_run_something_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    root = WRITE["cifar10"](tmp_path)
    (root / "cifar-10-batches-py" / "data_batch_3").write_bytes(pickle.dumps({"data": Evil()}))
    with pytest.raises(FedLensError, match=r"data_batch_3: damaged \(uses builtins\.print"):
        loaded("cifar10", str(root))
    assert "this ran" not in capsys.readouterr().out


def change(file: str, made: Callable[[Path], object]):
    """Spoil the only file or folder of this name."""

    def spoil(root: Path) -> None:
        (path,) = root.rglob(file)
        made(path)

    return spoil


def edit(file: str, old: str, new: str):
    def replace(path: Path) -> None:
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))

    return change(file, replace)


def drop(file: str):
    return change(file, Path.unlink)


def cut(file: str):
    return change(file, lambda path: path.write_bytes(path.read_bytes()[:100]))


def rename(old: str, new: str):
    return change(old, lambda path: path.rename(path.with_name(new)))


def labels(*, drop_last: bool = False, number: int | None = None):
    def spoil(root: Path) -> None:
        path = root / "cifar-10-batches-py" / "data_batch_2"
        held = pickle.loads(path.read_bytes())
        held["labels"] = held["labels"][:-1] if drop_last else [number, *held["labels"][1:]]
        path.write_bytes(pickle.dumps(held))

    return spoil


COOP = "split_zhou_Caltech101.json"
BAD = {
    "cifar: a batch is missing": ("cifar10", drop("data_batch_5"), "no folder with 'batches.meta'"),
    "cifar: a batch ends early": ("cifar10", cut("data_batch_5"), "data_batch_5: damaged"),
    "cifar: an empty file": ("cifar100", lambda r: (r / "cifar-100-python/meta").write_bytes(b""), "damaged"),
    "cifar: other classes": (
        "cifar10", lambda r: (r / "cifar-10-batches-py/batches.meta").write_bytes(
            pickle.dumps({"label_names": ["a"]})), "not the classes of CIFAR-10"),
    "cifar: no table": (
        "cifar10", lambda r: (r / "cifar-10-batches-py/test_batch").write_bytes(pickle.dumps([1])),
        "damaged"),
    "cifar: a label too few": ("cifar10", labels(drop_last=True), "data_batch_2: not a file of CIFAR"),
    "cifar: a label too large": ("cifar10", labels(number=10), "data_batch_2: not a file of CIFAR"),
    "eurosat: a class is missing": (
        "eurosat", rename("SeaLake", "Oceans"), "no class folder 'SeaLake', which EuroSAT has"),
    "eurosat: one class more": (
        "eurosat",
        lambda root: layouts.image(next(root.rglob("SeaLake")).parent / "Oceans" / "Oceans_1.jpg", 0),
        "an unknown class folder 'Oceans', which EuroSAT does not have",
    ),
    "caltech101: one class more": (
        "caltech101",
        lambda root: layouts.image(next(root.rglob("yin_yang")).parent / "tao" / "image_0001.jpg", 0),
        "an unknown class folder 'tao', which Caltech-101 does not have",
    ),
    "eurosat: another folder": ("eurosat", rename("eurosat", ".hidden"), "no class folder of EuroSAT in it"),
    "caltech: a class is missing": (
        "caltech101", rename("yin_yang", "tao"), "no class folder 'yin_yang', which Caltech-101 has"),
    "pets: no test list": ("oxford-pets", drop("test.txt"), "no folder with 'annotations/trainval.txt' and"),
    "pets: a label of another breed": (
        "oxford-pets", edit("trainval.txt", "Abyssinian_1 1", "Abyssinian_1 2"), "'Abyssinian_1 2 1 1' is"),
    "pets: an unknown breed": (
        "oxford-pets", edit("trainval.txt", "beagle_1", "eagle_1"), "'eagle_1 5 2 1' is not"),
    "pets: a short line": ("oxford-pets", edit("test.txt", "beagle_10 5 2 10", "beagle_10 5"), "is not"),
    "food: no json": ("food101", cut("train.json"), "train.json: damaged"),
    "food: another form": (
        "food101", lambda r: (r / "food-101/meta/test.json").write_text("[]"), "expected a list of images"),
    "food: numbers instead of images": (
        "food101", lambda r: (r / "food-101/meta/test.json").write_text('{"baklava": [3]}'),
        "expected a list of images"),
    "food: one image instead of a list": (
        "food101", lambda r: (r / "food-101/meta/test.json").write_text('{"baklava": 3}'),
        "expected a list of images"),
    "food: a class is missing": (
        "food101", edit("test.json", "baklava", "baklawa"), "no class folder 'baklava', which Food-101 has"),
    "food: a path that leads outside": (
        "food101", edit("test.json", "baklava/1011328", "../../../baklava/1011328"), "is outside the folder"),
    "flowers: no labels": ("flowers102", drop("imagelabels.mat"), "no folder with 'imagelabels.mat'"),
    "flowers: labels cut": ("flowers102", cut("imagelabels.mat"), "imagelabels.mat: damaged"),
    "flowers: fewer labels than images": (
        "flowers102", lambda r: layouts.savemat(
            r / "flowers-102/imagelabels.mat", {"labels": np.ones((1, 300), dtype=np.uint8)}),
        "names image 301, for which imagelabels.mat has no class from 1 to 102"),
    "dtd: no list": ("dtd", drop("val1.txt"), "no folder with 'labels/train1.txt'"),
    "dtd: an unknown class": ("dtd", edit("test1.txt", "banded/", "bandit/"), "names no class of DTD"),
    "coop: no split": ("coop-split", drop(COOP), "no folder with 'split_zhou_.*.json'"),
    "coop: two splits": (
        "coop-split", lambda r: (r / "caltech-101/split_zhou_Food101.json").write_text("{}"), "leave one"),
    "coop: no images": (
        "coop-split", rename("101_ObjectCategories", ".hidden"), "no folder with 'Faces/image_0001.jpg'"),
    "coop: cut": ("coop-split", cut(COOP), "split_zhou_Caltech101.json: damaged"),
    "coop: no part": ("coop-split", edit(COOP, '"val"', '"valid"'), "train, val and test"),
    "coop: no row": ("coop-split", edit(COOP, ', 0, "face"]', ', "face"]'), r"is not \[image, label"),
    "coop: an image twice": ("coop-split", edit(COOP, "Faces/image_0002", "Faces/image_0001"), "twice"),
    "coop: two names": (
        "coop-split", edit(COOP, '2, "cougar', '1, "cougar'), "label 1 is both 'leopard' and 'cougar_body'"),
    "coop: one name twice": ("coop-split", edit(COOP, '1, "leopard', '3, "leopard'), "one name"),
    "coop: a gap": (
        "coop-split", lambda r: (r / "caltech-101" / COOP).write_text(
            '{"train": [["Faces/image_0001.jpg", 1, "face"]], "val": [], "test": []}'), "has label 0"),
    "coop: a path that leads outside": (
        "coop-split", edit(COOP, "cougar_body/image_0004", "../../../image_0004"), "is not a plain path"),
    "coop: one image spelled in two ways": (
        "coop-split", edit(COOP, "Faces/image_0002", "Faces//image_0001"), "is not a plain path"),
    "coop: a pattern": ("coop-split", edit(COOP, "Faces/image_0001", "/Faces/*"), "is not a plain path"),
    "coop: lists within lists": (
        "coop-split", lambda r: (r / "caltech-101" / COOP).write_text("[" * 100_000), "damaged"),
    "coop: two names that read the same": (
        "coop-split", lambda r: (r / "caltech-101" / COOP).write_text(
            '{"train": [["Faces/image_0001.jpg", 0, "a b"], ["Faces/image_0002.jpg", 1, "a_b"]], '
            '"val": [], "test": []}'), "two labels have one name"),
    "cars: a label too large": (
        "stanford-cars", lambda r: layouts.savemat(r / "stanford_cars/devkit/cars_meta.mat", {
            "class_names": np.array([layouts.CARS[:2]], dtype=object)}), "has label 3, cars_meta.mat has 2"),
    "aircraft: an unknown variant": (
        "fgvc-aircraft", edit("images_variant_val.txt", "DC-3", "DC-4"), "names no variant of variants.txt"),
    "ucf: an unknown action": (
        "ucf101", edit("testlist01.txt", "YoYo/", "Yo/"), "is not 'Action/video.avi' of an action"),
    "ucf: actions without numbers": (
        "ucf101", edit("classInd.txt", "2 Hand", "Hand"), "not '1 ApplyEyeMakeup'"),
    "sun: an unknown place": (
        "sun397", edit("ClassName.txt", "/a/abbey", "/a/abbot"), "is in no folder of ClassName.txt"),
    "imagenet: a class without test images": (
        "imagenet", lambda r: [p.rename(p.with_name("x")) for p in r.rglob("val/n01440764")],
        "no folder 'n01440764' in val"),
    "imagenet-a: another id": (
        "imagenet-a", rename("n01440764", "n99999999"), "folder 'n99999999' is not a class of ImageNet"),
    "imagenet-v2: a label twice": ("imagenet-v2", lambda r: layouts.image(
        next(r.rglob("134")).parent / "0134" / "1f.jpeg", 0), "'0134' is not a label of"),
    "ucf: a video for training and testing": (
        "ucf101", lambda r: next(r.rglob("testlist01.txt")).write_text(
            next(r.rglob("trainlist01.txt")).read_text()), "is listed for two parts of the split"),
    "imagenet-v2: a label too large": ("imagenet-v2", rename("744", "1000"), "'1000' is not a label of"),
    "tiny: no words": ("tiny-imagenet", drop("words.txt"), "no folder with 'wnids.txt' and 'words.txt'"),
    "tiny: a class without words": (
        "tiny-imagenet", edit("words.txt", "n02123045", "n09999999"), "no words for 'n02123045'"),
    "tiny: no text": (
        "tiny-imagenet", lambda r: (r / "tiny-imagenet-200/words.txt").write_bytes(b"\xff\xfe"), "damaged"),
    "tiny: a class without folder": (
        "tiny-imagenet", edit("wnids.txt", "n02123045", "n00001740"), "no folder 'n00001740'"),
    "tiny: a label of no class": (
        "tiny-imagenet", edit("val_annotations.txt", "n02123045", "n09999999"), "names no class of wnids"),
}  # fmt: skip


@pytest.mark.parametrize(("name", "spoil", "message"), sampled(BAD, lambda bad: bad[0]))
def test_damaged_sets_are_named_with_file_and_remedy(name, spoil, message, tmp_path: Path):
    root = WRITE[name](tmp_path)
    spoil(root)
    with pytest.raises(FedLensError, match=message) as caught:
        loaded(name, str(root))
    assert caught.value.field == "data.root" and str(root) in str(caught.value)


def test_missing_images_are_counted_and_left_out(tmp_path: Path):
    root = WRITE["dtd"](tmp_path)
    (root / "dtd/dtd/images/banded/banded_0004.jpg").unlink()
    images, warnings = catalog.load("dtd", str(root))
    assert len(images) == 140 and "images/banded/banded_0004.jpg" not in images.keys
    assert any("1 image left out" in line and "banded_0004.jpg" in line for line in warnings)
    assert "DTD: 5,640 images expected, 140 found" in warnings
