"""A CLIP and a federation small enough for a test to check by hand: random weights, float64 by default."""

import copy
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import cache
from string import ascii_lowercase

import numpy as np
import torch

from fedcore.base import lazy
from fedcore.base.events import RoundFinished
from fedcore.clip.backbone import Backbone
from fedcore.clip.encodings import parse_reads
from fedcore.clip.specs import BackboneSpec
from fedcore.engine.clients.executor import Cohort
from fedcore.engine.parallel import Serving
from fedcore.engine.round import all_rounds
from fedcore.engine.server import Server
from fedcore.methods.base import STATE_PARTS, Method, State
from fedcore.methods.federation import Federation, Pool, Problem, Rows, TestSet
from fedcore.methods.hyperparameters import MethodConfig

open_clip = lazy.open_clip()
"""As the app loads it; a whole import would cost every process that collects tests two seconds more."""

CLASSES = ("cat", "snow owl", "fire engine")
DOMAINS = ("photo", "sketch")


@cache
def tokenizer() -> Callable[..., torch.Tensor]:
    return open_clip.get_tokenizer("ViT-B-32")


def tiny_backbone(*given: object, **named: object) -> Backbone:
    """A ``drawn_backbone`` of a test's own, which it may change."""
    drawn = drawn_backbone(*given, **named)
    return replace(drawn, model=copy.deepcopy(drawn.model))


@cache
def drawn_backbone(
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
    vision: str = "vit",
    embed_dim: int = 16,
    token_width: int = 16,
    vision_layers: int = 4,
    text_layers: int = 3,
) -> Backbone:
    """A random open_clip CLIP: ViT (width 24, 16 px, 4 patches) or ModifiedResNet (32 px).

    Its text tower is as open_clip makes it but for larger weights, so that features differ between classes.
    """
    torch.manual_seed(seed)
    side = 16 if vision == "vit" else 32
    image = (
        {"layers": vision_layers, "width": 24, "head_width": 8, "patch_size": 8, "image_size": side}
        if vision == "vit"
        else {"layers": [1, 1, 1, 1], "width": 8, "head_width": 16, "patch_size": None, "image_size": side}
    )
    text = {
        "context_length": 77,
        "vocab_size": 49408,
        "width": token_width,
        "heads": 4,
        "layers": text_layers,
    }
    model = open_clip.CLIP(embed_dim=embed_dim, vision_cfg=image, text_cfg=text).to(dtype).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() > 1:
                p.copy_(torch.randn(p.shape, dtype=torch.float64) * 0.3)
            elif "ln" not in name and name != "logit_scale":
                p.copy_(torch.randn(p.shape, dtype=torch.float64) * 0.1)
        model.logit_scale.fill_(2.0)
    spec = BackboneSpec(
        name=f"tiny-{vision}",
        embed_dim=embed_dim,
        token_width=token_width,
        context_length=77,
        vision=vision,
        vision_layers=vision_layers if vision == "vit" else 0,
        text_layers=text_layers,
        vision_width=24 if vision == "vit" else 8,
        image_size=side,
        patches=4 if vision == "vit" else 1,
        text="clip",
        clip_tokens=True,
        class_texts="encoded",
    )
    model.requires_grad_(False)
    cpu = torch.device("cpu")
    return Backbone(spec, model, tokenizer(), None, cpu, f"tiny:{seed}", "fp32")


def few_layers(dtype: torch.dtype = torch.float64) -> Backbone:
    """A ``drawn_backbone`` for tests in which towers only have to be some."""
    return drawn_backbone(dtype, vision_layers=3, text_layers=2)


def watched(backbone: Backbone) -> tuple[Backbone, list[str]]:
    """Return a backbone, and the texts that it will encode."""
    read: list[str] = []

    def spy(texts: str | Sequence[str], *given: object) -> torch.Tensor:
        read.extend([texts] if isinstance(texts, str) else texts)
        return backbone.tokenizer(texts, *given)

    return replace(backbone, tokenizer=spy), read


def tiny_federation(
    backbone: Backbone | None = None,
    reads: str = "embedding",
    samples: tuple[int, ...] = (9, 5, 7),
    classes: tuple[str, ...] = CLASSES,
    seed: int = 1,
    order: tuple[int, ...] | None = None,
    descriptions: dict[str, list[str]] | None = None,
) -> Federation:
    """Clients client-a, client-b, ... with a few random images each; two domains, alternating.

    Args:
        backbone: default: a ``drawn_backbone``, which a test must not change; with few layers where none is
            read, since a text tower takes most of a test's time.
        samples: training samples per client; each has 4 test and 3 validation samples besides.
        order: another order of the same clients with the same samples.
    """
    backbone = backbone or (drawn_backbone() if "layer" in reads else few_layers())
    clients = len(samples)
    per_client = [n + 7 for n in samples]
    generator = torch.Generator().manual_seed(seed)
    total = sum(per_client)
    side = backbone.spec.image_size
    pixels = torch.randn(total, 3, side, side, generator=generator, dtype=torch.float64).to(backbone.dtype)
    labels = torch.randint(len(classes), (total,), generator=generator)
    with torch.no_grad():
        values = parse_reads(reads)(backbone, pixels)
    starts = np.cumsum([0, *per_client])
    rows = [np.arange(starts[i], starts[i + 1]) for i in range(clients)]
    picked = order or tuple(range(clients))
    names = tuple("client-" + ascii_lowercase[i] for i in picked)
    train = [rows[i][: samples[i]] for i in picked]
    validation = [rows[i][samples[i] : samples[i] + 3] for i in picked]
    test = [rows[i][samples[i] + 3 :] for i in picked]
    domain_of = [i % len(DOMAINS) for i in picked]
    domain_test = [
        np.sort(
            np.concatenate([t for t, d in zip(test, domain_of, strict=True) if d == j] or [np.array([0])])
        )
        for j in range(len(DOMAINS))
    ]
    sets = [TestSet(n, "client", DOMAINS[d]) for n, d in zip(names, domain_of, strict=True)]
    sets += [TestSet(d, "domain", d) for d in DOMAINS]
    counts = torch.stack([torch.bincount(labels[torch.as_tensor(t)], minlength=len(classes)) for t in train])
    problem = Problem(
        backbone=backbone,
        classes=classes,
        template="a photo of a {}.",
        clients=names,
        domains=DOMAINS,
        client_domain=torch.tensor(domain_of),
        samples=torch.tensor([len(t) for t in train]),
        class_counts=counts,
        seed=seed,
        descriptions=descriptions or {},
    )
    pool = Pool(values, labels, backbone.device, backbone.dtype)
    return Federation(
        pool, Rows.of(train), Rows.of(validation), Rows.of([*test, *domain_test]), tuple(sets), problem
    )


def tiny_cohorts(
    cls: type[Method],
    config: MethodConfig,
    parts: Sequence[tuple[Backbone, int, dict[str, int]]],
    **federation: object,
) -> tuple[Cohort, ...]:
    """Cohorts over the same images.

    Args:
        parts: backbone, number of clients and budget (batch_size, local_epochs, max_steps) of each cohort.
        federation: arguments of ``tiny_federation``.
    """
    found, start = [], 0
    for backbone, clients, budget in parts:
        encoded = tiny_federation(backbone, **federation)
        changes = {k: v for k, v in budget.items() if k != "max_steps"}
        method = cls(config.model_copy(update=changes), encoded.problem)
        found.append(Cohort(method, encoded, range(start, start + clients), budget.get("max_steps")))
        start += clients
    return tuple(found)


def finished(events: Iterable[object]) -> list[RoundFinished]:
    """What is said of each round."""
    return [event for event in events if isinstance(event, RoundFinished)]


def run_rounds(method: Method, federation: Federation, rounds: int = 3, **options: object) -> Server:
    """Run a method; the returned loop has ``state`` and, as ``finished``, the RoundFinished events."""
    loop = Server(method, federation, rounds, **options)
    loop.finished = finished(all_rounds(loop))
    return loop


def parts(state: State) -> dict[str, torch.Tensor]:
    """All tensors of a state, such as "shared.weight"."""
    return {f"{part}.{name}": v for part in STATE_PARTS for name, v in getattr(state, part).items()}


def at_once(serving: Serving) -> Callable[[bytes], Future[bytes]]:
    """Serve in this process, as another one would."""

    def submit(content: bytes) -> Future[bytes]:
        future: Future[bytes] = Future()
        future.set_result(serving.answer(content))
        return future

    return submit
