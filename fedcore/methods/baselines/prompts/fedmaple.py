"""FedMaPLe couples prompts of both encoders by linear maps, under federated averaging (Khattak et al., 2023).

Layer i <= D of the text tower reads v_i behind [SOS], layer i of the image tower F_i(v_i) behind its tokens:

    scores  s cos(h(F_1(v_1), ..., F_D(v_D)), t_k(v_1, ..., v_D)),  L = CE(scores)

The server averages all v_i and F_i. From layer 2 on the prompts replace the outputs of those before.
"""

from fedcore import methods as fl
from fedcore.base.lazy import Tensor, torch
from fedcore.methods.baselines.prompts import WORDS
from fedcore.methods.baselines.prompts.ivlp import IVLP


class FedMaPLeConfig(fl.MethodConfig):
    context_length: fl.PromptLength = fl.hyper(
        2,
        f"Learned vectors in each prompted layer, tokens (MaPLe: 2, the first of '{WORDS}'); "
        "more than four start at random",
    )
    depth: int = fl.hyper(
        9,
        "Layers of both encoders that have prompts (MaPLe: 9), counted as in towers of 12",
        title="prompted layers",
        ge=1,
        le=12,
    )
    lr: fl.LearningRate = fl.hyper(3.5e-3, "Learning rate of local SGD (MaPLe: 0.0035)")
    batch_size: fl.BatchSize = fl.hyper(4, "Samples in a local batch (MaPLe: 4)")


@fl.method
class FedMaPLe(IVLP):
    """cos(h(F(v)), t(v)): text prompts v in the first layers, and image prompts F(v) in the same layers."""

    name = "fedmaple"
    about = fl.About(
        source="Khattak et al., MaPLe: Multi-modal Prompt Learning, CVPR 2023, under federated averaging, as "
        "in FedAlign's comparison",
        summary="CLIP stays frozen; short prompts are learned in the first layers of both encoders. "
        "Those of the image encoder are linear maps of those of the text encoder, so that the two are "
        "learned together. "
        "The server averages the text prompts and the maps; there is one model for all. "
        "The maps are the largest part of the upload. "
        "Training passes through both encoders.",
    )
    Config = FedMaPLeConfig
    _image = ("w", "b")
    _draws = "fedmaple"

    def _image_start(self, generator: fl.Generators) -> fl.Params:
        """Draw the maps as linear layers; those of deeper layers start equal, as in the authors' code.

        Shape: w (layers, width, m), b (layers, width).
        """
        spec = self.problem.backbone.spec
        m, width = spec.token_width, spec.vision_width
        maps = [fl.draw_linear(width, m, generator("fedmaple", "map", i)) for i in (1, 2)]
        maps = [maps[0], *([maps[1]] * (self.layers - 1))]
        return {"w": torch.stack([w for w, _ in maps]), "b": torch.stack([b for _, b in maps])}

    def _visual(self, params: fl.Params) -> Tensor:
        """Return F_i(v_i) of each layer. Shape: -> (models, layers, M, width)."""
        every = params["context"][:, None]
        if "deep" in params:
            every = torch.cat([every, params["deep"]], 1)
        return every @ params["w"].transpose(-1, -2) + params["b"][:, :, None]
