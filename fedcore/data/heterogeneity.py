"""Measures of how much the clients' labels differ, shown beside the plot of a partition."""

from __future__ import annotations

import numpy as np

MAX_CLIENTS = 400
"""Clients that the pairwise distance compares at most, evenly spaced: the number of pairs is quadratic."""


def label_entropy(counts: np.ndarray) -> np.ndarray:
    """Return the entropy of each client's labels in bits: 0 for one class, log2(classes) if balanced.

    Shape: counts (clients, classes) -> (clients,).
    """
    p = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    entropy: np.ndarray = -(p * np.log2(np.where(p > 0, p, 1))).sum(1)
    return entropy + 0.0  # turns -0.0 into 0.0


def label_distance(counts: np.ndarray) -> float:
    """Return the mean pairwise Jensen-Shannon distance of the clients' labels, 0 (equal) to 1 (disjoint).

    Shape: counts (clients, classes). The distance is the root of the base-2 divergence; 0 for one client.
    """
    counts = counts[np.unique(np.linspace(0, len(counts) - 1, MAX_CLIENTS).astype(int))]
    n = len(counts)
    if n < 2:
        return 0.0
    p = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    entropy = label_entropy(counts)
    total = 0.0
    for i in range(n - 1):  # one client's pairs at a time, so that memory stays (clients, classes)
        mixed = (p[i] + p[i + 1 :]) / 2
        divergence = label_entropy(mixed) - (entropy[i] + entropy[i + 1 :]) / 2
        total += float(np.sqrt(np.clip(divergence, 0, 1)).sum())
    return total / (n * (n - 1) / 2)
