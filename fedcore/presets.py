"""Small forms of experiments: the same methods on the embedded data and model, in seconds instead of days.

A small form shows that an experiment runs from end to end. Its figures say nothing about the large one.
"""

from __future__ import annotations

from typing import Literal

from fedcore.clip.facts import facts
from fedcore.config import DataConfig, Experiment, MethodEntry, PartitionConfig
from fedcore.methods import registry

ROUNDS, SHOTS = 2, 2
CAPS = {
    "batch_size": 32,
    "server_batch_size": 32,
    "context_length": 8,
    "prompt_length": 8,
    "global_length": 8,
}
"""Config fields of methods -> the most that the small form takes."""
DATA = "shapes"
DOMAINS = ("photo", "sketch", "cartoon+30")
CLASSES = 10
"""Of the embedded data sets."""
CLIENTS = 5


def mini(experiment: Experiment) -> Experiment:
    """An experiment made small: embedded data, a miniature CLIP, two rounds, two shots, one seed.

    Same methods with the same switches; prompt lengths and batch sizes are capped, and a number of blocks
    becomes the largest divisor of the miniature's width that does not exceed it. One domain is held out where
    the large form holds out several in turn, and ten clients or a hundred become five. It repeats no
    published figure, so ``reproduces`` is empty.
    """
    backbone = "mini-rn" if facts(experiment.backbone.name).vision == "resnet" else "mini-vit"
    by_domain = experiment.partition.kind == "domain"
    domains = DOMAINS if by_domain else DOMAINS[:1]
    return Experiment(
        name=f"{experiment.name} (mini)"[:500],
        data=DataConfig(name=DATA, domains=domains, split=_split(experiment), shots=SHOTS),
        partition=_partition(experiment.partition),
        backbone={"name": backbone},
        methods=tuple(_method(entry, facts(backbone).embed_dim) for entry in experiment.methods),
        rounds=min(ROUNDS, experiment.rounds),
        participation=1.0 if experiment.participation == 1 else max(experiment.participation, 2 / CLIENTS),
        seeds=experiment.seeds[:1],
        held_out=domains[:1] if experiment.held_out else (),
        notes="The small form of an experiment: that it runs, not what it finds.",
        tags=("mini",),
    )


def _split(experiment: Experiment) -> Literal["60/20/20", "80/20"]:
    """The embedded data bring no official split."""
    return "60/20/20" if experiment.data.split == "60/20/20" else "80/20"


def _partition(large: PartitionConfig) -> PartitionConfig:
    """The same kind for ten classes and few clients; the embedded domains hold 30 images of a class."""
    if large.kind == "domain":
        return large.model_copy(
            update={"clients": None, "clients_per_domain": min(large.clients_per_domain, 2)}
        )
    clients = min(large.clients or CLIENTS, CLIENTS)
    classes = min(large.classes_per_client, CLASSES // clients) if large.classes_per_client else None
    return large.model_copy(update={"clients": clients, "classes_per_client": classes, "min_samples": 1})


def _method(entry: MethodEntry, width: int) -> MethodEntry:
    """The method with every length and batch capped, its paper's defaults too.

    Raises:
        FedLensError: for an unknown method, or a field that it does not have.
    """
    if entry.file:
        registry.load_file(entry.file)
    large = registry.build_config(entry.name, entry.config).model_dump(mode="json")
    config = dict(entry.config)
    config.update({k: cap for k, cap in CAPS.items() if k in large and large[k] > cap})
    if "blocks" in config:
        config["blocks"] = max(n for n in range(1, config["blocks"] + 1) if width % n == 0)
    if "," in str(config.get("local_length", "")):  # one length per client fits the large federation only
        config["local_length"] = "random:4-64"
    return entry.model_copy(update={"config": config})
