"""The common part of FedOTP and PLOT: optimal transport between the regions of an image and several prompts.

For every image and class, T is the plan between all regions v and prompts j that costs 1 - cos(v, t_k(p_j)).
The score is s sum_vj T_vj cos(v, t_k(p_j)), without a gradient through T. The methods differ in how much each
region has to give, and in which of the prompts are shared.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from fedcore import methods as fl
from fedcore.base.lazy import Tensor, torch
from fedcore.base.lazy import functional as F
from fedcore.clip.specs import BackboneSpec
from fedcore.methods.baselines.prompts import Prompted

HELD = 8
"""Numbers that a prediction holds for each region, prompt and class: cosines, potentials and the plan."""


def transport(
    cost: Tensor,
    mass: float,
    regularisation: float,
    iterations: int,
    tolerance: float,
    at_most: bool = True,
) -> Tensor:
    """Return plans that send ``mass`` from regions, each at most 1/V of it, to prompts in equal parts.

    Solves min <T, C> - eps H(T) with T 1 <= 1/V and T^T 1 = gamma/P by Dykstra's projections in log space.
    Without ``at_most`` every region sends 1/V, which needs a mass of 1: these are Sinkhorn's sweeps.
    Every problem stops at its own tolerance, so that its plan does not depend on the other problems.

    Shape: cost (..., V regions, P prompts) -> like cost.  Source: FedOTP, Section 3.3 and Algorithm 1; PLOT.
    """
    regions, prompts = cost.shape[-2:]
    log_cap, log_share = -math.log(regions), math.log(mass / prompts)
    kernel = -cost / regularisation
    rows, columns = torch.zeros_like(cost[..., 0]), torch.zeros_like(cost[..., 0, :])
    moving = torch.ones_like(rows[..., 0], dtype=torch.bool)
    look_every = 1 if cost.device.type == "cpu" else 16  # looking waits for the device, and changes no plan
    for done in range(1, iterations + 1):
        capped = log_cap - torch.logsumexp(kernel + columns[..., None, :], -1)
        capped = capped.clamp(max=0) if at_most else capped
        filled = log_share - torch.logsumexp(kernel + capped[..., None], -2)
        step = (filled - columns).abs().amax(-1)
        rows = torch.where(moving[..., None], capped, rows)
        columns = torch.where(moving[..., None], filled, columns)
        moving = moving & (step >= tolerance)
        if done % look_every == 0 and not moving.any():
            break
    return (rows[..., None] + kernel + columns[..., None, :]).exp()


class Matched(Prompted):
    """Base of methods that match image regions with prompts.

    A subclass's ``head`` returns normalised class features of each prompt.

    Shape: prompts (models, P, classes, d).
    """

    def __init__(
        self, config: Any, problem: fl.Problem, prompts: int, plan: Callable[[Tensor], Tensor]
    ) -> None:
        """Prepare the class names.

        Args:
            prompts: the most prompts that a model matches an image with.
            plan: returns the plans T. Shape: cost (..., V regions, P prompts) -> like cost.
        """
        super().__init__(config, problem)
        self._prompt_count, self._plan = prompts, plan

    @classmethod
    def reads(cls, config: Any, spec: BackboneSpec) -> str:
        """Return the encoding of all regions of an image."""
        return "regions"

    def logits(self, params: fl.Params, head: fl.Params, x: Tensor) -> Tensor:
        """Return s <T, cos> of every class, with no gradient through the plan T."""
        each = len(x) * self.numbers_per_sample() * x.element_size()
        scores = partial(self._scores, head["prompts"])
        return fl.in_pieces(scores, fl.piece_size(each, x.device), x.transpose(0, 1)).transpose(0, 1)

    def _scores(self, texts: Tensor, x: Tensor) -> Tensor:
        """Shape: texts (models, P, classes, d), x (n, models, regions, d) -> (n, models, classes)."""
        cosines = torch.einsum("scvd,cpkd->sckvp", F.normalize(x, dim=-1), texts)
        with torch.no_grad():
            plan = self._plan(1 - cosines)
        return self.problem.backbone.logit_scale * (plan * cosines).sum((-2, -1))

    def numbers_per_sample(self) -> int:
        """Return the numbers of the transports between all regions, prompts and classes."""
        return HELD * self._prompt_count * self.problem.backbone.spec.patches * len(self.problem.classes)
