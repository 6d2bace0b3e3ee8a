"""What a run leaves behind, in words."""

from __future__ import annotations

from pathlib import Path

from fedcore.results.run_files import (
    environment_texts,
    kept_files,
    repeat_command,
    run_toml,
    trained_with,
)
from fedcore.store import Store
from tests.support import fill


def test_files_are_listed_below_the_runs_folder(tmp_path: Path):
    db = tmp_path / "runs.db"
    run = (
        Store(db)
        .experiments.get(fill.done(db, fill.an_experiment(methods=("fedot",), seeds=(1,), rounds=1)))
        .runs
    )
    folder = Store(db).runs.log_path(run[0].id).parent
    assert kept_files(Store(db), run[0].id) == []
    (folder / "tasks" / "a").mkdir(parents=True)
    (folder / "round-1.safetensors").write_bytes(b"x" * 1_500_000)
    (folder / "tasks" / "a" / "arrays.npz").write_bytes(b"y")
    found = kept_files(Store(db), run[0].id)
    assert [(f.name, f.kind, f.megabytes) for f in found] == [
        ("round-1.safetensors", "checkpoint", 1.5),
        ("tasks/a/arrays.npz", "analysis", 1e-6),
    ]


def test_the_command_repeats_device_and_threads_of_a_cpu_run():
    assert repeat_command("run-1.toml", {"device": "cpu", "threads": 2}) == (
        "FEDLENS_THREADS=2 fedlens run run-1.toml --device cpu"
    )
    assert repeat_command("run-1.toml", {"device": "cuda", "threads": 2}) == "fedlens run run-1.toml"
    assert repeat_command("run-1.toml", {}) == "fedlens run run-1.toml"


def test_the_environment_has_titles():
    said = environment_texts({"threads": 1, "tf32": False, "python": "3.11.7", "device_name": "a_b"})
    assert said == {"Threads": "1", "TF32": "no", "Python": "3.11.7", "Name of the device": "a_b"}


def test_the_file_that_repeats_a_run_names_the_fedlens_that_trained_it(tmp_path: Path) -> None:
    db = tmp_path / "runs.db"
    number = fill.done(db, fill.an_experiment(methods=("fedot",), seeds=(1,), rounds=1))
    (run,) = Store(db).runs.of_experiments([number])
    assert run_toml(Store(db), run.id).startswith(
        "# Trained with a FedLens that did not record its version\n"
    )
    assert trained_with({"fedlens": "0.1.0"}) == "Trained with FedLens 0.1.0"
    recorded = {"fedlens": "0.1.0", "commit": "1b6fd86 with changes"}
    assert trained_with(recorded) == "Trained with FedLens 0.1.0, commit 1b6fd86 with changes"
