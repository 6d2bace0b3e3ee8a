"""Contradictions between printed values and their table, source, test set, or other sources.

An audit does not prove a mistake. It explains in a sentence what is impossible or unlikely about a cell.
Audits run when a paper is added (``adding``) and, for those that ship, in ``python -m tools.docs``; pages and
commands read what they found (``published.findings_of``).
"""

import csv
import math
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from statistics import fmean

from fedcore.base.progress import counted
from fedcore.papers import agreements, library, literature
from fedcore.papers.library import FOLDER, Formula
from fedcore.papers.literature import NUMBERS
from fedcore.papers.published import (
    PLACE,
    WHOLE_SETS,
    Finding,
    FindingKind,
    PublishedValue,
    decimals_of,
    load,
    load_all,
)
from fedcore.results.statistics import group_by

SOURCE = "ImageNet"
"""Data set that models are trained on before a transfer; some averages over the others include it."""
FEWEST_ROWS, FEWEST_CELLS = 3, 5
POWER = 0.5
"""Shares are not tested if a larger part of all values would pass, since that would say little."""
SINGLE_ROUNDING = 0.005
"""Half of the last digit with which logs print the accuracy of a single run, before averaging."""
RULES_APART = 1.5
"""More points than lie between the two rules for an average harmonic mean in any table that prints all of
its data sets: a harmonic mean further below that of the averages follows from neither."""
_PART = r"(?<=\d)(\([a-z]\)|[a-z])$"
"""The letter of a part of a table, such as ``1a`` and ``1(b)``."""
GroupKey = tuple[object, ...]


def findings(papers: Collection[str]) -> dict[str, list[Finding]]:
    """Return what the audits find in each of these papers beside all others, in the order of its values."""
    found = [finding for paper in papers for finding in inside(load(paper))]
    found += [*agreements.equal(load_all()), *agreements.far_apart(load_all())]
    place = {value: i for i, value in reversed([*enumerate(load_all())])}
    by_paper = group_by(sorted(found, key=lambda f: place[f.value]), lambda f: f.value.paper)
    return {paper: by_paper.get(paper, []) for paper in papers}


def inside(values: Sequence[PublishedValue]) -> list[Finding]:
    """Return the findings of the audits that need one source alone, whose values these are."""
    return [
        *derived(values),
        *unstated_averages(values),
        *printed_twice(values),
        *repeated_rows(values),
        *impossible_shares(values),
        *impossible_spreads(values),
    ]


def is_average(dataset: str) -> bool:
    """Return whether the printed data set is an average over several."""
    return dataset.startswith("avg")


def bounds(value: PublishedValue) -> tuple[float, float]:
    """Return the smallest and largest exact value behind a printed one, which was rounded or cut off."""
    digit = 10.0 ** -decimals_of(value.written[0])
    return value.value - digit / 2, value.value + digit


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


def follows(
    printed: PublishedValue, parts: Sequence[PublishedValue], rule: Callable[[Sequence[float]], float]
) -> bool:
    """Return whether a printed value can be a rule's result for the exact values behind printed parts.

    The rules grow with each part, so that their smallest and largest results are those of the smallest and
    largest parts that are printed so.
    """
    low, high = (rule(ends) for ends in zip(*map(bounds, parts), strict=True))
    return low - 1e-9 <= bounds(printed)[1] and bounds(printed)[0] <= high + 1e-9


@dataclass(frozen=True)
class _Tested:
    """A printed value held against the values that it seems to be computed from.

    Attributes:
        where: the cells whose rule is one: a table's averages, or the harmonic means of a source.
        text: what follows from the parts instead; empty if the value follows from them.
        kind: of the finding, if the text is not empty.
        certain: the finding holds by any rule, whatever the other cells follow.
    """

    value: PublishedValue
    where: GroupKey
    text: str = ""
    kind: FindingKind = "does not follow"
    certain: bool = False


def derived(values: Sequence[PublishedValue]) -> Iterator[Finding]:
    """Yield averages and combined metrics that do not follow from the printed values they are made of.

    A source may average data sets that its table does not show, or compute a mean otherwise. A rule is
    therefore only held against one of several values of its kind if at least half of them follow the rule.
    """
    tested = group_by([*_averages(values), *_combinations(values)], lambda test: test.where)
    for group in tested.values():
        right = sum(not test.text or test.kind == "other rule" for test in group)
        follow = f"; {counted(right, 'other such cell')} of the source follow" if right else ""
        for test in group:
            if test.text and (test.certain or len(group) == 1 or 2 * right >= len(group)):
                printed = f"{test.value.source} prints {test.value.mean_text} for {test.value.method}"
                others = follow if test.kind == "does not follow" else ""
                yield Finding(test.value, test.kind, f"{printed}, {test.text}{others}")


def _rows(values: Iterable[PublishedValue], *fields: str) -> dict[GroupKey, list[PublishedValue]]:
    """Group values by every identifying field except some."""
    identifying = [name for name in ("paper", *PLACE) if name not in fields]
    return group_by(values, lambda value: tuple(getattr(value, name) for name in identifying))


def _averages(values: Sequence[PublishedValue]) -> Iterator[_Tested]:
    """Test averages over domains or data sets."""
    for row in _rows(values, "target").values():
        averages = [v for v in row if v.target == "avg"]
        domains = [v for v in row if v.target not in WHOLE_SETS]
        if len(averages) == 1 and len(domains) > 1:
            yield _mean_of(averages[0], domains, "domains")
    printed = {(*_place(value), value.metric) for value in values}
    single = [  # `_combinations` tests the others, since the metrics that they are computed from are printed
        v
        for v in values
        if not (metrics := library.find(v.paper).metric(v.metric).parts)
        or not all((*_place(v), metric) in printed for metric in metrics)
    ]
    rows: list[tuple[PublishedValue, list[PublishedValue]]] = []
    for row in group_by(
        single, lambda v: (re.sub(_PART, "", v.table), v.backbone, v.method, v.target, v.metric)
    ).values():
        of_sets = [v for v in row if not is_average(v.dataset)]
        rows += [(v, _averaged(v, of_sets)) for v in row if is_average(v.dataset)]
    for where, table in group_by(rows, lambda row: (row[0].table, row[0].dataset)).items():
        complete = max(len(parts) for _, parts in table)  # others lack a data set
        for average, parts in table:
            others = [v for v in parts if v.dataset != SOURCE]
            if 1 < len(parts) == complete:
                without = 0 < len(others) < len(parts) and follows(average, others, fmean)
                yield _Tested(average, where) if without else _mean_of(average, parts, "data sets")


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


def _mean_of(average: PublishedValue, parts: Sequence[PublishedValue], what: str) -> _Tested:
    mean = fmean(part.value for part in parts)
    text = f"and the mean of the {len(parts)} {what} of its row is {mean:.2f}"
    text = "" if follows(average, parts, fmean) else text
    return _Tested(average, (average.table, average.dataset), text, certain=" of " in average.dataset)


def _combinations(values: Sequence[PublishedValue]) -> Iterator[_Tested]:
    """Test harmonic means, and other metrics computed from metrics."""
    paper = library.find(values[0].paper)
    formulas = {m: notes for m in dict.fromkeys(v.metric for v in values) if (notes := paper.metric(m)).parts}
    by_metric: dict[GroupKey, dict[str, PublishedValue]] = defaultdict(dict)
    for value in values:
        by_metric[_place(value)][value.metric] = value
    for row in by_metric.values():
        for metric, notes in formulas.items():
            if metric in row and all(part in row for part in notes.parts):
                parts = [row[part] for part in notes.parts]
                if test := _combined(row[metric], parts, notes.formula, values):
                    yield test


def _place(value: PublishedValue) -> GroupKey:
    """Return the fields that a metric shares with the metrics from which it is computed."""
    domain = "" if value.target in WHOLE_SETS else value.target
    return value.table, value.dataset, value.setting, value.backbone, value.method, domain


def _combined(
    printed: PublishedValue,
    parts: Sequence[PublishedValue],
    formula: Formula,
    values: Sequence[PublishedValue],
) -> _Tested | None:
    """Test a combined metric; an average may also be the mean of the data sets' combined metrics.

    That mean is at most the metric of the averages, since all rules are concave (Jensen's inequality).

    Returns: None if it follows from neither printed rule but could be such a mean.
    """
    name, rule = FORMULAS[formula]
    average = is_average(printed.dataset)
    where = (printed.table, printed.dataset, printed.metric) if average else (printed.metric,)
    if follows(printed, parts, rule):
        return _Tested(printed, where)
    given = rule([part.value for part in parts])
    text = f"and {name} of {', '.join(part.mean_text for part in parts)} is {given:.2f}"
    above = bounds(printed)[0] > rule([bounds(part)[1] for part in parts])
    if not average:
        return _Tested(printed, where, text + _copied(parts, values), certain=above)
    single = _averaged(printed, _same_row(printed, values))
    if len(single) > 1 and follows(printed, single, fmean):
        other = f"the mean of its {len(single)} data sets' values; {text.removeprefix('and ')}"
        return _Tested(printed, where, other, "other rule", certain=True)
    if not above and given - printed.value <= RULES_APART:
        of_sets = ((part, _averaged(part, _same_row(part, values))) for part in parts)
        if len(single) < 2 or not all(follows(part, row, fmean) for part, row in of_sets):
            return None  # its data sets are not all printed, and their mean would explain it
        text += f" and the mean of its data sets' values {fmean(value.value for value in single):.2f}"
    return _Tested(printed, where, text, certain=True)


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
                    mean = [fmean([p.value for p in row if p is not None]) for row in parts]
                    given[value] = rule(mean)
                    right += _near(given[value], value)
            if right > best[0]:
                best = right, chosen, given
        right, chosen, given = best
        if right < max(FEWEST_ROWS, len(column) / 2):
            continue
        for value, number in given.items():
            if not _near(number, value):
                text = (
                    f"{value.source} prints {value.mean_text} for {value.method}, and {name} "
                    f"of the means over {', '.join(chosen)} is {number:.2f}; {right} other rows of the "
                    "table follow from these"
                )
                yield Finding(value, "does not follow", text)


def _near(number: float, printed: PublishedValue) -> bool:
    """Return whether a number that is computed from rounded ones is at most one digit off a printed value."""
    return abs(number - printed.value) <= bounds(printed)[1] - printed.value + 1e-9


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
            same = (v.table, v.method, v.metric, v.setting, v.value) == where and v.dataset != part.dataset
            if same and not is_average(v.dataset):
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


def repeated_rows(values: Sequence[PublishedValue]) -> Iterator[Finding]:
    """Yield rows of several cells that equal another method's row of their table in each cell."""
    accuracies = filter(literature.is_accuracy, values)
    for table in group_by(accuracies, lambda v: (v.table, v.setting, v.backbone)).values():
        by_row = group_by(table, lambda v: v.method)
        rows = {m: {(v.dataset, v.target, v.metric): v.value for v in row} for m, row in by_row.items()}
        for first, second in combinations(rows, 2):
            if len(rows[first]) >= FEWEST_CELLS and rows[first] == rows[second]:
                text = f"prints the same {len(rows[first])} values for {first} and {second}"
                for value in (*by_row[first], *by_row[second]):
                    yield Finding(value, "repeated row", f"{value.source} {text}")


@cache
def test_sets() -> dict[tuple[str, ...], dict[str, str]]:
    """Return the lines of ``test_sets.csv`` by name of the sets, data set, quantity and domain.

    ``images`` are those behind an accuracy, and ``runs`` the runs as the values themselves show it; empty: as
    the source says. Values of the methods in ``unless`` are not shares of these images.
    """
    with (FOLDER / "test_sets.csv").open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    return {(x["test_sets"], x["dataset"], x["quantity"], x["target"]): x for x in lines}


def test_set_of(value: PublishedValue) -> tuple[int, int] | None:
    """Return the images and the runs behind an accuracy; None if they are not known."""
    stated = literature.protocol(value)
    domain = "" if value.target in WHOLE_SETS else value.target
    place = stated.tested_on, literature.dataset(value), literature.quantity(value), domain
    line = test_sets().get(place)
    if line is None or (line["unless"] and library.matches(value.method, tuple(line["unless"].split()))):
        return None
    runs = int(line["runs"] or 0) or stated.runs
    return None if runs is None else (int(line["images"]), runs)


def impossible_shares(values: Sequence[PublishedValue]) -> Iterator[Finding]:
    """Yield accuracies that no whole number of right answers gives in the stated number of runs.

    An accuracy is a number of right answers over the size of the test set, and a mean over n runs one over n
    times that size: the test of means for granularity (GRIM; Brown and Heathers, 2017).
    """
    for value in values:
        tested = test_set_of(value)
        nearest = tested and nearest_shares(value, *tested)
        if tested and nearest:
            images, runs = tested
            of_runs = "a run" if runs == 1 else f"the mean of {runs} runs"
            text = (
                f"{value.source} prints {value.mean_text} for {value.method}, which is not the accuracy of "
                f"{of_runs} on {images:,} test images; the nearest are {nearest[0]:.2f} and {nearest[1]:.2f}"
            )
            yield Finding(value, "impossible share", text)


def nearest_shares(value: PublishedValue, images: int, runs: int) -> tuple[float, float] | None:
    """Return the possible accuracies around an impossible one; None if the printed one may be possible."""
    step = 100 / (images * runs)
    margin = (SINGLE_ROUNDING if runs > 1 else 0) + 1e-9
    low, high = bounds(value)[0] - margin, bounds(value)[1] + margin
    if high - low > POWER * step:
        return None
    possible = math.floor(high / step) * step >= low
    # logs that print one decimal give means of such numbers
    tenths = value.value * 10 * runs
    half_digit = value.value - bounds(value)[0]
    if possible or (runs > 1 and abs(tenths - round(tenths)) <= 10 * runs * half_digit):
        return None
    below = math.floor(value.value / step) * step
    return below, below + step


def impossible_spreads(values: Sequence[PublishedValue]) -> Iterator[Finding]:
    """Yield spreads that are impossible for the stated number of runs, or for accuracies from 0 to 100 %."""
    for value in values:
        if value.std is None or not literature.is_accuracy(value):
            continue
        paper = library.find(value.paper)
        stated, kind = paper.protocol_of(value.table, value.setting), paper.spread_of(value.table)
        runs, mean, text = stated.runs if stated.seeds else None, value.value, ""
        if kind == "range" and (value.std > mean or mean + value.std > 100):
            source = (
                paper.notes_on(value.table).spread_from
                or "the source says that it is the range of accuracies"
            )
            outside = mean - value.std if value.std > mean else mean + value.std
            text = f"{source}; no accuracy is {outside:.2f}"
        elif kind != "range" and runs == 1 and value.std > 0:
            text = "a single run has no spread"
        elif kind == "std":
            count = runs or 2
            largest = math.sqrt(count / (count - 1) * mean * (100 - mean)) if 0 < mean < 100 else 0.0
            if value.std > largest + 2 * SINGLE_ROUNDING:
                text = (
                    f"{count} accuracies between 0 and 100 with this mean have a standard deviation of at "
                    f"most {largest:.2f}"
                )
        if text:
            text = f"{value.source} prints {value.text} for {value.method}; {text}"
            yield Finding(value, "impossible ±", text)
