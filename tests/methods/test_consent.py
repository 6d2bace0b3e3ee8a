"""Method files that an experiment names run only after the user has agreed to them."""

import json
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from fedcore.base import consent
from fedcore.base.errors import FedLensError
from fedcore.config import parse
from fedcore.engine.plan import plan
from fedcore.methods import registry
from fedcore.store import Store

SOURCE = """
from pathlib import Path
from fedcore.methods import method
from fedcore.methods.baselines.zero_shot import ZeroShot
Path({marker!r}).touch()

@method
class Unasked(ZeroShot):
    name = "unasked"
"""


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """The file that exists once the method file has run."""
    return tmp_path / "has run"


@pytest.fixture
def file(tmp_path: Path, marker: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A method file that nobody has agreed to."""
    monkeypatch.setenv("FEDLENS_STATE", str(tmp_path / "state"))
    monkeypatch.setattr(consent, "_THIS_PROCESS", set())
    path = tmp_path / "unasked.py"
    path.write_text(SOURCE.format(marker=str(marker)))
    yield path
    registry._METHODS.pop("unasked", None)
    registry._FILES.pop("unasked", None)


def experiment(file: Path, **more: object) -> dict[str, object]:
    return {
        "name": "somebody else's",
        "data": {"name": "rotated-digits", "domains": ["rot0", "rot45"], "shots": 4},
        "rounds": 1,
        "methods": [{"name": "unasked", "file": str(file)}],
        **more,
    }


def test_a_file_that_was_not_agreed_to_does_not_run(file: Path, marker: Path) -> None:
    for named in (experiment(file), experiment(file, sweep={"methods.unasked.batch_size": [8, 16]})):
        with pytest.raises(consent.NotAgreed, match=f"--methods {file}$") as caught:
            plan(parse(named))
        assert caught.value.field == "methods" and caught.value.file == file
    assert not marker.exists()


def test_consent_is_for_one_content_at_one_path(file: Path, marker: Path, tmp_path: Path) -> None:
    with pytest.raises(consent.NotAgreed) as caught:
        registry.load_agreed(file)
    consent.agree(caught.value.file, caught.value.sha256)
    assert registry.load_agreed(file) == ["unasked"]
    assert marker.exists()
    elsewhere = tmp_path / "copy.py"
    elsewhere.write_bytes(file.read_bytes())
    with pytest.raises(consent.NotAgreed):
        registry.load_agreed(elsewhere)
    file.write_text(file.read_text() + "\n# and one line more\n")
    marker.unlink()
    with pytest.raises(consent.NotAgreed):
        registry.load_agreed(file)
    assert not marker.exists()


@pytest.mark.parametrize(
    "imports",
    [
        "import helper_of_theirs",
        "from helper_of_theirs import x",
        "import folder_of_theirs.helper",
        "from folder_of_theirs import helper",
        "try:\n    import helper_of_theirs\nexcept ImportError:\n    pass",
        "def later():\n    import helper_of_theirs\nlater()",
        "from . import helper_of_theirs",
        "from fedlens_method_another import x",
    ],
)
def test_a_method_is_one_file_and_modules_beside_it_do_not_run(
    file: Path, marker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, imports: str
) -> None:
    ran = tmp_path / "another has run"
    (tmp_path / "folder_of_theirs").mkdir()
    for module in ("helper_of_theirs.py", "folder_of_theirs/helper.py"):
        (tmp_path / module).write_text(f"x = 1; open({str(ran)!r}, 'w').close()")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "fedlens_method_another", ModuleType("fedlens_method_another"))
    file.write_text(f"import torch, numpy.linalg, sqlite3, yaml\n{file.read_text()}{imports}\n")
    with pytest.raises(FedLensError, match="which is not installed; it is one file, so put"):
        registry.load_file(file)
    assert marker.exists() and not ran.exists()


def test_consent_is_remembered_for_this_account_alone(file: Path, tmp_path: Path) -> None:
    registry.load_file(file)  # as --methods does
    agreements = tmp_path / "state" / "method-files.json"
    assert stat.S_IMODE(agreements.stat().st_mode) == 0o600
    assert json.loads(agreements.read_text()) == {str(file): [registry.file_hash(file)]}
    program = f"from fedcore.methods import registry; print(registry.load_agreed({str(file)!r}))"
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert told.stdout.strip() == "['unasked']", told.stderr


@pytest.mark.parametrize("content", ["", "[]", '{"a": 1}', "{", "\x00"])
def test_a_damaged_memory_agrees_to_nothing(file: Path, tmp_path: Path, content: str) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "method-files.json").write_text(content)
    with pytest.raises(consent.NotAgreed):
        registry.load_agreed(file)
    registry.load_file(file)
    assert registry.load_agreed(file) == ["unasked"]


def test_where_nothing_can_be_kept_consent_holds_for_the_process(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a file").write_text("")
    monkeypatch.setenv("FEDLENS_STATE", str(tmp_path / "a file" / "state"))
    registry.load_file(file)
    assert registry.load_agreed(file) == ["unasked"]


def test_imported_experiments_run_no_file(file: Path, marker: Path, tmp_path: Path) -> None:
    registry.load_file(file)
    theirs = Store(tmp_path / "theirs.db")
    theirs.prepare()
    created = theirs.experiments.create(parse(experiment(file)))
    exported = tmp_path / "theirs.json"
    exported.write_text(theirs.experiments.to_json([created.experiment_id]))
    marker.unlink()
    file.write_text(file.read_text() + "\n# another day\n")
    ours = Store(tmp_path / "ours.db")
    ours.prepare()
    ours.imports.json(exported)
    ours.imports.database(theirs.path)
    (there,) = ours.experiments.all()
    assert there.config.methods[0].file == str(file)
    assert not marker.exists()


@pytest.mark.parametrize(
    "content",
    [b"\x00", b"\xff\xfe", b"def", b"raise SystemExit(3)", b"import sys; sys.exit()", b"x = 1", b""],
    ids=repr,
)
def test_whatever_a_file_holds_the_error_is_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "strange.txt"
    path.write_bytes(content)
    with pytest.raises(FedLensError) as caught:
        registry.load_file(path)
    assert "strange.txt" in str(caught.value)
