"""Contradictions between printed values and their table, source, test set, or other sources.

An audit does not prove a mistake. It explains in a sentence what is impossible or unlikely about a cell.
Audits run when a paper is added (``adding``) and, for those that ship, in ``python -m tools.docs``; pages and
commands read what they found (``published.findings_of``).
"""

import csv
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache

from fedcore.papers import agreements, library, literature
from fedcore.papers.library import FOLDER, Formula
from fedcore.papers.literature import NUMBERS
from fedcore.papers.published import WHOLE_SETS, Finding, PublishedValue, load, load_all
from fedcore.results.statistics import group_by

HALF_DIGIT = 0.5
SOURCE = "ImageNet"
"""Data set that models are trained on before a transfer; some averages over the others include it."""
FEWEST_ROWS = 3
POWER = 0.5
"""Shares are not tested if a larger part of all values would pass, since that would say little."""
SINGLE_ROUNDING = 0.005
"""Half of the last digit with which logs print the accuracy of a single run, before averaging."""
GroupKey = tuple[object, ...]


def findings() -> dict[str, list[Finding]]:
    """Return what the audits find in each paper, in the order of its values."""
    papers = library.papers()
    found = [finding for paper in papers for finding in inside(load(paper))]
    found += [*agreements.equal(load_all()), *agreements.far_apart(load_all())]
    place = {value: i for i, value in reversed([*enumerate(load_all())])}
    by_paper = group_by(sorted(found, key=lambda f: place[f.value]), lambda f: f.value.paper)
    return {paper: by_paper.get(paper, []) for paper in papers}


def inside(values: Sequence[PublishedValue]) -> list[Finding]:
    """Return the findings of the audits that need one source alone, whose values these are."""
    return [
        *means(values),
        *combinations(values),
        *unstated_averages(values),
        *printed_twice(values),
        *impossible_shares(values),
        *impossible_spreads(values),
    ]


def is_average(dataset: str) -> bool:
    """Return whether the printed data set is an average over several."""
    return dataset.startswith("avg")


def rounding(value: PublishedValue) -> float:
    """Return how far the exact value may be from a printed one: half of the last digit of its column."""
    return HALF_DIGIT * 10.0 ** -_digits(value.paper).get(_column(value), 2)


def _column(value: PublishedValue) -> GroupKey:
    return value.table, value.metric, is_average(value.dataset) or value.target == "avg"


@library.cached
def _digits(paper: str) -> dict[GroupKey, int]:
    """Return the largest number of decimals in each column, since trailing zeros may not be printed."""
    digits: dict[GroupKey, int] = {}
    for value in load(paper):
        printed = value.written[0].partition(".")[2]
        digits[_column(value)] = max(len(printed), digits.get(_column(value), 0))
    return digits


def _harmonic(numbers: Sequence[float]) -> float:
    return len(numbers) / sum(1 / x for x in numbers) if all(x > 0 for x in numbers) else 0.0


FORMULAS: dict[Formula, tuple[str, Callable[[Sequence[float]], float]]] = {
    "harmonic mean": ("the harmonic mean", _harmonic),
    "mean of the first and the harmonic mean of the others": (
        "the combined metric",
        lambda numbers: (numbers[0] + _harmonic(numbers[1:])) / 2,
    ),
}
"""Formula -> its name in a sentence, and the rule."""


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers)


def follows(
    printed: PublishedValue, parts: Sequence[PublishedValue], rule: Callable[[Sequence[float]], float]
) -> bool:
    """Return whether a printed value can be a rule's result for the exact values behind printed parts.

    The rules grow with each part, so that their smallest and largest results are those of the smallest and
    largest parts that round to what is printed.
    """
    low = rule([part.value - rounding(part) for part in parts])
    high = rule([part.value + rounding(part) for part in parts])
    margin = rounding(printed) + 1e-9
    return low - margin <= printed.value <= high + margin


def _rows(values: Iterable[PublishedValue], *fields: str) -> dict[GroupKey, list[PublishedValue]]:
    """Group values by every identifying field except some."""
    every = ("paper", "table", "dataset", "setting", "backbone", "method", "target", "metric")
    identifying = [name for name in every if name not in fields]
    return group_by(values, lambda value: tuple(getattr(value, name) for name in identifying))


def means(values: Sequence[PublishedValue]) -> Iterator[Finding]:
    """Yield averages over domains or data sets that are not the mean of the values that they average."""
    for row in _rows(values, "target").values():
        averages = [v for v in row if v.target == "avg"]
        domains = [v for v in row if v.target not in WHOLE_SETS]
        if len(averages) == 1 and len(domains) > 1:
            yield from _not_the_mean(averages[0], domains, "domains")
    printed = {(*_place(value), value.metric) for value in values}
    single = [  # `combinations` checks the others, since the metrics that they are computed from are printed
        v
        for v in values
        if not (metrics := library.find(v.paper).metric(v.metric).parts)
        or not all((*_place(v), metric) in printed for metric in metrics)
    ]
    for row in _rows(single, "dataset", "setting").values():
        averages = [v for v in row if is_average(v.dataset)]
        for average in averages:
            parts = _averaged(average, [v for v in row if not is_average(v.dataset)])
            others = [v for v in parts if v.dataset != SOURCE]
            if len(parts) > 1 and not (0 < len(others) < len(parts) and follows(average, others, _mean)):
                yield from _not_the_mean(average, parts, "data sets")


def _averaged(average: PublishedValue, row: Sequence[PublishedValue]) -> list[PublishedValue]:
    """Return the values of the row that an average is over: those of its setting, or one per data set."""
    of_setting = [v for v in row if v.setting == average.setting]
    if "(" in average.dataset:
        named = average.dataset.partition("(")[2].rstrip(")").split(", ")
        of_setting = [v for v in of_setting if v.dataset in named]
    chosen = of_setting if len(of_setting) > 1 else list(row)
    if average.setting == "cross-data-set" or len({v.dataset for v in chosen}) < len(chosen):
        chosen = of_setting
    stated = next((n for n, word in enumerate(NUMBERS) if n > 2 and f"of {word}" in average.dataset), None)
    return chosen if stated in (None, len(chosen)) else []


def _not_the_mean(average: PublishedValue, parts: Sequence[PublishedValue], what: str) -> Iterator[Finding]:
    if not follows(average, parts, _mean):
        mean = _mean([part.value for part in parts])
        yield Finding(
            average,
            "does not follow",
            f"prints {average.mean_text} as the average, and the mean of its {len(parts)} {what} "
            f"is {mean:.2f}",
        )


def combinations(values: Sequence[PublishedValue]) -> Iterator[Finding]:
    """Yield harmonic means, and other metrics computed from metrics, that do not follow from their parts."""
    paper = library.find(values[0].paper)
    formulas = {m: notes for m in dict.fromkeys(v.metric for v in values) if (notes := paper.metric(m)).parts}
    by_metric: dict[GroupKey, dict[str, PublishedValue]] = defaultdict(dict)
    for value in values:
        by_metric[_place(value)][value.metric] = value
    for row in by_metric.values():
        for metric, notes in formulas.items():
            if metric in row and all(part in row for part in notes.parts):
                yield from _combined(row[metric], [row[part] for part in notes.parts], notes.formula, values)


def _place(value: PublishedValue) -> GroupKey:
    """Return the fields that a metric shares with the metrics from which it is computed."""
    domain = "" if value.target in WHOLE_SETS else value.target
    return value.table, value.dataset, value.setting, value.backbone, value.method, domain


def _combined(
    printed: PublishedValue,
    parts: Sequence[PublishedValue],
    formula: Formula,
    values: Sequence[PublishedValue],
) -> Iterator[Finding]:
    name, rule = FORMULAS[formula]
    if follows(printed, parts, rule):
        return
    given = rule([part.value for part in parts])
    named = f"{name} of {', '.join(part.mean_text for part in parts)} is {given:.2f}"
    if is_average(printed.dataset):
        single = _averaged(printed, _same_row(printed, values))
        if len(single) > 1 and follows(printed, single, _mean):
            yield Finding(
                printed,
                "other rule",
                f"prints {printed.mean_text}, the mean of {len(single)} values of the data sets; {named}",
            )
            return
    yield Finding(
        printed, "does not follow", f"prints {printed.mean_text}, and {named}{_copied(parts, values)}"
    )


def unstated_averages(values: Sequence[PublishedValue]) -> Iterator[Finding]:
    """Yield wrong averages over data sets that the table does not name, but that its other rows reveal.

    These are the first k data sets of the source, in its order, if most rows of the table follow from them.
    """
    paper = library.find(values[0].paper)
    unnamed = [v for v in values if v.dataset in literature.AVERAGES and paper.metric(v.metric).parts]
    datasets = list(dict.fromkeys(v.dataset for v in values if literature.dataset(v)))
    single = {(v.method, v.metric, v.dataset): v for v in reversed(values) if literature.dataset(v)}
    for column in _rows(unnamed, "method").values():
        notes = paper.metric(column[0].metric)
        name, rule = FORMULAS[notes.formula]
        best: tuple[int, list[str], dict[PublishedValue, float]] = 0, [], {}
        for count in range(2, len(datasets) + 1):
            chosen, given, right = datasets[:count], {}, 0
            for value in column:
                parts = [[single.get((value.method, part, d)) for d in chosen] for part in notes.parts]
                if all(p is not None for row in parts for p in row):
                    mean = [_mean([p.value for p in row if p is not None]) for row in parts]
                    given[value] = rule(mean)
                    right += abs(given[value] - value.value) <= 2 * rounding(value) + 1e-9
            if right > best[0]:
                best = right, chosen, given
        right, chosen, given = best
        if right < max(FEWEST_ROWS, len(column) / 2):
            continue
        for value, number in given.items():
            if abs(number - value.value) > 2 * rounding(value) + 1e-9:
                yield Finding(
                    value,
                    "does not follow",
                    f"prints {value.mean_text}, and {name} of the means over "
                    f"{', '.join(chosen)} is {number:.2f}; {right} other rows of the table follow from these",
                )


def _same_row(printed: PublishedValue, values: Sequence[PublishedValue]) -> list[PublishedValue]:
    """Return the values of the same row of the source for single data sets, in its other tables too."""
    found: dict[str, PublishedValue] = {}
    for v in values:
        of_row = (v.method, v.metric, v.target) == (printed.method, printed.metric, printed.target)
        single = v.dataset and not is_average(v.dataset) and v.setting == printed.setting
        if of_row and single and (v.table == printed.table or v.dataset not in found):
            found[v.dataset] = v
    return list(found.values())


def _copied(parts: Sequence[PublishedValue], values: Sequence[PublishedValue]) -> str:
    """Return the part that the table also prints for another data set, in a sentence; empty if none."""
    for part in parts:
        where = part.table, part.method, part.metric, part.setting, part.value
        for v in values:
            if (v.table, v.method, v.metric, v.setting, v.value) == where and v.dataset != part.dataset:
                return (
                    f"; its {part.metric} {part.mean_text} is also that of {v.dataset}, perhaps a copied cell"
                )
    return ""


def printed_twice(values: Sequence[PublishedValue]) -> Iterator[Finding]:
    """Yield values that the source prints again, for the same setting, with other digits or another +-."""
    for row in _rows(values, "table").values():
        distinct = {(v.value, v.std): v for v in row}
        for value in row:
            others = (v for v in distinct.values() if v.table != value.table)
            other = next((v for v in others if (v.value, v.std) != (value.value, value.std)), None)
            if other and (value.value != other.value or None not in (value.std, other.std)):
                yield Finding(
                    value,
                    "printed twice",
                    f"prints {value.text} in this table and {other.text} in "
                    f"{library.find(value.paper).title_of(other.table)}",
                )


@cache
def test_sets() -> dict[tuple[str, str, str], int]:
    """Return the images of the test sets: name of the sets, data set and quantity -> number."""
    with (FOLDER / "test_sets.csv").open(encoding="utf-8", newline="") as file:
        return {
            (row["test_sets"], row["dataset"], row["quantity"]): int(row["images"])
            for row in csv.DictReader(file)
        }


def impossible_shares(values: Sequence[PublishedValue]) -> Iterator[Finding]:
    """Yield accuracies that no whole number of right answers gives in the stated number of runs.

    An accuracy is a number of right answers over the size of the test set, and a mean over n runs one over n
    times that size: the test of means for granularity (GRIM; Brown and Heathers, 2017).
    """
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
