"""The inputs of a run, before anything heavy is loaded: images, partition, the method's checked config.

A plan stops here; a run's job continues in ``setup``. Importing this module does not load torch.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

import numpy as np

from fedcore.base.errors import FedLensError
from fedcore.base.events import TEST
from fedcore.base.progress import NotPrepared
from fedcore.clip import encodings
from fedcore.clip.specs import BackboneSpec, backbone_spec, weights_source
from fedcore.config import (
    BackboneConfig,
    CohortConfig,
    DataConfig,
    Experiment,
    RunConfig,
    TransferConfig,
    backbones,
)
from fedcore.data import catalog
from fedcore.data.assigners import PartitionSettings
from fedcore.data.descriptions import LazyDescriptions
from fedcore.data.images import EMBEDDINGS, GIVEN, ImageSet, with_draft_decoding
from fedcore.data.partition import Assignment, partition, withhold
from fedcore.data.splits import limit_shots, split
from fedcore.data.training_classes import CrossClass, Halves, deal, halves, joined, partition_base
from fedcore.engine.clients.contract import planned
from fedcore.methods import class_texts, registry
from fedcore.methods.base import Method, RunContext, overrides
from fedcore.methods.hyperparameters import MethodConfig

Reader = Callable[[DataConfig, int], tuple[ImageSet, list[str]]]
"""A function like ``read_images``."""


@dataclass(frozen=True)
class RunInputs:
    """The partition of a run, and the context in which its method's config is checked.

    Attributes:
        context: has all class names that the run encodes, those that it is only tested on included.
        identity: of the images that the run reads.
        halves: the base and the new classes; None if the run trains on all classes.
        unseen: the samples of the clients that never take part; None if all do.
        cross_class: the classes of each client, if clients predict among these only; ``halves`` is None then.
    """

    assignment: Assignment
    context: RunContext
    identity: str
    halves: Halves | None = None
    unseen: Assignment | None = None
    cross_class: CrossClass | None = None

    @property
    def trained_classes(self) -> tuple[str, ...]:
        """The classes that the clients train on, in the order of the assignment's counts."""
        if self.cross_class is not None:
            return self.cross_class.classes
        return self.context.classes if self.halves is None else self.halves.base


def load_images(run: RunConfig, read: Reader | None = None) -> tuple[ImageSet, list[str]]:
    """Load the data set of a run (labels only, pixels are read later).

    Args:
        read: used in place of ``read_images``, e.g. by a caller that caches images.

    Returns:
        the images, and a line about each folder or file that was left out.
    """
    _check_given(run)
    if run.data.training_classes != "own":
        side = 0
        if run.data.decode == "draft":  # outside of ``read``, as an error must name the backbone's field
            side = max(backbone_spec(b.name, b.pretrained).image_size for b in backbones(run))
        return (read or read_images)(run.data, side)
    # Clients have classes of several data sets, which are joined to one.
    parts, lines = [], []
    for i, data in enumerate((run.data, *(other.data for other in run.further_data))):
        data = data.model_copy(update={"decode": run.data.decode, "training_classes": "all"})
        try:
            images, left_out = load_images(run.model_copy(update={"data": data}), read)
        except FedLensError as error:
            if i == 0 or (isinstance(error, NotPrepared) and read is None):  # the job does the slow work
                raise
            raise FedLensError(f"{data.name}: {error}", f"further_data.{i - 1}") from error
        parts.append(images)
        lines += left_out
    return joined(parts), lines


def _check_given(run: RunConfig) -> None:
    """Refuse embeddings without the backbone that stands for their encoder, or beside other data sets."""
    is_given = run.data.name == EMBEDDINGS
    if any((backbone.name == GIVEN) != is_given for backbone in backbones(run)):
        remedy = f'{EMBEDDINGS} come from an encoder of their own: set backbone.name = "{GIVEN}"'
        other = f"'{GIVEN}' stands for the encoder of a file of embeddings; choose e.g. ViT-B-32"
        raise FedLensError(remedy if is_given else other, "backbone.name")
    others = [*run.further_data, *run.transfer]
    if others and (is_given or EMBEDDINGS in {other.name for other in others}):
        raise FedLensError(
            "embeddings cannot be combined with another data set, as their encoder is not here; leave it out",
            "further_data" if run.further_data else "transfer",
        )


def read_images(data: DataConfig, side: int) -> tuple[ImageSet, list[str]]:
    """Read a data set as ``[data]`` describes it, for backbones with ``side`` pixels; see ``load_images``."""
    images, left_out = catalog.load(
        data.name,
        data.root,
        data.domains,
        data.template,
        data.columns,
        coop_split=data.split == "coop",
        coop_classes=data.classes == "coop",
    )
    return (with_draft_decoding(images, side) if data.decode == "draft" else images), left_out


def prepare_inputs(run: RunConfig, images: ImageSet) -> RunInputs:
    """Split and partition the images of a run, and make the context of its method.

    The plan and the job both call this, so that the previewed clients are those that train.
    """
    for i, cohort in enumerate(run.cohorts):
        if cohort.backbone is not None:
            with _error_of_cohort(i):
                weights_source(cohort.backbone.name, cohort.backbone.pretrained)
    first = backbones(run)[0]  # the server's
    weights_source(first.name, first.pretrained)
    sizes = backbone_spec(first.name, first.pretrained)
    if (given := images.given) is not None:
        sizes = BackboneSpec(GIVEN, given.width, class_texts="given" if given.class_vectors else "none")
    _check_cross_class(run)
    if run.data.training_classes == "own":
        return _prepare_cross_class(run, images, sizes)
    marks = split(images, run.data.split, run.seed, run.data.split_rounding)
    shots = run.data.shots
    if shots is not None and run.data.shots_scope == "federation":
        held_out = images.domains.index(run.held_out) if run.held_out in images.domains else -1
        among = images.domain != held_out
        marks, shots = limit_shots(marks, images.labels, images.keys, shots, run.seed, among), None
    settings = PartitionSettings(
        **run.partition.model_dump(exclude={"unseen"}),
        shots=shots,
        held_out=run.held_out,
        held_out_share=run.held_out_share,
        seed=run.seed,
    )
    found = None
    if run.data.training_classes == "all":
        assignment = partition(images, marks, settings)
    else:
        if run.held_out is not None:
            raise FedLensError(
                "a run that holds out classes cannot hold out a domain too; set training_classes = all, or "
                "hold out no domain",
                "held_out",
            )
        found = halves(images, marks, run.data.class_order)
        assignment = partition_base(images, marks, found.base, settings)
    unseen = None
    if run.partition.unseen:
        if run.cohorts:
            raise FedLensError(
                "clients of several cohorts cannot be unseen; remove the cohorts, or set unseen = 0",
                "partition.unseen",
            )
        assignment, unseen = withhold(assignment, run.partition.unseen, run.seed)
    context = RunContext(
        sizes,
        images.classes,
        len(assignment.clients),
        images.domains,
        images.template,
        tuple(assignment.client_domain.tolist()),
        LazyDescriptions(run.data.name, run.data.root, images.classes),
        catalog.entry(run.data.name).embedded,
        run.held_out is not None and run.held_out_share == "all",
    )
    return RunInputs(assignment, context, images.identity, found, unseen)


def _check_cross_class(run: RunConfig) -> None:
    """Refuse settings that cross-class does not allow, and those that only cross-class allows."""
    if run.data.training_classes != "own":
        if run.partition.kind == "blocks":
            raise FedLensError(
                "blocks of classes are dealt to clients that predict among their own classes; set "
                "training_classes = own, or another partition",
                "partition.kind",
            )
        if run.further_data:
            raise FedLensError(
                "clients train on further data sets in the cross-class protocol only; set training_classes = "
                "own, or remove them",
                "further_data",
            )
        return
    if run.partition.kind != "blocks":
        raise FedLensError(
            "with training_classes = own, classes are dealt in blocks; set partition.kind = blocks",
            "partition.kind",
        )
    for field, given in (
        ("held_out", run.held_out is not None),
        ("cohorts", bool(run.cohorts)),
        ("partition.unseen", run.partition.unseen > 0),
    ):
        if given:
            raise FedLensError(
                "this cannot be combined with clients that predict among their own classes; remove it, or "
                "set another training_classes",
                field,
            )


def _prepare_cross_class(run: RunConfig, images: ImageSet, sizes: BackboneSpec) -> RunInputs:
    """Deal the base classes of several data sets to clients, and make the context of the run's method."""
    data, part = run.data, run.partition
    assert part.classes_per_client is not None, "the config asks for it"
    schemes = [data.split, *(other.split for other in run.further_data)]
    marks = [
        split(one, scheme, run.seed, data.split_rounding)
        for one, scheme in zip(images.parts, schemes, strict=True)
    ]
    dealt = deal(
        images, marks, data.class_order, part.classes_per_client, data.shots, part.min_samples, run.seed
    )
    entries = [catalog.entry(name) for name in (data.name, *(other.name for other in run.further_data))]
    context = RunContext(
        sizes,
        tuple(name for one in images.parts for name in one.classes),
        len(dealt.assignment.clients),
        images.domains,
        images.template,
        tuple(dealt.assignment.client_domain.tolist()),
        embedded=all(entry.embedded for entry in entries),
    )
    return RunInputs(dealt.assignment, context, images.identity, cross_class=dealt)


@dataclass(frozen=True)
class TransferInputs:
    """Another data set that a run is tested on, and the rows of its test split."""

    images: ImageSet
    test: np.ndarray


def prepare_transfer(run: RunConfig, context: RunContext, read: Reader | None = None) -> list[TransferInputs]:
    """Read the further data sets that a run is tested on, and check the method with their class names."""
    found = []
    trained_on: tuple[DataConfig | TransferConfig, ...] = (run.data, *run.further_data)
    for i, other in enumerate(run.transfer):
        try:
            for trained in trained_on:
                if (trained.name, trained.root) == (other.name, other.root) and trained.split != other.split:
                    raise FedLensError(
                        f"the models train on this data set with split {trained.split}, so images that "
                        f"{other.split} tests may have been training images; give split = "
                        f'"{trained.split}", or another data set'
                    )
            data = other.data.model_copy(update={"decode": run.data.decode})
            images, _ = load_images(run.model_copy(update={"data": data}), read)
            marks = split(images, other.split, run.seed)
            config = registry.build_config(run.method.name, run.method.config, "method.config")
            there = replace(
                context,
                classes=images.classes,
                template=images.template,
                descriptions=LazyDescriptions(other.name, other.root, images.classes),
            )
            planned(registry.get(run.method.name), "check", config, there)
        except NotPrepared:  # the job does the slow work
            raise
        except FedLensError as error:
            raise FedLensError(f"{other.name}: {error}", f"transfer.{i}") from error
        found.append(TransferInputs(images, np.flatnonzero(marks == TEST)))
    return found


def resolve(run: RunConfig, context: RunContext, field: str) -> RunConfig:
    """Return the run with its method's defaults resolved, so that it can be repeated from its config.

    An error names ``field.<hyper-parameter>``, or the field of a cohort.
    """
    method = registry.get(run.method.name, f"{field}.name")
    config = registry.build_config(run.method.name, run.method.config, f"{field}.config")
    title = method.about.title
    if run.data.training_classes == "own":
        if reason := bound_to_one_label_space(method, config):
            raise FedLensError(
                f"{title} cannot train clients that each predict among their own classes only: {reason}; "
                "leave it out, or choose another protocol",
                field,
            )
        if getattr(config, "class_text", "template") == "description":
            raise FedLensError(
                f"{title}: written descriptions belong to one data set; set class_text = template",
                f"{field}.config.class_text",
            )
    try:
        check_cohorts(run, context)
        check_encoder(method, config, context)
        try:
            check_method(method, config, context)
        except FedLensError as error:  # an experiment may have several methods: name this one
            if title in str(error):
                raise
            raise FedLensError(f"{title}: {error}", error.field) from error
        frozen = class_texts.with_texts(config, context)
    except FedLensError as error:
        place = field if error.field is None else f"{field}.config.{error.field}"
        if (error.field or "").partition(".")[0] in Experiment.model_fields:
            place = error.field or field
        raise FedLensError(str(error), place) from error
    file = run.method.file or registry.file_of(run.method.name)
    entry = run.method.model_copy(
        update={
            "config": frozen.model_dump(mode="json"),
            "label": run.method.label or title,
            "file": file,
            "sha256": registry.file_hash(file) if file else None,
        }
    )
    return run.model_copy(update={"method": entry})


def check_method(method: type[Method], config: MethodConfig, context: RunContext) -> None:
    """Refuse an encoding that the image tower cannot give, and what else the method refuses itself."""
    encodings.row_shape(context.spec, planned(method, "reads", config, context.spec))
    planned(method, "check", config, context)


def check_encoder(method: type[Method], config: MethodConfig, context: RunContext) -> None:
    """Refuse a method that needs more than an encoder without towers gives, and name those that can run."""
    if not context.spec.is_black_box or not (reason := _missing_part(method, config, context)):
        return
    able = []
    for other in registry.load_all().values():
        for start in (None, "class_means"):
            with suppress(FedLensError):  # it has no such start, or no defaults
                made = registry.build_config(other.name, {"init": start} if start else {})
                if not _missing_part(other, made, context):
                    able.append(other.about.title + (f" (init = {start})" if start else ""))
                    break
    raise FedLensError(
        f"{method.about.title} cannot run with the backbone '{context.spec.name}': {reason}; "
        f"these can: {', '.join(able)}"
    )


def _missing_part(method: type[Method], config: MethodConfig, context: RunContext) -> str:
    """Return what a method needs and an encoder without towers does not give; empty if it can run.

    What a method scores on classes that it has not trained on comes from their texts.
    """
    spec = context.spec
    try:
        check_method(method, config, context)
    except FedLensError as error:
        if error.field in ("backbone.name", "data.name"):
            return "it learns inside CLIP's towers, or reads more of an image than its embedding"
    if spec.class_texts == "none" and not planned(method, "bound_to_classes", config):
        return "it needs a vector of each class, from a text encoder or given with the data"
    return ""


def bound_to_one_label_space(method: type[Method], config: MethodConfig) -> str:
    """Return why clients cannot predict each among their own classes only; empty if they can.

    Such a client trains with a method made for its classes, so what clients share may not depend on classes.
    """
    reason: str = planned(method, "bound_to_classes", config)
    if not reason and (method.class_axes or overrides(method, "retarget")):
        return "it has parameters for each class"
    return reason


def spec_of(backbone: BackboneConfig, known: BackboneSpec) -> BackboneSpec:
    """Return the sizes of a backbone of a run; those of given embeddings are ``known``."""
    return known if backbone.name == GIVEN else backbone_spec(backbone.name, backbone.pretrained)


def cohort_config(run: RunConfig, cohort: CohortConfig, field: str) -> MethodConfig:
    """Return the method's config with the fields that a cohort overrides.

    A method that trains nothing ignores the budget, so that it can be compared with methods that train.
    """
    method = registry.get(run.method.name)
    overrides = cohort.overrides if method.trains else {}
    for name in overrides:
        if name not in method.Config.model_fields:
            raise FedLensError(
                f"{method.about.title} has no {name}; leave it out of the cohort", f"{field}.{name}"
            )
    return registry.build_config(run.method.name, {**run.method.config, **overrides}, field)


def check_cohorts(run: RunConfig, context: RunContext) -> None:
    """Refuse cohorts that do not fit the partition, or that the method cannot train together."""
    if not run.cohorts:
        return
    held = sum(c.clients for c in run.cohorts)
    if held != context.clients:
        raise FedLensError(
            f"the cohorts hold {held} clients, the partition makes {context.clients}; "
            "make the cohorts' clients add up to the partition's",
            "cohorts",
        )
    method = registry.get(run.method.name)
    sizes = [spec_of(c.backbone or run.backbone, context.spec) for c in run.cohorts]
    _check_together(method, run, sizes)
    for i, (cohort, size) in enumerate(zip(run.cohorts, sizes, strict=True)):
        config = cohort_config(run, cohort, f"cohorts.{i}")
        with _error_of_cohort(i):
            check_method(method, config, replace(context, spec=size))


@contextmanager
def _error_of_cohort(cohort: int) -> Iterator[None]:
    """Add this cohort to the field of an error about a backbone or a budget; other fields stay."""
    try:
        yield
    except FedLensError as error:
        if (error.field or "").partition(".")[0] not in CohortConfig.model_fields:
            raise
        raise FedLensError(str(error), f"cohorts.{cohort}.{error.field}") from error


def _check_together(method: type[Method], run: RunConfig, sizes: list[BackboneSpec]) -> None:
    """Refuse different backbones for a method whose parameters belong to one backbone."""
    chosen = [c.backbone or run.backbone for c in run.cohorts]
    other = next((i for i, b in enumerate(chosen) if b != chosen[0]), None)
    if other is None or method.backbones == "any":
        return
    field = f"cohorts.{other}.backbone.name"
    if method.backbones == "one":
        pair = (chosen[0], chosen[other])
        one, two = (f"{b.name} ({b.pretrained})" if b.pretrained else b.name for b in pair)
        able = [m.about.title for m in registry.load_all().values() if m.backbones != "one"]
        raise FedLensError(
            f"the parameters of {method.about.title} belong to one backbone, so its clients cannot have "
            f"{one} and {two}; give all cohorts one backbone, or use a method "
            f"that does not depend on it: {', '.join(able)}",
            field,
        )
    wider = next((i for i, s in enumerate(sizes) if s.token_width != sizes[0].token_width), None)
    if wider is not None:
        raise FedLensError(
            f"{method.about.title} shares prompts, vectors of the token width: {sizes[0].token_width} in "
            f"{sizes[0].name}, {sizes[wider].token_width} in {sizes[wider].name}; choose backbones of one "
            "token width, e.g. ViT-B-16 and RN50",
            f"cohorts.{wider}.backbone.name",
        )
