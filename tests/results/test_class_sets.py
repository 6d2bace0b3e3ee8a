"""Accuracy on the classes of a client, and on the label spaces of several data sets."""

from fractions import Fraction
from pathlib import Path

import pytest

from fedcore.base.events import Entity
from fedcore.config import Experiment, dumps, expand, loads
from fedcore.results.comparison import compare
from fedcore.results.curves import run_lines
from fedcore.results.matrices import row_panels, run_panel
from fedcore.results.metrics import METRICS
from fedcore.results.settings import setting_key, setting_title
from fedcore.store import Store
from tests.support import fill
from tests.support.exported import exported, table_of

NAMES = (
    *((0, "global", "global"), (1, "client", "a"), (2, "client", "b"), (3, "domain", "d")),
    *((4, "classes", "classes of a"), (5, "classes", "classes of b")),
)


@pytest.fixture
def recorded(db: Path) -> Store:
    """Own samples 1/2 and 4/4, own classes 2/10 and 6/10; a full matrix besides."""
    _, (writer,) = fill.start(db, fill.an_experiment(methods=("fedot",), seeds=(1,), rounds=1))
    diagonal = {(1, 1): (1, 2), (2, 2): (4, 4), (1, 4): (2, 10), (2, 5): (6, 10)}
    rest = {(m, t): (1, 4) for m in range(3) for t in range(1, 4) if (m, t) not in diagonal}
    cells = [fill.cell(*at, *counts) for at, counts in {**diagonal, **rest}.items()]
    fill.record(writer, NAMES, {0: cells, 1: cells})
    return Store(db)


def test_the_table_has_it_beside_personal_accuracy(recorded: Store):
    comparison = compare(recorded, [1])
    (group,) = comparison.rows
    assert group.stats["classes"].mean == pytest.approx(40) and METRICS["classes"].title == "Own classes"
    assert group.stats["personal"].mean == pytest.approx(75)
    assert group.stats["worst"].mean == pytest.approx(50)
    assert group.stats["weighted"].mean == pytest.approx(100 * 5 / 6)
    assert "classes" in comparison.metrics


def test_heatmaps_have_neither_a_row_nor_a_column_for_it(recorded: Store):
    (run,) = recorded.runs.of_experiments([1])
    comparison = compare(recorded, [1])
    (mean,) = row_panels(recorded, comparison, comparison.rows[0].setting).values()
    for panel in (run_panel(recorded, run), mean):
        assert (panel.rows, panel.columns) == (("global", "a", "b"), ("a", "b", "d"))
        assert panel.correct.sum() == 1 + 4 + 7
    assert run_panel(recorded, run, "clients").rows == ("a", "b")


def test_the_export_of_rounds_names_it(recorded: Store):
    rows = table_of(exported(recorded, [1], "rounds"))
    sets = {
        (r["model"], r["test_set"], r["correct"], r["total"])
        for r in rows
        if r["test_set"].startswith("classes")
    }
    assert sets == {("a", "classes of a", "2", "10"), ("b", "classes of b", "6", "10")}


COLUMNS = [
    ("client", "trees-1", "trees", (3, 4)),
    ("client", "trees-2", "trees", (1, 4)),
    ("client", "things", "things", (9, 10)),
    ("base", "base: trees", "trees", (20, 40)),
    ("base", "base: things", "things", (3, 10)),
    ("new", "new: trees", "trees", (10, 40)),
    ("new", "new: things", "things", (7, 10)),
]
L, B, V = Fraction(7, 10), Fraction(2, 5), Fraction(19, 40)
"""Mean of (3/4 + 1/4) / 2 and 9/10; of 1/2 and 3/10; of 1/4 and 7/10."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    db = tmp_path_factory.mktemp("runs") / "runs.db"
    _, (writer,) = fill.start(db, fill.an_experiment(methods=("promptfl",), seeds=(1,), rounds=1))
    listed = [Entity(i, kind, name, domain=of) for i, (kind, name, of, _) in enumerate(COLUMNS, start=1)]
    cells = [fill.cell(0, at, *counts) for at, (*_, counts) in enumerate(COLUMNS, start=1)]
    cells += [fill.cell(at, at, *COLUMNS[at - 1][3]) for at in (1, 2, 3)]
    fill.record(writer, [(0, "global", "global"), *listed], {0: cells, 1: cells})
    return Store(db)


def test_local_is_averaged_over_clients_of_a_data_set_and_then_over_data_sets(store: Store):
    (row,) = compare(store, [1]).rows
    means = {metric: stat.mean for metric, stat in row.stats.items()}
    exact = {"local": L, "base": B, "new": V, "harmonic_local": 3 / (1 / L + 1 / B + 1 / V)}
    for metric, share in exact.items():
        assert means[metric] == pytest.approx(float(100 * share), rel=1e-12), metric
    assert means["personal"] == pytest.approx(100 * (3 / 4 + 1 / 4 + 9 / 10) / 3), "clients weigh equally"
    assert row.breakdowns["domain"].keys() == {"trees", "things"}


def test_local_has_a_curve(store: Store):
    (line,) = run_lines(store, {1: 1}, "local")
    assert line.x == (0, 1) and line.y == pytest.approx([70.0, 70.0])


def test_a_heatmap_has_columns_for_each_data_set(store: Store):
    (run,) = store.experiments.get(1).runs
    panel = run_panel(store, run, "matrix")
    assert panel.columns == tuple(name for _, name, *_ in COLUMNS)


def test_local_is_no_metric_of_other_protocols(store: Store, db: Path):
    _, (writer,) = fill.start(db, fill.an_experiment(methods=("promptfl",), seeds=(1,), rounds=1))
    names = [("global", "global"), ("client", "a"), ("base", "base classes"), ("new", "new classes")]
    listed = [(i, kind, name) for i, (kind, name) in enumerate(names)]
    fill.record(writer, listed, {1: [fill.cell(0, at, 1, 2) for at in (1, 2, 3)]})
    (row,) = compare(Store(db), [1]).rows
    assert "harmonic" in row.stats and not {"local", "harmonic_local"} & row.stats.keys()


def test_further_data_belong_to_the_setting_and_to_the_file():
    content = {
        "data": {"name": "shapes-39", "training_classes": "own"},
        "further_data": [{"name": "rotated-digits"}],
        "partition": {"kind": "blocks", "classes_per_client": 3},
        "methods": [{"name": "fedtpg"}],
    }
    experiment = Experiment(**content)
    assert loads(dumps(experiment)) == experiment
    (run,), (alone,) = (expand(Experiment(**{**content, **c})) for c in ({}, {"further_data": []}))
    assert setting_title(run) == "shapes-39 + rotated-digits · blocks of 3 classes · mini-vit · cross-class"
    assert setting_key(run) != setting_key(alone)
    moved = run.further_data[0].model_copy(update={"root": "/elsewhere"})
    assert setting_key(run) == setting_key(run.model_copy(update={"further_data": (moved,)}))
