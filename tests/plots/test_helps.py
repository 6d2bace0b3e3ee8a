"""Who helps whom, by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedcore.plots import helps
from fedcore.plots.helps import HARMS, HELPS, help_graphs
from fedcore.plots.theme import Theme
from fedcore.results.panels.helps import edges, findings, gains_panel, main_edges
from fedcore.results.panels.panel import Panel

NAMES = ("global", "a", "b", "c")


def matrix(values: list[list[float]]) -> Panel:
    array = np.array(values, dtype=float)
    counts = np.ones(array.shape, int)
    return Panel("FedOT: round 2/2", "fedot", NAMES, NAMES[1:], array, counts, counts, (-1, 0, 1, 2))


START = matrix([[50, 50, 50], [20, 0, 0], [0, 30, 0], [0, 0, 40]])
NOW = matrix([[50, 50, 50], [90, 35, 25], [60, 90, 41], [10, 80, 90]])
GAINS = {("a", "b"): 5, ("a", "c"): -15, ("b", "a"): 40, ("b", "c"): 1, ("c", "a"): -10, ("c", "b"): 50}


def test_a_gain_is_over_the_start_of_the_client_that_is_helped() -> None:
    panel = gains_panel(NOW, START)
    assert {(e.giver, e.taker): e.gain for e in edges(panel)} == GAINS
    assert np.isnan(np.diagonal(panel.values)).all()
    assert [e.gain for e in edges(panel)] == sorted(GAINS.values(), reverse=True)


def test_each_client_has_its_best_helper_and_whoever_harms_it() -> None:
    shown = {(e.giver, e.taker) for e in main_edges(gains_panel(NOW, START))}
    assert shown == {("b", "a"), ("c", "a"), ("c", "b"), ("b", "c"), ("a", "c")}, "nobody harms b"


@pytest.mark.parametrize("dark", [False, True])
def test_arrows_are_as_thick_as_their_gain_and_red_where_it_is_negative(dark: bool) -> None:
    panel = gains_panel(NOW, START)
    layout = help_graphs([panel], Theme(dark)).figure.layout
    arrows = [a for a in layout.annotations if a.showarrow]
    colours = [a.arrowcolor for a in arrows]
    assert (colours.count(HELPS[dark]), colours.count(HARMS[dark])) == (3, 2)
    widths = sorted(a.arrowwidth for a in arrows)
    assert widths == [pytest.approx(1 + 4 * gain / 50) for gain in (1, 10, 15, 40, 50)]


def test_of_very_many_clients_those_of_the_widest_arrows_are_drawn(monkeypatch) -> None:
    panel = gains_panel(NOW, START)
    monkeypatch.setattr(helps, "MAX_CLIENTS", 2)
    monkeypatch.setattr(helps, "MAX_ARROWS", 1)
    figure = help_graphs([panel], Theme()).figure
    assert [a.arrowwidth for a in figure.layout.annotations if a.showarrow] == [5.0]
    assert figure.data[-1].text == ("b", "c"), "c helps b most of all; a has no arrow"
    same = matrix([[20, 20, 20]] * 4)
    still = help_graphs([gains_panel(same, same)], Theme()).figure
    assert not still.data
    assert "nobody gains or loses<br>this round" in [a.text for a in still.layout.annotations]


def test_the_finding_names_the_most_helpful_and_counts_negative_transfer() -> None:
    (text,) = findings([gains_panel(NOW, START)])
    assert text == (
        "FedOT: round 2/2: a client's model changes the accuracy on another's samples by +11.8 points over "
        "that client's start, on average; most of all c's on b (+50.0). 2 of 6 pairs lose (negative "
        "transfer), most of all a's on c (-15.0)."
    )


def test_a_round_without_others_samples_says_so() -> None:
    own = np.where(np.eye(3, dtype=bool), 50.0, np.nan)
    alone = replace(NOW, values=np.vstack([np.full(3, np.nan), own]))
    panel = gains_panel(alone, START)
    assert not panel.values.size
    chart = help_graphs([panel], Theme())
    assert "no model was tested" in chart.alt
    assert not [a for a in chart.figure.layout.annotations if a.showarrow]


def test_where_nobody_learns_there_is_no_arrow() -> None:
    start = matrix([[50, 50, 50], [20, 30, 40], [20, 30, 40], [20, 30, 40]])
    panel = gains_panel(start, start)
    assert not main_edges(panel)
    assert findings([panel]) == [
        "FedOT: round 2/2: no client's model changes the accuracy on another's samples."
    ]
    worse = gains_panel(matrix([[50, 50, 50], [20, 29, 39], [19, 30, 39], [19, 29, 40]]), start)
    assert [e.gain for e in main_edges(worse)] == [-1, -1, -1], "the least harm is no help"
    assert "most of all" not in findings([worse])[0].split(". ")[0]
