"""Small versions of experiments: the same methods on embedded data with a miniature CLIP, in seconds.

A small version shows that an experiment runs from end to end; its numbers say nothing about the large one. In
a rehearsal, an embedded domain stands in for each domain of the paper, so that it fills every cell of the
paper's table.
"""

import itertools
from dataclasses import dataclass
from typing import Any

from fedcore.clip.specs import backbone_spec
from fedcore.config import CohortConfig, DataConfig, Experiment, MethodEntry, PartitionConfig
from fedcore.data import catalog
from fedcore.methods import class_texts, registry

CAPS = {
    "batch_size": 32,
    "server_batch_size": 32,
    "context_length": 8,
    "prompt_length": 8,
    "personal_length": 8,
    "global_length": 8,
}
"""Config field of a method -> its largest value in the small version."""
RATES, LARGEST_RATE = ("lr", "server_lr", "lr_transform"), 0.01
SMALLER = {
    "network": {"resnet50": "resnet18", "vit_b_16": "vit_tiny"},
    "weights": {"pretrained": "scratch"},  # the pretrained ones may not be on this machine
}
"""Config field of a method -> values that the small version replaces."""
DATA = "shapes"
DOMAINS = ("photo", "sketch", "cartoon+30", "painting-45")
"""The embedded domains, which stand in for a paper's first to fourth in a rehearsal."""
CLASSES = 10
"""Number of classes of the embedded data sets."""


@dataclass(frozen=True)
class Size:
    """Most rounds, training images per class and client, seeds and clients of a small version.

    Attributes:
        domain: the only one of experiments that are not partitioned by domains; the last is the hardest.
        rate: factor of learning rates below ``LARGEST_RATE``, up to this: clients take far fewer steps.
    """

    rounds: int = 2
    shots: int = 2
    seeds: int = 1
    clients: int = 5
    domain: str = DOMAINS[0]
    rate: float = 1.0


SMALLEST = Size()
"""The size that shows that an experiment runs."""
COMPARED = Size(rounds=8, shots=5, seeds=3, clients=4, domain=DOMAINS[-1], rate=5)
"""Size of the rehearsals whose readings are compared: methods learn something in it, and ten classes do not
divide by the number of clients. Readings on the paper's own data have as many seeds."""


def mini(experiment: Experiment, size: Size = SMALLEST) -> Experiment:
    """Return an experiment's small version: embedded data, miniature CLIP, few rounds, shots and seeds.

    The methods keep their switches. Prompt lengths and batch sizes are capped (two lengths of one method keep
    their ratio), and a number of blocks becomes the largest divisor of the miniature's width that does not
    exceed it. One domain is held out if the experiment holds out several in turn, and at most five clients
    take part. Cohorts keep their shares of the clients and their budgets. ``reproduces`` is empty.
    """
    backbone = _backbone(experiment.backbone.name)
    by_domain = experiment.partition.kind == "domain"
    domains = DOMAINS[:3] if by_domain else (size.domain,)
    width = backbone_spec(backbone).embed_dim
    partition = _partition(experiment.partition, size.clients)
    trained = len(domains) - bool(experiment.held_out)
    clients = partition.clients or trained * partition.clients_per_domain
    return Experiment(
        name=f"{experiment.name} (mini)"[:500],
        data=DataConfig(
            name=DATA,
            domains=domains,
            # the embedded data have no official split
            split="60/20/20" if experiment.data.split == "60/20/20" else "80/20",
            split_rounding=experiment.data.split_rounding,
            shots=size.shots,
        ),
        partition=partition,
        backbone={"name": backbone},
        cohorts=_cohorts(experiment.cohorts, clients),
        methods=tuple(_method(entry, width, size.rate) for entry in experiment.methods),
        rounds=min(size.rounds, experiment.rounds),
        participation=max(experiment.participation, 2 / size.clients),
        seeds=experiment.seeds[: size.seeds],
        held_out=domains[:1] if experiment.held_out else (),
        sweep=_sweep(experiment, width, size),
        notes="A small version, which shows that the experiment runs; its numbers mean nothing.",
        tags=("mini",),
    )


def _backbone(large: str) -> str:
    """Return the miniature backbone with an image tower of the same family."""
    return "mini-rn" if backbone_spec(large).vision == "resnet" else "mini-vit"


def _cohorts(large: tuple[CohortConfig, ...], clients: int) -> list[dict[str, Any]]:
    """Return cohorts in the same proportions; those that would have no clients are left out."""
    total, small, before = sum(c.clients for c in large), [], 0
    for end, cohort in zip(itertools.accumulate(c.clients for c in large), large, strict=True):
        count = end * clients // total - before * clients // total
        budget = cohort.model_dump(exclude={"clients", "backbone"}, exclude_none=True)
        if "batch_size" in budget:
            budget["batch_size"] = min(budget["batch_size"], CAPS["batch_size"])
        backbone = {"backbone": {"name": _backbone(cohort.backbone.name)}} if cohort.backbone else {}
        small += [{"clients": count, **backbone, **budget}] if count else []
        before = end
    return small


def _partition(large: PartitionConfig, most: int) -> PartitionConfig:
    """Return the same kind of partition, for ten classes, few clients and 30 images of a class per domain.

    A natural partition becomes IID, since the embedded data do not name clients.
    """
    if large.kind == "domain":
        return large.model_copy(
            update={"clients": None, "clients_per_domain": min(large.clients_per_domain, 2)}
        )
    clients = min(large.clients or most, most)
    classes = min(large.classes_per_client, CLASSES // clients) if large.classes_per_client else None
    kind = "iid" if large.kind == "natural" else large.kind
    return large.model_copy(
        update={"kind": kind, "clients": clients, "classes_per_client": classes, "min_samples": 1}
    )


def _sweep(large: Experiment, width: int, size: Size) -> dict[str, list[Any]]:
    """Return the swept fields with values that fit the small version, without the fields that it sets."""
    sweep: dict[str, list[Any]] = {}
    for path, values in large.sweep.items():
        if path in ("data.shots", "data.split", "data.template", "backbone.pretrained"):
            continue
        if path == "rounds":
            small = [min(size.rounds, value) for value in values]
        elif path in ("partition.clients", "partition.clients_per_domain"):
            small = [min(2 + i, size.clients) for i in range(len(values))]
        elif path == "backbone.name":
            small = [_backbone(value) for value in values]
        elif path.startswith("methods."):
            small = [_capped(path.rpartition(".")[2], value, width) for value in values]
        else:
            small = list(values)
        sweep[path] = list(dict.fromkeys(small))
    return sweep


def _capped(name: str, value: Any, width: int) -> Any:
    if name == "blocks":
        return max(n for n in range(1, value + 1) if width % n == 0)
    return min(value, CAPS[name]) if name in CAPS else value


def _method(entry: MethodEntry, width: int, rate: float) -> MethodEntry:
    """Return the method with every length and batch size capped, including its defaults."""
    if entry.file:
        registry.load_agreed(entry.file)
    large = registry.build_config(entry.name, entry.config).model_dump(mode="json")
    config = dict(entry.config)
    config.update({k: cap for k, cap in CAPS.items() if (large.get(k) or 0) > cap})
    rates = {k: min(LARGEST_RATE, rate * large[k]) for k in RATES if large.get(k)}
    config.update({k: faster for k, faster in rates.items() if faster > large[k]})
    config.update(_two_lengths(large))
    config.update({k: of[large[k]] for k, of in SMALLER.items() if large.get(k) in of})
    for texts in class_texts.fields(registry.get(entry.name).Config):
        config.pop(texts, None)  # they describe the classes of another data set
    if "blocks" in config:
        config["blocks"] = _capped("blocks", config["blocks"], width)
    if "," in str(config.get("local_length", "")):  # one length per client fits the large federation only
        config["local_length"] = "random:4-64"
    return entry.model_copy(update={"config": config})


def _two_lengths(large: dict[str, Any]) -> dict[str, int]:
    """Return two prompt lengths in the same ratio, the longer at its cap; empty if the caps allow both."""
    lengths = {k: large[k] for k in ("prompt_length", "personal_length") if large.get(k)}
    longer = max(lengths, key=lengths.__getitem__, default="")
    if len(lengths) < 2 or lengths[longer] <= CAPS[longer]:
        return {}
    return {k: max(1, round(CAPS[longer] * n / lengths[longer])) for k, n in lengths.items()}


def stand_ins(experiment: Experiment) -> dict[str, str]:
    """Return the embedded domain that stands in for each domain of a paper's experiment.

    The result is empty if the experiment is not partitioned by domains.
    """
    if experiment.partition.kind != "domain":
        return {}
    domains = experiment.data.domains or catalog.entry(experiment.data.name).domains
    return dict(zip(domains, DOMAINS, strict=False))


def rehearsal(experiment: Experiment, size: Size = SMALLEST) -> Experiment:
    """Return the rehearsal of a paper's experiment: its methods in their order on embedded data."""
    small = mini(experiment, size)
    changes: dict[str, object] = {
        "name": f"{experiment.name} (rehearsal)",
        "notes": "A rehearsal with a miniature model on embedded data: no evidence about any paper.",
        "tags": ("rehearsal",),
    }
    names = stand_ins(experiment)
    if names:
        domains = tuple(names.values())
        changes["data"] = small.data.model_copy(update={"domains": domains})
        changes["held_out"] = tuple(names[domain] for domain in experiment.held_out)
    return small.model_copy(update=changes)
