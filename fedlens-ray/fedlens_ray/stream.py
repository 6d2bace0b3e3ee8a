"""The engine on a node, called like ``fedcore.engine.train.train``, with Ray between caller and engine."""

import os
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedcore.base.devices import CPU
from fedcore.base.errors import Elsewhere, SystemFault
from fedcore.base.events import Event, Finished, Notice, RoundFinished, Started
from fedcore.base.files import make_folder, publish
from fedcore.config import RunConfig
from fedcore.engine import checkpoint
from fedcore.engine.clients.local import Stopped
from fedcore.engine.environment import other_code
from fedlens_ray import on_node
from fedlens_ray.connection import Node
from fedlens_ray.node import Files, receive, run_folder, send
from fedlens_ray.on_node import ACTOR_SHARE, REMEDY, RunRequest, Sent
from fedlens_ray.reservations import REMOVED, Reservation

LOOK_SECONDS = 0.2
"""Seconds between two checks, while no event arrives, whether the run has to stop."""
CANCEL_SECONDS = 15.0
"""Seconds that a cancelled task has to end between two steps; then its process is killed."""
AHEAD = 4
"""Rounds that a node may train ahead of the recorded ones; at most these are lost with the node."""


class NodeFault(SystemFault):
    """A run's process on a node failed after it had begun; recorded rounds stay."""


class Withdrawn(Elsewhere):
    """Another job of the cluster has removed a run's reservation, for which its node is not to blame."""


class RemoteEngine:
    """Trains one run on a node; call it like ``fedcore.engine.train.train``.

    Args:
        key: name of the run in Ray's list of tasks and in the node's temporary files.
        shared: the folder through which checkpoints travel; None: Ray's object store.
        failed: called with a fault of the node before it is raised; not if the run is spread over several.
    """

    task = staticmethod(on_node.train)
    """The function that Ray executes on the node."""

    def __init__(
        self,
        ray: Any,
        reservation: Reservation,
        place: Node,
        key: str,
        shared: Path | None = None,
        failed: Callable[[Elsewhere], None] = lambda fault: None,
    ) -> None:
        self._ray, self._reservation, self._key, self._shared = ray, reservation, key, shared
        self._failed = failed
        self.device = "cuda" if reservation.request.gpus else CPU
        self._place, self._began = place, False
        self.peak_memory = 0
        """Of the run's process on the node so far, in bytes."""

    def __call__(
        self,
        run: RunConfig,
        *,
        artifacts: Path,
        folder: Path,
        device: str = CPU,
        resume_from: str | None = None,
        environment: Mapping[str, Any] | None = None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> Iterator[Event]:
        """Train on the node; a round's checkpoint is in ``folder`` and verified before its event is yielded.

        The reservation has the device. A node that fails raises ``Elsewhere`` if another one should continue
        the run, else ``NodeFault``; after ``Stopped``, the task has ended.
        """
        wanted = self._reservation.request
        request = RunRequest(
            config=run,
            key=self._key,
            environment=dict(environment or {}),
            method_file=on_node.method_file(run),
            device=self.device,
            threads=max(1, wanted.cpus),
            artifacts=str(artifacts) if self._place.is_local else None,
            working_folder=os.getcwd(),
            parts=wanted.parts,
            encoders=on_node.encoders(run),
        )
        try:
            with run_folder(self._key, self._shared) if self._shared else nullcontext() as shared:
                request = replace(request, shared=None if shared is None else str(shared))
                content = None
                if resume_from is not None:
                    files = checkpoint.files_of(Path(resume_from))
                    content = [(file.name, send(file, request.shared)) for file in files]
                with closing(self._stream(request, content, should_stop)) as stream:
                    for sent in stream:
                        self.peak_memory = max(self.peak_memory, sent.peak_memory)
                        event, differs = _arrived(sent, folder), None
                        if isinstance(event, Started):
                            self._began = True
                            there = str(event.environment["code"])
                            differs = other_code(f"the node {self._place.name}", there)
                        yield event
                        if differs is not None:
                            yield Notice(f"{differs}, so its numbers can differ", repeats_exactly=False)
        except Elsewhere as fault:
            if wanted.parts == 1 and not isinstance(fault, Withdrawn):
                self._failed(fault)
            raise

    def _stream(
        self, request: RunRequest, content: Files | None, should_stop: Callable[[], bool]
    ) -> Generator[Sent, None, None]:
        """Yield what the node sends until it has sent everything."""
        items = self._submit(request, content)
        ended = False
        try:
            while True:
                if not self._ray.wait([items], timeout=LOOK_SECONDS, fetch_local=False)[0]:
                    if should_stop():
                        raise Stopped
                    continue
                item = self._ray.get(next(items))
                if isinstance(item, Exception):
                    ended = True
                    raise item
                yield item
                if isinstance(item.event, Finished):
                    ended = True
                elif should_stop():
                    raise Stopped
        except StopIteration:
            ended = True
        except self._ray.exceptions.RayError as error:
            # The node, its process or the connection is gone, and Ray does not retry. If the run itself may
            # be the reason, it ends as interrupted. Otherwise it waits again, and continues on any node.
            ended = True
            name = self._place.name
            answer = self._ray.util.placement_group_table(self._reservation.group)
            if answer.get("state", REMOVED) == REMOVED:  # with which Ray kills the processes in it
                raise Withdrawn(f"the reservation of the run on the node {name} is gone; {REMEDY}") from error
            is_gone, what = _lost(error, name)
            raise (Elsewhere if is_gone or not self._began else NodeFault)(what) from error
        finally:
            if not ended:
                self._cancel(items)

    def _submit(self, request: RunRequest, content: Files | None) -> Any:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy as Strategy

        resources = self._reservation.request.resources(1 if request.parts == 1 else ACTOR_SHARE)
        # Ray reuses processes. One that has run a user's file is not used for anything else.
        own = request.method_file is not None or request.encoders
        made = self._ray.remote(max_calls=1) if own else self._ray.remote
        task = made(self.task).options(
            name=f"fedlens {request.key}",
            num_returns="streaming",
            max_retries=0,  # Ray would train all rounds again, from the first one
            num_cpus=resources.get("CPU", 0),
            num_gpus=resources.get("GPU", 0),
            memory=resources.get("memory"),
            scheduling_strategy=Strategy(self._reservation.group, placement_group_bundle_index=0),
            _generator_backpressure_num_objects=AHEAD,
        )
        return task.remote(request, content)

    def _cancel(self, items: Any) -> None:
        """Cancel the task between two Python statements; if it does not react, kill its process."""
        # Only when the stream has been read to its end has the task freed its devices for the next run, and
        # `next` would wait forever for a stopped process. If no kill reaches it, its reservation ends it.
        for force in (False, True):
            end = time.monotonic() + CANCEL_SECONDS
            with suppress(self._ray.exceptions.RayError, StopIteration):
                self._ray.cancel(items, force=force)
                while time.monotonic() < end:
                    items._next_sync(LOOK_SECONDS)
                continue
            return


def _arrived(sent: Sent, folder: Path) -> Event:
    """Write the checkpoint of a round to the path that a local process would use, and verify its digest."""
    event = sent.event
    if not isinstance(event, RoundFinished) or sent.checkpoint is None:
        return event
    path = checkpoint.path_of(folder, event.round)
    part = folder / f".{path.stem}.part"
    make_folder(folder)
    try:
        receive(sent.checkpoint, part)
        publish(part, path)
    except OSError:
        part.unlink(missing_ok=True)  # on a full disk, its space is needed
        raise
    if findings := checkpoint.verify(path):
        path.unlink()
        raise NodeFault(f"a checkpoint arrived damaged: {findings[0]}; resume continues after the last round")
    return replace(event, checkpoint=str(path))


def _lost(error: Exception, name: str) -> tuple[bool, str]:
    """Return whether one of Ray's errors means that the node is gone, and the error in one sentence."""
    kinds = [cls.__name__ for cls in type(error).__mro__]
    sentences = {
        "WorkerCrashedError": f"the run's process on the node {name} was killed (the system does so when "
        "memory runs out)",
        "OutOfMemoryError": f"the memory of the node {name} is used up; end other programs there, or let "
        "fewer runs share it",
        "NodeDiedError": f"the node {name} is gone",
        "TaskUnschedulableError": f"the node {name} is gone",
        "ObjectLostError": f"the connection to the node {name} was lost, and with it what the node had sent",
    }
    kind = next((kind for kind in kinds if kind in sentences), None)
    what = sentences[kind] if kind else f"the node {name} failed in a way that Ray calls {kinds[0]}"
    return kind in ("NodeDiedError", "TaskUnschedulableError", "ObjectLostError"), f"{what}; {REMEDY}"
