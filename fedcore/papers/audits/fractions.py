"""Accuracies that are impossible on a test set of the stated size, and impossible spreads.

An accuracy is a number of right answers over the size of the test set, and a mean over n runs one over n
times that size; the test of means for granularity (GRIM; Brown and Heathers, 2017) applies that to printed
digits.
"""

import csv
import math
from collections.abc import Iterator, Sequence
from functools import cache

from fedcore.papers import library, literature
from fedcore.papers.audits.kinds import Finding
from fedcore.papers.audits.parts import rounding
from fedcore.papers.library import FOLDER
from fedcore.papers.published import PublishedValue

POWER = 0.5
"""The test is skipped if a larger share of all values would pass, since it would then say little."""
SINGLE_ROUNDING = 0.005
"""Half of the last digit with which logs print the accuracy of a single run, before averaging."""
_FILE = FOLDER / "test_sets.csv"


@cache
def test_sets() -> dict[tuple[str, str, str], int]:
    """Return the images of the test sets: name of the sets, data set and quantity -> number."""
    with _FILE.open(encoding="utf-8", newline="") as file:
        return {
            (row["test_sets"], row["dataset"], row["quantity"]): int(row["images"])
            for row in csv.DictReader(file)
        }


def impossible_shares(values: Sequence[PublishedValue]) -> Iterator[Finding]:
    """Yield accuracies that no whole number of right answers gives in the stated number of runs."""
    for value in values:
        stated = literature.protocol(value)
        images = test_sets().get((stated.tested_on, literature.dataset(value), literature.quantity(value)))
        if images is None or stated.runs is None:
            continue
        nearest = nearest_shares(value, images, stated.runs)
        if nearest:
            runs = "a run" if stated.runs == 1 else f"the mean of {stated.runs} runs"
            low, high = nearest
            yield Finding(
                value,
                "impossible share",
                f"{value.value:g} cannot be the accuracy of {runs} on the {images:,} test images of these "
                f"classes; the nearest are {low:.2f} and {high:.2f}",
            )


def nearest_shares(value: PublishedValue, images: int, runs: int) -> tuple[float, float] | None:
    """Return the possible accuracies around an impossible one; None if the printed one may be possible."""
    step = 100 / (images * runs)
    margin = rounding(value) + (SINGLE_ROUNDING if runs > 1 else 0) + 1e-9
    if 2 * margin > POWER * step:
        return None
    below = math.floor(value.value / step) * step
    possible = value.value - below <= margin or below + step - value.value <= margin
    # logs that print one decimal give means of such numbers
    tenths = value.value * 10 * runs
    if possible or (runs > 1 and abs(tenths - round(tenths)) <= 10 * runs * rounding(value)):
        return None
    return below, below + step


def impossible_spreads(values: Sequence[PublishedValue]) -> Iterator[Finding]:
    """Yield spreads that are impossible for the stated number of runs, or for accuracies from 0 to 100 %."""
    for value in values:
        if value.std is None or not literature.is_accuracy(value):
            continue
        paper = library.find(value.paper)
        stated, kind = paper.protocol_of(value.table, value.setting), paper.spread_of(value.table)
        runs, mean = stated.runs if stated.seeds else None, value.value
        if kind == "range":
            if value.std > mean or mean + value.std > 100:
                yield Finding(
                    value,
                    "impossible ±",
                    f"prints {value.text}; as the distance to the smallest or largest accuracy, which the "
                    "source says it is, it would leave the range from 0 to 100",
                )
        elif runs == 1 and value.std > 0:
            yield Finding(value, "impossible ±", f"prints {value.text} for a single run, which has no spread")
        else:
            count = runs or 2
            largest = math.sqrt(count / (count - 1) * mean * (100 - mean)) if 0 < mean < 100 else 0.0
            if kind == "std" and value.std > largest + rounding(value) + SINGLE_ROUNDING:
                yield Finding(
                    value,
                    "impossible ±",
                    f"prints {value.text}; {count} accuracies between 0 and 100 with this mean have a "
                    f"standard deviation of at most {largest:.2f}",
                )
