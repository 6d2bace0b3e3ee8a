"""PLOT matches image regions with several shared prompts by optimal transport (Chen et al., ICLR 2023).

For every image and class, with R regions, N prompts and C_rn = 1 - cos(region r, t_k(P_n)):

    T = argmin <T, C> - eps H(T)  with  T 1 = 1/R  and  T^T 1 = 1/N, by Sinkhorn's sweeps
    client: scores  s sum_rn T_rn cos(region r, t_k(P_n)),  L = CE(scores), without a gradient through T
    server: P_n <- sum_i n_i P_n,i / sum_i n_i

The paper trains it on one machine; here clients do, and the server averages.
Changed from its code: every transport stops by itself, so that a prediction does not depend on its batch.
"""

from fedcore import methods as fl
from fedcore.base.lazy import Tensor, torch
from fedcore.base.lazy import functional as F
from fedcore.methods.baselines.prompts import PromptedConfig
from fedcore.methods.baselines.prompts.transport import Matched, transport


class PLOTConfig(PromptedConfig):
    prompts: int = fl.hyper(
        4, "Number of shared prompts (N; paper: 4)", title="number of prompts", ge=1, le=64
    )
    regularisation: float = fl.hyper(
        0.1,
        "Entropic regularisation of the transport (authors' code: 0.1)",
        title="entropic regularisation",
        gt=0,
        le=10,
    )
    iterations: int = fl.hyper(100, "Most sweeps of the transport (authors' code: 100)", ge=1, le=10_000)
    tolerance: float = fl.hyper(
        1e-3,
        "Relative change of a prompt's scaling below which a transport is solved (authors' code: a mean "
        "change of the regions' scalings of 1e-2 over the batch, which is about as strict)",
        ge=0,
        le=1,
    )
    lr: fl.LearningRate = fl.hyper(2e-3, "Learning rate of local SGD (authors' code: 0.002)")
    schedule: fl.RateSchedule = fl.hyper("cosine", fl.HALF_COSINE)


@fl.method
class PLOT(Matched):
    """s sum(T cos(region, prompted class)) over regions and shared prompts, T the transport between them."""

    name = "plot"
    about = fl.About(
        source="Chen et al., PLOT: Prompt Learning with Optimal Transport for Vision-Language Models, "
        "ICLR 2023",
        summary="CLIP stays frozen; several contexts before the class names are learned, so that a class has "
        "several descriptions. "
        "An image is not one embedding but the embeddings of all its regions. "
        "For each class, optimal transport matches the regions with the prompts: every region and every "
        "prompt takes an equal part. "
        "The score is the cosine of regions and prompts, averaged by this plan. "
        "The server averages all prompts.",
    )
    clients_use_global = True
    backbones = "equal token widths"
    Config = PLOTConfig
    shared = ("context",)

    def __init__(self, config: PLOTConfig, problem: fl.Problem) -> None:
        solver = config.regularisation, config.iterations, config.tolerance
        super().__init__(
            config, problem, config.prompts, lambda cost: transport(cost, 1.0, *solver, at_most=False)
        )

    def init(self, generator: fl.Generators) -> fl.State:
        """Draw all contexts from N(0, 0.02), the first as PromptFL's. Shape: context (N, M, m)."""
        first = self._draw(generator("promptfl", "context"))
        others = [self._draw(generator("plot", "context", n)) for n in range(1, self.config.prompts)]
        return fl.State(shared={"context": torch.stack([first, *others])})

    def head(self, params: fl.Params, data: fl.LocalData | None) -> fl.Params:
        """Return normalised class features of each prompt. Shape: prompts (models, N, classes, d)."""
        contexts = params["context"]
        texts = F.normalize(self._text(contexts.flatten(0, 1)), dim=-1)
        return {"prompts": texts.unflatten(0, contexts.shape[:2])}

    def prompts(self, params: fl.Params, clients: Tensor | None) -> fl.Values:
        """Return the contexts. Shape: (models, M, m) each."""
        return {f"context {n + 1}": context for n, context in enumerate(params["context"].unbind(1))}
