"""Clients that differ in backbone or training budget: whether a method can train them together. No torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from fedcore.clip.facts import BackboneFacts, facts, weights_source
from fedcore.config import BackboneConfig, CohortConfig, RunConfig, backbones
from fedcore.errors import FedLensError
from fedcore.methods import registry
from fedcore.methods.base import Method, MethodConfig, RunContext


def first_facts(run: RunConfig) -> BackboneFacts:
    """Sizes of the first cohort's backbone, which is the server's; all backbones are known and have weights.

    Raises:
        FedLensError: naming the field under ``backbone`` or ``cohorts``.
    """
    for i, cohort in enumerate(run.cohorts):
        if cohort.backbone is not None:
            with _of(i):
                _known(cohort.backbone)
    return _known(backbones(run)[0])


def _known(backbone: BackboneConfig) -> BackboneFacts:
    weights_source(backbone.name, backbone.pretrained)
    return facts(backbone.name)


def cohort_config(run: RunConfig, cohort: CohortConfig, field: str = "cohorts") -> MethodConfig:
    """The method's config with what a cohort sets for itself.

    A method that trains nothing has no budget to set: it may stand beside those that have.

    Raises:
        FedLensError: when the method has no such field, or refuses the value.
    """
    method = registry.get(run.method.name)
    overrides = cohort.overrides if method.phases is not Method.phases else {}
    for name in overrides:
        if name not in method.Config.model_fields:
            raise FedLensError(f"{method.title} has no {name}; leave it out of the cohort", f"{field}.{name}")
    return registry.build_config(run.method.name, {**run.method.config, **overrides}, field)


def check_cohorts(run: RunConfig, context: RunContext) -> None:
    """Refuse cohorts that do not fit the partition, or that the method cannot train together.

    Raises:
        FedLensError: naming the field under ``cohorts``.
    """
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
    sizes = [facts((c.backbone or run.backbone).name) for c in run.cohorts]
    _check_together(method, run, sizes)
    for i, (cohort, size) in enumerate(zip(run.cohorts, sizes, strict=True)):
        config = cohort_config(run, cohort, f"cohorts.{i}")
        with _of(i):
            method.check(config, replace(context, facts=size))


@contextmanager
def _of(cohort: int) -> Iterator[None]:
    """An error about a backbone or a budget is one about this cohort's; others keep their field."""
    try:
        yield
    except FedLensError as error:
        if (error.field or "").partition(".")[0] not in CohortConfig.model_fields:
            raise
        raise FedLensError(str(error), f"cohorts.{cohort}.{error.field}") from error


def _check_together(method: type[Method], run: RunConfig, sizes: list[BackboneFacts]) -> None:
    """Refuse different backbones where what is learned belongs to one of them."""
    own = [c.backbone or run.backbone for c in run.cohorts]
    other = next((i for i, b in enumerate(own) if b != own[0]), None)
    if other is None or method.backbones == "any":
        return
    field = f"cohorts.{other}.backbone.name"
    if method.backbones == "one":
        able = [m.title for m in registry.load_all().values() if m.backbones != "one"]
        raise FedLensError(
            f"what {method.title} learns belongs to one backbone, so its clients cannot have "
            f"{_called(own[0])} and {_called(own[other])}; give all cohorts one backbone, or use a method "
            f"that does not depend on it: {', '.join(able)}",
            field,
        )
    wider = next((i for i, s in enumerate(sizes) if s.token_width != sizes[0].token_width), None)
    if wider is not None:
        raise FedLensError(
            f"{method.title} shares prompts, vectors of the token width: {sizes[0].token_width} in "
            f"{sizes[0].name}, {sizes[wider].token_width} in {sizes[wider].name}; choose backbones of one "
            "token width, e.g. ViT-B-16 and RN50",
            f"cohorts.{wider}.backbone.name",
        )


def _called(backbone: BackboneConfig) -> str:
    return f"{backbone.name} ({backbone.pretrained})" if backbone.pretrained else backbone.name
