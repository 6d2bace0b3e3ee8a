"""What is recorded of a run to repeat and to cite it."""

import re
from pathlib import Path

from fedcore.base.presentation import built_in, references
from fedcore.data import catalog
from fedcore.results.comparison import compare
from fedcore.results.run_files import environment_texts, repeat_command, run_toml, stored_files, trained_with
from fedcore.results.sharing import bibtex
from fedcore.store import Store
from tests.support import fill


def test_files_are_listed_below_the_runs_folder(db: Path):
    run = (
        Store(db)
        .experiments.get(fill.done(db, fill.an_experiment(methods=("fedot",), seeds=(1,), rounds=1)))
        .runs
    )
    folder = Store(db).runs.log_path(run[0].id).parent
    assert stored_files(Store(db), run[0].id) == []
    (folder / "tasks" / "a").mkdir(parents=True)
    (folder / "round-1.safetensors").write_bytes(b"x" * 1_500_000)
    (folder / "tasks" / "a" / "arrays.npz").write_bytes(b"y")
    found = stored_files(Store(db), run[0].id)
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


def test_the_file_that_repeats_a_run_names_the_fedlens_that_trained_it(db: Path) -> None:
    number = fill.done(db, fill.an_experiment(methods=("fedot",), seeds=(1,), rounds=1))
    (run,) = Store(db).runs.of_experiments([number])
    assert run_toml(Store(db), run.id).startswith(
        "# Trained with a FedLens that did not record its version\n"
    )
    assert trained_with({"fedlens": "0.1.0"}) == "Trained with FedLens 0.1.0"
    recorded = {"fedlens": "0.1.0", "commit": "1b6fd86 with changes"}
    assert trained_with(recorded) == "Trained with FedLens 0.1.0, commit 1b6fd86 with changes"


def test_a_comparison_cites_its_methods_data_and_model_once(db: Path) -> None:
    number = fill.done(
        db, fill.an_experiment(methods=("zero-shot", "fedot", "promptfl"), seeds=(1, 2), rounds=1)
    )
    text = bibtex(compare(Store(db), [number]).rows)
    assert re.findall(r"^@\w+\{(\w+),$", text, re.MULTILINE) == [
        "fedlens",
        "radford2021clip",
        "alpaydin1998digits",
        "kong2025fedot",
        "guo2022promptfl",
    ]


def test_every_paper_has_an_entry_and_a_key_of_its_own() -> None:
    found: dict[str, str] = {}
    assert all(listed.cites for listed in built_in().values())
    assert {key for listed in built_in().values() for key in listed.cites} == {*references()} - {"openclip"}
    cited = {f"paper {key}": entry for key, entry in references().items()}
    cited |= {f"data set {e.name}": e.bibtex for e in catalog.entries() if e.citation}
    for name, text in cited.items():
        assert text, name
        for entry in re.split(r"\n(?=@)", text.strip()):
            head = re.match(r"@\w+\{(\w+),", entry)
            assert head and entry.count("{") == entry.count("}") and entry.endswith("}}"), name
            plain = " ".join(entry.split())
            assert found.setdefault(head[1], plain) == plain, f"{name}: another entry has the key {head[1]}"
