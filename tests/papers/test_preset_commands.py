"""The command line takes presets by name, lists them and writes them as files."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedcore import config
from fedcore.cli import main as cli
from fedcore.papers import experiments


def test_they_are_listed_by_name_and_title(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["presets"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["demo", *experiments.published()]
    mixed = next(line for line in lines if line.startswith("sdfed/table4-dtd "))
    assert mixed.endswith("SDFed, Table 4: DTD, mixed backbones")


def test_they_are_written_as_files_that_are_the_same_experiments(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    assert cli.main(["presets", "--write", str(folder)]) == 0
    for name in ["demo", *experiments.published()]:
        assert config.load(folder / f"{name}.toml") == experiments.preset(name)


def test_a_file_that_exists_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["presets", "fedot/table1-pacs", "--write", str(tmp_path)]
    assert cli.main(command) == 0
    file = tmp_path / "fedot" / "table1-pacs.toml"
    file.write_text("# edited")
    assert cli.main(command) == 2
    assert "exists; choose another folder" in capsys.readouterr().err
    assert file.read_text() == "# edited" and not (tmp_path / "demo.toml").exists()


def test_an_experiment_is_a_file_or_a_preset_and_not_both(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (
        ["run"],
        ["run", "mine.toml", "--preset", "demo"],
        ["published"],
        ["data", "partition"],
    ):
        assert cli.main(arguments) == 2
        assert "give either an experiment file or --preset NAME" in capsys.readouterr().err
    assert cli.main(["run", "--demo", "--preset", "fedot/table1-pacs"]) == 2
    assert cli.main(["run", "--preset", "fedot/table1-pac"]) == 2
    assert "did you mean 'fedot/table1-pacs" in capsys.readouterr().err


def test_a_preset_takes_its_data_from_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    db = str(tmp_path / "runs.db")
    missing = str(tmp_path / "no-such-folder")
    assert cli.main(["run", "--preset", "fedot/table1-pacs", "--db", db]) == 2
    assert "PACS needs its folder on this machine" in capsys.readouterr().err
    assert cli.main(["run", "--preset", "fedot/table1-pacs", "--root", missing, "--db", db]) == 2
    assert missing in capsys.readouterr().err


def test_a_preset_is_partitioned(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["data", "partition", "--preset", "demo"]) == 0
    assert "6 clients; label entropy" in capsys.readouterr().out
