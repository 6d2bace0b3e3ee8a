"""Recorded cells as one long frame, and the accuracies that are means over its rows.

A frame has a row for each cell: run_id, split, stage, round, model, model_kind, test_set, test_set_kind,
domain, correct, total, loss and size of ``NamedCell``; seed and held_out of its run; share, of one; weight,
the samples of the whole test set where one was sampled; and own, which says whether a client's own model was
tested on its own samples. pandas is imported inside functions, as a page that begins must not wait for it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import TYPE_CHECKING

from fedcore.store import NamedCell, RunRow

if TYPE_CHECKING:
    import pandas as pd

ROUND = ["run_id", "round"]
FURTHER = ("base", "new", "unseen", "transfer")
"""Kinds of test sets beside those of clients and domains."""
HALVES = ("base", "new")
"""Kinds of test sets that are all test images of the base or of the new classes."""
ON_FURTHER = {
    "global base": "base",
    "global new": "new",
    "client base": "own_base",
    "client new": "own_new",
    "global unseen": "unseen",
    "adapted unseen": "adapted",
    "global transfer": "transfer",
}
"""Kinds of model and test set -> the metric of their cells, which weigh equally."""
HARMONIC = {
    "dual": ("global", "personal"),
    "harmonic": ("base", "new"),
    "harmonic3": ("classes", "own_base", "own_new"),
    "harmonic_local": ("local", "base", "new"),
}
"""Metric -> those of which it is the harmonic mean."""


def cell_frame(cells: Iterable[NamedCell], runs: Iterable[RunRow]) -> pd.DataFrame:
    """Return the frame of some cells, in their order."""
    import pandas as pd

    of_run = {run.id: run for run in runs}
    frame = pd.DataFrame.from_records(list(cells), columns=NamedCell._fields)
    frame["seed"] = [of_run[run].seed for run in frame.run_id]
    frame["held_out"] = [of_run[run].held_out for run in frame.run_id]
    frame["share"] = (frame.correct / frame.total).astype(float)
    frame["weight"] = frame["size"].astype(float).fillna(frame.total)
    clients = (frame.model_kind == "client") & (frame.test_set_kind == "client")
    frame["own"] = clients & (frame.model == frame.test_set)
    return frame


def mean_shares(cells: pd.DataFrame, keys: Sequence[Hashable]) -> pd.Series[float]:
    """Return the mean share by round and some columns, in the order in which these first appear."""
    return cells.groupby([*ROUND, *keys], sort=False).share.mean()


def domain_shares(cells: pd.DataFrame) -> pd.Series[float]:
    """Return the mean over each domain's clients of own models on own samples, by round and domain."""
    return mean_shares(cells[cells.own & cells.domain.notna()], ["domain"])


def client_shares(cells: pd.DataFrame) -> pd.Series[float]:
    """Return the accuracy of each client's own model on its own samples, by round and client."""
    return mean_shares(cells[cells.own], ["model"])


def round_metrics(cells: pd.DataFrame) -> pd.DataFrame:
    """Return the metrics that are read from cells: a row per round, a column per metric, NaN without one.

    - whole: the global model on all domains' test sets together, FedAlign's global performance. Where test
      sets were sampled, each domain's share weighs as many samples as its whole test set has.
    - generalisation: the same on the held-out domain; personalisation: the mean over the other domains of own
      models on their own domain, or over clients without domains; comprehensive: over G and these.
    - local: the global model on clients' classes among themselves, the mean over the clients of a data set,
      then over data sets (Qiu et al., FedTPG, 2024); in other protocols NaN.
    - of ``ON_FURTHER``: means over their cells.
    """
    import pandas as pd

    on_kinds = cells.assign(metric=(cells.model_kind + " " + cells.test_set_kind).map(ON_FURTHER))
    further = mean_shares(on_kinds.dropna(subset="metric"), ["metric"]).unstack()
    on_domains = cells[(cells.model_kind == "global") & (cells.test_set_kind == "domain")]
    halved = cells.run_id[cells.test_set_kind.isin(HALVES)]
    whole = on_domains[on_domains.held_out.isna() & ~on_domains.run_id.isin(halved)]
    unseen = on_domains[on_domains.test_set == on_domains.held_out]

    leaving_out = cells[cells.held_out.notna()]
    others = domain_shares(leaving_out[leaving_out.domain != leaving_out.held_out])
    own = others.groupby(ROUND).agg(["mean", "count"])
    own = own.combine_first(client_shares(leaving_out).groupby(ROUND).agg(["mean", "count"]))

    of_clients = cells[(cells.model_kind == "global") & (cells.test_set_kind == "client")]
    by_data = of_clients.groupby([*ROUND, "domain"], dropna=False).share.mean().groupby(ROUND).mean()
    protocol = cells[(cells.test_set_kind == "base") & cells.domain.notna()]  # a column for each data set
    of_protocol = pd.MultiIndex.from_frame(protocol[ROUND].drop_duplicates())

    table = pd.DataFrame(index=pd.MultiIndex.from_frame(cells[ROUND].drop_duplicates())).join(further)
    table["whole"], table["generalisation"] = _pooled(whole), _pooled(unseen)
    table["personalisation"] = own["mean"]
    sums = own["mean"] * own["count"] + table["generalisation"]
    table["comprehensive"] = sums / (own["count"] + 1)
    table["local"] = by_data[by_data.index.isin(of_protocol)]
    return table


def _pooled(cells: pd.DataFrame) -> pd.Series[float]:
    """Return the share of each round's cells together, each weighing as much as its test set."""
    sums = cells.assign(share=cells.share * cells.weight).groupby(ROUND)[["share", "weight"]].sum()
    return sums.share / sums.weight


def with_harmonic_means(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table with the harmonic means of its metrics: 0 if one is 0, NaN if one is not known.

    Where classes are disjoint, a client's own classes are its own test samples.
    """
    known = table.reindex(columns=list(dict.fromkeys(m for parts in HARMONIC.values() for m in parts)))
    if "personal" in table:
        known["classes"] = known["classes"].fillna(table["personal"])
    means = {name: len(of) / (1 / known[list(of)]).sum(axis=1, skipna=False) for name, of in HARMONIC.items()}
    return table.assign(**means)
