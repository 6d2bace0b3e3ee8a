import numpy as np
import pytest

from fedcore.base.errors import FedLensError
from fedcore.config import expand, loads
from fedcore.config.field_names import size_text
from fedcore.config.identity import group_hash
from fedcore.data import arrays
from fedcore.jobs.retention import delete_encoding
from fedcore.results.run_files import (
    Encoding,
    cached_encodings,
    encoding_differences,
    run_toml,
)
from fedcore.store import Store
from tests.support import fill

ABOUT = {"key": "k", "data": "pacs", "backbone": "ViT-B-32", "reads": "embedding"}


@pytest.fixture
def db(tmp_path):
    """A finished encoding, an unfinished one, and one of an older release that says nothing of itself."""
    folder = tmp_path / "artifacts" / "encodings"
    folder.mkdir(parents=True)
    for name, rows in (("pacs-1", 10), ("pacs-2", 4)):
        part = arrays.ArrayWriter(folder / f"{name}.npy", 10, (3,), np.dtype(np.float32), ABOUT)
        part.write(np.zeros((rows, 3), np.float32))
        part.close()
    np.save(folder / "digits-0.npy", np.zeros((50, 3), np.float32))
    return tmp_path / "runs.db"


def test_encodings_say_what_they_are_and_how_far(db):
    old, done, half = cached_encodings(Store(db))
    assert (old.name, old.data, old.complete) == ("digits-0", "", True)
    assert (done.name, done.data, done.backbone, done.reads) == ("pacs-1", "pacs", "ViT-B-32", "embedding")
    assert (done.images, done.total, done.complete) == (10, 10, True)
    assert done.megabytes == pytest.approx((128 + 10 * 12) / 1e6)
    assert (half.name, half.images, half.total, half.complete) == ("pacs-2", 4, 10, False)


def test_what_looks_alike_is_told_apart_by_what_differs_and_no_more():
    def one(name, **details):
        return Encoding(name, 1.0, "", "pacs", "ViT-B-32", "embedding", 3, 3, details)

    found = [
        one("pacs-aaaa", domains="photo", precision="float32", device="cpu, 2 threads"),
        one("pacs-bbbb", domains="photo", precision="float32", device="cpu, 4 threads"),
        one("pacs-cccc", domains="photo", precision="bfloat16", device="cpu, 2 threads"),
        one("pacs-dddd"),
        Encoding("digits-0", 1.0, "", "digits", "ViT-B-32", "embedding", 3, 3),
    ]
    assert encoding_differences(found) == [
        "domains photo; precision float32; device cpu, 2 threads",
        "domains photo; precision float32; device cpu, 4 threads",
        "domains photo; precision bfloat16; device cpu, 2 threads",
        "domains not recorded; precision not recorded; device not recorded",
        "",
    ]
    assert encoding_differences([one("pacs-aaaa"), one("pacs-bbbb")]) == ["file aaaa", "file bbbb"]
    assert encoding_differences(found[:2]) == ["device cpu, 2 threads", "device cpu, 4 threads"]


def test_own_data_are_called_as_their_folder():
    def one(root):
        details = {"folder": root} if root else {}
        return Encoding(f"folder-{root}", 1.0, "", "folder", "RN50", "embedding", 3, 3, details)

    found = [one("/data/cats"), one("/old/cats"), one("/data/dogs"), one("")]
    assert [e.title for e in found] == ["cats (folder)", "cats (folder)", "dogs (folder)", "folder"]
    assert encoding_differences(found) == ["folder /data/cats", "folder /old/cats", "", ""]


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (4608, "4.6 kB"),
        (35_400_000, "35 MB"),
        (9_960_000, "10 MB"),
        (1.25e9, "1.2 GB"),
        (1.234e12, "1,234 GB"),
    ],
)
def test_sizes_are_told_in_words(size, words):
    assert size_text(size) == words


def test_deleting_frees_the_file_and_leaves_the_others(db):
    assert delete_encoding(Store(db), "pacs-2") > 128 / 1e6
    assert [e.name for e in cached_encodings(Store(db))] == ["digits-0", "pacs-1"]
    left = sorted(p.name for p in (db.parent / "artifacts" / "encodings").glob("pacs-2*"))
    assert left == ["pacs-2.lock"]


@pytest.mark.parametrize("name", ["gone", "../../runs", "pacs-1.npy"])
def test_only_what_is_listed_can_be_deleted(db, name):
    with pytest.raises(FedLensError, match="no encoding"):
        delete_encoding(Store(db), name)
    assert len(cached_encodings(Store(db))) == 3


def test_one_in_use_is_refused(db):
    mapped = arrays.open_mapped(db.parent / "artifacts" / "encodings" / "pacs-1.npy")
    with pytest.raises(FedLensError, match="pacs-1.npy is in use by a run"):
        delete_encoding(Store(db), "pacs-1")
    assert mapped.shape == (10, 3) and len(cached_encodings(Store(db))) == 3


def test_no_folder_means_no_cached_encodings(tmp_path):
    assert cached_encodings(Store(tmp_path / "runs.db")) == []


def test_a_runs_file_can_be_read_back_for_every_method(tmp_path):
    """A hyper-parameter that is none (FedOT's tau) was written as null, which TOML does not have."""
    names = ("fedot", "feddeap", "sdfed", "fedalign", "promptfl", "zero-shot")
    db = tmp_path / "runs.db"
    created, _ = fill.start(db, fill.an_experiment(methods=names, seeds=(1,)))
    for run_id, name in zip(created.run_ids, names, strict=True):
        again = loads(run_toml(Store(db), run_id), "the run's config")
        assert [entry.name for entry in again.methods] == [name]
        assert group_hash(expand(again)[0]) == Store(db).runs.get([run_id])[0].group_hash


def test_a_stored_field_without_a_value_is_left_out_of_the_file(tmp_path):
    """Runs of the engine keep every hyper-parameter, also those that are None, which TOML does not have."""
    db = tmp_path / "runs.db"
    experiment = fill.an_experiment(methods=("fedot",), seeds=(1,))
    entry = experiment.methods[0].model_copy(update={"config": {"blocks": 2, "tau": None}})
    runs = [
        run.model_copy(update={"method": entry.model_copy(update={"label": run.method.label})})
        for run in expand(experiment)
    ]
    Store(db).prepare()
    (run_id,) = Store(db).experiments.create(experiment, runs).run_ids
    assert Store(db).runs.config(run_id).method.config == {"blocks": 2, "tau": None}
    assert loads(run_toml(Store(db), run_id), "file").methods[0].config == {"blocks": 2}
