"""The papers with printed values: a folder each, shipped with FedLens or added by a user.

A folder holds ``paper.toml`` (``Paper``), ``values.csv``, what audits found (``findings.csv``) and, where
they are needed, ``reasons.csv`` (``comparability``), ``runs.toml`` (``experiments``) and ``choices.toml``
(``choices``). docs/papers.md describes the format. The readers of these files raise a ``FedLensError`` that
names the file, the place and the remedy.
"""

from __future__ import annotations

import csv
import io
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cache, wraps
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Literal, ParamSpec, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, field_validator

from fedcore.base.errors import FedLensError, did_you_mean, first_line
from fedcore.base.files import ASSETS, read_text
from fedcore.results.metrics import RULES, Rule

FOLDER = ASSETS / "published"
"""The papers that ship."""
COMPUTED_FILE = "computed.csv"
FILES = (
    "paper.toml",
    "values.csv",
    "reasons.csv",
    "runs.toml",
    "choices.toml",
    "findings.csv",
    COMPUTED_FILE,
)
"""The files of a paper's folder."""
PAPER_FILE, VALUES_FILE, REASONS_FILE, RUNS_FILE, CHOICES_FILE, FINDINGS_FILE = FILES[:-1]
FOLDER_VARIABLE = "FEDLENS_PAPERS"
"""Environment variable that names the folder of added papers; by default it lies beside the database."""
KEY = re.compile(r"[a-z0-9][a-z0-9_]*")
LINK = r"(https?://[\w.~:/?#@!&+,;=%-]+)?"
"""A paper's link, in which no character means anything in Markdown or HTML; may be empty."""
ADDRESSES = {
    "arXiv": "https://arxiv.org/abs/",
    "doi": "https://doi.org/",
    "OpenReview": "https://openreview.net/forum?id=",
}
"""Beginning of a work's identifier -> that of its address."""
SourceKind = Literal["paper", "README", "results file", "third party"]
KINDS: dict[SourceKind, str] = {
    "paper": "the text of the paper",
    "README": "the README of its authors' repository",
    "results file": "a file of results in a repository",
    "third party": "a summary by somebody else",
}
"""Kind of source -> its meaning, the most reliable first."""
SpreadKind = Literal["std", "range", "not stated"]
SPREADS: dict[SpreadKind, str] = {
    "std": "standard deviation over seeds",
    "range": "largest and smallest value of a client",
    "not stated": "not stated",
}
"""Kind of a printed +- -> its meaning."""
Formula = Literal["harmonic mean", "mean of the first and the harmonic mean of the others"]
P = ParamSpec("P")
R = TypeVar("R")
M = TypeVar("M", bound=BaseModel)
_CACHED: list[Callable[[], None]] = []


def cached(function: Callable[P, R]) -> Callable[P, R]:
    """Cache the results of a function that reads the papers, until one is added or changed."""
    remembered = cache(function)
    _CACHED.append(remembered.cache_clear)
    return remembered  # type: ignore[return-value]  # mypy reads cache's arguments as hashable objects


def cached_by_key(read: Callable[[Paper], R]) -> Callable[[str | Paper], R]:
    """Let what reads a paper's files take its key too, and cache that; files that ship do not change.

    A ``Paper``, which need not be in the library yet, is read each time.
    """
    of_shipped, of_added = cache(lambda key: read(find(key))), cached(lambda key: read(find(key)))

    @wraps(read)
    def remembered(paper: str | Paper) -> R:
        if isinstance(paper, Paper):
            return read(paper)
        return of_shipped(paper) if paper in shipped() else of_added(paper)

    return remembered


class _PaperPart(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True)


class Protocol(_PaperPart):
    """The source's description of the runs behind its values, in its terms; empty if it gives none."""

    training: str = Field("", description="federated, centralised or zero-shot")
    classes: str = Field("", description="Classes or domains that are trained on and tested on")
    shots: str = Field("", description="Training images per class")
    partition: str = Field("", description="How clients divide the data")
    clients: str = ""
    participation: str = ""
    rounds: str = ""
    seeds: str = Field("", description="Number of runs behind a value")
    selection: str = Field("", description="The round that is reported")
    origin: str = Field("", description="Who measured the values: re-run by it, or quoted from which work")
    detail: str = Field("", description="Any other difference from the other runs of the source")
    tested_on: str = Field("", description="Name of the test sets in test_sets.csv, which has their sizes")

    def over(self, general: Protocol) -> Protocol:
        """Return this protocol, completed by a more general one."""
        return Protocol(
            **{**general.model_dump(exclude_defaults=True), **self.model_dump(exclude_defaults=True)}
        )

    @property
    def runs(self) -> int | None:
        """The number of runs behind a value, if it is stated; a zero-shot value has one."""
        if self.seeds.isdecimal():
            return int(self.seeds)
        return 1 if self.training == "zero-shot" else None


class ListedHeadings(_PaperPart):
    """Headings by position in the paper's file: each text for ``every`` values, then the first again."""

    texts: tuple[str, ...] = Field(min_length=1)
    every: int = Field(1, ge=1)

    def of(self, i: int) -> str:
        return self.texts[i // self.every % len(self.texts)]


class TableNotes(_PaperPart):
    """A table: its caption, and the headings of its panels, rows and columns (``layout``)."""

    title: str = Field("", description="Its name; default: as printed, 'Table 3' for 3")
    caption: str = ""
    panels: str = ""
    rows: str = Field("", description="Headings of the rows; with the columns empty: laid out by default")
    columns: str = ""
    headings: dict[str, ListedHeadings] = Field({}, description="Headings that no field of a value has")
    spread: SpreadKind | None = Field(None, description="Kind of its +-; default: the paper's")
    spread_from: str = Field("", description="What the source says of it and where, as a clause")
    why_not_run: str = Field("", description="Why FedLens cannot run it; default: the paper's reason")
    cells: tuple[tuple[str, ...], ...] = Field(
        (), description="A table without values that runs could give, as printed; its first row has headings"
    )
    protocol: Protocol = Protocol()


class MetricNotes(_PaperPart):
    """A printed metric: the quantity it is, and how the source computes it from other metrics."""

    quantity: str = ""
    parts: tuple[str, ...] = ()
    formula: Formula = "harmonic mean"


USUAL_METRICS = {
    "accuracy": MetricNotes(),
    "base accuracy": MetricNotes(quantity="base classes"),
    "new accuracy": MetricNotes(quantity="new classes"),
    "harmonic mean": MetricNotes(
        quantity="harmonic mean of base and new", parts=("base accuracy", "new accuracy")
    ),
}
"""Metrics with the same meaning in all sources that do not define them."""


class Paper(_PaperPart):
    """A source of printed values, as its ``paper.toml`` describes it.

    Attributes:
        key: the name of its folder.
        title: short name for headings.
        citation: authors, venue and year.
        identifier: ``arXiv:``, ``doi:`` or ``OpenReview:`` and its name there.
        link: another page of the work, such as the repository that was read.
        reported_round: how the source selects the round that it reports, as runs of FedLens do; None if it
            does not say.
        edition_of: key of the paper of which this is another edition. The two are shown together and count
            as one source.
        own: names of the source's own methods; its values of all other methods are of baselines.
        names: printed name -> normal name, where it means something else than in ``names.csv``.
        left_out: values that were not transcribed, or left out as doubtful, and why.
        compared: tables in which each finding of the audits has been compared with the source's text.
    """

    key: str = ""
    folder: Path = Path()
    title: str = Field(min_length=1, max_length=80)
    full_title: str = ""
    citation: str = Field(min_length=1)
    year: int | None = None
    identifier: str = Field("", pattern=r"^((arXiv|doi|OpenReview):[\w./-]+|not found)?$")
    link: str = ""
    licence: str = Field(min_length=1)
    kind: SourceKind
    read_from: str = ""
    place: int = Field(1000, description="Order among the papers")
    edition_of: str = ""
    own: tuple[str, ...] = ()
    reported_round: Rule | None = None
    spread: SpreadKind = "std"
    why_not_run: str = ""
    notes: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    compared: tuple[str, ...] = ()
    names: dict[str, str] = {}
    protocol: Protocol = Protocol()
    settings: dict[str, Protocol] = {}
    metrics: dict[str, MetricNotes] = {}
    tables: dict[str, TableNotes] = {}
    _protocols: dict[tuple[str, str], Protocol] = PrivateAttr(default_factory=dict)

    @field_validator("title", "citation", "licence")
    @classmethod
    def _not_blank(cls, text: str) -> str:
        if not text.strip():
            raise ValueError("is empty")
        return text.strip()

    @field_validator("link")
    @classmethod
    def _plain_link(cls, link: str) -> str:
        if not re.fullmatch(LINK, link, re.ASCII):
            raise ValueError("is not a plain address that begins with https:// or http://")
        return link

    @property
    def address(self) -> str:
        """The address of the work's identifier; empty if it has none."""
        scheme, _, name = self.identifier.partition(":")
        return f"{ADDRESSES[scheme]}{name}" if name else ""

    @property
    def work(self) -> str:
        """Key of the work that this is an edition of; editions count as one source."""
        return self.edition_of or self.key

    @property
    def rule_text(self) -> str:
        """The round that the source reports, in words."""
        if self.reported_round is not None:
            return RULES[self.reported_round]
        return self.protocol.selection or "not stated"

    @property
    def ships(self) -> bool:
        return self.folder.parent == FOLDER

    def protocol_of(self, table: str, setting: str) -> Protocol:
        """Return the protocol of a setting, completed by that of its table and of the whole source."""
        if (table, setting) not in self._protocols:
            of_table = self.notes_on(table).protocol.over(self.protocol)
            self._protocols[table, setting] = self.settings.get(setting, Protocol()).over(of_table)
        return self._protocols[table, setting]

    def metric(self, printed: str) -> MetricNotes:
        return self.metrics.get(printed) or USUAL_METRICS.get(printed, MetricNotes())

    def notes_on(self, table: str) -> TableNotes:
        return self.tables.get(table, TableNotes())

    def title_of(self, table: str) -> str:
        """Return a table's name in words: ``Table 1a`` for ``1a``, others as the source names them."""
        numbered = f"Table {table}" if re.match(r"\d|[A-Z]\.\d", table) else table
        return self.notes_on(table).title or numbered

    def spread_of(self, table: str) -> SpreadKind:
        return self.notes_on(table).spread or self.spread

    def why_not(self, table: str) -> str:
        """Return why FedLens cannot run a table that no runs are given for."""
        return self.notes_on(table).why_not_run or self.why_not_run or "no runs are given for this table"

    def __hash__(self) -> int:
        return hash((self.key, self.folder))


@cache
def matches(printed: str, patterns: tuple[str, ...]) -> bool:
    """Return whether a printed name is one of a rule's, in which ``*`` and ``?`` stand for any letters.

    A rule without patterns is about all names. Cached, as thousands of values share a few hundred names.
    """
    return not patterns or any(fnmatchcase(printed, pattern.replace("[", "[[]")) for pattern in patterns)


def read_paper(folder: Path) -> Paper:
    """Read the ``paper.toml`` of a folder."""
    file = folder / PAPER_FILE
    if not KEY.fullmatch(folder.name):
        raise FedLensError(
            f"{folder}: the folder's name is the paper's key; use lower-case letters, digits and _", "folder"
        )
    fields = read_toml(file, f"a paper's folder, which has a {PAPER_FILE}")
    return paper_from(fields, folder, str(file))


def read_toml(file: Path, what: str) -> dict[str, Any]:
    """Read a TOML file of a paper's folder; ``what`` names its kind in errors, as for ``read_text``."""
    try:
        return tomllib.loads(read_text(file, what, "folder"))
    except tomllib.TOMLDecodeError as error:
        raise FedLensError(f"{file}: {error}; mend that line", "folder") from error
    except RecursionError as error:
        raise FedLensError(f"{file}: lists within lists, too many; mend them", "folder") from error


def read_optional(file: Path, model: type[M]) -> M:
    """Read a TOML file of a paper's folder as a model; if the file is missing, the model is empty."""
    if not file.exists():
        return model()
    content = read_toml(file, f"a {file.name}")
    try:
        return model(**content)
    except ValidationError as error:
        raise FedLensError(f"{file}: {first_line(error)}; docs/papers.md has the fields", "folder") from error


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    """Return rows as the text of a CSV file."""
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows(rows)
    return file.getvalue()


def csv_rows(lines: csv.DictReader[str], where: str, field: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield each line of a CSV file of a paper's folder, after its place in words for errors."""
    try:
        for row in lines:
            place = f"{where}, line {lines.line_num}"
            if None in row or None in row.values():
                count = len(lines.fieldnames or ())
                raise FedLensError(
                    f"{place}: it does not have {count} cells; quote a cell that holds a comma", field
                )
            yield place, row
    except csv.Error as error:
        raise FedLensError(f"{where}, line {lines.line_num + 1}: {error}; mend that line", field) from error


def optional_rows(
    file: Path, columns: tuple[str, ...], remedy: str = ""
) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield each line of a CSV file of a paper's folder as ``csv_rows`` does; none if the file is missing."""
    if not file.exists():
        return
    lines = csv.DictReader(io.StringIO(read_text(file, f"a {file.name}", "folder")))
    if tuple(lines.fieldnames or ()) != columns:
        raise FedLensError(f"{file}, line 1: the columns must be {','.join(columns)}{remedy}", "folder")
    yield from csv_rows(lines, str(file), "folder")


def paper_from(fields: Mapping[str, Any], folder: Path, where: str) -> Paper:
    """Return a paper with the fields of a ``paper.toml``."""
    for name in ("key", "folder"):
        if name in fields:
            raise FedLensError(f"{where}: '{name}' is the folder's name; remove the field", name)
    try:
        return Paper(**fields, key=folder.name, folder=folder)
    except ValidationError as error:
        first = error.errors()[0]
        field, kind = ".".join(map(str, first["loc"])), first["type"]
        text = f"{field}: {first['msg']}; mend it"
        if kind == "missing":
            text = f"{field} is missing; add it"
        elif kind == "extra_forbidden":
            allowed = [*Paper.model_fields] if len(first["loc"]) == 1 else [*Protocol.model_fields]
            remedy = did_you_mean(str(first["loc"][-1]), allowed, "docs/papers.md lists the fields")
            text = f"unknown field {field}; {remedy}"
        elif field == "kind":
            text = f"kind must be one of {', '.join(get_args(SourceKind))}"
        raise FedLensError(f"{where}: {text}", field) from error


@cache
def shipped() -> dict[str, Paper]:
    """Return the papers that come with FedLens by key, in their order."""
    found = [read_paper(file.parent) for file in FOLDER.glob(f"*/{PAPER_FILE}")]
    return {paper.key: paper for paper in sorted(found, key=lambda p: (p.place, p.title.lower(), p.key))}


class _Added:
    """The papers that were added to the database which this process serves; threads read them meanwhile."""

    papers: ClassVar[dict[str, Paper]] = {}
    version: ClassVar[int] = 0


def added_folder(db: str | Path) -> Path:
    """Return the folder of added papers, beside the database unless ``FEDLENS_PAPERS`` names one."""
    named = os.environ.get(FOLDER_VARIABLE)
    return Path(named).expanduser() if named else Path(f"{db}.papers")


def set_added(added: Mapping[str, Paper]) -> None:
    """Replace the added papers, and forget all results that depend on the papers."""
    _Added.papers = dict(added)
    _Added.version += 1
    for clear in _CACHED:
        clear()


def version() -> int:
    """Return a number that changes when an added paper does."""
    return _Added.version


@cached
def papers() -> Mapping[str, Paper]:
    """Return all papers by key: those that ship, then the added ones."""
    return MappingProxyType({**shipped(), **_Added.papers})


def find(key: str, field: str | None = "reproduces") -> Paper:
    """Return the paper of a key."""
    every = papers()
    if key not in every:
        meant = did_you_mean(key, every, "`fedlens papers list` lists them")
        raise FedLensError(f"no published values of '{key}'; {meant}", field)
    return every[key]


def editions(work: str) -> list[Paper]:
    """Return a paper and its other editions."""
    return [paper for paper in papers().values() if paper.work == work]


def works() -> list[str]:
    """Return the keys of the papers that are not editions of another one."""
    return [paper.key for paper in papers().values() if not paper.edition_of]
