"""The mean of panels over seeds, by hand."""

from __future__ import annotations

import numpy as np

from fedcore.results.panels.panel import Panel
from fedcore.results.panels.run_panels import mean_over_seeds


def a_panel(names: tuple[str, ...], columns: tuple[str, ...], values: list[list[float]], title: str) -> Panel:
    counts = np.full((len(names), len(columns)), 10)
    own = tuple(columns.index(n) if n in columns else -1 for n in names)
    return Panel("one", "fedot", names, columns, np.array(values), counts // 2, counts, own, "model", title)


def test_a_cell_is_the_mean_of_the_seeds_that_have_it() -> None:
    both = [
        a_panel(("global", "a"), ("a",), [[50.0], [70.0]], "test set"),
        a_panel(("a", "b"), ("b", "a"), [[np.nan, 90.0], [20.0, 10.0]], "test set"),
    ]
    mean = mean_over_seeds(both, "FedOT: 2 seeds")
    assert (mean.title, mean.rows, mean.columns) == ("FedOT: 2 seeds", ("global", "a", "b"), ("a", "b"))
    np.testing.assert_array_equal(mean.values, [[50, np.nan], [80, np.nan], [10, 20]])
    assert mean.total.tolist() == [[10, 0], [20, 10], [10, 10]]
    assert mean.own_columns == (-1, 0, 1)


def test_rounds_stay_in_order_and_the_last_one_is_the_own() -> None:
    """A seed that evaluated other rounds, and one without any."""
    some = [
        a_panel(("a",), ("0", "10"), [[1.0, 3.0]], "round"),
        a_panel(("a",), ("0", "5"), [[2.0, 7.0]], "round"),
        Panel("no round", "fedot", (), (), *np.zeros((3, 0, 0)), (), "client", "round"),
    ]
    mean = mean_over_seeds(some, "FedOT")
    assert mean.columns == ("0", "5", "10")
    np.testing.assert_array_equal(mean.values, [[1.5, 7, 3]])
    assert mean.own_columns == (2,)
