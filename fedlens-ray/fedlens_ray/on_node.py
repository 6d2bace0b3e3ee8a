"""Code that Ray executes on a node: the task that trains a run, and actors that train chunks of its clients.

The task yields the engine's events. Nothing here opens the database.
"""

from __future__ import annotations

import gc
import os
import platform
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from fedcore.base import consent, devices
from fedcore.base.errors import (
    Elsewhere,
    FedLensError,
    SystemFault,
    Transient,
    explain,
    explain_file,
    first_line,
)
from fedcore.base.events import Event, RoundFinished
from fedcore.base.files import cache_folder, user_path
from fedcore.base.progress import Progress, counted
from fedcore.config import RunConfig, backbones
from fedcore.config.models import WEIGHTS
from fedcore.engine.clients.executor import Worker
from fedcore.engine.environment import code, code_on_disk
from fedcore.engine.parallel import Parallel, Serving, worker_of
from fedcore.engine.train import Spread
from fedcore.methods import FedLensMethodError, registry
from fedlens_ray.connection import connect, list_nodes
from fedlens_ray.node import Files, Payload, can_read, in_words, receive, run_folder, send
from fedlens_ray.reservations import Request

if TYPE_CHECKING:
    import torch

PROGRESS_SECONDS = 0.5
REMEDY = "resume continues after the last round"
ACTOR_SHARE = 0.5
"""Share of a reserved part that its actor takes; the first part also holds the task, which averages."""


class NodeError(RuntimeError):
    """A programming error on a node."""


@dataclass(frozen=True)
class RunRequest:
    """Everything that a node needs to train a run.

    Attributes:
        key: name of the run in the node's temporary files.
        environment: the values that an earlier attempt resolved, see ``fedcore.engine.train.train``.
        method_file: content of the user's method file, to which the user has agreed.
        encoders: path and SHA-256 of the encoders to which the user has agreed; the node has the files.
        threads: the most that a run begins with.
        artifacts: folder of the encodings if the node shares the supervisor's disk; None: the node's cache.
        working_folder: the supervisor's; relative paths of the config start there.
        shared: the run's folder for checkpoints in transit; None: they travel in Ray's object store.
        parts: number of parts of its reservation over which it is spread, with an actor in each.
    """

    config: RunConfig
    key: str
    environment: dict[str, Any]
    method_file: bytes | None
    device: str
    threads: int
    artifacts: str | None
    working_folder: str
    shared: str | None = None
    parts: int = 1
    encoders: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Sent:
    """An event that a node sends, with the checkpoint of a finished round and the peak memory in bytes."""

    event: Event
    checkpoint: Payload | None
    peak_memory: int


def method_file(run: RunConfig) -> bytes | None:
    """Return the content of the user's method file, if the user has agreed to it on this machine."""
    return consent.agreed(run.method.file, run.method.sha256)[1] if run.method.file else None


def encoders(run: RunConfig) -> tuple[tuple[str, str], ...]:
    """Return path and SHA-256 of the user's encoders, if the user has agreed to them on this machine."""
    paths = [used.pretrained for used in backbones(run) if used.name == consent.CALLABLE and used.pretrained]
    return tuple((path, consent.digest(consent.agreed(path)[1])) for path in paths)


def train(request: RunRequest, checkpoint: Files | None = None) -> Iterator[Sent | Exception]:
    """Train a run here, from a checkpoint if given, and yield its events; an error is the last item."""
    place = Path()
    try:
        place = Path(tempfile.gettempdir())
        gc.collect()
        devices.reset_peak_memory(request.device)  # Ray reuses this process for one run after another
        with run_folder(request.key) as folder:
            place = folder
            yield from _train(request, folder, checkpoint)
    except Exception as error:  # noqa: BLE001 - it is sent to the supervisor, which records it
        yield told(error, place)


def prepare(request: RunRequest) -> Path:
    """Prepare this process for a run before torch is loaded; returns the folder of the encodings."""
    cores = psutil.cpu_count(logical=False) or request.threads
    threads = min(request.threads, cores)  # never more than the physical cores, as torch chooses them
    if code_on_disk() != code():  # modules that are still to be imported would be those of the new code
        raise SystemFault("FedLens was replaced there after this process had begun; start the worker again")
    os.environ.update({"FEDLENS_THREADS": str(threads), **devices.PATIENT_THREADS})
    if request.device == devices.CPU:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if os.path.isdir(request.working_folder):
        os.chdir(request.working_folder)
    config = request.config
    registry.forget_received()
    if request.method_file is not None and config.method.file is not None:
        consent.receive(config.method.file, request.method_file)
    for path, sha256 in request.encoders:
        consent.agree_for_process(user_path(path).resolve(), sha256)
    # the folders and weights that it reads, without those that come with FedLens
    needs = [config.data.root, *(t.root for t in config.transfer), *(f.root for f in config.further_data)]
    needs += [f"{WEIGHTS}{used.name} {used.pretrained}" for used in backbones(config) if used.pretrained]
    if lacking := [need for need in needs if need and not can_read(need, request.working_folder)]:
        raise SystemFault(f"{in_words(lacking)} cannot be read; copy or mount that there, then resume")
    return Path(request.artifacts) if request.artifacts else cache_folder()


def _train(request: RunRequest, folder: Path, checkpoint: Files | None) -> Iterator[Sent]:
    artifacts = prepare(request)
    from fedcore.engine.train import train as engine

    resume_from = None
    if checkpoint is not None:
        resume_from = folder / checkpoint[0][0]
        for name, file in checkpoint:
            receive(file, folder / name)
    next_progress = 0.0
    events = engine(
        request.config,
        artifacts=artifacts,
        folder=folder,
        device=request.device,
        resume_from=None if resume_from is None else str(resume_from),
        environment=request.environment or None,
        spread=None if request.parts == 1 else _over_parts(request),
        whole_checkpoints=True,
    )
    with closing(events):  # type: ignore[type-var]  # a generator, as every engine is
        for event in events:
            if isinstance(event, Progress):
                now = time.monotonic()
                if now < next_progress and event.done != event.total:
                    continue
                next_progress = now + PROGRESS_SECONDS
            content = None
            if isinstance(event, RoundFinished) and event.checkpoint is not None:
                content = send(Path(event.checkpoint), request.shared)
                for path in folder.glob("round-*.safetensors"):
                    if path != Path(event.checkpoint):  # earlier ones have been sent
                        path.unlink()
            yield Sent(event, content, devices.peak_memory(request.device))


class Actor(Serving):
    """A Ray actor that trains chunks of a run's clients; the node ``home`` has the folder of encodings."""

    def __init__(self, request: RunRequest, home: str) -> None:
        def make() -> Worker:
            import ray

            is_home = ray.get_runtime_context().get_node_id() == home
            asked = request if is_home else replace(request, artifacts=None)
            try:
                return worker_of(request.config, prepare(asked), request.device, request.environment)
            except SystemFault as fault:
                raise Elsewhere(f"on the node {platform.node()}: {fault}") from fault

        super().__init__(make)


@contextmanager
def _actors(
    ray: Any,
    group: Any,
    request: RunRequest,
    artifacts: Path,
    environment: Mapping[str, Any],
    wanted: torch.device,
) -> Iterator[Parallel]:
    """Start an actor in each part of a placement group, with the arguments of ``Spread.start``."""
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy as Strategy

    asked = replace(
        request,
        environment=dict(environment),
        threads=int(environment["threads"]),
        artifacts=str(artifacts.resolve()),
    )
    on_cpu = asked.device == devices.CPU
    started: list[Any] = []
    try:
        for part in range(request.parts):
            options = ray.remote(Actor).options(
                num_cpus=ACTOR_SHARE if on_cpu else 0,
                num_gpus=0 if on_cpu else ACTOR_SHARE,
                max_restarts=0,  # a restarted actor would have lost its clients' local parameters
                max_task_retries=0,
                scheduling_strategy=Strategy(group, placement_group_bundle_index=part),
            )
            started.append(options.remote(asked, ray.get_runtime_context().get_node_id()))
        yield Parallel([submit_to(actor) for actor in started], wanted, ray.exceptions.RayError, Elsewhere)
    finally:
        for actor in started:
            ray.kill(actor)


def _over_parts(request: RunRequest) -> Spread:
    """Return a ``Spread`` of a run over the parts of the reservation in which this task runs."""
    import ray

    group = ray.util.get_current_placement_group()
    places = Counter(ray.util.placement_group_table(group)["bundles_to_node_id"].values())
    memory = min((n.memory for n in list_nodes(ray) if n.id in places and n.memory), default=None)

    def start(run: RunConfig, *given: Any) -> AbstractContextManager[Parallel]:
        return _actors(ray, group, request, *given)

    what = "processes of the cluster"
    return Spread(request.parts, start, request.device, max(places.values()), memory, what)


def over_nodes(address: str, count: int, device: str | None = None) -> Spread:
    """Return a ``Spread`` of this process's runs over a cluster: on GPUs if there are any and not ``cpu``."""
    ray = connect(address)
    nodes = list_nodes(ray)
    on_gpus = device != devices.CPU and any(n.gpus for n in nodes)
    numbers = [n.gpus if on_gpus else n.cpus for n in nodes]
    found = sum(numbers)
    if found < count:
        fewer = f"the cluster has {counted(found, 'GPU' if on_gpus else 'CPU')}, not {count}"
        raise FedLensError(f"{fewer}; give --over {max(1, found)}", "over")
    device = "cuda" if on_gpus else devices.CPU
    wanted = Request(0 if on_gpus else 1, gpus=float(on_gpus), parts=count)

    @contextmanager
    def start(run: RunConfig, *given: Any) -> Iterator[Parallel]:
        request = RunRequest(
            run, "part of a run", {}, method_file(run), device, 1, None, os.getcwd(), parts=count
        )
        request = replace(request, encoders=encoders(run))
        group = wanted.reserve(ray)
        try:
            with _actors(ray, group, request, *given) as parallel:  # Ray starts them once it has room
                yield parallel
        finally:
            ray.util.remove_placement_group(group)

    memory = min((n.memory for n in nodes if n.memory), default=None)
    what = f"free {'GPUs' if on_gpus else 'CPUs'} of the cluster"
    return Spread(count, start, device, min(count, max(numbers)), memory, what)


def submit_to(actor: Any) -> Callable[[bytes], Future[bytes]]:
    """Return a function that sends to an actor and returns a future of its answer."""
    return lambda content: actor.answer.remote(content).future()


def told(error: Exception, folder: Path) -> Exception:
    """Return an error as the supervisor raises it, of a class that it knows, with the traceback as a note."""
    fault = explain_file(error, folder) if isinstance(error, OSError) else explain(error, folder)
    # An actor's fault names its own node already.
    where = "" if isinstance(error, Elsewhere) else f"on the node {platform.node()}: "
    sent: Exception
    if isinstance(fault, Transient):
        sent = Transient(f"{where}{fault}")
    elif isinstance(fault, SystemFault):
        sent = Elsewhere(f"{where}{fault}" + ("" if "resume" in str(fault) else f"; {REMEDY}"))
    elif isinstance(error, FedLensError):
        kind = FedLensMethodError if isinstance(error, FedLensMethodError) else FedLensError
        sent = kind(str(error), error.field)
    else:
        sent = NodeError(first_line(error))
    sent.add_note(traceback.format_exc())
    return sent
