"""Chunks on several devices at once: each device has its own process, with methods and encodings.

Chunks go out and results come back as bytes; ``Parallel`` does not know by which means. One device per
process, as torch's settings (threads, deterministic algorithms, the visible device) belong to a process and
would disturb a second worker in it.
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
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property, partial
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any

from fedcore.base.errors import SystemFault
from fedcore.base.lazy import Tensor, torch
from fedcore.base.progress import result_of
from fedcore.config import RunConfig
from fedcore.engine.clients.executor import Order, Worker
from fedcore.engine.clients.hooks import faults_named
from fedcore.engine.clients.local import Stopped
from fedcore.engine.environment import check_versions, numerics, resolve_environment
from fedcore.engine.train import Spread, set_up_again

MakeWorker = Callable[[], Worker]
"""Makes the worker of a process; it must be importable there."""
Submit = Callable[[bytes], "Future[bytes]"]
"""Sends a packed request to one process and promises its packed reply."""
_AHEAD = 2
"""Chunks that each process has at once, so that it does not wait for the next one."""
_POLL_SECONDS = 0.2
"""Seconds after which a wait checks again whether the run has to stop."""


@dataclass(frozen=True)
class _OnDevice:
    """A tensor that was on the sender's device and belongs on the receiver's."""

    value: Tensor


def pack(value: object) -> bytes:
    """Return the bytes of an order or its result; a tensor broadcast to all clients is sent once."""

    def outgoing(tensor: Any) -> Any:
        if not isinstance(tensor, torch.Tensor):
            return tensor
        if tensor.device.type != "cpu":
            once = tensor.dim() > 0 and len(tensor) > 0 and tensor.stride(0) == 0
            return _OnDevice(tensor[:1].cpu().expand(tensor.shape) if once else tensor.cpu())
        # pickle writes the whole storage of a tensor, of which a slice is only a part
        size = tensor.numel() * tensor.element_size()
        return tensor.clone() if tensor.untyped_storage().nbytes() > size else tensor

    return pickle.dumps(_replaced(value, outgoing), protocol=5)


def unpack(content: bytes, device: torch.device) -> Any:
    """Return the packed value; tensors from the sender's device are moved to this one."""
    return _replaced(
        pickle.loads(content), lambda v: v.value.to(device) if isinstance(v, _OnDevice) else v, (_OnDevice,)
    )


def _replaced(value: Any, function: Callable[[Any], Any], leaves: tuple[type, ...] = ()) -> Any:
    """Apply a function to the values in dicts, tuples and dataclasses, except inside the types ``leaves``."""
    if isinstance(value, tuple):
        return tuple(_replaced(v, function, leaves) for v in value)
    if isinstance(value, dict):
        return {name: _replaced(v, function, leaves) for name, v in value.items()}
    if is_dataclass(value) and not isinstance(value, (type, *leaves)):
        parts = {f.name: _replaced(getattr(value, f.name), function, leaves) for f in fields(value)}
        return replace(value, **parts)  # type: ignore[type-var]  # an instance, as checked above
    return function(value)


class Serving:
    """The worker's side of a process."""

    def __init__(self, make: MakeWorker) -> None:
        self._make = make

    @cached_property
    def worker(self) -> Worker:
        """Built lazily; errors surface with the first order."""
        return self._make()

    def answer(self, content: bytes) -> bytes:
        """Answer a packed request; returns the packed reply, or the pickled error."""
        try:
            with faults_named(self.worker.cohorts[0].method.name):
                (result,) = self.worker.compute([unpack(content, self.worker.device)])
                return pack(result)
        except Exception as error:  # noqa: BLE001 - the sender raises it again
            error.add_note(traceback.format_exc())  # pickle drops the traceback
            return pickle.dumps(error)


class Parallel:
    """Distributes chunks over processes in turn, and returns their results in client order.

    Args:
        device: to which tensors from the processes' devices are moved.
        lost: the error that a future raises if its process is gone.
        fault: the error that is raised then.
    """

    def __init__(
        self,
        submits: Sequence[Submit],
        device: torch.device,
        lost: type[Exception] = BrokenProcessPool,
        fault: type[SystemFault] = SystemFault,
    ) -> None:
        self.width = len(submits)
        self._lost, self._fault = lost, fault
        self._submits = submits
        self._device = device

    def compute(self, orders: Iterable[Order], should_stop: Callable[[], bool]) -> Iterator[Any]:
        """Yield the results; a process has its next order before it returns the last one.

        Raises:
            Stopped: if ``should_stop`` says so; the round is discarded.
            SystemFault: if a process is gone.
        """
        waiting: deque[Future[bytes]] = deque()
        for number, order in enumerate(orders):
            waiting.append(self._submits[number % self.width](pack(order)))
            if len(waiting) == _AHEAD * self.width:
                yield self._result(waiting.popleft(), should_stop)
        while waiting:
            yield self._result(waiting.popleft(), should_stop)

    def _result(self, future: Future[bytes], should_stop: Callable[[], bool]) -> Any:
        while True:
            if should_stop():
                raise Stopped
            try:
                result = unpack(future.result(_POLL_SECONDS), self._device)
            except TimeoutError:
                continue
            except self._lost as error:
                raise self._fault(
                    "a process that trained some of the clients ended unexpectedly (out of memory?); resume "
                    "continues after the last round"
                ) from error
            if isinstance(result, Exception):
                raise result
            return result


_serving: Serving | None = None


def _begin(make: MakeWorker, environment: Mapping[str, str]) -> None:
    """Set the environment of a process before torch is loaded, and make it end with its parent."""
    global _serving
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends Ctrl-C to all; the parent handles it
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ.update(environment)
    _serving = Serving(make)


def _end_with_parent() -> None:
    """End this process with its parent: a pool's process would wait forever for a parent that was killed."""
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
        makes: a function that makes a process's worker, and the environment variables of the process.
        device: see ``Parallel``.
    """
    before = os.environ.get("PYTHONSAFEPATH", "")  # Python takes an empty text as none
    os.environ["PYTHONSAFEPATH"] = "1"  # a process would import from the folder in which it starts
    pools = [ProcessPoolExecutor(1, get_context("spawn"), _begin, make) for make in makes]
    try:
        submits: list[Submit] = [partial(pool.submit, _answer) for pool in pools]  # type: ignore[call-arg]
        yield Parallel(submits, device)
    finally:
        os.environ["PYTHONSAFEPATH"] = before
        for pool in pools:
            running = list((pool._processes or {}).values())
            pool.shutdown(wait=False, cancel_futures=True)
            for process in running:
                process.terminate()  # it can only be training a round that is discarded


def over_devices(environments: Sequence[Mapping[str, str]], device: str) -> Spread:
    """Return a spread over processes of this machine.

    Args:
        environments: environment variables of each process, which select its device.
        device: torch's name of that device.
    """

    def start(
        run: RunConfig, artifacts: Path, environment: Mapping[str, Any], wanted: torch.device
    ) -> AbstractContextManager[Parallel]:
        make = partial(worker_of, run, artifacts, device, dict(environment))
        return processes([(make, variables) for variables in environments], wanted)

    return Spread(len(environments), start, device, sharers=len(environments))


def worker_of(run: RunConfig, artifacts: Path, device: str, environment: Mapping[str, Any]) -> Worker:
    """Make a worker of a run in this process.

    Args:
        environment: as recorded by the run's first process; other weights, data or versions are refused.
    """
    # The number of CPU threads comes from ``environment``, not from this machine: with another number torch
    # would divide and order its sums differently, and a chunk's bits would depend on where it is computed.
    resolved = resolve_environment(run, device, environment)
    check_versions(environment, resolved)
    setup = result_of(set_up_again(run, artifacts, device, environment))
    return Worker(setup.cohorts, numerics(resolved))
