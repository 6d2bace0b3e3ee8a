"""Evaluation: accuracy as a matrix of models by test sets, with counts.

Each sample is scored once, however many test sets contain it, and then summed per test set in float64. Counts
are whole numbers, so their sums are exact in any order; losses are added in the order of the test set's
samples, whichever pass or process computed them. If a prediction depends on the other samples of its batch
(``Method.batch_order``), each test set is scored separately and without padding instead.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from fedcore.base.devices import fitting
from fedcore.base.errors import FedLensError
from fedcore.base.events import (
    AFTER_AGGREGATION,
    BEFORE_AGGREGATION,
    FULL_MATRIX_CLIENTS,
    GLOBAL,
    MAX_EVALUATED_CLIENTS,
    TEST,
    VALIDATION,
    Cell,
)
from fedcore.base.lazy import Tensor, torch
from fedcore.base.lazy import functional as F
from fedcore.base.seeds import draw_names
from fedcore.engine.clients.contract import checked, run
from fedcore.engine.clients.hooks import call
from fedcore.methods.base import Method, Models, Params
from fedcore.methods.federation import Federation, Pool, Problem, Rows

Coverage = Literal["all", "domains", "own"]
"""Test sets that a client's model is evaluated on: all, its own and the domains', or only its own."""
Sums = tuple["Tensor", "Tensor", "Tensor"]
"""Correct, total and loss sum, of one shape."""
Scores = tuple["Tensor", "Tensor"]
"""Hits and losses of samples. Shape: (models, samples) each."""
Score = Callable[[Sequence["Tensor"]], list[Scores]]
"""Scores some models on several lists of samples. Shape: each list (models or 1, samples)."""
_ELEMENTS = {"cpu": 2**21, "cuda": 2**26}
"""Numbers that one forward pass of all models holds: the input, and ``Method.numbers_per_sample``.

On a CPU they fit its cache: passes sixteen times as large took twice as long on two cores. On CUDA they fill
a GPU."""
FEWEST = 8
"""Passes from which on models are compared, since equal ones can be scored once."""


def evaluated_clients(problem: Problem) -> Tensor:
    """Return the clients that are evaluated: all, or a sample drawn from (seed, client names).

    Shape: -> (evaluated,), in client order.
    """
    # Drawn once per run, so that its rounds can be compared, and by name, so that the order of clients in the
    # config does not change the sample. Evaluation would otherwise grow with the square of the clients.
    if len(problem.clients) <= MAX_EVALUATED_CLIENTS:
        return torch.arange(len(problem.clients))
    chosen = draw_names(problem.clients, MAX_EVALUATED_CLIENTS, problem.seed, "evaluated clients")
    return torch.tensor(chosen, dtype=torch.int64)


@dataclass
class Fit:
    """How often the samples of a forward pass were halved since a GPU's memory was used up."""

    halved: int = 0


@dataclass(frozen=True)
class Evaluator:
    """Evaluator of a method's models on a federation's samples.

    Attributes:
        members: the clients of this method's cohort; None: all.
        scores_global: whether to evaluate the global model; with several backbones there is no single one.
        trained_on: the federation of the clients' training data, if this one is of another label space.
        homes: the federation of each client's training data, if each trains among its own classes; models are
            then evaluated one by one.
        between: whether to test as between the first and the last round, see ``Federation.in_between``.
        note: called after each forward pass with the samples and the predicted classes, on the CPU.
            Shape: (models or 1, samples), (models, samples).
        fit: shared by the evaluators of a process.
    """

    method: Method
    federation: Federation
    members: range | None = None
    scores_global: bool = True
    trained_on: Federation | None = None
    homes: tuple[Federation, ...] = ()
    between: bool = False
    note: Callable[[Tensor, Tensor], None] | None = None
    fit: Fit = field(default_factory=Fit)

    @cached_property
    def spaces(self) -> tuple["Evaluator", ...]:
        """Itself, and one for each other label space: of the same method, made for its class names.

        Made with the first evaluation, so that nothing has encoded those names before.
        """
        others = (
            replace(
                self,
                method=type(self.method)(self.method.config, space.problem),
                federation=self.federation.seen_in(space),
                trained_on=self.federation,
            )
            for space in self.federation.label_spaces
        )
        return self, *others

    @cached_property
    def in_between(self) -> "Evaluator":
        """Itself between the first and the last round; the same if the run samples no test set."""
        if self.federation.test_sample is None:
            return self
        return replace(self, federation=self.federation.in_between, between=True)

    def _head(self, params: Params, clients: Tensor) -> Params:
        home = self.trained_on or self.federation
        if self.homes:
            (client,) = clients.tolist()
            home = self.homes[client]
        head: Params = run(self.method, "head", params, home.local_data(clients))
        return head

    @property
    def _in_batches(self) -> bool:
        return self.method.batch_order is not None

    @cached_property
    def _sampled(self) -> Tensor:
        """The evaluated clients of the run. Shape: (evaluated,)."""
        return evaluated_clients(self.federation.problem)

    @property
    def _is_sample(self) -> bool:
        return len(self._sampled) < len(self.federation.problem.clients)

    @cached_property
    def _clients(self) -> Tensor:
        """The clients whose models this evaluator evaluates after aggregation. Shape: (clients,)."""
        members = self.members or range(len(self.federation.problem.clients))
        return self._sampled[(self._sampled >= members.start) & (self._sampled < members.stop)]

    @cached_property
    def _sets(self) -> Tensor:
        """Positions of the evaluated clients' test sets and the further ones. Shape: (test sets,)."""
        clients, counts = len(self.federation.problem.clients), self.federation.test.counts
        sets = torch.cat([self._sampled, torch.arange(clients, len(counts))])
        return sets[counts[sets] > 0]

    @cached_property
    def _test(self) -> Rows:
        return self.federation.test.select(self._sets)

    @cached_property
    def _test_rows(self) -> Tensor:
        """Every test sample once, those of class sets too, ascending. Shape: (samples,)."""
        sets = None if self._is_sample else self.federation.class_sets
        rows: Tensor = torch.cat([self._test.flat, *([] if sets is None else [sets.rows])]).unique()
        return rows

    def with_own_models(self, models: Models) -> Tensor:
        """Return the clients that are evaluated with their own models. Shape: -> (clients,)."""
        return self._clients[:0] if self._clients_share(models) else self._clients

    def global_model(self, models: Models, between: bool, score: Score) -> list[Cell]:
        """Evaluate the global model after aggregation, also as that of the clients that predict with it.

        Args:
            score: scores the global model.
        """
        shared = self._clients_share(models)
        if not (self.scores_global or shared):
            return []
        clients, coverage = self._clients if shared else None, self._coverage(between)
        validation = self.federation.validation.select(self._sampled)
        cells: list[Cell] = []
        for split, rows, sets in ((TEST, self._test, self._sets), (VALIDATION, validation, self._sampled)):
            if rows.counts.sum() == 0:
                continue
            sums = self._matrix(score, rows)
            if self.scores_global:
                cells += self._cells(split, AFTER_AGGREGATION, torch.tensor([GLOBAL]), sets + 1, sums)
            if clients is not None:
                correct, total, loss = (t.expand(len(clients), -1) for t in sums)
                of_split: Coverage = "own" if split == VALIDATION else coverage
                sums = correct, total, loss
                cells += self._cells(split, AFTER_AGGREGATION, clients + 1, sets + 1, sums, of_split)
        if clients is not None:
            cells += self._class_cells(AFTER_AGGREGATION, score, score, clients)
        return cells

    def own_models(self, params: Params, clients: Tensor, between: bool) -> list[Cell]:
        """Evaluate some clients' own models after aggregation. Shape: params (clients, ...)."""
        coverage = self._coverage(between)
        if self.trained_on is not None and coverage == "own":
            return []  # in another label space clients have no test samples
        head = self._head(params, clients)
        cells = self._test_cells(AFTER_AGGREGATION, params, head, clients, coverage)
        return cells + self._own_cells(VALIDATION, AFTER_AGGREGATION, params, head, clients)

    def _clients_share(self, models: Models) -> bool:
        return models.global_model is not None and self.method.clients_use_global

    def _coverage(self, between: bool) -> Coverage:
        if not between or len(self.federation.problem.clients) <= FULL_MATRIX_CLIENTS:
            return "all"
        return "own" if self._is_sample else "domains"

    def before_aggregation(self, params: Params, clients: Tensor) -> list[Cell]:
        """Evaluate the participants' models before aggregation, on their own test samples and class sets."""
        head = self._head(params, clients)
        return self._test_cells(BEFORE_AGGREGATION, params, head, clients, "own")

    def _test_cells(
        self, stage: int, params: Params, head: Params, clients: Tensor, coverage: Coverage
    ) -> list[Cell]:
        """Evaluate some clients' own models on test samples, with the passes that the coverage needs."""
        # One pass over all samples serves all test sets, unless few of the samples are asked for.
        few = coverage == "own" or (coverage == "domains" and self.between)
        apart = few and (self.federation.class_sets is None or self._is_sample)
        each = self._one_by_one(params, head)

        def score(indices: Sequence[Tensor]) -> list[Scores]:
            return [self.score(params, head, index) for index in indices]

        if self._in_batches or apart:
            if coverage == "all":
                sums = self._matrix(score, self._test)
                cells = self._cells(TEST, stage, clients + 1, self._sets + 1, sums)
            else:
                cells = [] if self.trained_on else self._own_cells(TEST, stage, params, head, clients)
            domains = self._sets[self._sets >= len(self.federation.problem.clients)]
            if coverage == "domains" and len(domains):
                sums = self._matrix(score, self.federation.test.select(domains))
                cells += self._cells(TEST, stage, clients + 1, domains + 1, sums)
            return cells + self._class_cells(stage, score, each, clients)
        (scores,) = score([self._test_rows[None]])
        sums = self._sums(scores, self._test_rows, self._test)
        cells = self._cells(TEST, stage, clients + 1, self._sets + 1, sums, coverage)
        return cells + self._class_cells(stage, score, each, clients, scores)

    def _one_by_one(self, params: Params, head: Params) -> Score:
        """Return a function that scores model i on the i-th list of samples."""
        return lambda indices: [
            self.score(_chosen(params, one), _chosen(head, one), index)
            for one, index in ((slice(i, i + 1), index) for i, index in enumerate(indices))
        ]

    def _matrix(self, score: Score, rows: Rows) -> Sums:
        """Evaluate every model on every test set. Shape: -> (models, test sets) each."""
        if self._in_batches:  # a prediction must not depend on the samples of another test set
            scores = score([self.order(rows, j) for j in range(len(rows.counts))])
            correct, loss = (torch.stack([s[part].sum(1) for s in scores], 1) for part in (0, 1))
            return correct, rows.counts.expand(len(correct), -1), loss
        unique = rows.flat.unique()
        return self._sums(score([unique[None]])[0], unique, rows)

    @staticmethod
    def _sums(scores: Scores, unique: Tensor, rows: Rows) -> Sums:
        """Sum over each test set. Shape: scores (models, unique) each -> (models, test sets) each."""
        correct, loss = scores
        place = torch.searchsorted(unique, rows.flat)
        sums = torch.zeros(2, len(correct), len(rows.counts), dtype=torch.float64)
        sums[0].index_add_(1, rows.owners, correct[:, place])
        sums[1].index_add_(1, rows.owners, loss[:, place])
        return sums[0], rows.counts.expand(len(correct), -1), sums[1]

    def _class_cells(
        self,
        stage: int,
        score: Score,
        each: Score,
        clients: Tensor,
        scores: Scores | None = None,
    ) -> list[Cell]:
        """Evaluate each client's model on its class set; one model may serve all clients.

        Args:
            each: scores client i's model on the i-th list of samples.
            scores: of a pass over all test samples, if one was made. Shape: (models, ``_test_rows``) each.
        """
        sets = self.federation.class_sets
        if sets is None or not len(clients):
            return []
        held = sets.held[clients]
        labels = self.federation.pool.y(sets.rows).cpu()
        total = (torch.bincount(labels, minlength=held.shape[1]) * held).sum(1)
        if self._in_batches:
            in_order = [self._in_order(sets.rows[h[labels]])[None] for h in held]
            result = torch.stack([torch.stack([part.sum() for part in found]) for found in each(in_order)], 1)
        else:
            # The class sets of a sample of clients also hold test samples of the others.
            rows = sets.rows if self._is_sample else self._test_rows
            reusable = None if self._is_sample else scores
            correct, loss = reusable or score([rows[None]])[0]
            place = torch.searchsorted(rows, sets.rows)
            by_class = torch.zeros(2, len(correct), held.shape[1], dtype=torch.float64)
            by_class[0].index_add_(1, labels, correct[:, place])
            by_class[1].index_add_(1, labels, loss[:, place])
            result = torch.where(held, by_class, 0.0).sum(-1)  # not a product: inf * 0 is NaN
        (some,) = (total > 0).nonzero(as_tuple=True)
        sets_of = clients + len(self.federation.test_sets) + 1
        sums = result[0][some], total[some], result[1][some]
        return _make_cells(TEST, stage, clients[some] + 1, sets_of[some], sums)

    def _own_cells(self, split: int, stage: int, params: Params, head: Params, clients: Tensor) -> list[Cell]:
        """Evaluate the models of some clients on their own samples."""
        rows = (self.federation.test if split == TEST else self.federation.validation).select(clients)
        if not len(rows.flat):  # nobody here holds a sample that the others' padding could repeat
            return []
        if self._in_batches:
            scores = self._one_by_one(params, head)([self.order(rows, i) for i in range(len(rows.counts))])
            correct, loss = (torch.stack([s[part].sum() for s in scores]) for part in (0, 1))
        else:
            correct, loss = ((s * rows.mask).sum(1) for s in self.score(params, head, rows.index))
        (held,) = (rows.counts > 0).nonzero(as_tuple=True)
        codes, sums = clients[held] + 1, (correct[held], rows.counts[held], loss[held])
        return _make_cells(split, stage, codes, codes, sums)

    def order(self, rows: Rows, owner: int) -> Tensor:
        """Return one owner's samples without padding, in the order of their batches. Shape: (1, samples)."""
        return self._in_order(rows.held_by(owner))[None]

    def _in_order(self, rows: Tensor) -> Tensor:
        """Order samples without regard to their classes, or by class if the method says so.

        Shape: (samples,) -> (samples,).
        """
        if self.method.batch_order == "sorted":
            return rows[self.federation.pool.y(rows).cpu().argsort(stable=True)]
        generator = self.federation.problem.generator("evaluate", len(rows))
        return rows[torch.randperm(len(rows), generator=generator)]

    def passes(self, index: Tensor, models: int = 1) -> list[Tensor]:
        """Cut samples into forward passes of some models. Shape: index (..., samples)."""
        if self._in_batches:
            return [index]  # the method cuts its own batches
        return list(index.split(self._at_once(models), dim=1))

    def _at_once(self, models: int) -> int:
        return max(1, samples_at_once(self.method, self.federation.pool, models) >> self.fit.halved)

    def score(self, params: Params, head: Params, index: Tensor) -> Scores:
        """Score each sample: hits and losses in float64 on the CPU.

        Shape: index (models or 1, samples) -> (models, samples) each.
        """
        models = len(next(iter(params.values()))) if params else 1
        passes = self.passes(index, models)
        with torch.no_grad():
            first = self._logits(params, head, passes[0], models)
            checked(self.method, "logits", first, models, passes[0].shape[1])
            # Allocated once: small results left between the freed tensors of each pass fragment the heap,
            # which in runs of 10,000 clients grew to many times what is used.
            hits = torch.empty(models, index.shape[1], dtype=torch.bool, device=first.device)
            losses = torch.empty(hits.shape, dtype=first.dtype, device=first.device)
            done = self._score_equal(params, head, passes, first, hits, losses) if len(index) == 1 else 0
            for part in passes[done:]:
                start = done * passes[0].shape[1]
                logits = self._logits(params, head, part, models) if done else first
                span = slice(start, start + part.shape[1])
                hits[:, span], losses[:, span] = self._hits_and_losses(logits, part)
                done += 1
                if self.note is not None:
                    self.note(part, logits.argmax(-1).cpu())
        # Copied once, after all passes: a copy per pass would make the device wait for the host.
        return hits.cpu().double(), losses.cpu().double()

    def _logits(self, params: Params, head: Params, part: Tensor, models: int) -> Tensor:
        """Return the scores of one pass. Shape: part (models or 1, samples)."""

        def compute(samples: int) -> Tensor:
            pieces = [self.federation.pool.x(piece) for piece in part.split(samples, dim=1)]
            found = [call(self.method.logits, params, head, x.expand(models, *x.shape[1:])) for x in pieces]
            return torch.cat(found, 1) if len(found) > 1 else found[0]

        if self._in_batches or not part.shape[1]:
            return compute(max(1, part.shape[1]))
        size = min(part.shape[1], self._at_once(models))
        logits, fitted = fitting(compute, size)
        while fitted < size and self._at_once(models) > fitted:
            self.fit.halved += 1
        return logits

    def _hits_and_losses(self, logits: Tensor, part: Tensor) -> Scores:
        """Shape: logits (models, samples, classes), part (models or 1, samples) -> (models, samples) each."""
        y = self.federation.pool.y(part).expand(len(logits), -1)
        loss = F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none").view(y.shape)
        return logits.argmax(-1) == y, loss

    def _score_equal(
        self, params: Params, head: Params, passes: list[Tensor], first: Tensor, hits: Tensor, losses: Tensor
    ) -> int:
        """Score equal models once, and return how many of the passes are done; 0 if that would not pay.

        Clients that have not trained often hold one model. The shape of a pass decides the last bits of its
        scores, so a pass has as many rows as all models, of which each is a distinct model on samples of its
        own. Nothing is shared where the first pass shows that a score depends on its row.

        Args:
            first: the scores of the first pass. Shape: (models, samples, classes).

        Shape: passes (1, samples) each; hits and losses (models, all samples), which are written.
        """
        models, size = first.shape[:2]
        full = [part for part in passes if part.shape[1] == size]
        if models == 1 or len(full) < FEWEST or self.note is not None or first.device.type != "cpu":
            return 0
        values = [*params.values(), *head.values()]
        if any(value.shape[:1] != (models,) for value in values):
            return 0  # a method's own head may be one for all models
        equal = first_equal(values)
        distinct = equal.unique()
        slots = torch.cartesian_prod(torch.arange(len(full)), distinct)
        if 2 * math.ceil(len(slots) / models) > len(full) or not torch.equal(first, first[equal]):
            return 0
        samples = torch.cat(full)
        for group in slots.split(models):
            group = torch.cat([group, group[-1:].expand(models - len(group), -1)])
            place, rows = group.unbind(1)
            part, given = samples[place], (params, head)
            if len(distinct) > 1:
                given = _chosen(params, rows), _chosen(head, rows)
            logits = self._logits(*given, part, models)
            if int(place[0]) == 0 and not torch.equal(logits[place == 0], first[rows[place == 0]]):
                return 0
            columns = place[:, None] * size + torch.arange(size)
            hits[rows[:, None], columns], losses[rows[:, None], columns] = self._hits_and_losses(logits, part)
        done = len(full) * size
        hits[:, :done], losses[:, :done] = hits[equal, :done], losses[equal, :done]
        return len(full)

    def _cells(
        self, split: int, stage: int, models: Tensor, sets: Tensor, sums: Sums, coverage: Coverage = "all"
    ) -> list[Cell]:
        """Make the cells of a matrix that are covered and have samples.

        Shape: models (models,) and sets (test sets,) entity codes; sums (models, test sets) each.
        """
        clients = len(self.federation.problem.clients)
        wanted = sums[1] > 0
        if coverage != "all":
            is_diagonal = models[:, None] == sets
            wanted = wanted & (is_diagonal | (sets > clients) if coverage == "domains" else is_diagonal)
        rows, columns = wanted.nonzero(as_tuple=True)
        return _make_cells(split, stage, models[rows], sets[columns], tuple(t[rows, columns] for t in sums))


def _make_cells(split: int, stage: int, models: Tensor, sets: Tensor, sums: tuple[Tensor, ...]) -> list[Cell]:
    """Make one cell per entry; an infinite loss (a class that the model cannot predict) becomes None.

    Shape: (cells,) each.
    """
    correct, total, loss = sums
    *columns, means = (c.tolist() for c in (models, sets, correct.long(), total, loss / total))
    # argmax treats NaN as the largest score, so that the first class with one would be predicted
    if any(map(math.isnan, means)):
        raise FedLensError(
            "the class scores of a model are not numbers (NaN), so its accuracy would mean nothing; lower lr",
            "lr",
        )
    return [
        Cell(split, stage, m, j, right, n, mean if math.isfinite(mean) else None)
        for m, j, right, n, mean in zip(*columns, means, strict=True)
    ]


def samples_at_once(method: Method, pool: Pool, models: int = 1) -> int:
    """Return how many samples one forward pass of some models takes on this device."""
    numbers = _ELEMENTS.get(pool.device.type, _ELEMENTS["cpu"])
    return max(1, numbers // (models * max(1, pool.values[0].numel() + method.numbers_per_sample())))


def _chosen(params: Params, models: Tensor | slice) -> Params:
    """Return the parameters of some models, in their order."""
    return {name: value[models] for name, value in params.items()}


def first_equal(values: Sequence[Tensor]) -> Tensor:
    """Return for each model the first one that has the same parameters, which is often the model itself.

    Shape: values (models, ...) each -> (models,).
    """
    rows = [value if value.dim() > 1 else value[:, None] for value in values]
    sums = torch.stack([value.flatten(1).sum(1).double() for value in rows], 1).tolist()
    first_by_sums: dict[tuple[float, ...], int] = {}
    first = []
    for model, numbers in enumerate(sums):
        found = first_by_sums.setdefault(tuple(numbers), model)
        is_equal = all(torch.equal(value[found], value[model]) for value in values)
        first.append(found if is_equal else model)
    return torch.tensor(first)
