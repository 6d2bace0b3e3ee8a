"""The report on ablations is written from recorded runs: figures checked by hand on a small database."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedcore import config
from fedcore.engine.events import Diagnostic, Entity, RoundFinished, Started
from fedcore.errors import FedLensError
from fedcore.store import Store
from fedcore.store.liveness import new_owner
from fedcore.store.run_writer import RunWriter
from scripts.docs import ablations as ablations_doc
from scripts.docs import blocks
from tests.support import fill

SMALL = """
name = "Small"
rounds = 1
seeds = [1, 2]
[data]
name = "rotated-digits"
[backbone]
name = "mini-vit"
[[methods]]
name = "fedot"
label = "FedOT, linear"
config = { local_transform = "linear" }
[[methods]]
name = "promptfl"
label = "PromptFL, plain"
"""
PAGE = """Kept above.

<!-- runs -->
old
<!-- end -->

<!-- table: fedot -->
<!-- end -->
Kept between.
<!-- table: promptfl -->
| old |
<!-- end -->
Kept below.
"""
WRITTEN = """Kept above.

<!-- runs -->
4 runs: rotated-digits, mini-vit, 1 rounds, seeds 1, 2; CPU, 1 thread, torch 2.
<!-- end -->

<!-- table: fedot -->
| FedOT | personal | worst client | global | condition number | degrees of freedom | gradient conflict | n |
| --- | --- | --- | --- | --- | --- | --- | --- |
| FedOT, linear | 65.0 ± 7.1 | 50.0 ± 14.1 | 30.0 ± 0.0 | 3.00 ± 1.41 | 1,500 | 0.25 ± 0.00 | 2 |
<!-- end -->
Kept between.
<!-- table: promptfl -->
| PromptFL | personal | worst client | global | n |
| --- | --- | --- | --- | --- |
| PromptFL, plain | 65.0 ± 7.1 | 50.0 ± 14.1 | 30.0 ± 0.0 | 2 |
<!-- end -->
Kept below.
"""
"""Seed 1: clients 40 and 80 of 100, condition numbers 2 and 1; seed 2: 60 and 80, 4 and 1."""


@pytest.fixture
def small(tmp_path, monkeypatch) -> Path:
    file = tmp_path / "ablations.toml"
    file.write_text(SMALL, encoding="utf-8")
    monkeypatch.setattr(ablations_doc, "EXPERIMENT", file)
    return file


def own_round(method: str, seed: int) -> RoundFinished:
    own = [20 + 20 * seed, 80]
    cells = [fill.cell(c, c, own[c - 1], 100) for c in (1, 2)]
    cells += [fill.cell(0, c, 30, 100) for c in (1, 2)]
    figures = [
        Diagnostic("condition_number", 2.0 * seed, client_a=1),
        Diagnostic("condition_number", 1.0, client_a=2),
    ]
    figures += [Diagnostic("degrees_of_freedom", 1500.0), Diagnostic("gradient_conflict", 0.25)]
    found = figures if method == "fedot" else []
    return RoundFinished(
        round=1,
        train_loss=1.0,
        seconds_train=0.1,
        seconds_aggregate=0.1,
        seconds_evaluate=0.1,
        scalars_up=0,
        scalars_down=0,
        bytes_up=0,
        bytes_down=0,
        clients=(),
        cells=tuple(cells),
        diagnostics=tuple(found),
        checkpoint=None,
    )


def recorded(db: Path, text: str = SMALL, threads: tuple[int, ...] = (1,), runs: int | None = None) -> Path:
    """Some or all runs of an experiment, with the threads of each in turn."""
    Store(db).prepare()
    created = Store(db).experiments.create(config.loads(text))
    for i in range(len(created.run_ids) if runs is None else runs):
        writer = RunWriter(Store(db).jobs.claim(new_owner(), "cpu", experiment_id=created.experiment_id))
        writer.claim.begin()
        names = [(0, "global", "global"), (1, "client", "a"), (2, "client", "b")]
        place = {"device": "cpu", "threads": threads[i % len(threads)], "torch": "2", "platform": "Linux"}
        writer.started(Started(entities=tuple(Entity(*n) for n in names), rounds_total=1, environment=place))
        run = fill.config_of(writer)
        writer.write_round(own_round(run.method.name, run.seed))
        writer.claim.finish("done")
    return db


def test_tables_hold_means_and_spreads_and_the_prose_stays(small, tmp_path):
    db = recorded(tmp_path / "runs.db")
    assert ablations_doc.render(PAGE, Store(db)) == WRITTEN
    assert ablations_doc.render(WRITTEN, Store(db)) == WRITTEN


def test_the_script_rewrites_the_page(small, tmp_path, monkeypatch, capsys):
    page = tmp_path / "ablations.md"
    page.write_text(PAGE, encoding="utf-8")
    monkeypatch.setattr(ablations_doc, "PAGE", page)
    assert ablations_doc.main([str(recorded(tmp_path / "runs.db"))]) == 0
    assert page.read_text(encoding="utf-8") == WRITTEN
    assert str(page) in capsys.readouterr().out


def test_the_newest_runs_of_the_file_count(small, tmp_path):
    db = recorded(tmp_path / "runs.db", threads=(2,))
    recorded(db)
    recorded(db, SMALL.replace('"Small"', '"Another"'), threads=(3,))
    assert "CPU, 1 thread, " in ablations_doc.render(PAGE, Store(db))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threads": (1, 2)}, "the runs differ in device, threads, torch or platform"),
        ({"runs": 3}, "is incomplete: 1 run is not finished and left out"),
        ({"text": SMALL.replace("linear", "none")}, "ablations.toml has changed since it was run"),
        ({"text": SMALL.replace("[1, 2]", "[1, 3]")}, "ablations.toml has changed since it was run"),
        (
            {"text": SMALL.replace("rounds = 1", "rounds = 2")},
            "ablations.toml has changed since it was run",
        ),
        ({"text": SMALL.replace("mini-vit", "mini-rn")}, "ablations.toml has changed since it was run"),
        ({"text": SMALL.replace('"Small"', '"Another"')}, "no experiment 'Small'; run ablations.toml"),
    ],
    ids=[
        "threads",
        "unfinished",
        "another-config",
        "other-seeds",
        "other-rounds",
        "another-backbone",
        "another-experiment",
    ],
)
def test_runs_that_do_not_make_the_report_are_refused(small, tmp_path, options, message):
    db = recorded(tmp_path / "runs.db", **options)
    with pytest.raises(FedLensError, match=message):
        ablations_doc.render(PAGE, Store(db))


def test_a_missing_database_and_a_wrong_marker_are_named(small, tmp_path):
    with pytest.raises(FedLensError, match="no database at .*none.db; make it with"):
        ablations_doc.render(PAGE, Store(tmp_path / "none.db"))
    db = recorded(tmp_path / "runs.db")
    with pytest.raises(FedLensError, match="names 'sdfed'; the runs are of fedot, promptfl"):
        ablations_doc.render("<!-- table: sdfed -->\n<!-- end -->", Store(db))


def test_the_page_has_a_table_for_every_method_of_the_experiment():
    wanted = dict.fromkeys(entry.name for entry in config.load(ablations_doc.EXPERIMENT).methods)
    found = []
    blocks.fill(
        ablations_doc.PAGE.read_text("utf-8"),
        {"runs": lambda _: found.append("runs") or "", "table": lambda name: found.append(name) or ""},
    )
    assert found == ["runs", *wanted]
