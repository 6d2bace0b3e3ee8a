"""Clients with different backbones: a method is held to its word (``Method.backbones``).

The first state may not come from one of the backbones. Diagnostics, which see all clients at once, may not
read samples: the server's side knows these as the first cohort's backbone encodes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, NoReturn

from fedcore.federation import LocalData
from fedcore.lazy import torch
from fedcore.methods.base import FedLensMethodError

if TYPE_CHECKING:
    from torch import Tensor

    from fedcore.engine.loop import Cohort

PARTS = ("shared", "personal", "local", "server")


def is_mixed(cohorts: Sequence[Cohort]) -> bool:
    """Whether the cohorts have different backbones.

    Raises:
        FedLensMethodError: when they do, and the method's first state depends on which one makes it.
    """
    first, *rest = {id(c.federation.problem.backbone): c for c in cohorts}.values()
    for other in rest:
        _check_state(first, other)
    return bool(rest)


def _check_state(one: Cohort, other: Cohort) -> None:
    with torch.no_grad():
        states = [c.method.init(c.federation.problem.generator) for c in (one, other)]
    for part in PARTS:
        left, right = (getattr(state, part) for state in states)
        for name in dict.fromkeys([*left, *right]):
            if not _equal(left.get(name), right.get(name)):
                names = [c.federation.problem.backbone.facts.name for c in (one, other)]
                raise FedLensMethodError(
                    f"{type(one.method).__name__} declares backbones = '{one.method.backbones}', but its "
                    f"{part} '{name}' starts as {_shape(left.get(name))} with {names[0]} and "
                    f"{_shape(right.get(name))} with {names[1]}; declare backbones = 'one'"
                )


def _equal(one: Tensor | None, other: Tensor | None) -> bool:
    return one is not None and other is not None and torch.equal(one, other.to(one))


def _shape(value: Tensor | None) -> str:
    return "nothing" if value is None else f"{tuple(value.shape)} of norm {value.double().norm():.4g}"


@dataclass(frozen=True)
class WithoutSamples(LocalData):
    """Some clients' data without their images: labels and counts are the same through every backbone."""

    method: str = ""

    @property
    def x(self) -> NoReturn:
        """Refused.

        Raises:
            FedLensMethodError: always.
        """
        raise FedLensMethodError(
            f"the diagnostics of {self.method} read samples, but its clients have different backbones and "
            "these samples are encoded by the first one; measure in a phase (Step.terms) or in upload, which "
            "run through each client's own, or declare backbones = 'one'"
        )


def without_samples(data: LocalData, method: object) -> LocalData:
    """The same data, for figures over clients of different backbones."""
    kept = {f.name: getattr(data, f.name) for f in fields(LocalData)}
    kept["pool"] = replace(data.pool, values=data.pool.values[:0])
    return WithoutSamples(**kept, method=type(method).__name__)
