"""What docs/runs-db.md tells people to type works on a database of FedLens."""

import re
import shlex
import sqlite3
from contextlib import closing
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner
from sqlite_utils.cli import cli

from fedcore.base.files import PROJECT
from fedcore.store import Store
from tests.support import fill
from tests.support.exported import exported

PAGE = (PROJECT / "docs/runs-db.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^sqlite-utils (runs\.db .*)$", PAGE, re.MULTILINE)


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("by_hand") / "runs.db"
    created, _ = fill.start(path, fill.an_experiment("Stopped", methods=("fedot",), seeds=(1,), rounds=1))
    Store(path).runs.stop(created.run_ids)
    fill.done(path, fill.an_experiment("Ours", methods=("fedot", "promptfl"), seeds=(1, 2), rounds=2))
    return path


@pytest.mark.parametrize("command", COMMANDS)
def test_a_query_of_the_page_gives_rows(db: Path, command: str) -> None:
    given = shlex.split(command.replace("run_id=1", "run_id=2"))
    done = CliRunner().invoke(cli, [str(db), *given[1:]])
    assert done.exit_code == 0 and len(done.output.splitlines()) > 2, done.output


def test_there_are_ten(db: Path) -> None:
    assert len(COMMANDS) == 10


def test_the_lines_for_pandas_run(db: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    (lines,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    monkeypatch.chdir(db.parent)
    exec(lines, {})
    assert "FedOT" in capsys.readouterr().out


def test_the_views_say_what_the_tables_hold(db: Path) -> None:
    with closing(sqlite3.connect(db)) as database:
        results = pd.read_sql("SELECT * FROM results", database)
        assert len(results) == database.execute("SELECT count(*) FROM accuracy").fetchone()[0] > 0
        own = results.query("split=='test' and stage=='after_aggregation' and model==test_set and round==2")
        means = (
            own[own.model_kind == "client"][own.test_set_kind == "client"].groupby("run_id").accuracy.mean()
        )
        stored = dict(database.execute("SELECT id, last_test FROM runs WHERE last_test IS NOT NULL"))
        assert means.to_dict() == pytest.approx(stored)
        assert results.finished.str.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ").all()
        for table, view in (("diagnostics", "diagnostics_named"), ("client_rounds", "client_rounds_named")):
            counts = [database.execute(f"SELECT count(*) FROM {t}").fetchone()[0] for t in (table, view)]
            assert counts[0] == counts[1] > 0


def test_every_foreign_key_names_its_column(db: Path) -> None:
    """Datasette answered /runs with HTTP 500, because it looks the column up by its name."""
    with closing(sqlite3.connect(db)) as database:
        tables = [row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type='table'")]
        keys = [tuple(key) for t in tables for key in database.execute(f"PRAGMA foreign_key_list({t})")]
    assert len(keys) == 10 and {key[4] for key in keys} == {"id"}


def test_diagnostics_are_exported_by_name(db: Path) -> None:
    head, first, *rest = exported(Store(db), [2], "diagnostics").splitlines()
    assert head.endswith("round,name,client_a,client_b,value")
    assert first == f"Ours,2,fedot,FedOT,1,,1,gradient_conflict,,,{0.2 + 0.01}" and len(rest) == 7
