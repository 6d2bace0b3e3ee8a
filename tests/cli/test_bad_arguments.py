"""The command line refuses bad input in one line that names the field."""

import pytest
import typer
from typer.testing import CliRunner

from fedcore.store import Store
from tests.support.command_line import run
from tools.benchmarks import browser


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (
            ('name = "fedot"', 'name = "fedott"'),
            "error: methods.0.name: unknown method 'fedott'; did you mean 'fedot'?",
        ),
        (("lr = 0.01", "lr = -1"), "error: methods.0.config.lr: "),
        (("seeds = [1]", "seeds = ["), "is not valid TOML"),
        (
            ("[backbone]", '[partition]\nkind = "iid"\nclients = 9999\n\n[backbone]'),
            "error: partition.clients: ",
        ),
        (('name = "mini-vit"', 'name = "ViT-B-32"\npretrained = "none.pt"'), "error: backbone.pretrained: "),
    ],
)
def test_bad_input_is_one_line_naming_the_field_and_records_nothing(db, toml, capsys, change, line):
    toml.write_text(toml.read_text().replace(*change))
    assert run("run", toml, "--db", db) == 2
    out, err = capsys.readouterr()
    assert line in err
    assert err.startswith("error: ") and err.count("\n") == 1 and out == ""
    assert not db.exists() or Store(db).experiments.all() == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run"], "give either an experiment file or --preset NAME"),
        (["run", "none.toml"], "cannot read none.toml"),
        (["run", "x.toml", "--demo"], "give either an experiment file or --preset NAME"),
        (["list"], "no database at"),
        (["stop", "9"], "no database at"),
        (
            ["stop", "seven"],
            "id: 'seven' is not the id of a run; `fedlens list` shows ids, --experiment takes",
        ),
        (["show", "@last"], "no database at"),
        (["show", "FedOT"], "id: 'FedOT' is not the id of a run; `fedlens list` shows ids"),
        (["rank", "--metric", "best"], "metric: no metric 'best'; choose one of generalisation, "),
        (
            ["export", "x", "-o", "x.xlsx"],
            "output: no format belongs to '.xlsx'; end the name with .csv, .tex, .json",
        ),
        (["methods", "fedott"], "did you mean 'fedot'?"),
        (["methods", "--methods", "none.py"], "no Python file at"),
        (["data", "check", "/nowhere"], "/nowhere"),
        (["data", "check", "x.csv", "--columns", "label"], "columns: 'label' names no column"),
        (["data", "encode", "shapez"], "unknown data set 'shapez'; did you mean 'shapes"),
        (["import", "none.csv", "--experiment", "x"], "cannot read none.csv"),
        (["merge", "none.db"], "no database at"),
    ],
)
def test_bad_arguments(db, monkeypatch, capsys, arguments, message):
    monkeypatch.setenv("FEDLENS_DB", str(db))
    assert run(*arguments) == 2
    err = capsys.readouterr().err
    assert message in err and err.startswith("error: ") and err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["bogus"],
        ["run", "--scale", "tiny"],
        ["data"],
        ["data", "check", "X", "--precision", "bf16"],  # an option of data encode
    ],
)
def test_arguments_that_do_not_parse_are_one_line_too(arguments, capsys):
    assert run(*arguments) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ") and "; see `fedlens" in err and err.count("\n") == 1


def test_debug_shows_the_traceback(db, capsys):
    assert run("run", "none.toml", "--db", db, "--debug") == 2
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["queue", "--move", "up"], "id: name the runs to move"),
        (["run", "--demo", "--no-worker"], "no-worker: --no-worker needs --queue"),
        (["run", "--demo", "--dry-run", "--queue"], "dry-run: a dry run neither trains nor queues"),
        (["run", "--demo", "--queue", "--json"], "json: --queue prints no table"),
        (["methods", "fedot", "--json"], "json: the hyper-parameters of a method are printed as TOML"),
        (["presets", "--write", "x", "--json"], "json: --write writes TOML files"),
        (["published", "--coverage", "--evidence"], "evidence: --coverage and --evidence are two tables"),
        (["worker", "--over", "2", "--slots", "2"], "over: with --over a run takes whole devices"),
        (["worker", "--shared", "/tmp"], "shared: --shared needs --ray"),
        (["export", 1, "--table", "rounds", "--baseline", "FedOT"], "baseline: only the summary compares"),
        (["export", 1, "--test", "wilcoxon"], "test: name the method to test against with --baseline"),
        (["report", 1, "-o", "-"], "output: this is not a text to print; name a new folder"),
        (["bundle", 1, "-o", "-"], "output: this is not a text to print; name a file"),
        (["backup", "-"], "target: this is not a text to print; name a new file"),
        (["presets", "--write", "-"], "write: this is not a text to print; name a folder"),
        (["import", "x.json", "--dataset", "pacs"], "dataset: leave this out"),
        (["data", "check", "/nowhere", "--root", "x"], "root: '/nowhere' is not a built-in data set"),
    ],
)
def test_an_option_without_an_effect_or_a_meaning_is_refused(db, capsys, arguments, line):
    Store(db).prepare()
    more = [] if arguments[0] in ("data", "methods", "presets") else ["--db", db]
    assert run(*arguments, *more) == 2
    assert capsys.readouterr().err.startswith(f"error: {line}")


def test_the_benchmark_of_pages_lists_the_pages_that_it_can_visit(tmp_path):
    tool, db = typer.Typer(), tmp_path / "large.db"
    tool.command()(browser.main)
    db.touch()
    found = CliRunner().invoke(tool, [str(db), "wrongkey"])
    assert found.exit_code == 2 and "no page 'wrongkey'" in found.output
