"""Curves and costs of runs whose time and traffic are not all known."""

from fedcore.report import curves, tables
from fedcore.runs import Recorder


def test_costs_that_nobody_measured_are_unknown_not_zero(tmp_path):
    db = tmp_path / "runs.db"
    accuracy = {("a", "a"): (1, 2), ("b", "b"): (2, 2)}
    with Recorder(db, method="silent", seed=1, dataset="d", experiment="x") as run:
        run.round(1, accuracy=accuracy)
        run.round(2, accuracy=accuracy)
    with Recorder(db, method="measured", seed=1, dataset="d", experiment="x") as run:
        run.round(1, accuracy=accuracy, seconds=2.0, bytes_up=1_000_000)
        run.round(2, accuracy=accuracy, seconds=3.0, bytes_up=1_000_000)
    found = tables.compare(db, [1], "last")
    (setting,) = found.settings
    costs = {c.label: c for c in curves.costs(db, found, setting)}
    assert costs["silent"].megabytes is None
    assert costs["silent"].seconds is None
    assert costs["measured"].megabytes_up == 2.0
    assert costs["measured"].megabytes_down is None
    assert costs["measured"].seconds == 5.0
    drawn = {s.label: s.x for s in curves.compared(db, found, setting, "personal", "megabytes")}
    assert drawn == {"measured": (1.0, 2.0)}
