"""Matrices of a comparison, means over seeds in the rounds of its rule, and the list of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np

from fedcore.records.presentation import MatrixChart
from fedcore.results import diagnostics
from fedcore.results.comparison import Comparison, ComparisonRow
from fedcore.results.metrics import BREAKDOWNS, RunResult
from fedcore.results.panels.panel import (
    Panel,
    Share,
    Shares,
    accuracy_panel,
    client_domains,
    domain_names,
    held_out_shares,
    matrix_panel,
    mean_shares,
    panel_of_shares,
    shares_by_domain,
)
from fedcore.results.panels.run_panels import participants, run_panel
from fedcore.results.statistics import group_by
from fedcore.store import EntityRow, NamedCell, RunRow, Store


def mean_panels(store: Store, comparison: Comparison, setting: str) -> dict[str, Panel]:
    """Return the panel of models by test sets of each row."""
    panels = {}
    for row in comparison.rows_in(setting):
        cells = store.cells.coded({r.run.id: r.rounds for r in row.runs})
        entities = {r.run.id: store.cells.entities(r.run.id) for r in row.runs}
        panels[row.key] = accuracy_panel(row.drawn_label, row.method, cells, entities)
    return panels


def domain_panels(store: Store, comparison: Comparison, setting: str) -> dict[str, Panel]:
    """Return domain of the model by domain of the images, of each row whose clients belong to domains."""
    panels = {}
    for row in comparison.rows_in(setting):
        domains = {r.run.id: client_domains(store.cells.entities(r.run.id)) for r in row.runs}
        rounds = _rounds_of_runs(_all_cells(store, row.runs))
        shares = _mean_over_seeds(
            row,
            {run: [shares_by_domain(cells, domains[run]) for cells in rs] for run, rs in rounds.items()},
        )
        names = domain_names(_entities(store, row))
        if shares:
            panels[row.key] = panel_of_shares(row.drawn_label, row.method, names, names, shares)
    return panels


def held_out_panels(store: Store, comparison: Comparison, setting: str) -> dict[str, Panel]:
    """Return FedOT's ACC matrix of each row that holds domains out.

    A row of the matrix is the run that held out this domain. On the diagonal is the global model on it (G;
    empty for methods without such a model), elsewhere each other domain's own models on that domain (P).
    """
    panels = {}
    for row in comparison.rows_in(setting):
        held_out = {r.run.held_out for r in row.runs} - {None}
        if held_out:
            names = domain_names(_entities(store, row))
            shares = _mean_over_seeds(row, _held_out_rows(store, row))
            rows = [n for n in names if n in held_out]
            panel = panel_of_shares(row.drawn_label, row.method, rows, names, shares)
            panels[row.key] = replace(panel, row_title="held out", column_title="domain")
    return panels


def method_by_domain_panel(store: Store, comparison: Comparison, setting: str) -> Panel:
    """Return one panel of methods by domain, with the values of the table.

    They are personal accuracies: the mean over the domain's clients, each with its own model after
    aggregation on its own test samples, then over seeds. If domains were held out they are G, the global
    model on the domain that its run held out.
    """
    members = comparison.rows_in(setting)
    held_out = any(r.run.held_out is not None for g in members for r in g.runs)
    shares: dict[tuple[str, str], Share] = {}
    for row in members:
        pairs = _mean_over_seeds(row, _held_out_rows(store, row, own=not held_out))
        shares |= {(row.drawn_label, domain): share for (_, domain), share in pairs.items()}
    domains = domain_names(e for g in members for e in _entities(store, g))
    columns = [d for d in domains if any(d == column for _, column in shares)]
    title = BREAKDOWNS["held_out" if held_out else "domain"]
    panel = panel_of_shares(title, "", [g.drawn_label for g in members], columns, shares)
    return replace(panel, row_title="method", column_title="domain", own_columns=())


def client_by_round_panels(store: Store, comparison: Comparison, setting: str) -> dict[str, Panel]:
    """Return clients by rounds of each row: own models on own test samples.

    The mean is over the runs in which the client took part in the round; a gap means that it never did.
    """
    panels = {}
    for row in comparison.rows_in(setting):
        shares = _mean_over_seeds(row, {r.run.id: [_own_shares(store, r.run.id)] for r in row.runs})
        rounds = [str(r) for r in sorted({int(round_) for _, round_ in shares})]
        if rounds:
            clients = list(dict.fromkeys(e.name for e in _entities(store, row) if e.kind == "client"))
            panel = panel_of_shares(
                row.drawn_label,
                row.method,
                clients,
                rounds,
                shares,
                row_title="client",
                column_title="round",
            )
            panels[row.key] = replace(panel, own_columns=(len(rounds) - 1,) * len(clients))
    return panels


def mean_matrix_panels(
    store: Store, comparison: Comparison, setting: str, matrix: MatrixChart
) -> dict[str, Panel]:
    """Return the panel of a recorded matrix of each row that has it: mean over runs, at their last round."""
    panels = {}
    for row in comparison.rows_in(setting):
        single = [run_panel(store, r.run, matrix.name, until=r.rounds[-1]) for r in row.runs]
        names = list(dict.fromkeys(n for p in single for n in p.rows))
        shares = mean_shares(
            {
                (p.rows[i], p.columns[j]): (float(p.values[i, j]), 0, 0)
                for i, j in np.argwhere(~np.isnan(p.values))
            }
            for p in single
        )
        if shares:
            panels[row.key] = matrix_panel(row.drawn_label, row.method, names, shares, matrix)
    return panels


def difference_panel(panel: Panel, baseline: Panel) -> Panel:
    """Return panel minus baseline in points, cell by cell; NaN if either has no data or no such cell."""
    values = np.full(panel.values.shape, np.nan)
    rows, columns = (
        [(i, theirs.index(name)) for i, name in enumerate(ours) if name in theirs]
        for ours, theirs in ((panel.rows, baseline.rows), (panel.columns, baseline.columns))
    )
    for i, theirs in rows:
        for j, column in columns:
            values[i, j] = panel.values[i, j] - baseline.values[theirs, column]
    return replace(panel, title=f"{panel.title} - {baseline.title}", values=values)


def _entities(store: Store, row: ComparisonRow) -> list[EntityRow]:
    return [e for r in row.runs for e in store.cells.entities(r.run.id)]


def _all_cells(store: Store, results: Sequence[RunResult]) -> list[NamedCell]:
    """Return all cells of runs in their selected rounds."""
    cells: list[NamedCell] = []
    for i in range(max((len(r.rounds) for r in results), default=0)):
        cells += store.cells.at_rounds({r.run.id: r.rounds[i] for r in results if len(r.rounds) > i})
    return cells


def _rounds_of_runs(cells: Iterable[NamedCell]) -> dict[int, list[list[NamedCell]]]:
    """Run -> the cells of each of its rounds."""
    runs = group_by(cells, lambda c: c.run_id)
    return {run: list(group_by(same, lambda c: c.round).values()) for run, same in runs.items()}


def _held_out_rows(store: Store, row: ComparisonRow, own: bool = True) -> dict[int, list[Shares]]:
    """Run -> the shares of each round by (held-out domain, domain); ``own``: also of own models."""
    held_out = {r.run.id: r.run.held_out for r in row.runs}
    rounds = _rounds_of_runs(store.cells.own_and_global({r.run.id: r.rounds for r in row.runs}))
    return {
        run: [
            {
                (held_out[run] or "", domain): share
                for domain, share in held_out_shares(cells, held_out[run]).items()
                if own or domain == held_out[run]
            }
            for cells in by_round
        ]
        for run, by_round in rounds.items()
    }


def _own_shares(store: Store, run_id: int) -> Shares:
    """(Client, round) -> its own accuracy in one run, where it took part in that round."""
    clients = {e.entity: e.name for e in store.cells.entities(run_id) if e.kind == "client"}
    took_part = participants(store, run_id)
    return {
        (clients[o.client], str(o.round)): (o.correct / o.total, o.correct, o.total)
        for o in store.cells.own_accuracy(run_id)
        if o.round not in took_part or o.client in took_part[o.round]
    }


def _mean_over_seeds(
    row: ComparisonRow, shares: Mapping[int, Sequence[Shares]]
) -> dict[tuple[str, str], Share]:
    """Average ``shares`` over a run's rounds, a seed's runs, then seeds, as in the tables."""
    seeds = group_by(row.runs, lambda r: r.run.seed).values()
    return mean_shares(mean_shares(mean_shares(shares.get(r.run.id, ())) for r in same) for same in seeds)


Panels = dict[str, Panel]
"""Key of a row -> its panel."""
NEEDS_ROUND = "It appears with the first evaluated round."
NEEDS_DOMAINS = "It needs clients that belong to domains."


@dataclass(frozen=True)
class MatrixView:
    """A matrix for each row of a comparison.

    Attributes:
        panels: returns the panels of one setting.
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
