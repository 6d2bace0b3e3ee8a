"""PromptFL: one prompt learned by all clients together, CoOp under federated averaging (Guo et al., 2022)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from fedcore.clip import tokens
from fedcore.clip.prompts import check_prompts, check_room, class_suffix, draw_context, encode_context
from fedcore.methods import (
    About,
    Batch,
    Generators,
    LearningRate,
    Method,
    MethodConfig,
    Params,
    Ragged,
    RunContext,
    State,
    Step,
    Weighting,
    cosine_logits,
    cross_entropy,
    method,
)

if TYPE_CHECKING:
    from torch import Tensor

    from fedcore.federation import LocalData, Problem


class PromptFLConfig(MethodConfig):
    """Hyper-parameters of PromptFL."""

    context_length: int = Field(
        16,
        ge=1,
        le=75,
        description="Learned context vectors before the class name, tokens (M; paper: 16, also 4)",
    )
    lr: LearningRate = Field(1e-3, description="Learning rate of local SGD (paper: 0.001; CoOp: 0.002)")
    weighting: Weighting = Field(
        "samples", description="Server mean over clients: weighted by sample counts (paper), or plain"
    )


@method
class PromptFL(Method[PromptFLConfig]):
    """[SOS] context class name . [EOT] with one context for all classes, learned by all clients."""

    name = "promptfl"
    about = About(
        title="PromptFL",
        source="Guo et al., PromptFL: Let Federated Participants Cooperatively Learn Prompts Instead of "
        "Models, 2022",
        summary="CLIP stays frozen; what is learned is a short sequence of word vectors before every class "
        "name. "
        "Every client trains a copy of it on its own images by cross-entropy, as CoOp does. "
        "The server averages the copies, so that all clients end up with one common prompt. "
        "Only these vectors travel: 16 x 512 numbers for ViT-B-32. "
        "Images are encoded once, without the random crops and flips of the reference code.",
        family="baseline",
    )
    clients_use_global = True
    backbones = "equal token widths"
    Config = PromptFLConfig
    shared: tuple[str, ...] = ("context",)

    def __init__(self, config: PromptFLConfig, problem: Problem) -> None:
        """Prepare the class names.

        Raises:
            FedLensError: when the context leaves no room for a class name (field ``context_length``).
        """
        super().__init__(config, problem)
        self.suffix = class_suffix(problem.backbone, problem.classes)
        check_room(problem.backbone, config.context_length, self.suffix, "context_length")

    @classmethod
    def check(cls, config: PromptFLConfig, context: RunContext) -> None:
        """Refuse text towers without prompts, and contexts that leave a class name no room.

        Raises:
            FedLensError: with field ``backbone.name`` or ``context_length``.
        """
        check_prompts(context.spec)
        tokens.check_room(context.spec, context.classes, config.context_length, "context_length")

    def init(self, generator: Generators) -> State:
        """Return one context for all clients. Shape: context (M, m)."""
        backbone = self.problem.backbone
        context = draw_context(
            self.config.context_length, backbone.spec.token_width, generator("promptfl", "context")
        )
        return State(shared={"context": context.to(backbone.device, backbone.dtype)})

    def train_step(self, params: Params, const: Params, batch: Batch) -> Step:
        text = encode_context(self.problem.backbone, params["context"], self.suffix)
        logits = cosine_logits(batch.x, text, self.problem.backbone.logit_scale)
        return Step({("context",): cross_entropy(logits, batch.labels, batch.mask)})

    def head(self, params: Params, data: LocalData | None) -> Params:
        """Return class features. Shape: text (models, classes, d)."""
        return {"text": encode_context(self.problem.backbone, params["context"], self.suffix)}

    def logits(self, params: Params, head: Params, x: Tensor) -> Tensor:
        """Return s cos(prompted class, image).

        Shape: x (models, samples, d) -> (models, samples, classes).
        """
        return cosine_logits(x, head["text"], self.problem.backbone.logit_scale)

    def prompts(self, params: Params, clients: Tensor | None) -> dict[str, Tensor | Ragged]:
        """Return the learned context. Shape: (models, M, m)."""
        return {"context": params["context"]}
