"""FedMVP learns a network that makes image prompts from patches and attributes (Singha et al., 2025).

    c: all attributes e_kj of all classes k through a linear layer,  z: patches with their positions
    a = MHA(LN(z), LN(c), c),  P = a + W_2 (x_1 gelu(x_2)) with (x_1, x_2) = W_1 LN(a)
    V: p means of successive rows of P
    f: the image tower's embedding of [class token, z, V],  f_0: that of [class token, z]
    scores_k = s mean_j cos(f, e_kj),  L = CE(scores) + alpha (1 - cos(f, f_0))
    server: mean of all layers

Readings: f_0 is of the image itself, which the authors' code mirrors half of the time; a client reads the
attributes of all classes of the run; local training passes over all samples, where their code takes one step.
"""

from functools import cached_property, partial
from typing import Literal

from fedcore import methods as fl
from fedcore.base.errors import FedLensError
from fedcore.base.lazy import Tensor, torch
from fedcore.base.lazy import functional as F
from fedcore.clip.prompts import sentences
from fedcore.clip.specs import BackboneSpec, spoken
from fedcore.methods.baselines.prompts.fedtpg import ATTENTION, attend, draw_attention
from fedcore.methods.class_texts import ClassText, ClassTextConfig, WithClassTexts, descriptions_by_class


class FedMVPConfig(ClassTextConfig, fl.MethodConfig):
    class_text: ClassText = fl.hyper(
        "description",
        "Attributes of a class: description, all of its written descriptions (the paper has a language model "
        "write ten), or template, the data set's prompt alone",
    )
    prompt_length: int = fl.hyper(
        4, "Image prompts p that the network makes for an image (authors' code: 4)", ge=1, le=64
    )
    alpha: fl.LossWeight = fl.hyper(
        10.0, "Weight of the distance from CLIP's own embedding (authors' code: 10)", search=fl.TENFOLD
    )
    lr: fl.LearningRate = fl.hyper(3e-3, "Learning rate of local SGD (authors' code: 0.003)")
    schedule: fl.RateSchedule = fl.hyper(
        "cosine", "Learning rate over the rounds: constant, or half a cosine (authors' code)"
    )
    weight_decay: fl.WeightDecay = fl.hyper(1e-5, "Weight decay of local SGD (authors' code: 1e-5)")
    batch_size: fl.BatchSize = fl.hyper(128, "Samples in a local batch (authors' code: 128)")
    optimiser_state: Literal["fresh", "kept"] = fl.hyper(
        "kept", "State of the local optimiser: new each round, or kept by the client (authors' code)"
    )


@fl.method
class FedMVP(WithClassTexts):
    """s mean_j cos(f(V), e_kj) with image prompts V that a shared network makes for each image."""

    name = "fedmvp"
    about = fl.About(
        source="Singha et al., FedMVP: Federated Multi-modal Visual Prompt Tuning for Vision-Language "
        "Models, ICCV 2025",
        summary="CLIP stays frozen; a network makes a few tokens that join those of an image. "
        "It is one layer of attention, in which every patch asks the written attributes of all classes. "
        "An image is compared with each attribute of a class, and the mean counts. "
        "All clients train the network, held near CLIP's own embedding, and the server averages it. "
        "Training passes through the whole image encoder, and the upload is that of a small transformer.",
    )
    clients_use_global = True
    Config = FedMVPConfig
    shared: tuple[str, ...] = ("text_w", "text_b", *ATTENTION)

    def __init__(self, config: FedMVPConfig, problem: fl.Problem) -> None:
        super().__init__(config, problem)
        backbone = problem.backbone
        texts = [t or (problem.template.format(spoken(name)),) for name, t in self.written.items()]
        each = [sentences(backbone, list(of_class)).to(backbone.dtype) for of_class in texts]
        self.attributes, self.classes = torch.cat(each), torch.stack([e.mean(0) for e in each])
        visual, patches = backbone.image.visual, backbone.spec.patches
        self.class_token, self.positions = visual.class_embedding, visual.positional_embedding
        starts = torch.arange(config.prompt_length) * patches
        place = torch.arange(patches) * config.prompt_length
        pooled = (place > starts[:, None] - config.prompt_length) & (place < starts[:, None] + patches)
        self.pool = (pooled / pooled.sum(1, keepdim=True)).to(backbone.device, backbone.dtype)

    @classmethod
    def check(cls, config: FedMVPConfig, context: fl.RunContext) -> None:
        super().check(config, context)
        if config.class_text == "template":
            return
        written = descriptions_by_class(config, context.classes, context.descriptions)
        for name in (name for name, texts in written.items() if not texts):
            raise FedLensError(
                f"FedMVP reads written attributes of every class, and class '{name}' has none: describe it "
                "here (field descriptions) or in a descriptions.json in the data set's folder, or choose "
                "class_text = template",
                "descriptions",
            )

    @classmethod
    def reads(cls, config: FedMVPConfig, spec: BackboneSpec) -> str:
        """Return the patches before their positions are added, which the network reads."""
        return "patches"

    def init(self, generator: fl.Generators) -> fl.State:
        """Return the layer of the attributes and those of the attention, as torch draws them."""
        spec = self.problem.backbone.spec
        width = spec.vision_width
        text_w, text_b = fl.draw_linear(width, spec.embed_dim, generator("fedmvp", "text"))
        parts = draw_attention(width, width, partial(generator, "fedmvp"))
        return fl.State(shared=self.place({"text_w": text_w, "text_b": text_b} | parts))

    @cached_property
    def _own(self) -> fl.OncePerSample:
        return fl.OncePerSample(lambda x: self.problem.backbone.image.tail(self._embedded(x), 0))

    def round_constants(self, params: fl.Params, data: fl.LocalData) -> fl.Params:
        """Return CLIP's own embeddings of the samples. Shape: own (clients, longest, d)."""
        return {"own": self._own(data)}

    def train_step(self, params: fl.Params, const: fl.Params, batch: fl.Batch) -> fl.Step:
        own = const["own"].take_along_dim(batch.places[..., None], 1)
        f = self._prompted(params, batch.x)
        distance = fl.masked_mean(1 - F.cosine_similarity(f, own, dim=-1), batch.mask)
        ce = fl.cross_entropy(self._scores(f), batch.labels, batch.mask)
        terms = {"cross_entropy": ce, "distance": distance}
        return fl.Step({self.shared: ce + self.config.alpha * distance}, terms=terms)

    def logits(self, params: fl.Params, head: fl.Params, x: Tensor) -> Tensor:
        """Return s mean_j cos(f, e_kj)."""
        return self._scores(self._prompted(params, x))

    def features(self, params: fl.Params, head: fl.Params, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return f and each class's mean of attributes. Shape: -> (models, samples or K, d)."""
        return self._prompted(params, x), self.classes.expand(len(x), -1, -1)

    def numbers_per_sample(self) -> int:
        """Return the numbers of the network's widest layer, 8 for each of a patch's."""
        return 8 * self.problem.backbone.spec.patches * self.problem.backbone.spec.vision_width

    def _scores(self, f: Tensor) -> Tensor:
        return self.problem.backbone.logit_scale * (F.normalize(f, dim=-1) @ self.classes.T)

    def _embedded(self, x: Tensor) -> Tensor:
        """Return what enters layer 0 of CLIP. Shape: x (c, n, patches, width) -> (c, n, tokens, width)."""
        parts = self.class_token.expand(len(x), -1), self.positions.expand(len(x), -1, -1)
        return self.problem.backbone.image.embed(x, *parts)

    def _prompted(self, params: fl.Params, x: Tensor) -> Tensor:
        """Return f. Shape: x (models, samples, patches, width) -> (models, samples, d)."""
        tower = self.problem.backbone.image
        asked = fl.linear(self.attributes.expand(len(x), -1, -1), params["text_w"], params["text_b"])
        z = (x + self.positions[1:]).flatten(1, 2)
        made = self.pool @ attend(params, z, asked, asked).view(x.shape)
        return tower.tail(torch.cat([self._embedded(x), tower.visual.ln_pre(made)], 2), 0)
