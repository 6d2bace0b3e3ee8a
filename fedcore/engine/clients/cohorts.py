"""Cohorts: clients that differ in backbone or training budget, and whether a method can train them together.

A method declares in ``Method.backbones`` whether its clients may have different ones. If so, its initial
state must not depend on any of them. Its diagnostics, which see all clients at once, must not read samples:
the server has them only as encoded by the first cohort's backbone. Importing this module does not load torch.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import NoReturn

from fedcore.base.errors import FedLensError
from fedcore.base.lazy import Tensor, torch
from fedcore.clip.specs import BackboneSpec, backbone_spec, weights_source
from fedcore.config import BackboneConfig, CohortConfig, RunConfig, backbones
from fedcore.engine.clients.contract import initial_state
from fedcore.engine.clients.hooks import make, planned
from fedcore.methods import registry
from fedcore.methods.base import STATE_PARTS, FedLensMethodError, Method, RunContext
from fedcore.methods.federation import Federation, LocalData
from fedcore.methods.hyperparameters import MethodConfig


@dataclass(frozen=True)
class Cohort:
    """Clients that share a backbone and a training budget; or one client that predicts among its own classes.

    Its method and federation contain all clients of the run, so that indices mean the same everywhere; it
    trains and evaluates only its own clients.

    Attributes:
        method: made for this cohort's backbone, with its batch size and local epochs.
        federation: all samples as this cohort's backbone encodes them.
        clients: its clients, a range of the client order.
        max_steps: most local steps of a client in one round; None: no limit.
    """

    method: Method
    federation: Federation
    clients: range
    max_steps: int | None = None


def check_backbones(run: RunConfig) -> BackboneSpec:
    """Check all backbones of a run, and return the sizes of the first one, which is the server's."""
    for i, cohort in enumerate(run.cohorts):
        if cohort.backbone is not None:
            with _error_of_cohort(i):
                weights_source(cohort.backbone.name, cohort.backbone.pretrained)
    first = backbones(run)[0]
    weights_source(first.name, first.pretrained)
    return backbone_spec(first.name)


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
    sizes = [backbone_spec((c.backbone or run.backbone).name) for c in run.cohorts]
    _check_together(method, run, sizes)
    for i, (cohort, size) in enumerate(zip(run.cohorts, sizes, strict=True)):
        config = cohort_config(run, cohort, f"cohorts.{i}")
        with _error_of_cohort(i):
            planned(method, "check", config, replace(context, spec=size))


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
        able = [m.about.title for m in registry.load_all().values() if m.backbones != "one"]
        raise FedLensError(
            f"the parameters of {method.about.title} belong to one backbone, so its clients cannot have "
            f"{_name(chosen[0])} and {_name(chosen[other])}; give all cohorts one backbone, or use a method "
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


def _name(backbone: BackboneConfig) -> str:
    return f"{backbone.name} ({backbone.pretrained})" if backbone.pretrained else backbone.name


def is_mixed(cohorts: Sequence[Cohort]) -> bool:
    """Return whether the cohorts have different backbones, and check that the initial state fits all."""
    first, *rest = {id(c.federation.problem.backbone): c for c in cohorts}.values()
    for other in rest:
        for part, name, ours, theirs in differing_start(first, other):
            one, two = (c.federation.problem.backbone.spec.name for c in (first, other))
            raise FedLensMethodError(
                f"{type(first.method).__name__} declares backbones = '{first.method.backbones}', but its "
                f"{part} '{name}' starts as {_shape(ours)} with {one} and {_shape(theirs)} with {two}; "
                "declare backbones = 'one'"
            )
    return bool(rest)


def differing_start(one: Cohort, other: Cohort) -> Iterator[tuple[str, str, Tensor | None, Tensor | None]]:
    """Yield part of the state, name and both values of each parameter that starts differently."""
    states = [initial_state(c.method) for c in (one, other)]
    for part in STATE_PARTS:
        left, right = (getattr(state, part) for state in states)
        for name in dict.fromkeys([*left, *right]):
            ours, theirs = left.get(name), right.get(name)
            if ours is None or theirs is None or not torch.equal(ours, theirs.to(ours)):
                yield part, name, ours, theirs


def entries_by_class(method: Method) -> tuple[str, ...]:
    """Return the parameters that have an entry for each class: those whose shape one class fewer changes."""
    problem = method.problem
    fewer = replace(problem, classes=problem.classes[:-1], class_counts=problem.class_counts[:, :-1])
    states = [initial_state(m) for m in (method, make(type(method), method.config, fewer))]
    found = []
    for part in STATE_PARTS:
        one, other = (getattr(state, part) for state in states)
        found += [name for name, value in one.items() if value.shape != other[name].shape]
    return tuple(dict.fromkeys(found))


def _shape(value: Tensor | None) -> str:
    return "nothing" if value is None else f"{tuple(value.shape)} of norm {value.double().norm():.4g}"


@dataclass(frozen=True)
class WithoutSamples(LocalData):
    """Some clients' data without their images; labels and counts are the same through every backbone."""

    method: str = ""

    @property
    def x(self) -> NoReturn:
        """Refuse to return the samples."""
        raise FedLensMethodError(
            f"the diagnostics of {self.method} read samples, but its clients have different backbones or "
            "classes, and the server's method is the first client's; measure in a phase (Step.terms) or in "
            "upload, which run through each client's own, or declare backbones = 'one'"
        )


def without_samples(data: LocalData, method: object) -> LocalData:
    """Return the data without samples, for diagnostics over clients of different backbones."""
    values = {f.name: getattr(data, f.name) for f in fields(LocalData)}
    values["pool"] = replace(data.pool, values=data.pool.values[:0])
    return WithoutSamples(**values, method=type(method).__name__)
