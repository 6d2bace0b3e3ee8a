"""The server of a run: the steps of a round, of which ``round`` shows the order, and the clients' uploads."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import NoReturn

import numpy as np

from fedcore.base.devices import fitting
from fedcore.base.events import Cell, Diagnostic
from fedcore.base.lazy import Tensor, torch
from fedcore.base.seeds import draw_names
from fedcore.engine.checkpoint import RunState
from fedcore.engine.clients.contract import run
from fedcore.engine.clients.evaluator import evaluated_clients
from fedcore.engine.clients.executor import (
    Chunk,
    ChunkResult,
    Cohort,
    Executor,
    Worker,
    after_aggregation,
)
from fedcore.engine.clients.local import CHUNK, Trained
from fedcore.engine.clients.optimisers import learning_rate
from fedcore.methods.base import FedLensMethodError, Method, Params, Ragged, State, Uploads, Values, overrides
from fedcore.methods.federation import Federation, LocalData
from fedcore.methods.hyperparameters import Weighting
from fedcore.methods.tensors import compared, weighted_mean

_STORED_UPLOADS = 32
"""Number of participants whose uploads are stored beside the means, for diagnostics."""
_LEVELS = 4
"""Partial sums that torch's sum over the first axis keeps on a CPU (``cascade_sum`` in SumKernel.cpp)."""


@dataclass(frozen=True)
class Traffic:
    """Scalars and bytes per participant. Shape: (participants,) int64 each."""

    scalars: Tensor
    bytes: Tensor


class Transport:
    """The messages of a round; a subclass may inspect every tensor that is sent in either direction."""

    def down(self, sent: Params) -> Params:
        """Send the server's parameters to the participants. Shape: (participants, ...)."""
        return sent

    def up(self, sent: Values) -> Values:
        """Send the participants' uploads to the server. Shape: (participants, ...)."""
        return sent


def traffic(sent: Values, participants: int) -> Traffic:
    """Count each participant's scalars and bytes; of a ragged value only the rows that it sends."""
    scalars = torch.zeros(participants, dtype=torch.int64)
    size = torch.zeros(participants, dtype=torch.int64)
    for value in sent.values():
        if isinstance(value, Ragged):
            row = value.values[0, 0].numel() if value.values.shape[1] else 0
            count = value.lengths.cpu().to(torch.int64) * row
            item = value.values.element_size()
        else:
            count = torch.full((participants,), value[0].numel())
            item = value.element_size()
        scalars += count
        size += count * item
    return Traffic(scalars, size)


class _Stored(Values):
    """The uploads that are stored beside the means; another one is reported with the remedy."""

    def __missing__(self, name: str) -> Tensor:
        raise ValueError(
            f"the upload '{name}' was not stored, because needs_only_means is True; take its mean "
            "(uploads.mean), or set needs_only_means = False"
        )


@dataclass(frozen=True)
class MeanUploads(Uploads):
    """The means of a round's uploads; the uploads themselves are gone unless diagnostics read a few.

    Attributes:
        means: the mean of each parameter that the method shares. Shape: (...).
        weighting: of these means.
    """

    means: dict[str, Tensor] = field(default_factory=dict)
    weighting: Weighting = "uniform"

    def mean(self, name: str, weighting: Weighting) -> Tensor:
        if name not in self.means or weighting != self.weighting:
            raise FedLensMethodError(
                f"the mean of '{name}' weighted by '{weighting}' was not summed, only the means of "
                f"{', '.join(self.means)} weighted by '{self.weighting}'; set needs_only_means = False"
            )
        return self.means[name]


class RunningMean:
    """The weighted mean over clients of one parameter, summed in client order in float64.

    Why the levels: rows must not depend on whether uploads are stored or summed as they arrive, so this adds
    in the order in which torch's sum does on a CPU (blocks of 16 rows, blocks of 16 such sums, and so on). It
    has the bits of ``weighted_mean`` except for at most 63 elements at the end of a tensor, whose sums may
    differ in the last bit of float64.
    """

    def __init__(self, weights: Tensor) -> None:
        """Begin the mean of all clients with these weights. Shape: weights (participants,)."""
        self.weights = weights
        self.seen = 0
        self.power = max(4, (len(weights) - 1).bit_length() // _LEVELS)
        self.sums: list[Tensor] = []
        self.numbers: list[Tensor] = []
        self.dtype: torch.dtype | None = None

    def add(self, values: Tensor) -> None:
        """Add the next clients. Shape: (clients, ...)."""
        self.dtype = values.dtype
        if values[0].numel() == 1:  # torch sums a vector in another order
            self.numbers.append(values)
            return
        weights = self.weights[self.seen : self.seen + len(values)].tolist()
        if not self.sums:
            shape = values.shape[1:]
            self.sums = [values.new_zeros(shape, dtype=torch.float64) for _ in range(_LEVELS)]
        for row, weight in zip(values, weights, strict=True):
            self.sums[0] += row.to(torch.float64) * weight
            self.seen += 1
            level = 0
            while level + 1 < _LEVELS and self.seen % (1 << (level + 1) * self.power) == 0:
                self.sums[level + 1] += self.sums[level]  # a full block moves to the next level
                self.sums[level].zero_()
                level += 1

    def result(self) -> Tensor:
        """Return the mean. Shape: (...)."""
        if self.numbers:
            return weighted_mean(torch.cat(self.numbers), self.weights)
        assert self.dtype is not None and self.seen == len(self.weights), "every client has been added"
        total, *rest = self.sums
        for part in rest:
            total = total + part
        return total.to(self.dtype)


@dataclass(frozen=True)
class Gathered:
    """The participants' side of a round.

    Attributes:
        trained: without records; of a method that needs only means, only the local parameters.
        cells: accuracy before aggregation, if chunks were evaluated.
        seconds_evaluate: seconds of that evaluation, all chunks together.
    """

    trained: Trained
    uploads: Uploads
    traffic: Traffic
    cells: list[Cell]
    seconds_evaluate: float


@dataclass
class Server:
    """The server of one run in progress.

    Attributes:
        method, federation: the server's, which are also every client's unless there are cohorts.
        chunk: clients trained in one tensor program; halved when the device runs out of memory.
        folder: of the checkpoints; None: there are none.
        run_key: identity of the run's config and content, stored in checkpoints.
        cohorts: in client order, covering all clients; empty: all clients are one cohort.
        whole_checkpoints: whether a checkpoint is always one file, because it travels between machines.
        run_state: what the next round starts from.
        worker: evaluates and, unless another executor takes its place, trains the chunks in this process.
    """

    method: Method
    federation: Federation
    rounds: int
    participation: float = 1.0
    evaluate_every: int = 1
    chunk: int = CHUNK
    folder: Path | None = None
    run_key: str = ""
    transport: Transport = field(default_factory=Transport)
    should_stop: Callable[[], bool] = lambda: False
    cohorts: tuple[Cohort, ...] = ()
    whole_checkpoints: bool = False
    run_state: RunState = field(init=False)
    worker: Worker = field(init=False)
    executor: Executor = field(init=False)

    def __post_init__(self) -> None:
        everyone = range(len(self._clients))
        self.cohorts = self.cohorts or (Cohort(self.method, self.federation, everyone),)
        assert [i for c in self.cohorts for i in c.clients] == list(everyone), "every client in one cohort"
        measured = self.federation.train.counts.argmax()[None]  # see ``bytes_of_client``
        always = torch.cat([evaluated_clients(self.federation.problem), measured])
        self.run_state = RunState(self.method, always, self.folder)
        self.worker = Worker(self.cohorts)
        self.executor = self.worker

    @property
    def _clients(self) -> tuple[str, ...]:
        return self.federation.problem.clients

    @property
    def state(self) -> State:
        return self.run_state.state

    def resume(self, path: str | Path) -> None:
        """Continue after the round of a checkpoint."""
        self.run_state.resume(Path(path), self.run_key)

    def participants(self, round_: int) -> Tensor:
        """Draw the clients that take part from (seed, round) and the clients' names.

        Shape: -> (participants,), in client order.
        """
        if self.participation >= 1:
            return torch.arange(len(self._clients))
        count = max(1, math.floor(self.participation * len(self._clients) + 0.5))
        chosen = draw_names(self._clients, count, self.federation.problem.seed, "participants", round_)
        return torch.tensor(chosen, dtype=torch.int64)

    def train(self, received: Params, clients: Tensor, round_: int) -> Gathered:
        """Train, and halve the chunk whenever the memory of a GPU is used up."""
        return fitting(lambda chunk: self._train(received, clients, round_, chunk), self.chunk)[0]

    @property
    def at_once(self) -> dict[str, int]:
        """What is computed at once, as ``Notice.fitted`` records it."""
        return {"chunk": self.chunk, "passes_halved": self.worker.fit.halved}

    def _train(self, received: Params, clients: Tensor, round_: int, chunk: int) -> Gathered:
        """Train in chunks of a cohort; the clients' uploads are joined in client order.

        Of a method that needs only means, uploads are summed as they arrive instead of stored; those of a few
        participants are stored too if the method has diagnostics.
        """
        self.chunk = chunk
        method, samples = self.method, self.federation.train.counts[clients]
        only_means = method.trains and method.needs_only_means
        means: dict[str, RunningMean] = {}
        if only_means:
            weights = Uploads({}, clients, samples).weights(method.config.weighting)
            means = {name: RunningMean(weights) for name in method.shared}
        few = len(clients) <= _STORED_UPLOADS
        stored = not only_means or (few and overrides(type(method), "diagnostics"))
        sent: list[Values] = []
        counted: list[Traffic] = []
        results: list[ChunkResult] = []
        for result in self.executor.compute(self._chunks(received, clients, round_), self.should_stop):
            uploads = self.transport.up(result.sent)
            counted.append(traffic(uploads, len(result.trained.steps)))
            for name, mean in means.items():
                value = uploads[name]
                assert not isinstance(value, Ragged), f"'{name}' is ragged"
                mean.add(value)
            if stored:
                sent.append(uploads)
            results.append(replace(result, sent={}))
        values = {n: _join([s[n] for s in sent]) for n in sent[0]} if stored else {}
        joined = Uploads(values, clients, samples)
        if only_means:
            summed = {name: mean.result() for name, mean in means.items()}
            joined = MeanUploads(
                _Stored(values), clients, samples, means=summed, weighting=method.config.weighting
            )
        if self._stores_optimisers:  # only now, as a round that is repeated must find the former state
            spans = (span for _, span in self._spans(clients))
            for span, result in zip(spans, results, strict=True):
                self.run_state.optimiser.put(clients[span], result.moments)
        parts = [result.trained for result in results]
        params, terms = (
            {name: torch.cat([of[name] for of in by_chunk]) for name in by_chunk[0]}
            for by_chunk in ([part.params for part in parts], [part.terms for part in parts])
        )
        loss, steps = torch.cat([part.loss for part in parts]), torch.cat([part.steps for part in parts])
        return Gathered(
            Trained(params, {}, loss, steps, terms),
            joined,
            Traffic(torch.cat([t.scalars for t in counted]), torch.cat([t.bytes for t in counted])),
            [cell for result in results for cell in result.cells],
            sum(result.seconds_evaluate for result in results),
        )

    @property
    def _stores_optimisers(self) -> bool:
        return self.method.trains and self.method.config.optimiser_state == "kept"

    def _chunks(self, received: Params, clients: Tensor, round_: int) -> Iterator[Chunk]:
        """Yield a round's chunks in client order, each of which is made when it is needed."""
        trains, stores = self.method.trains, self._stores_optimisers
        for number, span in self._spans(clients):
            members, config = clients[span], self.cohorts[number].method.config
            yield Chunk(
                cohort=number,
                clients=members,
                round=round_,
                received={n: v[span] for n, v in received.items()},
                local={n: v[members.to(v.device)] for n, v in self.state.local.items()},
                moments=self.run_state.optimiser.select(members) if stores else {},
                lr=learning_rate(config, round_, self.rounds) if trains else None,
                evaluate=trains and self.is_evaluated(round_),
            )

    def is_evaluated(self, round_: int) -> bool:
        return round_ == self.rounds or round_ % self.evaluate_every == 0

    def chunks_of(self, round_: int) -> int:
        """Return the number of chunks in which the participants of a round are trained."""
        return sum(1 for _ in self._spans(self.participants(round_)))

    def _spans(self, clients: Tensor) -> Iterator[tuple[int, slice]]:
        """Yield the cohort's index and the slice of ``clients`` of each chunk, in client order.

        A chunk never mixes cohorts, and its bounds depend on the participants and the chunk size only, so
        that the same chunks are trained on one process and on several.
        """
        for number, cohort in enumerate(self.cohorts):
            ends = torch.tensor([cohort.clients.start, cohort.clients.stop])
            first, last = torch.searchsorted(clients, ends).tolist()
            for start in range(first, last, self.chunk):
                yield number, slice(start, min(start + self.chunk, last))

    def aggregate(self, before: State, uploads: Uploads) -> State:
        """Take the server's step; the clients' local parameters are not updated yet."""
        if not self.method.trains:
            return before
        generator = self.federation.problem.generator
        after = run(
            self.method,
            "aggregate",
            before.server_side(),
            uploads,
            lambda *purpose: generator("server", uploads.round, *purpose),
        )
        assert before.rounds_trained is not None, "set when the server is made"
        rounds_trained = before.rounds_trained.clone()
        rounds_trained[uploads.clients] += 1
        detached = {
            part: {n: v.detach() for n, v in getattr(after, part).items()}
            for part in ("shared", "personal", "server")
        }
        return State(**detached, local=before.local, rounds_trained=rounds_trained)

    def evaluate(self, round_: int) -> list[Cell]:
        """Evaluate all models of the current state, as of a round."""
        return after_aggregation(
            self.worker.evaluators,
            self.executor,
            self.state,
            0 < round_ < self.rounds,
            self.chunk,
            self.should_stop,
        )

    def diagnostics(self, before: State, trained: Trained, uploads: Uploads) -> list[Diagnostic]:
        """Return the values of a round that the method measures, of the participants."""
        values = dict(trained.terms)
        if self.method.trains:
            data = self.federation.local_data(uploads.clients)
            if self.worker.mixed or self.cohorts[0].federation.part_of is not None:
                data = without_samples(data, self.method)
            given = before, trained.params, uploads, data
            with torch.no_grad():
                values |= run(self.method, "diagnostics", *given, terms=trained.terms)
        codes = (uploads.clients + 1).tolist()
        return [d for name, value in values.items() for d in _rows(name, value, codes)]

    def save(self) -> str | None:
        if self.folder is None:
            return None
        return str(self.run_state.save(self.folder, self.run_key, self.whole_checkpoints))


@dataclass(frozen=True)
class WithoutSamples(LocalData):
    """Some clients' data without their images; labels and counts are the same through every backbone."""

    method: str = ""

    @property
    def x(self) -> NoReturn:
        """Refuse to return the samples."""
        raise FedLensMethodError(
            f"the diagnostics of {self.method} read samples, but its clients have different backbones or "
            "classes, and the server's method is the first client's; measure in a phase (Step.terms) or in "
            "upload, which run through each client's own, or declare backbones = 'one'"
        )


def without_samples(data: LocalData, method: object) -> LocalData:
    """Return the data without samples, for diagnostics over clients of different backbones."""
    values = {f.name: getattr(data, f.name) for f in fields(LocalData)}
    values["pool"] = replace(data.pool, values=data.pool.values[:0])
    return WithoutSamples(**values, method=type(method).__name__)


def _rows(name: str, value: Tensor, codes: list[int]) -> list[Diagnostic]:
    """Turn a scalar, a vector over participants or a matrix over them into rows; NaN and inf are left out.

    A matrix grows with the square of the participants, so only pairs within a sample of them (``compared``)
    are stored.
    """
    tensor = torch.as_tensor(value).detach().double().cpu()
    if tensor.dim() == 2:
        sample = compared(len(codes))
        tensor, codes = tensor[sample][:, sample], [codes[i] for i in sample.tolist()]
    values = tensor.numpy()
    finite = ((at, float(v)) for at, v in np.ndenumerate(values) if math.isfinite(v))
    pairs = (([*(codes[i] for i in at), -1, -1], v) for at, v in finite)
    return [Diagnostic(name, v, client_a=a, client_b=b) for (a, b, *_), v in pairs]


def _join(parts: Sequence[Tensor | Ragged]) -> Tensor | Ragged:
    """Join the uploads of several chunks on one client axis; ragged ones are padded to the longest."""
    ragged = [p for p in parts if isinstance(p, Ragged)]
    if not ragged:
        return torch.cat([p for p in parts if not isinstance(p, Ragged)])
    longest = max(p.values.shape[1] for p in ragged)
    padded = []
    for p in ragged:
        clients, rows, *rest = p.values.shape
        padded.append(torch.cat([p.values, p.values.new_zeros(clients, longest - rows, *rest)], 1))
    return Ragged(torch.cat(padded), torch.cat([p.lengths for p in ragged]))
