"""What an experiment will do, known before anything is
loaded: runs, clients, who gets which samples. No torch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedcore.clip.facts import facts, weights_source
from fedcore.config import Experiment, RunConfig
from fedcore.data import catalog
from fedcore.data.images import ImageSet
from fedcore.data.partition import Assignment, label_distance, partition
from fedcore.data.splits import split
from fedcore.errors import FedLensError
from fedcore.methods import registry
from fedcore.methods.base import Setting


@dataclass(frozen=True)
class Plan:
    """A checked experiment.

    Shape: counts (clients, classes) training samples of the first run.

    Attributes:
        runs: what will be queued, each with its method's whole config written out.
        warnings: what is odd but runs.
    """

    runs: tuple[RunConfig, ...]
    clients: tuple[str, ...]
    classes: tuple[str, ...]
    domains: tuple[str, ...]
    counts: np.ndarray
    warnings: tuple[str, ...]

    @property
    def heterogeneity(self) -> float:
        """How far apart the clients' label distributions are, 0 (equal) to 1 (disjoint)."""
        return label_distance(self.counts)


def load_images(run: RunConfig) -> tuple[ImageSet, list[str]]:
    """The data set of a run (labels only, pixels are read later), and what was left out of it.

    Raises:
        FedLensError: naming the field under ``data``.
    """
    return catalog.load_checked(run.data.name, run.data.root, run.data.domains, run.data.template)


def assign(run: RunConfig, images: ImageSet) -> Assignment:
    """Split and partition as the run's seed says: the same call for the preview and for the run itself.

    Raises:
        FedLensError: when the partition cannot be made.
    """
    return partition(
        images,
        split(images, run.data.split, run.seed),
        held_out=run.held_out,
        shots=run.data.shots,
        seed=run.seed,
        **run.partition.model_dump(),
    )


def resolve(run: RunConfig, setting: Setting, field: str) -> RunConfig:
    """The run with every hyper-parameter of its method written out, checked in its setting.

    Raises:
        FedLensError: naming ``field.<hyper-parameter>``.
    """
    method = registry.get(run.method.name, f"{field}.name")
    config = registry.build_config(run.method.name, run.method.config, f"{field}.config")
    try:
        method.check(config, setting)
    except FedLensError as error:
        raise FedLensError(str(error), _field_of(error, field)) from error
    file = run.method.file or registry.file_of(run.method.name)
    entry = run.method.model_copy(
        update={
            "config": config.model_dump(mode="json"),
            "label": run.method.label or method.title,
            "file": file,
            "sha256": registry.file_hash(file) if file else None,
        }
    )
    return run.model_copy(update={"method": entry})


def _field_of(error: FedLensError, field: str) -> str:
    """A method's error names a field of its own, or a part of the experiment such as ``backbone.name``."""
    if error.field is None:
        return field
    part = error.field.partition(".")[0]
    return error.field if part in Experiment.model_fields else f"{field}.config.{error.field}"


def plan(experiment: Experiment) -> Plan:
    """Check an experiment and expand it into runs.

    Raises:
        FedLensError: the first thing that would stop a run, with the field it belongs to.
    """
    for entry in experiment.methods:
        if entry.file:
            registry.load_file(entry.file)
    sizes = facts(experiment.backbone.name)
    weights_source(experiment.backbone.name, experiment.backbone.pretrained)
    images, left_out = load_images(experiment.model_copy(update={"held_out": ()}).expand()[0])
    held_out = images.domains if experiment.held_out == ("each",) else experiment.held_out
    unknown = [d for d in held_out if d not in images.domains]
    if unknown:
        raise FedLensError(f"no domain '{unknown[0]}'; there are: {', '.join(images.domains)}", "held_out")
    drafts = experiment.expand(images.domains)
    first = assign(drafts[0], images)
    setting = Setting(
        sizes,
        images.classes,
        len(first.clients),
        images.domains,
        images.template,
        tuple(first.client_domain.tolist()),
    )
    names = list(experiment.methods)
    runs = tuple(resolve(r, setting, f"methods.{names.index(r.method)}") for r in drafts)
    return Plan(
        runs,
        tuple(first.clients),
        images.classes,
        images.domains,
        first.counts,
        (*left_out, *_warnings(experiment, first)),
    )


def _warnings(experiment: Experiment, assignment: Assignment) -> tuple[str, ...]:
    found = []
    if experiment.data.split == "80/20":
        found.append("80/20 has no validation split: the last round is reported, no round is chosen")
    labels = [(e.label or e.name, e.config) for e in experiment.methods]
    if len({label for label, _ in labels}) < len(labels):
        found.append("two methods have the same name; give them labels to tell them apart")
    few = int(assignment.counts.sum(1).min())
    if few < 5:
        found.append(f"the smallest client has {few} training samples")
    return tuple(found)
