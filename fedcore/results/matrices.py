"""The matrices of runs, for Live and Run, and of the rows of a comparison: means over runs and seeds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil
from typing import TYPE_CHECKING, Literal

import numpy as np

from fedcore.base.errors import FedLensError
from fedcore.base.events import AFTER_AGGREGATION, TEST
from fedcore.base.presentation import MatrixChart
from fedcore.results.comparison import Comparison, reason_not_comparable
from fedcore.results.curves import matrix_charts, recording_methods, run_labels
from fedcore.results.frames import cell_frame
from fedcore.results.metrics import BREAKDOWNS
from fedcore.results.panels import (
    NAMELESS,
    Panel,
    accuracy_panel,
    by_domain,
    by_held_out,
    client_names,
    gains_panel,
    panel_of_cells,
)
from fedcore.results.rows import ComparisonRow
from fedcore.results.statistics import group_by
from fedcore.store import EntityRow, RunRow, Store

if TYPE_CHECKING:
    import pandas as pd

PlacedCell = tuple[int, str, str, float, int, int]
"""Run, row, column, share, correct and total."""
PanelView = str
"""One of ``VIEWS``, or the name of a matrix that methods record (``matrix_charts``)."""
VIEWS: dict[PanelView, str] = {
    "matrix": "Model by test set",
    "clients": "Client by round",
    "domains": "Domain of the model by domain of the images",
    "held_out": "Held-out domain by domain",
    "helps": "Who helps whom",
}


@dataclass(frozen=True)
class Recorded:
    """The content of one panel: runs of one method, and the rounds of each that it shows.

    A cell is the mean over a run's rounds, then over the runs of a seed, then over seeds, as in the tables.

    Attributes:
        together: the content of all panels that are drawn beside this one, whose cells are read at once.
    """

    store: Store
    runs: Sequence[RunRow]
    rounds: Mapping[int, Sequence[int]]
    split: int = TEST
    stage: int = AFTER_AGGREGATION
    together: Recorded | None = None

    @cached_property
    def entities(self) -> dict[int, list[EntityRow]]:
        return {run.id: self.store.cells.entities(run.id) for run in self.runs}

    @property
    def domains(self) -> list[str]:
        """The domains in the order of their test sets, then of the clients."""
        named = [e for of_run in self.entities.values() for e in of_run]
        tested = [e.name for e in named if e.kind == "domain"]
        return list(dict.fromkeys([*tested, *(e.domain for e in named if e.domain)]))

    def panel(self, view: PanelView | MatrixChart, title: str, method: str) -> Panel:
        """Return the panel of a view; it has no rows or no columns if nothing was recorded for it."""
        if isinstance(view, MatrixChart):
            return self._matrix_panel(view, title, method)
        if view == "clients":
            return self._clients_panel(title, method)
        if view == "domains":
            names = self.domains if len(self._domain_cells) else []
            titles = "domain of the model", "domain of the images"
            panel = panel_of_cells(title, method, names, names, self._domain_cells, *titles)
            recorded = any(self.rounds.values())
            return replace(panel, empty_text="no domains recorded") if recorded else panel
        if view == "held_out":
            # FedOT's ACC matrix: a row is the run that held out this domain. On the diagonal is the global
            # model on it (G), elsewhere each other domain's own models on that domain (P).
            cells, held_out = self.held_out_cells, {run.held_out for run in self.runs}
            rows = [name for name in self.domains if name in held_out] if len(cells) else []
            return panel_of_cells(title, method, rows, self.domains, cells, "held out", "domain")
        coded = self.store.cells.coded(self.rounds, self.split, self.stage)
        evaluated = np.union1d(coded.model, coded.test_set).tolist()
        entities = {run.id: self.store.cells.entities(run.id, evaluated) for run in self.runs}
        seeds = {run.id: run.seed for run in self.runs}
        return accuracy_panel(title, method, coded, entities, seeds)

    @cached_property
    def held_out_cells(self) -> pd.DataFrame:
        """The cells by held-out domain and domain, see ``by_held_out``."""
        if self.together is not None:
            cells = self.together.held_out_cells
            return cells[cells.run_id.isin([run.id for run in self.runs])]
        return by_held_out(
            cell_frame(self.store.cells.own_and_global(self.rounds, self.split, self.stage), self.runs)
        )

    @cached_property
    def _domain_cells(self) -> pd.DataFrame:
        if self.together is not None:
            cells = self.together._domain_cells
            return cells[cells.run_id.isin([run.id for run in self.runs])]
        cells = cell_frame(self.store.cells.at_rounds(self.rounds, self.split, self.stage), self.runs)
        domain_of = {
            (run, e.name): e.domain
            for run, of_run in self.entities.items()
            for e in of_run
            if e.kind == "client"
        }
        cells["row"] = [domain_of.get(of) for of in zip(cells.run_id, cells.model, strict=True)]
        return by_domain(cells)

    def _clients_panel(self, title: str, method: str) -> Panel:
        """Return clients by rounds (``binned_rounds``): own models on own test samples.

        The mean is over the runs in which the client took part in the round; a gap means that it never did.
        """
        columns = binned_rounds(sorted({r for of_run in self.rounds.values() for r in of_run}))
        clients: dict[str, None] = {}
        cells: list[PlacedCell] = []
        for run in self.runs:
            rounds = set(self.rounds.get(run.id, ()))
            own = self.store.cells.own_accuracy(run.id, self.split, self.stage, participants=True)
            own = [o for o in own if o.round in rounds]
            entities = self.store.cells.entities(run.id, {o.client for o in own})
            clients |= dict.fromkeys(client_names(entities))
            names = _Names(entities)
            cells += [
                (run.id, names[o.client], columns[o.round], o.correct / o.total, o.correct, o.total)
                for o in own
            ]
        places = list(dict.fromkeys(columns.values()))
        panel = panel_of_cells(title, method, list(clients), places, self._placed(cells), "client", "round")
        return replace(panel, own_columns=(len(places) - 1,) * len(clients))

    def _placed(self, cells: Sequence[PlacedCell]) -> pd.DataFrame:
        import pandas as pd

        frame = pd.DataFrame(cells, columns=["run_id", "row", "column", "share", "correct", "total"])
        return frame.assign(seed=frame.run_id.map({run.id: run.seed for run in self.runs}))

    def _matrix_panel(self, matrix: MatrixChart, title: str, method: str) -> Panel:
        """Return a matrix that the method recorded, of the last rounds up to those shown that have it."""
        cells: list[PlacedCell] = []
        last: dict[int, int] = {}
        for run_id, rounds in self.rounds.items():
            values = self.store.diagnostics.at_round(run_id, matrix.name, rounds[-1]) if rounds else []
            names = _Names(self.entities[run_id])
            if values:
                last[run_id] = values[0].round
                cells += [
                    (run_id, names[d.client_a], names[d.client_b], d.value, 0, 0)
                    for d in values
                    if d.value is not None
                ]
        clients = client_names(e for of_run in self.entities.values() for e in of_run) if last else []
        placed, titles = self._placed(cells), (matrix.rows, matrix.columns)
        panel = panel_of_cells(title, method, clients, clients, placed, *titles)
        # values, not percentages
        panel = replace(panel, values=panel.values / 100, matrix=matrix, last_rounds=last)
        if any(max(rounds, default=0) for rounds in self.rounds.values()):
            return replace(panel, empty_text=f"records no {matrix.name.replace('_', ' ')}")
        return panel


MOST_COLUMNS = 400
"""Rounds that have columns of their own; a panel is seldom wider in pixels."""


def binned_rounds(rounds: Sequence[int]) -> dict[int, str]:
    """Return the column of each round; of very many, some share one, but for the first and the last."""
    count = len(rounds) - 1
    size = max(1, ceil((count - 1) / (MOST_COLUMNS - 2)))
    parts = [rounds[:1], *(rounds[i : min(i + size, count)] for i in range(1, count, size)), rounds[-1:]]
    return {r: str(r) if len(part) == 1 else f"{part[0]} to {part[-1]}" for part in parts for r in part}


class _Names(dict[int, str]):
    """Names by code; a code without a name is damage."""

    def __init__(self, entities: Iterable[EntityRow]) -> None:
        super().__init__((e.entity, e.name) for e in entities)

    def __missing__(self, code: int) -> str:
        raise FedLensError(NAMELESS, "db")


def run_panels(
    store: Store,
    runs: Sequence[RunRow],
    view: PanelView = "matrix",
    split: int = TEST,
    stage: int = AFTER_AGGREGATION,
    until: Mapping[int, int] | None = None,
) -> list[Panel]:
    """Return a panel per method and held-out domain, the mean over the seeds if there are several.

    The view of held-out domains has one panel per method; a recorded matrix needs runs that have it. Of a run
    in ``until``, no later round than its value is shown.
    """
    if view not in VIEWS:
        runs = [r for r in runs if view in store.diagnostics.names(r.id)] or runs
    labels = run_labels(store, runs)
    if view == "held_out":
        runs = [r for r in runs if r.held_out is not None]
        labels = {r.id: labels[r.id].removesuffix(f", without {r.held_out}") for r in runs}
    evaluated = store.rounds.evaluated_of_runs([r.id for r in runs], split, stage)
    rounds = {r.id: [n for n in evaluated.get(r.id, []) if n <= (until or {}).get(r.id, n)] for r in runs}
    drawn_together = []
    for label, members in group_by(runs, lambda r: labels[r.id]).items():
        together = view == "held_out" or len({r.seed for r in members}) > 1
        drawn_together += [(label, shown) for shown in ([members] if together else [[r] for r in members])]
    panels = []
    for label, shown in drawn_together:
        last = {r.id: rounds[r.id][-1:] for r in shown}
        whole = {r.id: rounds[r.id] for r in shown}
        recorded = Recorded(store, shown, whole if view == "clients" else last, split, stage)
        method = shown[0].method
        if view == "helps":
            first = replace(recorded, rounds={run: of_run[:1] for run, of_run in whole.items()})
            panel = gains_panel(recorded.panel("matrix", "", method), first.panel("matrix", "", method))
        else:
            panel = recorded.panel(view if view in VIEWS else matrix_charts(shown)[view], "", method)
        drawn = {**{run: of_run[0] for run, of_run in last.items() if of_run}, **panel.last_rounds}
        numbers = sorted(drawn.values())
        begun = len({r.seed for r in shown if r.id in drawn})
        if not numbers:
            what = "waiting" if all(run.state == "queued" for run in shown) else "no round yet"
        elif len(shown) == 1 and view != "held_out":
            what = f"round {numbers[0]}/{shown[0].rounds_total}"
        else:
            seeds = f"{begun} seeds, " if begun > 1 else ""
            what = f"{seeds}round {' to '.join(map(str, dict.fromkeys([numbers[0], numbers[-1]])))}"
        panels.append(replace(panel, title=f"{label}: {what}", runs=tuple(r.id for r in shown)))
    return panels


def run_panel(store: Store, run: RunRow, view: PanelView = "matrix", until: int | None = None) -> Panel:
    """Return the panel of a run at its last evaluated round up to ``until``, or of its clients over these."""
    (panel,) = run_panels(store, [run], view, until=None if until is None else {run.id: until})
    return panel


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
    labels_in_order = [row.drawn_label for row in members]
    panel = panel_of_cells(title, "", labels_in_order, columns, shown, "method", "domain")
    return replace(panel, own_columns=())


def difference_panel(panel: Panel, baseline: Panel, shown: Panel | None = None) -> Panel:
    """Return panel minus baseline in points, cell by cell; NaN if either has no data or no such cell.

    Args:
        shown: a panel with the rows and columns of the result; default: ``panel``.
    """
    shown = panel if shown is None else shown

    def values(of: Panel) -> np.ndarray:
        rows, columns = (
            [names.index(name) if name in names else -1 for name in wanted]
            for wanted, names in ((shown.rows, of.rows), (shown.columns, of.columns))
        )
        return np.pad(of.values, (0, 1), constant_values=np.nan)[np.ix_(rows, columns)]

    title = f"{panel.title} - {baseline.title}"
    return replace(shown, title=title, values=values(panel) - values(baseline))


NEEDS_ROUND = "It appears with the first evaluated round."
NEEDS_DOMAINS = "It needs clients that belong to domains."


@dataclass(frozen=True)
class MatrixView:
    """A matrix for each row of a comparison.

    Attributes:
        view: of the panels; a chart if a method recorded the values, which then are not accuracies.
        absent: a sentence on why a comparison may lack the matrix.
        differences: places that also draw the differences from the baseline.
    """

    title: str
    view: PanelView | MatrixChart
    absent: str
    differences: Literal["nowhere", "page", "everywhere"] = "everywhere"

    @property
    def recorded(self) -> bool:
        return isinstance(self.view, MatrixChart)


MATRICES: dict[str, MatrixView] = {
    "methods": MatrixView("Method by domain", "methods", NEEDS_DOMAINS, "nowhere"),
    "models": MatrixView("Model by test set", "matrix", NEEDS_ROUND),
    "held_out": MatrixView(
        "Held-out domain by domain (G, P)",
        "held_out",
        "It needs runs that hold out a domain (*Held-out domains* on the page New).",
    ),
    "domains": MatrixView("Domain of the model by domain of the images", "domains", NEEDS_DOMAINS),
    "rounds": MatrixView("Client by round", "clients", NEEDS_ROUND, "page"),
}
"""Matrices of accuracies by name; a report draws them in this order."""


def first_matrix(rows: Iterable[ComparisonRow]) -> str:
    """Return the matrix that the page draws first; "models" would average trained and held-out domains."""
    held_out = any(result.run.held_out is not None for row in rows for result in row.runs)
    return "held_out" if held_out else "models"


def matrix_views(runs: Iterable[RunRow] = ()) -> dict[str, MatrixView]:
    """Return ``MATRICES``, and the matrices that methods can record, described by the runs' methods first."""
    recorded = {
        name: MatrixView(chart.title, chart, f"{recording_methods(name)} can record it.", "nowhere")
        for name, chart in matrix_charts(runs).items()
        if name not in MATRICES
    }
    return MATRICES | recorded


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
    if view.view == "methods":
        panels = {"": method_by_domain_panel(store, comparison, setting)}
    else:
        panels = row_panels(store, comparison, setting, view.view)
    return {key: panel for key, panel in panels.items() if panel.rows and panel.columns}
