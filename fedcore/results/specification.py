"""The specification curve: one quantity under every reading of an experiment, and what each choice moves.

A reading takes one alternative of each choice; it is the tuple of their positions, and (0, ..., 0) is the
reading of FedLens. Source: Simonsohn, Simmons and Nelson, "Specification curve analysis", Nature Human
Behaviour 4 (2020).
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedcore.base.progress import counted
from fedcore.results.statistics import Stat, ValuesBySeed, mean_interval, spread

Reading = tuple[int, ...]
Means = Mapping[str, float]
"""Method -> its mean over seeds."""
DECIMALS = 9
"""Those of a mean: the bits after them would put equal methods in an order."""


@dataclass(frozen=True)
class Specification:
    """A quantity under one reading: its mean over seeds, and half the width of the mean's 95 % interval."""

    reading: Reading
    stat: Stat
    half: float | None


@dataclass(frozen=True)
class Effect:
    """The effect of an alternative: how far it moves a quantity from the first of its choice, all else equal.

    Attributes:
        choice, alternative: their positions.
        mean: of the differences of all pairs of readings that differ in this choice alone.
        largest: the largest of them, without its sign.
        pairs: their number.
        reordered: pairs whose methods stand in another order.
    """

    choice: int
    alternative: int
    mean: float
    largest: float
    pairs: int
    reordered: int = 0


@dataclass(frozen=True)
class Survival:
    """In how many readings a method is ahead of all others, and in how many the order is that of FedLens.

    ``same_order`` is None if the reading of FedLens has no runs.
    """

    readings: int
    first: int
    same_order: int | None

    def text(self, method: str) -> str:
        order = "FedLens's reading has no runs"
        if self.same_order is not None:
            order = f"all methods stand as in FedLens's reading in {self.same_order}"
        return f"{method} is first in {self.first} of {counted(self.readings, 'reading')}; {order}"


def curve(values: Mapping[Reading, ValuesBySeed]) -> list[Specification]:
    """Return a quantity under each reading, the smallest mean first; those without a value are left out."""
    stats = {reading: spread(by_seed.values()) for reading, by_seed in values.items()}
    found = [
        Specification(r, replace(stat, mean=round(stat.mean, DECIMALS)), mean_interval(stat))
        for r, stat in stats.items()
        if stat is not None
    ]
    return sorted(found, key=lambda s: (s.stat.mean, s.reading))


def differences(
    ours: Mapping[Reading, ValuesBySeed], theirs: Mapping[Reading, ValuesBySeed]
) -> dict[Reading, ValuesBySeed]:
    """Return ours minus theirs under each reading, by common seed."""
    return {
        reading: {
            seed: value - theirs[reading][seed] for seed, value in of.items() if seed in theirs[reading]
        }
        for reading, of in ours.items()
    }


def chance(by_seed: ValuesBySeed) -> float | None:
    """Return how often as many other seeds would turn the sign of a mean; None for a single seed.

    All resamples of the n seeds with replacement are counted. Their distance to the mean is multiplied by
    sqrt(2 n / (n - 1)): a resample varies less than other seeds would, and the mean varies too.
    """
    values, n = np.array(list(by_seed.values())), len(by_seed)
    if n < 2:
        return None
    resampled = np.array([np.mean(of) for of in itertools.product(values, repeat=n)])
    others = values.mean() + math.sqrt(2 * n / (n - 1)) * (resampled - values.mean())
    return float(np.mean(others * values.mean() <= 0))


def effects(values: Mapping[Reading, float], means: Mapping[Reading, Means] | None = None) -> list[Effect]:
    """Return the effect of each alternative that some pair of readings tells apart from the first.

    Args:
        means: of all methods under each reading, whose order is compared.
    """
    found: dict[tuple[int, int], list[tuple[float, bool]]] = {}
    for other in values:
        for choice, alternative in enumerate(other):
            first = (*other[:choice], 0, *other[choice + 1 :])  # differs in this choice alone
            if alternative and first in values:
                moved = means is not None and order(means[first]) != order(means[other])
                found.setdefault((choice, alternative), []).append((values[other] - values[first], moved))
    return [
        Effect(
            *place,
            float(np.mean([difference for difference, _ in of])),
            max(abs(difference) for difference, _ in of),
            len(of),
            sum(moved for _, moved in of),
        )
        for place, of in sorted(found.items())
    ]


def order(means: Means) -> frozenset[tuple[str, str]]:
    """Return the pairs of methods of which the first is ahead; equal means put neither ahead."""
    return frozenset((a, b) for a in means for b in means if means[a] > means[b])


def survival(means: Mapping[Reading, Means], method: str) -> Survival:
    """Count the readings that leave a method first, and those that leave all methods in their order.

    Args:
        means: that of the reading (0, ..., 0) is the order that the others are compared with.
    """
    default = next((order(of) for reading, of in means.items() if not any(reading)), None)
    return Survival(
        len(means),
        sum(all(of[method] > mean for other, mean in of.items() if other != method) for of in means.values()),
        None if default is None else sum(order(of) == default for of in means.values()),
    )


def weight_text(found: Sequence[Effect]) -> str:
    """Return in words how much some alternatives matter: ``up to 0.4 points, no rank changes``."""
    most = max(effect.largest for effect in found)
    reordered, pairs = sum(e.reordered for e in found), sum(e.pairs for e in found)
    ranks = f"the order of methods changes in {reordered} of {pairs} pairs of readings"
    return f"up to {most:.1f} points, {ranks if reordered else 'no rank changes'}"
