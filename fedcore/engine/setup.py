"""From a stored config to a method and an encoded federation, ready for round 0."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedcore.clip import backbone as backbones
from fedcore.clip import features
from fedcore.config import RunConfig
from fedcore.data import catalog
from fedcore.data.images import ImageSet
from fedcore.data.partition import Assignment
from fedcore.engine.events import GLOBAL, Entity, Notice, Progress
from fedcore.engine.local import Stopped
from fedcore.engine.plan import assign, load_images, resolve
from fedcore.federation import Federation, Pool, Problem, Rows, TestSet
from fedcore.lazy import torch
from fedcore.methods import registry
from fedcore.methods.base import Method, Setting


@dataclass(frozen=True)
class Ready:
    """All that the round loop needs.

    Attributes:
        content: identity of the weights, of the data set wherever it lies, and of its pixels as cached here:
            stored with the run, and a checkpoint made with others is refused.
    """

    method: Method
    federation: Federation
    entities: tuple[Entity, ...]
    content: dict[str, str]


def resolve_environment(run: RunConfig, device: str, earlier: dict | None) -> dict[str, object]:
    """Fix what decides the bits: threads, chunk, precision, TF32; an earlier attempt's choices are kept.

    Returns them with the versions and the machine, to be stored with the run.
    """
    from fedcore.engine.rounds import CHUNK

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
        "precision": run.backbone.precision,
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
    images, left_out = load_images(run)
    yield from (Notice(line) for line in left_out)
    assignment = assign(run, images)
    yield Progress("loading " + run.backbone.name, 0, 1)
    backbone = load_backbone(run.backbone.name, run.backbone.pretrained, device, run.backbone.precision)
    setting = Setting(
        backbone.facts,
        images.classes,
        len(assignment.clients),
        images.domains,
        images.template,
        tuple(assignment.client_domain.tolist()),
    )
    run = resolve(run, setting, "method")
    cls = registry.get(run.method.name)
    config = registry.build_config(run.method.name, run.method.config, "method.config")
    reads = cls.reads(config, backbone.facts)
    folder = artifacts / "encodings"
    for done, total in features.fill(backbone, images, reads, folder):
        if should_stop():
            raise Stopped
        yield Progress(f"encoding {images.name}", done, total)
    values = features.read(features.cache_path(folder, backbone, images, reads))
    federation = build_federation(images, assignment, values, backbone, run.seed, run.data.root)
    content = {"weights": backbone.fingerprint, "data": content_hash(images), "pixels": images.fingerprint}
    yield Ready(cls(config, federation.problem), federation, entities(federation, assignment), content)


def content_hash(images: ImageSet) -> str:
    """Identity of a data set that is the same on every machine: its samples' names, labels and domains."""
    digest = hashlib.sha256(repr((images.classes, images.domains, images.keys)).encode())
    digest.update(np.asarray(images.labels, dtype=np.int64).tobytes())
    digest.update(np.asarray(images.domain, dtype=np.int64).tobytes())
    return digest.hexdigest()[:16]


_LOADED: dict[tuple, backbones.Backbone] = {}


def load_backbone(name: str, pretrained: str | None, device: str, precision: str) -> backbones.Backbone:
    """A backbone, kept in memory for the next run of the same process."""
    key = (name, pretrained, device, precision)
    if key not in _LOADED:
        _LOADED.clear()  # one at a time: a second ViT-L beside the first helps nobody
        _LOADED[key] = backbones.load(*key)
    return _LOADED[key]


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
        descriptions=catalog.descriptions(images.name, root),
    )
    test = Rows.of([*assignment.test, *assignment.domain_test])
    return Federation(pool, train, Rows.of(assignment.validation), test, tuple(sets), problem)


def entities(federation: Federation, assignment: Assignment) -> tuple[Entity, ...]:
    """Rows and columns of the accuracy matrix: global 0, clients 1..C, then domains."""
    found = [Entity(GLOBAL, "global", "global")]
    for code, test_set in enumerate(federation.test_sets, start=1):
        if test_set.kind == "client":
            counts = tuple(int(n) for n in assignment.counts[code - 1])
            found.append(Entity(code, "client", test_set.name, test_set.domain, sum(counts), counts))
        else:
            samples = int(federation.test.counts[code - 1])
            found.append(Entity(code, "domain", test_set.name, test_set.domain, samples))
    return tuple(found)
