"""Tables: aligned on a terminal, CSV in a pipe, JSON on request; and what is printed of one run."""

import csv
import json
import sys
from pathlib import Path

import pytest

from fedcore.cli.terminal import print_table
from fedcore.jobs import forecast, handlers
from fedcore.results.leaderboard import board, board_settings
from fedcore.store import Store
from tests.cli.test_cli import COMMANDS
from tests.support import fake_engine, fill
from tests.support.command_line import TOML, run

ROWS = [
    {"place": "a", "name": "one", "value": 0.5, "n": 1, "empty": None},
    {"place": "a", "name": "three", "value": None, "n": 12, "empty": ""},
    {"place": "b", "name": "=two", "value": 0.00012, "n": 3},
]


def test_on_a_terminal_numbers_are_to_the_right_and_equal_columns_become_headings(capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    print_table(ROWS, False, under=("place",))
    assert capsys.readouterr().out.splitlines() == [
        "place: a",
        "  name   value   n",
        "  one     0.50   1",
        "  three         12",
        "place: b",
        "  name    value  n",
        "  =two  0.00012  3",
    ]


def test_in_a_pipe_it_is_csv_without_formulas_and_with_all_digits(capsys):
    print_table(ROWS, False, under=("place",))
    head, *_, last = csv.reader(capsys.readouterr().out.splitlines())
    assert head == ["place", "name", "value", "n", "empty"]
    assert last == ["b", "'=two", "0.00012", "3", ""]
    print_table([], False)
    assert capsys.readouterr().out == ""


def test_json_has_an_object_per_row_and_escapes_what_a_terminal_obeys(capsys):
    print_table([{"name": "\x1b\x9b\u202e"}, *ROWS], True)
    out = capsys.readouterr().out
    assert out.isascii() and "\x1b" not in out
    assert json.loads(out)[1:] == ROWS
    print_table([], True)
    assert json.loads(capsys.readouterr().out) == []


@pytest.fixture
def trained(db: Path, toml: Path, fake: None, capsys: pytest.CaptureFixture[str]) -> Path:
    """Three seeds of two methods, all done."""
    assert run("run", toml, "--seed", 1, 2, 3, "--db", db) == 0
    capsys.readouterr()
    return db


WITH_JSON = {
    "checkpoints": (),
    "data list": (),
    "data partition": ("--preset", "demo"),
    "flops": ("--preset", "demo"),
    "list": (),
    "methods": (),
    "papers list": (),
    "presets": (),
    "published": ("--preset", "fedot/table1-pacs"),
    "queue": (),
    "rank": (),
    "run": ("--demo", "--dry-run"),
    "show": ("1",),
    "tasks": (),
}


def test_every_command_that_prints_a_table_prints_it_as_json(trained, capsys):
    offered = {name for name, command in COMMANDS.items() if any("--json" in p.opts for p in command.params)}
    assert offered == {*WITH_JSON, "data check"}, "which prints a report"
    for name in offered & WITH_JSON.keys() - {"flops"}:  # which trains
        has_db = any("--db" in p.opts for p in COMMANDS[name].params)
        given = (*name.split(), *WITH_JSON[name], *(("--db", trained) if has_db else ()))
        assert run(*given, "--json") == 0
        table = json.loads(capsys.readouterr().out)
        assert run(*given) == 0
        _, *lines = csv.reader(capsys.readouterr().out.splitlines()) if table else [()]
        assert name == "show" or len(lines) == len(table), name


def test_a_run_is_shown_with_what_differs_from_the_defaults(trained, capsys):
    assert run("show", "1", "--json", "--db", trained) == 0
    (facts,) = json.loads(capsys.readouterr().out)
    assert (facts["run"], facts["state"], facts["method.config.lr"]) == (1, "done", 0.01)
    assert "method.config.blocks" not in facts, "a default"
    row = Store(trained).runs.get([1])[0]
    assert facts["accuracy"] == pytest.approx(100 * row.last_test, abs=0.005)
    assert run("show", "@last", "--db", trained) == 0
    fields = dict(csv.reader(capsys.readouterr().out.splitlines()))
    assert (fields["run"], fields["label"]) == ("6", "Zero-shot CLIP")


def test_a_run_that_failed_says_how_to_go_on_and_its_log_ends_with_the_error(
    db, toml, fake, monkeypatch, capsys
):
    def fails(run, **options):
        yield from fake_engine.train(run, **options)
        raise ZeroDivisionError("no luck")

    monkeypatch.setattr(handlers, "load_engine", lambda: fails)
    assert run("run", toml, "--db", db) == 1
    capsys.readouterr()
    assert run("show", 1, "--db", db) == 0
    out, err = capsys.readouterr()
    assert "remark,ZeroDivisionError: no luck" in out
    assert f"next: `fedlens resume 1 --db {db}` queues it again" in err
    assert f"`fedlens log 1 --db {db}` has the traceback" in err
    assert run("log", 1, "--db", db) == 0
    out, err = capsys.readouterr()
    assert "round 2" in out and out.rstrip().endswith("ZeroDivisionError: no luck")
    assert out.count("Traceback") == 1 and err == f"file: {Store(db).runs.log_path(1)}\n"


def test_the_newest_run_of_none_is_refused(db, capsys):
    Store(db).prepare()
    assert run("show", "@last", "--db", db) == 2
    assert capsys.readouterr().err == "error: id: there is no run yet; `fedlens run --demo` trains some\n"


def test_a_run_without_a_log_says_why(db, capsys):
    fill.done(db, fill.an_experiment("Elsewhere", methods=("zero-shot",), seeds=(1,), rounds=1))
    assert run("log", 1, "--db", db) == 2
    assert "error: run: run 1 has no log here" in capsys.readouterr().err


def test_methods_are_ranked_as_on_the_page(trained, tmp_path, capsys):
    assert run("rank", "--json", "--db", trained) == 0
    out, err = capsys.readouterr()
    rows = json.loads(out)
    assert [(row["label"], row["n"]) for row in rows] == [("FedOT", 3), ("Zero-shot CLIP", 3)]
    assert {row["setting"] for row in rows} == {"rotated-digits · by domain · mini-vit · 2 rounds"}
    store = Store(trained)
    (setting,) = board_settings(store, store.runs.of_experiments([1]))
    made = board(store, setting, "personal")
    assert [row["rank"] for row in rows] == [made.rank_text(row) for row in made.rows]
    assert made.finding in err
    other = tmp_path / "other.toml"
    shapes = TOML.format(rounds=2).replace("[backbone]", '[data]\nname = "shapes"\n\n[backbone]')
    other.write_text(shapes.replace("From a file", "Other"))
    run("run", other, "--db", trained)
    capsys.readouterr()
    assert run("rank", "Other", "--json", "--db", trained) == 0
    out, err = capsys.readouterr()
    assert {row["setting"].split()[0] for row in json.loads(out)} == {"shapes", "Mean"}, "over data sets"
    assert "a decisive ranking needs: FedOT on seeds 2 and 3" in err


def test_a_dry_run_forecasts_and_records_nothing(db, toml, fake, capsys):
    assert run("run", toml, "--seed", 1, 2, "--dry-run", "--db", db) == 0
    out, err = capsys.readouterr()
    assert [line.split(",")[0] for line in out.splitlines()[1:]] == ["FedOT", "Zero-shot CLIP"] * 2
    assert "plan: 2 methods x 2 seeds = 4 runs, 2 rounds" in err and "the time is unknown" in err
    assert not db.exists()
    toml.write_text(toml.read_text().replace("lr = 0.01", "lr = -1"))
    assert run("run", toml, "--dry-run", "--db", db) == 2
    assert "error: methods.0.config.lr: " in capsys.readouterr().err


def test_a_dry_run_warns_of_a_full_disk(db, toml, monkeypatch, capsys):
    monkeypatch.setattr(forecast, "lack_of_room", lambda *_: "The runs write about 1 GB")
    assert run("run", toml, "--dry-run", "--db", db) == 0
    assert "note: The runs write about 1 GB" in capsys.readouterr().err


def test_quiet_prints_results_and_errors_only(db, toml, fake, monkeypatch, capsys):
    assert run("run", toml, "--quiet", "--db", db) == 0
    out, err = capsys.readouterr()
    assert out.startswith("experiment,run,label") and err == ""

    def fails(run, **options):
        raise ZeroDivisionError("no luck")

    monkeypatch.setattr(handlers, "load_engine", lambda: fails)
    assert run("run", toml, "--quiet", "--db", db) == 1
    assert all(line.startswith("error: run ") for line in capsys.readouterr().err.splitlines())
    assert run("list", "--where", "seed = 9", "--db", db) == 0


def test_the_shell_can_complete_commands_and_options(monkeypatch, capsys):
    for words, found in (("fedlens sh", "show"), ("fedlens run --sc", "--scale")):
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
        monkeypatch.setenv("_FEDLENS_COMPLETE", "complete_bash")
        with pytest.raises(SystemExit):
            run()
        assert found in capsys.readouterr().out.split()
