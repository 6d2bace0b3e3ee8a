"""Methods of a user's own file, and the text that the documentation has of each method, on the page New."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fedcore.base import consent
from fedcore.cli.main import main
from fedcore.config import dumps, parse
from fedcore.methods import registry
from fedcore.store import Store
from pages.forms.methods import guide
from tests.support.web.pages import Opened, button, widget

SOURCE = """
from pathlib import Path
from fedcore.methods import method
from fedcore.methods.baselines.zero_shot import ZeroShot
Path({marker!r}).touch()

@method
class FromElsewhere(ZeroShot):
    name = "from-elsewhere"
"""


@pytest.fixture
def file(db: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A method file that nobody has agreed to; an experiment in the database names it."""
    path = tmp_path / "elsewhere.py"
    path.write_text(SOURCE.format(marker=str(tmp_path / "has run")))
    content = {
        "name": "From elsewhere",
        "data": {"name": "rotated-digits", "domains": ["rot0", "rot45"], "shots": 4},
        "rounds": 1,
        "methods": [{"name": "from-elsewhere", "file": str(path)}],
    }
    monkeypatch.setenv("FEDLENS_STATE", str(tmp_path / "their state"))
    store = Store(db)
    registry.load_file(path)
    store.experiments.create(parse(content))
    (tmp_path / "elsewhere.toml").write_text(dumps(parse(content)))
    (tmp_path / "has run").unlink()
    monkeypatch.setenv("FEDLENS_STATE", str(tmp_path / "state"))
    monkeypatch.setattr(consent, "_THIS_PROCESS", set())
    yield path
    registry._METHODS.pop("from-elsewhere", None)
    registry._FILES.pop("from-elsewhere", None)


def test_the_page_asks_before_it_runs_a_file(open_page: Opened, file: Path, tmp_path: Path) -> None:
    app = open_page("new", clone="1")
    assert any("**Run elsewhere" in element.value for element in app.markdown)
    assert button(app, "Launch").disabled
    assert not (tmp_path / "has run").exists()
    app = button(app, "I have read it: run it").click().run()
    assert not app.exception
    assert (tmp_path / "has run").exists()
    assert not button(app, "Launch").disabled
    assert not any("**Run elsewhere" in element.value for element in app.markdown)


def test_a_method_file_is_added_once_the_user_has_agreed_to_run_it(
    open_page: Opened, file: Path, tmp_path: Path
) -> None:
    registry._METHODS.pop("from-elsewhere")
    app = open_page("new", preset="demo")
    app = widget(app, "Python file on this machine", "text_input").set_value(str(file)).run()
    assert not (tmp_path / "has run").exists()
    app = button(app, "I have read it: run it").click().run()
    assert (tmp_path / "has run").exists()
    app = next(b for b in app.button if b.label.startswith("Add Zero")).click().run()
    assert not app.exception and "from-elsewhere" in widget(app, "Methods").value
    button(app, "Launch").click().run()
    added = Store(tmp_path / "runs.db").experiments.get(2).config.methods[-1]
    assert (added.name, added.file) == ("from-elsewhere", str(file))


def test_the_command_line_asks_only_a_person(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment = str(tmp_path / "elsewhere.toml")
    monkeypatch.setattr("sys.stdin.isatty", lambda: False)
    assert main(["data", "partition", experiment]) == 2
    assert f"name it with --methods {file}" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("typer.confirm", lambda question, err: False)
    assert main(["data", "partition", experiment]) == 2
    assert not (tmp_path / "has run").exists()
    capsys.readouterr()
    monkeypatch.setattr("typer.confirm", lambda question, err: "This file runs" in question)
    assert main(["data", "partition", experiment]) == 0
    assert f"note: {file} (SHA-256 " in capsys.readouterr().err
    monkeypatch.setattr("typer.confirm", lambda question, err: pytest.fail("asked twice"))
    assert main(["data", "partition", experiment]) == 0


def test_naming_a_file_is_agreeing_to_it(file: Path, tmp_path: Path) -> None:
    assert main(["data", "partition", str(tmp_path / "elsewhere.toml"), "--methods", str(file)]) == 0
    assert consent.is_agreed(file, registry.file_hash(file))


BUILT_IN = [n for n, c in registry.load_all().items() if c.__module__.startswith("fedcore.methods.")]


def test_every_method_has_its_text():
    for name in BUILT_IN:
        text = guide(name)
        assert len(text) > 100, name
        for left in ("<!--", "](", "| field |", "\n## ", f"Name: `{name}`"):
            assert left not in text, name
        assert registry.get(name).about.summary not in text, "the form says that already"


def test_a_method_without_a_page_has_no_text():
    assert guide("my-method") == ""
    assert guide("index") == "", "the page of what is common is no method's"
