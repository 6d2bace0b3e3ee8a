"""Matrices of a comparison, means over seeds in the rounds of its rule, and the list of them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np

from fedcore.base.presentation import MatrixChart
from fedcore.results import diagnostics
from fedcore.results.comparison import Comparison, reason_not_comparable
from fedcore.results.metrics import BREAKDOWNS
from fedcore.results.panels.panel import Panel, panel_of_cells
from fedcore.results.panels.run_panels import PanelView, Recorded
from fedcore.results.rows import ComparisonRow
from fedcore.store import RunRow, Store

Panels = dict[str, Panel]
"""Key of a row -> its panel."""


def row_panels(
    store: Store, comparison: Comparison, setting: str, view: PanelView | MatrixChart = "matrix"
) -> Panels:
    """Return the panel of each row, in the rounds of the comparison; clients by rounds have all rounds."""
    panels, members = {}, comparison.rows_in(setting)
    together = _recorded(store, members)
    for row in members:
        recorded = replace(_recorded(store, [row]), together=together)
        if view == "clients":
            recorded = replace(recorded, rounds=store.rounds.evaluated_of_runs(recorded.rounds))
        panels[row.key] = recorded.panel(view, row.drawn_label, row.method)
    return panels


def _recorded(store: Store, rows: Iterable[ComparisonRow]) -> Recorded:
    results = [result for row in rows for result in row.runs]
    return Recorded(store, [r.run for r in results], {r.run.id: r.rounds for r in results})


def method_by_domain_panel(store: Store, comparison: Comparison, setting: str) -> Panel:
    """Return one panel of methods by domain, with the values of the table.

    They are personal accuracies: the mean over the domain's clients, each with its own model after
    aggregation on its own test samples, then over seeds. If domains were held out they are G, the global
    model on the domain that its run held out.
    """
    members = comparison.rows_in(setting)
    recorded = _recorded(store, members)
    held_out = any(run.held_out is not None for run in recorded.runs)
    cells = recorded.held_out_cells
    if held_out:
        cells = cells[cells.row == cells.column]
    labels = {r.run.id: row.drawn_label for row in members for r in row.runs}
    columns = [d for d in recorded.domains if d in set(cells.column)]
    title = BREAKDOWNS["held_out" if held_out else "domain"]
    shown = cells.assign(row=cells.run_id.map(labels))
    panel = panel_of_cells(title, "", [g.drawn_label for g in members], columns, shown)
    return replace(panel, row_title="method", column_title="domain", own_columns=())


def difference_panel(panel: Panel, baseline: Panel, shown: Panel | None = None) -> Panel:
    """Return panel minus baseline in points, cell by cell; NaN if either has no data or no such cell.

    Args:
        shown: a panel with the rows and columns of the result; default: ``panel``.
    """
    shown = panel if shown is None else shown
    values = _values_at(panel, shown) - _values_at(baseline, shown)
    return replace(shown, title=f"{panel.title} - {baseline.title}", values=values)


def _values_at(panel: Panel, shown: Panel) -> np.ndarray:
    """Return a panel's values in the rows and columns of another one; NaN where it does not have them."""
    rows, columns = (
        [names.index(name) if name in names else -1 for name in wanted]
        for wanted, names in ((shown.rows, panel.rows), (shown.columns, panel.columns))
    )
    return np.pad(panel.values, (0, 1), constant_values=np.nan)[np.ix_(rows, columns)]


NEEDS_ROUND = "It appears with the first evaluated round."
NEEDS_DOMAINS = "It needs clients that belong to domains."


@dataclass(frozen=True)
class MatrixView:
    """A matrix for each row of a comparison.

    Attributes:
        absent: a sentence on why a comparison may lack the matrix.
        differences: places that also draw the differences from the baseline.
        recorded: description of values that a method recorded; None for accuracies.
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
    "models": MatrixView("Model by test set", row_panels, NEEDS_ROUND),
    "held_out": MatrixView(
        "Held-out domain by domain (G, P)",
        partial(row_panels, view="held_out"),
        "It needs runs that hold out a domain (*Held-out domains* on the page New).",
    ),
    "domains": MatrixView(
        "Domain of the model by domain of the images", partial(row_panels, view="domains"), NEEDS_DOMAINS
    ),
    "rounds": MatrixView("Client by round", partial(row_panels, view="clients"), NEEDS_ROUND, "page"),
}
"""Matrices of accuracies by name; a report draws them in this order."""
FIRST = "models"
"""The matrix that the page draws first."""


def matrix_views(runs: Iterable[RunRow] = ()) -> dict[str, MatrixView]:
    """Return ``VIEWS``, and the matrices that methods can record, described by the runs' methods first."""
    recorded = {
        name: MatrixView(
            chart.title,
            partial(row_panels, view=chart),
            f"{diagnostics.recording_methods(name)} can record it.",
            "nowhere",
            chart,
        )
        for name, chart in diagnostics.matrix_charts(runs).items()
        if name not in VIEWS
    }
    return VIEWS | recorded


def paired_panels(
    view: MatrixView, store: Store, comparison: Comparison, panels: Panels, baseline: ComparisonRow
) -> dict[str, tuple[Panel, Panel]]:
    """Return the panels of each row that is compared with the baseline, and of the baseline, to subtract.

    Both are means over the seeds that the two rows have, as the differences of a table.

    Args:
        panels: those of the baseline's setting, over all seeds, see ``shown_panels``.
    """
    pairs = {}
    for row in comparison.rows_in(baseline.setting):
        common = set(row.seeds) & set(baseline.seeds)
        if row.key == baseline.key or not common or reason_not_comparable(row, baseline):
            continue
        of_pair = panels
        if row.seeds != baseline.seeds:
            both = (
                replace(r, runs=tuple(x for x in r.runs if x.run.seed in common)) for r in (row, baseline)
            )
            of_pair = shown_panels(view, store, replace(comparison, rows=tuple(both)), baseline.setting)
        if row.key in of_pair and baseline.key in of_pair:
            pairs[row.key] = of_pair[row.key], of_pair[baseline.key]
    return pairs


def over_common_seeds(rows: Iterable[ComparisonRow], baseline: ComparisonRow) -> str:
    """Return what a title says of differences that are not those of the panels shown; else an empty text."""
    return " over the seeds that both have" if any(row.seeds != baseline.seeds for row in rows) else ""


def shown_panels(view: MatrixView, store: Store, comparison: Comparison, setting: str) -> Panels:
    """Return the panels of a view that have cells; none if the setting has no such matrix."""
    panels = view.panels(store, comparison, setting)
    return {key: panel for key, panel in panels.items() if panel.rows and panel.columns}
