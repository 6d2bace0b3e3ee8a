"""What an experiment will do, known before anything is
loaded: runs, clients, who gets which samples. No torch.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fedcore.clip import tokens
from fedcore.clip.facts import MINI_MODELS, facts
from fedcore.config import DataConfig, Experiment, PartitionConfig, RunConfig, backbones, expand, sweeps
from fedcore.config.models import kinds_using
from fedcore.data import catalog
from fedcore.data.heterogeneity import label_distance, label_entropy
from fedcore.data.images import ImageSet, drafted
from fedcore.data.partition import Assignment, partition
from fedcore.data.splits import split
from fedcore.engine import ahead
from fedcore.engine.cohorts import check_cohorts, first_facts
from fedcore.errors import FedLensError
from fedcore.methods import registry
from fedcore.methods.base import Method, MethodConfig, RunContext


@dataclass(frozen=True)
class Plan:
    """A checked experiment.

    Shape: counts (clients, classes) training samples of the first run.

    Attributes:
        runs: what will be queued, each with its method's whole config written out.
        warnings: what is odd but runs.
        encodings: the files of encoded images that the runs read, cached or not.
    """

    runs: tuple[RunConfig, ...]
    clients: tuple[str, ...]
    classes: tuple[str, ...]
    domains: tuple[str, ...]
    counts: np.ndarray
    warnings: tuple[str, ...]
    encodings: tuple[ahead.Encoding, ...] = ()

    @property
    def heterogeneity(self) -> float:
        """How far apart the clients' label distributions are, 0 (equal) to 1 (disjoint)."""
        return label_distance(self.counts)

    @property
    def entropy(self) -> float:
        """Mean entropy of the clients' training labels in bits: 0 for one class each."""
        return float(label_entropy(self.counts).mean())

    def client_figures(self) -> list[tuple[str, int, int, float]]:
        """Of each client: name, training samples, classes among them, entropy of their labels in bits."""
        entropy = label_entropy(self.counts).tolist()
        sums, held = self.counts.sum(1).tolist(), (self.counts > 0).sum(1).tolist()
        return list(zip(self.clients, sums, held, entropy, strict=True))

    @property
    def most_entropy(self) -> float:
        """The entropy of a client that has all classes alike, bits."""
        return float(np.log2(max(1, len(self.classes))))


Reader = Callable[[DataConfig, int], tuple[ImageSet, list[str]]]
"""As ``read_images``."""


def load_images(run: RunConfig, read: Reader | None = None) -> tuple[ImageSet, list[str]]:
    """The data set of a run (labels only, pixels are read later), and what was left out of it.

    Args:
        read: instead of ``read_images``, for who keeps what was read.

    Raises:
        FedLensError: naming the field under ``data``.
    """
    # a wrong backbone is not the data's fault: its own check names its field
    side = max(facts(b.name).image_size for b in backbones(run)) if run.data.decode == "draft" else 0
    return (read or read_images)(run.data, side)


def read_images(data: DataConfig, side: int) -> tuple[ImageSet, list[str]]:
    """A data set as ``[data]`` describes it, for backbones that see ``side`` pixels, and what was left out.

    Raises:
        FedLensError: naming the field under ``data``.
    """
    images, left_out = catalog.load_checked(data.name, data.root, data.domains, data.template, data.columns)
    return (drafted(images, side) if data.decode == "draft" else images), left_out


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


def resolve(run: RunConfig, context: RunContext, field: str) -> RunConfig:
    """The run with every hyper-parameter of its method written out, checked in its context.

    Raises:
        FedLensError: naming ``field.<hyper-parameter>``, or what is wrong with a cohort.
    """
    method = registry.get(run.method.name, f"{field}.name")
    config = registry.build_config(run.method.name, run.method.config, f"{field}.config")
    try:
        check_cohorts(run, context)
        _check(method, config, context)
        config = method.freeze_config(config, context)
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


def _check(method: type[Method], config: MethodConfig, context: RunContext) -> None:
    """The method's own check; of several methods in an experiment, the message names the one that refuses."""
    try:
        method.check(config, context)
    except FedLensError as error:
        if method.title in str(error):
            raise
        raise FedLensError(f"{method.title}: {error}", error.field) from error


def _field_of(error: FedLensError, field: str) -> str:
    """A method's error names a field of its own, or a part of the experiment such as ``backbone.name``."""
    if error.field is None:
        return field
    part = error.field.partition(".")[0]
    return error.field if part in Experiment.model_fields else f"{field}.config.{error.field}"


def plan(experiment: Experiment, read: Reader | None = None) -> Plan:
    """Check an experiment and expand it into runs.

    Args:
        read: as ``load_images`` takes it.

    Raises:
        FedLensError: the first thing that would stop a run, with the field it belongs to.
    """
    for entry in experiment.methods:
        if entry.file:
            registry.load_file(entry.file)
    for names, field in ((experiment.data.domains or (), "data.domains"), (experiment.held_out, "held_out")):
        twice = [n for i, n in enumerate(names) if n in names[:i]]
        if twice:
            raise FedLensError(f"'{twice[0]}' is named twice; name each once", field)
    variants = sweeps.variants(experiment)
    images, left_out = load_images(
        expand(experiment.model_copy(update={"held_out": (), "sweep": {}}))[0], read
    )
    held_out = images.domains if experiment.held_out == ("each",) else experiment.held_out
    unknown = [d for d in held_out if d not in images.domains]
    if unknown:
        raise FedLensError(f"no domain '{unknown[0]}'; there are: {', '.join(images.domains)}", "held_out")
    checked: dict[str, tuple[RunContext, Assignment]] = {}
    runs, notes = [], []
    for draft, variant in zip(expand(experiment, images.domains), itertools.cycle(variants)):
        key = draft.model_dump_json(exclude={"method", "seed", "held_out", "rounds", "participation"})
        try:
            if key not in checked:
                same = draft.data.template == experiment.data.template
                checked[key] = _context(draft, images if same else load_images(draft, read)[0])
                context = checked[key][0]
                notes += tokens.template_note(context.facts, context.classes, context.template)
            run = resolve(draft, checked[key][0], f"methods.{variant.index}")
        except FedLensError as error:
            raise variant.blame(error) from error
        runs.append(run)
        asked = registry.build_config(draft.method.name, draft.method.config)  # what is not kept is told too
        notes += registry.get(draft.method.name).plan_warnings(asked, checked[key][0])
    assignments = [assignment for _, assignment in checked.values()]
    first = assignments[0]
    return Plan(
        tuple(runs),
        tuple(first.clients),
        images.classes,
        images.domains,
        first.counts,
        (
            *left_out,
            *_warnings(experiment, assignments),
            *dict.fromkeys(notes),
            *ahead.notes(runs, len(images)),
        ),
        ahead.encoded(runs, images.name, len(images)),
    )


def _context(run: RunConfig, images: ImageSet) -> tuple[RunContext, Assignment]:
    """What a run's method meets, checked: its CLIP, the classes, the clients.

    Raises:
        FedLensError: naming the field under ``backbone``, ``cohorts`` or ``partition``.
    """
    sizes = first_facts(run)
    assignment = assign(run, images)
    context = RunContext(
        sizes,
        images.classes,
        len(assignment.clients),
        images.domains,
        images.template,
        tuple(assignment.client_domain.tolist()),
        catalog.Described(run.data.name, run.data.root, images.classes),
        catalog.entry(run.data.name).embedded,
    )
    return context, assignment


def _warnings(experiment: Experiment, assignments: Sequence[Assignment]) -> tuple[str, ...]:
    found = []
    if "80/20" in (experiment.data.split, *experiment.sweep.get("data.split", ())):
        found.append("80/20 has no validation split: the last round is reported, no round is chosen")
    elif not any(len(rows) for a in assignments for rows in a.validation):
        found.append(
            f"{experiment.data.split} has no validation split: the last round is reported, no round is chosen"
        )
    labels = [(e.label or e.name, e.config) for e in experiment.methods]
    if len({label for label, _ in labels}) < len(labels):
        found.append("two methods have the same name; give them labels to tell them apart")
    found += _unused(experiment)
    few = min(int(assignment.counts.sum(1).min()) for assignment in assignments)
    if few < 5:
        found.append(f"the smallest client has {few} training samples")
    nobodys = len(assignments[0].unassigned)
    if nobodys and experiment.data.shots is None:  # with shots, most of them are merely not trained on
        why = {"pathological": "classes left over; leftover = spread deals them out"}.get(
            experiment.partition.kind, "their clients are too small, not named or not chosen"
        )
        found.append(f"{nobodys} samples belong to no client ({why}); the global test keeps its part")
    return tuple(found)


def _unused(experiment: Experiment) -> list[str]:
    """Fields that are set, though nothing reads them: the reader may believe otherwise."""
    part, kinds = experiment.partition, experiment.sweep.get("partition.kind", (experiment.partition.kind,))
    found = [
        f"partition.{name} = {getattr(part, name)} is not used by kind '{kinds[0]}'"
        for name, info in PartitionConfig.model_fields.items()
        if name != "kind" and getattr(part, name) != info.default and not set(kinds_using(name)) & set(kinds)
        if (name, part.kind) != ("clients", "domain")  # compared with the number of domains
    ]
    mini = [b.name for b in backbones(experiment) if b.pretrained is not None and b.name in MINI_MODELS]
    return found + [f"{name} brings its own weights; pretrained is not used" for name in mini]
