"""The figures of a partition, against scipy's."""

import numpy as np
import pytest
from scipy.spatial.distance import jensenshannon
from scipy.stats import entropy

from fedcore.data.partition import MAX_COMPARED, label_distance, label_entropy


@pytest.mark.parametrize("seed", range(4))
def test_distance_and_entropy_agree_with_scipy(seed: int):
    counts = np.random.default_rng(seed).integers(0, 9, (7, 5))
    counts[0] = [0, 0, 4, 0, 0]
    p = counts / counts.sum(1, keepdims=True)
    pairs = [jensenshannon(p[i], p[j], base=2) for i in range(7) for j in range(i)]
    assert label_distance(counts) == pytest.approx(np.mean(pairs), abs=1e-12)
    assert label_entropy(counts) == pytest.approx(entropy(p, base=2, axis=1), abs=1e-12)


def test_entropy_and_distance_of_known_distributions():
    assert label_entropy(np.array([[4, 0], [2, 2], [0, 0]])).tolist() == [0, 1, 0]
    assert label_distance(np.array([[5, 0], [0, 3]])) == pytest.approx(1)
    assert label_distance(np.array([[5, 5], [1, 1]])) == pytest.approx(0)
    assert label_distance(np.array([[5, 5]])) == 0
    # p = (1, 0), q = (1/2, 1/2): H((3/4, 1/4)) - 1/2 bits
    assert label_distance(np.array([[1, 0], [1, 1]])) == pytest.approx(np.sqrt(0.8112781245 - 0.5))


def test_many_clients_are_looked_at_evenly():
    """Of 4,000 clients with one class each, half of them of the first: half of the pairs are disjoint."""
    counts = np.tile([[5, 0], [0, 5]], (5 * MAX_COMPARED, 1))
    assert label_distance(counts) == pytest.approx(0.5, abs=0.01)
