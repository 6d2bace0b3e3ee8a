"""Train one run from its config to its last round: environment, setup of method and federation, rounds."""

import json
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedcore.base.errors import FedLensError
from fedcore.base.events import NO_VALUE, Entity, Event, Notice, RoundFinished, Started
from fedcore.base.lazy import Tensor, torch
from fedcore.base.progress import Progress, Work, prepare_then, relay
from fedcore.clip import encodings
from fedcore.clip.backbone import Backbone, given, load_backbones
from fedcore.config import BackboneConfig, RunConfig, backbone_names, backbones
from fedcore.config.identity import stable_config
from fedcore.data import integrity
from fedcore.data.images import ImageSet
from fedcore.engine.clients.contract import initial_state, planned
from fedcore.engine.clients.executor import Cohort, Executor, entries_by_class
from fedcore.engine.clients.hooks import faults_named, make, quoted
from fedcore.engine.clients.local import CHUNK, Stopped, clients_at_once
from fedcore.engine.environment import (
    arithmetic_notices,
    check_content,
    environment_differences,
    resolve_environment,
    unlike_processes,
)
from fedcore.engine.federations import (
    adapted_entities,
    build_federation,
    cohorts_of_one,
    entities,
    placed,
    with_transfer,
)
from fedcore.engine.prepare import (
    RunInputs,
    cohort_config,
    load_images,
    prepare_inputs,
    prepare_transfer,
    resolve,
)
from fedcore.engine.round import all_rounds
from fedcore.engine.server import Server
from fedcore.methods import registry
from fedcore.methods.base import Method, overrides
from fedcore.methods.class_texts import Described
from fedcore.methods.federation import Federation
from fedcore.methods.hyperparameters import MethodConfig


@dataclass(frozen=True)
class RunSetup:
    """What a run is trained with.

    Attributes:
        method, federation: the server's; they belong to the first cohort's backbone. Where clients predict
            among their own classes the method is the first client's, and the federation that of all.
        cohorts: groups of clients with one backbone and budget; a single one if all are alike.
        images: the data set, with pixels.
        encodings: the files of encoded images, with their identity when they were checked.
        content: identity of the weights, of the data set (without its path) and of its pixels as cached here.
            It is stored with the run, and a checkpoint made with other content is refused.
    """

    method: Method
    federation: Federation
    cohorts: tuple[Cohort, ...]
    entities: tuple[Entity, ...]
    images: ImageSet
    backbones: tuple[Backbone, ...]
    encodings: dict[Path, integrity.FileIdentity]
    content: dict[str, str]

    @property
    def weights_digest(self) -> str:
        return "+".join(b.files.digest for b in self.backbones)


@dataclass(frozen=True)
class Spread:
    """The processes that train the clients of a run.

    Attributes:
        start: starts them, from the run's config, the folder of the encodings, the recorded environment and
            the device for results; they end with the block.
        device: torch's name of the devices.
        sharers: largest number of processes that share the memory of one machine.
        memory: bytes of the machine with the least memory; None: this one's.
        waits_for: completes the text "waiting for 2 ..." before the first round.
    """

    width: int
    start: "Callable[[RunConfig, Path, Mapping[str, Any], torch.device], AbstractContextManager[Executor]]"
    device: str
    sharers: int = 1
    memory: int | None = None
    waits_for: str = "processes of this machine"


def train(
    run: RunConfig,
    *,
    artifacts: Path,
    folder: Path,
    device: str = "cpu",
    resume_from: str | None = None,
    environment: Mapping[str, Any] | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    spread: Spread | None = None,
    whole_checkpoints: bool = False,
) -> Iterator[Event]:
    """Train one run from its beginning, or from a checkpoint.

    Args:
        artifacts: folder of the encodings, shared by all runs.
        folder: folder of this run's checkpoints.
        environment: choices of an earlier attempt (threads, chunk...), reused so that it repeats exactly.
        spread: processes that train the clients, on several devices; default: this process alone. A new run
            chooses a chunk size that occupies all of them; one process computes the same bits with it.

    Raises:
        FedLensError: if the config cannot run, or a resource is missing or changes during the run.
        FedLensMethodError: for a fault of the method, with its file and line.
        Stopped: if ``should_stop`` says so.
    """

    def continues(step: Progress | Notice) -> bool:
        if should_stop():
            raise Stopped
        return True

    with faults_named(run.method.name):
        resolved = resolve_environment(run, device, environment)
        before = environment if resume_from is not None else None
        setup = yield from relay(set_up(run, artifacts, device, before), continues)
        server = make_server(run, setup, int(resolved["chunk"]), folder, should_stop, whole_checkpoints)
        server.worker.fit.halved = resolved.get("passes_halved", 0)
        if resume_from is not None:
            server.resume(resume_from)
        if not (environment or {}).get("chunk"):
            yield from _choose_chunk(server, spread)
            resolved["chunk"] = server.chunk
        recorded = {**resolved, **setup.content, "weights_digest": setup.weights_digest}
        recorded["common_model"] = setup.method.clients_use_global and not server.worker.mixed
        if spread is not None and spread.device != device:
            recorded["clients_device"] = spread.device
        started = Started(entities=setup.entities, rounds_total=run.rounds, environment=recorded)
        processes: AbstractContextManager[Executor | None] = nullcontext()
        if spread is not None:
            yield Progress(f"waiting for {spread.width} {spread.waits_for}", 0, 1)
            processes = spread.start(run, artifacts, recorded, setup.federation.problem.device)
        with processes as several:
            unlike: list[str] = []
            if several is not None:
                server.executor = several
                found = several.compute([None] * several.width, should_stop)  # waits until all are ready
                processors, unlike = unlike_processes(recorded, list(found))
                if unlike:
                    recorded["processors"] = processors
            yield started
            yield from environment_differences(before, resolved, server.run_state.done)
            yield from arithmetic_notices(run, resolved, device if spread is None else spread.device)
            if spread is not None:
                yield from _spread_notices(server, spread, device, unlike)
            yield from _watched_rounds(run, setup, server, resolved["threads"])


def _spread_notices(server: Server, spread: Spread, device: str, unlike: Sequence[str]) -> Iterator[Notice]:
    """Yield notices about the processes, idle devices, and devices that may change the last bits."""
    yield Notice(f"{spread.width} processes train its clients, {server.chunk} in each at once")
    idle = spread.width - server.chunks_of(1)
    if idle > 0:
        yield Notice(
            f"{idle} of {spread.width} devices {'stay' if idle > 1 else 'stays'} idle while clients are "
            f"trained: {len(server.participants(1))} train in a round, {server.chunk} at once; "
            f"{spread.width - idle} would train them as fast"
        )
    if spread.device != device:
        yield Notice(
            f"its clients are trained and evaluated on {spread.device}, and averaged on {device}",
            repeats_exactly=False,
        )
    if unlike:
        yield Notice(
            "its clients are trained on unlike machines, whose numbers can differ: " + "; ".join(unlike),
            repeats_exactly=False,
        )


def _choose_chunk(server: Server, spread: Spread | None) -> Iterator[Notice]:
    """Choose the chunk size: as many clients as fit into memory, but few enough to occupy all processes."""
    processes, sharers, memory = 1, 1, None
    if spread is not None:
        processes, sharers, memory = spread.width, spread.sharers, spread.memory
    largest = int(server.federation.train.counts.argmax())  # see ``bytes_of_client``
    fitting = min(
        clients_at_once(c.method, c.federation, server.state, server.chunk, sharers, memory)
        for c in server.cohorts
        if c.federation.part_of is None or largest in c.clients  # a client's labels exist in its own only
    )
    participants = len(server.participants(1))
    if fitting < min(server.chunk, participants):
        yield Notice(f"clients trained at once: {fitting}, as many as fit into memory")
    server.chunk = min(fitting, -(-participants // processes)) if processes > 1 else fitting


def _watched_rounds(run: RunConfig, setup: RunSetup, server: Server, threads: int) -> Iterator[Event]:
    """Run the rounds, and check after each whether its encodings or weights have changed on the disk."""
    warned = False
    for event in all_rounds(server):
        if not isinstance(event, RoundFinished):
            yield event
            continue
        for path, seen in setup.encodings.items():
            if what := integrity.changed_since(path, seen):
                raise FedLensError(
                    f"the encoding {path.stem} changed while the run was reading it: {what}; the current "
                    "round is discarded; resume the run, which checks the encoding or makes it again"
                )
        yield event
        torch.set_num_threads(threads)  # another run of this process may have trained in the meantime
        if not warned and any(b.files.changed() for b in setup.backbones):
            warned = True
            yield Notice(
                f"the weights of {backbone_names(run)} changed on the disk while the run was training; it "
                "continues with those that it had loaded"
            )


def make_server(
    run: RunConfig,
    setup: RunSetup,
    chunk: int = CHUNK,
    folder: Path | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    whole_checkpoints: bool = False,
) -> Server:
    """Make the server of a run before its first round; ``Server.resume`` advances it to a checkpoint."""
    return Server(
        setup.method,
        setup.federation,
        run.rounds,
        run.participation,
        run.evaluate_every,
        chunk=chunk,
        folder=folder,
        run_key=json.dumps([stable_config(run), setup.content], sort_keys=True),
        should_stop=should_stop,
        cohorts=setup.cohorts,
        whole_checkpoints=whole_checkpoints,
    )


@dataclass(frozen=True)
class FlopCount:
    """The operations of round 1 of a run: local training, aggregation, and the values that it records.

    Attributes:
        by_operation: the part of each of torch's operations, such as ``bmm``.
        clients: participants of the round.
        steps: local steps of all participants.
    """

    total: int
    by_operation: dict[str, int]
    clients: int
    steps: int


def count_flops(run: RunConfig, artifacts: Path, device: str) -> Work[FlopCount]:
    """Train the first round of a run once more, and count its operations as they are executed.

    Counting costs a run nothing and changes none of its bits: a counter inside a recorded run would stand
    between torch and every operation of a step. torch counts matrix products, convolutions and attention, 2
    operations for each multiplication with addition; sums, activations, norms, factorisations and the
    optimiser are not counted. Rows that pad unequal batches are counted too.

    Args:
        artifacts: folder of the encodings; a missing one is made.
    """
    from torch.utils.flop_counter import FlopCounterMode

    if run.rounds == 0:
        return FlopCount(0, {}, 0, 0)
    # Round 1 must not be evaluated: it is neither a multiple of this nor the last one.
    run = run.model_copy(update={"evaluate_every": run.rounds + 2, "rounds": run.rounds + 1})
    resolved = resolve_environment(run, device, None)
    setup = yield from set_up_again(run, artifacts, device)
    events = all_rounds(make_server(run, setup, int(resolved["chunk"])))
    for event in events:
        if isinstance(event, RoundFinished):  # of round 0, the evaluation before training
            break
    yield Progress("counting the operations of round 1", 0, 1)
    with FlopCounterMode(display=False) as counter:
        finished = next(event for event in events if isinstance(event, RoundFinished))
    counts = counter.get_flop_counts().get("Global", {})  # a method that does not train has none
    by_operation = {str(name).rpartition(".")[2]: n for name, n in counts.items()}
    taken = sum(client.steps for client in finished.clients)
    return FlopCount(counter.get_total_flops(), by_operation, len(finished.clients), taken)


def set_up(
    run: RunConfig, artifacts: Path, device: str, before: Mapping[str, Any] | None = None
) -> Generator[Progress | Notice, None, RunSetup]:
    """Load, split, partition and encode the data of a run, and make its method.

    Args:
        before: environment of the attempt that is resumed; the content must be the same.

    Raises:
        FedLensError: if the data, weights or method are not available, or differ from those before.
    """
    if run.method.file:
        registry.load_agreed(run.method.file, run.method.sha256)
    images, left_out = yield from prepare_then(lambda: load_images(run))
    yield from (Notice(line) for line in left_out)
    content = {"data": images.content, "pixels": images.fingerprint}
    check_content(before, content)
    inputs = prepare_inputs(run, images)
    others = yield from prepare_then(lambda: prepare_transfer(run, inputs.context))
    if others:
        content["transfer"] = " ".join(o.images.identity for o in others)
    check_content(before, content)
    run = resolve(run, inputs.context, "method")
    cls = registry.get(run.method.name)
    config = registry.build_config(run.method.name, run.method.config, "method.config")
    yield from (Notice(line) for line in planned(cls, "plan_warnings", config, inputs.context))
    yield Progress("loading " + backbone_names(run), 0, 1)
    if images.given is not None:
        encoder = given(inputs.context.spec, images.given.class_vectors, device)
        loaded = dict.fromkeys(backbones(run), encoder)
    else:
        wanted = [(b.name, b.pretrained, device, b.precision) for b in backbones(run)]
        loaded = dict(zip(backbones(run), load_backbones(wanted), strict=True))
    content["weights"] = "+".join(b.fingerprint for b in loaded.values())
    digest = "+".join(b.files.digest for b in loaded.values())
    check_content(before, {"weights": content["weights"], "weights_digest": digest})
    files: dict[Path, integrity.FileIdentity] = {}
    federations = {}
    for name, backbone in loaded.items():
        reads, folder = planned(cls, "reads", config, backbone.spec), artifacts / "encodings"
        values = yield from _encode(backbone, images, reads, folder, files)
        made = build_federation(images, inputs, placed(values, backbone), backbone, run.seed, run.data.root)
        for config_of_other, other in zip(run.transfer, others, strict=True):
            values = yield from _encode(backbone, other.images, reads, folder, files)
            made = with_transfer(made, other, values, config_of_other.root)
        federations[name] = replace(made, test_sample=run.test_sample)
    listed = entities(federations[backbones(run)[0]])
    method, federation, cohorts = yield from _make_cohorts(run, config, inputs, images, federations)
    # The columns of tests without values stay; the models of unseen clients do not.
    listed += adapted_entities(federation)
    return RunSetup(method, federation, cohorts, listed, images, tuple(loaded.values()), files, content)


def _make_cohorts(
    run: RunConfig,
    config: MethodConfig,
    inputs: RunInputs,
    images: ImageSet,
    federations: dict[BackboneConfig, Federation],
) -> Generator[Notice, None, tuple[Method, Federation, tuple[Cohort, ...]]]:
    """Return the server's method and federation, and all cohorts.

    Tests on which the method has no value are left out; notices say why.
    """
    cls, first = registry.get(run.method.name), backbones(run)[0]
    if inputs.cross_class is not None:
        of_clients = cohorts_of_one(cls, config, federations[first], images, inputs.cross_class)
        return of_clients[0].method, federations[first], of_clients
    method = make(cls, config, federations[first].problem)
    yield from _drawn_texts_notice(method)
    if federations[first].label_spaces and (reason := reason_without_value(method)):
        yield Notice(f"{NO_VALUE}on new classes: {reason}")
        federations = {wanted: replace(f, label_spaces=()) for wanted, f in federations.items()}
    new = federations[first].newcomers
    if new is not None and (reason := reason_without_adaptation(method, new)):
        yield Notice(f"{NO_VALUE}of unseen clients after adaptation: {reason}")
        federations = {wanted: replace(f, newcomers=None) for wanted, f in federations.items()}
    cohorts, start = [], 0
    for i, cohort in enumerate(run.cohorts):
        federation = federations[cohort.backbone or run.backbone]
        own = make(cls, cohort_config(run, cohort, f"cohorts.{i}"), federation.problem)
        members = range(start, start := start + cohort.clients)
        cohorts.append(Cohort(own, federation, members, cohort.max_steps))
    everyone = range(len(inputs.assignment.clients))
    return method, federations[first], tuple(cohorts) or (Cohort(method, federations[first], everyone),)


def set_up_again(
    run: RunConfig, artifacts: Path, device: str, before: Mapping[str, Any] | None = None
) -> Work[RunSetup]:
    """Set up a run as ``set_up`` does, without its notices, for callers that do not train it."""
    steps = set_up(run, artifacts, device, before)
    return (yield from relay(steps, lambda step: isinstance(step, Progress)))  # type: ignore[misc]


def _encode(
    backbone: Backbone, images: ImageSet, reads: str, folder: Path, files: dict[Path, integrity.FileIdentity]
) -> Generator[Progress | Notice, None, Tensor]:
    """Encode a data set unless its encoding is cached, and add its file to those of the run.

    Shape: -> (samples, ...).
    """
    notes: list[str] = []  # about a former encoding that was damaged
    path = yield from encodings.encode(backbone, images, reads, folder, note=notes.append)
    yield from map(Notice, notes)
    files[path] = integrity.identity(path)
    return encodings.read(path)


def reason_without_value(method: Method) -> str:
    """Return why a trained model has no value on new classes; empty if it has one.

    A method of the user's own may have forgotten ``class_axes``. Where as many classes are new as were
    trained on, its scores would then have the right shape and mean nothing.
    """
    reason: str = planned(type(method), "bound_to_classes", method.config)
    if reason or overrides(type(method), "retarget"):
        return reason
    if names := sorted(set(entries_by_class(method)) - set(method.class_axes)):
        return f"its parameter {quoted(names)} depends on the number of classes; name it in class_axes"
    return ""


def reason_without_adaptation(method: Method, newcomers: Federation) -> str:
    """Return why a client that never took part cannot adapt the trained model; empty if it can."""
    reason: str = planned(type(method), "bound_to_clients", method.config) if method.trains else ""
    if reason or not method.trains:
        return reason
    ours, theirs = initial_state(method), initial_state(make(type(method), method.config, newcomers.problem))
    if ours.personal:
        return "the server makes parameters for each client that takes part"
    other = [n for n, v in ours.shared.items() if v.shape != theirs.shared[n].shape]
    return f"its shared parameter '{other[0]}' depends on the number of clients" if other else ""


_TEXTS_IN_NOTICE = 12
"""Drawn texts in a notice; every list of runs reads the notices, so further texts go to the log only."""


def _drawn_texts_notice(method: Method) -> Iterator[Notice]:
    """Yield a notice of the texts that a run has drawn by its seed."""
    if isinstance(method, Described) and method.config.class_text == "description":
        by_class = zip(method.problem.classes, method.texts, strict=True)
        texts = [f'{name}: "{text}"' for name, text in by_class]
        shown, rest = texts[:_TEXTS_IN_NOTICE], texts[_TEXTS_IN_NOTICE:]
        more = f"; and {len(rest)} more, in the log" if rest else ""
        yield Notice(
            f"{method.about.title} drew one text per class by the run's seed: {'; '.join(shown)}{more}",
            detail="\n".join(["", *rest]) if rest else "",
        )
