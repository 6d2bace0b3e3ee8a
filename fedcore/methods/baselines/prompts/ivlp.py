"""IVLP learns prompts of both encoders, independent of each other, with all clients (Khattak et al., 2023).

Layer i <= J of the text tower reads P_i behind [SOS], layer i of the image tower V_i behind its tokens:

    client: scores s cos(h(V_1, ..., V_J), t_k(P_1, ..., P_J)),  L = CE(scores)
    server: mean of all P_i and V_i

From layer 2 on the prompts replace the outputs of those before; after layer J the last ones pass through.
FedMaPLe makes the V_i from the P_i by linear maps; PromptSRC adds regularisers.
"""

from typing import Any, ClassVar

from fedcore import methods as fl
from fedcore.base.lazy import Tensor, torch
from fedcore.clip.adapters import scaled_layer
from fedcore.clip.prompts import draw_context, encode_context
from fedcore.methods.baselines.prompts import WORDS, PromptedTowers


class IVLPConfig(fl.MethodConfig):
    context_length: fl.PromptLength = fl.hyper(
        4,
        "Learned vectors in each prompted layer of the text encoder, tokens (PromptSRC: 4, MaPLe: 2, the "
        f"first of '{WORDS}'); more than four start at random",
    )
    visual_length: int = fl.hyper(
        4,
        "Learned vectors in each prompted layer of the image encoder, tokens (PromptSRC: 4, MaPLe: 2)",
        title="visual prompt length",
        ge=1,
        le=200,
    )
    depth: int = fl.hyper(
        9,
        "Layers of both encoders that have prompts (PromptSRC: 9; 1 is shallow), counted as in towers of 12",
        title="prompted layers",
        ge=1,
        le=12,
    )
    lr: fl.LearningRate = fl.hyper(
        2.5e-3, "Learning rate of local SGD (authors' code: 0.0025, falling as a cosine)"
    )
    schedule: fl.RateSchedule = fl.hyper("cosine", fl.HALF_COSINE)
    batch_size: fl.BatchSize = fl.hyper(4, "Samples in a local batch (authors' code: 4)")


@fl.method
class IVLP(PromptedTowers):
    """cos(h(V), t(P)): text prompts P and image prompts V in the first layers of the two encoders.

    A subclass may make the image prompts otherwise: it names their parameters in ``_image``, draws them in
    ``_image_start`` and returns them from ``_visual``.
    """

    name = "ivlp"
    about = fl.About(
        source="Independent vision-language prompting, the baseline of Khattak et al., MaPLe: Multi-modal "
        "Prompt Learning, CVPR 2023, under federated averaging",
        summary="CLIP stays frozen; short prompts are learned in the first layers of both encoders. "
        "The prompts of the image encoder and those of the text encoder are independent: only the "
        "loss connects them. "
        "The server averages all of them; there is one model for all clients. "
        "It is FedMaPLe without the maps between the encoders, and PromptSRC without its regularisers. "
        "Training passes through both encoders.",
    )
    clients_use_global = True
    Config: ClassVar[type[fl.MethodConfig]] = IVLPConfig
    _image: tuple[str, ...] = ("visual",)
    _draws = "ivlp"
    """First purpose of the generators, so that methods that differ by their losses alone start alike."""

    def __init__(self, config: Any, problem: fl.Problem) -> None:
        super().__init__(config, problem)
        self.tower = problem.backbone.image
        spec = problem.backbone.spec
        self.layers = max(1, scaled_layer(config.depth, min(spec.vision_layers, spec.text_layers)))
        self.shared = ("context", *(["deep"] if self.layers > 1 else []), *self._image)

    def init(self, generator: fl.Generators) -> fl.State:
        """Return the first words of a photo prompt as context, and all other prompts drawn from N(0, 0.02).

        Shape: context (M, m), deep (layers - 1, M, m), visual (layers, p, width).
        """
        length, m = self.config.context_length, self.problem.backbone.spec.token_width
        first = self._first_words()
        first = self._draw(generator(self._draws, "context")) if first is None else first
        values = {"context": first, **self._image_start(generator)}
        if self.layers > 1:
            drawn = draw_context((self.layers - 1) * length, m, generator(self._draws, "deep"))
            values["deep"] = drawn.view(self.layers - 1, length, m)
        return fl.State(shared=self.place({name: values[name] for name in self.shared}))

    def _image_start(self, generator: fl.Generators) -> fl.Params:
        """Draw the parameters of the image prompts, in float64."""
        length, width = self.config.visual_length, self.problem.backbone.spec.vision_width
        drawn = draw_context(self.layers * length, width, generator(self._draws, "visual"))
        return {"visual": drawn.view(self.layers, length, width)}

    def _visual(self, params: fl.Params) -> Tensor:
        """Return the image prompts of each layer. Shape: -> (models, layers, p, width)."""
        return params["visual"]

    def head(self, params: fl.Params, data: fl.LocalData | None) -> fl.Params:
        """Return class features and image prompts.

        Shape: text (models, classes, d), prompts (models, layers, p, width).
        """
        prompts = self._visual(params)
        text = encode_context(self.problem.backbone, params["context"], self.suffix, deep=params.get("deep"))
        return {"text": text, "prompts": torch.cat([self._norm(prompts[:, :1]), prompts[:, 1:]], 1)}

    def features(self, params: fl.Params, head: fl.Params, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return embeddings and class features. Shape: -> (models, samples or classes, d)."""
        return self.tower.tail(x, 0, prompts=head["prompts"]), head["text"]
