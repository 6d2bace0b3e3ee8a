"""Accuracy as a matrix of models by test sets, with counts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedcore.engine.events import GLOBAL, Cell, Point
from fedcore.lazy import functional as F
from fedcore.lazy import torch
from fedcore.methods.base import Method, Models, Params

if TYPE_CHECKING:
    from torch import Tensor

    from fedcore.federation import Federation, Rows

TRAIN, VALIDATION, TEST = 0, 1, 2
FULL_MATRIX_CLIENTS = 16
"""Up to this many clients every evaluation holds the full matrix; with more, the last one only."""
_ELEMENTS = {"cpu": 2**21, "cuda": 2**26}
"""Input elements of one forward pass of all models: what a CPU's cache holds (passes sixteen times as large
took twice the time on two cores), and what fills a GPU."""


@dataclass(frozen=True)
class Evaluator:
    """Evaluates a method's models on a federation's samples."""

    method: Method
    federation: Federation

    def broadcast(self, models: Models, full: bool) -> list[Cell]:
        """All cells after aggregation: test as a matrix, validation on each client's own samples.

        Where every client predicts with the global model, one forward pass serves all.
        """
        everyone = torch.arange(len(self.federation.problem.clients))
        same = models.common is not None and self.method.clients_use_global
        cells: list[Cell] = []
        if models.common is not None:
            head = self.method.head(models.common, None)
            for split, rows in ((TEST, self.federation.test), (VALIDATION, self.federation.validation)):
                if rows.counts.sum() == 0:
                    continue
                result = self._matrix(models.common, head, rows)
                cells += self._cells(split, "broadcast", [GLOBAL], *result)
                if same:
                    everyone_too = tuple(t.expand(len(everyone), -1) for t in result)
                    own_only = split == VALIDATION or not full
                    cells += self._cells(split, "broadcast", (everyone + 1).tolist(), *everyone_too, own_only)
        if not same:
            cells += self._personal(models.clients, everyone, full)
        return cells

    def local(self, params: Params, clients: Tensor) -> list[Cell]:
        """The participants' models before aggregation, each on its own test samples."""
        head = self.method.head(params, self.federation.local_data(clients))
        result = self._own(params, head, self.federation.test.select(clients))
        return self._diagonal(TEST, "local", clients, *result)

    def _personal(self, params: Params, clients: Tensor, full: bool) -> list[Cell]:
        head = self.method.head(params, self.federation.local_data(clients))
        cells: list[Cell] = []
        if full:
            result = self._matrix(params, head, self.federation.test)
            cells += self._cells(TEST, "broadcast", (clients + 1).tolist(), *result)
        else:
            result = self._own(params, head, self.federation.test.select(clients))
            cells += self._diagonal(TEST, "broadcast", clients, *result)
        if self.federation.validation.counts.sum() > 0:
            result = self._own(params, head, self.federation.validation.select(clients))
            cells += self._diagonal(VALIDATION, "broadcast", clients, *result)
        return cells

    def _matrix(self, params: Params, head: Params, rows: Rows) -> tuple[Tensor, Tensor, Tensor]:
        """Every model on every test set. Shape: -> correct, total, loss sum, each (models, test sets)."""
        if self.method.predicts_in_batches:
            return self._matrix_in_batches(params, head, rows)
        unique, place = rows.index[rows.mask].unique(return_inverse=True)
        correct, loss = self._score(params, head, unique[None])
        owner = torch.arange(len(rows.counts))[:, None].expand_as(rows.index)[rows.mask]
        models = correct.shape[0]
        sums = torch.zeros(2, models, len(rows.counts), dtype=torch.float64)
        sums[0].index_add_(1, owner, correct[:, place])
        sums[1].index_add_(1, owner, loss[:, place])
        return sums[0], rows.counts.expand(models, -1), sums[1]

    def _own(self, params: Params, head: Params, rows: Rows) -> tuple[Tensor, Tensor, Tensor]:
        """Model i on owner i's samples. Shape: -> correct, total, loss sum, each (models,)."""
        if self.method.predicts_in_batches:
            found = [
                self._score(_one(params, i), _one(head, i), self._shuffled(rows, i))
                for i in range(len(rows.counts))
            ]
            correct, loss = (torch.stack([f[part].sum() for f in found]) for part in (0, 1))
            return correct, rows.counts, loss
        correct, loss = self._score(params, head, rows.index)
        return (correct * rows.mask).sum(1), rows.counts, (loss * rows.mask).sum(1)

    def _matrix_in_batches(self, params: Params, head: Params, rows: Rows) -> tuple[Tensor, Tensor, Tensor]:
        """As ``_matrix``, one test set at a time: no prediction may depend on another set's samples."""
        found = [self._score(params, head, self._shuffled(rows, j)) for j in range(len(rows.counts))]
        correct, loss = (torch.stack([f[part].sum(1) for f in found], 1) for part in (0, 1))
        return correct, rows.counts.expand(len(correct), -1), loss

    def _shuffled(self, rows: Rows, owner: int) -> Tensor:
        """One owner's samples without padding, in an order that gives no class away. Shape: (1, samples)."""
        n = int(rows.counts[owner])
        order = torch.randperm(n, generator=self.federation.problem.generator("evaluate", n))
        return rows.index[owner, :n][order][None]

    def _score(self, params: Params, head: Params, index: Tensor) -> tuple[Tensor, Tensor]:
        """Per-sample hits and losses. Shape: index (models or 1,
        samples) -> two (models, samples), float64 on CPU.
        """
        pool = self.federation.pool
        models = len(next(iter(params.values()))) if params else 1
        elements = _ELEMENTS.get(pool.device.type, _ELEMENTS["cpu"])
        width = max(1, elements // (models * max(1, pool.values[0].numel())))
        if self.method.predicts_in_batches:
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
        point: Point,
        models: list[int],
        correct: Tensor,
        total: Tensor,
        loss: Tensor,
        own_only: bool = False,
    ) -> list[Cell]:
        """Cells of a matrix; test sets come in entity order (clients, then domains)."""
        codes = self.test_codes()
        return [
            Cell(
                split,
                point,
                m,
                codes[j],
                int(correct[i, j]),
                int(total[i, j]),
                _mean(loss[i, j], total[i, j]),
            )
            for i, m in enumerate(models)
            for j in range(correct.shape[1])
            if total[i, j] > 0 and (not own_only or codes[j] == m)
        ]

    @staticmethod
    def _diagonal(
        split: int, point: Point, clients: Tensor, correct: Tensor, total: Tensor, loss: Tensor
    ) -> list[Cell]:
        codes = (clients + 1).tolist()
        return [
            Cell(split, point, c, c, int(correct[i]), int(total[i]), _mean(loss[i], total[i]))
            for i, c in enumerate(codes)
            if total[i] > 0
        ]

    def test_codes(self) -> list[int]:
        """Entity code of every test set: clients 1..C, then domains."""
        return list(range(1, len(self.federation.test_sets) + 1))


def _one(params: Params, model: int) -> Params:
    """The parameters of one model, with a model axis of 1."""
    return {name: value[model : model + 1] for name, value in params.items()}


def _mean(loss: Tensor, total: Tensor) -> float | None:
    """Mean loss of a cell; None where it is infinite (a class that the model cannot predict)."""
    value = float(loss / total)
    return value if math.isfinite(value) else None
