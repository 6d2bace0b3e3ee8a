"""FedOTP matches image regions with a shared and a local prompt by optimal transport (Li et al., 2024).

For every image and class, with C_vj = 1 - cos(region v, t_k(p_j)):

    T = argmin <T, C> - eps H(T)  with  T 1 <= 1/V  and  T^T 1 = gamma/2      Section 3.3, Algorithm 1
    scores  s sum_vj T_vj cos(region v, t_k(p_j)),  L = CE(scores), without a gradient through T

The server averages p_1; p_2 never leaves its client. The global model has p_1 alone, which gets all of gamma.

Changed from its code: every transport stops by itself, so that a prediction does not depend on its batch.
"""

from typing import Literal

from fedcore import methods as fl
from fedcore.base.lazy import functional as F
from fedcore.base.lazy import torch
from fedcore.methods.baselines.prompts import PromptedConfig
from fedcore.methods.baselines.prompts.transport import Matched, transport


class FedOTPConfig(PromptedConfig):
    lr: fl.LearningRate = fl.hyper(1e-3, "Learning rate of local SGD (paper: 0.001)")
    local_start: Literal["common", "own"] = fl.hyper(
        "common",
        "common: all clients' local prompts start from the same random vectors (authors' code); "
        "own: each starts from a draw for its client",
        title="local prompts start",
        words={"common": "from one draw", "own": "from a draw each"},
    )
    regularisation: float = fl.hyper(
        0.1,
        "Entropic regularisation of the transport (paper: 0.1; few-shot scripts: 0.01)",
        title="entropic regularisation",
        gt=0,
        le=10,
    )
    mass: float = fl.hyper(
        0.8,
        "Share gamma of the image that is matched with the prompts; the rest is left out (paper: 0.8)",
        title="transported mass",
        gt=0,
        le=1,
        search=fl.SearchRange(low=0.5, high=1),
    )
    iterations: int = fl.hyper(100, "Most iterations of the transport (authors' code: 100)", ge=1, le=10_000)
    tolerance: float = fl.hyper(
        1e-5,
        "Relative change of a prompt's scaling below which a transport is solved (authors' code: "
        "1e-3, absolute and averaged over the batch, which is about as strict)",
        ge=0,
        le=1,
    )


@fl.method
class FedOTP(Matched):
    """s sum(T cos(region, prompted class)) over regions and both prompts, T the transport between them."""

    name = "fedotp"
    about = fl.About(
        source="Li et al., Global and Local Prompts Cooperation via Optimal Transport for Federated "
        "Learning, CVPR 2024",
        summary="CLIP stays frozen; every client learns two contexts before the class names: one that the "
        "server averages, and one that never leaves it. "
        "An image is not one embedding but the embeddings of all its regions. "
        "For each class, unbalanced optimal transport matches the regions with the two prompts: each gets an "
        "equal part, and regions that fit neither are left out. "
        "The score is the cosine of regions and prompts, averaged by this plan. "
        "The global model has the shared prompt alone.",
        prompts={"context": "shared", "own": "own"},
    )
    Config = FedOTPConfig
    backbones = "equal token widths"
    shared = ("context",)

    def __init__(self, config: FedOTPConfig, problem: fl.Problem) -> None:
        solver = config.regularisation, config.iterations, config.tolerance
        super().__init__(config, problem, 2, lambda cost: transport(cost, config.mass, *solver))

    def init(self, generator: fl.Generators) -> fl.State:
        """Draw all contexts from N(0, 0.02). Shape: context (M, m), own (clients, M, m)."""
        if self.config.local_start == "common":
            local = self.repeat({"own": self._draw(generator("fedotp", "own"))})
        else:
            drawn = [self._draw(generator("fedotp", "own", name)) for name in self.problem.clients]
            local = {"own": torch.stack(drawn)}
        return fl.State(shared={"context": self._draw(generator("fedotp", "context"))}, local=local)

    def head(self, params: fl.Params, data: fl.LocalData | None) -> fl.Params:
        """Return normalised class features of each prompt. Shape: prompts (models, P, classes, d)."""
        contexts = [params[name] for name in ("context", "own") if name in params]
        texts = F.normalize(self._text(torch.cat(contexts)), dim=-1)
        return {"prompts": torch.stack(texts.chunk(len(contexts)), 1)}
