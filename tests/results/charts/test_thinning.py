"""Long lines are thinned before they are sent: no extreme is lost, nor an end."""

import numpy as np
import pytest

from fedcore.results.charts.lines import MOST_POINTS, line_chart, thinned
from fedcore.results.charts.theme import Theme
from fedcore.results.curves import Series

ROUNDS = 10_000


def noise(seed: int, rounds: int = ROUNDS) -> tuple[float, ...]:
    return tuple(np.random.default_rng(seed).normal(50, 5, rounds).tolist())


def line(label: str, seed: int, **more: object) -> Series:
    x = tuple(map(float, range(ROUNDS)))
    return Series(label, "fedot", x, noise(seed), **{"std": (None,) * ROUNDS, "n": 1, **more})


@pytest.mark.parametrize("count", [1, 2, 12, 13])
def test_ends_and_extremes_of_every_line_stay(count: int) -> None:
    lines = [line(f"run {i}", i) for i in range(count)]
    for before, after in zip(lines, thinned(lines), strict=True):
        assert len(after.x) == len(after.y) == len(after.std) <= MOST_POINTS
        assert (after.x[0], after.x[-1]) == (0, ROUNDS - 1)
        assert (after.y[0], after.y[-1]) == (before.y[0], before.y[-1])
        assert min(after.y) == min(before.y) and max(after.y) == max(before.y)
        assert set(zip(after.x, after.y, strict=True)) <= set(zip(before.x, before.y, strict=True))


def test_lines_with_one_hover_text_keep_the_same_rounds() -> None:
    first, second = thinned([line("a", 1), line("b", 2)])
    assert first.x == second.x
    many = thinned([line(str(i), i) for i in range(13)])
    assert many[0].x != many[1].x, "each has its own hover text"


def test_every_part_keeps_its_highest_value() -> None:
    """A spike of one round is drawn where it was, wherever that is."""
    for at in range(3, ROUNDS, 997):
        y = [50.0] * ROUNDS
        y[at] = 90.0
        spike = Series("a", "fedot", tuple(map(float, range(ROUNDS))), tuple(y), (None,) * ROUNDS, 1)
        (after,) = thinned([spike])
        assert dict(zip(after.x, after.y, strict=True))[at] == 90.0


def test_the_band_keeps_its_extremes() -> None:
    low, high = (tuple(v + d for v in noise(3)) for d in (-9, 9))
    for ranged in thinned([line(str(i), i, low=low, high=high) for i in range(12)]):
        assert min(ranged.low) == min(low) and max(ranged.high) == max(high)
        assert len(ranged.x) <= MOST_POINTS
    std = tuple(abs(v) for v in noise(4))
    (spread,) = thinned([line("a", 3, std=std, n=3)])
    assert max(y + d for y, d in zip(spread.y, spread.std, strict=True)) == max(
        y + d for y, d in zip(noise(3), std, strict=True)
    )


def test_smooth_lines_with_bands_are_drawn_as_they_are() -> None:
    """Their extremes share the ends of each part, so that alone a twelfth of the points would be drawn."""
    x = np.arange(5_000.0)
    lines = []
    for i in range(12):
        y = 80 - 60 * np.exp(-x / (40 + 30 * i)) + np.sin(x / 300 + i)
        low, high = (tuple((y + d).tolist()) for d in (-3, 3))
        lines.append(Series(str(i), "fedot", tuple(x), tuple(y), (None,) * len(x), 3, low, high))
    for before, after in zip(lines, thinned(lines), strict=True):
        assert len(after.x) == MOST_POINTS
        for name in ("y", "low", "high"):
            drawn = np.interp(x, after.x, getattr(after, name))
            assert np.abs(drawn - getattr(before, name)).max() < 0.2


def test_a_chart_sends_the_thinned_line_and_a_short_one_as_it_is() -> None:
    chart = line_chart([line("a", 1)], Theme(dark=False), "Round", "")
    assert len(chart.figure.data[0].x) <= MOST_POINTS
    assert f"{noise(1)[-1]:.1f}" in chart.alt
    short = Series("a", "fedot", (0.0, 1.0), (1.0, 2.0), (None, None), 1)
    assert thinned([short]) == [short]
