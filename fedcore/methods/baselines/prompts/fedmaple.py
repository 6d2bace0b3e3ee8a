"""FedMaPLe couples prompts of both encoders by linear maps, under federated averaging (Khattak et al., 2023).

Layer i <= D of the text tower reads v_i behind [SOS], layer i of the image tower F_i(v_i) behind its tokens:

    scores  s cos(h(F_1(v_1), ..., F_D(v_D)), t_k(v_1, ..., v_D)),  L = CE(scores)

The server averages all v_i and F_i. From layer 2 on the prompts replace the outputs of those before.
"""

from __future__ import annotations

from fedcore.clip.lora import check_attention_layers, scaled_layer
from fedcore.clip.prompts import draw_context, encode_context, word_context
from fedcore.clip.specs import BackboneSpec
from fedcore.federation import LocalData, Problem
from fedcore.lazy import Tensor, torch
from fedcore.methods.base import Batch, Generators, Params, RunContext, State, Step
from fedcore.methods.baselines.prompts import WORDS, Prompted
from fedcore.methods.hyperparameters import BatchSize, LearningRate, MethodConfig, PromptLength, hyper
from fedcore.methods.registry import method
from fedcore.methods.tensors import cosine_logits, cross_entropy, draw_linear
from fedcore.records.presentation import About


class FedMaPLeConfig(MethodConfig):
    """Hyper-parameters of federated MaPLe."""

    context_length: PromptLength = hyper(
        2,
        f"Learned vectors in each prompted layer, tokens (MaPLe: 2, the first of '{WORDS}'); "
        "more than four start at random",
    )
    depth: int = hyper(
        9,
        "Layers of both encoders that have prompts (MaPLe: 9), counted as in towers of 12",
        title="prompted layers",
        ge=1,
        le=12,
    )
    lr: LearningRate = hyper(3.5e-3, "Learning rate of local SGD (MaPLe: 0.0035)")
    batch_size: BatchSize = hyper(4, "Samples in a local batch (MaPLe: 4)")


@method
class FedMaPLe(Prompted):
    """cos(h(F(v)), t(v)): text prompts v in the first layers, and image prompts F(v) in the same layers."""

    name = "fedmaple"
    about = About(
        title="FedMaPLe",
        source="Khattak et al., MaPLe: Multi-modal Prompt Learning, CVPR 2023, under federated averaging, as "
        "in FedAlign's comparison",
        bibtex="@inproceedings{khattak2023maple, author = {Khattak, Muhammad Uzair and Rasheed, Hanoona "
        "and Maaz, Muhammad and Khan, Salman and Khan, Fahad Shahbaz}, title = {{MaPLe}: Multi-"
        "modal Prompt Learning}, booktitle = {CVPR}, year = {2023}}",
        summary="CLIP stays frozen; short prompts are learned in the first layers of both encoders. "
        "Those of the image encoder are linear maps of those of the text encoder, so that the two are "
        "learned together. "
        "The server averages the text prompts and the maps; there is one model for all. "
        "The maps are the largest part of the upload. "
        "Training passes through both encoders.",
        family="baseline",
    )
    clients_use_global = True
    Config = FedMaPLeConfig

    def __init__(self, config: FedMaPLeConfig, problem: Problem) -> None:
        super().__init__(config, problem)
        backbone = problem.backbone
        self.tower = backbone.image
        self.layers = prompted_layers(config, backbone.spec)
        self.shared = ("context", *(["deep"] if self.layers > 1 else []), "w", "b")

    @classmethod
    def check(cls, config: FedMaPLeConfig, context: RunContext) -> None:
        """Refuse backbones without prompts in both encoders, and contexts that leave a class name no room."""
        check_attention_layers(cls.about.title, context.spec, "backbone.name")
        super().check(config, context)

    @classmethod
    def _pattern(cls, config: FedMaPLeConfig) -> str:
        """Return the text behind the context, which takes the place of the first words of 'a photo of a'."""
        return " ".join([*WORDS.split()[config.context_length :], "{}."])

    @classmethod
    def reads(cls, config: FedMaPLeConfig, spec: BackboneSpec) -> str:
        """Return the encoding that enters the first layer, which prompts join."""
        return "layer:0"

    def init(self, generator: Generators) -> State:
        """Return the first words of a photo prompt, random deeper prompts, and maps drawn as linear layers.

        The maps of the deeper layers start equal, as copies of one layer do in the authors' code.

        Shape: context (M, m), deep (layers - 1, M, m), w (layers, width, m), b (layers, width).
        """
        backbone, length = self.problem.backbone, self.config.context_length
        m, width = backbone.spec.token_width, backbone.spec.vision_width
        few = length <= len(WORDS.split())
        first = (
            word_context(backbone, WORDS)[:length] if few else self._draw(generator("fedmaple", "context"))
        )
        maps = [draw_linear(width, m, generator("fedmaple", "map", i)) for i in (1, 2)]
        maps = [maps[0], *([maps[1]] * (self.layers - 1))]
        values = {
            "context": first,
            "w": torch.stack([w for w, _ in maps]),
            "b": torch.stack([b for _, b in maps]),
        }
        if self.layers > 1:
            drawn = draw_context((self.layers - 1) * length, m, generator("fedmaple", "deep"))
            values["deep"] = drawn.view(self.layers - 1, length, m)
        return State(shared=self.place({name: values[name] for name in self.shared}))

    def train_step(self, params: Params, const: Params, batch: Batch) -> Step:
        logits = self.logits(params, self.head(params, None), batch.x)
        return Step({self.shared: cross_entropy(logits, batch.labels, batch.mask)})

    def head(self, params: Params, data: LocalData | None) -> Params:
        """Return class features and image prompts.

        Shape: text (models, classes, d), prompts (models, layers, M, width).
        """
        every = params["context"][:, None]
        if "deep" in params:
            every = torch.cat([every, params["deep"]], 1)
        prompts = every @ params["w"].transpose(-1, -2) + params["b"][:, :, None]
        first = self.tower.visual.ln_pre(prompts[:, :1])  # the first prompts pass the embedding's norm
        text = encode_context(self.problem.backbone, params["context"], self.suffix, deep=params.get("deep"))
        return {"text": text, "prompts": torch.cat([first, prompts[:, 1:]], 1)}

    def logits(self, params: Params, head: Params, x: Tensor) -> Tensor:
        """Return s cos(image, class)."""
        return cosine_logits(*self.features(params, head, x), self.problem.backbone.logit_scale)

    def features(self, params: Params, head: Params, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return embeddings and class features. Shape: -> (models, samples or classes, d)."""
        return self.tower.tail(x, 0, prompts=head["prompts"]), head["text"]


def prompted_layers(config: FedMaPLeConfig, spec: BackboneSpec) -> int:
    """Return how many layers of both towers have prompts."""
    return max(1, scaled_layer(config.depth, min(spec.vision_layers, spec.text_layers)))
