"""Rows of heatmaps in an order that shows more."""

from dataclasses import replace

import numpy as np

from fedcore.results.charts.heatmaps import heatmap_grid
from fedcore.results.charts.theme import Theme
from fedcore.results.panels import Panel, ordered_panels, with_shared_row


def a_panel(
    values: list[list[float]], names: str, own_columns: tuple[int, ...], title: str = "FedOT"
) -> Panel:
    array = np.array(values)
    total = np.full(array.shape, 100)
    correct = np.nan_to_num(array).astype(int)
    columns = tuple(n for n in names if n != "g")[: array.shape[1]]
    return Panel(title, "fedot", tuple(names), columns, array, correct, total, own_columns)


TWO_KINDS = [[50, 50, 50, 50], [90, 10, 80, 20], [10, 95, 20, 85], [80, 20, 90, 10], [20, 85, 10, np.nan]]


def test_alike_rows_stand_together_and_the_diagonal_stays() -> None:
    panel = a_panel(TWO_KINDS, "gabcd", (-1, 0, 1, 2, 3))
    (found,) = ordered_panels([panel], "alike")
    assert found.rows[0] == "g"
    assert {frozenset(found.rows[1:3]), frozenset(found.rows[3:])} == {frozenset("ac"), frozenset("bd")}
    for row, at in zip(found.rows[1:], found.own_columns[1:], strict=True):
        assert found.columns[at] == row
    for i, row in enumerate(found.rows):
        for j, column in enumerate(found.columns):
            before = panel.rows.index(row), panel.columns.index(column)
            assert np.array_equal(found.values[i, j], panel.values[before], equal_nan=True)
            assert found.correct[i, j] == panel.correct[before]


def test_the_highest_mean_comes_first_the_same_in_all_panels() -> None:
    low = a_panel([[10, 10], [90, 90]], "ab", (0, 1))
    high = a_panel([[60, 60], [20, 20]], "ab", (0, 1), "SDFed")
    found = ordered_panels([low, high], "mean")
    assert [p.rows for p in found] == [("b", "a"), ("b", "a")], "means of 35 and 55 over both"
    assert found[1].values.tolist() == [[20, 20], [60, 60]]
    assert ordered_panels([low], "recorded") == [low]


def test_rounds_stay_in_time() -> None:
    clients = a_panel([[10, 20], [30, 40]], "ab", (1, 1))
    (found,) = ordered_panels([clients], "mean")
    assert (found.rows, found.columns, found.own_columns) == (("b", "a"), ("a", "b"), (1, 1))


def test_a_panel_without_values_is_left_alone() -> None:
    empty = Panel("FedOT", "fedot", (), (), np.zeros((0, 0)), np.zeros((0, 0)), np.zeros((0, 0)))
    assert ordered_panels([empty], "alike")[0].values.size == 0


def test_models_that_are_one_have_one_row_and_keep_their_own_accuracy() -> None:
    one = a_panel([[10, 20, 90]] * 4, "gabc", (-1, 0, 1, 2))
    found = with_shared_row(one)
    assert (found.rows, found.columns) == (("all clients share it",), one.columns)
    assert found.own_mean == one.own_mean == 40
    assert found.own_cells == [(0, 0), (0, 1), (0, 2)]
    figure = heatmap_grid([found, one], Theme()).figure
    assert figure.data[0].z.tolist() == [[10, 20, 90]]
    high, usual = (np.ptp(axis.domain) for axis in (figure.layout.yaxis, figure.layout.yaxis2))
    assert high < usual, "one row is not as tall as four"
    wide, narrow = (heatmap_grid([found, one, found], Theme(), n).figure.layout for n in (3, 1))
    gap = narrow.height * (narrow.yaxis.domain[0] - narrow.yaxis2.domain[1])
    assert gap < 150 < wide.height, "on a telephone a row of its own is as short as its panel"
    in_part = replace(one, total=one.total * np.array([[1, 1, 1], [1, 0, 1], [0, 1, 1], [0, 0, 1]]))
    assert with_shared_row(in_part).rows == found.rows, "clients are tested on their own samples only"
    untested = replace(one, total=one.total * np.array([[1, 1, 0], [1, 1, 1], [1, 1, 1], [1, 1, 1]]))
    assert with_shared_row(untested) is untested, "no row has all values"
    personal = a_panel([[10, 20], [10, 20], [10, 30]], "gab", (-1, 0, 1))
    assert with_shared_row(personal) is personal
