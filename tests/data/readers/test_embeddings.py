"""Files of embeddings: the same data set in every format, and what is refused."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torchvision
from PIL import Image
from safetensors.numpy import save_file

from fedcore.base.errors import FedLensError
from fedcore.base.events import TEST, TRAIN
from fedcore.base.files import PROJECT
from fedcore.data.check import check_dataset
from fedcore.data.images import ImageSet
from fedcore.data.readers.loaders import detect_format
from tests.support.data.loading import loaded
from tests.support.work import collect

ROWS = np.arange(24, dtype=np.float64).reshape(6, 4)
VECTORS = np.eye(3, 4, dtype=np.float32)
COLUMNS = {
    "label": ["owl", "fire_engine", "owl", "cat", "cat", "owl"],
    "domain": ["photo", "photo", "sketch", "sketch", "photo", "photo"],
    "client": ["b", "b", "a", "a", "", "b"],
    "split": ["train", "Train", "test", "train", "test", "test"],
}


def npy(path: Path, embedding: np.ndarray, columns: Mapping[str, Any]) -> None:
    np.save(path, embedding)
    pd.DataFrame(columns).to_csv(path.with_suffix(".csv"), index=False)


def npz(path: Path, embedding: np.ndarray, columns: Mapping[str, Any]) -> None:
    np.savez(path, embedding=embedding, **{name: np.array(values) for name, values in columns.items()})


def parquet(path: Path, embedding: np.ndarray, columns: Mapping[str, Any]) -> None:
    pd.DataFrame({"embedding": list(embedding), **columns}).to_parquet(path)


def safetensors(path: Path, embedding: np.ndarray, columns: Mapping[str, Any]) -> None:
    numbers = {name: np.array(v) for name, v in columns.items() if np.array(v).dtype.kind == "i"}
    save_file({"embedding": np.ascontiguousarray(embedding), **numbers}, path)
    texts = {name: values for name, values in columns.items() if name not in numbers}
    if texts:
        pd.DataFrame(texts).to_csv(path.with_suffix(".csv"), index=False)


WRITE: dict[str, Callable[[Path, np.ndarray, Mapping[str, Any]], None]] = {
    write.__name__: write for write in (npy, npz, parquet, safetensors)
}


def written(folder: Path, form: str = "npz", embedding: np.ndarray = ROWS, **changes: Any) -> Path:
    path = folder / f"set.{form}"
    columns = {name: values for name, values in (COLUMNS | changes).items() if values is not None}
    WRITE[form](path, embedding, columns)
    return path


def load(path: Path, **options: Any) -> ImageSet:
    return loaded("embeddings", str(path), **options)


@pytest.mark.parametrize("form", WRITE)
def test_every_format_holds_the_same_data_set(tmp_path, form):
    path = written(tmp_path, form)
    assert detect_format(path) == "embeddings"
    images = load(path)
    assert images.classes == ("cat", "fire engine", "owl") and images.domains == ("photo", "sketch")
    assert images.labels.tolist() == [2, 1, 2, 0, 0, 2] and images.domain.tolist() == [0, 0, 1, 1, 0, 0]
    assert images.owner == ("b", "b", "a", "a", "", "b")
    assert images.split.tolist() == [TRAIN, TRAIN, TEST, TRAIN, TEST, TEST]
    assert images.given.width == 4 and images.given.rows().tolist() == ROWS.tolist()
    assert images.given.class_vectors == {}
    sketches = load(path, domains=["sketch"])
    assert sketches.given.rows().tolist() == ROWS[2:4].tolist() and len(sketches) == 2
    assert sketches.fingerprint != images.fingerprint


@pytest.mark.parametrize("form", WRITE)
def test_a_file_of_class_vectors_names_the_classes_and_orders_them(tmp_path, form):
    WRITE[form](tmp_path / f"set.classes.{form}", VECTORS, {"label": ["owl", "cat", "fire engine"]})
    by_name = load(written(tmp_path, form))
    assert by_name.classes == ("owl", "cat", "fire engine") and by_name.labels.tolist() == [0, 2, 0, 1, 1, 0]
    found = by_name.given.class_vectors
    assert {name: vector.tolist() for name, vector in found.items()} == dict(
        zip(by_name.classes, VECTORS.tolist(), strict=True)
    )
    (tmp_path / "set.csv").unlink(missing_ok=True)
    assert load(written(tmp_path, form, label=[0, 2, 0, 1, 1, 0])).labels.tolist() == [0, 2, 0, 1, 1, 0]


def test_numbers_are_classes_in_their_order_and_what_is_not_given_has_a_default(tmp_path):
    images = load(written(tmp_path, label=[10, 9, 9, 10, 9, 9], domain=None, client=None, split=None))
    assert images.classes == ("9", "10") and images.labels.tolist() == [1, 0, 0, 1, 0, 0]
    assert images.domains == ("all",) and images.owner is None and images.split is None


def test_the_identity_of_a_data_set_is_its_content(tmp_path):
    (tmp_path / "other").mkdir()
    first, copy = load(written(tmp_path)), load(written(tmp_path / "other"))
    assert first.fingerprint == copy.fingerprint
    assert load(written(tmp_path / "other", embedding=ROWS + 1)).fingerprint != first.fingerprint
    npz(tmp_path / "set.classes.npz", VECTORS, {"label": ["cat", "fire engine", "owl"]})
    assert load(tmp_path / "set.npz").fingerprint != first.fingerprint


def test_columns_can_have_other_names(tmp_path):
    path = tmp_path / "set.parquet"
    pd.DataFrame({"vec": list(ROWS), "species": COLUMNS["label"], "file": list("fedcba")}).to_parquet(path)
    images = load(path, columns={"embedding": "vec", "label": "species", "path": "file"})
    assert len(images) == 6 and images.keys == tuple("fedcba")


BAD = ROWS.copy()
BAD[4, 1] = np.nan
REFUSED = [
    ({"label": ["owl"] * 5}, "'label' has shape (5,); give one value for each of 6 embeddings"),
    ({"label": None}, "no column 'label' here or in set.csv, only embedding, domain, client, split; add it"),
    ({"label": ["owl", "", *["cat"] * 4]}, "row 1 (counted from 0) has no label; complete it"),
    ({"domain": ["photo"] * 5 + [" "]}, "row 5 (counted from 0) has no domain"),
    ({"embedding": BAD}, "1 of 6 embeddings are not finite, the first in row 4"),
    ({"embedding": ROWS * 1e300}, "embeddings are not finite"),
    ({"embedding": ROWS[:, 0]}, "its embeddings are float64 (6,); give numbers (rows, width)"),
    ({"embedding": ROWS.astype(str)}, "give numbers (rows, width)"),
    ({"split": ["train"] * 5 + ["dev"]}, "split 'dev' is not one of train, validation, test"),
    ({"path": ["a", "b", "c", "d", "a", "e"]}, "two rows have the path 'a'; each needs its own"),
]


@pytest.mark.parametrize(("changes", "says"), REFUSED)
def test_a_bad_file_is_refused_with_what_to_do(tmp_path, changes, says):
    with pytest.raises(FedLensError) as refused:
        load(written(tmp_path, **changes))
    assert says in str(refused.value) and refused.value.field == "data.root"
    _, report = collect(check_dataset("embeddings", str(tmp_path / "set.npz")))
    assert report.error == str(refused.value)


@pytest.mark.parametrize(
    ("vectors", "labels", "says"),
    [
        (VECTORS[:, :3], ["cat", "fire engine", "owl"], "its vectors have 3 numbers, the embeddings 4"),
        (VECTORS, ["cat", "owl", "dog"], "no row of class 'fire_engine', which set.npz has; add it"),
        (VECTORS, ["cat", "owl", "owl"], "'owl' and 'owl' read the same"),
    ],
)
def test_class_vectors_must_fit_the_embeddings(tmp_path, vectors, labels, says):
    npz(tmp_path / "set.classes.npz", vectors, {"label": labels})
    with pytest.raises(FedLensError) as refused:
        load(written(tmp_path))
    assert says in str(refused.value)


def test_a_damaged_or_missing_file_is_named(tmp_path):
    for suffix in ("npy", "npz", "parquet", "safetensors"):
        (tmp_path / f"set.{suffix}").write_bytes(b"nothing of that kind")
        with pytest.raises(FedLensError, match="cannot be read .*; write it again"):
            load(tmp_path / f"set.{suffix}")
    np.save(tmp_path / "set.npy", np.array([{}, {}]), allow_pickle=True)
    with pytest.raises(FedLensError, match="cannot be read"):
        load(tmp_path / "set.npy")
    with pytest.raises(FedLensError, match="no file .* of type .npy"):
        load(tmp_path / "other.npz")


def test_the_check_finds_copies_and_reads_no_image(tmp_path):
    path = written(tmp_path, embedding=ROWS[[0, 1, 2, 3, 4, 0]])
    _, report = collect(check_dataset("embeddings", str(path)))
    assert report.error is None and report.images == 6
    assert [(f.kind, f.count) for f in report.findings if f.kind != "no images"] == [("train and test", 1)]
    with pytest.raises(FedLensError, match="holds embeddings without their images"):
        load(path).read(0)


def test_the_script_of_the_docs_makes_such_a_file(tmp_path, monkeypatch):
    """With its model drawn at random, since weights are not downloaded here."""
    for name, colour in (("owl", 0), ("fire engine", 200)):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(2):
            Image.new("RGB", (40, 40), (colour, 30 * i, 9)).save(tmp_path / "photos" / name / f"{i}.png")
    monkeypatch.chdir(tmp_path)
    real = torchvision.models.resnet18
    monkeypatch.setattr(torchvision.models, "resnet18", lambda weights: real(weights=None))
    page = (PROJECT / "docs" / "own-data.md").read_text(encoding="utf-8")
    script = page.partition("```python\n")[2].partition("```")[0]
    assert len(script.strip().splitlines()) <= 12
    exec(compile(script, "own-data.md", "exec"), {})
    images = load(tmp_path / "photos.npz")
    assert images.classes == ("fire engine", "owl") and images.labels.tolist() == [0, 0, 1, 1]
    assert images.given.rows().shape == (4, 512)
