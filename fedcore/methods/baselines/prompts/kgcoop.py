"""KgCoOp learns one prompt whose class features stay near those of the class prompt (Yao et al., CVPR 2023).

    t_k: normalised text feature of [SOS] v class name . [EOT] with a context v of M vectors
    z_k: that of the data set's prompt, which is never trained
    client: L = CE(s cos(h, t_k)) + (lambda / K) sum_k (1 - cos(t_k, z_k))
    server: v <- sum_i n_i v_i / sum_i n_i

The paper trains it on one machine; here clients do, and the server averages, as FedTPG's authors compare it.
"""

from typing import Literal

from fedcore import methods as fl
from fedcore.base.lazy import functional as F
from fedcore.methods.baselines.prompts import Prompted, WordedConfig


class KgCoOpConfig(WordedConfig):
    knowledge_weight: fl.LossWeight = fl.hyper(
        8.0, "Weight lambda of the distance from the class prompts' features (paper: 8)", search=fl.TENFOLD
    )
    distance: Literal["cosine", "squared"] = fl.hyper(
        "cosine",
        "Distance of class features: cosine, 1 - cos(t, z) (authors' code), or squared, |t - z|^2, which is "
        "twice that (paper)",
        words={"cosine": "1 - cosine", "squared": "squared Euclidean"},
    )
    lr: fl.LearningRate = fl.hyper(
        2e-3, "Learning rate of local SGD (authors' code: 0.002; FedTPG's form: 0.003)"
    )
    schedule: fl.RateSchedule = fl.hyper("cosine", fl.HALF_COSINE)
    batch_size: fl.BatchSize = fl.hyper(128, "Samples in a local batch (authors' code: 128)")


@fl.method
class KgCoOp(Prompted):
    """PromptFL with a loss that holds every class feature near that of the class prompt."""

    name = "kgcoop"
    about = fl.About(
        source="Yao et al., Visual-Language Prompt Tuning with Knowledge-guided Context Optimization, "
        "CVPR 2023",
        summary="CLIP stays frozen; a short sequence of word vectors before every class name is learned, "
        "as in PromptFL. "
        "A second loss keeps the text feature of every class near that of the hand-written class prompt, "
        "which knows more classes than the clients do. "
        "The prompt then loses less on classes that it was not trained on. "
        "The server averages the clients' vectors, and only they travel.",
        charts=(
            fl.DiagnosticChart(
                "KgCoOp's loss terms",
                {"cross_entropy": "cross-entropy", "knowledge": "distance from the class prompts"},
                better="lower",
            ),
        ),
    )
    clients_use_global = True
    Config = KgCoOpConfig
    shared = ("context",)

    def init(self, generator: fl.Generators) -> fl.State:
        """Return one context for all clients. Shape: context (M, m)."""
        # PromptFL's draw, so that the two differ by the second loss alone
        return fl.State(shared={"context": self._first_context(generator("promptfl", "context"))})

    def train_step(self, params: fl.Params, const: fl.Params, batch: fl.Batch) -> fl.Step:
        text = self._text(params["context"])
        # Computed before the cross-entropy: the order of the two decides in which order autograd adds their
        # gradients by text, and with it the last bit of the sum, which with weight 0 is PromptFL's.
        knowledge = (1 - (F.normalize(text, dim=-1) * self.problem.class_features).sum(-1)).mean(1)
        if self.config.distance == "squared":
            knowledge = 2 * knowledge  # of unit vectors
        logits = fl.cosine_logits(batch.x, text, self.problem.backbone.logit_scale)
        fit = fl.cross_entropy(logits, batch.labels, batch.mask)
        terms = {"knowledge": knowledge, "cross_entropy": fit}
        return fl.Step({("context",): self.config.knowledge_weight * knowledge + fit}, terms=terms)
