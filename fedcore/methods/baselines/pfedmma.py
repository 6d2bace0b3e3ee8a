"""pFedMMA learns adapters in both encoders whose middle layer clients share (Ghiasvand et al., ICLR 2026).

In blocks l = 5 to 12 of both towers (counted from 1):

    x <- block_l(x) + alpha Up_l(relu(S_l(relu(Down_l(LN_1(x))))))
    client: scores s cos(h, t_k),  L = CE(scores), which moves Down, Up and S
    server: mean of S_l, which is one for both towers; Down and Up never leave their client

alpha multiplies values and the gradient to x, and not the gradients of Down, Up and S. t_k is computed with
each client's own text tower. There is no global model, since S alone maps nothing to the towers' widths.
"""

from fedcore import methods as fl
from fedcore.base.lazy import Generator, Tensor, torch
from fedcore.clip.adapters import Adapters, scaled_layer
from fedcore.clip.prompts import check_prompts, encode_entered, enter_texts
from fedcore.clip.specs import BackboneSpec, spoken

TOWERS = ("image", "text")
LAST = 12
"""Blocks are counted as in towers of 12; the last one always has an adapter."""


class PFedMMAConfig(fl.MethodConfig):
    first_block: int = fl.hyper(
        5,
        "First block of both encoders with an adapter, counted from 1 as in towers of 12; all later ones "
        "have one too (authors' code: 5)",
        title="first adapted block",
        ge=1,
        le=LAST,
    )
    width: int = fl.hyper(
        32, "Width of the adapters' middle layer (authors' code: 32)", title="adapter width", ge=1, le=1024
    )
    alpha: float = fl.hyper(
        1e-3,
        "Factor of the adapters' output; 0 is zero-shot CLIP (authors' code: 0.001)",
        title="adapter scale",
        ge=0,
        le=10,
        search=fl.TENFOLD,
    )
    lr: fl.LearningRate = fl.hyper(1e-3, "Learning rate of local SGD (authors' code: 0.001)")
    batch_size: fl.BatchSize = fl.hyper(16, "Samples in a local batch (authors' code: 16)")


@fl.method
class PFedMMA(fl.Method[PFedMMAConfig]):
    """s cos(h, t) with adapters in both towers: shared middle layers, and each client's own outer layers."""

    name = "pfedmma"
    about = fl.About(
        source="Ghiasvand et al., pFedMMA: Personalized Federated Fine-Tuning with Multi-Modal Adapter for "
        "Vision-Language Models, ICLR 2026",
        summary="CLIP stays frozen; the upper blocks of both encoders get small adapters. "
        "An adapter narrows a token to 32 numbers, maps these by a layer that is the same in both "
        "encoders, and widens them again; a thousandth of the result is added to what the block computes. "
        "Clients send the middle layers only, and the server averages them; the outer layers never leave "
        "their client. "
        "There is no global model. "
        "Training passes through the upper blocks of both encoders.",
    )
    Config = PFedMMAConfig
    shared = ("shared_w", "shared_b")

    def __init__(self, config: PFedMMAConfig, problem: fl.Problem) -> None:
        super().__init__(config, problem)
        spec = problem.backbone.spec
        self._layers = adapted_layers(config, spec)
        self._start = {"image": spec.vision_layers - self._layers, "text": spec.text_layers - self._layers}
        texts = [problem.template.format(spoken(name)) for name in problem.classes]
        self._texts = enter_texts(problem.backbone, texts, self._start["text"])

    @classmethod
    def check(cls, config: PFedMMAConfig, context: fl.RunContext) -> None:
        check_prompts(context.spec)

    plan_warnings = classmethod(fl.rate_warnings)

    @classmethod
    def reads(cls, config: PFedMMAConfig, spec: BackboneSpec) -> str:
        """Return the encoding that enters the first adapted block; below it clients compute the same."""
        return f"layer:{spec.vision_layers - adapted_layers(config, spec)}"

    def init(self, generator: fl.Generators) -> fl.State:
        """Draw all layers from N(0, 2 / outputs), without biases; one draw for all clients.

        Shape: shared_w (layers, r, r), shared_b (layers, r); of each tower and client: down_w (layers, r,
        width), down_b (layers, r), up_w (layers, width, r), up_b (layers, width).
        """
        spec, r, n = self.problem.backbone.spec, self.config.width, self._layers
        shared_w, shared_b = _draw(n, r, r, generator("pfedmma", "shared"))
        outer: fl.Params = {}
        for tower, width in zip(TOWERS, (spec.vision_width, spec.token_width), strict=True):
            for name, rows, columns in (("down", r, width), ("up", width, r)):
                w, b = _draw(n, rows, columns, generator("pfedmma", tower, name))
                outer |= {f"{tower}_{name}_w": w, f"{tower}_{name}_b": b}
        return fl.State(
            shared=self.place({"shared_w": shared_w, "shared_b": shared_b}),
            local=self.repeat(self.place(outer)),
        )

    def models(self, state: fl.State) -> fl.Models:
        """Return the clients' models; without a client's layers the shared ones make no model."""
        return fl.Models(None, {**self.repeat(state.shared), **state.local})

    def head(self, params: fl.Params, data: fl.LocalData | None) -> fl.Params:
        """Return class features of each client's text tower. Shape: text (models, classes, d)."""
        return {"text": encode_entered(self.problem.backbone, self._texts, self._adapters(params, "text"))}

    def features(self, params: fl.Params, head: fl.Params, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return embeddings and class features. Shape: -> (models, samples or classes, d)."""
        adapters = self._adapters(params, "image")
        return self.problem.backbone.image.tail(x, adapters.start, adapters=adapters), head["text"]

    def _adapters(self, params: fl.Params, tower: str) -> Adapters:
        down, shared, up = (
            (params[f"{name}_w"], params[f"{name}_b"]) for name in (f"{tower}_down", "shared", f"{tower}_up")
        )
        return Adapters(down, shared, up, self.config.alpha, self._start[tower])


def adapted_layers(config: PFedMMAConfig, spec: BackboneSpec) -> int:
    """Return the number of blocks with an adapter, the last ones of each tower."""
    depths = (spec.vision_layers, spec.text_layers)
    return max(1, min(depth - scaled_layer(config.first_block - 1, depth) for depth in depths))


def _draw(layers: int, rows: int, columns: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """Draw layers Kaiming-normal by their outputs, with biases 0 (authors' code).

    Shape: -> (layers, rows, columns), (layers, rows) float64.
    """
    weight = torch.randn(layers, rows, columns, generator=generator, dtype=torch.float64)
    return weight * (2 / rows) ** 0.5, torch.zeros(layers, rows, dtype=torch.float64)
