"""The index of methods says what their classes say, and spares loading them."""

import csv
import importlib
import json
import pkgutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import fedcore.methods
from fedcore.base.errors import FedLensError
from fedcore.base.files import PROJECT
from fedcore.base.presentation import built_in
from fedcore.methods import registry
from tests.support.encoded import DIGITS

LAUNCH = """
import json, sys
from fedcore.config import parse
from fedcore.engine.plan import plan
from fedcore.jobs.job import Heartbeat, execute
from fedcore.store import Store
from fedcore.store.liveness import new_owner

store = Store(sys.argv[1])
store.prepare()
chosen = parse(json.loads(sys.argv[2]))
created = store.experiments.create(chosen, plan(chosen).runs)
with Heartbeat(store) as heartbeat:
    ended = execute(store.jobs.claim(new_owner(), "cpu"), heartbeat)
run, other = store.runs.get(created.run_ids)
assert (ended, run.rounds_done, run.label, other.label) == ("done", 1, "PromptFL", "FedCLIP")
print(*sorted(name for name in sys.modules if name.startswith("fedcore.methods.")))
"""
BASES = {
    "base",
    "class_texts",
    "consent",
    "declarations",
    "federation",
    "hyperparameters",
    "registry",
    "tensors",
}
"""Files of the room that are no method."""


def test_the_index_names_every_method_with_its_title_and_module() -> None:
    for info in pkgutil.walk_packages(fedcore.methods.__path__, "fedcore.methods."):
        importlib.import_module(info.name)
    classes = {n: cls for n, cls in registry.load_all().items() if cls.__module__.startswith("fedcore.")}
    found = {name: (cls.about.title, cls.__module__) for name, cls in classes.items()}
    assert found == {name: (listed.title, listed.module) for name, listed in built_in().items()}


def test_the_table_of_rounding_names_methods_and_what_they_compute() -> None:
    with registry.ROUNDING.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len({(r["method"], r["field"], r["value"]) for r in rows})
    for row in rows:
        method = registry.get(row["method"])
        assert row["method"] in built_in() and row["value"] in ("tf32", "bf16")
        assert row["field"] == "precision" or (row["field"] == "arithmetic" and method.trains)
        assert (row["counts_changed"] == "0") == (row["count_change"] == "0")
    unchanged = registry.unchanged_by_tf32("arithmetic")
    assert "fedot" in unchanged and "sdfed" not in unchanged


def test_a_launch_runs_no_file_of_another_method(
    tmp_path: Path, encoded_digits: Callable[[Path], object]
) -> None:
    encoded_digits(tmp_path / "artifacts")
    experiment = {"rounds": 1, "data": DIGITS, "methods": [{"name": "promptfl"}, {"name": "fedclip"}]}
    command = [sys.executable, "-c", LAUNCH, tmp_path / "runs.db", json.dumps(experiment)]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    ran = {name.removeprefix("fedcore.methods.") for name in done.stdout.split()} - BASES
    bases = {"baselines", "baselines.prompts"}
    assert ran == bases | {"baselines.prompts.promptfl", "baselines.fedclip"}


def test_a_name_of_ours_is_taken_before_its_method_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_METHODS", {})
    file = tmp_path / "mine.py"
    file.write_text(
        "from fedcore.methods import About, Method, method\n"
        "@method\n"
        "class Mine(Method):\n"
        "    name, about = 'fedclip', About(title='Mine')\n"
    )
    with pytest.raises(FedLensError, match=r"two methods are called 'fedclip' \(fedcore.methods.baselines"):
        registry.load_file(file)
