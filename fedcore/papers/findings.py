"""What the audits found in printed values, from the ``findings.csv`` of a paper's folder."""

import csv
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from fedcore.base.errors import FedLensError
from fedcore.base.files import read_text
from fedcore.papers import library, published
from fedcore.papers.library import FINDINGS_FILE, Paper
from fedcore.papers.published import PublishedValue
from fedcore.results.statistics import group_by

FindingKind = Literal[
    "does not follow",
    "other rule",
    "printed twice",
    "impossible share",
    "impossible ±",
    "perhaps chance",
    "shifted",
    "far apart",
    "quoted from",
]
KINDS: dict[FindingKind, str] = {
    "does not follow": "an average or harmonic mean that its printed parts do not give",
    "other rule": "an average that follows from its parts by another rule than the usual one",
    "printed twice": "the source prints another value for the same quantity and setting elsewhere",
    "impossible share": "no number of right answers on a test set of that size gives the value",
    "impossible ±": "a spread that the number of runs cannot have",
    "perhaps chance": "equal to another source to the last digit, as chance alone gives somewhere",
    "shifted": "differs by a constant from a source that is identical in all other rows",
    "far apart": "another source prints a much different value for the same stated setting",
    "quoted from": "equal to the last digit to other sources in more cells than chance gives; no warning",
}
"""Kind of finding, as cells name it -> its meaning."""
COLUMNS = (*published.COLUMNS, "kind", "text")


@dataclass(frozen=True)
class Finding:
    """The statement of an audit about a value, in a sentence that names the numbers."""

    value: PublishedValue
    kind: FindingKind
    text: str

    @property
    def warns(self) -> bool:
        return self.kind != "quoted from"


def csv_text(found: Iterable[Finding]) -> str:
    """Return the text of a ``findings.csv``."""
    rows = ((*finding.value.line, finding.kind, finding.text) for finding in found)
    return library.csv_text([COLUMNS, *rows])


def read_findings(paper: Paper) -> list[tuple[tuple[str, ...], FindingKind, str]]:
    """Read the ``findings.csv`` of a paper's folder: the line of ``values.csv``, kind and text of each."""
    file = paper.folder / FINDINGS_FILE
    if not file.exists():
        return []
    lines = csv.DictReader(io.StringIO(read_text(file, f"a {FINDINGS_FILE}", "folder")))
    remedy = "delete the file; `fedlens papers add` writes it again"
    if tuple(lines.fieldnames or ()) != COLUMNS:
        raise FedLensError(f"{file}, line 1: the columns must be {','.join(COLUMNS)}; {remedy}", "folder")
    found = []
    for place, row in library.csv_rows(lines, str(file), "folder"):
        if row["kind"] not in KINDS:
            raise FedLensError(f"{place}: no audit is called '{row['kind']}'; {remedy}", "folder")
        printed = tuple(row[name] for name in published.COLUMNS)
        found.append((printed, row["kind"], row["text"]))
    return found


@library.cached_by_paper
def of_paper(paper: str) -> Mapping[PublishedValue, list[Finding]]:
    """Return the findings about each value of a paper, without those about values that have changed."""
    values = {value.line: value for value in published.load(paper)}
    stored = read_findings(library.find(paper))
    found = [Finding(values[printed], kind, text) for printed, kind, text in stored if printed in values]
    return group_by(found, lambda finding: finding.value)


def findings_of(value: PublishedValue) -> list[Finding]:
    """Return the findings about a value."""
    return of_paper(value.paper).get(value, [])
