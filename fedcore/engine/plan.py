"""The plan of an experiment: runs, clients and warnings, known before anything heavy is loaded. No torch.

A page must not wait while a folder of half a million files is listed. The ``Planner`` makes plans in threads,
returns futures, and caches the last plans and the last large data sets.
"""

import itertools
import time
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from threading import Lock

import numpy as np
from PIL import Image

from fedcore.base.consent import CALLABLE
from fedcore.base.errors import FedLensError, first_repeated
from fedcore.base.events import NO_VALUE
from fedcore.base.progress import NotPrepared, defer_slow_work
from fedcore.clip import encodings, specs, tags
from fedcore.clip.specs import MINI_MODELS, BackboneSpec, weights_source
from fedcore.config import (
    BackboneConfig,
    DataConfig,
    Experiment,
    PartitionConfig,
    RunConfig,
    backbones,
    data_names,
    expand,
    sweeps,
    tuning,
)
from fedcore.config.models import kinds_using
from fedcore.data import catalog
from fedcore.data.images import ImageSet
from fedcore.data.partition import Assignment, label_distance, label_entropy
from fedcore.data.splits import SHARES
from fedcore.engine.clients.contract import planned
from fedcore.engine.prepare import (
    Reader,
    RunInputs,
    load_images,
    prepare_inputs,
    prepare_transfer,
    read_images,
    resolve,
    spec_of,
)
from fedcore.methods import registry
from fedcore.methods.base import RunContext

_LARGE_ENCODING = 10**9
"""Bytes from which on a plan mentions that an encoding will be written."""
PLAN_SECONDS, ERROR_SECONDS = 300.0, 5.0
"""Seconds for which a plan or an error is valid: the disk may change, and the user will soon fix an error."""
SLOW_SECONDS = 1.0
"""A data set that takes longer than this to read is cached for the next plans."""
MAX_PLANS, MAX_SETS = 32, 2


@dataclass(frozen=True)
class EncodingFile:
    """A file of encoded images that runs read: ``size`` bytes, ``images`` rows."""

    data: str
    backbone: str
    reads: str
    images: int
    size: int


@dataclass(frozen=True)
class Plan:
    """A checked experiment.

    Shape: counts (clients, classes) training samples of the first run.

    Attributes:
        runs: the runs to queue, each with its method's defaults resolved.
        warnings: remarks on unusual settings that can run.
        encodings: the files of encoded images that the runs read, cached or not.
        later: runs that are queued when those of a search have ended, as far as they are known: draws whose
            values TPE has not proposed yet, and those with the selected values, are as written here.
        spaces: where the search looks, a line per method.
    """

    runs: tuple[RunConfig, ...]
    clients: tuple[str, ...]
    classes: tuple[str, ...]
    domains: tuple[str, ...]
    counts: np.ndarray
    warnings: tuple[str, ...]
    encodings: tuple[EncodingFile, ...] = ()
    later: tuple[RunConfig, ...] = ()
    spaces: tuple[str, ...] = ()

    @property
    def all_runs(self) -> tuple[RunConfig, ...]:
        """The runs to queue now and later, which together take the time and the disk space."""
        return (*self.runs, *self.later)

    @property
    def heterogeneity(self) -> float:
        """Mean distance of the clients' label distributions, 0 (equal) to 1 (disjoint)."""
        return label_distance(self.counts)

    @property
    def entropy(self) -> float:
        """Mean entropy of the clients' training labels in bits: 0 for one class each."""
        return float(label_entropy(self.counts).mean())

    def client_statistics(self) -> list[tuple[str, int, int, float]]:
        """Return each client's name, training samples, classes among them, and label entropy in bits."""
        entropy = label_entropy(self.counts).tolist()
        sums, held = self.counts.sum(1).tolist(), (self.counts > 0).sum(1).tolist()
        return list(zip(self.clients, sums, held, entropy, strict=True))

    @property
    def max_entropy(self) -> float:
        """Entropy in bits of a client with equally many samples of each class."""
        return float(np.log2(max(1, len(self.classes))))


def plan(experiment: Experiment, read: Reader | None = None) -> Plan:
    """Check an experiment and expand it into runs.

    Raises:
        FedLensError: for the first problem that would stop a run, with its field.
    """
    _check_names(experiment)
    searched, positions = experiment, list(range(len(experiment.methods)))
    if experiment.tuning is not None:
        searched, positions = tuning.search_of(experiment)
    variants = sweeps.variants(searched)
    without_sweep = searched.model_copy(update={"held_out": (), "sweep": {}})
    images, left_out = load_images(expand(without_sweep)[0], read)
    held_out = images.domains if searched.held_out == ("each",) else searched.held_out
    unknown = [d for d in held_out if d not in images.domains]
    if unknown:
        raise FedLensError(f"no domain '{unknown[0]}'; there are: {', '.join(images.domains)}", "held_out")
    runs: list[RunConfig] = []
    inputs: dict[str, RunInputs] = {}
    warnings: list[str] = []
    for draft, variant in zip(expand(searched, images.domains), itertools.cycle(variants)):
        try:
            context = _context(draft, images, searched.data, inputs, read)
            warnings += specs.template_note(context.spec, context.classes, context.template)
            runs.append(resolve(draft, context, f"methods.{positions[variant.index]}"))
            try:
                prepare_transfer(draft, context, read)
            except NotPrepared as error:  # pages offer the check of the run's own data only
                raise FedLensError(str(error), "transfer") from error
        except FedLensError as error:
            raise variant.located(error) from error
        if draft.method.draw in (None, 1):  # the method as written has the warnings
            warnings += _method_warnings(draft, context)
    first, *_ = inputs.values()
    of_experiment = _experiment_warnings(experiment, [i.assignment for i in inputs.values()])
    worth = dict.fromkeys(
        catalog.miniature_note((b.name for b in backbones(run)), data_names(run)) for run in runs
    )
    of_storage = storage_warnings(runs, len(images), first.context.spec)
    read_by_runs = _encodings(runs, images.name, len(images), first.context.spec)
    return Plan(
        runs=tuple(runs),
        clients=tuple(first.assignment.clients),
        classes=first.trained_classes,
        domains=images.domains,
        counts=first.assignment.counts,
        warnings=(*left_out, *filter(None, worth), *of_experiment, *dict.fromkeys(warnings), *of_storage),
        encodings=tuple(dict.fromkeys(file for _, file in read_by_runs)),
        later=_later_runs(experiment, runs),
        spaces=tuple(
            tuning.space_text(entry, tuning.space_of(experiment, i))
            for i, entry in enumerate(experiment.methods if experiment.tuning else ())
        ),
    )


def _check_names(experiment: Experiment) -> None:
    """Load the methods' files, ask for consent to encoders', and refuse names that are empty or repeated."""
    for backbone in backbones(experiment):
        if backbone.name == CALLABLE:
            weights_source(CALLABLE, backbone.pretrained)
    for i, entry in enumerate(experiment.methods):
        if entry.file:
            registry.load_agreed(entry.file)
        if entry.label and not entry.label.strip():
            raise FedLensError(
                "a label of spaces cannot be seen in a table; give a name, or leave it out",
                f"methods.{i}.label",
            )
    for field, names in (("data.domains", experiment.data.domains or ()), ("held_out", experiment.held_out)):
        if (twice := first_repeated(names)) is not None:
            raise FedLensError(f"'{twice}' is named twice; name each once", field)


def _context(
    draft: RunConfig,
    images: ImageSet,
    written: DataConfig,
    inputs: dict[str, RunInputs],
    read: Reader | None,
) -> RunContext:
    """Return the context of a run, whose inputs are prepared unless an earlier run has the same.

    Args:
        images: as the experiment's own data are ``written``; a run that sweeps them has others.
        inputs: of earlier runs, to which new ones are added.
    """
    key = draft.model_dump_json(exclude={"method", "seed", "held_out", "rounds", "participation"})
    if key not in inputs:
        fields = ("template", "split", "classes", "training_classes")
        if any(getattr(draft.data, name) != getattr(written, name) for name in fields):
            images, _ = load_images(draft, read)
        inputs[key] = prepare_inputs(draft, images)
    return inputs[key].context


def _method_warnings(draft: RunConfig, context: RunContext) -> list[str]:
    """Return warnings of a method about its config as written; the frozen one omits unused texts."""
    config = registry.build_config(draft.method.name, draft.method.config)
    method = registry.get(draft.method.name)
    found = planned(method, "plan_warnings", config, context)
    # The words of the runs' own notices, which the command line therefore does not print again.
    if (draft.transfer or draft.data.training_classes == "base") and (
        reason := planned(method, "bound_to_classes", config)
    ):
        found = [*found, f"{NO_VALUE}on new classes: {reason}"]
    if draft.partition.unseen and (reason := planned(method, "bound_to_clients", config)):
        found = [*found, f"{NO_VALUE}of unseen clients after adaptation: {reason}"]
    return [f"{method.about.title}: {warning}" for warning in found]


def _later_runs(experiment: Experiment, draws: Sequence[RunConfig]) -> tuple[RunConfig, ...]:
    """Return the runs that follow a search's first draws: TPE's other draws, then those of all seeds."""
    if experiment.tuning is None:
        return ()
    first = [run for run in draws if run.method.draw == 1]
    searched = [run for run, following in pairwise(draws) if following.method.draw == 2]
    missing = experiment.tuning.draws - max(run.method.draw or 0 for run in draws)
    finals = [run.model_copy(update={"seed": seed}) for seed in experiment.seeds for run in first]
    return (*searched * missing, *finals)


def _experiment_warnings(experiment: Experiment, assignments: Sequence[Assignment]) -> list[str]:
    """Return warnings about the data and names of an experiment; refuse a search that cannot select."""
    warnings = []
    splits = (experiment.data.split, *experiment.sweep.get("data.split", ()))
    without = "80/20" if "80/20" in splits else experiment.data.split
    validated = any(len(rows) for a in assignments for rows in a.validation)
    if experiment.tuning is not None and not validated:
        raise FedLensError(
            f"a search selects by validation accuracy, and {experiment.data.split} has no validation "
            "samples; choose a split with some, such as 60/20/20",
            "data.split",
        )
    if "80/20" in splits or not validated:
        warnings.append(f"{without} has no validation split: the last round is reported, none is selected")
    if experiment.tuning is not None and experiment.data.split in SHARES:
        warnings.append(
            f"{experiment.data.split} is drawn anew for each seed, so an image that a final run tests may "
            "have been a training or validation image of the search"
        )
    if experiment.tuning is not None and experiment.partition.unseen:
        warnings.append(
            "unseen clients are drawn anew for each seed, so one that a final run never trains may have "
            "been a client of the search"
        )
    labels = [(e.label or e.name, e.config) for e in experiment.methods]
    if len({label for label, _ in labels}) < len(labels):
        warnings.append("two methods have the same name; give them labels to tell them apart")
    part, kinds = experiment.partition, experiment.sweep.get("partition.kind", (experiment.partition.kind,))
    warnings += [
        f"partition.{name} = {getattr(part, name)} is not used by kind '{kinds[0]}'"
        for name, info in PartitionConfig.model_fields.items()
        if name != "kind" and getattr(part, name) != info.default and not set(kinds_using(name)) & set(kinds)
        if (name, part.kind) != ("clients", "domain")  # compared with the number of domains
    ]
    mini = [b.name for b in backbones(experiment) if b.pretrained is not None and b.name in MINI_MODELS]
    warnings += [f"{name} brings its own weights; pretrained is not used" for name in mini]
    few = min(int(assignment.counts.sum(1).min()) for assignment in assignments)
    if few < 5:
        warnings.append(f"the smallest client has {few} training samples")
    unassigned = len(assignments[0].unassigned)
    if unassigned and experiment.data.shots is None:  # with shots, most samples are left out on purpose
        why = {"pathological": "classes left over; leftover = last, even or spread gives them out"}.get(
            experiment.partition.kind, "their clients are too small, not named or not chosen"
        )
        warnings.append(f"{unassigned} samples belong to no client ({why}); the global test keeps its part")
    return warnings


def storage_warnings(runs: Sequence[RunConfig], images: int, known: BackboneSpec) -> list[str]:
    """Return warnings about downloads and large encodings; an encoding over the limit is refused."""
    warnings: list[str] = []
    for backbone, file in _encodings(runs, "", images, known):
        what = f"{images:,} images with {backbone.name} ('{file.reads}')"
        encodings.check_limit(file.size, what)
        source = weights_source(backbone.name, backbone.pretrained)
        if isinstance(source, str) and (note := tags.download_note(backbone.name, source)):
            warnings.append(note)
        if file.size > _LARGE_ENCODING:
            warnings.append(f"encoding {what} writes {file.size / 1e9:.1f} GB, unless it is cached already")
    return list(dict.fromkeys(warnings))


def _encodings(
    runs: Sequence[RunConfig], data: str, images: int, known: BackboneSpec
) -> dict[tuple[BackboneConfig, EncodingFile], None]:
    """Return each pair of a backbone and an encoding that the runs read, once and in order."""
    found: dict[tuple[BackboneConfig, EncodingFile], None] = {}
    for run in runs:
        config = registry.build_config(run.method.name, run.method.config)
        for backbone in backbones(run):
            spec = spec_of(backbone, known)
            reads = planned(registry.get(run.method.name), "reads", config, spec)
            size = encodings.estimate(spec, images, reads)
            found[backbone, EncodingFile(data, backbone.name, reads, images, size)] = None
    return found


@dataclass(frozen=True)
class PlanResult:
    """A plan or the error that prevents it, and the time when it was made (``time.monotonic``)."""

    answer: Plan | Exception
    made_at: float

    @property
    def is_fresh(self) -> bool:
        seconds = PLAN_SECONDS if isinstance(self.answer, Plan) else ERROR_SECONDS
        return time.monotonic() - self.made_at < seconds


class Planner:
    """Makes plans in threads and caches them; all sessions of the dashboard share one planner."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="plan")
        self._lock = Lock()
        self._plans: OrderedDict[tuple[str, str], Future[PlanResult]] = OrderedDict()
        self._sets: OrderedDict[str, tuple[float, tuple[ImageSet, list[str]]]] = OrderedDict()

    def request(self, experiment: Experiment, version: str = "") -> Future[PlanResult]:
        """Return the plan of an experiment, and start it if there is no fresh one.

        Args:
            version: changes with everything outside the experiment that the plan reads, e.g. class
                descriptions.
        """
        key = experiment.model_dump_json(), version
        with self._lock:
            future = self._plans.get(key)
            if future is None or future.cancelled() or (future.done() and not future.result().is_fresh):
                future = self._plans[key] = self._pool.submit(self._make, experiment)
            self._plans.move_to_end(key)
            while len(self._plans) > MAX_PLANS:
                self._plans.popitem(last=False)[1].cancel()
            return future

    def _make(self, experiment: Experiment) -> PlanResult:
        try:
            with defer_slow_work():
                answer: Plan | Exception = plan(experiment, self._read)
        except Exception as error:  # noqa: BLE001 - the page that asked raises it
            answer = error
            with self._lock:
                self._sets.clear()  # the user may be repairing the folder
        return PlanResult(answer, time.monotonic())

    def _read(self, data: DataConfig, side: int) -> tuple[ImageSet, list[str]]:
        """Read a data set without its pixels; a large one is read once for the plans of a few minutes."""
        fields = {"name", "root", "domains", "columns", "decode", "classes", "split"}
        key = f"{side} {data.model_dump_json(include=fields)}"
        began = time.monotonic()
        with self._lock:
            read_at, cached = self._sets.get(key, (0.0, None))
        if cached is None or began - read_at > PLAN_SECONDS:
            images, left_out = read_images(data.model_copy(update={"template": None}), side)
            cached = replace(images, read=_no_pixels, draft=None), left_out
            if time.monotonic() - began > SLOW_SECONDS:
                with self._lock:
                    self._sets[key] = time.monotonic(), cached
                    while len(self._sets) > MAX_SETS:
                        self._sets.popitem(last=False)
        images, left_out = cached
        template = catalog.prompt(data.name, data.template)
        return (replace(images, template=template) if template else images), left_out


def _no_pixels(index: int) -> Image.Image:
    raise AssertionError("a plan reads no pixels")
