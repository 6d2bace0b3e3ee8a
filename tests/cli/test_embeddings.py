"""A comparison on a file of embeddings, from its check to its results, with the engine that trains."""

import csv
import io
from pathlib import Path

import numpy as np

from fedcore.results.comparison import compare
from fedcore.results.rows import setting_paragraph
from fedcore.store import Store
from tests.support.command_line import run
from tests.support.data.embedding_file import TOML, embedding_file


def experiment(folder: Path, root: Path, *methods: str) -> Path:
    entries = "".join(f"[[methods]]\n{method}\n" for method in methods)
    (folder / "experiment.toml").write_text(TOML.format(root=root) + entries)
    return folder / "experiment.toml"


def test_methods_without_towers_are_compared_on_a_file_of_embeddings(db, tmp_path, capsys):
    path = embedding_file(tmp_path)
    assert run("data", "check", path) == 0
    assert "180 images, 3 classes" in capsys.readouterr().out
    methods = (
        'name = "zero-shot"',
        'name = "fedot"\nconfig = { lr = 1e-4 }',
        'name = "fedot"\nlabel = "means"\nconfig = { lr = 1e-4, init = "class_means" }',
        'name = "fedclip"',
        'name = "fedakt"',
    )
    assert run("run", experiment(tmp_path, path, *methods), "--db", db) == 0, capsys.readouterr().err
    (encoded,) = (db.parent / "artifacts" / "encodings").glob("*.npy")
    given = np.load(path)["embedding"].astype(np.float32)
    assert np.array_equal(np.load(encoded), given)
    printed = csv.DictReader(io.StringIO(capsys.readouterr().out))
    found = {row["label"]: float(row["accuracy"]) for row in printed}
    assert len(found) == 5
    assert all(found[name] > 90 for name in ("Zero-shot CLIP", "FedOT", "means", "FedCLIP")), found
    assert Store(db).runs.config(3).method.config["init"] == "class_means"
    rows = compare(Store(db), [1]).rows
    assert "The pretrained model is known by its embeddings alone." in setting_paragraph(Store(db), rows)


def test_embeddings_of_two_encoders_are_two_settings(db, tmp_path):
    path = embedding_file(tmp_path)
    file = experiment(tmp_path, path, 'name = "fedot"')
    assert run("run", file, "--db", db) == 0
    with np.load(path) as content:
        other = dict(content)
    np.savez(path, **other | {"embedding": -other["embedding"]})
    assert run("run", file, "--db", db) == 0
    found = compare(Store(db), [1, 2])
    assert len({row.setting for row in found.rows}) == 2, "they are no repeat of each other"


def test_what_cannot_run_is_refused_before_anything_is_encoded(db, tmp_path, capsys):
    path = embedding_file(tmp_path, class_vectors=False)
    for method, says in (
        (
            'name = "promptfl"',
            "PromptFL cannot run with the backbone 'given': it learns inside CLIP's towers",
        ),
        ('name = "fedavg-vision"', "it learns inside CLIP's towers, or reads more of an image"),
        ('name = "zero-shot"', "these can: FedOT (init = class_means), CLIP-FC, FedAKT(C), FedGH(C)"),
    ):
        assert run("run", experiment(tmp_path, path, method), "--db", db) == 2
        assert says in capsys.readouterr().err
    file = experiment(tmp_path, path, 'name = "clip-fc"')
    file.write_text(file.read_text().replace('name = "given"\n[[', 'name = "mini-vit"\n[['))
    assert run("run", file, "--db", db) == 2
    assert 'set backbone.name = "given"' in capsys.readouterr().err
    assert run("data", "encode", "embeddings", "--root", path, "--db", db) == 2
    assert "which need no encoding" in capsys.readouterr().err
    assert not (db.parent / "artifacts" / "encodings").exists()
