"""FedAvg and FedProx train low-rank updates of CLIP's image tower (McMahan et al., 2017; Li et al., 2020).

    client: W = W_0 + gamma B A,  scores = scale cos(image, t_k),  L = CE(scores)
    FedProx adds (mu/2) |w - w_t|^2 with w = (A, B) and w_t as received              Algorithm 2
    server: A <- mean A_i, B <- mean B_i, with the mean sum_i p_i and p_i = n_i / sum_j n_j

Reading: A and B are averaged separately. The mean of products differs from the product of means; all clients
start from one A, which keeps the difference small. ``aggregation`` has the other ways, with W = W_0 + gamma
(R + B A) and R = 0 at first:

    ffa     A stays as drawn, B is trained, sent and averaged          FFA-LoRA (Sun et al., ICLR 2024)
    fedsa   A is averaged, B stays with its client                     FedSA-LoRA (Guo et al., ICLR 2025)
    exact   as factors, and R <- R + mean B_i A_i - B A                FedEx-LoRA (Singhal et al., 2024)
    stack   R <- R + mean B_i A_i, A is drawn anew, B <- 0             FLoRA (Wang et al., NeurIPS 2024)
    fair    as factors, and B <- B + D, D = argmin 1 - cos((B + D) A, mean B_i A_i) + lambda |D|
                                                                       LoRA-FAIR (Bian et al., ICCV 2025)
    hetero  client i has the first r_i rows of A and columns of B; means by |B_i A_i| of factors that are
            filled with zeros                                          HetLoRA (Cho et al., EMNLP 2024)

Settings are FedAlign's, since the papers state none.
"""

from dataclasses import replace
from functools import cached_property
from typing import Literal

from fedcore import methods as fl
from fedcore.base.errors import FedLensError
from fedcore.base.lazy import Tensor, torch
from fedcore.clip.adapters import Lora, first_adapted_layer, init_lora
from fedcore.clip.specs import BackboneSpec
from fedcore.methods.baselines.lora_server import norm_weights, products, refined
from fedcore.methods.fedalign.config import LoRAConfig


class FedAvgLoRAConfig(LoRAConfig):
    """FedAlign's hyper-parameters, so that the two differ only in what clients and server exchange."""

    scale: float = fl.hyper(
        14.3,
        "Factor of all cosines (as FedAlign: exp(2.66) = 14.3; OpenAI's CLIP itself has 100)",
        title="cosine scale",
        gt=0,
        le=1000,
    )
    aggregation: Literal["factors", "ffa", "fedsa", "exact", "stack", "fair", "hetero"] = fl.hyper(
        "factors",
        "What the server does with A and B: factors, average each; ffa, A stays as drawn and B is averaged; "
        "fedsa, A is averaged and B stays with its client; exact, average each and add what the mean of the "
        "products B A lacks to the weights; stack, add the mean of the products to the weights and begin "
        "each round with new factors; fair, average each and turn B towards the mean of the products; "
        "hetero, each client has its own rank, and the norm of its product as its weight",
        words={
            "factors": "A and B apart",
            "ffa": "B alone (FFA-LoRA)",
            "fedsa": "A alone (FedSA-LoRA)",
            "exact": "with the residual (FedEx-LoRA)",
            "stack": "stacked (FLoRA)",
            "fair": "B refined (LoRA-FAIR)",
            "hetero": "own ranks (HetLoRA)",
        },
    )
    fair_weight: fl.LossWeight = fl.hyper(
        0.01,
        "Weight lambda of |D|, how far B may be turned, with aggregation = fair (LoRA-FAIR: 0.01)",
        title="weight of the refinement",
    )
    lowest_rank: fl.Rank = fl.hyper(
        1,
        "Lowest rank of a client with aggregation = hetero: each client's rank is drawn by its name, from "
        "this one to that of the server",
        title="lowest rank of a client",
    )


class FedProxLoRAConfig(FedAvgLoRAConfig):
    """FedAvg's, and the weight of the proximal term."""

    proximal: fl.LossWeight = fl.hyper(
        0.01,
        "Weight mu of (mu/2) |w - w_t|^2 (paper: tuned over 0.001, 0.01, 0.1, 1); 0 is FedAvg",
        title="proximal weight",
        search=fl.SearchRange(choices=(0.001, 0.01, 0.1, 1.0)),
    )


AVERAGING_ERROR = fl.DiagnosticChart(
    "Error of averaging A and B apart",
    {"averaging_error": "mean of layers", "averaging_error_worst": "worst layer"},
    unit="%",
    note="|mean of B A - (mean of B)(mean of A)| / |mean of B A|, of the factors after local training. "
    "FedEx-LoRA and FLoRA add what is missing, LoRA-FAIR some of it; in FFA-LoRA nothing is missing. With "
    "A and B apart it is measured with up to 32 participants: more uploads are summed as they arrive.",
)


@fl.method
class FedAvgLoRA(fl.Method[FedAvgLoRAConfig]):
    """W0 + gamma B A on q, k and v of the image tower; ``aggregation`` says how clients share A and B."""

    name = "fedavg-lora"
    about = fl.About(
        source="McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, "
        "AISTATS 2017, on the low-rank updates of Hu et al., LoRA, 2021",
        summary="CLIP's image encoder is adapted by low-rank updates of its attention layers (LoRA). "
        "Clients train them by cross-entropy against the class prompts, which stay as they are. "
        "The server averages the factors A and B, weighted by sample counts, and sends them back. "
        "There is one model for all. "
        "The settings are FedAlign's, so that a difference to FedAlign comes from its server, its penalty "
        "and its personal mixing.",
        charts=(AVERAGING_ERROR,),
    )
    Config = FedAvgLoRAConfig

    def __init__(self, config: FedAvgLoRAConfig, problem: fl.Problem) -> None:
        super().__init__(config, problem)
        self.start = first_adapted_layer(config.start_layer, problem.backbone.spec.vision_layers)
        self.trained = ("image_b",) if config.aggregation == "ffa" else ("image_a", "image_b")
        self.shared = ("image_a",) if config.aggregation == "fedsa" else self.trained
        self.clients_use_global = config.aggregation not in ("fedsa", "hetero")
        self.first_a = self._draw(problem.generator)[0]

    @classmethod
    def check(cls, config: FedAvgLoRAConfig, context: fl.RunContext) -> None:
        spec = context.spec
        if config.rank > spec.vision_width:
            raise FedLensError(
                f"rank {config.rank} is more than the width of {spec.name}'s image tower; "
                f"use at most {spec.vision_width}",
                "rank",
            )
        if config.aggregation == "hetero" and config.lowest_rank > config.rank:
            raise FedLensError(
                f"lowest_rank {config.lowest_rank} is more than rank {config.rank}, that of the server; "
                f"use at most {config.rank}",
                "lowest_rank",
            )

    @classmethod
    def reads(cls, config: FedAvgLoRAConfig, spec: BackboneSpec) -> str:
        """Return the encoding that enters the first adapted layer: the layers below it never change."""
        return f"layer:{first_adapted_layer(config.start_layer, spec.vision_layers)}"

    def _draw(self, generator: fl.Generators, *purpose: str) -> tuple[Tensor, Tensor]:
        """Draw A; B is 0. Shape: -> (layers, 3, r, width), (layers, 3, width, r)."""
        backbone = self.problem.backbone
        layers, width = backbone.spec.vision_layers - self.start, backbone.spec.vision_width
        drawn = generator("lora", "image", *purpose)
        a, b = init_lora(layers, width, self.config.rank, drawn, backbone.dtype)
        return a.to(backbone.device), b.to(backbone.device)

    def init(self, generator: fl.Generators) -> fl.State:
        """Return one A for all clients and B = 0, so that the tower starts as CLIP's.

        A that is not trained (ffa) is drawn from the run's seed, which all clients know, and never sent.

        stack also counts the rank of what each client has not received yet; hetero has the clients' ranks.

        Shape: image_a (layers, 3, r, width), image_b (layers, 3, width, r), residual (layers, 3, width,
        width), owed (clients,) and rank (clients, 1) int64.
        """
        a, b = self._draw(generator)
        values = {"image_a": a, "image_b": b}
        if self.config.aggregation in ("exact", "stack"):
            layers, three, width, _ = b.shape
            values["residual"] = b.new_zeros(layers, three, width, width)
        if self.config.aggregation == "fedsa":
            return fl.State(shared={"image_a": a}, local=self.repeat({"image_b": b}))
        shared = {n: v for n, v in values.items() if n in self.trained or n == "residual"}
        if self.config.aggregation == "hetero":
            return fl.State(shared=shared, local={"rank": self._ranks})
        owed = torch.zeros(len(self.problem.clients), dtype=torch.int64)
        return fl.State(shared=shared, server={"owed": owed} if self.config.aggregation == "stack" else {})

    @cached_property
    def _ranks(self) -> Tensor:
        """Draw each client's rank by its name. Shape: -> (clients, 1) int64."""
        lowest, highest = self.config.lowest_rank, self.config.rank
        return self.problem.draw_per_client(
            lambda generator: torch.randint(lowest, highest + 1, (1,), generator=generator), "lora", "rank"
        )

    def train_step(self, params: fl.Params, const: fl.Params, batch: fl.Batch) -> fl.Step:
        moved = {"rank": params["rank"]} if "rank" in params else {}
        return fl.Step({self.trained: self.prediction_loss(params, batch)}, moved=moved)

    def upload(self, params: fl.Params, record: fl.Params, data: fl.LocalData) -> fl.Values:
        """Return the factors that are shared; clients with their own ranks send their rows and columns.

        Shape: image_a (participants, layers, 3, r, width), image_b (participants, layers, 3, width, r), or
        Ragged with the axis of ranks second.
        """
        if "rank" not in params:
            return super().upload(params, record, data)
        a, b = self._cut(params)
        return self._by_rank(a, b, params["rank"][:, 0])

    def downloads(self, state: fl.State, clients: Tensor, received: fl.Params) -> fl.Values:
        """Return what is sent: of the residual the stacks that a client has missed, of factors its ranks.

        The new A of stack follows from the run's seed, and B is 0.
        """
        if self.config.aggregation == "hetero":
            ranks = self._ranks[clients.to(self.problem.device), 0]
            return self._by_rank(received["image_a"], received["image_b"], ranks)
        if self.config.aggregation == "stack":
            a = received["image_a"]
            row = 2 * a[0, :, :, 0].numel()  # a row of A and a column of B in each projection
            return {
                "stack": fl.Ragged(a.new_zeros(1).expand(len(clients), 1, row), state.server["owed"][clients])
            }
        return super().downloads(state, clients, received)

    @staticmethod
    def _by_rank(a: Tensor, b: Tensor, ranks: Tensor) -> fl.Values:
        """Move the axis of ranks to the front, to send some of its rows."""
        return {
            "image_a": fl.Ragged(a.permute(0, 3, 1, 2, 4), ranks),
            "image_b": fl.Ragged(b.permute(0, 4, 1, 2, 3), ranks),
        }

    def aggregate(self, state: fl.State, uploads: fl.Uploads, generator: fl.Generators) -> fl.State:
        """Average the factors that are sent, and keep what their products lack in the residual."""
        way, weights = self.config.aggregation, uploads.weights(self.config.weighting)
        if way == "hetero":
            a, b = self._sent(uploads)
            weights = norm_weights(a, b, weights)[..., None, None]
            mean_a, mean_b = (weights * a).sum(0).to(a.dtype), (weights * b).sum(0).to(b.dtype)
            # What no participant has stays: a row of A and a column of B that are both 0 never learn again.
            held = torch.arange(self.config.rank, device=a.device) < uploads.ragged("image_a").lengths.max()
            means = {
                "image_a": torch.where(held[:, None], mean_a, state.shared["image_a"]),
                "image_b": torch.where(held, mean_b, state.shared["image_b"]),
            }
            return replace(state, shared=means)
        averaged = super().aggregate(state, uploads, generator)
        if way == "fair":
            a, b = averaged.shared["image_a"], averaged.shared["image_b"].clone()
            for i, (of_products, _) in enumerate(products(*self._sent(uploads), weights)):
                b[i] = refined(a[i], b[i], of_products, self.config.fair_weight).to(b.dtype)
            return replace(averaged, shared={"image_a": a, "image_b": b})
        if "residual" not in state.shared:
            return averaged
        residual = state.shared["residual"].clone()
        for i, (of_products, of_means) in enumerate(products(*self._sent(uploads), weights)):
            added = of_products if way == "stack" else of_products - of_means
            residual[i] += added.to(residual.dtype)
        if way == "exact":
            return replace(averaged, shared={**averaged.shared, "residual": residual})
        owed = state.server["owed"].clone()
        owed[uploads.clients] = 0  # this round began with it
        owed += len(uploads.clients) * self.config.rank
        factors = dict(zip(self.shared, self._draw(generator, "anew"), strict=True))
        return replace(averaged, shared={**factors, "residual": residual}, server={"owed": owed})

    @staticmethod
    def _sent(uploads: fl.Uploads) -> tuple[Tensor, Tensor]:
        """Return A and B of the participants, with zeros beyond their ranks.

        Shape: -> (participants, layers, 3, r, width), (participants, layers, 3, width, r).
        """
        a, b = uploads.values["image_a"], uploads.values["image_b"]
        if isinstance(a, fl.Ragged) and isinstance(b, fl.Ragged):
            return a.values.permute(0, 2, 3, 1, 4), b.values.permute(0, 2, 3, 4, 1)
        return uploads.dense("image_a"), uploads.dense("image_b")

    @property
    def needs_only_means(self) -> bool:
        """True for the factors alone: a thousand clients' uploads are then never in memory at once."""
        return self.config.aggregation == "factors"

    def diagnostics(
        self, before: fl.State, trained: fl.Params, uploads: fl.Uploads, data: fl.LocalData
    ) -> dict[str, Tensor]:
        """Return how far the product of the mean factors is from the mean product, by layer."""
        if not uploads.values:
            return {}
        weights = uploads.weights(self.config.weighting)
        both = {"image_a", "image_b"} <= uploads.values.keys()
        a, b = self._sent(uploads) if both else (self._a(trained), trained["image_b"])
        if self.config.aggregation == "hetero":
            weights = norm_weights(a, b, weights)
        errors = [
            (of_products - of_means).norm() / of_products.norm().clamp(min=torch.finfo(torch.float64).tiny)
            for of_products, of_means in products(a, b, weights)
        ]
        every = torch.stack(errors)
        return {"averaging_error": every.mean(), "averaging_error_worst": every.max()}

    def models(self, state: fl.State) -> fl.Models:
        """Return the model that all clients share; there is none where each has its own B.

        Clients with their own ranks have the beginning of the global model.
        """
        models = super().models(state)
        return models if self.config.aggregation != "fedsa" else fl.Models(None, models.clients)

    def logits(self, params: fl.Params, head: fl.Params, x: Tensor) -> Tensor:
        """Return scale cos(image, text)."""
        return fl.cosine_logits(*self.features(params, head, x), self.config.scale)

    def features(self, params: fl.Params, head: fl.Params, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the adapted tower's embeddings and the class prompts.

        Shape: -> (models, samples or K, d).
        """
        lora = Lora(*self._cut(params), self.config.gamma, self.start, params.get("residual"))
        h = self.problem.backbone.image.tail(x, self.start, lora)
        return h, self.problem.class_features.expand(len(h), -1, -1)

    def _a(self, params: fl.Params) -> Tensor:
        """Return A of some models: their own, or the first one. Shape: -> (models, layers, 3, r, width)."""
        b = params["image_b"]
        return params["image_a"] if "image_a" in params else self.first_a.to(b).expand(len(b), -1, -1, -1, -1)

    def _cut(self, params: fl.Params) -> tuple[Tensor, Tensor]:
        """Return A and B of some models, with zeros beyond the rank of a client that has its own.

        Shape: -> (models, layers, 3, r, width), (models, layers, 3, width, r).
        """
        a, b = self._a(params), params["image_b"]
        if "rank" not in params:
            return a, b
        in_rank = torch.arange(self.config.rank, device=b.device) < params["rank"]
        return a * in_rank[:, None, None, :, None], b * in_rank[:, None, None, None, :]


@fl.method
class FedProxLoRA(FedAvgLoRA):
    """FedAvg with clients held near the factors that they received."""

    name = "fedprox-lora"
    about = fl.About(
        source="Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020, on the low-rank "
        "updates of Hu et al., LoRA, 2021",
        summary="As FedAvg (LoRA): low-rank updates of CLIP's image encoder, trained against the class "
        "prompts. "
        "A proximal term pulls every client's factors A and B towards those received at the start of the "
        "round. "
        "With unequal data the clients then diverge less during local training. "
        "What is sent and averaged is the same as in FedAvg. "
        "With mu = 0 the two methods are the same.",
        charts=(
            fl.DiagnosticChart(
                "Loss terms", {"cross_entropy": "cross-entropy", "proximal": "proximal"}, better="lower"
            ),
            AVERAGING_ERROR,
        ),
    )
    Config = FedProxLoRAConfig

    def train_step(self, params: fl.Params, const: fl.Params, batch: fl.Batch) -> fl.Step:
        """Return FedAvg's loss and record it; the engine adds the proximal term (Algorithm 2)."""
        step = super().train_step(params, const, batch)
        return replace(step, terms={"cross_entropy": step.losses[self.trained]})
