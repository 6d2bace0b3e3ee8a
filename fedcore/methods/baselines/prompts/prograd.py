"""ProGrad removes the part of a prompt's gradient that contradicts zero-shot CLIP (Zhu et al., ICCV 2023).

    t_k: normalised text feature of [SOS] v class name . [EOT] with a context v of M vectors
    z_k: that of the data set's prompt, which is never trained;  u = h/|h|
    g_d = gradient of CE(s u . t)
    g_g = gradient of T^2 mean_i(- sum_k q_ik log p_ik) with q = softmax(s u . z / T) and p of t
    client: steps with g_d - lambda <g_d, e> e, e = g_g/|g_g|, if <g_d, g_g> < 0, otherwise with g_d;
            |g_g| < 10^-4 |g_d| is a g_g of zero
    server: v <- sum_i n_i v_i / sum_i n_i

The paper trains it on one machine; here clients do, and the server averages.
"""

from fedcore import methods as fl
from fedcore.base.lazy import Tensor
from fedcore.base.lazy import functional as F
from fedcore.methods.baselines.prompts import Prompted, WordedConfig


class ProGradConfig(WordedConfig):
    conflict_weight: fl.LossWeight = fl.hyper(
        1.0,
        "lambda: how much of the part of the gradient that contradicts zero-shot CLIP is removed (authors' "
        "code: 1, all of it)",
        title="removed share of the conflict",
        search=fl.SearchRange(low=0.1, high=1),
    )
    temperature: float = fl.hyper(
        1.0, "T: temperature of the predictions that are compared (authors' code: 1)", gt=0, le=100
    )
    lr: fl.LearningRate = fl.hyper(2e-3, "Learning rate of local SGD (authors' code: 0.002)")
    schedule: fl.RateSchedule = fl.hyper("cosine", fl.HALF_COSINE)
    batch_size: fl.BatchSize = fl.hyper(32, "Samples in a local batch (authors' code: 32)")


NO_GUIDE = 1e-4
"""Length of a guide, as a share of the gradient's, below which it may be rounding, which has no direction."""


def without_conflict(gradient: Tensor, guide: Tensor, weight: float) -> Tensor:
    """Return g - weight <g, e> e with e = guide/|guide| where <g, guide> < 0, elsewhere g.

    Shape: gradient and guide (clients, ...) -> (clients, ...).
    """
    flat, other = gradient.flatten(1), guide.flatten(1)
    least = NO_GUIDE * flat.norm(dim=1, keepdim=True)
    unit = F.normalize(other * (other.norm(dim=1, keepdim=True) >= least), dim=1)
    against = (flat * unit).sum(1, keepdim=True).clamp(max=0)
    return (flat - weight * against * unit).view_as(gradient)


@fl.method
class ProGrad(Prompted):
    """PromptFL whose steps do not contradict zero-shot CLIP on the same images."""

    name = "prograd"
    about = fl.About(
        source="Zhu et al., Prompt-aligned Gradient for Prompt Tuning, ICCV 2023",
        summary="CLIP stays frozen; a short sequence of word vectors before every class name is learned, "
        "as in PromptFL. "
        "Each step has a second gradient: the one that would bring the predictions nearer to those of "
        "zero-shot CLIP. "
        "If the two contradict each other, the contradicting part of the first is removed. "
        "The prompt then forgets less of what CLIP knows. "
        "The server averages the clients' vectors, and only they travel.",
        charts=(
            fl.DiagnosticChart(
                "ProGrad's two losses",
                {"cross_entropy": "cross-entropy", "to_zero_shot": "to zero-shot CLIP's predictions"},
                better="lower",
            ),
        ),
    )
    clients_use_global = True
    Config = ProGradConfig
    shared = ("context",)

    def init(self, generator: fl.Generators) -> fl.State:
        """Return one context for all clients, drawn as PromptFL's if at all. Shape: context (M, m)."""
        return fl.State(shared={"context": self._first_context(generator("promptfl", "context"))})

    def train_step(self, params: fl.Params, const: fl.Params, batch: fl.Batch) -> fl.Step:
        scale, t = self.problem.backbone.logit_scale, self.config.temperature
        logits = fl.cosine_logits(batch.x, self._text(params["context"]), scale)
        fit = fl.cross_entropy(logits, batch.labels, batch.mask)
        zero_shot = fl.cosine_logits(batch.x, self.problem.class_features[None], scale)
        surprise = -((zero_shot / t).softmax(-1) * (logits / t).log_softmax(-1)).sum(-1)
        general = t**2 * fl.masked_mean(surprise, batch.mask)
        moved = ("context",)
        terms = {"cross_entropy": fit, "to_zero_shot": general}
        return fl.Step({moved: fit}, guides={moved: general}, combine=self._aligned, terms=terms)

    def _aligned(self, gradients: fl.Params, guides: fl.Params) -> fl.Params:
        """Remove the conflict from the gradient of each parameter."""
        weight = self.config.conflict_weight
        return {name: without_conflict(g, guides[name], weight) for name, g in gradients.items()}
