"""Chunks on several devices at once: each device has a process of its own, with its methods and encodings.

What a chunk needs goes out and its result comes back as bytes; ``Parallel`` does not know how. Local
parameters stay in the process that trained them last and are not sent to it again; they come back with every
round, because checkpoints and evaluation need them.
"""

from __future__ import annotations

import os
import pickle
import signal
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property, partial
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedcore.config import RunConfig
from fedcore.engine.clients.contract import faults_named
from fedcore.engine.clients.evaluation import Part, PartResult
from fedcore.engine.clients.executor import Chunk, ChunkResult, Worker
from fedcore.engine.clients.local import Stopped
from fedcore.engine.environment import check_versions, computed_by, resolve_environment
from fedcore.engine.setup import RunSetup, set_up
from fedcore.lazy import torch
from fedcore.methods.base import Params
from fedcore.progress import Progress, relay, result_of
from fedcore.system_errors import SystemFault

if TYPE_CHECKING:
    from torch import Tensor

MakeWorker = Callable[[], Worker]
"""Makes the worker of a process; it must be importable there."""
Submit = Callable[[bytes], "Future[bytes]"]
"""Sends a packed ``Order`` or ``Part`` to one process and promises its packed result."""
_AHEAD = 2
"""Chunks that each process has at once, so that it does not wait for the next one."""
_LOOK_SECONDS = 0.2
"""How often a wait looks whether the run has to stop."""
_KEPT = 2**31
"""Bytes of local parameters that a process keeps between rounds; those of more clients are sent again."""


@dataclass(frozen=True)
class Order:
    """A chunk on its way to a process.

    Attributes:
        keep: whether the process keeps the clients' local parameters after training.
        held: with the first order of a round, the clients whose local parameters the process still has to
            keep; those of others are out of date, as another process has trained them since.

    Shape: sent (chunk,) bool, True for the clients whose local parameters the chunk brings along; the
    process has those of the others. held (clients,).
    """

    chunk: Chunk
    sent: Tensor
    keep: bool
    held: Tensor | None = None


@dataclass(frozen=True)
class Conditions:
    """Asks a process for what decides the last bits of its numbers, and is its answer.

    Attributes:
        values: see ``environment.computed_by``; empty in the question.
    """

    values: dict[str, str] = field(default_factory=dict)


Asked = Order | Part | Conditions
Answer = ChunkResult | PartResult | Conditions


@dataclass(frozen=True)
class _OnDevice:
    """A tensor that was on the sender's device and belongs on the receiver's."""

    value: Tensor


def pack(value: Asked | Answer) -> bytes:
    """Return the bytes of what is sent; the clients' copies of one broadcast tensor are sent once."""

    def outgoing(tensor: Any) -> Any:
        if not isinstance(tensor, torch.Tensor):
            return tensor
        if tensor.device.type != "cpu":
            once = tensor.dim() > 0 and len(tensor) > 0 and tensor.stride(0) == 0
            return _OnDevice(tensor[:1].cpu().expand(tensor.shape) if once else tensor.cpu())
        own = tensor.numel() * tensor.element_size()
        return (
            tensor.clone() if tensor.untyped_storage().nbytes() > own else tensor
        )  # not all of a larger one

    return pickle.dumps(_replaced(value, outgoing), protocol=5)


def unpack(content: bytes, device: torch.device) -> Any:
    """Return what was packed, with the tensors that were on the sender's device on this one."""
    return _replaced(
        pickle.loads(content), lambda v: v.value.to(device) if isinstance(v, _OnDevice) else v, (_OnDevice,)
    )


def _replaced(value: Any, function: Callable[[Any], Any], leaves: tuple[type, ...] = ()) -> Any:
    """Apply a function to the values in dicts, tuples and dataclasses, except inside those of ``leaves``."""
    if isinstance(value, tuple):
        return tuple(_replaced(v, function, leaves) for v in value)
    if isinstance(value, dict):
        return {name: _replaced(v, function, leaves) for name, v in value.items()}
    if is_dataclass(value) and not isinstance(value, (type, *leaves)):
        parts = {f.name: _replaced(getattr(value, f.name), function, leaves) for f in fields(value)}
        return replace(value, **parts)  # type: ignore[type-var]  # an instance, as was asked
    return function(value)


class Serving:
    """The side of a process: a worker, made with its first order, and the local parameters of its clients."""

    def __init__(self, make: MakeWorker) -> None:
        self._make = make
        self.rows: dict[int, Params] = {}

    @cached_property
    def worker(self) -> Worker:
        """What trains the chunks; the errors of its making are the first order's."""
        return self._make()

    def answer(self, content: bytes) -> bytes:
        """Compute what is packed; returns the packed result, or the error that it met."""
        try:
            with faults_named(self.worker.cohorts[0].method.name):
                return pack(self._answer(unpack(content, self.worker.device)))
        except Exception as error:  # noqa: BLE001 - it is raised again where the order came from
            error.add_note(traceback.format_exc())  # is not pickled otherwise
            return pickle.dumps(error)

    def _answer(self, asked: Asked) -> Answer:
        if isinstance(asked, Conditions):
            return Conditions(self.worker.conditions)
        return self.train(asked) if isinstance(asked, Order) else self.worker.evaluate(asked)

    def train(self, order: Order) -> ChunkResult:
        """Train the chunk of an order."""
        if order.held is not None:
            held = set(order.held.tolist())
            self.rows = {client: row for client, row in self.rows.items() if client in held}
        chunk, clients = order.chunk, order.chunk.clients.tolist()
        rows = {c: self.rows.pop(c) for c, sent in zip(clients, order.sent.tolist(), strict=True) if not sent}
        for place, client in enumerate(c for c in clients if c not in rows):
            rows[client] = {name: value[place] for name, value in chunk.local.items()}
        local = {name: torch.stack([rows[c][name] for c in clients]) for name in chunk.local}
        result = self.worker.train(replace(chunk, local=local))
        if order.keep:
            trained = result.trained.params
            self.rows |= {c: {n: trained[n][i].clone() for n in local} for i, c in enumerate(clients)}
        return result


class Parallel:
    """Spreads chunks over processes in turn, and returns their results in client order.

    Args:
        device: where results are wanted that were on the processes' devices.
        lost: what a promise raises when its process is gone.
    """

    def __init__(
        self, submits: Sequence[Submit], device: torch.device, lost: type[Exception] = BrokenProcessPool
    ) -> None:
        self.width = len(submits)
        self._lost = lost
        self._submits = submits
        self._device = device
        self._holder: dict[int, int] = {}

    def train(self, chunks: Iterable[Chunk], should_stop: Callable[[], bool]) -> Iterator[ChunkResult]:
        """Train chunks of clients; a process has its next chunk before it returns the last one.

        Raises:
            Stopped: when ``should_stop`` says so; nothing of the round is kept.
            SystemFault: when a process is gone.
            FedLensError: when a client's loss is no longer finite; names the client.
        """
        before, self._holder = self._holder, {}  # a round that is trained again begins with what is sent
        after = dict(before)

        def orders() -> Iterator[Order]:
            for number, chunk in enumerate(chunks):
                target = number % self.width
                order = self._order(chunk, target, before, after)
                if number < self.width:
                    held = [client for client, holder in before.items() if holder == target]
                    order = replace(order, held=torch.tensor(held, dtype=torch.int64))
                yield order

        for result in self._answers(orders(), should_stop):
            assert isinstance(result, ChunkResult), "a process answers an order with a chunk's result"
            yield result
        self._holder = after

    def evaluate(self, parts: Iterable[Part], should_stop: Callable[[], bool]) -> Iterator[PartResult]:
        """Compute parts of the evaluation after aggregation.

        Raises:
            Stopped: when ``should_stop`` says so.
            SystemFault: when a process is gone.
        """
        for result in self._answers(parts, should_stop):
            assert isinstance(result, PartResult), "a process answers a part with its result"
            yield result

    def conditions(self, should_stop: Callable[[], bool]) -> list[dict[str, str]]:
        """Wait until all processes are ready, and return what decides the last bits of each one's numbers.

        Raises:
            Stopped: when ``should_stop`` says so.
            SystemFault: when a process is gone.
            FedLensError: when a process cannot compute a part of the run.
        """
        answers = self._answers([Conditions()] * self.width, should_stop)
        return [answer.values for answer in answers if isinstance(answer, Conditions)]

    def _answers(self, asked: Iterable[Asked], should_stop: Callable[[], bool]) -> Iterator[Answer]:
        """Send to the processes in turn, and yield their answers in order; few are on their way at once."""
        waiting: deque[Future[bytes]] = deque()
        for number, one in enumerate(asked):
            waiting.append(self._submits[number % self.width](pack(one)))
            if len(waiting) == _AHEAD * self.width:
                yield self._result(waiting.popleft(), should_stop)
        while waiting:
            yield self._result(waiting.popleft(), should_stop)

    def _order(self, chunk: Chunk, target: int, before: dict[int, int], after: dict[int, int]) -> Order:
        """Make the order of a chunk, and note in ``after`` who has its clients' local parameters then."""
        clients = chunk.clients.tolist()
        sent = torch.tensor([before.get(c) != target for c in clients], dtype=torch.bool)
        local = {n: v[sent.to(v.device)] for n, v in chunk.local.items()}
        held = sum(holder == target for holder in after.values())
        size = sum(v[0].numel() * v.element_size() for v in chunk.local.values())
        keep = 0 < size * (held + len(clients)) <= _KEPT
        for client in clients:
            after.pop(client, None)
            if keep:
                after[client] = target
        return Order(replace(chunk, local=local), sent, keep)

    def _result(self, future: Future[bytes], should_stop: Callable[[], bool]) -> Answer:
        while True:
            if should_stop():
                raise Stopped
            try:
                result = unpack(future.result(_LOOK_SECONDS), self._device)
            except TimeoutError:
                continue
            except self._lost as error:
                raise SystemFault(
                    "a process that trained some of the clients ended unexpectedly (out of memory?); resume "
                    "continues after the last round"
                ) from error
            if isinstance(result, Exception):
                raise result
            assert isinstance(result, Answer), "a process answers with a result or an error"
            return result


_serving: Serving | None = None


def _begin(make: MakeWorker, environment: Mapping[str, str]) -> None:
    """Set the environment of a process before torch is loaded, and end it when its parent has ended."""
    global _serving
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends Ctrl-C to all; the parent answers it
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ.update(environment)
    _serving = Serving(make)


def _end_with_parent() -> None:
    """End this process with its parent: a pool's process would wait for ever for one that was killed."""
    parent = parent_process()
    assert parent is not None, "a pool has started this process"
    parent.join()
    os._exit(1)


def _answer(content: bytes) -> bytes:
    assert _serving is not None, "the process has begun"
    return _serving.answer(content)


@contextmanager
def processes(
    makes: Sequence[tuple[MakeWorker, Mapping[str, str]]], device: torch.device
) -> Iterator[Parallel]:
    """Start one process of this machine for each worker; they end with the block.

    Args:
        makes: what makes a process's worker, and the environment variables of the process.
        device: where results are wanted that were on the processes' devices.
    """
    pools = [ProcessPoolExecutor(1, get_context("spawn"), _begin, make) for make in makes]
    try:
        yield Parallel([_submit_to(pool) for pool in pools], device)
    finally:
        for pool in pools:
            running = list((pool._processes or {}).values())
            pool.shutdown(wait=False, cancel_futures=True)
            for process in running:
                process.terminate()  # what it still trains is of a round that leaves no trace


@dataclass(frozen=True)
class Spread:
    """Where else the clients of a run are trained.

    Attributes:
        width: number of processes.
        start: starts them for a run, from its config, the folder of the encodings, what it recorded of its
            environment, and the device where results are wanted; they end with the block.
        device: torch's name of the devices.
        sharers: processes that share the memory of one machine, at most.
        memory: bytes of the machine with the least; None: this one's.
        waits_for: what the run waits for before its first round.
    """

    width: int
    start: Callable[[RunConfig, Path, Mapping[str, Any], torch.device], AbstractContextManager[Parallel]]
    device: str
    sharers: int = 1
    memory: int | None = None
    waits_for: str = "processes of this machine"


def over_devices(environments: Sequence[Mapping[str, str]], device: str) -> Spread:
    """Return what spreads a run over processes of this machine.

    Args:
        environments: environment variables of each process, which say what device it sees.
        device: torch's name of that device.
    """

    def start(
        run: RunConfig, artifacts: Path, environment: Mapping[str, Any], wanted: torch.device
    ) -> AbstractContextManager[Parallel]:
        make = partial(worker_of, run, artifacts, device, dict(environment))
        return processes([(make, variables) for variables in environments], wanted)

    return Spread(len(environments), start, device, sharers=len(environments))


def _submit_to(pool: ProcessPoolExecutor) -> Submit:
    return lambda content: pool.submit(_answer, content)


def worker_of(run: RunConfig, artifacts: Path, device: str, environment: Mapping[str, Any]) -> Worker:
    """Make a worker of a run in this process, from what the run's first process recorded.

    Args:
        environment: as recorded with the run; other weights, data or versions than its are refused.

    Raises:
        FedLensError: when data, weights or versions are not those of the run.
    """
    resolved = resolve_environment(run, device, environment)
    check_versions(environment, resolved)
    steps = set_up(run, artifacts, device, before=environment)
    setup: RunSetup = result_of(relay(steps, lambda step: isinstance(step, Progress)))  # type: ignore[arg-type]
    return Worker(setup.cohorts, computed_by(resolved))
