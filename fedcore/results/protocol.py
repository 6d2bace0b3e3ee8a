"""What the papers' protocols measure, read from the accuracy cells of one round; shares of one.

``cells`` are a round's test cells of the models after aggregation: every client's own model on its own
samples, and the global model on every domain's test set (``queries.measured`` hands out just these).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from fedcore.store.rows import NamedCell


def own_by_client(cells: Iterable[NamedCell]) -> dict[str, float]:
    """Each client's own model on its own test samples."""
    return {c.model: c.correct / c.total for c in cells if is_own(c)}


def own_by_domain(cells: Iterable[NamedCell]) -> dict[str, float]:
    """The same, mean over the clients of each domain; empty where clients belong to none."""
    found: dict[str, list[float]] = {}
    for c in cells:
        if is_own(c) and c.domain:
            found.setdefault(c.domain, []).append(c.correct / c.total)
    return {domain: float(np.mean(shares)) for domain, shares in found.items()}


def whole(cells: Iterable[NamedCell], domain: str | None = None) -> float | None:
    """The global model on a domain's test set, or on all of them as one (FedAlign's global performance)."""
    found = [
        c
        for c in cells
        if c.model_kind == "global" and c.test_set_kind == "domain" and domain in (None, c.test_set)
    ]
    return sum(c.correct for c in found) / sum(c.total for c in found) if found else None


def personalisation(cells: Sequence[NamedCell], held_out: str | None) -> float | None:
    """P of one run: own models on their own domains, all of these equal; the held-out one is none of them."""
    shares = _trained(cells, held_out)
    return float(np.mean(shares)) if shares else None


def comprehensive(cells: Sequence[NamedCell], held_out: str | None) -> float | None:
    """C of one run: a row of the N x N matrix, the global model's G among the own models' accuracies."""
    shares, unseen = _trained(cells, held_out), whole(cells, held_out)
    return float(np.mean([*shares, unseen])) if shares and unseen is not None else None


def _trained(cells: Sequence[NamedCell], held_out: str | None) -> list[float]:
    own = {d: share for d, share in own_by_domain(cells).items() if d != held_out}
    return list((own or own_by_client(cells)).values())


def is_own(c: NamedCell) -> bool:
    """A client's own model on its own test samples."""
    return c.model_kind == c.test_set_kind == "client" and c.model == c.test_set
