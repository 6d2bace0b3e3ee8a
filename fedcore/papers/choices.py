"""The choices that a paper leaves open: the ``choices.toml`` of its folder, and the readings of a table.

A choice is something that a paper does not say, with its alternatives as fields of an experiment; the first
alternative is the reading of FedLens. docs/papers.md describes the format.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fedcore.config import sweeps
from fedcore.errors import FedLensError
from fedcore.papers import library, mini
from fedcore.papers.comparability import read_reasons
from fedcore.papers.equivalents import variant_runs
from fedcore.papers.library import CHOICES_FILE, REASONS_FILE, Paper
from fedcore.papers.printed_runs import experiments
from fedcore.papers.published import PublishedValue
from fedcore.results.metrics import Rule
from fedcore.results.specification import Reading
from fedcore.seeds import numpy_generator

MOST_READINGS = 128
"""A table with more readings is read under a sample of them."""
MOST_ALTERNATIVES = 16


class _ChoicesPart(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Alternative(_ChoicesPart):
    """One way to read a paper where it says nothing.

    Attributes:
        set: path of a field, as in a sweep -> its value; empty for the reading of FedLens.
        rule: how the reported round is selected instead.
        digits: decimals that means over seeds are rounded to before they are compared.
        seed: position, from 1, of the one seed that counts.
    """

    label: str = Field(min_length=1, max_length=40)
    set: dict[str, Any] = {}
    rule: Rule | None = None
    digits: int | None = Field(None, ge=0, le=3)
    seed: int | None = Field(None, ge=1, le=mini.COMPARED.seeds)


class Choice(_ChoicesPart):
    """Something that a paper does not say.

    Attributes:
        reasons: beginnings of the reasons in ``reasons.csv`` that name it.
        tables, datasets, settings, methods: names as printed that it is about, which may contain ``*``;
            empty for all.
    """

    name: str = Field(min_length=1, max_length=40)
    why: str = Field(min_length=1, description="What the paper says, or does not say")
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
        named = (self.tables, self.datasets, self.settings, self.methods)
        printed = (value.table, value.dataset, value.setting, value.method)
        return all(map(library.matches, printed, named))

    @property
    def sets(self) -> set[str]:
        """The names that its alternatives set: paths, ``rule``, ``digits`` and ``seed``."""
        given = [a.model_dump(exclude={"label"}, exclude_defaults=True) for a in self.alternatives]
        return {name for of in given for name in (*of.get("set", ()), *of) if name != "set"}


class _Choices(_ChoicesPart):
    choice: tuple[Choice, ...] = ()


@library.cached
def choices(work: str) -> tuple[Choice, ...]:
    """Return what a paper leaves open, in the order of the file; nothing if its folder has no file."""
    return read_choices(library.find(work))


def read_choices(paper: Paper) -> tuple[Choice, ...]:
    """Read the ``choices.toml`` of a paper's folder."""
    file = paper.folder / CHOICES_FILE
    found = library.read_optional(file, _Choices).choice
    texts = [reason.text for reason in read_reasons(paper)]
    for choice in found:
        for start in choice.reasons:
            if not any(text.startswith(start) for text in texts):
                raise FedLensError(
                    f"{file}, choice '{choice.name}': no reason in {REASONS_FILE} begins with '{start}'; "
                    "copy its beginning",
                    "reasons",
                )
    if len({choice.name for choice in found}) < len(found):
        raise FedLensError(f"{file}: two choices have the same name; rename one", "name")
    return found


def check(paper: Paper, values: Sequence[PublishedValue]) -> None:
    """Refuse choices about no printed value, and alternatives that fit no experiment of their tables."""
    given = experiments(paper)
    checked: list[Choice] = []
    for choice in read_choices(paper):
        where = f"{paper.folder / CHOICES_FILE}, choice '{choice.name}'"
        about = [value for value in values if choice.is_about(value)]
        if not about:
            raise FedLensError(f"{where}: it is about no printed value; correct tables to methods", "choice")
        for other in checked:
            if (both := choice.sets & other.sets) and any(map(other.is_about, about)):
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
                    if not any(sweeps.concerns(e, path) for e in fitting):
                        raise FedLensError(f"no experiment of its tables has '{path}'; correct the path")
                for experiment in fitting:
                    changed = sweeps.fixed(experiment, alternative.set)
                    for tried in (changed, mini.rehearsal(changed, mini.COMPARED)):
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
    found = [
        default,
        *((*default[:i], k, *default[i + 1 :]) for i, size in enumerate(sizes) for k in range(1, size)),
    ]
    generator = numpy_generator(1, "readings", len(sizes))
    seen = set(found)
    while len(found) < most:
        drawn = tuple(int(generator.integers(size)) for size in sizes)
        if drawn not in seen:
            seen.add(drawn)
            found.append(drawn)
    return found
