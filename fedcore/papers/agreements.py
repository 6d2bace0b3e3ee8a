"""Values of several sources: equal to the last digit, shifted by a constant, or far apart in one setting.

Zero-shot CLIP is left out of the search for equal values: nothing is trained, so independent measurements
give equal values.
"""

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from fedcore.base.progress import listed
from fedcore.papers import library, literature
from fedcore.papers.library import Paper
from fedcore.papers.published import WHOLE_SETS, Finding, PublishedValue
from fedcore.results.statistics import group_by

CellPlace = tuple[str, str, str]
"""Data set, target and half of the classes of a cell."""
LAST_DIGIT, NEIGHBOURHOOD = 0.01, 1.0
"""Difference up to which two printed values look equal, and points within which neighbours are counted."""
BY_CHANCE = 0.01
"""Rows count as quoted if chance would give fewer such coincidences among all comparisons."""
FEWEST_SHIFTED, SHIFT_ROUNDING = 3, 0.011
FAR_POINTS, FAR_SPREADS, FAR_ANYWAY = 3.0, 3.0, 8.0
"""Values are far apart if they differ by at least this many points and standard deviations. A difference of
8 points always counts: a printed +- of ten points or more is over clients, not over seeds."""
STATED = ("backbone", "training", "classes", "partition", "clients")
"""Parts that two values of the same nominal setting must not state differently. Rounds may differ."""


@dataclass(frozen=True)
class _Row:
    """The accuracies of a baseline in one setting of a source, without those that follow from others."""

    paper: Paper
    baseline: str
    cells: Mapping[CellPlace, PublishedValue]


@dataclass(frozen=True)
class _Match:
    """Two rows with equal cells; chance would make ``expected`` of all compared pairs at least as equal."""

    first: _Row
    second: _Row
    shared: tuple[CellPlace, ...]
    equal: tuple[CellPlace, ...]
    expected: float

    @property
    def sides(self) -> tuple[tuple[_Row, _Row], ...]:
        return (self.first, self.second), (self.second, self.first)

    @property
    def papers(self) -> frozenset[str]:
        return frozenset((self.first.paper.key, self.second.paper.key))


def _rows(values: Sequence[PublishedValue]) -> list[_Row]:
    found: dict[tuple[str, ...], dict[CellPlace, PublishedValue]] = defaultdict(dict)
    for value in values:
        baseline, dataset = literature.baseline(value), literature.dataset(value)
        if baseline == literature.ZERO_SHOT or not dataset or not literature.is_accuracy(value):
            continue
        if library.find(value.paper).metric(value.metric).parts:
            continue
        # a value may be copied into a table of another quantity, but not from one half to the other
        quantity = literature.quantity(value)
        half = quantity if quantity in ("base classes", "new classes") else ""
        place = dataset, _domain(value.target), half
        found[value.paper, baseline, value.setting, value.backbone].setdefault(place, value)
    for cells in found.values():
        averaged = {(d, q) for d, target, q in cells if target}
        for place in [p for p in cells if not p[1] and (p[0], p[2]) in averaged]:
            del cells[place]  # an average follows from its domains
    return [_Row(library.find(key[0]), key[1], cells) for key, cells in found.items() if cells]


def _domain(target: str) -> str:
    """Return the domain of a target by its first letter, as sources abbreviate it; empty for a whole set."""
    return "" if target in WHOLE_SETS else target[:1].upper()


def _matches(values: Sequence[PublishedValue]) -> list[_Match]:
    rows = _rows(values)
    printed: dict[CellPlace, list[float]] = defaultdict(list)
    for row in rows:
        for place, value in row.cells.items():
            printed[place].append(value.value)
    for numbers in printed.values():
        numbers.sort()
    compared = [
        (first, second, shared)
        for group in group_by(rows, lambda row: row.baseline).values()
        for first, second in combinations(group, 2)
        if first.paper.key != second.paper.key
        and (shared := tuple(p for p in first.cells if p in second.cells))
    ]
    found = []
    for first, second, shared in compared:
        equal = tuple(p for p in shared if first.cells[p].value == second.cells[p].value)
        chances = []  # that an independent value equals the first one, from the density of values around it
        for place in shared:
            every, own = printed[place], first.cells[place].value
            near = bisect_right(every, own + NEIGHBOURHOOD) - bisect_left(every, own - NEIGHBOURHOOD)
            density = near / (len(every) + 1) / (2 * NEIGHBOURHOOD)
            chances.append(min(1.0, LAST_DIGIT * max(density, 1 / 100)))
        tail = _tail(len(shared), len(equal), sum(chances) / len(chances))
        found.append(_Match(first, second, shared, equal, tail * len(compared)))
    return found


def _tail(cells: int, equal: int, chance: float) -> float:
    """Return the probability that at least ``equal`` of the cells are equal by chance."""
    return sum(math.comb(cells, k) * chance**k * (1 - chance) ** (cells - k) for k in range(equal, cells + 1))


def equal(values: Sequence[PublishedValue]) -> Iterator[Finding]:
    """Yield values that equal another source's to the last digit, and rows that differ by a constant only.

    A row is quoted if chance would hardly give as many equal cells anywhere among all compared rows.
    """
    matches = _matches(values)
    certain = {(m.papers, m.first.baseline) for m in matches if m.expected < BY_CHANCE}
    copied: dict[PublishedValue, dict[str, _Match]] = defaultdict(dict)
    for match in matches:
        editions = match.first.paper.work == match.second.paper.work  # they print the same values
        if (match.papers, match.first.baseline) in certain and not editions:
            for row, other in match.sides:
                for place in match.equal:
                    copied[row.cells[place]][other.paper.title] = match
    for value, by_title in copied.items():
        best = min(by_title.values(), key=lambda m: m.expected)
        yield Finding(
            value,
            "quoted from",
            f"{value.mean_text} is printed to the last digit by {listed(sorted(by_title), most=4)} too "
            f"({len(best.equal)} of {len(best.shared)} cells of the row are equal): not measured again",
        )
    yield from _shifted(matches)


def _shifted(matches: Sequence[_Match]) -> Iterator[Finding]:
    """Yield rows that differ by a constant between two sources that are equal in another row."""
    several = [match for match in matches if len(match.shared) >= FEWEST_SHIFTED]
    equal_rows = {m.papers: m.first.baseline for m in several if m.equal == m.shared}
    for match in several:
        if match.papers not in equal_rows or match.equal:
            continue
        shifts = [match.first.cells[p].value - match.second.cells[p].value for p in match.shared]
        shift = sum(shifts) / len(shifts)
        if max(abs(s - shift) for s in shifts) > SHIFT_ROUNDING:
            continue
        for row, other in match.sides:
            direction = "above" if (shift > 0) == (row is match.first) else "below"
            for value in row.cells.values():
                yield Finding(
                    value,
                    "shifted",
                    f"every cell of this row is {abs(shift):.2f} {direction} that of {other.paper.title}, "
                    f"which is equal in the row of {equal_rows[match.papers]}",
                )


def far_apart(values: Sequence[PublishedValue]) -> Iterator[Finding]:
    """Yield values that are far from another source's for the same baseline, data and stated setting."""
    accuracies = (value for value in values if literature.dataset(value) and literature.is_accuracy(value))
    for group in group_by(
        accuracies,
        lambda v: (literature.baseline(v), literature.dataset(v), _domain(v.target), literature.quantity(v)),
    ).values():
        if len({library.find(v.paper).work for v in group}) < 2:
            continue
        stated = [(value, literature.setting_of(value)) for value in group]
        for value, setting in stated:
            others = [
                other
                for other, theirs in stated
                if library.find(other.paper).work != library.find(value.paper).work
                and _one_setting(setting, theirs)
            ]
            far = [other for other in others if _is_far(value, other)]
            if far and 2 * len(far) >= len(others):
                other = max(far, key=lambda found: abs(found.value - value.value))
                shots = f"{setting['shots']} images per class" if setting["shots"] else "no training"
                text = (
                    f"{value.source} prints {value.text}, and "
                    f"{other.source} {other.text}, both with {shots} and nothing else stated differently: "
                    f"{abs(value.value - other.value):.2f} points apart"
                )
                yield Finding(value, "far apart", text)


def _one_setting(first: Mapping[str, str], second: Mapping[str, str]) -> bool:
    """Return whether both state the same images per class, or train nothing, and differ in nothing stated."""
    same_shots = first["shots"] == second["shots"] and (first["shots"] or first["training"] == "zero-shot")
    return (
        bool(same_shots)
        and first["detail"] == second["detail"]
        and all(first[part] == second[part] for part in STATED if first[part] and second[part])
    )


def _is_far(first: PublishedValue, second: PublishedValue) -> bool:
    spreads = [v.std or 0.0 for v in (first, second) if library.find(v.paper).spread_of(v.table) == "std"]
    far = min(FAR_ANYWAY, max(FAR_POINTS, FAR_SPREADS * math.hypot(*spreads)))
    return abs(first.value - second.value) >= far
