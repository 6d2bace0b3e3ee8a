"""PromptFL learns one prompt with all clients: CoOp under federated averaging (Guo et al., 2022).

    t_k(v): text feature of [SOS] v class name . [EOT] with a context v of M vectors
    client: scores s cos(h, t_k(v)),  L = CE(scores)
    server: v <- sum_i n_i v_i / sum_i n_i

Changed from its code: images are encoded once, without random crops and flips.
"""

from typing import Literal

from fedcore import methods as fl
from fedcore.clip.prompts import draw_context, encode_class_context
from fedcore.methods.baselines.prompts import Prompted, PromptedConfig


class PromptFLConfig(PromptedConfig):
    context_length: fl.PromptLength = fl.hyper(
        16, "Learned context vectors before the class name, tokens (M; paper: 16, also 4)"
    )
    class_specific: bool = fl.hyper(
        False,
        "Learn a context for each class (CSC, as FedDEAP's PromptFL) instead of one for all",
        title="a context for each class",
    )
    suffix: Literal["name", "sentence"] = fl.hyper(
        "name",
        "Text after the context: name, the class name (paper), or sentence, 'a photo of a "
        "{class}.' (FedDEAP's PromptFL)",
        title="text after the context",
        words={"name": "the class name", "sentence": "a photo of a {class}"},
    )
    lr: fl.LearningRate = fl.hyper(1e-3, "Learning rate of local SGD (paper: 0.001; CoOp: 0.002)")


SUFFIXES = {"name": "{}.", "sentence": "a photo of a {}."}
"""The words after the context, by the field ``suffix``."""


@fl.method
class PromptFL(Prompted):
    """[SOS] context class name . [EOT] with a context that all clients learn, for all classes or for each."""

    name = "promptfl"
    about = fl.About(
        source="Guo et al., PromptFL: Let Federated Participants Cooperatively Learn Prompts Instead of "
        "Models, 2022",
        summary="CLIP stays frozen; a short sequence of word vectors before every class name is learned. "
        "Every client trains a copy of it on its own images by cross-entropy, as CoOp does. "
        "The server averages the copies, so that all clients end up with one common prompt. "
        "Only these vectors travel: 16 x 512 numbers for ViT-B-32. "
        "Images are encoded once, without the random crops and flips of the reference code.",
    )
    clients_use_global = True
    backbones = "equal token widths"
    Config = PromptFLConfig
    shared: tuple[str, ...] = ("context",)

    def __init__(self, config: PromptFLConfig, problem: fl.Problem) -> None:
        super().__init__(config, problem)
        if config.class_specific:
            self.class_axes = {"context": -3}

    @classmethod
    def bound_to_classes(cls, config: PromptFLConfig) -> str:
        return "it learns a context for each class" if config.class_specific else ""

    @classmethod
    def _pattern(cls, config: PromptFLConfig) -> str:
        return SUFFIXES[config.suffix]

    def init(self, generator: fl.Generators) -> fl.State:
        """Return one context for all clients. Shape: context (M, m), or (classes, M, m)."""
        backbone, length = self.problem.backbone, self.config.context_length
        contexts = len(self.problem.classes) if self.config.class_specific else 1
        width = backbone.spec.token_width
        context = draw_context(contexts * length, width, generator("promptfl", "context"))
        context = context.view(contexts, length, width) if self.config.class_specific else context
        return fl.State(shared=self.place({"context": context}))

    def head(self, params: fl.Params, data: fl.LocalData | None) -> fl.Params:
        if self.config.class_specific:
            contexts = params["context"]
            return {"text": encode_class_context(self.problem.backbone, contexts, self.suffix)}
        return super().head(params, data)
