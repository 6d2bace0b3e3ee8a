"""FedAKT on CLIP: a small shared adapter and a client's own head that teach each other (Liu et al., 2025)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from fedcore.lazy import functional as F
from fedcore.methods import (
    About,
    Batch,
    DiagnosticChart,
    Generators,
    LearningRate,
    Method,
    MethodConfig,
    Models,
    Params,
    State,
    Step,
    Weighting,
    cross_entropy,
    draw_linear,
    masked_mean,
    method,
)

if TYPE_CHECKING:
    from torch import Tensor

ADAPTER = ("down_w", "down_b", "up_w", "up_b")
"""Parameters of the shared adapter d -> hidden -> K."""


class FedAKTConfig(MethodConfig):
    """Hyper-parameters of FedAKT(C); FedOT's comparison states none, and there is no public code."""

    lr: LearningRate = Field(1e-2, description="Learning rate of local SGD (our choice, as FedGH's)")
    weighting: Weighting = Field(
        "samples", description="Server mean over clients: weighted by sample counts, or plain (our choice)"
    )
    hidden: int | None = Field(
        None,
        ge=1,
        le=65536,
        title="adapter width",
        description="Hidden width of the shared adapter; default: a quarter of the embedding (our choice)",
        json_schema_extra={"empty": "a quarter of the embedding"},
    )
    distillation_weight: float = Field(
        1.0, ge=0, le=1000, description="Weight of the mutual distillation (our choice)"
    )
    temperature: float = Field(
        1.0,
        gt=0,
        le=100,
        title="distillation temperature",
        description="Temperature of the mutual distillation (our choice)",
    )


@method
class FedAKT(Method[FedAKTConfig]):
    """A shared adapter W_2 relu(W_1 h + b_1) + b_2 and a local head W h + b, each the other's teacher."""

    name = "fedakt"
    about = About(
        title="FedAKT(C)",
        source="Liu et al., adapter-based knowledge transfer (FedAKT), 2025, with CLIP as "
        "every client's model",
        summary="FedAKT lets clients have different models beside a small adapter that is alike everywhere. "
        "Here all models are CLIP, which stays frozen, with a linear head that is each client's own. "
        "Head and adapter are trained by cross-entropy, and each is drawn to the other's prediction. "
        "Only the adapter is sent, and the server averages it. "
        "Clients predict with their head, the global model with the adapter. "
        "There is no public code, and FedOT's comparison states no settings: much of this is our reading.",
        family="baseline",
        charts=(
            DiagnosticChart(
                "FedAKT's loss terms",
                {
                    "cross_entropy_head": "head, cross-entropy",
                    "cross_entropy_adapter": "adapter, cross-entropy",
                    "distillation_head": "head, distillation",
                    "distillation_adapter": "adapter, distillation",
                },
                better="lower",
            ),
        ),
    )
    Config = FedAKTConfig
    shared = ADAPTER

    def init(self, generator: Generators) -> State:
        """Draw adapter and head as torch.nn.Linear does, the same head for every client.

        Shape: down_w (hidden, d), down_b (hidden,), up_w (K, hidden), up_b (K,), head_w (clients, K, d),
        head_b (clients, K).
        """
        backbone, classes = self.problem.backbone, len(self.problem.classes)
        d = backbone.spec.embed_dim
        hidden = self.config.hidden or max(1, d // 4)
        layers = (
            *draw_linear(hidden, d, generator("fedakt", "adapter", 1)),
            *draw_linear(classes, hidden, generator("fedakt", "adapter", 2)),
            *draw_linear(classes, d, generator("fedakt", "head")),
        )
        names = (*ADAPTER, "head_w", "head_b")
        first = {n: v.to(backbone.device, backbone.dtype) for n, v in zip(names, layers, strict=True)}
        heads = self.repeat({name: first.pop(name) for name in ("head_w", "head_b")})
        return State(shared=first, local={name: value.clone() for name, value in heads.items()})

    def train_step(self, params: Params, const: Params, batch: Batch) -> Step:
        """Move the adapter by CE + beta T^2 KL(head || adapter), the head by the same the other way round."""
        head, adapter = self._head(params, batch.x), self._adapter(params, batch.x)
        terms = {
            "cross_entropy_head": cross_entropy(head, batch.labels, batch.mask),
            "cross_entropy_adapter": cross_entropy(adapter, batch.labels, batch.mask),
            "distillation_head": self._distill(head, adapter, batch.mask),
            "distillation_adapter": self._distill(adapter, head, batch.mask),
        }
        beta = self.config.distillation_weight
        losses = {
            ("head_w", "head_b"): terms["cross_entropy_head"] + beta * terms["distillation_head"],
            ADAPTER: terms["cross_entropy_adapter"] + beta * terms["distillation_adapter"],
        }
        return Step(losses, terms=terms)

    def _distill(self, student: Tensor, teacher: Tensor, mask: Tensor) -> Tensor:
        """Return T^2 KL(teacher || student) without a gradient of the teacher. Shape: (c, n, K) -> (c,)."""
        temperature = self.config.temperature
        wanted = (teacher.detach() / temperature).log_softmax(-1)
        given = (student / temperature).log_softmax(-1)
        divergence = F.kl_div(given, wanted, reduction="none", log_target=True).sum(-1)
        return temperature**2 * masked_mean(divergence, mask)

    def models(self, state: State) -> Models:
        """Return the adapter as the global model, and each client's head."""
        return Models({name: value[None] for name, value in state.shared.items()}, state.local)

    def logits(self, params: Params, head: Params, x: Tensor) -> Tensor:
        """Return the head's scores, or the adapter's where there is no head.

        Shape: x (models, samples, d) -> (models, samples, classes).
        """
        return self._head(params, x) if "head_w" in params else self._adapter(params, x)

    def _head(self, params: Params, x: Tensor) -> Tensor:
        return x @ params["head_w"].transpose(1, 2) + params["head_b"][:, None]

    def _adapter(self, params: Params, x: Tensor) -> Tensor:
        down_w, down_b, up_w, up_b = (params[name] for name in ADAPTER)
        hidden = F.relu(x @ down_w.transpose(1, 2) + down_b[:, None])
        return hidden @ up_w.transpose(1, 2) + up_b[:, None]
