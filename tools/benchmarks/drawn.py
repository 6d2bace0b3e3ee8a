"""A federation of drawn features in the sizes of a real one: its cost is real, what it learns is not."""

from __future__ import annotations

import resource
import time
from functools import cache

import numpy as np
import open_clip
import torch

from fedcore.base.events import RoundFinished
from fedcore.clip import weights
from fedcore.clip.backbone import Backbone
from fedcore.clip.encodings import row_shape
from fedcore.clip.specs import backbone_spec
from fedcore.clip.weights import Uninitialised
from fedcore.engine.round import all_rounds
from fedcore.engine.server import Server
from fedcore.methods.base import Method
from fedcore.methods.federation import Federation, Pool, Problem, Rows, TestSet
from fedcore.methods.registry import load_all

DOMAINS = 4
DISTINCT = 256
"""Distinct images of an encoding other than embeddings; clients hold them in turn, as all would not fit."""


@cache
def backbone(name: str = "ViT-B-32") -> Backbone:
    """Return a backbone with small random weights: a real one's cost, and nothing to download."""
    weights.register_embedded()
    with Uninitialised():
        model = open_clip.create_model(name, load_weights=False, pretrained_text=False).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.02)
        model.logit_scale.fill_(4.6)
    tokenizer = open_clip.get_tokenizer(name)
    cpu = torch.device("cpu")
    model.requires_grad_(False)
    return Backbone(backbone_spec(name), model, tokenizer, None, cpu, f"{name}:drawn", "fp32")


def federation(
    clients: int,
    classes: int,
    train: int = 32,
    test: int = 8,
    seed: int = 1,
    reads: str = "embedding",
    clip: str = "ViT-B-32",
    distinct: int = DISTINCT,
) -> Federation:
    """Draw a federation of encoded images.

    Args:
        train, test: samples of each client; it has half as many validation samples as test samples.
        reads: the encoding, see ``reads_of``.
        distinct: see ``DISTINCT``.
    """
    generator = torch.Generator().manual_seed(seed)
    per_client = train + test + test // 2
    images = clients * per_client if reads == "embedding" else min(clients * per_client, distinct)
    values = torch.randn(images, *row_shape(backbone(clip).spec, reads), generator=generator)
    labels = torch.randint(classes, (images,), generator=generator)
    starts = np.arange(clients) * per_client
    rows = [np.arange(start, start + per_client) % images for start in starts]
    tests = [r[train : train + test] for r in rows]
    domains = [np.concatenate(tests[d::DOMAINS]) for d in range(DOMAINS)]
    names = [f"client-{i:05}" for i in range(clients)]
    domain_names = tuple(f"domain-{d}" for d in range(DOMAINS))
    sets = [TestSet(n, "client", domain_names[i % DOMAINS]) for i, n in enumerate(names)]
    counts = torch.stack([torch.bincount(labels[r[:train]], minlength=classes) for r in rows])
    problem = Problem(
        backbone=backbone(clip),
        classes=tuple(f"class {i}" for i in range(classes)),
        template="a photo of a {}.",
        clients=tuple(names),
        domains=domain_names,
        client_domain=torch.arange(clients) % DOMAINS,
        samples=torch.full((clients,), train),
        class_counts=counts,
        seed=seed,
        descriptions={},
    )
    return Federation(
        pool=Pool(values, labels, torch.device("cpu"), torch.float32),
        train=Rows.of([r[:train] for r in rows]),
        validation=Rows.of([r[train + test :] for r in rows]),
        test=Rows.of([*tests, *domains]),
        test_sets=(*sets, *(TestSet(n, "domain", n) for n in domain_names)),
        problem=problem,
    )


def reads_of(name: str, clip: str = "ViT-B-32", **fields: object) -> str:
    """Return the encoding of images that a method reads."""
    cls = load_all()[name]
    return cls.reads(cls.Config(**fields), backbone(clip).spec)


def build(name: str, drawn: Federation, **fields: object) -> Method:
    """Return a method with its paper's defaults but for some fields."""
    cls = load_all()[name]
    return cls(cls.Config(**fields), drawn.problem)


def run(method: Method, drawn: Federation, rounds: int, participation: float = 1.0) -> list[RoundFinished]:
    """Run rounds with their evaluation; returns their events, round 0 included."""
    loop = Server(method, drawn, rounds, participation)
    return [event for event in all_rounds(loop) if isinstance(event, RoundFinished)]


class Stopwatch:
    """CPU-seconds of this process since the last call."""

    def __init__(self) -> None:
        self.last = time.process_time()

    def __call__(self) -> float:
        now = time.process_time()
        self.last, spent = now, now - self.last
        return spent


def peak_mib() -> int:
    """Return the largest memory that this process has had, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
