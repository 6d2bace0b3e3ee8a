"""Build a run's method and its encoded federation from its config, for the round loop to start."""

import hashlib
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedcore.base.errors import FedLensError
from fedcore.base.events import NO_VALUE, Entity, Notice
from fedcore.base.lazy import Tensor
from fedcore.base.progress import Progress, Work, prepare_then, relay
from fedcore.clip import backbone as clip_backbone
from fedcore.clip import encodings
from fedcore.clip.backbone import Backbone
from fedcore.config import BackboneConfig, RunConfig, backbone_names, backbones
from fedcore.data import integrity
from fedcore.data.images import ImageSet
from fedcore.engine.clients.cohorts import Cohort, cohort_config, entries_by_class
from fedcore.engine.clients.contract import initial_state
from fedcore.engine.clients.hooks import make, planned
from fedcore.engine.clients.local import Stopped
from fedcore.engine.environment import check_content
from fedcore.engine.federations import (
    adapted_entities,
    build_federation,
    cohorts_of_one,
    entities,
    federation_of_all,
    placed,
    with_transfer,
)
from fedcore.engine.prepare import load_images, prepare_inputs, prepare_transfer, resolve
from fedcore.methods import registry
from fedcore.methods.base import Method, overrides
from fedcore.methods.class_texts import Described
from fedcore.methods.federation import Federation


@dataclass(frozen=True)
class RunSetup:
    """The inputs of the round loop.

    Attributes:
        method, federation: the server's; they belong to the first cohort's backbone. Where clients predict
            among their own classes the method is the first client's, and the federation that of all.
        cohorts: groups of clients with one backbone and budget; a single one if all are alike.
        images: the data set, with pixels.
        encodings: the files of encoded images, with their identity when they were checked.
        content: identity of the weights, of the data set (without its path) and of its pixels as cached here.
            It is stored with the run, and a checkpoint made with other content is refused.
    """

    method: Method
    federation: Federation
    cohorts: tuple[Cohort, ...]
    entities: tuple[Entity, ...]
    images: ImageSet
    backbones: tuple[Backbone, ...]
    encodings: dict[Path, integrity.FileIdentity]
    content: dict[str, str]

    @property
    def weights_digest(self) -> str:
        return "+".join(b.files.digest for b in self.backbones)

    def check_encodings(self) -> None:
        """Refuse to continue if the files of the encodings have changed since they were checked."""
        for path, seen in self.encodings.items():
            if what := integrity.changed_since(path, seen):
                raise FedLensError(
                    f"the encoding {path.stem} changed while the run was reading it: {what}; the current "
                    "round is discarded; resume the run, which checks the encoding or makes it again"
                )


def set_up(
    run: RunConfig,
    artifacts: Path,
    device: str,
    should_stop: Callable[[], bool] = lambda: False,
    before: Mapping[str, Any] | None = None,
) -> Generator[Progress | Notice, None, RunSetup]:
    """Load, split, partition and encode the data of a run, and make its method.

    Args:
        before: environment of the attempt that is resumed; the content must be the same.

    Raises:
        FedLensError: if the data, weights or method are not available, or differ from those before.
        Stopped: if ``should_stop`` says so, while reading or encoding.
    """

    def continues(step: Progress | Notice) -> bool:
        if should_stop():
            raise Stopped
        return True

    if run.method.file:
        registry.load_agreed(run.method.file, run.method.sha256)
    images, left_out = yield from relay(prepare_then(lambda: load_images(run)), continues)
    yield from (Notice(line) for line in left_out)
    content = {"data": content_hash(images), "pixels": images.fingerprint}
    check_content(before, content)
    inputs = prepare_inputs(run, images)
    others = yield from relay(prepare_then(lambda: prepare_transfer(run, inputs.context)), continues)
    if others:
        content["transfer"] = " ".join(f"{content_hash(o.images)} {o.images.fingerprint}" for o in others)
    check_content(before, content)
    run = resolve(run, inputs.context, "method")
    cls = registry.get(run.method.name)
    config = registry.build_config(run.method.name, run.method.config, "method.config")
    yield from (Notice(line) for line in planned(cls, "plan_warnings", config, inputs.context))
    yield Progress("loading " + backbone_names(run), 0, 1)
    loaded = load_backbones(backbones(run), device)
    content["weights"] = "+".join(b.fingerprint for b in loaded.values())
    digest = "+".join(b.files.digest for b in loaded.values())
    check_content(before, {"weights": content["weights"], "weights_digest": digest})
    files: dict[Path, integrity.FileIdentity] = {}
    federations = {}
    for wanted, backbone in loaded.items():
        reads, folder = planned(cls, "reads", config, backbone.spec), artifacts / "encodings"
        values = yield from relay(_encode(backbone, images, reads, folder, files), continues)
        values = placed(values, backbone)
        if inputs.cross_class is not None:
            made = federation_of_all(images, inputs.cross_class, values, backbone, run.seed)
        else:
            made = build_federation(images, inputs, values, backbone, run.seed, run.data.root)
        for config_of_other, other in zip(run.transfer, others, strict=True):
            values = yield from relay(_encode(backbone, other.images, reads, folder, files), continues)
            made = with_transfer(made, other, values, config_of_other.root)
        federations[wanted] = replace(made, test_sample=run.test_sample)
    federation = next(iter(federations.values()))
    listed = entities(federation)
    if inputs.cross_class is not None:
        cohorts = cohorts_of_one(cls, config, federation, images, inputs.cross_class)
        method = cohorts[0].method
    else:
        method = make(cls, config, federation.problem)
        yield from _drawn_texts_notice(method)
        federations = yield from _with_values(method, federations)
        federation = next(iter(federations.values()))
        everyone = range(len(inputs.assignment.clients))
        cohorts = build_cohorts(run, federations) or (Cohort(method, federation, everyone),)
    return RunSetup(
        method=method,
        federation=federation,
        cohorts=cohorts,
        entities=listed + adapted_entities(federation),
        images=images,
        backbones=tuple(loaded.values()),
        encodings=files,
        content=content,
    )


def set_up_again(
    run: RunConfig, artifacts: Path, device: str, before: Mapping[str, Any] | None = None
) -> Work[RunSetup]:
    """Set up a run as ``set_up`` does, without its notices, for callers that do not train it."""
    steps = set_up(run, artifacts, device, before=before)
    return (yield from relay(steps, lambda step: isinstance(step, Progress)))  # type: ignore[misc]


def _encode(
    backbone: Backbone, images: ImageSet, reads: str, folder: Path, files: dict[Path, integrity.FileIdentity]
) -> Generator[Progress | Notice, None, Tensor]:
    """Encode a data set unless its encoding is cached, and add its file to those of the run.

    Shape: -> (samples, ...).
    """
    notes: list[str] = []  # about a former encoding that was damaged
    path = yield from encodings.encode(backbone, images, reads, folder, note=notes.append)
    yield from map(Notice, notes)
    files[path] = integrity.identity(path)
    return encodings.read(path)


def _with_values(
    method: Method, federations: dict[BackboneConfig, Federation]
) -> Generator[Notice, None, dict[BackboneConfig, Federation]]:
    """Return the federations without the tests on which the method has no value; notices say why."""
    federation = next(iter(federations.values()))
    if federation.label_spaces and (reason := reason_without_value(method)):
        yield Notice(f"{NO_VALUE}on new classes: {reason}")
        federations = {wanted: replace(f, label_spaces=()) for wanted, f in federations.items()}
    new = federation.newcomers
    if new is not None and (reason := reason_without_adaptation(method, new)):
        yield Notice(f"{NO_VALUE}of unseen clients after adaptation: {reason}")
        federations = {wanted: replace(f, newcomers=None) for wanted, f in federations.items()}
    return federations


def reason_without_value(method: Method) -> str:
    """Return why a trained model has no value on new classes; empty if it has one.

    A method of the user's own may have forgotten ``class_axes``. Where as many classes are new as were
    trained on, its scores would then have the right shape and mean nothing.
    """
    reason: str = planned(type(method), "bound_to_classes", method.config)
    if reason:
        return reason
    if overrides(type(method), "retarget"):
        return ""
    undeclared = sorted(set(entries_by_class(method)) - set(method.class_axes))
    if not undeclared:
        return ""
    names = ", ".join(f"'{name}'" for name in undeclared)
    return f"its parameter {names} depends on the number of classes; name it in class_axes"


def reason_without_adaptation(method: Method, newcomers: Federation) -> str:
    """Return why a client that never took part cannot adapt the trained model; empty if it can."""
    if not method.trains:
        return ""
    reason: str = planned(type(method), "bound_to_clients", method.config)
    if reason:
        return reason
    ours, theirs = initial_state(method), initial_state(make(type(method), method.config, newcomers.problem))
    if ours.personal:
        return "the server makes parameters for each client that takes part"
    other = [n for n, v in ours.shared.items() if v.shape != theirs.shared[n].shape]
    return f"its shared parameter '{other[0]}' depends on the number of clients" if other else ""


_TEXTS_IN_NOTICE = 12
"""Drawn texts in a notice; every list of runs reads the notices, so further texts go to the log only."""


def _drawn_texts_notice(method: Method) -> Iterator[Notice]:
    """Yield a notice of the texts that a run has drawn by its seed."""
    if isinstance(method, Described) and method.config.class_text == "description":
        by_class = zip(method.problem.classes, method.texts, strict=True)
        texts = [f'{name}: "{text}"' for name, text in by_class]
        shown, rest = texts[:_TEXTS_IN_NOTICE], texts[_TEXTS_IN_NOTICE:]
        more = f"; and {len(rest)} more, in the log" if rest else ""
        yield Notice(
            f"{method.about.title} drew one text per class by the run's seed: {'; '.join(shown)}{more}",
            detail="\n".join(["", *rest]) if rest else "",
        )


def build_cohorts(run: RunConfig, federations: dict[BackboneConfig, Federation]) -> tuple[Cohort, ...]:
    """Make the run's cohorts, each with a method for its backbone and budget; empty if there are none."""
    cls, cohorts, start = registry.get(run.method.name), [], 0
    for i, cohort in enumerate(run.cohorts):
        federation = federations[cohort.backbone or run.backbone]
        config = cohort_config(run, cohort, f"cohorts.{i}")
        members = range(start, start := start + cohort.clients)
        cohorts.append(Cohort(make(cls, config, federation.problem), federation, members, cohort.max_steps))
    return tuple(cohorts)


def content_hash(images: ImageSet) -> str:
    """Hash the names, labels and domains of a data set's samples, which are the same on every machine."""
    digest = hashlib.sha256(repr((images.classes, images.domains, images.keys)).encode())
    digest.update(np.asarray(images.labels, dtype=np.int64).tobytes())
    digest.update(np.asarray(images.domain, dtype=np.int64).tobytes())
    return digest.hexdigest()[:16]


_LOADED: dict[tuple[str, str | None, str, str], Backbone] = {}


def load_backbones(wanted: tuple[BackboneConfig, ...], device: str) -> dict[BackboneConfig, Backbone]:
    """Load the backbones of a run; they stay in memory for the next run of the process, others are freed."""
    keys = {b: (b.name, b.pretrained, device, b.precision) for b in wanted}
    for key in set(_LOADED) - set(keys.values()):
        del _LOADED[key]  # an unused ViT-L would only take memory
    for key in keys.values():
        if key not in _LOADED or _LOADED[key].files.changed():
            _LOADED[key] = clip_backbone.load(*key)
    return {b: _LOADED[key] for b, key in keys.items()}


def load_backbone(name: str, pretrained: str | None, device: str, precision: str) -> Backbone:
    """Load one backbone as new runs do; it stays in memory as with ``load_backbones``."""
    wanted = BackboneConfig(name=name, pretrained=pretrained, precision=precision)
    return load_backbones((wanted,), device)[wanted]
