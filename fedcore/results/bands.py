"""Bands and smoothing of curves: what is drawn around a mean over seeds, and a calmer line beside it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from fedcore.results.curves import Series

Band = Literal["std", "se", "ci95"]
BANDS: dict[Band, str] = {
    "std": "Standard deviation",
    "se": "Standard error",
    "ci95": "95 % interval of the mean",
}
"""How far a band reaches to both sides of a mean over seeds."""


def with_band(series: Series, band: Band) -> Series:
    """Return a line whose band is the standard deviation, the standard error, or Student's 95 % interval."""
    if band == "std" or series.n < 2:
        return series
    factor = 1 / math.sqrt(series.n)
    if band == "ci95":
        from scipy import stats  # here: the import takes longer than a page may

        factor *= float(stats.t.ppf(0.975, series.n - 1))
    return replace(series, std=tuple(None if d is None else factor * d for d in series.std))


def smoothed(series: Series, weight: float) -> Series:
    """Return a line with an exponential moving average beside its raw values, as in TensorBoard.

    The average is divided by the sum of its weights, so that it begins at the first value.

    Args:
        weight: of the past, from 0 (not smoothed) to below 1.
    """
    if not 0 < weight < 1:
        return series
    return replace(series, smooth=tuple(_moving_average(series.y, weight)))


def _moving_average(values: Sequence[float], weight: float) -> list[float]:
    total, norm, averages = 0.0, 0.0, []
    for value in values:
        total, norm = weight * total + value, weight * norm + 1
        averages.append(total / norm)
    return averages
