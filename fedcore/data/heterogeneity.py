"""How unlike the clients' labels are: what the picture of a partition says in figures."""

from __future__ import annotations

import numpy as np

MOST_CLIENTS = 400
"""The pairwise distance looks at so many clients at most, evenly spaced: pairs grow with their square."""


def label_entropy(counts: np.ndarray) -> np.ndarray:
    """Entropy of each client's training labels, bits: 0 for one class, log2(classes) for all equally.

    Shape: counts (clients, classes) -> (clients,).
    """
    p = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    return -(p * np.log2(np.where(p > 0, p, 1))).sum(1) + 0.0  # + 0.0: no -0.0 in a table


def label_distance(counts: np.ndarray) -> float:
    """Mean pairwise Jensen-Shannon distance of the clients' label distributions, 0 (equal) to 1 (disjoint).

    Shape: counts (clients, classes). The distance is the root of the base-2 divergence; 0 for one client.
    """
    counts = counts[np.unique(np.linspace(0, len(counts) - 1, MOST_CLIENTS).astype(int))]
    n = len(counts)
    if n < 2:
        return 0.0
    p = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    entropy = label_entropy(counts)
    total = 0.0
    for i in range(n - 1):  # a row of pairs at a time: memory stays (clients, classes)
        mixed = (p[i] + p[i + 1 :]) / 2
        divergence = label_entropy(mixed) - (entropy[i] + entropy[i + 1 :]) / 2
        total += float(np.sqrt(np.clip(divergence, 0, 1)).sum())
    return total / (n * (n - 1) / 2)
