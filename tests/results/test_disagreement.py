"""Where two models disagree: counts, and McNemar's test against exact sums and a printed example."""

from math import comb

import numpy as np
import pytest

from fedcore.config import expand, parse
from fedcore.results.analyses import (
    Disagreement,
    class_table,
    confusion,
    count_disagreement,
    paired_predictions,
    same_test_samples,
    shown_of,
)

ARRAYS = {
    "label": np.array([0, 0, 1, 1, 2, 2]),
    "first": np.array([0, 0, 1, 0, 0, 2]),
    "second": np.array([0, 1, 0, 1, 1, 2]),
    "shown": np.array([1, 2, 3, 4]),
}


def test_samples_are_counted_by_who_is_right() -> None:
    found = count_disagreement(ARRAYS)
    assert found == Disagreement(both_right=2, only_first=2, only_second=1, both_wrong=1)
    assert found.total == 6
    assert found.difference == pytest.approx(100 / 6)
    kinds = ((True, False), (False, True), (False, False))
    assert [shown_of(ARRAYS, *right) for right in kinds] == [[0, 1], [2], [3]]


@pytest.mark.parametrize(("b", "c"), [(0, 0), (5, 0), (3, 3), (1, 10), (40, 12)])
def test_mcnemar_is_twice_the_tail_of_a_fair_coin(b: int, c: int) -> None:
    tail = sum(comb(b + c, k) for k in range(min(b, c) + 1)) / 2 ** (b + c)
    p = [Disagreement(0, *wrong, 0).p for wrong in ((b, c), (c, b))]
    assert p[0] == pytest.approx(min(1.0, 2 * tail)) == p[1]


def test_mcnemar_of_a_printed_example() -> None:
    """Approval of the prime minister (Agresti, Categorical Data Analysis): 150 against 86, z = 4.17."""
    assert Disagreement(0, 150, 86, 0).p == pytest.approx(3.7e-5, rel=0.1)


def stored(predicted: list[int], sample: tuple[int, ...] = (7, 3, 5, 9)) -> dict[str, np.ndarray]:
    """The arrays of an analysis: two clients with a test sample each, and the global model on two."""
    codes = {"model": [1, 2, 0, 0], "test_set": [1, 2, 3, 3], "label": [0, 1, 1, 0]}
    return {n: np.array(v) for n, v in {**codes, "sample": sample, "predicted": predicted}.items()}


def test_stored_predictions_of_two_runs_are_paired_by_model() -> None:
    ours, theirs = stored([0, 1, 0, 0]), stored([0, 0, 1, 1])
    clients = paired_predictions(ours, theirs, None)
    assert clients is not None
    assert count_disagreement(clients) == Disagreement(1, 1, 0, 0)
    assert class_table(clients, ("cat", "dog")) == {
        "class": ["cat", "dog"],
        "both right": [1, 0],
        "only first": [0, 1],
        "only second": [0, 0],
        "both wrong": [0, 0],
    }
    shared = paired_predictions(ours, theirs, 0)
    assert shared is not None
    assert count_disagreement(shared) == Disagreement(0, 1, 1, 0)


def test_an_image_of_two_test_sets_counts_once() -> None:
    """Those of the base classes and of unseen clients have images of the domains, in another order."""

    def twice(predicted: list[int]) -> dict[str, np.ndarray]:
        samples = [5, 7, 9, 3]
        values = {"sample": samples, "label": [0, 1, 1, 0], "predicted": predicted, "model": 4 * [0]}
        again = [2, 0, 3, 1]
        found = {n: np.concatenate([v, np.array(v)[again]]) for n, v in values.items()}
        return {**found, "test_set": np.array(4 * [3] + 4 * [8])}

    ours, theirs = twice([0, 1, 1, 1]), twice([1, 0, 1, 1])
    paired = paired_predictions(ours, theirs, 0)
    assert paired is not None
    assert count_disagreement(paired) == Disagreement(1, 2, 0, 1)
    assert confusion(ours, ("cat", "dog"), 0).counts.tolist() == [[1, 1], [0, 2]]


def test_predictions_of_other_samples_are_not_paired() -> None:
    other = stored([0, 1, 0, 0], sample=(7, 4, 5, 9))
    assert paired_predictions(stored([0, 1, 0, 0]), other, None) is None
    assert paired_predictions(stored([0, 1, 0, 0]), other, 0) is not None, "only a client's sample differs"
    assert paired_predictions(other, other, 5) is None, "nobody's predictions"


def test_runs_of_another_seed_or_data_set_test_on_other_images() -> None:
    run = expand(parse({"methods": [{"name": "fedot"}], "data": {"name": "rotated-digits"}}))[0]
    other_prompt = {"data": run.data.model_copy(update={"template": "a sketch of a {}"}), "rounds": 2}
    assert same_test_samples(run, run.model_copy(update=other_prompt))
    for change in ({"seed": 9}, {"held_out": "rot0"}, {"data": run.data.model_copy(update={"shots": 1})}):
        assert not same_test_samples(run, run.model_copy(update=change))
