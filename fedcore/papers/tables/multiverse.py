"""A table under every reading of what its paper leaves open: the runs, and each value under each reading."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedcore.papers import library, mini
from fedcore.papers.choices import MOST_READINGS, Alternative, Choice, choices, readings
from fedcore.papers.comparability import comparability
from fedcore.papers.printed_runs import data_sets
from fedcore.papers.published import PublishedValue, load
from fedcore.papers.recorded import RecordedRuns
from fedcore.papers.tables.sources import Availability, RunSource, source_of
from fedcore.papers.tables.status import TableCell, cell_of
from fedcore.progress import counted
from fedcore.results import specification
from fedcore.results.metrics import Rule
from fedcore.results.specification import Effect, Reading, Survival
from fedcore.results.statistics import ValuesBySeed, group_by, signed
from fedcore.store import Store

Found = Mapping[Reading, Mapping[PublishedValue, ValuesBySeed]]
"""Reading -> value -> its value by seed."""


@dataclass(frozen=True)
class Ranking:
    """The values of a table that differ in their method alone, and the one of the paper's own method."""

    title: str
    proposed: PublishedValue
    values: tuple[PublishedValue, ...]

    @property
    def rivals(self) -> tuple[PublishedValue, ...]:
        return tuple(value for value in self.values if value != self.proposed)


def rankings(values: Iterable[PublishedValue]) -> list[Ranking]:
    """Return the rankings of a table that runs can give, those of a mean over domains or clients first.

    The own method is the first of ``Paper.own`` that is there, else the one with the highest printed value.
    """
    with_runs = (value for value in dict.fromkeys(values) if isinstance(source_of(value), RunSource))
    by_place = group_by(with_runs, lambda v: (v.dataset, v.setting, v.backbone, v.target, v.metric))
    found = []
    for place, among in by_place.items():
        mine = [v for name in library.find(among[0].paper).own for v in among if v.method == name]
        proposed = mine[0] if mine else max(among, key=lambda v: v.value)
        title = ", ".join("mean" if part == "avg" else part for part in place if part)
        found.append(Ranking(title, proposed, tuple(among)))
    return sorted(found, key=lambda ranking: ranking.proposed.target != "avg")


@dataclass(frozen=True)
class Multiverse:
    """The readings of a ranking.

    Attributes:
        choices: those that concern one of its values.
        readings: that of FedLens is the first.
        rehearsal: whether the runs are rehearsals on embedded data.
    """

    ranking: Ranking
    choices: tuple[Choice, ...]
    readings: tuple[Reading, ...]
    rehearsal: bool = False

    def taken(self, value: PublishedValue, reading: Reading) -> list[Alternative]:
        """Return the alternatives of a reading that concern a value."""
        pairs = zip(self.choices, reading, strict=True)
        return [choice.alternatives[k] for choice, k in pairs if k and choice.is_about(value)]

    def source(self, value: PublishedValue, reading: Reading) -> RunSource:
        return _source(value, self.taken(value, reading), self.rehearsal)

    def rule(self, value: PublishedValue, reading: Reading) -> Rule:
        return next((a.rule for a in self.taken(value, reading) if a.rule), value.rule)

    def cells(self, recorded: RecordedRuns, available: Availability) -> list[TableCell]:
        """Return a cell for each value and distinct source, whose missing runs ``filling`` queues."""
        sources = dict.fromkeys((v, self.source(v, r)) for r in self.readings for v in self.ranking.values)
        return [cell_of(recorded, v, source, None, available.lacks(source.config)) for v, source in sources]

    def read(self, recorded: RecordedRuns) -> Openness:
        """Return the ranking under every reading whose runs are finished.

        Values without runs in the reading of FedLens are left out, with choices that concern no other value.
        """
        found = self._found(recorded)
        measured = tuple(v for v in self.ranking.values if v in found[self.readings[0]])
        if self.ranking.proposed in measured and measured != self.ranking.values:
            part = multiverse(replace(self.ranking, values=measured), self.rehearsal, len(self.readings))
            return part.read(recorded)
        complete = {r: of for r, of in found.items() if len(of) == len(self.ranking.values)}
        return Openness(self, complete, len(found) - len(complete))

    def _found(self, recorded: RecordedRuns) -> Found:
        """Return the values under each reading, without those whose runs are not all finished."""
        places = [(r, v) for r in self.readings for v in self.ranking.values]
        wanted = {(r, v): (self.source(v, r), self.rule(v, r)) for r, v in places}
        recorded.read_results((source.key, rule) for source, rule in wanted.values())
        read: dict[tuple[PublishedValue, str, Rule], dict[int, float]] = {}
        found: dict[Reading, dict[PublishedValue, ValuesBySeed]] = {r: {} for r in self.readings}
        for (reading, value), (source, rule) in wanted.items():
            place = (value, source.key, rule)
            if place not in read:
                results = recorded.results(source.key, rule)
                by_seed = recorded.reader(source.domains).by_seed(value, results, source.held_out)
                read[place] = {s: by_seed[s] for s in source.experiment.seeds if s in by_seed}
            if len(read[place]) == len(source.experiment.seeds):
                found[reading][value] = _as_read(read[place], self.taken(value, reading))
        return found


def _as_read(by_seed: Mapping[int, float], taken: Sequence[Alternative]) -> ValuesBySeed:
    """Return a value by seed as some alternatives read it that need no other runs.

    Papers round means, not the values of seeds: all seeds are moved by what rounding adds to their mean.
    """
    for alternative in taken:
        if alternative.seed is not None:
            by_seed = dict([list(by_seed.items())[alternative.seed - 1]])
    for digits in (a.digits for a in taken if a.digits is not None):
        mean = float(np.mean(list(by_seed.values())))
        by_seed = {seed: value + round(mean, digits) - mean for seed, value in by_seed.items()}
    return by_seed


def _source(value: PublishedValue, taken: Sequence[Alternative], rehearsal: bool) -> RunSource:
    preset = source_of(value)
    if not isinstance(preset, RunSource):
        raise ValueError(f"no runs give {value}")
    changes = {path: of for alternative in taken for path, of in alternative.set.items()}
    return RunSource(preset.preset, preset.index, rehearsal, tuple(changes.items()))


def multiverse(ranking: Ranking, rehearsal: bool = False, most: int = MOST_READINGS) -> Multiverse:
    """Return the readings of a ranking, at most ``most`` of them.

    Alternatives that read the same runs alike as one before them, as in a rehearsal that lacks a field, are
    left out, and so are choices with a single alternative.
    """
    found = []
    for choice in choices(library.find(ranking.proposed.paper).work):
        about = [v for v in ranking.values if choice.is_about(v)]
        distinct = {_identity(a, about, rehearsal): a for a in reversed(choice.alternatives)}
        left = tuple(a for a in choice.alternatives if a in distinct.values())
        if about and len(left) > 1:
            found.append(choice.model_copy(update={"alternatives": left}))
    return Multiverse(ranking, tuple(found), tuple(readings(found, most)), rehearsal)


def _identity(alternative: Alternative, about: Sequence[PublishedValue], rehearsal: bool) -> object:
    runs = tuple((_source(v, [alternative], rehearsal).key, alternative.rule or v.rule) for v in about)
    return runs, alternative.digits, alternative.seed


@dataclass(frozen=True)
class Openness:
    """A ranking under all readings that are run.

    Attributes:
        readings: reading -> value -> its value by seed; all values of the ranking are known in each.
        missing: number of readings that lack runs.
    """

    multiverse: Multiverse
    readings: Found
    missing: int

    @property
    def ranking(self) -> Ranking:
        return self.multiverse.ranking

    @property
    def means(self) -> dict[Reading, dict[str, float]]:
        """Reading -> method -> mean over seeds."""
        return {
            reading: {
                v.method: round(float(np.mean(list(of[v].values()))), specification.DECIMALS)
                for v in self.ranking.values
            }
            for reading, of in self.readings.items()
        }

    def values(self, rival: PublishedValue | None = None) -> dict[Reading, ValuesBySeed]:
        """Return the paper's own method, or its difference to another one paired by seed, by reading."""
        proposed = {reading: of[self.ranking.proposed] for reading, of in self.readings.items()}
        if rival is None:
            return proposed
        return specification.differences(
            proposed, {reading: of[rival] for reading, of in self.readings.items()}
        )

    def effects(self, rival: PublishedValue | None = None) -> list[Effect]:
        """Return what each alternative moves, see ``specification.effects``."""
        means = {r: float(np.mean(list(of.values()))) for r, of in self.values(rival).items()}
        return specification.effects(means, self.means)

    def named_effects(self, rival: PublishedValue | None = None) -> list[tuple[str, str, Effect]]:
        """Return the effects with the names of their choice and alternative."""
        made = self.multiverse.choices
        return [
            (made[e.choice].name, made[e.choice].alternatives[e.alternative].label, e)
            for e in self.effects(rival)
        ]

    @property
    def survival(self) -> Survival:
        return specification.survival(self.means, self.ranking.proposed.method)

    def weights(self, value: PublishedValue) -> dict[str, str]:
        """Return how much each caveat of a value matters: its text -> in words; none for one without runs."""
        if value not in self.ranking.values:
            return {}
        moved = specification.effects({r: of[value.method] for r, of in self.means.items()}, self.means)
        about = [choice.is_about(value) for choice in self.multiverse.choices]
        found = {}
        for _, text in comparability(value).reasons:
            mine = [
                e
                for e in moved
                if about[e.choice] and text.startswith(self.multiverse.choices[e.choice].reasons)
            ]
            if mine:
                found[text] = specification.weight_text(mine)
        return found


def caveat_weights(recorded: RecordedRuns, value: PublishedValue, rehearsal: bool) -> dict[str, str]:
    """Return how much each caveat of a value matters, as far as recorded runs show: its text -> in words."""
    if not isinstance(source_of(value), RunSource):
        return {}
    of_table = [other for other in load(value.paper) if other.table == value.table]
    (ranking,) = [r for r in rankings(of_table) if value in r.values]
    shown = multiverse(ranking, rehearsal).read(recorded)
    where = "in rehearsal: " if rehearsal else ""
    return {text: f"{where}{weight}" for text, weight in shown.weights(value).items()}


def recorded_runs(store: Store, rehearsal: bool) -> RecordedRuns:
    """Return the runs of a store that can give values of papers, or of their rehearsals."""
    return RecordedRuns(store, {mini.DATA} if rehearsal else data_sets())


def report(shown: Openness) -> list[str]:
    """Return a ranking under all readings in lines of text."""
    ranking, lines = shown.ranking, []
    where = " (in rehearsal: no evidence about the paper)" if shown.multiverse.rehearsal else ""
    lines.append(
        f"{ranking.title}: {counted(len(shown.readings), 'reading')} run, {shown.missing} not{where}"
    )
    if not shown.readings:
        return lines
    for rival in ranking.rivals:
        found = specification.curve(shown.values(rival))
        ahead = sum(spec.stat.mean > 0 for spec in found)
        span = f"{signed(found[0].stat.mean)} to {signed(found[-1].stat.mean)} points"
        lines.append(
            f"  {ranking.proposed.method} minus {rival.method}: {span}, ahead in {ahead} of {len(found)}"
        )
    for choice, alternative, effect in shown.named_effects():
        lines.append(
            f"  {choice}, {alternative}: {signed(effect.mean)} points, {specification.weight_text([effect])}"
        )
    lines.append(f"  {shown.survival.text(ranking.proposed.method)}")
    return lines
