"""Panels: the matrix that one heatmap shows, in per cent, NaN without data; and the order of its rows."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from fedcore.base.errors import FedLensError
from fedcore.base.presentation import MatrixChart
from fedcore.results.frames import FURTHER
from fedcore.results.statistics import group_by
from fedcore.store import EntityRow

if TYPE_CHECKING:
    import pandas as pd


NAMELESS = "a recorded value belongs to no model or test set; `fedlens doctor` says what is damaged"


@dataclass(frozen=True)
class Panel:
    """The matrix of one heatmap.

    Shape: values (rows, columns) per cent, NaN without data; correct, total (rows, columns), 0 without data.

    Attributes:
        title: of the panel, e.g. ``FedOT: round 4/10``.
        own_columns: for each row the column of the model's own test samples, -1 where it has none.
        matrix: description of the values where a method recorded them; None for accuracies.
        shared: whether its only row is one model of all clients; every own column then belongs to that row.
        runs: the runs that Live shows in it.
        last_rounds: run -> the round of its values, where it is earlier than the newest: a recorded matrix.
    """

    title: str
    method: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: np.ndarray
    correct: np.ndarray
    total: np.ndarray
    own_columns: tuple[int, ...] = ()
    row_title: str = "model"
    column_title: str = "test set"
    matrix: MatrixChart | None = None
    empty_text: str = "no round yet"
    runs: tuple[int, ...] = ()
    shared: bool = False
    last_rounds: Mapping[int, int] = field(default_factory=dict)

    @property
    def own_cells(self) -> list[tuple[int, int]]:
        """Row and column of each accuracy of a model on the samples of its own client or domain.

        Empty for a matrix of clients by rounds, which has no other cells.
        """
        if self.matrix is not None or self.column_title == "round":
            return []
        cells = ((0 if self.shared else i, j) for i, j in enumerate(self.own_columns) if j >= 0)
        return [(i, j) for i, j in cells if not np.isnan(self.values[i, j])]

    @property
    def own_mean(self) -> float | None:
        """Mean accuracy of the models on their own samples, per cent."""
        columns = enumerate(self.own_columns)
        values = [self.values[0 if self.shared else i, j] for i, j in columns if j >= 0]
        present = [v for v in values if not np.isnan(v)]
        return float(np.mean(present)) if present else None


def panel_of_cells(
    title: str,
    method: str,
    rows: Sequence[str],
    columns: Sequence[str],
    cells: pd.DataFrame,
    row_title: str,
    column_title: str,
) -> Panel:
    """Return a panel of named rows and columns; a row's own column is that of the same name.

    Args:
        cells: seed, run_id, row, column, share, correct and total of each cell of a run's round.
    """
    own_columns = tuple(columns.index(r) if r in columns else -1 for r in rows)
    grids = _grids(cells, rows, columns)
    return Panel(title, method, tuple(rows), tuple(columns), *grids, own_columns, row_title, column_title)


def _grids(
    cells: pd.DataFrame, rows: Sequence[Hashable], columns: Sequence[Hashable]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Average over a run's rounds, over its seed's runs, then over seeds; counts add up.

    A run with more rounds weighs no more than another, as in the tables. Shape: (rows, columns) each, per
    cent, correct and total.
    """
    shape = len(rows), len(columns)
    row, column = (
        cells[of].map({name: i for i, name in enumerate(names)}).fillna(-1).to_numpy(np.int64)
        for of, names in (("row", rows), ("column", columns))
    )
    shown = (row >= 0) & (column >= 0)
    place, given = (row * shape[1] + column)[shown], cells[shown]
    size = math.prod(shape)
    # bincount, as grouping by four columns takes several times as long for the few rows of a small panel
    ids, run = np.unique(given.run_id.to_numpy(np.int64), return_inverse=True)
    at, several = run * size + place, len(ids) * size
    with np.errstate(invalid="ignore"):  # 0 / 0 without a cell: NaN
        of_runs = np.bincount(at, given.share, several) / np.bincount(at, minlength=several)
    of_run = dict(zip(given.run_id, given.seed, strict=True))
    seeds = np.array([of_run[i] for i in ids.tolist()], dtype=np.int64)
    by_run = of_runs.reshape(len(ids), size)
    of_seeds = [_mean_of_measured(by_run[seeds == seed]) for seed in np.unique(seeds)]
    values = 100 * _mean_of_measured(np.array(of_seeds).reshape(len(of_seeds), size))
    correct, total = (
        np.bincount(place, given[name], size).astype(np.int64).reshape(shape) for name in ("correct", "total")
    )
    return values.reshape(shape), correct, total


def _mean_of_measured(values: np.ndarray) -> np.ndarray:
    """Average what is not NaN; NaN without any. Shape: (some, places) -> (places,)."""
    measured = ~np.isnan(values)
    with np.errstate(invalid="ignore"):
        mean: np.ndarray = np.where(measured, values, 0).sum(0) / measured.sum(0)
    return mean


def accuracy_panel(
    title: str,
    method: str,
    cells: np.recarray,
    entities: Mapping[int, Sequence[EntityRow]],
    seeds: Mapping[int, int],
) -> Panel:
    """Return the panel of models by test sets: means over a run's rounds, over its seed's runs, over seeds.

    A model has a row if it has a cell; without any cell, all have one. A domain that consists of one client's
    samples and has its name shares the client's column.

    Args:
        cells: of one run or several, as ``Cells.coded`` returns them.
        entities: run -> its models and test sets; the panel has them in this order.
        seeds: run -> its seed.
    """
    import pandas as pd

    named = list(dict.fromkeys((e.name, e.kind) for of_run in entities.values() for e in of_run))
    place = {name: i for i, name in enumerate(named)}  # other runs may have other codes
    places = {(run, e.entity): place[e.name, e.kind] for run, of_run in entities.items() for e in of_run}
    frame = pd.DataFrame({name: cells[name] for name in ("run_id", "correct", "total")})
    try:
        for axis, codes in (("row", cells.model), ("column", cells.test_set)):
            frame[axis] = [places[at] for at in zip(cells.run_id.tolist(), codes.tolist(), strict=True)]
    except KeyError as error:
        raise FedLensError(NAMELESS, "db") from error
    frame["share"] = frame.correct / frame.total
    frame["seed"] = frame.run_id.map(seeds)

    clients = {name for name, kind in named if kind == "client"}
    models = [i for i, (_, kind) in enumerate(named) if kind in ("global", "client", "adapted")]
    test_sets = [
        i
        for i, (name, kind) in enumerate(named)
        if kind in ("client", *FURTHER) or (kind == "domain" and name not in clients)
    ]
    if len(frame):
        evaluated = set(frame.row)
        models = [i for i in models if i in evaluated]
    column = {i: at for at, i in enumerate(test_sets)}
    own_columns = tuple(column[i] if named[i][1] == "client" else -1 for i in models)
    rows, columns = (tuple(named[i][0] for i in shown) for shown in (models, test_sets))
    return Panel(title, method, rows, columns, *_grids(frame, models, test_sets), own_columns)


def client_names(entities: Iterable[EntityRow]) -> list[str]:
    """Return the names of all clients, in the order of their codes."""
    return list(dict.fromkeys(e.name for e in entities if e.kind == "client"))


def by_domain(cells: pd.DataFrame) -> pd.DataFrame:
    """Return the cells of clients' models by domain, on images by domain (FedDEAP, Figure 3).

    A model's accuracy on a domain is that on the domain's test set or, if no such set was recorded, the mean
    over the test samples of the domain's clients. A domain's row is the mean over its clients.

    Args:
        cells: a frame with the domain of each model as ``row``, empty for others.
    """
    of_clients = cells[(cells.model_kind == "client") & cells.row.notna() & cells.domain.notna()]
    on_domains = of_clients[of_clients.test_set_kind.isin(["client", "domain"])].assign(
        column=of_clients.domain
    )
    means = _mean_of(on_domains, ["row", "column", "model", "test_set_kind"])
    of_models = means.sort_values("test_set_kind").groupby([*PLACE, "row", "column", "model"]).last()
    return _mean_of(of_models.reset_index(), ["row", "column"])


def by_held_out(cells: pd.DataFrame) -> pd.DataFrame:
    """Return the cells by held-out domain and domain.

    They are own models on own samples, and the global model on the held-out domain.
    """
    personal = cells[cells.own & cells.domain.notna() & (cells.domain != cells.held_out)]
    unseen = cells[
        (cells.model_kind == "global")
        & (cells.test_set_kind == "domain")
        & (cells.test_set == cells.held_out)
    ]
    shown = cells.assign(column=cells.domain.where(cells.own, cells.test_set), row=cells.held_out.fillna(""))
    return _mean_of(shown.loc[personal.index.union(unseen.index)], ["row", "column"])


PLACE = ["seed", "run_id", "round"]


def _mean_of(cells: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """Return the mean share of each round's cells by some columns; counts add up."""
    grouped = cells.groupby([*PLACE, *keys], sort=False)
    return grouped.agg({"share": "mean", "correct": "sum", "total": "sum"}).reset_index()


SHARED = "all clients share it"
"""The only row of a method with one common model."""


def with_shared_row(panel: Panel) -> Panel:
    """Return the panel of a method whose clients predict with the global model with its first row alone.

    Before aggregation clients still have their own models, and adapted models of unseen clients are never
    one: where a count differs from the first row's, or this has not been tested, the panel keeps its rows.
    """
    right, total, tested = panel.correct[:1], panel.total[:1], panel.total > 0
    differ = tested & ((panel.correct != right) | (panel.total != total))
    if len(panel.rows) < 2 or differ.any() or (tested & ~tested[:1]).any():
        return panel
    one = replace(panel, rows=(SHARED,), values=panel.values[:1], correct=right, total=panel.total[:1])
    return replace(one, shared=True)


RowOrder = Literal["recorded", "mean", "alike"]
ORDERS: dict[RowOrder, str] = {
    "recorded": "As recorded",
    "mean": "Highest mean first",
    "alike": "Alike rows together",
}


def ordered_panels(panels: Sequence[Panel], order: RowOrder) -> list[Panel]:
    """Return panels with their rows in an order, the same for all panels that have the same rows.

    Rows without an own column, such as the global model, stay first. If each other row has an own column,
    columns move with the rows, so that own accuracies stay on the diagonal.
    """
    if order == "recorded":
        return list(panels)
    arranged = []
    for panel in panels:
        values = [p.values for p in panels if p.rows == panel.rows and p.values.shape == panel.values.shape]
        rows = _row_order(np.concatenate(values, axis=1), panel.own_columns, order)
        columns = list(range(len(panel.columns)))
        owned = [panel.own_columns[i] for i in rows if panel.own_columns and panel.own_columns[i] >= 0]
        if len(set(owned)) == len(owned):  # a panel of rounds has one last column for all rows
            columns = [*owned, *(j for j in columns if j not in set(owned))]
        place = {j: new for new, j in enumerate(columns)}
        at = np.ix_(list(rows), columns)
        arranged.append(
            replace(
                panel,
                rows=tuple(panel.rows[i] for i in rows),
                columns=tuple(panel.columns[j] for j in columns),
                values=panel.values[at],
                correct=panel.correct[at],
                total=panel.total[at],
                own_columns=tuple(place.get(panel.own_columns[i], -1) for i in rows if panel.own_columns),
            )
        )
    return arranged


def _row_order(values: np.ndarray, own_columns: Sequence[int], order: RowOrder) -> list[int]:
    """Return the indices of rows in an order; values that are missing count as the mean of their column.

    Hierarchical clustering with average linkage of Euclidean distances, leaves in optimal order (scipy).
    Shape: values (rows, columns).
    """
    fixed = [i for i, column in enumerate(own_columns) if column < 0]
    moving = [i for i in range(len(values)) if i not in set(fixed)]
    measured = values[moving]
    if len(moving) < 2 or not measured.size:
        return [*fixed, *moving]
    count = np.maximum(1, (~np.isnan(measured)).sum(0))
    filled = np.where(np.isnan(measured), np.nansum(measured, 0) / count, measured)
    if order == "mean":
        places = np.argsort(-filled.mean(1), kind="stable").tolist()
    else:
        from scipy.cluster.hierarchy import leaves_list, linkage  # slow to import, and seldom asked for

        places = leaves_list(linkage(filled, "average", optimal_ordering=True)).tolist()
    return [*fixed, *(moving[i] for i in places)]


EMPTY = "no model was tested on another client's samples in this round"
COMMON = "one common model: nothing to show"
LEAST_GAIN = 1.0
"""Minimum gain or loss, in points, that is drawn as an arrow."""
_EQUAL = 1e-9  # points; means over seeds of equal accuracies differ in their last bits


@dataclass(frozen=True)
class Edge:
    """The gain of one client's model on the test samples of another, in points; negative if it harms."""

    giver: str
    taker: str
    gain: float


def gains_panel(now: Panel, start: Panel) -> Panel:
    """Return clients by clients: accuracy of the row's model minus the start of the column's own, in points.

    Args:
        now: models by test sets of the round to show.
        start: the same at the first evaluated round; its diagonal is where each client began.

    The diagonal holds the gains of clients on their own samples. The global model and the test sets of
    domains are left out.
    """
    clients = [i for i, column in enumerate(now.own_columns) if column >= 0]
    names = tuple(now.rows[i] for i in clients)
    columns = [now.own_columns[i] for i in clients]
    began = {
        start.rows[i]: start.values[i, column] for i, column in enumerate(start.own_columns) if column >= 0
    }  # a client that the first round did not test has no start
    values = now.values[np.ix_(clients, columns)] - np.array([began.get(n, np.nan) for n in names])
    if np.isnan(values[~np.eye(len(names), dtype=bool)]).all():
        names, values = (), np.zeros((0, 0))
    counts = np.zeros(values.shape, dtype=np.int64)
    return replace(
        now,
        rows=names,
        columns=names,
        values=values,
        correct=counts,
        total=counts,
        own_columns=(),
        row_title="model of",
        column_title="test samples of",
        empty_text=EMPTY,
    )


def edges(panel: Panel) -> list[Edge]:
    """Return all pairs of different clients with a known gain, the largest gain first."""
    found = [
        Edge(panel.rows[i], panel.columns[j], float(panel.values[i, j]))
        for i, j in np.argwhere(~np.isnan(panel.values))
        if i != j
    ]
    return sorted(found, key=lambda e: -e.gain)


def is_common(panel: Panel) -> bool:
    """Return whether every model gains the same on each client's samples, as one common model does."""
    if not panel.values.size:
        return False
    measured = panel.values[:, ~np.isnan(panel.values).all(axis=0)]
    return bool((np.nanmax(measured, axis=0) - np.nanmin(measured, axis=0) <= _EQUAL).all())


def main_edges(panel: Panel) -> list[Edge]:
    """Return for each taker the giver that helps it most and the giver that harms it most.

    Either is left out below ``LEAST_GAIN`` points, and if two givers tie.
    """
    if is_common(panel):
        return []
    shown: list[Edge] = []
    for received in group_by(edges(panel), lambda e: e.taker).values():
        most, least = tied(received, received[0].gain), tied(received, received[-1].gain)
        shown += [e for e in most if len(most) == 1 and e.gain >= LEAST_GAIN]
        shown += [e for e in least if len(least) == 1 and e.gain <= -LEAST_GAIN]
    return sorted(shown, key=lambda e: panel.columns.index(e.taker))


def tied(among: Sequence[Edge], gain: float) -> list[Edge]:
    """Return the edges of this gain."""
    return [e for e in among if abs(e.gain - gain) <= _EQUAL]


def transfer_finding(panel: Panel) -> str:
    """Describe the transfer between clients in a sentence or two."""
    found = edges(panel)
    if not found:
        return f"{panel.title}: {panel.empty_text}."
    if is_common(panel):
        return f"{panel.title}: {COMMON}."

    def names(gain: float) -> str:
        named = [f"{e.giver}'s on {e.taker}" for e in tied(found, gain)]
        return " and ".join(named) if len(named) <= 2 else f"{len(named)} pairs"

    harmful = sum(e.gain < 0 for e in found)
    mean, best, worst = float(np.mean([e.gain for e in found])), found[0].gain, found[-1].gain
    text = (
        f"{panel.title}: a client's model changes the accuracy on another's samples by {mean:+.1f} points "
        "over that client's start, on average"
    )
    if best > 0:
        text += f"; most of all {names(best)} ({best:+.1f})"
    if harmful:
        lost = f"{harmful} of {len(found)} pairs lose (negative transfer)"
        text += f". {lost}, most of all {names(worst)} ({worst:+.1f})"
    return f"{text}."
