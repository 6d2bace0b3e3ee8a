"""The values that the four papers print in their tables, read from ``fedcore/assets/published``."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache

from fedcore.config import Experiment
from fedcore.errors import FedLensError
from fedcore.papers.names import printed_backbone
from fedcore.paths import ASSETS
from fedcore.results.metrics import Rule

FOLDER = ASSETS / "published"


@dataclass(frozen=True)
class Paper:
    """A paper: its title, and how it selects the round that it reports."""

    title: str
    rule: Rule


PAPERS = {
    "fedot": Paper("FedOT", "best"),
    "fedot_conference": Paper("FedOT, conference version", "best"),
    "sdfed": Paper("SDFed", "mean10"),
    "fedalign": Paper("FedAlign", "last"),
    "feddeap": Paper("FedDEAP", "last"),
}
"""The papers by the names of their files."""


@dataclass(frozen=True)
class PublishedValue:
    """One value of a paper's table, in per cent unless its metric says otherwise.

    ``table`` to ``metric`` are as printed, and so is an average, even if it is not the mean of its row.

    Attributes:
        paper: key of ``PAPERS``.
        target: the domain of the value, or ``avg``.
        std: None if the paper prints none.
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

    @property
    def source(self) -> str:
        """The paper and its table, such as ``FedOT, Table 1``."""
        return f"{PAPERS[self.paper].title}, Table {self.table}"

    @property
    def rule(self) -> Rule:
        """The rule by which the paper selects the round that it reports."""
        return PAPERS[self.paper].rule


@cache
def load(paper: str) -> tuple[PublishedValue, ...]:
    """Return a paper's values in the file's order.

    Raises:
        FedLensError: with field ``reproduces``, if the paper is unknown.
    """
    if paper not in PAPERS:
        raise FedLensError(f"no published values of '{paper}'; choose {', '.join(PAPERS)}", "reproduces")
    with (FOLDER / f"{paper}.csv").open(encoding="utf-8", newline="") as file:
        return tuple(
            PublishedValue(
                paper,
                **{k: v for k, v in row.items() if k not in ("value", "std")},
                value=float(row["value"]),
                std=float(row["std"]) if row["std"] else None,
            )
            for row in csv.DictReader(file)
        )


def load_all() -> tuple[PublishedValue, ...]:
    """Return the values of all papers, one paper after another."""
    return tuple(value for paper in PAPERS for value in load(paper))


def values_of(experiment: Experiment) -> tuple[PublishedValue, ...]:
    """Return the values that an experiment's ``reproduces`` names, for the experiment's backbone only.

    Raises:
        FedLensError: with field ``reproduces``, for an unknown paper or an entry without a published value.
    """
    values: dict[PublishedValue, None] = {}
    for i, entry in enumerate(experiment.reproduces):
        matching = [
            v
            for v in load(entry.paper)
            if v.table == entry.table
            and entry.dataset in ("", v.dataset)
            and v.setting in (entry.setting or (v.setting,))
            and v.method in (entry.methods or (v.method,))
            and v.backbone == printed_backbone(experiment)
        ]
        if not matching:
            raise FedLensError(
                f"no value in table {entry.table} of {entry.paper} matches; see fedcore/assets/published",
                f"reproduces.{i}",
            )
        values.update(dict.fromkeys(matching))
    return tuple(values)
