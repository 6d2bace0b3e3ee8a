"""Executors: where the participants of a round are trained and all models evaluated, in chunks of clients.

A chunk is one tensor program. Its result depends neither on the other chunks nor on the process that
computes it. An executor may therefore compute the chunks of a round anywhere, and the bits are the same as
long as it returns the results in client order. The chunk size itself decides the last bits, because torch
chooses its kernels and the order of their sums by the shapes; it is therefore stored with the run and reused.

The evaluation after aggregation is divided too: a part is either a chunk of clients' own models or some
forward passes of a cohort's global model. How the samples are cut into passes depends on the model only, not
on the number of processes: a pass has the same shape everywhere, and so the same bits. Values over all
participants of a round (``Method.diagnostics``) need all of them at once and are not divided.

Clients that differ in backbone or training budget are cohorts, and a chunk never mixes two. A method declares
in ``Method.backbones`` whether its clients may have different ones. If so, its initial state must not depend
on any of them. Importing this module does not load torch.
"""

import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from fedcore.base.devices import keep_freed_memory
from fedcore.base.events import AFTER_AGGREGATION, GLOBAL, TEST, Cell
from fedcore.base.lazy import Tensor, torch
from fedcore.engine.clients.contract import FirstStep, initial_state, run
from fedcore.engine.clients.evaluator import Evaluator, Fit, Score, Scores
from fedcore.engine.clients.hooks import make, place_of, quoted
from fedcore.engine.clients.local import Trained, train_clients
from fedcore.engine.clients.optimisers import ClientOptimiser
from fedcore.methods.base import STATE_PARTS, FedLensMethodError, Method, Params, State, Values
from fedcore.methods.federation import Federation


@dataclass(frozen=True)
class Cohort:
    """Clients that share a backbone and a training budget; or one client that predicts among its own classes.

    Its method and federation contain all clients of the run, so that indices mean the same everywhere; it
    trains and evaluates only its own clients.

    Attributes:
        method: made for this cohort's backbone, with its batch size and local epochs.
        federation: all samples as this cohort's backbone encodes them.
        clients: its clients, a range of the client order.
        max_steps: most local steps of a client in one round; None: no limit.
    """

    method: Method
    federation: Federation
    clients: range
    max_steps: int | None = None


def is_mixed(cohorts: Sequence[Cohort]) -> bool:
    """Return whether the cohorts have different backbones, and check that the initial state fits all."""

    def text(value: Tensor | None) -> str:
        return "nothing" if value is None else f"{tuple(value.shape)} of norm {value.double().norm():.4g}"

    first, *rest = {id(c.federation.problem.backbone): c for c in cohorts}.values()
    for other in rest:
        for part, name, ours, theirs in differing_start(first, other):
            one, two = (c.federation.problem.backbone.spec.name for c in (first, other))
            raise FedLensMethodError(
                f"{type(first.method).__name__} declares backbones = '{first.method.backbones}', but its "
                f"{part} '{name}' starts as {text(ours)} with {one} and {text(theirs)} with {two}; "
                "declare backbones = 'one'"
            )
    return bool(rest)


def differing_start(one: Cohort, other: Cohort) -> Iterator[tuple[str, str, Tensor | None, Tensor | None]]:
    """Yield part of the state, name and both values of each parameter that starts differently."""
    states = [initial_state(c.method) for c in (one, other)]
    for part in STATE_PARTS:
        left, right = (getattr(state, part) for state in states)
        for name in dict.fromkeys([*left, *right]):
            ours, theirs = left.get(name), right.get(name)
            if ours is None or theirs is None or not torch.equal(ours, theirs.to(ours)):
                yield part, name, ours, theirs


def entries_by_class(method: Method) -> tuple[str, ...]:
    """Return the parameters that have an entry for each class: those whose shape one class fewer changes."""
    problem = method.problem
    fewer = replace(problem, classes=problem.classes[:-1], class_counts=problem.class_counts[:, :-1])
    states = [initial_state(m) for m in (method, make(type(method), method.config, fewer))]
    found = []
    for part in STATE_PARTS:
        one, other = (getattr(state, part) for state in states)
        found += [name for name, value in one.items() if value.shape != other[name].shape]
    return tuple(dict.fromkeys(found))


@dataclass(frozen=True)
class Chunk:
    """Clients of one cohort that train together, with everything that they need for a round.

    Attributes:
        moments: their optimisers' state, if the clients keep it across rounds; empty: new optimisers.
        lr: learning rate of the round; None: the method's, if it trains.

    Shape: clients (chunk,), ascending; received, local and moments (chunk, ...).
    """

    cohort: int
    clients: Tensor
    round: int
    received: Params
    local: Params
    moments: Params
    lr: float | None
    evaluate: bool


@dataclass(frozen=True)
class ChunkResult:
    """The result of a chunk.

    Attributes:
        trained: without records; of a method that needs only means, only the local parameters.
        sent: the clients' uploads. Shape: (chunk, ...).
        moments: their optimisers' state after the round.
        cells: accuracy of their models before aggregation, if the chunk has ``evaluate``.
    """

    trained: Trained
    sent: Values
    moments: Params
    cells: list[Cell]
    seconds_evaluate: float


@dataclass(frozen=True)
class OwnModels:
    """Models of some clients of a cohort.

    Attributes:
        space: 0 for the label space of training, else the number of one of ``Federation.label_spaces``.
        between: see ``after_aggregation``.

    Shape: clients (chunk,), ascending; params (chunk, ...).
    """

    cohort: int
    space: int
    clients: Tensor
    params: Params
    between: bool


@dataclass(frozen=True)
class GlobalPasses:
    """Forward passes of a cohort's global model.

    Attributes:
        space: as in ``OwnModels``.
        model: identifies the parameters, so that a process computes their head only once.

    Shape: params (1, ...); each pass (1, samples).
    """

    cohort: int
    space: int
    model: str
    params: Params
    passes: tuple[Tensor, ...]


Order = Chunk | OwnModels | GlobalPasses | None
"""Work for a worker; None asks for its ``numerics``."""


class Executor(Protocol):
    """Where the orders of a round are computed.

    Attributes:
        width: orders that are computed at the same time.
    """

    width: int

    def compute(self, orders: Iterable[Order], should_stop: Callable[[], bool]) -> Iterator[Any]:
        """Yield the results in the order of the orders.

        They are a ``ChunkResult`` of each chunk, the cells of own models, and the scores of the global
        model's passes. Shape of these: (1, samples of all passes) each.

        Raises:
            Stopped: if ``should_stop`` says so; the round is discarded.
        """


class GlobalModel(dict[str, "Tensor"]):
    """The parameters of the global model; a missing one is reported with the remedy."""

    def __missing__(self, name: str) -> Tensor:
        frame = sys._getframe(1)
        raise FedLensMethodError(
            f"{place_of(frame.f_code, frame.f_lineno)}: the global model has no '{name}', only "
            f"{quoted(self)}: what is local stays with its client. Predict without it there "
            f'(if "{name}" in params: ...), or declare that there is no global model: def models(self, '
            "state): return Models(None, {**self.repeat(state.shared), **state.local})"
        )


@dataclass
class Worker:
    """Trains and evaluates chunks of clients, with its own methods and encoded samples on its own device.

    It is the executor of a run in one process: a result may be dropped before the next order begins.

    Attributes:
        numerics: the properties that affect bitwise results, see ``environment.numerics``.
        mixed: whether the cohorts have different backbones.
        fit: what fits into the memory of its GPU.
        evaluators: one per cohort; where clients predict among their own classes, one of all clients follows.
    """

    width = 1
    cohorts: Sequence[Cohort]
    numerics: dict[str, str] = field(default_factory=dict)
    mixed: bool = field(init=False)
    evaluators: list[Evaluator] = field(init=False)
    fit: Fit = field(default_factory=Fit)
    _first_steps: dict[int, FirstStep] = field(default_factory=dict, repr=False)
    _head: tuple[str, Params] = field(default=("", {}), repr=False)

    def __post_init__(self) -> None:
        keep_freed_memory()
        self.device = self.cohorts[0].federation.problem.device
        self.mixed = is_mixed(self.cohorts)
        whole = self.cohorts[0].federation.part_of
        self.evaluators = [
            Evaluator(
                c.method,
                c.federation,
                c.clients,
                scores_global=not self.mixed and (i == 0 or whole is not None),
                fit=self.fit,
            )
            for i, c in enumerate(self.cohorts)
        ]
        if whole is not None:  # the label spaces that no client trains in, once for the models of all clients
            homes = tuple(c.federation for c in self.cohorts)
            self.evaluators.append(Evaluator(self.cohorts[0].method, whole, homes=homes, fit=self.fit))

    def compute(
        self, orders: Iterable[Order], should_stop: Callable[[], bool] = lambda: False
    ) -> Iterator[Any]:
        for order in orders:
            if isinstance(order, Chunk):
                yield self.train(order, should_stop)
            else:
                yield self.numerics if order is None else self.evaluate(order)

    def train(self, chunk: Chunk, should_stop: Callable[[], bool] = lambda: False) -> ChunkResult:
        """Train a chunk of clients, and evaluate their models if the chunk asks for it."""
        cohort = self.cohorts[chunk.cohort]
        method, data = cohort.method, cohort.federation.local_data(chunk.clients)
        # Indexing writes broadcast parameters out: every client trains its own copy.
        everyone = torch.arange(len(chunk.clients), device=self.device)
        received = {name: value.to(self.device)[everyone] for name, value in chunk.received.items()}
        params = received | {name: value.to(self.device) for name, value in chunk.local.items()}
        optimiser = ClientOptimiser(
            method.config, len(chunk.clients), {n: v.to(self.device) for n, v in chunk.moments.items()}
        )
        if chunk.lr is not None:
            optimiser.config = method.config.model_copy(update={"lr": chunk.lr})
        optimiser.lr_factors = run(method, "lr_factors", held=params)
        trained = train_clients(
            method,
            params,
            data,
            chunk.round,
            optimiser,
            should_stop,
            cohort.max_steps,
            set(received),
            self._first_steps.setdefault(chunk.cohort, FirstStep(method, chunk.local)),
        )
        with torch.no_grad():
            held = run(method, "after_training", trained.params, received, data, chunk.round, writable=(0,))
            trained = replace(trained, params=held)
            sent = run(method, "upload", trained.params, trained.record, data)
        begin = time.perf_counter()
        cells: list[Cell] = []
        if chunk.evaluate:
            with torch.no_grad():
                models = run(method, "before_aggregation", trained.params, received, clients=len(everyone))
                cells = self.evaluators[chunk.cohort].before_aggregation(models, chunk.clients)
        spent = time.perf_counter() - begin
        params = trained.params
        if method.trains and method.needs_only_means:
            params = {name: params[name] for name in chunk.local}
        return ChunkResult(replace(trained, params=params, record={}), sent, optimiser.moments, cells, spent)

    def evaluate(self, part: OwnModels | GlobalPasses) -> list[Cell] | Scores:
        """Compute a part of the evaluation after aggregation."""
        evaluator = self.evaluators[part.cohort].spaces[part.space]
        given = {name: value.to(self.device) for name, value in part.params.items()}
        with torch.no_grad():
            if isinstance(part, OwnModels):
                # As in ``train``: indexing writes out what is broadcast.
                each = torch.arange(len(part.clients), device=self.device)
                params = {name: value[each] for name, value in given.items()}
                evaluator = evaluator.in_between if part.between else evaluator
                return evaluator.own_models(params, part.clients, part.between)
            given = GlobalModel(given)
            if self._head[0] != part.model:
                self._head = part.model, run(evaluator.method, "head", given, None)
            scores = [evaluator.score(given, self._head[1], index) for index in part.passes]
        correct, loss = zip(*scores, strict=True)
        return torch.cat(correct, 1), torch.cat(loss, 1)


def after_aggregation(
    evaluators: Sequence[Evaluator],
    executor: Executor,
    state: State,
    between: bool,
    chunk: int,
    should_stop: Callable[[], bool],
) -> list[Cell]:
    """Evaluate every model, each with its own cohort's backbone.

    On test samples: the global model on every test set; the clients' models on all test sets or, ``between``
    and with many clients (``FULL_MATRIX_CLIENTS``), on their own and the domains' ones, and on their class
    sets. If only a sample of these clients is evaluated: on their own and their class sets. On validation
    samples: the clients' models on their own, the global model on all clients' ones. If every client predicts
    with the global model, its passes serve all clients. In a label space other than that of training they are
    evaluated on its own test sets only.

    Args:
        evaluators: of ``Worker``.
        between: whether the round is neither the first nor the last, see ``Federation.in_between`` too.
        chunk: clients' own models in one part.
    """
    cells: list[Cell] = []
    for cohort, home in enumerate(evaluators):
        for space, whole in enumerate(home.spaces):
            evaluator = whole.in_between if between else whole
            if not len(evaluator.federation.test.flat) + len(evaluator.federation.validation.flat):
                continue
            place = cohort, space
            with torch.no_grad():
                there = state
                if whole is not home:
                    there = run(home.method, "retarget", state, evaluator.method)
                models = run(evaluator.method, "models", there)
                if models.global_model is not None:
                    score = _global_score(place, evaluator, executor, models.global_model, should_stop)
                    cells += evaluator.global_model(models, between, score)
            chunks = evaluator.with_own_models(models).split(1 if evaluator.homes else chunk)
            parts = (  # each is made when it is needed
                OwnModels(*place, some, models.of(some), between) for some in chunks if len(some)
            )
            for found in executor.compute(parts, should_stop):
                cells += found
    return cells


def _global_score(
    place: tuple[int, int],
    evaluator: Evaluator,
    executor: Executor,
    params: Params,
    should_stop: Callable[[], bool],
) -> Score:
    """Return a function that scores the global model, with its passes divided among the processes."""
    model = uuid.uuid4().hex

    def score(indices: Sequence[Tensor]) -> list[Scores]:
        passes = [part for index in indices for part in evaluator.passes(index)]
        groups = _divided(passes, executor.width)
        parts = [GlobalPasses(*place, model, params, tuple(group)) for group in groups]
        sizes = [index.shape[1] for index in indices]
        results = zip(*executor.compute(parts, should_stop), strict=True)
        correct, loss = (torch.cat(scores, 1).split(sizes, 1) for scores in results)
        return list(zip(correct, loss, strict=True))

    return score


def _divided(passes: Sequence[Tensor], count: int) -> list[list[Tensor]]:
    """Divide passes into at most ``count`` groups, in order, of about equally many samples each."""
    total = sum(part.shape[1] for part in passes)
    groups: list[list[Tensor]] = [[] for _ in range(count)]
    before = 0
    for part in passes:
        groups[min(count - 1, (before + part.shape[1] // 2) * count // max(1, total))].append(part)
        before += part.shape[1]
    return [group for group in groups if group]


def adapted_cells(
    method: Method,
    federation: Federation,
    state: State,
    cells: list[Cell],
    chunk: int,
    should_stop: Callable[[], bool],
) -> list[Cell]:
    """Train each unseen client once, as a participant of one more round, and test its model on its samples.

    It begins with the shared parameters and with local ones as before round 1, and trains at the method's
    learning rate; nothing of it is uploaded.

    Args:
        cells: of the last round; of a method that trains nothing, the global model's accuracy stands again
            if it has a global model.
    """
    new = federation.newcomers
    if new is None:
        return []
    sets = [code for code, s in enumerate(federation.test_sets, start=1) if s.kind == "unseen"]
    first = first_adapted_code(federation)
    if not method.trains and method.models(state).global_model is not None:
        of_set = {
            c.test_set: c for c in cells if (c.model, c.split, c.stage) == (GLOBAL, TEST, AFTER_AGGREGATION)
        }
        return [of_set[s]._replace(model=first + i) for i, s in enumerate(sets) if s in of_set]
    theirs = make(type(method), method.config, new.problem)
    everyone = torch.arange(len(sets))
    with torch.no_grad():
        start = replace(state, local=theirs.init(new.problem.generator).local)
    worker = Worker((Cohort(theirs, new, range(len(sets))),))
    found: list[Cell] = []
    for clients in everyone.split(chunk):
        given = Chunk(
            cohort=0,
            clients=clients,
            round=1,
            received=run(theirs, "sends", start, clients),
            local={name: value[clients.to(value.device)] for name, value in start.local.items()},
            moments={},
            lr=None,
            evaluate=True,
        )
        for c in worker.train(given, should_stop).cells:
            client = c.model - 1
            found.append(c._replace(stage=AFTER_AGGREGATION, model=first + client, test_set=sets[client]))
    return found


def first_adapted_code(federation: Federation) -> int:
    """Return the entity code of the first unseen client's adapted model: after all test sets."""
    class_sets = 0 if federation.class_sets is None else len(federation.problem.clients)
    return 1 + len(federation.test_sets) + class_sets
