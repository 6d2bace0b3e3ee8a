"""What has to be quick loads neither torch nor pandas, and a name leads to one class."""

import ast
import gc
import subprocess
import sys

import pytest

from fedcore.base.files import PROJECT
from fedcore.base.lazy import _Lazy
from fedcore.store import Store
from tests.config.test_identity import GROUP, RUN

STEPS = """
import sys

def loaded(*names):
    return [name for name in names if name in sys.modules]

db, run, group = sys.argv[1:]
import fedcore.results.exports, fedcore.results.charts.lines
from fedcore.store import Store
store = Store(db)
assert store.prepare() == "" and store.experiments.all() == []
slow = ("pandas", "torch", "streamlit", "sqlite_utils")
assert not loaded(*slow), "each is a third of a cold page's imports, or more"

from fedcore.config import RunConfig
from fedcore.config.field_names import error_text, field_title, value_text
from fedcore.config.identity import group_hash
from fedcore.results import progress
assert error_text("data.root: x") == "Folder: x" and error_text("RuntimeError: x") == "RuntimeError: x"
assert (field_title("rounds"), value_text("data.shots", None)) == ("Rounds", "all")
assert not loaded("fedcore.methods.fedot"), "Live asks for these at every tick"
assert group_hash(RunConfig.model_validate_json(run)) == group, "also where no method is loaded"
assert field_title("tau") == "Logit temperature" and loaded("fedcore.methods.fedot")

from fedcore.cli.main import main
assert main(["list", "--db", db]) == 0
assert not loaded(*slow), "a command that lists"

from fedcore.clip import specs
from fedcore.results import curves
specs.count_tokens("a cat")
assert sum(len(m.about.charts) for m in curves._methods_in_order([])) > 10
import fedcore.jobs.analysis, fedcore.jobs.supervisor, fedcore.share.verify
from fedcore.engine.plan import plan
from fedcore.papers.experiments import preset
plan(preset("demo"))
assert not loaded("torch._C"), "tokens, charts, the worker and its jobs, the check of bundles, a plan"
"""


def test_pages_commands_and_plans_load_neither_torch_nor_pandas(tmp_path):
    Store(tmp_path / "runs.db").prepare()  # sqlite-utils makes the tables, once
    command = [sys.executable, "-c", STEPS, tmp_path / "runs.db", RUN.model_dump_json(), GROUP]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_a_library_is_imported_while_the_garbage_collector_rests(tmp_path, monkeypatch):
    (tmp_path / "rests_library.py").write_text("import gc\ncollects = gc.isenabled()\n")
    (tmp_path / "fails_library.py").write_text("raise ImportError('no such part')\n")
    monkeypatch.syspath_prepend(tmp_path)
    frozen = gc.get_freeze_count()
    assert _Lazy("rests_library").collects is False
    assert gc.get_freeze_count() > frozen, "what it has made is searched again and again"
    with pytest.raises(ImportError, match="no such part"):
        _ = _Lazy("fails_library").collects
    assert gc.isenabled()


def test_no_two_classes_have_one_name():
    """A reader who meets ``Layout`` in a traceback knows which file to open."""
    places: dict[str, list[str]] = {}
    for folder in ("fedcore", "pages"):
        for path in sorted((PROJECT / folder).rglob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            for name in (node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
                places.setdefault(name, []).append(str(path.relative_to(PROJECT)))
    assert not {name: files for name, files in places.items() if len(files) > 1}
