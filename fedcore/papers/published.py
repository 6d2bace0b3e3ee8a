"""The values that papers print, and what audits found in them: ``values.csv`` and ``findings.csv``."""

from __future__ import annotations

import csv
import hashlib
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from fedcore.base.errors import FedLensError
from fedcore.base.files import read_text, read_texts
from fedcore.config import Experiment
from fedcore.papers import library
from fedcore.papers.experiments import printed_backbone
from fedcore.papers.library import COMPUTED_FILE, FINDINGS_FILE, VALUES_FILE, Paper
from fedcore.results.metrics import Rule
from fedcore.results.statistics import group_by


@dataclass(frozen=True)
class PublishedValue:
    """One value of a paper's table, in per cent unless its metric says otherwise.

    ``table`` to ``metric`` are as printed, and so is an average, even if it is not the mean of its row.

    Attributes:
        paper: key of its paper (``library``).
        target: the domain of the value, or ``avg``.
        std: None if the paper prints none.
        decimals: of the value and of its spread, as printed; None if unknown.
    """

    paper: str
    table: str
    dataset: str
    setting: str
    backbone: str
    method: str
    target: str
    metric: str
    value: float
    std: float | None
    decimals: tuple[int, int] | None = field(default=None, compare=False)

    @property
    def digits(self) -> int:
        """The number of decimals that the papers print: two for per cent, three for cosines."""
        return 2 if abs(self.value) >= 1 else 3

    @property
    def text(self) -> str:
        """The value with its spread, as the paper prints it, but with at most ``digits`` decimals."""
        digits = self.digits if self.decimals is None else min(self.digits, self.decimals[1])
        return self.mean_text + ("" if self.std is None else f" ± {self.std:.{digits}f}")

    @property
    def mean_text(self) -> str:
        """The value without its spread: a paper that prints 66.7 does not say 66.70."""
        digits = self.digits if self.decimals is None else min(self.digits, self.decimals[0])
        return f"{self.value:.{digits}f}"

    @property
    def written(self) -> tuple[str, str]:
        """The value and its spread as in ``values.csv``, with all decimals as printed."""
        first, second = self.decimals or (None, None)
        return _written(self.value, first), "" if self.std is None else _written(self.std, second)

    @property
    def line(self) -> tuple[str, ...]:
        return (*(getattr(self, name) for name in PLACE), *self.written)

    @property
    def cell(self) -> str:
        """Its place in its table: data set, setting, method, target and metric."""
        return ", ".join(filter(None, (self.dataset, self.setting, self.method, self.target, self.metric)))

    @property
    def source(self) -> str:
        """The paper and its table, such as ``FedOT, Table 1``."""
        paper = library.find(self.paper)
        return f"{paper.title}, {paper.title_of(self.table)}"

    @property
    def held_out(self) -> str:
        """The domain that its setting holds out, ``photo`` of ``held out photo``; empty if it names none."""
        return self.setting.removeprefix("held out ") if "held out " in self.setting else ""

    @property
    def rule(self) -> Rule:
        """The rule by which the paper selects the round that it reports; the last round if it names none."""
        return library.find(self.paper).reported_round or "last"


WHOLE_SETS = ("avg", "all", "base", "new")
"""Targets that are not domains: a mean over domains or clients, all classes, and both groups of classes."""
NAMING = ("dataset", "setting", "backbone", "method", "target", "metric")
"""Fields that name a value in its table, and may be its headings."""
PLACE = ("table", *NAMING)
COLUMNS = (*PLACE, "value", "std")
"""Columns of ``values.csv``; ``dataset``, ``setting``, ``backbone`` and ``std`` may be empty."""
OPTIONAL = ("dataset", "setting", "backbone", "std")
DIGESTS = library.FOLDER / "digests.json"
"""SHA-256 of each ``values.csv`` that ships; ``python -m tools.docs`` writes it."""
LARGEST_VALUES = 20_000
"""Number of values of one source that are read; the largest that ships has 2,440."""


@library.cached_by_key
def load(paper: Paper) -> tuple[PublishedValue, ...]:
    """Read the ``values.csv`` of a paper's folder; one that ships must be as it was frozen."""
    file = paper.folder / VALUES_FILE
    text = read_text(file, f"a paper's folder, which has a {VALUES_FILE}", "folder")
    if paper.ships and digest_of(text) != read_texts(DIGESTS).get(paper.key):
        raise FedLensError(
            f"{file} is not the file that came with FedLens, so its values may not be the paper's; reinstall "
            "FedLens, or run `python -m tools.docs` if you corrected it in a checkout"
        )
    return values_from(text, paper.key, str(file))


def digest_of(text: str) -> str:
    """Return the digest of a ``values.csv``, which is equal for all ends of lines that git may write."""
    return hashlib.sha256(text.encode()).hexdigest()


def values_from(text: str, paper: str, where: str) -> tuple[PublishedValue, ...]:
    """Return the values of a CSV file with the columns of ``COLUMNS``; ``where`` is its name in errors."""
    lines = csv.DictReader(io.StringIO(text))
    head = lines.fieldnames or []
    wrong = [name for name in COLUMNS if name not in head] or [name for name in head if name not in COLUMNS]
    if wrong:
        what = "is missing" if wrong[0] in COLUMNS else "is not a column of values"
        raise FedLensError(
            f"{where}, line 1: '{wrong[0]}' {what}; the columns are {','.join(COLUMNS)}", wrong[0]
        )
    twice = next((name for name in COLUMNS if head.count(name) > 1), None)
    if twice is not None:
        raise FedLensError(f"{where}, line 1: two columns are called '{twice}'; delete one", twice)
    found: list[PublishedValue] = []
    places: dict[tuple[str, ...], PublishedValue] = {}
    for line, row in library.csv_rows(lines, where, "values"):
        for name in COLUMNS:
            if name not in OPTIONAL and not row[name].strip():
                raise FedLensError(f"{line}: {name} is empty; write it as printed", name)
        texts = {name: row[name].strip() for name in PLACE}
        value = _number(row["value"], f"{line}: value")
        std = _number(row["std"], f"{line}: std") if row["std"].strip() else None
        if std is not None and std < 0:
            raise FedLensError(f"{line}: std is {row['std']}; a spread is not negative", "std")
        decimals = decimals_of(row["value"]), decimals_of(row["std"])
        found.append(PublishedValue(paper, **texts, value=value, std=std, decimals=decimals))
        if _is_named_accuracy(found[-1]) and not 0 <= value <= 100:
            raise FedLensError(
                f"{line}: value is {value:g}, and {texts['metric']} is from 0 to 100 per cent; correct it, "
                "or name another metric",
                "value",
            )
        first = places.setdefault(tuple(texts.values()), found[-1])
        if first != found[-1]:
            raise FedLensError(
                f"{line}: the same cell as one above, which is {first.text}; give one of them another table, "
                "setting, target or metric",
                "values",
            )
        if len(found) > LARGEST_VALUES:
            raise FedLensError(f"{where}: it has more than {LARGEST_VALUES:,} values; divide it", "values")
    if not found:
        raise FedLensError(f"{where}: it has no values; add a line per printed value", "values")
    for table, of_table in group_by(filter(_is_named_accuracy, found), lambda v: v.table).items():
        most = max(value.value for value in of_table)
        if 0 < most <= 1:
            raise FedLensError(
                f"{where}: no accuracy of table {table} is above {most:g}, so they seem to be shares; write "
                "them in per cent, 83.21 for 0.8321",
                "value",
            )
    return tuple(found)


def values_text(values: Iterable[PublishedValue]) -> str:
    """Return the text of a ``values.csv``."""
    return library.csv_text([COLUMNS, *(value.line for value in values)])


def _is_named_accuracy(value: PublishedValue) -> bool:
    return value.metric == "accuracy" or value.metric.endswith(" accuracy")


def _number(text: str, where: str) -> float:
    try:
        number = math.nan if "_" in text else float(text)  # Python reads 83_21 as 8321
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise FedLensError(
            f"{where} is {text.strip()!r:.40}; write a number such as 83.21", "value"
        ) from None
    return number


def decimals_of(printed: str) -> int:
    """Return the number of decimals of a printed number."""
    return len(printed.strip().partition(".")[2])


def _written(number: float, decimals: int | None) -> str:
    """Return a number as printed, or in full where the decimals do not give it, as those of 1e-05."""
    text = repr(number) if decimals is None else f"{number:.{decimals}f}"
    return text if float(text) == number else repr(number)


@library.cached
def load_all() -> tuple[PublishedValue, ...]:
    """Return the values of all papers, one paper after another."""
    return tuple(value for paper in library.papers() for value in load(paper))


def values_of(
    experiment: Experiment, unsaved: tuple[Paper, Sequence[PublishedValue]] | None = None
) -> tuple[PublishedValue, ...]:
    """Return the values that ``reproduces`` names, for the backbone only; ``unsaved`` is a new paper's."""
    values: dict[PublishedValue, None] = {}
    for i, entry in enumerate(experiment.reproduces):
        if unsaved is not None and unsaved[0].key == entry.paper:
            paper, among = unsaved
        else:
            paper, among = library.find(entry.paper), load(entry.paper)
        backbone = printed_backbone(experiment, paper)
        matching = [
            v
            for v in among
            if v.table == entry.table
            and entry.dataset in ("", v.dataset)
            and v.setting in (entry.setting or (v.setting,))
            and v.method in (entry.methods or (v.method,))
            and v.backbone in ("", backbone)
        ]
        if not matching:
            raise FedLensError(
                f"no value in table {entry.table} of {entry.paper} matches; see the paper's {VALUES_FILE}",
                f"reproduces.{i}",
            )
        values.update(dict.fromkeys(matching))
    return tuple(values)


COMPUTED_COLUMNS = (*PLACE, "ours")


@library.cached_by_key
def _computed(paper: Paper) -> Mapping[tuple[str, ...], float]:
    rows = library.optional_rows(paper.folder / COMPUTED_FILE, COMPUTED_COLUMNS)
    return {tuple(row[n] for n in PLACE): _number(row["ours"], f"{at}: ours") for at, row in rows}


def computed(value: PublishedValue) -> float | None:
    """Return what FedLens counts for a value without a run, by the paper's ``computed.csv``."""
    return _computed(value.paper).get(value.line[:-2])


FindingKind = Literal[
    "does not follow",
    "other rule",
    "printed twice",
    "repeated row",
    "impossible share",
    "impossible ±",
    "perhaps chance",
    "shifted",
    "far apart",
    "quoted from",
]
FINDINGS: dict[FindingKind, str] = {
    "does not follow": "an average or harmonic mean that its printed parts do not give",
    "other rule": "an average that follows from its parts by another rule than the usual one",
    "printed twice": "the source prints another value for the same quantity and setting elsewhere",
    "repeated row": "two methods of a table have the same value in every cell",
    "impossible share": "no number of right answers on a test set of that size gives the value",
    "impossible ±": "a spread that the number of runs cannot have",
    "shifted": "differs by a constant from a source that is identical in all other rows",
    "far apart": "another source prints a much different value for the same stated setting",
    "perhaps chance": "equal to another source, as chance alone gives somewhere; stored by version 1.0 only",
    "quoted from": "equal to the last digit to other sources in more cells than chance gives",
}
"""Kind of finding, as cells name it -> its meaning."""
FINDING_COLUMNS = (*COLUMNS, "kind", "text")


@dataclass(frozen=True)
class Finding:
    """The statement of an audit about a value, in a sentence that names the numbers."""

    value: PublishedValue
    kind: FindingKind
    text: str

    @property
    def warns(self) -> bool:
        """Whether it says that something is wrong, and somebody who has the source has seen it there."""
        paper = library.find(self.value.paper)
        noted = self.kind in ("other rule", "perhaps chance", "quoted from")
        return not noted and (self.value.table in paper.compared or not paper.ships)


def findings_text(found: Iterable[Finding]) -> str:
    """Return the text of a ``findings.csv``."""
    rows = ((*finding.value.line, finding.kind, finding.text) for finding in found)
    return library.csv_text([FINDING_COLUMNS, *rows])


def read_findings(paper: Paper) -> list[tuple[tuple[str, ...], FindingKind, str]]:
    """Read the ``findings.csv`` of a paper's folder: the line of ``values.csv``, kind and text of each."""
    remedy = "; delete the file; `fedlens papers add` writes it again"
    found = []
    for place, row in library.optional_rows(paper.folder / FINDINGS_FILE, FINDING_COLUMNS, remedy):
        if row["kind"] not in FINDINGS:
            raise FedLensError(f"{place}: no audit is called '{row['kind']}'{remedy}", "folder")
        printed = tuple(row[name] for name in COLUMNS)
        found.append((printed, row["kind"], row["text"]))
    return found


@library.cached_by_key
def of_paper(paper: Paper) -> Mapping[PublishedValue, list[Finding]]:
    """Return the findings about each value of a paper, without those about values that have changed."""
    values = {value.line: value for value in load(paper)}
    stored = read_findings(paper)
    found = [Finding(values[printed], kind, text) for printed, kind, text in stored if printed in values]
    return group_by(found, lambda finding: finding.value)


def findings_of(value: PublishedValue) -> list[Finding]:
    """Return the findings about a value."""
    return of_paper(value.paper).get(value, [])
