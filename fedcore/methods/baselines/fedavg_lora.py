"""FedAvg and FedProx train low-rank updates of CLIP's image tower (McMahan et al., 2017; Li et al., 2020).

    client: W = W_0 + gamma B A,  scores = scale cos(image, t_k),  L = CE(scores)
    FedProx adds (mu/2) |w - w_t|^2 with w = (A, B) and w_t as received              Algorithm 2
    server: A <- sum_i n_i A_i / sum_i n_i, and B likewise

Reading: A and B are averaged separately. The mean of products differs from the product of means; all clients
start from one A, which keeps the difference small. Settings are FedAlign's, since the papers state none.
"""

from __future__ import annotations

from dataclasses import replace

from fedcore.clip.lora import Lora, check_attention_layers, first_adapted_layer, init_lora
from fedcore.clip.specs import BackboneSpec
from fedcore.errors import FedLensError
from fedcore.federation import Problem
from fedcore.lazy import Tensor
from fedcore.methods.base import Batch, Generators, Method, Params, RunContext, State, Step
from fedcore.methods.fedalign.config import LoRAConfig
from fedcore.methods.hyperparameters import LossWeight, hyper
from fedcore.methods.registry import method
from fedcore.methods.tensors import cosine_logits, cross_entropy
from fedcore.records.presentation import About, DiagnosticChart


class FedAvgLoRAConfig(LoRAConfig):
    """FedAlign's hyper-parameters, so that the two differ only in what clients and server exchange."""

    scale: float = hyper(
        14.3,
        "Factor of all cosines (as FedAlign: exp(2.66) = 14.3; OpenAI's CLIP itself has 100)",
        title="cosine scale",
        gt=0,
        le=1000,
    )


class FedProxLoRAConfig(FedAvgLoRAConfig):
    """FedAvg's, and the weight of the proximal term."""

    proximal: LossWeight = hyper(
        0.01,
        "Weight mu of (mu/2) |w - w_t|^2 (paper: tuned over 0.001, 0.01, 0.1, 1); 0 is FedAvg",
        title="proximal weight",
    )


@method
class FedAvgLoRA(Method[FedAvgLoRAConfig]):
    """W0 + gamma B A on q, k and v of the image tower; A and B are averaged separately."""

    name = "fedavg-lora"
    about = About(
        title="FedAvg (LoRA)",
        source="McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, "
        "AISTATS 2017, on the low-rank updates of Hu et al., LoRA, 2021",
        bibtex="@inproceedings{mcmahan2017fedavg, author = {McMahan, Brendan and Moore, Eider and "
        "Ramage, Daniel and Hampson, Seth and Aguera y Arcas, Blaise}, title = {Communication-"
        "Efficient Learning of Deep Networks from Decentralized Data}, booktitle = {AISTATS}, "
        "year = {2017}}\n"
        "@inproceedings{hu2022lora, author = {Hu, Edward J. and others}, title = {{LoRA}: Low-"
        "Rank Adaptation of Large Language Models}, booktitle = {ICLR}, year = {2022}}",
        summary="CLIP's image encoder is adapted by low-rank updates of its attention layers (LoRA). "
        "Clients train them by cross-entropy against the class prompts, which stay as they are. "
        "The server averages the factors A and B, weighted by sample counts, and sends them back. "
        "There is one model for all. "
        "The settings are FedAlign's, so that a difference to FedAlign comes from its server, its penalty "
        "and its personal mixing.",
        family="baseline",
    )
    clients_use_global = True
    Config = FedAvgLoRAConfig
    shared = ("image_a", "image_b")

    def __init__(self, config: FedAvgLoRAConfig, problem: Problem) -> None:
        super().__init__(config, problem)
        self.start = first_adapted_layer(config.start_layer, problem.backbone.spec.vision_layers)

    @classmethod
    def check(cls, config: FedAvgLoRAConfig, context: RunContext) -> None:
        """Refuse backbones without attention layers, and ranks that they cannot have."""
        spec = context.spec
        check_attention_layers(cls.about.title, spec, "backbone.name")
        if config.rank > spec.vision_width:
            raise FedLensError(
                f"rank {config.rank} is more than the width of {spec.name}'s image tower; "
                f"use at most {spec.vision_width}",
                "rank",
            )

    @classmethod
    def reads(cls, config: FedAvgLoRAConfig, spec: BackboneSpec) -> str:
        """Return the encoding that enters the first adapted layer: the layers below it never change."""
        return f"layer:{first_adapted_layer(config.start_layer, spec.vision_layers)}"

    def init(self, generator: Generators) -> State:
        """Return one A for all clients and B = 0, so that the tower starts as CLIP's.

        Shape: image_a (layers, 3, r, width), image_b (layers, 3, width, r).
        """
        backbone = self.problem.backbone
        spec = backbone.spec
        a, b = init_lora(
            spec.vision_layers - self.start,
            spec.vision_width,
            self.config.rank,
            generator("lora", "image"),
            backbone.dtype,
        )
        return State(shared={"image_a": a.to(backbone.device), "image_b": b.to(backbone.device)})

    def train_step(self, params: Params, const: Params, batch: Batch) -> Step:
        loss = cross_entropy(self.logits(params, {}, batch.x), batch.labels, batch.mask)
        return Step({self.shared: loss})

    def logits(self, params: Params, head: Params, x: Tensor) -> Tensor:
        """Return scale cos(image, text)."""
        return cosine_logits(*self.features(params, head, x), self.config.scale)

    def features(self, params: Params, head: Params, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the adapted tower's embeddings and the class prompts.

        Shape: -> (models, samples or K, d).
        """
        lora = Lora(params["image_a"], params["image_b"], self.config.gamma, self.start)
        h = self.problem.backbone.image.tail(x, self.start, lora)
        return h, self.problem.class_features.expand(len(h), -1, -1)


@method
class FedProxLoRA(FedAvgLoRA):
    """FedAvg with clients held near the factors that they received."""

    name = "fedprox-lora"
    about = About(
        title="FedProx (LoRA)",
        source="Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020, on the low-rank "
        "updates of Hu et al., LoRA, 2021",
        bibtex="@inproceedings{li2020fedprox, author = {Li, Tian and Sahu, Anit Kumar and Zaheer, Manzil"
        " and Sanjabi, Maziar and Talwalkar, Ameet and Smith, Virginia}, title = {Federated "
        "Optimization in Heterogeneous Networks}, booktitle = {MLSys}, year = {2020}}\n"
        "@inproceedings{hu2022lora, author = {Hu, Edward J. and others}, title = {{LoRA}: Low-"
        "Rank Adaptation of Large Language Models}, booktitle = {ICLR}, year = {2022}}",
        summary="As FedAvg (LoRA): low-rank updates of CLIP's image encoder, trained against the class "
        "prompts. "
        "A proximal term pulls every client's factors A and B towards those received at the start of the "
        "round. "
        "With unequal data the clients then diverge less during local training. "
        "What is sent and averaged is the same as in FedAvg. "
        "With mu = 0 the two methods are the same.",
        family="baseline",
        charts=(
            DiagnosticChart(
                "Loss terms", {"cross_entropy": "cross-entropy", "proximal": "proximal"}, better="lower"
            ),
        ),
    )
    Config = FedProxLoRAConfig

    def train_step(self, params: Params, const: Params, batch: Batch) -> Step:
        """Return FedAvg's loss and record it; the engine adds the proximal term (Algorithm 2)."""
        step = super().train_step(params, const, batch)
        return replace(step, terms={"cross_entropy": step.losses[self.shared]})
