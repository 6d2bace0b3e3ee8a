"""Who helps whom, by hand."""

import re
from dataclasses import replace

import numpy as np
import pytest

from fedcore.results.charts import client_graph
from fedcore.results.charts.client_graph import client_graphs
from fedcore.results.charts.theme import Theme
from fedcore.results.panels import Panel, edges, gains_panel, main_edges, transfer_finding

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
    assert np.diagonal(panel.values).tolist() == [70, 60, 50], "what each gains on its own samples is no edge"
    assert [e.gain for e in edges(panel)] == sorted(GAINS.values(), reverse=True)


def test_each_client_has_its_best_helper_and_worst_harm() -> None:
    shown = {(e.giver, e.taker) for e in main_edges(gains_panel(NOW, START))}
    assert shown == {("b", "a"), ("c", "a"), ("c", "b"), ("b", "c"), ("a", "c")}, "nobody harms b"


def arrows(panel: Panel) -> list:
    return [a for a in client_graphs([panel], Theme()).figure.layout.annotations if a.showarrow]


def texts(panel: Panel) -> list[str]:
    shown = client_graphs([panel], Theme()).figure.layout.annotations
    return [a.text.replace("<br>", " ") for a in shown if not a.showarrow]


def test_arrows_end_at_the_client_that_is_helped_and_bear_its_gain() -> None:
    figure = client_graphs([gains_panel(NOW, START)], Theme()).figure
    clients = next(t for t in figure.data if t.mode == "markers+text")
    place = {n: np.array(at) for n, *at in zip(clients.text, clients.x, clients.y, strict=True)}

    def nearest(*at: float) -> str:
        return min(place, key=lambda n: float(np.linalg.norm(place[n] - at)))

    drawn = {(nearest(a.ax, a.ay), nearest(a.x, a.y)) for a in figure.layout.annotations if a.showarrow}
    assert drawn == {("b", "a"), ("c", "a"), ("c", "b"), ("b", "c"), ("a", "c")}, "from giver to taker"
    numbers = {(round(a.x, 2), round(a.y, 2)): a.text for a in figure.layout.annotations if not a.showarrow}
    for mark in (t for t in figure.data if t.mode == "markers"):
        (giver, taker), gain = (
            re.match(r"(\w)'s model on (\w)", mark.hovertemplate).groups(),
            (mark.x, mark.y),
        )
        assert numbers[round(gain[0][0], 2), round(gain[1][0], 2)] == f"{GAINS[giver, taker]:+.1f}"
    assert "An arrow to a client comes from" in client_graph.ABOUT


def test_clients_with_one_common_model_help_nobody_more_than_another() -> None:
    """PromptFL: the order of equal gains is that of the rows, which drew the first client as the helper."""
    start = matrix([[50, 50, 50], [20, 30, 40], [20, 30, 40], [20, 30, 40]])
    panel = gains_panel(matrix([[80, 70, 60]] * 4), start)
    assert not main_edges(panel) and not arrows(panel)
    assert "one common model: nothing to show" in texts(panel)
    assert transfer_finding(panel) == "FedOT: round 2/2: one common model: nothing to show."
    two = replace(panel, rows=("a", "b"), columns=("a", "b"), values=np.array([[60.0, 40], [60, 40]]))
    assert not main_edges(two), "with one giver each, the own model tells that it is common"
    two = replace(two, values=np.array([[60.0, 40], [59, 40]]))
    assert len(main_edges(two)) == 2


def test_a_tie_or_less_than_a_point_has_no_arrow() -> None:
    values = np.array([[30.0, 5, -20, 0.9], [10, 30, -20, -0.9], [10, 4, 30, 0.5], [0, 3, -10, 30]])
    panel = replace(gains_panel(NOW, START), rows=tuple("abcd"), columns=tuple("abcd"), values=values)
    assert {(e.giver, e.taker, e.gain) for e in main_edges(panel)} == {("a", "b", 5)}
    text = transfer_finding(panel)
    assert "most of all a's on c and b's on c (-20.0)" in text and "most of all 2 pairs" not in text
    many = replace(panel, values=np.array([[0.0, 5, 5, 5], *[[0.0] * 4] * 3]))
    assert "most of all 3 pairs (+5.0)" in transfer_finding(many)
    none = replace(panel, values=np.where(np.eye(4, dtype=bool), values, 0.5))
    assert client_graph.NO_ARROW in texts(none)


@pytest.mark.parametrize("dark", [False, True])
def test_arrows_are_as_thick_as_their_gain_and_red_where_it_is_negative(dark: bool) -> None:
    panel = gains_panel(NOW, START)
    layout = client_graphs([panel], Theme(dark)).figure.layout
    arrows = [a for a in layout.annotations if a.showarrow]
    colours = [a.arrowcolor for a in arrows]
    assert (colours.count(Theme(dark).gain), colours.count(Theme(dark).loss)) == (3, 2)
    widths = sorted(a.arrowwidth for a in arrows)
    assert widths == [pytest.approx(1 + 4 * gain / 50) for gain in (1, 10, 15, 40, 50)]


def test_of_very_many_clients_those_of_the_widest_arrows_are_drawn(monkeypatch) -> None:
    panel = gains_panel(NOW, START)
    monkeypatch.setattr(client_graph, "MAX_CLIENTS", 2)
    monkeypatch.setattr(client_graph, "MAX_ARROWS", 1)
    figure = client_graphs([panel], Theme()).figure
    assert [a.arrowwidth for a in figure.layout.annotations if a.showarrow] == [5.0]
    assert figure.data[-1].text == ("b", "c"), "c helps b most of all; a has no arrow"
    unmoved = matrix([[20, 20, 20]] * 4)
    assert not client_graphs([gains_panel(unmoved, unmoved)], Theme()).figure.data


def test_the_finding_names_the_most_helpful_and_counts_negative_transfer() -> None:
    text = transfer_finding(gains_panel(NOW, START))
    assert text == (
        "FedOT: round 2/2: a client's model changes the accuracy on another's samples by +11.8 points over "
        "that client's start, on average; most of all c's on b (+50.0). 2 of 6 pairs lose (negative "
        "transfer), most of all a's on c (-15.0)."
    )


def test_a_round_without_others_samples_says_so() -> None:
    diagonal = np.where(np.eye(3, dtype=bool), 50.0, np.nan)
    alone = replace(NOW, values=np.vstack([np.full(3, np.nan), diagonal]))
    panel = gains_panel(alone, START)
    assert not panel.values.size
    chart = client_graphs([panel], Theme())
    assert "no model was tested" in chart.alt
    assert not [a for a in chart.figure.layout.annotations if a.showarrow]


def test_the_least_harm_is_no_help() -> None:
    start = matrix([[50, 50, 50], [20, 30, 40], [20, 30, 40], [20, 30, 40]])
    worse = gains_panel(matrix([[50, 50, 50], [20, 28, 39], [19, 30, 38], [18, 29, 40]]), start)
    assert [e.gain for e in main_edges(worse)] == [-2, -2, -2]
    assert "most of all" not in transfer_finding(worse).split(". ")[0]
