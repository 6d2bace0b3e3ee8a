"""Evaluation: accuracy as a matrix of models by test sets, with counts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from fedcore.data.split_codes import TEST, VALIDATION
from fedcore.engine.events import GLOBAL, Cell, Stage
from fedcore.lazy import functional as F
from fedcore.lazy import torch
from fedcore.methods.base import Method, Models, Params
from fedcore.methods.optional import predicts_in_batches

if TYPE_CHECKING:
    from torch import Tensor

    from fedcore.federation import Federation, Pool, Rows

Kept = Literal["all", "domains", "own"]
"""Test sets whose cells are kept: all, the client's own and the domains', or only the client's own."""
Sums = tuple["Tensor", "Tensor", "Tensor"]
"""Correct, total and loss sum, of one shape."""
_ELEMENTS = {"cpu": 2**21, "cuda": 2**26}
"""Numbers that one forward pass of all models holds: the input, and what the method says beside it.

On a CPU they fit its cache: passes sixteen times as large took twice the time on two cores. On CUDA they fill
a GPU."""


@dataclass(frozen=True)
class Evaluator:
    """Evaluator of a method's models on a federation's samples.

    Attributes:
        clients: the clients whose models are evaluated; None: all of them.
        scores_global: whether to evaluate the global model; where backbones differ there is no single one.
    """

    method: Method
    federation: Federation
    clients: range | None = None
    scores_global: bool = True

    @property
    def _in_batches(self) -> bool:
        return predicts_in_batches(self.method)

    def after_aggregation(self, models: Models, full: bool) -> list[Cell]:
        """Evaluate all models after aggregation.

        On test samples: the global model on every test set; the clients' models on all test sets (``full``)
        or on their own and the domains' ones, and on their class sets. On validation samples: the clients'
        models on their own, the global model on all clients' ones. If every client predicts with the
        global model, one forward pass serves all.
        """
        span = self.clients or range(len(self.federation.problem.clients))
        clients = torch.arange(span.start, span.stop)
        same = models.global_model is not None and self.method.clients_use_global
        kept: Kept = "all" if full else "domains"
        cells: list[Cell] = []
        if models.global_model is not None and (self.scores_global or same):
            cells += self._common(models.global_model, clients if same else None, kept)
        if not same:
            own = {n: v[span.start : span.stop] for n, v in models.clients.items()}
            head = self.method.head(own, self.federation.local_data(clients))
            cells += self._test("after_aggregation", own, head, clients, kept)
            if self.federation.validation.counts.sum() > 0:
                result = self._own(own, head, self.federation.validation.select(clients))
                cells += self._diagonal(VALIDATION, "after_aggregation", clients, *result)
        return cells

    def before_aggregation(self, params: Params, clients: Tensor) -> list[Cell]:
        """Evaluate the participants' models before aggregation, on their own test samples and class sets."""
        head = self.method.head(params, self.federation.local_data(clients))
        return self._test("before_aggregation", params, head, clients, "own")

    def _common(self, params: Params, clients: Tensor | None, kept: Kept) -> list[Cell]:
        """Evaluate the global model, also as the model of ``clients`` that all predict with it."""
        head = self.method.head(params, None)
        cells: list[Cell] = []
        for split, rows in ((TEST, self.federation.test), (VALIDATION, self.federation.validation)):
            if rows.counts.sum() == 0:
                continue
            result = self._matrix(params, head, rows)
            if self.scores_global:
                cells += self._cells(split, "after_aggregation", [GLOBAL], *result)
            if clients is not None:
                correct, total, loss = (t.expand(len(clients), -1) for t in result)
                own: Kept = "own" if split == VALIDATION else kept
                cells += self._cells(
                    split, "after_aggregation", (clients + 1).tolist(), correct, total, loss, kept=own
                )
        if clients is not None:
            cells += self._class_cells("after_aggregation", params, head, clients)
        return cells

    def _test(self, stage: Stage, params: Params, head: Params, clients: Tensor, kept: Kept) -> list[Cell]:
        """Evaluate some clients' own models on test samples, with the passes that the kept cells need."""
        test, codes = self.federation.test, (clients + 1).tolist()
        if self._in_batches or (kept == "own" and self.federation.class_sets is None):
            if kept == "all":
                cells = self._cells(TEST, stage, codes, *self._matrix(params, head, test))
            else:
                cells = self._diagonal(TEST, stage, clients, *self._own(params, head, test.select(clients)))
            if kept == "domains":
                first = len(self.federation.problem.clients)
                domains = test.select(torch.arange(first, len(test.counts)))
                cells += self._cells(TEST, stage, codes, *self._matrix(params, head, domains), first=first)
            return cells + self._class_cells(stage, params, head, clients)
        scores = self._score(params, head, self._test_rows[None])
        cells = self._cells(TEST, stage, codes, *self._sums(scores, self._test_rows, test), kept=kept)
        return cells + self._class_cells(stage, params, head, clients, scores)

    @cached_property
    def _test_rows(self) -> Tensor:
        """Every test sample once, ascending. Shape: (samples,)."""
        rows: Tensor = self.federation.test.index[self.federation.test.mask].unique()
        return rows

    def _matrix(self, params: Params, head: Params, rows: Rows) -> Sums:
        """Evaluate every model on every test set. Shape: -> (models, test sets) each."""
        if self._in_batches:
            return self._matrix_in_batches(params, head, rows)
        unique = rows.index[rows.mask].unique()
        return self._sums(self._score(params, head, unique[None]), unique, rows)

    @staticmethod
    def _sums(scores: tuple[Tensor, Tensor], unique: Tensor, rows: Rows) -> Sums:
        """Sum over each test set. Shape: scores (models, unique) each -> (models, test sets) each."""
        correct, loss = scores
        place = torch.searchsorted(unique, rows.index[rows.mask])
        owner = torch.arange(len(rows.counts))[:, None].expand_as(rows.index)[rows.mask]
        sums = torch.zeros(2, len(correct), len(rows.counts), dtype=torch.float64)
        sums[0].index_add_(1, owner, correct[:, place])
        sums[1].index_add_(1, owner, loss[:, place])
        return sums[0], rows.counts.expand(len(correct), -1), sums[1]

    def _class_cells(
        self,
        stage: Stage,
        params: Params,
        head: Params,
        clients: Tensor,
        scores: tuple[Tensor, Tensor] | None = None,
    ) -> list[Cell]:
        """Evaluate each client's model on its class set; one model may serve all clients.

        Shape: scores (models, ``_test_rows``) each, where a pass over all test samples has been made.
        """
        sets = self.federation.class_sets
        if sets is None:
            return []
        held = sets.held[clients]
        labels = self.federation.pool.y(sets.rows).cpu()
        total = (torch.bincount(labels, minlength=held.shape[1]) * held).sum(1)
        if self._in_batches:
            result = self._classes_in_batches(params, head, [sets.rows[h[labels]] for h in held])
        else:
            correct, loss = scores or self._score(params, head, self._test_rows[None])
            place = torch.searchsorted(self._test_rows, sets.rows)
            by_class = torch.zeros(2, len(correct), held.shape[1], dtype=torch.float64)
            by_class[0].index_add_(1, labels, correct[:, place])
            by_class[1].index_add_(1, labels, loss[:, place])
            result = torch.where(held, by_class, 0.0).sum(-1)  # where: an infinite loss of others stays out
        first = len(self.federation.test_sets) + 1
        return [
            _cell(TEST, stage, c + 1, first + c, right, n, lost)
            for c, right, n, lost in zip(clients.tolist(), result[0], total, result[1], strict=True)
            if n > 0
        ]

    def _classes_in_batches(self, params: Params, head: Params, rows: list[Tensor]) -> Tensor:
        """Sum hits and losses set by set. Shape: rows (samples,) per client -> (2, clients)."""
        sums = torch.zeros(2, len(rows), dtype=torch.float64)
        shared = len(next(iter(params.values()))) == 1
        for i, own in enumerate(rows):
            model = 0 if shared else i
            hits, losses = self._score(_one(params, model), _one(head, model), self._shuffled(own)[None])
            sums[0, i], sums[1, i] = hits.sum(), losses.sum()
        return sums

    def _own(self, params: Params, head: Params, rows: Rows) -> Sums:
        """Evaluate model i on owner i's samples. Shape: -> (models,) each."""
        if self._in_batches:
            scores = [
                self._score(_one(params, i), _one(head, i), self.order(rows, i))
                for i in range(len(rows.counts))
            ]
            correct, loss = (torch.stack([s[part].sum() for s in scores]) for part in (0, 1))
            return correct, rows.counts, loss
        correct, loss = self._score(params, head, rows.index)
        return (correct * rows.mask).sum(1), rows.counts, (loss * rows.mask).sum(1)

    def _matrix_in_batches(self, params: Params, head: Params, rows: Rows) -> Sums:
        """Do as ``_matrix``, one test set at a time: no prediction may depend on another set's samples."""
        scores = [self._score(params, head, self.order(rows, j)) for j in range(len(rows.counts))]
        correct, loss = (torch.stack([s[part].sum(1) for s in scores], 1) for part in (0, 1))
        return correct, rows.counts.expand(len(correct), -1), loss

    def order(self, rows: Rows, owner: int) -> Tensor:
        """Return one owner's samples without padding, in an order blind to class. Shape: (1, samples)."""
        return self._shuffled(rows.index[owner, : int(rows.counts[owner])])[None]

    def _shuffled(self, rows: Tensor) -> Tensor:
        """Shape: (samples,) -> (samples,)."""
        generator = self.federation.problem.generator("evaluate", len(rows))
        return rows[torch.randperm(len(rows), generator=generator)]

    def _score(self, params: Params, head: Params, index: Tensor) -> tuple[Tensor, Tensor]:
        """Score each sample: hits and losses in float64 on the CPU.

        Shape: index (models or 1, samples) -> (models, samples) each.
        """
        pool = self.federation.pool
        models = len(next(iter(params.values()))) if params else 1
        width = samples_at_once(self.method, pool, models)
        if self._in_batches:
            width = max(1, index.shape[1])  # the method cuts its own batches
        hits, losses = [], []
        with torch.no_grad():
            for part in index.split(width, dim=1):
                x, y = pool.x(part), pool.y(part).expand(models, -1)
                logits = self.method.logits(params, head, x.expand(models, *x.shape[1:]))
                hits.append((logits.argmax(-1) == y).double().cpu())
                loss = F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none")
                losses.append(loss.view(y.shape).double().cpu())
        return torch.cat(hits, 1), torch.cat(losses, 1)

    def _cells(
        self,
        split: int,
        stage: Stage,
        models: list[int],
        correct: Tensor,
        total: Tensor,
        loss: Tensor,
        kept: Kept = "all",
        first: int = 0,
    ) -> list[Cell]:
        """Make the cells of a matrix; its test sets begin at ``first`` in entity order (clients, domains)."""
        clients = len(self.federation.problem.clients)
        return [
            _cell(split, stage, m, j, correct[i, at], total[i, at], loss[i, at])
            for i, m in enumerate(models)
            for at, j in enumerate(range(first + 1, first + 1 + correct.shape[1]))
            if total[i, at] > 0 and (kept == "all" or j == m or (kept == "domains" and j > clients))
        ]

    @staticmethod
    def _diagonal(
        split: int, stage: Stage, clients: Tensor, correct: Tensor, total: Tensor, loss: Tensor
    ) -> list[Cell]:
        return [
            _cell(split, stage, c + 1, c + 1, right, n, lost)
            for c, right, n, lost in zip(clients.tolist(), correct, total, loss, strict=True)
            if n > 0
        ]


def samples_at_once(method: Method, pool: Pool, models: int = 1) -> int:
    """Return how many samples one forward pass of some models takes on this device."""
    numbers = _ELEMENTS.get(pool.device.type, _ELEMENTS["cpu"])
    return max(1, numbers // (models * max(1, pool.values[0].numel() + method.numbers_per_sample())))


def _one(params: Params, model: int) -> Params:
    """Return the parameters of one model, with a model axis of 1."""
    return {name: value[model : model + 1] for name, value in params.items()}


def _cell(
    split: int, stage: Stage, model: int, test_set: int, correct: Tensor, total: Tensor, loss: Tensor
) -> Cell:
    """Make a cell; its mean loss is None if it is infinite (a class that the model cannot predict)."""
    mean = float(loss / total)
    return Cell(
        split=split,
        stage=stage,
        model=model,
        test_set=test_set,
        correct=int(correct),
        total=int(total),
        loss=mean if math.isfinite(mean) else None,
    )
