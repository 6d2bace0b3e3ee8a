"""Writes tiny data sets in exactly the upstream layouts: same folders, file names, label files and archives.

Every image says in its colour which class (and domain) it is, so that a test can follow it from the disk to
its row: red and green hold the class number, blue the domain.
"""

import io
import json
import pickle
import string
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path

import datasets
import numpy as np
from PIL import Image
from scipy.io import savemat

from fedcore.data import catalog
from fedcore.data.images import ImageSet
from fedcore.data.readers.files import LeftOut, usable_images
from fedcore.data.readers.layout import folder_layout, list_images

DOMAINNET = ("The_Eiffel_Tower", "aircraft_carrier", "teddy-bear")
TINY = {"n01443537": "goldfish, Carassius auratus", "n02124075": "Egyptian cat", "n02123045": "crane, bird"}
WRITERS = ("f0000_14", "f0001_41", "f0002_12")


def colour(label: int, domain: int = 0) -> tuple[int, int, int]:
    """A colour that survives JPEG: four bits of each channel, in the middle of their range."""
    return 16 * (label // 16) + 8, 16 * (label % 16) + 8, 16 * domain + 8


def label_of(pixel: tuple[int, int, int]) -> tuple[int, int]:
    """Class and domain that ``colour`` wrote."""
    return 16 * (pixel[0] // 16) + pixel[1] // 16, pixel[2] // 16


@cache
def encoded(kind: str, label: int, domain: int) -> bytes:
    """A file of 8 x 8 pixels of one colour."""
    file = io.BytesIO()
    options = {"quality": 100, "subsampling": 0} if kind == "JPEG" else {}
    Image.new("RGB", (8, 8), colour(label, domain)).save(file, kind, **options)
    return file.getvalue()


def image(path: Path, label: int, domain: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encoded("PNG" if path.suffix == ".png" else "JPEG", label, domain))
    return path


def domains(
    root: Path, name: str, pattern: str, classes: Sequence[str] | None = None, folders: Sequence[str] = ()
) -> Path:
    """Two images of every class and domain. pattern: with {domain}, {cls}, {n}; folders: of the domains."""
    entry = catalog.entry(name)
    for d, domain in enumerate(folders or entry.domains):
        for c, cls in enumerate(classes or entry.classes):
            for n in (1, 2):
                image(root / pattern.format(domain=domain, cls=cls, n=n, label=c), c, d)
    return root


def read_folder(
    root: Path, name: str = "folder", domains: Sequence[str] | None = None
) -> tuple[ImageSet, list[LeftOut]]:
    """The usable images of a folder of one's own, and those left out."""
    layout = folder_layout(root, domains)
    (listing,) = list_images(layout)
    return usable_images(listing, name=name, template="a picture of a {}.")


def pacs(root: Path) -> Path:
    return domains(root, "pacs", "kfold/{domain}/{cls}/pic_{n:03d}.jpg")


def domainnet(root: Path) -> Path:
    pattern = "{domain}/{cls}/{domain}_{label:03d}_{n:06d}.jpg"
    domains(root, "domainnet", pattern, DOMAINNET)
    for d in catalog.entry("domainnet").domains:
        for n, part in ((1, "train"), (2, "test")):
            lines = [f"{pattern.format(domain=d, cls=c, label=i, n=n)} {i}" for i, c in enumerate(DOMAINNET)]
            (root / f"{d}_{part}.txt").write_text("\n".join(lines) + "\n")
    return root


def domainnet_126(root: Path) -> Path:
    """The lists number the classes in an order of their own, and leave an image of every domain out."""
    entry = catalog.entry("domainnet-126")
    pattern = "{domain}/{cls}/{domain}_{label:03d}_{n:06d}.jpg"
    domains(root, "domainnet-126", pattern)
    for d in entry.domains:
        image(root / d / "zigzag" / f"{d}_345_000001.jpg", 0)
        image(root / d / "zebra" / f"{d}_125_000003.jpg", 125, entry.domains.index(d))
        rows = [
            (pattern.format(domain=d, cls=c, label=i, n=n), 125 - i)
            for i, c in enumerate(entry.classes)
            for n in (1, 2)
        ]
        lines = "".join(f"{p} {number}\n" for p, number in sorted(rows, key=lambda row: row[1]))
        (root / f"{d}_list.txt").write_text(lines)
    return root


DDR_SHADES = {"B": 200, "D": 60}
"""Grey of a bright and of a dark photograph of grade 0; a grade is two steps more."""


def ddr(root: Path, grades: int = 5) -> Path:
    """One image for each grade, domain and part, and, unless that is a grade too, one that is ungradable."""
    for part in ("train", "valid", "test"):
        lines: list[str] = []
        for d in catalog.entry("ddr").domains:
            for grade in range(grades):
                side, name = (24 if d[0] == "H" else 12), f"20170413{len(lines):09d}.jpg"
                photo = Image.new("L", (side + 8, side + 8), 0)
                photo.paste(DDR_SHADES[d[1]] + 2 * grade, (4, 4, side + 4, side + 4))
                path = root / "DR_grading" / part / name
                path.parent.mkdir(parents=True, exist_ok=True)
                photo.convert("RGB").save(path, quality=100)
                lines.append(f"{name} {grade}\n")
        if grades == 5:
            image(root / "DR_grading" / part / "ungradable.jpg", 0)
            lines.append("ungradable.jpg 5\n")
        (root / "DR_grading" / f"{part}.txt").write_text("".join(lines))
    return root


def femnist_rows(folder: Path, rows: Sequence[tuple[str, int]]) -> Path:
    """Save (writer, label) rows as flwrlabs/femnist has them: a label's grey, the writer in its corner."""
    writers = sorted({writer for writer, _ in rows})
    images = []
    for writer, label in rows:
        grey = np.full((28, 28), label, dtype=np.uint8)
        grey[0, 0] = writers.index(writer) + 1
        png = io.BytesIO()
        Image.fromarray(grey).save(png, "PNG")
        images.append({"bytes": png.getvalue(), "path": None})
    names = list(string.digits + string.ascii_uppercase + string.ascii_lowercase)
    features = {
        "image": datasets.Image(),
        "writer_id": datasets.Value("string"),
        "hsf_id": datasets.Value("int64"),
        "character": datasets.ClassLabel(names=names),
    }
    content = {
        "image": images,
        "writer_id": [writer for writer, _ in rows],
        "hsf_id": [0] * len(rows),
        "character": [label for _, label in rows],
    }
    saved = datasets.Dataset.from_dict(content, features=datasets.Features(features))
    datasets.DatasetDict({"train": saved}).save_to_disk(str(folder))
    return folder


def femnist(root: Path) -> Path:
    """Three writers: digits twice, a capital and a small letter."""
    labels = [*range(10), 10, 61, *range(10)]
    return femnist_rows(root, [(name, label) for name in WRITERS for label in labels])


def as_python_2(content: object) -> bytes:
    """A pickle that knows numpy by the names it had when CIFAR was written."""
    return pickle.dumps(content, protocol=2).replace(b"numpy._core.", b"numpy.core.")


def cifar(root: Path, folder: str, meta: str, key: str, label_key: str, files: dict[str, int]) -> Path:
    """files: name -> images of every class. Keys are text in half of the tools that write such files."""
    names = catalog.entry("cifar10" if meta == "batches.meta" else "cifar100").classes
    (root / folder).mkdir(parents=True)
    for file, each in files.items():
        labels = [label for label in range(len(names)) for _ in range(each)]
        pixels = np.zeros((len(labels), 3, 1024), dtype=np.uint8)
        pixels[:] = np.array([colour(label) for label in labels], dtype=np.uint8)[..., None]
        content = {"data": pixels.reshape(-1, 3072), label_key: labels, "filenames": [""] * len(labels)}
        (root / folder / file).write_bytes(as_python_2(content))
    (root / folder / meta).write_bytes(as_python_2({key: list(names)}))
    return root


def cifar10(root: Path) -> Path:
    files = {**{f"data_batch_{i}": 1 for i in range(1, 6)}, "test_batch": 2}
    return cifar(root, "cifar-10-batches-py", "batches.meta", "label_names", "labels", files)


def cifar100(root: Path) -> Path:
    files = {"train": 2, "test": 1}
    return cifar(root, "cifar-100-python", "meta", "fine_label_names", "fine_labels", files)


def pets(root: Path) -> Path:
    base = root / "oxford-iiit-pet"
    lines: dict[str, list[str]] = {"trainval": [], "test": []}
    for c, name in enumerate(catalog.entry("oxford-pets").classes):
        for n, part in ((1, "trainval"), (10, "test")):
            image(base / "images" / f"{name}_{n}.jpg", c)
            lines[part].append(f"{name}_{n} {c + 1} {1 + name[0].islower()} {n}\n")
    (base / "annotations" / "trimaps").mkdir(parents=True)
    for part, text in lines.items():
        (base / "annotations" / f"{part}.txt").write_text("".join(text))
    (base / "annotations" / "list.txt").write_text("#Image CLASS-ID SPECIES BREED ID\n")
    (base / "annotations" / "._trainval.txt").write_bytes(b"\0\5\26\7")
    return root


def food101(root: Path) -> Path:
    base = root / "food-101"
    classes = catalog.entry("food101").classes
    meta: dict[str, dict[str, list[str]]] = {"train": {}, "test": {}}
    for c, name in enumerate(classes):
        for n, part in ((1005649, "train"), (1011328, "test")):
            image(base / "images" / name / f"{n}.jpg", c)
            meta[part][name] = [f"{name}/{n}"]
    (base / "meta").mkdir()
    for part, listed in meta.items():
        (base / "meta" / f"{part}.json").write_text(json.dumps(listed))
        text = "\n".join(path for paths in listed.values() for path in paths)
        (base / "meta" / f"{part}.txt").write_text(text)
    (base / "meta" / "classes.txt").write_text("\n".join(classes))
    return root


def flowers102(root: Path) -> Path:
    """Image k is of class k mod 102; each class has one image to train and validate, two to test."""
    base = root / "flowers-102"
    labels = [i % 102 for i in range(4 * 102)]
    for i, label in enumerate(labels):
        image(base / "jpg" / f"image_{i + 1:05d}.jpg", label)
    savemat(base / "imagelabels.mat", {"labels": np.array([[label + 1 for label in labels]], dtype=np.uint8)})
    ids = np.arange(1, 4 * 102 + 1, dtype=np.uint16)[None]
    savemat(base / "setid.mat", {"tstid": ids[:, :204], "trnid": ids[:, 204:306], "valid": ids[:, 306:]})
    return root


def dtd(root: Path) -> Path:
    base = root / "dtd" / "dtd"
    lines: dict[str, list[str]] = {"train": [], "val": [], "test": []}
    for c, name in enumerate(catalog.entry("dtd").classes):
        for n, part in ((2, "train"), (4, "val"), (5, "test")):
            image(base / "images" / name / f"{name}_{n:04d}.jpg", c)
            lines[part].append(f"{name}/{name}_{n:04d}.jpg\n")
        (base / "images" / name / ".directory").touch()
    (base / "labels").mkdir()
    (base / "imdb").mkdir()
    for part, text in lines.items():
        (base / "labels" / f"{part}1.txt").write_text("".join(text))
    return root


def caltech101(root: Path) -> Path:
    domains(root, "caltech101", "caltech101/101_ObjectCategories/{cls}/image_{n:04d}.jpg")
    image(root / "caltech101" / "101_ObjectCategories" / "BACKGROUND_Google" / "image_0001.jpg", 0)
    for name in ("accordion", "Faces_2"):
        (root / "caltech101" / "Annotations" / name).mkdir(parents=True)
        (root / "caltech101" / "Annotations" / name / "annotation_0001.mat").touch()
    return root


def tiny_imagenet(root: Path) -> Path:
    """wnids.txt is in no order; the labels are those of the sorted ids."""
    base = root / "tiny-imagenet-200"
    for c, wnid in enumerate(sorted(TINY)):
        for n in range(2):
            image(base / "train" / wnid / "images" / f"{wnid}_{n}.JPEG", c)
        (base / "train" / wnid / f"{wnid}_boxes.txt").write_text(f"{wnid}_0.JPEG\t0\t10\t63\t58\n")
        image(base / "val" / "images" / f"val_{c}.JPEG", c)
    image(base / "test" / "images" / "test_0.JPEG", 0)
    rows = [f"val_{c}.JPEG\t{wnid}\t0\t32\t44\t62\n" for c, wnid in enumerate(sorted(TINY))]
    (base / "val" / "val_annotations.txt").write_text("".join(rows))
    (base / "wnids.txt").write_text("\n".join(TINY))
    words = {**TINY, "n00001740": "entity"}
    (base / "words.txt").write_text("".join(f"{wnid}\t{text}\n" for wnid, text in words.items()))
    return root


CARS = ("AM General Hummer SUV 2000", "Acura RL Sedan 2012", "Ram C/V Cargo Van Minivan 2012")
VARIANTS = ("707-320", "Eurofighter Typhoon", "DC-3")
ACTIONS = ("ApplyEyeMakeup", "HandstandPushups", "YoYo")
PLACES = ("/a/abbey", "/a/apartment_building/outdoor", "/z/zen_garden")
WNIDS = ("n01440764", "n02012849", "n04008634")


def cars(root: Path) -> Path:
    """Two images of each class to train on, one to test; numbers of images start anew in the test folder."""
    base = root / "stanford_cars"
    (base / "devkit").mkdir(parents=True)
    for folder, file, each in (
        ("cars_train", "devkit/cars_train_annos.mat", 2),
        ("cars_test", "cars_test_annos_withlabels.mat", 1),
    ):
        fields = [(name, object) for name in ("bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2", "class", "fname")]
        rows = np.zeros((1, each * len(CARS)), dtype=fields)
        for i in range(rows.size):
            name = f"{i + 1:05d}.jpg"
            image(base / folder / name, i % len(CARS))
            rows[0, i] = (1, 1, 8, 8, i % len(CARS) + 1, name)
        savemat(base / file, {"annotations": rows})
    savemat(base / "devkit" / "cars_meta.mat", {"class_names": np.array([CARS], dtype=object)})
    return root


def aircraft(root: Path) -> Path:
    base = root / "fgvc-aircraft-2013b" / "data"
    image(base / "images" / "0000000.jpg", 0)  # named in no list
    for p, part in enumerate(("train", "val", "test")):
        lines = []
        for c, name in enumerate(VARIANTS):
            image(base / "images" / f"{100 * p + c + 1:07d}.jpg", c)
            lines.append(f"{100 * p + c + 1:07d} {name}\n")
        (base / f"images_variant_{part}.txt").write_text("".join(lines))
    (base / "variants.txt").write_text("\n".join(VARIANTS) + "\n")
    (base / "families.txt").write_text("Boeing 707\n")
    return root


def ucf101(root: Path) -> Path:
    """The folder of push-ups and its videos spell the action differently, as upstream."""
    base = root / "ucf101"
    lists: dict[str, list[str]] = {"train": [], "test": []}
    frames = ("Apply_Eye_Makeup", "Handstand_Pushups", "Yo_Yo")
    for c, (action, folder) in enumerate(zip(ACTIONS, frames, strict=True)):
        for group, part in ((8, "train"), (1, "test")):
            video = f"v_{action.replace('Handstand', 'HandStand')}_g{group:02d}_c01"
            image(base / "UCF-101-midframes" / folder / f"{video}.jpg", c)
            lists[part].append(f"{action}/{video}.avi" + (f" {c + 1}" if part == "train" else ""))
    (base / "ucfTrainTestlist").mkdir()
    for part, lines in lists.items():
        (base / "ucfTrainTestlist" / f"{part}list01.txt").write_text("\r\n".join(lines) + "\r\n")
    text = "".join(f"{i} {name}\r\n" for i, name in enumerate(ACTIONS, start=1))
    (base / "ucfTrainTestlist" / "classInd.txt").write_text(text)
    return root


def sun397(root: Path) -> Path:
    base = root / "sun397"
    lists: dict[str, list[str]] = {"Training": [], "Testing": []}
    for c, place in enumerate(PLACES):
        for n, part in enumerate(("Training", "Testing", "")):
            path = f"{place}/sun_a{n}.jpg"
            image(base / "SUN397" / path.lstrip("/"), c)
            if part:
                lists[part].append(f"{path}\n")
    for part, lines in lists.items():
        (base / f"{part}_01.txt").write_text("".join(lines))
    (base / "ClassName.txt").write_text("\n".join(PLACES) + "\n")
    return root


def imagenet(root: Path) -> Path:
    for c, wnid in enumerate(WNIDS):
        for n in range(2):
            image(root / "imagenet" / "images" / "train" / wnid / f"{wnid}_{n}.JPEG", c)
        image(root / "imagenet" / "images" / "val" / wnid / f"ILSVRC2012_val_{c:08d}.JPEG", c)
    return root


def imagenet_test(root: Path, folder: str, suffix: str) -> Path:
    for c, wnid in enumerate(WNIDS):
        for n in range(2):
            image(root / folder / wnid / f"{n}.{suffix}", c)
    (root / folder / "README.txt").write_text("")
    return root


def imagenet_v2(root: Path) -> Path:
    for c, label in enumerate((0, 134, 744)):  # of WNIDS
        for n in range(2):
            image(root / "imagenetv2-matched-frequency-format-val" / str(label) / f"{n}f.jpeg", c)
    return root


def coop_split(root: Path) -> Path:
    """Caltech-101 as CoOp has it: Faces_easy and the background are no classes, and some have new names."""
    classes = ("face", "leopard", "cougar_body")
    listed: dict[str, list[list[object]]] = {"train": [], "val": [], "test": []}
    for label, folder in enumerate(("Faces", "Leopards", "cougar_body", "Faces_easy", "BACKGROUND_Google")):
        for n, part in enumerate(("train", "train", "val", "test"), start=1):
            path = f"{folder}/image_{n:04d}.jpg"
            image(root / "caltech-101" / "101_ObjectCategories" / path, label)
            if label < len(classes):
                listed[part].append([path, label, classes[label]])
    (root / "caltech-101" / "split_zhou_Caltech101.json").write_text(json.dumps(listed))
    return root


PATTERNS = {
    "office-home": "OfficeHomeDataset_10072016/{domain}/{cls}/{n:05d}.jpg",
    "vlcs": "VLCS/{domain}/{cls}/{n:03d}.jpg",
    "terra-incognita": "{domain}/{cls}/586e8e2d-23d2-11e8-a6a3-{n:012d}.jpg",
    "office31": "{domain}/images/{cls}/frame_{n:04d}.jpg",
    "office-caltech10": "{domain}/{cls}/frame_{n:04d}.jpg",
    "eurosat": "eurosat/2750/{cls}/{cls}_{n}.jpg",
}
"""Where images of data sets lie that are nothing but folders."""
WRITE: dict[str, Callable[[Path], Path]] = {
    entry.name: partial(
        domains, name=entry.name, pattern=PATTERNS.get(entry.name, "{domain}/{cls}/{n:03d}.jpg")
    )
    for entry in catalog.entries()
    if (entry.loader == "domains" and not entry.embedded) or entry.name in PATTERNS
} | {
    "pacs": pacs,
    "domainnet": domainnet,
    "domainnet-126": domainnet_126,
    "ddr": ddr,
    "ddr-all": lambda root: ddr(root, 6),
    "femnist": femnist,
    "femnist-digits": femnist,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "oxford-pets": pets,
    "food101": food101,
    "flowers102": flowers102,
    "dtd": dtd,
    "caltech101": caltech101,
    "stanford-cars": cars,
    "fgvc-aircraft": aircraft,
    "ucf101": ucf101,
    "sun397": sun397,
    "imagenet": imagenet,
    "imagenet-v2": imagenet_v2,
    "imagenet-sketch": lambda root: imagenet_test(root, "imagenet-sketch/sketch", "JPEG"),
    "imagenet-a": lambda root: imagenet_test(root, "imagenet-adversarial/imagenet-a", "jpg"),
    "imagenet-r": lambda root: imagenet_test(root, "imagenet-r", "jpg"),
    "tiny-imagenet": tiny_imagenet,
    "coop-split": coop_split,
}
"""Catalog name -> writer(root) of its upstream layout, which returns the root."""
