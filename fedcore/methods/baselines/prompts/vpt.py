"""VPT learns visual prompts on each client and one classifier with all, in FedOT's form (Jia et al., 2022).

Layer i <= depth of the image tower reads the class token, the p vectors P_i and the image's tokens:

    scores  s w_g h(P) / |h(P)|,  L = CE(scores);  the server averages w_g, P never leaves its client

Reading: FedOT says "localized VPT with a global text classifier"; so P takes the place of FedOT's rotation,
and the global model has no prompts.
"""

from fedcore import methods as fl
from fedcore.base.lazy import Tensor, torch
from fedcore.base.lazy import functional as F
from fedcore.clip.adapters import scaled_layer
from fedcore.clip.specs import BackboneSpec


class VPTConfig(fl.MethodConfig):
    prompt_length: int = fl.hyper(
        2, "Learned tokens beside those of the image, in each layer (p; paper: 2, 10)", ge=1, le=200
    )
    depth: int = fl.hyper(
        1,
        "Layers that have prompts (d; 1 is VPT-Shallow, paper: also 2 and 9), counted as in a tower of 12",
        title="prompted layers",
        ge=1,
        le=12,
    )
    lr: fl.LearningRate = fl.hyper(5e-5, "Learning rate of local SGD (paper: 5e-5; FEMNIST 1e-3)")


@fl.method
class VPT(fl.Method[VPTConfig]):
    """s w_g h(P) / |h(P)| with a shared classifier w_g and visual prompts P of each client."""

    name = "vpt"
    about = fl.About(
        source="Jia et al., Visual Prompt Tuning, ECCV 2022, in the federated form of FedOT's comparison",
        summary="CLIP stays frozen; a few learned tokens join those of every image. "
        "VPT-Shallow puts them before the first layer of the image encoder, VPT-Deep puts new ones before "
        "each of the first layers. "
        "The prompts never leave their client. "
        "The classifier, started from the class prompts, is trained by all clients and averaged. "
        "The global model, without any prompt, is CLIP with that classifier. "
        "Training passes through the whole image encoder.",
    )
    Config = VPTConfig
    class_axes = {"classifier": -2}
    shared = ("classifier",)

    @classmethod
    def reads(cls, config: VPTConfig, spec: BackboneSpec) -> str:
        """Return the encoding that enters the first layer, which prompts join."""
        return "layer:0"

    def init(self, generator: fl.Generators) -> fl.State:
        """Return the class prompts as classifier, and one draw of visual prompts for all clients.

        Prompts are Xavier-uniform in the sizes of a patch, as in the authors' code.

        Shape: classifier (K, d), prompts (clients, layers, p, width).
        """
        backbone, config = self.problem.backbone, self.config
        spec = backbone.spec
        layers = max(1, scaled_layer(config.depth, spec.vision_layers))
        pixels = 3 * spec.image_size**2 // spec.patches
        bound = (6 / (pixels + spec.vision_width)) ** 0.5
        size = (layers, config.prompt_length, spec.vision_width)
        prompts = torch.empty(*size, dtype=torch.float64)
        prompts.uniform_(-bound, bound, generator=generator("vpt", "prompts"))
        return fl.State(
            shared={"classifier": self.problem.class_features.to(backbone.dtype)},
            local=self.repeat(self.place({"prompts": prompts})),
        )

    def logits(self, params: fl.Params, head: fl.Params, x: Tensor) -> Tensor:
        """Return s w_g h / |h|. Shape: x (models, samples, tokens, width) -> (models, samples, K)."""
        h, classifier = self.features(params, head, x)
        return self.problem.backbone.logit_scale * (F.normalize(h, dim=-1) @ classifier.transpose(-1, -2))

    def features(self, params: fl.Params, head: fl.Params, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the prompted tower's embeddings and w_g; the global model has no prompts.

        Shape: x (models, samples, tokens, width) -> (models, samples or K, d).
        """
        prompted = self.problem.backbone.image.tail(x, 0, prompts=params.get("prompts"))
        return prompted, params["classifier"]
