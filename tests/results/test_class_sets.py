"""Accuracy on all samples of the clients' classes: a metric of its own, and no column of the heatmaps."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from fedcore.records.events import Entity, RoundFinished, Started
from fedcore.results.comparison import compare
from fedcore.results.metrics import METRICS
from fedcore.results.panels.matrices import row_panels
from fedcore.results.panels.run_panels import run_panel
from fedcore.store import Store
from tests.support import fill
from tests.support.exported import exported

NAMES = (
    *((0, "global", "global"), (1, "client", "a"), (2, "client", "b"), (3, "domain", "d")),
    *((4, "classes", "classes of a"), (5, "classes", "classes of b")),
)


@pytest.fixture
def recorded(tmp_path: Path) -> tuple[Path, int]:
    """Own samples 1/2 and 4/4, own classes 2/10 and 6/10; a full matrix besides."""
    db = tmp_path / "runs.db"
    created, (writer,) = fill.start(db, fill.an_experiment(methods=("fedot",), seeds=(1,), rounds=1))
    writer.started(Started(entities=tuple(Entity(*n) for n in NAMES), rounds_total=1, environment={}))
    own = {(1, 1): (1, 2), (2, 2): (4, 4), (1, 4): (2, 10), (2, 5): (6, 10)}
    rest = {(m, t): (1, 4) for m in range(3) for t in range(1, 4) if (m, t) not in own}
    cells = tuple(fill.cell(*at, *counts) for at, counts in {**own, **rest}.items())
    for round_ in (0, 1):
        writer.write_round(RoundFinished(round=round_, cells=cells))
    writer.claim.finish("done")
    return db, created.experiment_id


def test_the_table_has_it_beside_personal_accuracy(recorded):
    db, experiment = recorded
    comparison = compare(Store(db), [experiment])
    (group,) = comparison.rows
    assert group.stats["classes"].mean == pytest.approx(40) and METRICS["classes"].title == "Own classes"
    assert group.stats["personal"].mean == pytest.approx(75)
    assert group.stats["worst"].mean == pytest.approx(50)
    assert group.stats["weighted"].mean == pytest.approx(100 * 5 / 6)
    assert "classes" in comparison.metrics


def test_heatmaps_have_neither_a_row_nor_a_column_for_it(recorded):
    db, experiment = recorded
    (run,) = Store(db).runs.of_experiments([experiment])
    comparison = compare(Store(db), [experiment])
    (mean,) = row_panels(Store(db), comparison, comparison.rows[0].setting).values()
    for panel in (run_panel(Store(db), run), mean):
        assert (panel.rows, panel.columns) == (("global", "a", "b"), ("a", "b", "d"))
        assert panel.correct.sum() == 1 + 4 + 7
    assert run_panel(Store(db), run, "clients").rows == ("a", "b")


def test_the_export_of_rounds_names_it(recorded):
    db, experiment = recorded
    rows = list(csv.DictReader(io.StringIO(exported(Store(db), [experiment], "rounds"))))
    sets = {
        (r["model"], r["test_set"], r["correct"], r["total"])
        for r in rows
        if r["test_set"].startswith("classes")
    }
    assert sets == {("a", "classes of a", "2", "10"), ("b", "classes of b", "6", "10")}
