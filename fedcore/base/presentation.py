"""The presentation of a method and its recorded values on pages, in reports and in the documentation."""

import re
import tomllib
from dataclasses import dataclass, field
from functools import cache
from typing import Literal, NamedTuple

from fedcore.base.files import ASSETS


@dataclass(frozen=True)
class DiagnosticChart:
    """A line chart of values recorded in every round (a step's ``terms``, ``diagnostics``).

    Values that are read together share a chart. A value that no method describes gets a separate chart with
    its name. Charts with equal titles are drawn as one, also across methods.

    Attributes:
        lines: recorded name -> name of the line; "" for a single line.
        unit: of all lines, e.g. "tokens"; "%" shows fractions as per cent.
        better: the direction that is good, if any.
        note: an explanation shown beside the chart.
        default_visible: shown by default; reserve it for the one or two most informative charts.
    """

    title: str
    lines: dict[str, str]
    unit: str = ""
    better: Literal["higher", "lower", ""] = ""
    note: str = ""
    default_visible: bool = False

    @property
    def key(self) -> str:
        """The chart's name in the URL."""
        return next(iter(self.lines))

    @property
    def heading(self) -> str:
        """The title, with the unit unless the values show it."""
        return self.title if self.unit in ("", "%") else f"{self.title} ({self.unit})"

    @property
    def explanation(self) -> str:
        """The note and the direction that is good."""
        return f"{self.note} {self.better.capitalize()} is better.".strip() if self.better else self.note


GRADIENT_CONFLICT = DiagnosticChart(
    "Agreement of updates",
    {"gradient_conflict": ""},
    unit="mean cosine",
    note="For each pair of clients: 1 if their updates agree, below 0 if they oppose each other.",
)
"""For any method with a shared parameter that clients train."""


@dataclass(frozen=True)
class MatrixChart:
    """A heatmap of values recorded for pairs of clients, on Live, Compare and Run.

    Attributes:
        name: the recorded name; pairs that no method describes are not drawn.
        title: of the heatmap, e.g. "Attention: who learns from whom".
        note: an explanation shown beside it.
        verb: relates the client of a row to the client of a column, e.g. "learns from".
        rows, columns: titles of the axes, e.g. "who learns" and "from whom".
        unit: label of the colour bar.
        color_range: values at the two ends of the colour scale.
    """

    name: str
    title: str
    note: str = ""
    verb: str = "and"
    rows: str = "client"
    columns: str = "other client"
    unit: str = "Value"
    color_range: tuple[float, float] = (0.0, 1.0)


@dataclass(frozen=True)
class FieldChart:
    """A chart of accuracy and one recorded value over a field of the config, as a tab of the page Run.

    Attributes:
        title: of the tab and of the value's axis, e.g. "Degrees of freedom".
        value: the recorded name.
        over: the field of the method's config on the horizontal axis.
        symbol: of that field in the paper, e.g. "r".
        only: values of config fields that a run must have to be drawn.
    """

    title: str
    value: str
    over: str
    symbol: str
    only: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class About:
    """The presentation of a method in forms, tables, charts and the documentation.

    Attributes:
        title: display name, e.g. "FedOT", of a method outside FedLens; ours are in ``assets/methods.toml``.
        source: paper and year.
        bibtex: the entry of the paper, of a method outside FedLens; ours are in ``assets/references.bib``.
        summary: the idea in a few sentences, shown beside the form.
        prompts: names of its learned prompts -> their names in tables.
        alike: why the rows of its personal models may hardly differ from the global model's, in a sentence.
        family: not read; method files of 1.0 may set it.
    """

    title: str = ""
    source: str = ""
    bibtex: str = ""
    summary: str = ""
    charts: tuple[DiagnosticChart, ...] = ()
    matrices: tuple[MatrixChart, ...] = ()
    field_charts: tuple[FieldChart, ...] = ()
    prompts: dict[str, str] = field(default_factory=dict)
    alike: str = ""
    family: str = ""


class BuiltIn(NamedTuple):
    """A method's title, the module that registers it, and the keys of its papers (``references``)."""

    title: str
    module: str
    cites: tuple[str, ...]


@cache
def built_in() -> dict[str, BuiltIn]:
    """Return the methods by name, in the order of their looks in charts."""
    listed = tomllib.loads((ASSETS / "methods.toml").read_text(encoding="utf-8"))
    return {
        name: BuiltIn(one["title"], f"fedcore.methods.{one['module']}", tuple(one["cites"]))
        for name, one in listed.items()
    }


@cache
def references() -> dict[str, str]:
    """Return the BibTeX entries of papers by their keys."""
    entries = re.split(r"\n(?=@)", (ASSETS / "references.bib").read_text(encoding="utf-8").strip())
    return {entry[entry.index("{") + 1 : entry.index(",")]: entry.strip() for entry in entries}
