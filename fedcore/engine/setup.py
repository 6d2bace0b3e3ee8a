"""From a stored config to a method and an encoded federation, ready for round 0."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedcore.clip import backbone as backbones
from fedcore.clip import features
from fedcore.config import BackboneConfig, RunConfig, backbone_names
from fedcore.config import backbones as backbones_of
from fedcore.data import catalog
from fedcore.data.images import ImageSet
from fedcore.data.partition import Assignment
from fedcore.data.readers.prepare import Prepared
from fedcore.engine.cohorts import cohort_config
from fedcore.engine.events import GLOBAL, Entity, Notice
from fedcore.engine.local import Stopped
from fedcore.engine.loop import CHUNK, Cohort
from fedcore.engine.pace import Pace
from fedcore.engine.plan import assign, load_images, resolve
from fedcore.federation import ClassSets, Federation, Pool, Problem, Rows, TestSet
from fedcore.lazy import torch
from fedcore.methods import registry
from fedcore.methods.base import Method, RunContext
from fedcore.progress import Progress


@dataclass(frozen=True)
class Ready:
    """All that the round loop needs.

    Attributes:
        method, federation: the server's; they belong to the first cohort's backbone.
        cohorts: how the clients train and predict; a single one where all are alike.
        content: identity of the weights, of the data set wherever it lies, and of its pixels as cached here:
            stored with the run, and a checkpoint made with others is refused.
    """

    method: Method
    federation: Federation
    cohorts: tuple[Cohort, ...]
    entities: tuple[Entity, ...]
    content: dict[str, str]


def resolve_environment(run: RunConfig, device: str, earlier: dict | None) -> dict[str, object]:
    """Fix what decides the bits: threads, chunk, precision, TF32; an earlier attempt's choices are kept.

    Returns them with the versions and the machine, to be stored with the run.
    """
    earlier = earlier or {}
    threads = int(earlier.get("threads") or os.environ.get("FEDLENS_THREADS") or torch.get_num_threads())
    torch.set_num_threads(threads)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    if device.startswith("cuda"):
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    return {
        "threads": threads,
        "chunk": int(earlier.get("chunk") or CHUNK),
        "precision": "+".join(dict.fromkeys(b.precision for b in backbones_of(run))),
        "tf32": False,
        "device": device,
        "device_name": torch.cuda.get_device_name()
        if device.startswith("cuda")
        else platform.processor() or "cpu",
        "python": platform.python_version(),
        "platform": platform.platform(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
    }


def differences(earlier: dict | None, now: dict[str, object]) -> list[str]:
    """What an attempt that resumes does not share with the one before, though the bits depend on it."""
    names = ("device_name", "torch", "numpy", "platform", "tf32", "precision")
    return [
        f"resumed with another {name.replace('_', ' ')}: {earlier[name]} before, {now[name]} now"
        for name in names
        if earlier and name in earlier and earlier[name] != now[name]
    ]


def make_ready(
    run: RunConfig, artifacts: Path, device: str, should_stop: Callable[[], bool] = lambda: False
) -> Iterator[Progress | Notice | Ready]:
    """Load, split, partition and encode; progress and notices first, ``Ready`` last.

    Raises:
        FedLensError: when a part of the config cannot be had.
        Stopped: when asked to, while encoding.
    """
    if run.method.file:
        registry.load_as_planned(run.method.file, run.method.sha256)
    reading = Prepared(lambda: load_images(run))
    for step in reading:
        if should_stop():
            raise Stopped
        yield Progress(step.message, step.done, step.total)
    images, left_out = reading.result
    yield from (Notice(line) for line in left_out)
    assignment = assign(run, images)
    yield Progress("loading " + backbone_names(run), 0, 1)
    loaded = load_backbones(backbones_of(run), device)
    first = next(iter(loaded.values()))
    context = RunContext(
        first.facts,
        images.classes,
        len(assignment.clients),
        images.domains,
        images.template,
        tuple(assignment.client_domain.tolist()),
        catalog.Described(run.data.name, run.data.root, images.classes),
        catalog.entry(run.data.name).embedded,
    )
    run = resolve(run, context, "method")
    cls = registry.get(run.method.name)
    config = registry.build_config(run.method.name, run.method.config, "method.config")
    yield from (Notice(line) for line in cls.plan_warnings(config, context))
    folder = artifacts / "encodings"
    federations = {}
    for wanted, backbone in loaded.items():
        reads = cls.reads(config, backbone.facts)
        with closing(encode(backbone, images, reads, folder)) as steps:
            for step in steps:
                if should_stop():
                    raise Stopped
                yield step
        values = features.read(features.cache_path(folder, backbone, images, reads))
        federations[wanted] = build_federation(images, assignment, values, backbone, run.seed, run.data.root)
    federation = next(iter(federations.values()))
    method = cls(config, federation.problem)
    yield from _drawn(method)
    yield Ready(
        method,
        federation,
        build_cohorts(run, federations) or (Cohort(method, federation, range(context.clients)),),
        entities(federation, assignment),
        {
            "weights": "+".join(b.fingerprint for b in loaded.values()),
            "data": content_hash(images),
            "pixels": images.fingerprint,
        },
    )


_TOLD = 12
"""Classes whose drawn texts are a notice: notices are read with every list of runs."""


def _drawn(method: Method) -> Iterator[Notice]:
    """The texts that a run drew; of more than a few classes most in the log alone."""
    texts = [f'{name}: "{text}"' for name, text in method.drawn_texts.items()]
    if texts:
        more = f"; and {len(texts) - _TOLD} more, in the log" if len(texts) > _TOLD else ""
        head = f"{method.title} drew one text per class by the run's seed: {'; '.join(texts[:_TOLD])}{more}"
        yield Notice(head, detail="\n".join(["", *texts[_TOLD:]]) if more else "")


def encode(backbone: backbones.Backbone, images: ImageSet, reads: str, folder: Path) -> Iterator[Progress]:
    """Make the encoding of a data set where it is not cached, saying how fast and how long still.

    Close it when you leave it early: it holds the encoding's lock.
    """
    pace = Pace()
    with closing(features.fill(backbone, images, reads, folder)) as steps:
        for done, total in steps:
            speed = pace.text(done, total)
            yield Progress(f"encoding {images.name}" + (f" ({speed})" if speed else ""), done, total)


def build_cohorts(run: RunConfig, federations: dict[BackboneConfig, Federation]) -> tuple[Cohort, ...]:
    """The run's cohorts, each with the method that its backbone and budget make; empty where it has none."""
    cls, found, start = registry.get(run.method.name), [], 0
    for i, cohort in enumerate(run.cohorts):
        federation = federations[cohort.backbone or run.backbone]
        config = cohort_config(run, cohort, f"cohorts.{i}")
        members = range(start, start := start + cohort.clients)
        found.append(Cohort(cls(config, federation.problem), federation, members, cohort.max_steps))
    return tuple(found)


def content_hash(images: ImageSet) -> str:
    """Identity of a data set that is the same on every machine: its samples' names, labels and domains."""
    digest = hashlib.sha256(repr((images.classes, images.domains, images.keys)).encode())
    digest.update(np.asarray(images.labels, dtype=np.int64).tobytes())
    digest.update(np.asarray(images.domain, dtype=np.int64).tobytes())
    return digest.hexdigest()[:16]


_LOADED: dict[tuple, backbones.Backbone] = {}


def load_backbones(
    wanted: tuple[BackboneConfig, ...], device: str
) -> dict[BackboneConfig, backbones.Backbone]:
    """The backbones of a run, kept in memory for the next run of the same process, and only these."""
    keys = {b: (b.name, b.pretrained, device, b.precision) for b in wanted}
    for key in set(_LOADED) - set(keys.values()):
        del _LOADED[key]  # a ViT-L that this run does not use helps nobody
    for key in keys.values():
        if key not in _LOADED:
            _LOADED[key] = backbones.load(*key)
    return {b: _LOADED[key] for b, key in keys.items()}


def load_backbone(name: str, pretrained: str | None, device: str, precision: str) -> backbones.Backbone:
    """One backbone, as ``load_backbones`` keeps it."""
    wanted = BackboneConfig(name=name, pretrained=pretrained, precision=precision)
    return load_backbones((wanted,), device)[wanted]


def build_federation(
    images: ImageSet,
    assignment: Assignment,
    values: torch.Tensor,
    backbone: backbones.Backbone,
    seed: int,
    root: str | None = None,
) -> Federation:
    """Encoded samples and an assignment as one federation. Shape: values (samples, ...)."""
    device = backbone.device
    if device.type != "cpu" and values.numel() * values.element_size() < 4 * 2**30:
        values = values.to(device)
    pool = Pool(values, torch.as_tensor(images.labels, dtype=torch.int64).to(device), device, backbone.dtype)
    clients = tuple(assignment.clients)
    domain_of = [int(d) for d in assignment.client_domain]
    sets = [
        TestSet(n, "client", images.domains[d] if d >= 0 else None)
        for n, d in zip(clients, domain_of, strict=True)
    ]
    sets += [TestSet(d, "domain", d) for d in assignment.domains]
    train = Rows.of(assignment.train)
    problem = Problem(
        backbone=backbone,
        classes=images.classes,
        template=images.template,
        clients=clients,
        domains=images.domains,
        client_domain=torch.tensor(domain_of),
        samples=train.counts,
        class_counts=torch.as_tensor(np.asarray(assignment.counts), dtype=torch.int64),
        seed=seed,
        descriptions=catalog.Described(images.name, root, images.classes),
    )
    test = Rows.of([*assignment.test, *assignment.domain_test])
    return Federation(
        pool,
        train,
        Rows.of(assignment.validation),
        test,
        tuple(sets),
        problem,
        class_sets(images, assignment),
    )


def class_sets(images: ImageSet, assignment: Assignment) -> ClassSets | None:
    """All test samples of each client's classes; a held-out domain's stay out.

    None where clients are of different domains, one each: there a client is measured on its domain, and
    samples of its classes in other domains are what it never claimed to know. None too where they are the
    clients' own test sets (disjoint classes), so that no figure is stored twice.
    """
    of_domain = assignment.client_domain
    if (of_domain >= 0).all() and len(set(of_domain.tolist())) > 1:
        return None
    pairs = zip(assignment.domains, assignment.domain_test, strict=True)
    rows = np.sort(np.concatenate([rows for name, rows in pairs if name != assignment.held_out]))
    held = np.asarray(assignment.counts) > 0
    labels = np.asarray(images.labels)[rows]
    if all(
        np.array_equal(rows[own[labels]], np.sort(t)) for own, t in zip(held, assignment.test, strict=True)
    ):
        return None
    return ClassSets(torch.as_tensor(rows), torch.as_tensor(held))


def entities(federation: Federation, assignment: Assignment) -> tuple[Entity, ...]:
    """Rows and columns of the accuracy matrix: global 0, clients 1..C, then domains, then class sets."""
    found = [Entity(GLOBAL, "global", "global")]
    for code, test_set in enumerate(federation.test_sets, start=1):
        if test_set.kind == "client":
            counts = tuple(int(n) for n in assignment.counts[code - 1])
            found.append(
                Entity(
                    code,
                    "client",
                    test_set.name,
                    domain=test_set.domain,
                    samples=sum(counts),
                    class_counts=counts,
                )
            )
        else:
            samples = int(federation.test.counts[code - 1])
            found.append(Entity(code, "domain", test_set.name, domain=test_set.domain, samples=samples))
    return (*found, *_class_entities(federation))


def _class_entities(federation: Federation) -> Iterator[Entity]:
    sets = federation.class_sets
    if sets is None:
        return
    present = torch.bincount(federation.pool.y(sets.rows).cpu(), minlength=sets.held.shape[1])
    for code, (client, held) in enumerate(
        zip(federation.problem.clients, sets.held, strict=True), start=len(federation.test_sets) + 1
    ):
        yield Entity(code, "classes", f"classes of {client}", samples=int((present * held).sum()))
