"""The predictions behind the accuracies of one round, image by image, and the samples of each test set.

They are made by the evaluation itself, from a checkpoint: the same passes with the same chunks, so that they
have the bits of the evaluation that was recorded.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from fedcore.engine.clients.executor import (
    EvaluationPart,
    GlobalPasses,
    InProcess,
    PartResult,
    Worker,
    after_aggregation,
)
from fedcore.engine.inspect import RunSnapshot
from fedcore.engine.server import is_full
from fedcore.lazy import Tensor, torch
from fedcore.records.codes import AFTER_AGGREGATION, GLOBAL, TEST
from fedcore.records.events import Cell


@dataclass(frozen=True)
class TestSamples:
    """The samples of one test set, as rows of the data set, and the classes that they are scored among.

    Attributes:
        space: 0 for the label space of training, else the number of one of ``Federation.label_spaces``.

    Shape: rows (samples,), ascending.
    """

    space: int
    rows: np.ndarray


@dataclass(frozen=True)
class Predictions:
    """The classes that some models predict on some test sets; one model may stand for several clients.

    Attributes:
        models, test_sets: entity codes; each model has a recorded accuracy on each test set.

    Shape: rows (samples,), those of all test sets, ascending; predicted (samples,).
    """

    models: tuple[int, ...]
    test_sets: tuple[int, ...]
    rows: np.ndarray
    predicted: np.ndarray


def label_spaces(snapshot: RunSnapshot) -> list[tuple[str, ...]]:
    """Return the class names of each label space, that of training first."""
    federation = snapshot.federation
    return [federation.problem.classes, *(space.problem.classes for space in federation.label_spaces)]


def samples_of_test_sets(snapshot: RunSnapshot) -> dict[int, TestSamples]:
    """Return the samples of every test set by its entity code."""
    federation = snapshot.federation
    found: dict[int, TestSamples] = {}
    for space, test in enumerate([federation.test, *(s.test for s in federation.label_spaces)]):
        for i in range(len(test.counts)):
            if test.counts[i]:
                found[i + 1] = TestSamples(space, np.sort(test.held_by(i).numpy()))
    if (sets := federation.class_sets) is not None:
        labels = federation.pool.y(sets.rows).cpu()
        for client, held in enumerate(sets.held):
            rows = sets.rows[held[labels]].numpy()
            found[len(federation.test_sets) + 1 + client] = TestSamples(0, np.sort(rows))
    return found


def predict_round(
    snapshot: RunSnapshot, rounds: int, chunk: int, recorded: Iterable[tuple[int, int]]
) -> tuple[list[Predictions], list[Cell]]:
    """Evaluate a restored round again and return the predictions, and its cells on test samples.

    Args:
        rounds, chunk: of the run, as recorded.
        recorded: model and test set, by entity code, of each accuracy whose predictions are wanted.
    """
    worker = Worker(snapshot.cohorts)
    # A prediction that depends on its batch is scored for one model at a time, on one test set at a time.
    in_batches = any(c.method.batch_order is not None for c in snapshot.cohorts)
    listener = _Listener(worker)
    full = is_full(snapshot.round, rounds, len(snapshot.federation.problem.clients))
    evaluated = after_aggregation(
        worker.evaluators, listener, snapshot.state, full, 1 if in_batches else chunk, lambda: False
    )
    cells = [c for c in evaluated if (c.split, c.stage) == (TEST, AFTER_AGGREGATION)]
    samples = samples_of_test_sets(snapshot)
    together: dict[tuple[int, int], list[int]] = {}  # by model and label space; in batches, each alone
    for model, test_set in recorded:
        apart = test_set if in_batches else samples[test_set].space
        together.setdefault((model, apart), []).append(test_set)
    groups: dict[tuple[int, tuple[int, ...]], list[int]] = {}
    for (model, _), test_sets in together.items():
        groups.setdefault((listener.speaker(model), tuple(test_sets)), []).append(model)
    made = []
    for (speaker, chosen), models in groups.items():
        rows = np.unique(np.concatenate([samples[t].rows for t in chosen]))
        predicted = listener.predicted(speaker, samples[chosen[0]].space, rows)
        made.append(Predictions(tuple(models), chosen, rows, predicted))
    return made, cells


class _Listener(InProcess):
    """Computes the parts of an evaluation in this process, and stores each model's predictions."""

    def __init__(self, worker: Worker) -> None:
        worker.evaluators = [replace(e, note=self._note) for e in worker.evaluators]
        super().__init__(worker)
        self._passes: dict[tuple[int, int], list[tuple[np.ndarray, np.ndarray]]] = {}
        self._speakers: tuple[int, ...] = ()
        self._space = 0
        self._shared: dict[int, int] = {}

    def evaluate(
        self, parts: Iterable[EvaluationPart], should_stop: Callable[[], bool]
    ) -> Iterator[PartResult]:
        """Compute the parts one after another, and note the model and test set of the current one."""
        for part in parts:
            self._space = part.space
            if isinstance(part, GlobalPasses):
                # Each cohort has a global model, which its clients may share: its code is minus its number.
                self._speakers = (-part.cohort,)
                self._shared |= dict.fromkeys(
                    (i + 1 for i in self.worker.cohorts[part.cohort].clients), -part.cohort
                )
            else:
                self._speakers = tuple((part.clients + 1).tolist())
            yield self.worker.evaluate(part)

    def _note(self, index: Tensor, predicted: Tensor) -> None:
        rows, classes = index.cpu().numpy(), predicted.to(torch.int32).numpy()
        for i, speaker in enumerate(self._speakers):
            noted_rows = self._passes.setdefault((speaker, self._space), [])
            noted_rows.append((rows[i if len(rows) > 1 else 0], classes[i]))

    def speaker(self, model: int) -> int:
        """Return the model that predicts for a model: itself, or the global one."""
        if model == GLOBAL or any(key[0] == model for key in self._passes):
            return model
        return self._shared[model]

    def predicted(self, speaker: int, space: int, rows: np.ndarray) -> np.ndarray:
        """Return the predictions of ascending rows, of one pass over exactly these if there was one."""
        passes = self._passes[speaker, space]
        for noted, classes in passes:
            order = np.argsort(noted, kind="stable")
            if np.array_equal(noted[order], rows):
                return classes[order]
        noted, classes = (np.concatenate(parts) for parts in zip(*passes, strict=True))
        distinct, first = np.unique(noted, return_index=True)  # the first pass that has a row
        found: np.ndarray = classes[first[np.searchsorted(distinct, rows)]]
        return found
