"""The test images that one trained model gets right and another one wrong."""

from __future__ import annotations

import numpy as np

from fedcore.engine.inspect import Arrays, Snapshot, evidence_for
from fedcore.errors import FedLensError
from fedcore.lazy import torch
from fedcore.progress import Progress, Work

SHOWN = 6
"""Images of each kind that are shown with their maps."""


def disagreement(
    first: Snapshot, second: Snapshot, model: int, test_set: int, most: int = SHOWN
) -> Work[Arrays]:
    """Predict a test set with the same model of two runs, and explain images on which only one is right.

    Args:
        model, test_set: entity codes, equal in both runs.
        most: images that are explained of each kind: only the first run's model right, only the second's.

    Returns:
        sample (pool row), label, first and second (predictions). Shape: (samples,) each. ``shown``, positions
        of the explained images among them, and for these ``first/pixels``, ``first/map`` and the same of the
        second, as in ``evidence``.

    Raises:
        FedLensError: where the runs have other clients or test samples, or a tower has no map of positions.
    """
    rows = first.test_rows(test_set)
    same_clients = first.federation.problem.clients == second.federation.problem.clients
    if not same_clients or not torch.equal(rows, second.test_rows(test_set)):
        raise FedLensError("the two runs do not have the same test samples, so their images are not compared")
    with torch.no_grad():
        yield Progress("predicting", 0, 4)
        ours = first.model(model).predict(rows).numpy()
        yield Progress("predicting", 1, 4)
        theirs = second.model(model).predict(rows).numpy()
    label = first.federation.pool.y(rows)[0].cpu().numpy()
    only_first = np.flatnonzero((ours == label) & (theirs != label))[:most]
    only_second = np.flatnonzero((ours != label) & (theirs == label))[:most]
    shown = np.concatenate([only_first, only_second])
    arrays = {"sample": rows[0].numpy(), "label": label, "first": ours, "second": theirs, "shown": shown}
    if shown.size:
        for done, (name, snapshot) in enumerate((("first", first), ("second", second)), 2):
            yield Progress("explaining", done, 4)
            found = yield from evidence_for(snapshot, model, rows[0, torch.from_numpy(shown)])
            arrays |= {f"{name}/pixels": found["pixels"], f"{name}/map": found["map/prediction"]}
    return arrays
