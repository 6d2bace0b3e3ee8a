"""Panels: the matrix that one heatmap shows, in per cent, NaN without data; and the order of its rows."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from fedcore.errors import FedLensError
from fedcore.records.presentation import MatrixChart
from fedcore.results.metrics import FURTHER, is_own
from fedcore.results.statistics import group_by
from fedcore.store import EntityRow, NamedCell

NAMELESS = "a recorded value belongs to no model or test set; `fedlens doctor` says what is damaged"
Share = tuple[float, int, int]
"""A share of one with its counts: (share, correct, total)."""
Shares = Mapping[tuple[str, str], Share]
"""Shares by the names of row and column."""
UNKNOWN = -1


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


def panel_of_shares(
    title: str,
    method: str,
    rows: Sequence[str],
    columns: Sequence[str],
    shares: Shares,
    *,
    row_title: str = "domain of the model",
    column_title: str = "domain of the images",
) -> Panel:
    """Return a panel of named rows and columns; a row's own column is that of the same name."""
    row, column = {r: i for i, r in enumerate(rows)}, {c: j for j, c in enumerate(columns)}
    values = np.full((len(row), len(column)), np.nan)
    correct, total = np.zeros((2, len(row), len(column)), dtype=np.int64)
    for (r, c), (share, right, count) in shares.items():
        if r in row and c in column:
            values[row[r], column[c]] = 100 * share
            correct[row[r], column[c]], total[row[r], column[c]] = right, count
    own_columns = tuple(column.get(r, -1) for r in rows)
    return Panel(
        title,
        method,
        tuple(rows),
        tuple(columns),
        values,
        correct,
        total,
        own_columns,
        row_title,
        column_title,
    )


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
    named = list(dict.fromkeys((e.name, e.kind) for of_run in entities.values() for e in of_run))
    cell_models, cell_sets, counts = _by_place(cells, entities, named)
    clients = {name for name, kind in named if kind == "client"}
    models = [i for i, (_, kind) in enumerate(named) if kind in ("global", "client", "adapted")]
    test_sets = [
        i
        for i, (name, kind) in enumerate(named)
        if kind in ("client", *FURTHER) or (kind == "domain" and name not in clients)
    ]
    if cells.size:
        evaluated = set(cell_models.tolist())
        models = [i for i in models if i in evaluated]
    row, column = np.full((2, len(named)), -1)
    row[models], column[test_sets] = np.arange(len(models)), np.arange(len(test_sets))
    shown = (row[cell_models] >= 0) & (column[cell_sets] >= 0)
    place = row[cell_models[shown]] * len(test_sets) + column[cell_sets[shown]]

    shape = len(models), len(test_sets)
    correct, total = (
        np.bincount(place, count[shown], math.prod(shape)).reshape(shape).astype(np.int64) for count in counts
    )
    values = 100 * _mean_over_seeds(cells.run_id[shown], place, (counts[0] / counts[1])[shown], shape, seeds)
    own_columns = tuple(int(column[i]) if named[i][1] == "client" else -1 for i in models)
    rows, columns = (tuple(named[i][0] for i in places) for places in (models, test_sets))
    return Panel(title, method, rows, columns, values, correct, total, own_columns)


def _mean_over_seeds(
    runs: np.ndarray, places: np.ndarray, shares: np.ndarray, shape: tuple[int, int], seeds: Mapping[int, int]
) -> np.ndarray:
    """Average shares by place. Shape: runs, places and shares (cells,) -> ``shape``, NaN without a cell.

    A run with more rounds weighs no more than another, as in the tables.
    """
    ids, run = np.unique(runs, return_inverse=True)
    size = math.prod(shape)
    number = np.bincount(run * size + places, minlength=len(ids) * size).reshape(len(ids), size)
    sums = np.bincount(run * size + places, shares, len(ids) * size).reshape(len(ids), size)
    with np.errstate(invalid="ignore"):  # 0 / 0 without a cell: NaN
        of_runs = sums / number
    drawn = np.array([seeds[i] for i in ids.tolist()], dtype=np.int64)
    of_seeds = [_mean_of_measured(of_runs[drawn == seed]) for seed in np.unique(drawn)]
    return _mean_of_measured(np.array(of_seeds).reshape(len(of_seeds), size)).reshape(shape)


def _mean_of_measured(values: np.ndarray) -> np.ndarray:
    """Average what is not NaN; NaN without any. Shape: (some, places) -> (places,)."""
    measured = ~np.isnan(values)
    with np.errstate(invalid="ignore"):
        mean: np.ndarray = np.where(measured, values, 0).sum(0) / measured.sum(0)
    return mean


def _by_place(
    cells: np.recarray, entities: Mapping[int, Sequence[EntityRow]], named: Sequence[tuple[str, str]]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return models and test sets as places in ``named`` (name, kind): other runs may have other codes.

    Shape: -> (cells,), (cells,), (2, cells) correct and total.
    """
    place = {name: i for i, name in enumerate(named)}
    models, test_sets = cells.model.copy(), cells.test_set.copy()
    largest = max((e.entity for of_run in entities.values() for e in of_run), default=0)
    places = np.full(1 + max(largest, models.max(initial=0), test_sets.max(initial=0)), UNKNOWN)
    for run, of_run in entities.items():
        places[:] = UNKNOWN
        places[[e.entity for e in of_run]] = [place[e.name, e.kind] for e in of_run]
        in_run = cells.run_id == run
        models[in_run], test_sets[in_run] = places[models[in_run]], places[test_sets[in_run]]
    if UNKNOWN in models or UNKNOWN in test_sets:
        raise FedLensError(NAMELESS, "db")
    return models, test_sets, np.array([cells.correct, cells.total])


def matrix_panel(title: str, method: str, names: Sequence[str], shares: Shares, matrix: MatrixChart) -> Panel:
    """Return the panel of values, not percentages, that a method recorded for pairs of clients."""
    panel = panel_of_shares(
        title, method, names, names, shares, row_title=matrix.rows, column_title=matrix.columns
    )
    return replace(panel, values=panel.values / 100, matrix=matrix)


def mean_share(cells: Sequence[NamedCell]) -> Share:
    """Return the mean share of some cells, which weigh equally; their counts add up.

    It is NaN for cells without samples, which FedLens never writes but an imported database may hold.
    """
    shares = [c.correct / c.total for c in cells if c.total]
    return (
        float(np.mean(shares)) if shares else float("nan"),
        sum(c.correct for c in cells),
        sum(c.total for c in cells),
    )


def mean_shares(shares: Iterable[Shares]) -> Shares:
    """Return the mean of each pair over the shares that have it, weighing equally; counts add up."""
    given = list(shares)
    if len(given) == 1:  # one round, run or seed of very many clients: its own mean
        return given[0]
    pairs = group_by((item for one in given for item in one.items()), lambda item: item[0])
    return {
        pair: (
            float(np.mean([share for _, (share, _, _) in of_pair])),
            sum(correct for _, (_, correct, _) in of_pair),
            sum(total for _, (_, _, total) in of_pair),
        )
        for pair, of_pair in pairs.items()
    }


def client_names(entities: Iterable[EntityRow]) -> list[str]:
    """Return the names of all clients, in the order of their codes."""
    return list(dict.fromkeys(e.name for e in entities if e.kind == "client"))


def client_domains(entities: Iterable[EntityRow]) -> dict[str, str]:
    """Return the domain of each client that belongs to one."""
    return {e.name: e.domain for e in entities if e.kind == "client" and e.domain}


def domain_names(entities: Iterable[EntityRow]) -> list[str]:
    """Return the domains in the order of their test sets, then of the clients."""
    named = list(entities)
    tested = [e.name for e in named if e.kind == "domain"]
    return list(dict.fromkeys([*tested, *(e.domain for e in named if e.domain)]))


def shares_by_domain(cells: Iterable[NamedCell], domain_of: Mapping[str, str]) -> Shares:
    """Return one round's shares of clients' models by domain, on images by domain (FedDEAP, Figure 3).

    A model's accuracy on a domain is that on the domain's test set or, if no such set was recorded, the mean
    over the test samples of the domain's clients. A domain's row is the mean over its clients.
    """
    counted = (c for c in cells if c.model_kind == "client" and c.model in domain_of and c.domain)
    of_models = []
    for model, of_model in group_by(counted, lambda c: c.model).items():
        shares: dict[tuple[str, str], Share] = {}
        for kind in ("client", "domain"):  # a domain's test set replaces those of its clients
            by_domain = group_by((c for c in of_model if c.test_set_kind == kind), lambda c: c.domain or "")
            shares |= {(domain_of[model], domain): mean_share(of) for domain, of in by_domain.items()}
        of_models.append(shares)
    return mean_shares(of_models)


def held_out_shares(cells: Sequence[NamedCell], held_out: str | None) -> dict[str, Share]:
    """Return the share of each domain: own models on own samples, the global model on the held-out domain."""
    of_clients = (c for c in cells if is_own(c) and c.domain and c.domain != held_out)
    by_domain = group_by(of_clients, lambda c: c.domain or "")
    unseen = [
        c for c in cells if (c.model_kind, c.test_set_kind, c.test_set) == ("global", "domain", held_out)
    ]
    if held_out is not None and unseen:
        by_domain[held_out] = unseen
    return {domain: mean_share(of_domain) for domain, of_domain in by_domain.items()}


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
        arranged.append(_arranged(panel, row_order(np.concatenate(values, axis=1), panel.own_columns, order)))
    return arranged


def row_order(values: np.ndarray, own_columns: Sequence[int], order: RowOrder) -> list[int]:
    """Return the indices of rows in an order; values that are missing count as the mean of their column.

    Hierarchical clustering with average linkage of Euclidean distances, leaves in optimal order (scipy).
    Shape: values (rows, columns).
    """
    fixed = [i for i, column in enumerate(own_columns) if column < 0]
    moving = [i for i in range(len(values)) if i not in set(fixed)]
    measured = values[moving]
    if order == "recorded" or len(moving) < 2 or not measured.size:
        return [*fixed, *moving]
    count = np.maximum(1, (~np.isnan(measured)).sum(0))
    filled = np.where(np.isnan(measured), np.nansum(measured, 0) / count, measured)
    if order == "mean":
        places = np.argsort(-filled.mean(1), kind="stable").tolist()
    else:
        from scipy.cluster.hierarchy import leaves_list, linkage  # slow to import, and seldom asked for

        places = leaves_list(linkage(filled, "average", optimal_ordering=True)).tolist()
    return [*fixed, *(moving[i] for i in places)]


def _arranged(panel: Panel, rows: Sequence[int]) -> Panel:
    columns = list(range(len(panel.columns)))
    owned = [panel.own_columns[i] for i in rows if panel.own_columns and panel.own_columns[i] >= 0]
    if len(set(owned)) == len(owned):  # a panel of rounds has one last column for all rows
        columns = [*owned, *(j for j in columns if j not in set(owned))]
    place = {j: new for new, j in enumerate(columns)}
    at = np.ix_(list(rows), columns)
    return replace(
        panel,
        rows=tuple(panel.rows[i] for i in rows),
        columns=tuple(panel.columns[j] for j in columns),
        values=panel.values[at],
        correct=panel.correct[at],
        total=panel.total[at],
        own_columns=tuple(place.get(panel.own_columns[i], -1) for i in rows) if panel.own_columns else (),
    )
