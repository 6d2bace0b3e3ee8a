"""What a method says of the figures that it records, so that pages can draw them without knowing it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class DiagnosticChart:
    """How figures of a round (a step's ``terms``, ``diagnostics``) are drawn: those read together share one.

    Figures that no method describes have a chart of their own, named after them. Charts of one title are one,
    also over several methods.

    Attributes:
        lines: recorded name -> what its line is called; one name alone needs none.
        unit: of all lines, e.g. "tokens"; "%" shows shares of one as per cent.
        better: which way is good, where one is.
        note: what a reader has to know beside the picture.
        unasked: whether it is shown before anybody asks, as the one or two charts that tell most.
    """

    title: str
    lines: dict[str, str]
    unit: str = ""
    better: Literal["higher", "lower", ""] = ""
    note: str = ""
    unasked: bool = False

    @property
    def key(self) -> str:
        """Names the chart in the URL."""
        return next(iter(self.lines))

    @property
    def heading(self) -> str:
        """The title, with the unit where the values do not carry it."""
        return self.title if self.unit in ("", "%") else f"{self.title} ({self.unit})"

    @property
    def explanation(self) -> str:
        """The note, and which way is good."""
        return f"{self.note} {self.better.capitalize()} is better.".strip() if self.better else self.note


GRADIENT_CONFLICT = DiagnosticChart(
    "Gradient conflict",
    {"gradient_conflict": ""},
    unit="mean cosine of the clients' updates",
    note="1 where all clients pull the same way, below 0 where they pull against each other.",
)
"""For any method whose clients move a shared parameter."""


@dataclass(frozen=True)
class MatrixChart:
    """How a recorded figure of pairs of clients is drawn: a heatmap of its own on Live, Compare and Run.

    A pair that nobody describes is not drawn.

    Attributes:
        name: as it is recorded.
        title: of the heatmaps, e.g. "Attention: who learns from whom".
        note: what a reader has to know beside them.
        verb: what the client of a row does to that of a column: "learns from".
        rows: who stands in a row: "who learns".
        columns: who stands in a column: "from whom".
        unit: of the values, beside the colours.
        reach: values at the ends of the colours.
    """

    name: str
    title: str
    note: str = ""
    verb: str = "and"
    rows: str = "client"
    columns: str = "other client"
    unit: str = "Value"
    reach: tuple[float, float] = (0.0, 1.0)
