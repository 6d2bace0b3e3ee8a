"""A table under every reading of what its paper leaves open: the choices, their runs, and each value.

A choice is something that the paper does not say, with its alternatives as fields of an experiment; the first
alternative is the reading of FedLens. Choices about a method's own fields are declared beside them
(``LeftOpen``), all others in the ``choices.toml`` of the paper's folder, which docs/papers.md describes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Self

import numpy as np
from pydantic import BaseModel, Field, model_validator

from fedcore.base.errors import FedLensError
from fedcore.base.progress import counted
from fedcore.base.seeds import numpy_generator
from fedcore.config import sweeps
from fedcore.methods import registry
from fedcore.papers import library, mini
from fedcore.papers.cells import Availability, TableCell, cell_of, reading_of, source_of
from fedcore.papers.comparability import comparability, reasons
from fedcore.papers.equivalents import TIMES, RunSource, left_open, variant_runs
from fedcore.papers.experiments import data_sets, experiments, runs
from fedcore.papers.library import CHOICES_FILE, REASONS_FILE, Paper
from fedcore.papers.published import PublishedValue, load
from fedcore.papers.recorded import RecordedRuns
from fedcore.results import specification
from fedcore.results.metrics import AVERAGED_ROUNDS, Rule
from fedcore.results.specification import Effect, Reading, Survival
from fedcore.results.statistics import ValuesBySeed, group_by, signed
from fedcore.store import Store

MOST_READINGS = 128
"""A table with more readings is read under a sample of them."""
MOST_ALTERNATIVES = 16


class Alternative(BaseModel, extra="forbid", frozen=True):
    """One way to read a paper where it says nothing.

    Attributes:
        set: path of a field, as in a sweep -> its value; empty for the reading of FedLens.
        rule: how the reported round is selected instead.
    """

    label: str = Field(min_length=1, max_length=40)
    set: dict[str, Any] = {}
    rule: Rule | None = None


class Choice(BaseModel, extra="forbid", frozen=True):
    """Something that a paper does not say.

    Attributes:
        of: the method that declares it. A file gives only its name then, and further values.
        reasons: beginnings of the caveats that name it.
        tables, datasets, settings, methods: names as printed that it is about, which may contain ``*``;
            empty for all. What a method declares concerns its own values in any case.
    """

    name: str = Field(min_length=1, max_length=40)
    why: str = Field(min_length=1, description="What the paper says, or does not say")
    of: str = ""
    reasons: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    datasets: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    alternatives: Annotated[tuple[Alternative, ...], Field(min_length=2, max_length=MOST_ALTERNATIVES)]

    @model_validator(mode="after")
    def _first_is_ours(self) -> Self:
        first = self.alternatives[0]
        if first.model_dump(exclude={"label"}, exclude_defaults=True):
            raise ValueError("the first alternative is the reading of FedLens and sets nothing")
        if len({alternative.label for alternative in self.alternatives}) < len(self.alternatives):
            raise ValueError("two alternatives have the same label")
        return self

    def is_about(self, value: PublishedValue) -> bool:
        of_method = self.of and any(point.name == self.name for point in left_open(value))
        return bool(of_method) or self.names(value)

    def names(self, value: PublishedValue) -> bool:
        """Return whether the file says that it is about a value."""
        if self.of and not self.methods:
            return False
        named = (self.tables, self.datasets, self.settings, self.methods)
        printed = (value.table, value.dataset, value.setting, value.method)
        return all(map(library.matches, printed, named))

    @property
    def sets(self) -> set[str]:
        """The names that its alternatives set: paths, and ``rule``."""
        given = [a.model_dump(exclude={"label"}, exclude_defaults=True) for a in self.alternatives]
        return {name for of in given for name in (*of.get("set", ()), *of) if name != "set"}


class _Choices(BaseModel, extra="forbid", frozen=True):
    choice: tuple[Choice, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, content: Any) -> Any:
        """Give the choices that methods declare what their declarations say."""
        given = content.get("choice", []) if isinstance(content, dict) else None
        if isinstance(given, list):
            content = content | {"choice": [_declared(c) if isinstance(c, dict) else c for c in given]}
        return content


def _declared(written: dict[str, Any]) -> dict[str, Any]:
    """Return a choice with what the method that it is ``of`` declares under its name."""
    method = written.get("of")
    if not method:
        return written
    config = registry.get(method).Config
    point = next((p for p in getattr(config, "left_open", ()) if p.name == written.get("name")), None)
    if point is None:
        raise ValueError(f"'{method}' declares no '{written.get('name')}'; correct name or of")
    who = "*" if written.get("methods") else method
    others = [
        {"label": label, "set": {f"methods.{who}.{name}": value for name, value in of.items()}}
        for label, of in point.others.items()
    ]
    why = f"{point.why[0].upper()}{point.why[1:]}."
    return {
        **written,
        "why": why,
        "reasons": [point.caveat, *written.get("reasons", ())],
        "alternatives": [{"label": point.ours}, *others],
    }


@library.cached_by_key
def choices(paper: Paper) -> tuple[Choice, ...]:
    """Return what a paper leaves open: what its file names, then what the methods of its runs declare."""
    file = paper.folder / CHOICES_FILE
    found = library.read_optional(file, _Choices).choice
    texts = [reason.text for reason in reasons(paper)]
    for choice in found:
        for start in choice.reasons[bool(choice.of) :]:
            if not any(text.startswith(start) for text in texts):
                raise FedLensError(
                    f"{file}, choice '{choice.name}': no reason in {REASONS_FILE} begins with '{start}'; "
                    "copy its beginning",
                    "reasons",
                )
    if len({choice.name for choice in found}) < len(found):
        raise FedLensError(f"{file}: two choices have the same name; rename one", "name")
    extended = {(choice.of, choice.name) for choice in found}
    methods = dict.fromkeys(rule.name for rule in runs(paper).methods if registry.find(rule.name))
    declared = (
        (m, point.name) for m in methods for point in getattr(registry.get(m).Config, "left_open", ())
    )
    others = (_declared({"name": name, "of": m}) for m, name in declared if (m, name) not in extended)
    return (*found, *map(Choice.model_validate, others))


def check(paper: Paper, values: Sequence[PublishedValue]) -> None:
    """Refuse choices about no printed value, and alternatives that fit no experiment of their tables."""
    given = experiments(paper)
    checked: list[Choice] = []
    for choice in choices(paper):
        where = f"{paper.folder / CHOICES_FILE}, choice '{choice.name}'"
        declared = choice.of and not choice.methods
        about = [value for value in values if declared or choice.names(value)]
        if not about:
            raise FedLensError(f"{where}: it is about no printed value; correct tables to methods", "choice")
        for other in checked:
            if (both := choice.sets & other.sets) and any(map(other.names, about)):
                raise FedLensError(
                    f"{where}: '{other.name}' sets {min(both)} of the same values; make them one choice",
                    "set",
                )
        checked.append(choice)
        places = {(value.table, value.dataset) for value in about}
        fitting = [
            experiment
            for experiment in given.values()
            if not experiment.sweep
            and any(
                table == entry.table and entry.dataset in ("", dataset)
                for entry in experiment.reproduces
                for table, dataset in places
            )
        ]
        for alternative in choice.alternatives:
            try:
                for path in alternative.set:
                    if not declared and not any(sweeps.concerns(e, path) for e in fitting):
                        raise FedLensError(f"no experiment of its tables has '{path}'; correct the path")
                for experiment in fitting:
                    changed = sweeps.fixed(experiment, alternative.set)
                    for tried in (changed, mini.rehearsal(changed)):
                        variant_runs(tried)
            except FedLensError as error:
                raise FedLensError(f"{where}, '{alternative.label}': {error}", "set") from error


def readings(choices: Sequence[Choice], most: int = MOST_READINGS) -> list[Reading]:
    """Return all readings; if there are more than ``most``, a sample of them.

    The sample has the reading of FedLens and each that differs from it in one choice, however many these are.
    """
    sizes = [len(choice.alternatives) for choice in choices]
    if math.prod(sizes) <= most:
        return list(itertools.product(*map(range, sizes)))
    default = (0,) * len(sizes)
    single = ((*default[:i], k, *default[i + 1 :]) for i, size in enumerate(sizes) for k in range(1, size))
    found = dict.fromkeys([default, *single])
    generator = numpy_generator(1, "readings", len(sizes))
    while len(found) < most:
        found[tuple(int(generator.integers(size)) for size in sizes)] = None
    return list(found)


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
    with_runs = (
        value
        for value in dict.fromkeys(values)
        if isinstance(source_of(value), RunSource) and value.metric not in TIMES
    )
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
        found: of the readings that are run (``read``), the value by seed of each value of the ranking.
    """

    ranking: Ranking
    choices: tuple[Choice, ...]
    readings: tuple[Reading, ...]
    rehearsal: bool = False
    found: Mapping[Reading, Mapping[PublishedValue, ValuesBySeed]] = field(default_factory=dict, hash=False)

    def taken(self, value: PublishedValue, reading: Reading) -> list[Alternative]:
        """Return the alternatives of a reading that concern a value."""
        pairs = zip(self.choices, reading, strict=True)
        return [choice.alternatives[k] for choice, k in pairs if k and choice.is_about(value)]

    def source(self, value: PublishedValue, reading: Reading) -> RunSource:
        return _source(value, self.taken(value, reading), self.rehearsal)

    def rule(self, value: PublishedValue, reading: Reading) -> Rule:
        return next((a.rule for a in self.taken(value, reading) if a.rule), value.rule)

    def cells(self, recorded: RecordedRuns, available: Availability) -> list[TableCell]:
        """Return a cell for each value and distinct source, whose missing runs ``fillings`` names."""
        pairs = dict.fromkeys((v, self.source(v, r)) for r in self.readings for v in self.ranking.values)
        return [cell_of(recorded, v, of, None, available.lacks(of.config)) for v, of in pairs]

    def read(self, recorded: RecordedRuns) -> Multiverse:
        """Return the readings with what was ``found``: the ranking under every one whose runs are finished.

        Values without runs in the reading of FedLens are left out, with choices that concern no other value.
        """
        places = [(r, v) for r in self.readings for v in self.ranking.values]
        wanted = {(r, v): (self.source(v, r), self.rule(v, r)) for r, v in places}
        recorded.read_results((source.key, rule) for source, rule in wanted.values())
        read: dict[tuple[PublishedValue, str, Rule], dict[int, float]] = {}
        found: dict[Reading, dict[PublishedValue, ValuesBySeed]] = {r: {} for r in self.readings}
        for (reading, value), (source, rule) in wanted.items():
            place = (value, source.key, rule)
            if place not in read:
                results = recorded.results(source.key, rule)
                by_seed = recorded.by_seed(value, results, source)
                read[place] = {s: by_seed[s] for s in source.experiment.seeds if s in by_seed}
            if len(read[place]) == len(source.experiment.seeds):
                found[reading][value] = read[place]
        measured = tuple(v for v in self.ranking.values if v in found[self.readings[0]])
        if self.ranking.proposed in measured and measured != self.ranking.values:
            part = multiverse(replace(self.ranking, values=measured), self.rehearsal, len(self.readings))
            return part.read(recorded)
        return replace(self, found={r: of for r, of in found.items() if len(of) == len(self.ranking.values)})

    @property
    def missing(self) -> int:
        """The number of readings that lack runs."""
        return len(self.readings) - len(self.found)

    @property
    def means(self) -> dict[Reading, dict[str, float]]:
        """Reading -> method -> mean over seeds."""
        return {
            reading: {
                v.method: round(float(np.mean(list(of[v].values()))), specification.DECIMALS)
                for v in self.ranking.values
            }
            for reading, of in self.found.items()
        }

    def values(self, rival: PublishedValue | None = None) -> dict[Reading, ValuesBySeed]:
        """Return the paper's own method, or its difference to another one paired by seed, by reading."""
        proposed = {reading: of[self.ranking.proposed] for reading, of in self.found.items()}
        if rival is None:
            return proposed
        theirs = {reading: of[rival] for reading, of in self.found.items()}
        return specification.differences(proposed, theirs)

    def named_effects(self, rival: PublishedValue | None = None) -> list[tuple[str, str, Effect]]:
        """Return what each alternative moves, with the names of its choice and of itself."""
        means = {r: float(np.mean(list(of.values()))) for r, of in self.values(rival).items()}
        return [
            (self.choices[e.choice].name, self.choices[e.choice].alternatives[e.alternative].label, e)
            for e in specification.effects(means, self.means)
        ]

    @property
    def survival(self) -> Survival:
        return specification.survival(self.means, self.ranking.proposed.method)

    def weights(self, value: PublishedValue) -> dict[str, str]:
        """Return how much each caveat of a value matters: its text -> in words; none for one without runs."""
        if value not in self.ranking.values:
            return {}
        found = {}
        means = self.means
        moved = specification.effects({r: of[value.method] for r, of in means.items()}, means)
        moved = [e for e in moved if self.choices[e.choice].is_about(value)]
        for _, text in comparability(value).reasons:
            if mine := [e for e in moved if text.startswith(self.choices[e.choice].reasons)]:
                found[text] = specification.weight_text(mine)
        return found


def _source(value: PublishedValue, taken: Sequence[Alternative], rehearsal: bool) -> RunSource:
    preset = source_of(value, rehearsal)
    if not isinstance(preset, RunSource):
        raise ValueError(f"no runs give {value}")
    changes = {path: of for alternative in taken for path, of in alternative.set.items()}
    return reading_of(preset, tuple(changes.items()))


def multiverse(ranking: Ranking, rehearsal: bool = False, most: int = MOST_READINGS) -> Multiverse:
    """Return the readings of a ranking, at most ``most`` of them.

    Alternatives that read the same runs alike as one before them, as in a rehearsal that lacks a field, are
    left out, and so are choices with a single alternative. A mean of the last ten of at most ten rounds is
    not an alternative either, as it counts the first ones.
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
    found = []
    for value in about:
        source = _source(value, [alternative], rehearsal)
        short = alternative.rule == "mean10" and source.experiment.rounds <= AVERAGED_ROUNDS
        found.append((source.key, value.rule if short else alternative.rule or value.rule))
    return tuple(found)


def caveat_weights(recorded: RecordedRuns, value: PublishedValue, rehearsal: bool) -> dict[str, str]:
    """Return how much each caveat of a value matters, as far as recorded runs show: its text -> in words."""
    of_table = [other for other in load(value.paper) if other.table == value.table]
    ranking = next((r for r in rankings(of_table) if value in r.values), None)
    if ranking is None:
        return {}
    shown = multiverse(ranking, rehearsal).read(recorded)
    where = "in rehearsal: " if rehearsal else ""
    return {text: f"{where}{weight}" for text, weight in shown.weights(value).items()}


def recorded_runs(store: Store, rehearsal: bool) -> RecordedRuns:
    """Return the runs of a store that can give values of papers, or of their rehearsals."""
    return RecordedRuns(store, {mini.DATA} if rehearsal else data_sets())


def report(shown: Multiverse) -> list[str]:
    """Return a ranking under all readings in lines of text."""
    ranking, lines = shown.ranking, []
    where = " (in rehearsal: no evidence about the paper)" if shown.rehearsal else ""
    lines.append(f"{ranking.title}: {counted(len(shown.found), 'reading')} run, {shown.missing} not{where}")
    if not shown.found:
        return lines
    for rival in ranking.rivals:
        found = specification.curve(shown.values(rival))
        ahead = sum(spec.stat.mean > 0 for spec in found)
        span = f"{signed(found[0].stat.mean)} to {signed(found[-1].stat.mean)} points"
        turned = specification.chance(shown.values(rival).get(shown.readings[0], {}))
        by_chance = "" if turned is None else f"; other seeds turn the sign in {turned:.0%}"
        lines.append(
            f"  {ranking.proposed.method} minus {rival.method}: {span}, ahead in {ahead} of {len(found)}"
            f"{by_chance}"
        )
    for choice, alternative, effect in shown.named_effects():
        lines.append(
            f"  {choice}, {alternative}: {signed(effect.mean)} points, {specification.weight_text([effect])}"
        )
    lines.append(f"  {shown.survival.text(ranking.proposed.method)}")
    return lines
