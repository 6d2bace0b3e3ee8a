"""The matrices of a comparison, as the page Compare and the report draw them: a line for each."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from fedcore.records.presentation import MatrixChart
from fedcore.results import diagnostics
from fedcore.results.comparison import Comparison
from fedcore.results.panels.means import (
    client_by_round_panels,
    domain_panels,
    held_out_panels,
    mean_matrix_panels,
    mean_panels,
    method_by_domain_panel,
)
from fedcore.results.panels.panel import Panel
from fedcore.store import RunRow, Store

Panels = dict[str, Panel]
"""Key of a row -> its panel."""
NEEDS_ROUND = "It appears with the first evaluated round."
NEEDS_DOMAINS = "It needs clients that belong to domains."


@dataclass(frozen=True)
class MatrixView:
    """A matrix for each row of a comparison.

    Attributes:
        panels: returns the panels of one setting.
        absent: a sentence on why a comparison may have no such matrix.
        differences: places that also draw the differences from the baseline.
        recorded: description of the values where a method recorded them; None for accuracies.
    """

    title: str
    panels: Callable[[Store, Comparison, str], Panels]
    absent: str
    differences: Literal["nowhere", "page", "everywhere"] = "everywhere"
    recorded: MatrixChart | None = None


VIEWS: dict[str, MatrixView] = {
    "methods": MatrixView(
        "Method by domain",
        lambda store, compared, setting: {"": method_by_domain_panel(store, compared, setting)},
        NEEDS_DOMAINS,
        "nowhere",
    ),
    "models": MatrixView("Model by test set", mean_panels, NEEDS_ROUND),
    "held_out": MatrixView(
        "Held-out domain by domain (G, P)",
        held_out_panels,
        "It needs runs that hold out a domain (*Held-out domains* on the page New).",
    ),
    "domains": MatrixView("Domain of the model by domain of the images", domain_panels, NEEDS_DOMAINS),
    "rounds": MatrixView("Client by round", client_by_round_panels, NEEDS_ROUND, "page"),
}
"""Matrices of accuracies by name; a report draws them in this order."""
FIRST = "models"
"""The matrix that the page draws first."""


def matrix_views(runs: Iterable[RunRow] = ()) -> dict[str, MatrixView]:
    """Return ``VIEWS``, and the matrices that methods can record, described by the runs' methods first."""
    recorded = {
        name: MatrixView(
            chart.title,
            partial(mean_matrix_panels, matrix=chart),
            f"{diagnostics.recording_methods(name)} can record it.",
            "nowhere",
            chart,
        )
        for name, chart in diagnostics.matrix_charts(runs).items()
        if name not in VIEWS
    }
    return VIEWS | recorded


def shown_panels(view: MatrixView, store: Store, comparison: Comparison, setting: str) -> Panels:
    """Return the panels of a view that have cells; none if the setting has no such matrix."""
    panels = view.panels(store, comparison, setting)
    return {key: panel for key, panel in panels.items() if panel.rows and panel.columns}
