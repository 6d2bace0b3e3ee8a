import csv
import io
import json
import re
import signal
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from typer.core import TyperCommand
from typer.main import get_command

from fedcore.base.events import RoundFinished
from fedcore.base.files import PROJECT
from fedcore.cli import common
from fedcore.cli import main as cli
from fedcore.jobs import handlers
from fedcore.methods import FedLensMethodError, registry
from fedcore.store import Store
from fedcore.store.liveness import new_owner
from tests.support import fake_engine, fill
from tests.support.command_line import TOML, run
from tests.support.jobs import wait_for
from tests.support.many import copies


def commands() -> dict[str, TyperCommand]:
    """Every command by its words: ``run``, ``data check``..."""
    top = get_command(cli.application).commands
    below = {f"{name} {inner}": c for name in top for inner, c in getattr(top[name], "commands", {}).items()}
    return {name: c for name, c in top.items() if not hasattr(c, "commands")} | below


COMMANDS = commands()
DOCUMENTED = (PROJECT / "docs" / "cli.md").read_text() + (PROJECT / "README.md").read_text()


def test_every_command_and_option_is_documented():
    for name in [name for name, command in COMMANDS.items() if not command.hidden]:
        assert f"fedlens {name}" in DOCUMENTED, f"describe {name} in docs/cli.md"
        for param in COMMANDS[name].params:
            for option in [o for o in param.opts if o.startswith("--") and not param.hidden]:
                assert option in DOCUMENTED, f"{name} {option}"
            for choice in param.type_descriptor.choices or ():
                assert re.search(rf"\b{re.escape(str(choice))}\b", DOCUMENTED), f"{name} {choice}"


def test_every_command_has_a_help(capsys):
    for name in COMMANDS:
        assert run(*name.split(), "--help") == 0
        out = capsys.readouterr().out
        assert f"Usage: fedlens {name}" in out and "--debug" in out and "--methods" in out, name


def test_the_list_of_commands_cuts_no_sentence_off(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert run("--help") == 0
    out = capsys.readouterr().out
    assert "\n  report " in out
    listed = out.partition("Commands:")[2]
    assert [line for line in listed.splitlines() if line.endswith("...")] == []


def test_the_version_names_the_libraries(capsys):
    assert run("--version") == 0
    assert re.match(r"FedLens \d+\.\d+\.\d+ \(Python [\d.]+, torch ", capsys.readouterr().out)


def test_documented_commands_exist():
    commands = set(COMMANDS) | {name.split()[0] for name in COMMANDS}
    assert set(re.findall(r"^fedlens ([a-z]+)", DOCUMENTED, re.MULTILINE)) <= commands
    assert {
        f"data {word}" for word in re.findall(r"^fedlens data ([a-z]+)", DOCUMENTED, re.MULTILINE)
    } <= commands


def test_run_trains_here_and_reports(db, toml, fake, capsys):
    assert run("run", toml, "--db", db) == 0
    out, err = capsys.readouterr()
    head, first, _ = csv.reader(out.splitlines())
    ended = dict(zip(head, first, strict=True))
    assert (ended["label"], ended["state"], ended["accuracy_of_round"]) == ("FedOT", "done", "2")
    assert 0 < float(ended["accuracy"]) < 100
    assert "round 2" in err  # no terminal: a line per round
    (row,) = Store(db).experiments.all()
    assert [(r.state, r.rounds_done, r.attempt) for r in row.runs] == [("done", 2, 1)] * 2
    assert Store(db).runs.config(1).method.config["blocks"] == 1  # the whole config is stored, defaults too


def test_seeds_of_the_command_line_win(db, toml, fake):
    assert run("run", toml, "--db", db, "--seed", 4, 5) == 0
    (row,) = Store(db).experiments.all()
    assert [r.seed for r in row.runs] == [4, 4, 5, 5]
    assert row.config.seeds == (4, 5)


def test_a_failed_run_is_exit_status_1_and_the_others_are_done(db, toml, fake, monkeypatch, capsys):
    def sometimes(run, **options):
        if run.method.name == "fedot":
            raise ZeroDivisionError("no luck")
        yield from fake_engine.train(run, **options)

    monkeypatch.setattr(handlers, "load_engine", lambda: sometimes)
    assert run("run", toml, "--db", db) == 1
    assert "error: run 1: ZeroDivisionError: no luck" in capsys.readouterr().err
    assert [r.state for r in Store(db).runs.of_experiments([1])] == ["failed", "done"]


@pytest.mark.parametrize("rounds", [0, 1])
def test_an_experiment_of_which_nothing_was_trained_is_not_kept(db, toml, fake, monkeypatch, capsys, rounds):
    def fails(run, **options):
        for event in fake_engine.train(run, **options):
            if isinstance(event, RoundFinished) and event.round > rounds:
                raise FedLensMethodError("own.py:3, in init: it returns a dict")
            yield event

    monkeypatch.setattr(handlers, "load_engine", lambda: fails)
    assert run("run", toml, "--db", db) == 1
    told = capsys.readouterr().err
    assert "error: run 1: own.py:3, in init: it returns a dict" in told
    assert ("nothing was trained, so the experiment was deleted" in told) == (rounds == 0)
    assert len(Store(db).experiments.all()) == rounds


def test_the_accuracy_of_a_run_that_ended_early_has_the_round_in_which_it_was_measured(
    db, toml, fake, monkeypatch, capsys
):
    def not_evaluated_at_last(run, **options):
        for event in fake_engine.train(run, **options):
            if isinstance(event, RoundFinished) and event.round == 2:
                yield replace(event, cells=())
                raise ZeroDivisionError("no luck")
            yield event

    monkeypatch.setattr(handlers, "load_engine", lambda: not_evaluated_at_last)
    assert run("run", toml, "--db", db) == 1
    assert [r.rounds_done for r in Store(db).runs.of_experiments([1])] == [2, 2]
    assert [line.split(",")[-1] for line in capsys.readouterr().out.splitlines()] == [
        "accuracy_of_round",
        "1",
        "1",
    ]


def test_queue_leaves_the_runs_to_the_worker(db, toml, monkeypatch, capsys):
    started = []
    monkeypatch.setattr("fedcore.jobs.ensure_worker", started.append)
    assert run("run", toml, "--db", db, "--queue") == 0
    assert capsys.readouterr().out == "experiment 1: 2 runs queued\n"
    assert Store(db).queue.ids() == [1, 2]
    assert [store.path for store in started] == [db]
    assert run("run", toml, "--db", db, "--queue", "--no-worker") == 0
    assert run("stop", "1", "--db", db) == 0
    assert run("resume", "1", "--no-worker", "--db", db) == 0
    assert len(started) == 1, "no other was started"
    capsys.readouterr()
    for device, waits in (("cpu", False), ("gpu7", True)):
        assert run("run", toml, "--db", db, "--queue", "--device", device) == 0
        said = capsys.readouterr().err
        assert ("no worker of this machine has a device 'gpu7'" in said) is waits


def test_a_device_and_a_run_that_are_not_there_are_named(db, toml, capsys):
    """The device once ended every run, with the advice to look at the GPU's driver."""
    assert run("run", toml, "--db", db, "--device", "gpu7") == 2
    assert "device: no device 'gpu7' is in this machine; it has " in capsys.readouterr().err
    Store(db).prepare()
    assert not Store(db).queue.ids()
    assert run("checkpoints", "77", "--db", db) == 2
    assert "no run 77" in capsys.readouterr().err


def test_an_unexpected_error_is_one_line_and_no_success(db, capsys, monkeypatch):
    Store(db).prepare()
    monkeypatch.setattr("fedcore.store.experiments.Experiments.listed", lambda *a, **k: 1 / 0)
    assert run("list", "--db", db) == 1
    assert capsys.readouterr().err == "error: ZeroDivisionError: division by zero; --debug shows where\n"


def test_a_list_of_damaged_numbers_says_so(db, capsys):
    """A flipped bit once changed an accuracy in the list without any warning."""
    fill.done(db, fill.an_experiment("Listed", methods=("zero-shot",), seeds=(1,), rounds=1))
    assert run("list", "--db", db) == 0
    assert capsys.readouterr().err == ""
    fill.alter(db, "UPDATE runs SET last_test=last_test/2 WHERE id=1")
    assert run("list", "--db", db) == 0
    printed = capsys.readouterr()
    assert "Listed" in printed.out
    assert printed.err.startswith(
        f"warning: {db} is damaged (run 1: its summary is not that of its rounds), so numbers"
    )


def test_a_long_list_ends_after_the_newest(db, capsys):
    copies(db, 120)
    for arguments, number in (
        ((), 100),
        (("--all",), 122),
        (("The first",), 1),
        (("--where", "rounds = 2"), 122),
    ):
        assert run("list", *arguments, "--db", db) == 0
        printed = capsys.readouterr()
        assert len({row["experiment"] for row in csv.DictReader(io.StringIO(printed.out))}) == number
        note = "note: 22 older experiments not listed; --all lists all of them\n"
        assert printed.err == (note if number == 100 else "")


def test_published_values_need_no_database(db, capsys):
    assert run("published", "--preset", "fedot/table1-office-home", "--db", db) == 0
    assert capsys.readouterr().out.startswith("table,dataset,setting,") and not db.exists()


def test_list_stop_and_resume(db, toml, monkeypatch, capsys):
    monkeypatch.setattr("fedcore.jobs.ensure_worker", lambda db: None)
    run("run", toml, "--db", db, "--queue")
    assert run("stop", 1, "--db", db) == 0
    assert run("stop", 1, "--db", db) == 1
    assert "run 1 is neither queued nor running" in capsys.readouterr().err
    assert run("stop", "--experiment", 1, "--db", db) == 0  # run 2 was stopped, run 1 had been
    assert run("stop", "--experiment", 1, "--db", db) == 1
    assert run("resume", "--experiment", 1, "--db", db) == 0
    assert run("resume", "--experiment", 1, "--db", db) == 0
    assert "nothing to resume" in capsys.readouterr().out
    Store(db).jobs.claim(new_owner(), "cpu").finish("failed", "no luck")
    assert run("resume", 1, "--restart", "--db", db) == 0
    Store(db).jobs.claim(new_owner(), "cpu").finish("failed", "no luck")
    capsys.readouterr()
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert run("list", "--db", db) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"experiment: 1  name: From a file  begun: \d{4}-\d\d-\d\d \d\d:\d\d", head)
    assert lines == [
        "  run  label           seed  state   rounds_done  rounds_total  remark",
        "    1  FedOT              1  failed            0             2  no luck",
        "    2  Zero-shot CLIP     1  queued            0             2",
    ]
    assert run("stop", 77, "--db", db) == 2
    assert run("stop", 2, "--kill", "--db", db) == 2
    assert "stop it first" in capsys.readouterr().err


def test_a_warning_of_the_plan_is_printed_once_and_kept_in_the_log_of_each_run(db, tmp_path, capsys):
    toml = tmp_path / "two-seeds.toml"
    config = 'rounds = 1\nseeds = [1, 2]\n[data]\nname = "rotated-digits"\nshots = 2\ndomains = ["rot0"]\n'
    toml.write_text(f'name = "Slow"\n{config}[[methods]]\nname = "promptfl"\n')
    assert run("run", toml, "--db", db) == 0
    assert capsys.readouterr().err.count("learning rate 0.001 suits full-size models") == 1
    logs = [Store(db).runs.log_path(i).read_text() for i in (1, 2)]
    assert all("learning rate 0.001 suits full-size models" in log for log in logs)
    toml.write_text(f'name = "Base"\n{config}training_classes = "base"\n[[methods]]\nname = "fedakt"\n')
    assert run("run", toml, "--db", db) == 0
    said = capsys.readouterr()
    assert (said.out + said.err).count("no value on new classes: ") == 1
    logs = [Store(db).runs.log_path(i).read_text() for i in (3, 4)]
    assert all("no value on new classes: " in log for log in logs)


def test_export_prints_or_writes(db, toml, fake, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run("run", toml, "--db", db)
    capsys.readouterr()
    assert run("export", 1, "--db", db) == 0
    printed = capsys.readouterr().out
    assert "FedOT" in printed and printed.count("\n") > 2
    for command in (("export", 1), ("export", 1, "--table", "leaderboard")):
        assert run(*command, "--db", db) == 0
        by_default = capsys.readouterr().out
        assert run(*command, "--db", db, "-o", "-") == 0
        assert capsys.readouterr().out == by_default and not Path("-").exists(), command
        assert run(*command, "--db", db, "-o", "./-") == 0, "which names a file"
        assert Path("-").read_text() == by_default and not capsys.readouterr().out
        Path("-").unlink()
    for table, kind in (
        *((table, "csv") for table in ("domains", "configs", "breakdowns", "costs", "rounds", "clients")),
        ("summary", "latex"),
        ("summary", "json"),
        ("experiment", "json"),
    ):
        target = tmp_path / f"out.{kind}"
        assert run("export", 1, "--db", db, "--table", table, "--format", kind, "-o", target) == 0
        assert "FedOT" in target.read_text()
    assert capsys.readouterr().out == ""
    assert run("export", 1, "--db", db, "--table", "rounds", "--format", "latex") == 2
    assert run("export", 8, "--db", db) == 2
    assert run("export", 1, "--db", db, "--decimals", "1") == 2
    folder = tmp_path / "results"
    folder.mkdir()
    assert run("export", 1, "--db", db, "--format", "latex", "-o", folder) == 0
    assert re.fullmatch(r"fedlens-from-a-file-summary-\d{8}-[0-9a-f]{8}\.tex", next(folder.iterdir()).name)
    assert run("export", 1, "--db", db, "-o", tmp_path / "no" / "folder.csv") == 2
    assert "choose another file" in capsys.readouterr().err


def test_an_export_goes_where_its_name_says_and_in_that_format(db, toml, fake, tmp_path):
    run("run", toml, "--db", db)
    for name, begins in (("x.tex", "%"), ("x.json", "{"), ("x.csv", "row,"), ("x", "row,")):
        assert run("export", 1, "--db", db, "-o", tmp_path / name) == 0
        assert (tmp_path / name).read_text().lstrip().startswith(begins), name
    assert run("export", 1, "--db", db, "--format", "csv", "-o", tmp_path / "y.tex") == 0
    assert (tmp_path / "y.tex").read_text() == (tmp_path / "x.csv").read_text(), "--format decides"
    assert run("export", 1, "--db", db, "--table", "experiment", "-o", tmp_path / "all") == 0
    assert json.loads((tmp_path / "all").read_text())
    assert run("export", 1, "--db", db, "-o", f"{tmp_path}/new/results/") == 0
    assert [f.suffix for f in (tmp_path / "new" / "results").iterdir()] == [".csv"]


def test_an_experiment_is_named_by_its_id_its_name_or_as_the_last(db, toml, fake, tmp_path, capsys):
    other = toml.with_name("other.toml")
    other.write_text(toml.read_text().replace('name = "From a file"', 'name = "Other"'))
    run("run", toml, "--db", db)
    run("run", other, "--db", db)
    assert capsys.readouterr().err.endswith(f"next: fedlens export 2 --db {db}\n")
    for same in ((1, "From a file"), (2, "Other", "@last")):
        assert len({run("export", name, "--db", db) or capsys.readouterr().out for name in same}) == 1
    assert run("list", "Other", "--db", db) == 0
    assert "From a file" not in capsys.readouterr().out
    assert run("delete", "--experiment", "@last", "--yes", "--db", db) == 0
    assert [row.name for row in Store(db).experiments.all()] == ["From a file"]
    assert run("export", "Other", "--db", db) == 2
    run("run", toml, "--db", db)
    assert run("export", "From a file", "--db", db) == 2
    said = capsys.readouterr().err
    assert "no experiment 'Other'" in said and "called 'From a file': 1, 3; give the id of one" in said


def test_a_method_file_that_an_export_does_not_need_is_refused(db, toml, fake, capsys, monkeypatch):
    run("run", toml, "--db", db)
    for table in ("_METHODS", "_FILES"):  # so that no other test meets the method
        monkeypatch.setattr(registry, table, dict(getattr(registry, table)))
    assert run("export", 1, "--db", db, "--methods", PROJECT / "examples" / "ditto.py") == 2
    assert "methods: " in (said := capsys.readouterr().err) and "defines ditto, which these" in said


def test_a_terminal_gets_a_table_and_a_pipe_csv(db, toml, fake, capsys, monkeypatch):
    run("run", toml, "--db", db)
    capsys.readouterr()
    monkeypatch.setattr(common.sys.stdout, "isatty", lambda: True, raising=False)
    assert run("export", 1, "--db", db) == 0
    head, first, *_ = capsys.readouterr().out.splitlines()
    assert head.split() == ["data", "label", "metric", "mean", "n"] and first.index("FedOT") == head.index(
        "label"
    )


def test_without_arguments_it_says_what_to_do_next(capsys):
    assert run() == 0
    out = capsys.readouterr().out
    for command in re.findall(r"^  fedlens (\w+)", out, re.MULTILINE):
        assert command in COMMANDS
    assert len(out.splitlines()) == 10


def test_a_full_disk_keeps_no_part_of_an_export(db, toml, fake, small_disk, capsys, monkeypatch):
    monkeypatch.setattr("fedcore.share.folder.figure_files", lambda figure: {"pdf": b"a figure"})
    run("run", toml, "--db", db)
    old = small_disk.path / "old.csv"
    old.write_text("what was there")
    small_disk.fill()
    there = set(small_disk.path.iterdir())
    for command in (
        ("export", 1, "-o", old),
        ("export", 1, "-o", f"{small_disk.path}/new/"),
        ("report", 1, "-o", small_disk.path / "page.html"),
        ("report", 1, "-o", small_disk.path / "folder"),
    ):
        capsys.readouterr()
        assert run(*command, "--db", db) == 2
        assert "No space left on device; choose another" in capsys.readouterr().err
    small_disk.empty()
    left = {path for path in small_disk.path.rglob("*") if path.is_file()}
    assert left == {path for path in there if path.name != "filler"}
    assert old.read_text() == "what was there"


def test_runs_and_experiments_are_deleted_when_confirmed(db, toml, fake, capsys, monkeypatch):
    run("run", toml, "--db", db, "--seed", "1")
    run("run", toml, "--db", db, "--seed", "1")
    store = Store(db)
    first, second, *others = (r.id for r in store.runs.of_experiments([1, 2]))
    folder = store.runs.folder(second)
    assert folder.is_dir()
    capsys.readouterr()
    assert run("delete", second, "--db", db) == 2
    said = capsys.readouterr()
    assert (
        f"run {second} " in said.out and "nothing was deleted: 1 run; confirm it, or give --yes" in said.err
    )
    assert [r.id for r in store.runs.of_experiments([1, 2])] == [first, second, *others]
    assert run("delete", second, "--yes", "--db", db) == 0
    assert capsys.readouterr().out.endswith("deleted: 1 run\n") and not folder.exists()
    assert run("delete", first, "--yes", "--db", db) == 2
    assert "experiment 1 would have no runs; delete the experiment" in capsys.readouterr().err
    assert run("delete", 77, "--yes", "--db", db) == 2
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    sys.stdin.isatty = lambda: True
    assert run("delete", "--experiment", 1, "--db", db) == 0
    assert capsys.readouterr().out.endswith("deleted: 1 experiment with 1 run\n")
    monkeypatch.setattr(sys, "stdin", io.StringIO("n\n"))
    sys.stdin.isatty = lambda: True
    assert run("delete", "--experiment", 2, "--db", db) == 1
    assert capsys.readouterr().err.endswith("note: nothing was deleted\n")
    assert [e.id for e in store.experiments.all()] == [2]


def test_a_running_run_is_not_deleted(db, capsys):
    fill.mixed(db)
    (live,) = (r for r in Store(db).runs.of_experiments([1]) if r.status == "running")
    assert run("delete", live.id, "--yes", "--db", db) == 2
    assert run("delete", "--experiment", 1, "--yes", "--db", db) == 2
    assert f"run {live.id} is running; stop it first" in capsys.readouterr().err
    assert len(Store(db).runs.of_experiments([1])) > 1


def test_import_and_merge(db, tmp_path, capsys):
    file = tmp_path / "results.csv"
    file.write_text("method,seed,round,model,test_set,correct,total\nmine,1,1,a,a,3,4\n")
    assert run("import", file, "--experiment", "Mine", "--db", db) == 0
    assert run("import", file, "--experiment", "Mine", "--db", db) == 2
    target = tmp_path / "other.db"
    assert run("merge", db, "--db", target) == 0
    assert run("merge", db, "--db", target) == 0
    out = capsys.readouterr().out
    assert out.endswith("added: Mine\nalready here, left unchanged: Mine\n")
    assert [e.name for e in Store(target).experiments.all()] == ["Mine"]


def test_an_experiment_travels_as_json(db, toml, fake, tmp_path, capsys):
    run("run", toml, "--db", db)
    file, target = tmp_path / "experiment.json", tmp_path / "other.db"
    assert run("export", 1, "--db", db, "--table", "experiment", "--format", "json", "-o", file) == 0
    capsys.readouterr()
    assert run("import", file, "--db", target) == 0
    assert run("import", file, "--db", target) == 0
    assert capsys.readouterr().out == "added: From a file\nalready here, left unchanged: From a file\n"
    assert run("export", 1, "--db", db) == 0
    printed = capsys.readouterr().out
    assert run("export", 1, "--db", target) == 0
    assert capsys.readouterr().out == printed != ""
    (tmp_path / "results.csv").write_text("method,seed", "utf-8")
    assert run("import", tmp_path / "results.csv", "--db", target) == 2
    assert "experiment: name the experiment" in capsys.readouterr().err


def test_methods_lists_all_and_explains_one(capsys):
    assert run("methods") == 0
    out = capsys.readouterr().out
    assert all(name in out for name in ("fedot", "sdfed", "fedalign", "feddeap", "promptfl", "zero-shot"))
    assert run("methods", "fedot") == 0
    out = capsys.readouterr().out
    assert tomllib.loads(out)["blocks"] == 1
    assert len({line.index("  # ") for line in out.splitlines() if "  # " in line}) == 1, (
        "columns are aligned"
    )


def test_data_check_names_the_data_set_that_a_folder_is(tmp_path, capsys, monkeypatch):
    from PIL import Image

    folder = tmp_path / "mine" / "photo" / "dog"
    folder.mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(folder / "1.png")
    assert run("data", "check", tmp_path / "mine") == 0
    assert "this is" not in capsys.readouterr().out
    monkeypatch.setattr("fedcore.data.check.recognised", lambda report: "pacs")
    assert run("data", "check", tmp_path / "mine") == 0
    assert 'this is PACS, by its domains, classes and counts; in an experiment: name = "pacs"' in (
        capsys.readouterr().out
    )


def test_data_list_and_check(tmp_path, capsys):
    from PIL import Image

    assert run("data", "list") == 0
    assert "rotated-digits" in capsys.readouterr().out
    for domain in ("photo", "sketch"):
        for name in ("cat", "dog"):
            folder = tmp_path / "pets" / domain / name
            folder.mkdir(parents=True)
            Image.new("RGB", (8, 8)).save(folder / "1.png")
    assert run("data", "check", tmp_path / "pets") == 0
    out = capsys.readouterr().out
    assert out.startswith("4 images, 2 classes\n  photo") and "cat 1, dog 1" in out
    assert "1 group of identical images of different classes" in out
    assert run("data", "check", tmp_path / "pets", "--json") == 0
    assert json.loads(capsys.readouterr().out)["counts"] == [[1, 1], [1, 1]]
    (tmp_path / "pets" / "photo" / "cat" / "1.png").write_bytes(b"")
    assert run("data", "check", tmp_path / "pets" / "photo" / "cat") == 2
    printed = capsys.readouterr()
    assert "1 file of zero bytes (left out): 1.png" in printed.out
    assert "expected domain/class/image" in printed.err


def test_columns_decoding_and_precision_reach_the_data_commands(db, tmp_path, capsys):
    from PIL import Image

    for i in range(2):
        Image.new("RGB", (96, 96), (90 * i, 9, 9)).save(tmp_path / f"{i}.jpg")
    path = tmp_path / "list.csv"
    path.write_text("path,what\n0.jpg,owl\n1.jpg,dog\n")
    assert run("data", "check", path) == 2
    assert run("data", "check", path, "--columns", "label=what") == 0
    assert "2 images, 2 classes" in capsys.readouterr().out
    encode = ["data", "encode", "manifest", "--root", path, "--columns", "label=what", "--db", db]
    for more in ([], ["--decode", "draft"], ["--precision", "bf16"], ["--precision", "bf16"]):
        assert run(*encode, *more) == 0
    assert len(list((db.parent / "artifacts" / "encodings").glob("manifest-*.npy"))) == 3


def test_data_partition_shows_who_gets_what(toml, capsys):
    assert run("data", "partition", toml) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[0] == "held_out,client,samples,classes,entropy"
    assert "mean Jensen-Shannon distance" in err


def test_data_partition_shows_every_fold_of_leave_one_domain_out(tmp_path, capsys):
    file = tmp_path / "folds.toml"
    file.write_text(
        'held_out = ["each"]\n[data]\nname = "shapes"\n[[methods]]\nname = "fedot"\n', encoding="utf-8"
    )
    assert run("data", "partition", file) == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    domains = {row["held_out"] for row in rows}
    assert len(domains) > 2
    for held_out in domains:
        clients = {row["client"] for row in rows if row["held_out"] == held_out}
        assert domains - {held_out} <= clients and held_out not in clients


def test_a_read_only_database_is_refused_before_training(db, toml, monkeypatch, capsys):
    Store(db).prepare()
    monkeypatch.setattr("fedcore.store.Store.prepare", lambda store: f"{db} cannot be written")
    assert run("run", toml, "--db", db) == 2
    assert capsys.readouterr().err == f"error: db: {db} cannot be written\n"


IN_A_PROCESS = """
import sys
from fedcore.cli import main as cli
from fedcore.jobs import handlers
from tests.support import fake_engine
handlers.load_engine = lambda: fake_engine.train
sys.exit(cli.main(sys.argv[1:]))
"""


def test_ctrl_c_stops_cleanly(db, toml):
    """In a separate process: exit status 130, complete rounds only, and the waiting run never begins."""
    toml.write_text(TOML.format(rounds=100_000))
    Store(db).prepare()
    command = [sys.executable, "-c", IN_A_PROCESS, "run", str(toml), "--db", str(db)]
    with (db.parent / "errors.txt").open("w+") as errors:
        process = subprocess.Popen(command, cwd=PROJECT, stderr=errors)
        try:
            wait_for(lambda: any(r.rounds_done >= 2 for r in Store(db).runs.of_experiments([1])))
            process.send_signal(signal.SIGINT)
            assert process.wait(90) == 130, (db.parent / "errors.txt").read_text()
        finally:
            process.kill()
    first, second = Store(db).runs.of_experiments([1])
    assert (first.state, second.state, second.status_text) == (
        "stopped",
        "stopped",
        "stopped before it began",
    )
    assert Store(db).rounds.evaluated(first.id)[-1] == first.rounds_done >= 2
    assert Store(db).runs.resume([first.id]) == [first.id]


def test_a_pipe_that_closes_is_no_traceback():
    line = f"{sys.executable} -m fedcore methods | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], cwd=PROJECT, capture_output=True, text=True, timeout=60)
    assert "Traceback" not in done.stderr
