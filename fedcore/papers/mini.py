"""Rehearsals of experiments: the same methods on embedded data with a miniature CLIP, in seconds a run.

`--scale mini` and the page Papers make the same one, so that the runs of either fill the other's tables. Its
numbers say nothing about the large experiment. It shows that one runs from end to end, and what its parts
change on drawings: no stand-in is solved before training, and methods learn within its rounds.
"""

import itertools
from collections.abc import Sequence
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
"""Config field of a method -> its largest value in a rehearsal."""
RATES, RATE, LARGEST_RATE = ("lr", "server_lr", "lr_transform"), 5, 0.01
"""Learning rates below the largest one are raised by the factor, up to it: clients take far fewer steps."""
SMALLER = {
    "network": {"resnet50": "resnet18", "vit_b_16": "vit_tiny"},
    "weights": {"pretrained": "scratch"},  # the pretrained ones may not be on this machine
}
"""Config field of a method -> values that a rehearsal replaces."""
DATA = "shapes"
DOMAINS = ("sketch+30", "painting-45", "cartoon+30", "mosaic-30", "halftone+45")
"""The embedded domains that stand in for a paper's. Both miniatures classify 32 to 58 % of them untrained
(docs/embedded.md), so that a method can gain and lose."""
POOLED = 2
"""Number of domains of experiments that are not partitioned by domains."""
ROUNDS, SHOTS, SEEDS, CLIENTS = 8, 5, 3, 4
"""Most rounds, training images of a class and client, and clients; ten classes do not divide by the clients.
Readings on the paper's own data have as many seeds."""
CANNOT_SHOW = (
    "This rehearsal cannot show the ablation: no two rows differ by more than the 95 % interval of their "
    "difference."
)
CLASSES = 10
"""Number of classes of the embedded data sets."""


def rehearsal(experiment: Experiment) -> Experiment:
    """Return the rehearsal of an experiment: embedded data, miniature CLIP, few rounds, shots and clients.

    The methods keep their order and switches. Prompt lengths and batch sizes are capped (two lengths of one
    method keep their ratio), and a number of blocks becomes the largest divisor of the miniature's width that
    does not exceed it. Each domain of a partition by domains has a stand-in, so that a paper's table has all
    its cells. Cohorts keep their shares of the clients and their budgets. ``reproduces`` is empty.
    """
    backbone = _backbone(experiment.backbone.name)
    names = stand_ins(experiment)
    by_domain = experiment.partition.kind == "domain"
    domains = tuple(names.values()) or DOMAINS[: CLIENTS if by_domain else POOLED]
    held_out = tuple(names[d] for d in experiment.held_out if d in names)
    if experiment.held_out and not held_out:
        held_out = domains[:1]
    width = backbone_spec(backbone).embed_dim
    partition = _partition(experiment.partition)
    trained = len(domains) - bool(held_out)
    clients = partition.clients or trained * partition.clients_per_domain
    return Experiment(
        name=f"{experiment.name[:480]} (rehearsal)",
        data=DataConfig(
            name=DATA,
            domains=domains,
            # the embedded data have no official split
            split="60/20/20" if experiment.data.split == "60/20/20" else "80/20",
            split_rounding=experiment.data.split_rounding,
            shots=SHOTS,
        ),
        partition=partition,
        backbone={"name": backbone},
        cohorts=_cohorts(experiment.cohorts, clients),
        methods=tuple(_method(entry, width) for entry in experiment.methods),
        rounds=min(ROUNDS, experiment.rounds),
        participation=max(experiment.participation, 2 / CLIENTS),
        seeds=seeds(experiment.seeds),
        held_out=held_out,
        sweep=_sweep(experiment, width),
        notes="A rehearsal with a miniature model on embedded data: no evidence about any paper.",
        tags=("rehearsal",),
    )


def seeds(given: Sequence[int]) -> tuple[int, ...]:
    """Return the first seeds, or those that are given and the smallest other ones."""
    return tuple(itertools.islice(dict.fromkeys((*given, *range(1, SEEDS + 1))), SEEDS))


def _backbone(large: str) -> str:
    """Return the miniature backbone with an image tower of the same family."""
    return "mini-rn" if backbone_spec(large).vision == "resnet" else "mini-vit"


def _cohorts(large: tuple[CohortConfig, ...], clients: int) -> list[dict[str, Any]]:
    """Return cohorts in the same proportions; those that would have no clients are left out."""
    total, small, before = sum(c.clients for c in large), [], 0
    for end, cohort in zip(itertools.accumulate(c.clients for c in large), large, strict=True):
        count = round(end * clients / total) - round(before * clients / total)
        budget = cohort.model_dump(exclude={"clients", "backbone"}, exclude_none=True)
        if "batch_size" in budget:
            budget["batch_size"] = min(budget["batch_size"], CAPS["batch_size"])
        backbone = {"backbone": {"name": _backbone(cohort.backbone.name)}} if cohort.backbone else {}
        small += [{"clients": count, **backbone, **budget}] if count else []
        before = end
    return small


def _partition(large: PartitionConfig) -> PartitionConfig:
    """Return the same kind of partition, for ten classes, few clients and 30 images of a class per domain.

    A natural partition becomes IID, since the embedded data do not name clients.
    """
    if large.kind == "domain":
        return large.model_copy(
            update={"clients": None, "clients_per_domain": min(large.clients_per_domain, 2)}
        )
    clients = min(large.clients or CLIENTS, CLIENTS)
    classes = min(large.classes_per_client, CLASSES // clients) if large.classes_per_client else None
    kind = "iid" if large.kind == "natural" else large.kind
    return large.model_copy(
        update={"kind": kind, "clients": clients, "classes_per_client": classes, "min_samples": 1}
    )


def _sweep(large: Experiment, width: int) -> dict[str, list[Any]]:
    """Return the swept fields with values that fit the rehearsal, without the fields that it sets."""
    sweep: dict[str, list[Any]] = {}
    for path, values in large.sweep.items():
        if path in ("data.split", "data.template", "backbone.pretrained"):
            continue
        if path in ("rounds", "data.shots"):
            small = [min(ROUNDS if path == "rounds" else SHOTS, value) for value in values]
        elif path in ("partition.clients", "partition.clients_per_domain"):
            small = [min(2 + i, CLIENTS + 1) for i in range(len(values))]
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


def _method(entry: MethodEntry, width: int) -> MethodEntry:
    """Return the method with every length and batch size capped, including its defaults."""
    if entry.file:
        registry.load_agreed(entry.file)
    large = registry.build_config(entry.name, entry.config).model_dump(mode="json")
    config = dict(entry.config)
    config.update({k: cap for k, cap in CAPS.items() if (large.get(k) or 0) > cap})
    rates = {k: min(LARGEST_RATE, RATE * large[k]) for k in RATES if large.get(k)}
    config.update({k: faster for k, faster in rates.items() if faster > large[k]})
    lengths = {k: large[k] for k in ("prompt_length", "personal_length") if large.get(k)}
    longer = max(lengths, key=lengths.__getitem__, default="")
    if len(lengths) == 2 and lengths[longer] > CAPS[longer]:  # they keep their ratio, the longer at its cap
        config.update({k: max(1, round(CAPS[longer] * n / lengths[longer])) for k, n in lengths.items()})
    config.update({k: of[large[k]] for k, of in SMALLER.items() if large.get(k) in of})
    for texts in class_texts.fields(registry.get(entry.name).Config):
        config.pop(texts, None)  # they describe the classes of another data set
    if "blocks" in config:
        config["blocks"] = _capped("blocks", config["blocks"], width)
    if "," in str(config.get("local_length", "")):  # one length per client fits the large federation only
        config["local_length"] = "random:4-64"
    return entry.model_copy(update={"config": config})


def stand_ins(experiment: Experiment) -> dict[str, str]:
    """Return the embedded domain that stands in for each domain of a paper's experiment.

    The result is empty if the experiment is not partitioned by domains.
    """
    if experiment.partition.kind != "domain":
        return {}
    domains = experiment.data.domains or catalog.entry(experiment.data.name).domains
    return dict(zip(domains, DOMAINS, strict=False))
