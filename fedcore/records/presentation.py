"""A method's description of itself and of its recorded values, from which all pages show both."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class DiagnosticChart:
    """A line chart of values recorded in every round (a step's ``terms``, ``diagnostics``).

    Values that are read together share a chart. A value that no method describes has a chart of its own,
    named after it. Charts with the same title are drawn as one, also over several methods.

    Attributes:
        lines: recorded name -> the line's name; a single line needs none ("").
        unit: of all lines, e.g. "tokens"; "%" shows shares of one as per cent.
        better: which direction is good, if any.
        note: what a reader needs to know, shown beside the chart.
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
        """The title, with the unit where the values do not carry it."""
        return self.title if self.unit in ("", "%") else f"{self.title} ({self.unit})"

    @property
    def explanation(self) -> str:
        """The note, and the direction that is good."""
        return f"{self.note} {self.better.capitalize()} is better.".strip() if self.better else self.note


GRADIENT_CONFLICT = DiagnosticChart(
    "Agreement of updates",
    {"gradient_conflict": ""},
    unit="mean cosine",
    note="Of each two clients: 1 where all pull the same way, below 0 where they pull against each other.",
)
"""For any method whose clients move a shared parameter."""


@dataclass(frozen=True)
class MatrixChart:
    """A heatmap of values recorded for pairs of clients, on Live, Compare and Run.

    Pairs that no method describes are not drawn.

    Attributes:
        name: the recorded name.
        title: of the heatmaps, e.g. "Attention: who learns from whom".
        note: what a reader needs to know, shown beside them.
        verb: what the client of a row does to that of a column: "learns from".
        rows: the rows' axis title: "who learns".
        columns: the columns' axis title: "from whom".
        unit: of the values, beside the colours.
        color_range: values at the two ends of the colours.
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
    """A chart of accuracy and of one recorded value over a field of the config, as a tab of the page Run.

    Attributes:
        title: of the tab and of the value's axis, e.g. "Degrees of freedom".
        value: the recorded name of the value.
        over: the field of the method's config that is the horizontal axis.
        symbol: of that field in the paper, e.g. "r".
        only: fields of the config -> the value that a run must have to be drawn.
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
        title: its name as shown, e.g. "FedOT".
        source: paper and year.
        summary: the idea in a few sentences, shown beside the form.
        family: whether it is listed among the methods or among the baselines.
        charts: line charts of the values it records.
        matrices: heatmaps of the values it records for pairs of clients.
        field_charts: charts of its runs over a field of their config.
        prompts: names of its learned prompts -> how tables call them.
    """

    title: str
    source: str = ""
    summary: str = ""
    family: Literal["method", "baseline"] = "method"
    charts: tuple[DiagnosticChart, ...] = ()
    matrices: tuple[MatrixChart, ...] = ()
    field_charts: tuple[FieldChart, ...] = ()
    prompts: dict[str, str] = field(default_factory=dict)
