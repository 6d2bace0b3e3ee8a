"""FedAKT on CLIP shares an adapter beside each client's model; one header reads both (Liu et al., 2025).

    A(h) = W_2 relu(W_1 h + b_1) + b_2,  header W, b
    L = CE(W h + b) + CE(W A(h) + b) + beta |A(h) - h|^2 / d
    server: averages A by sample counts; the header never leaves its client

Mostly our interpretation: FedOT's comparison says only that CLIP is the clients' model, and there is no
public code. The adapter's form and width, beta, the learning rate and the weights are our choice. The
global model, which the paper does not have, reads A(h) with the header as it was drawn.
"""

from fedcore import methods as fl
from fedcore.base.lazy import Tensor
from fedcore.base.lazy import functional as F

ADAPTER = ("down_w", "down_b", "up_w", "up_b")
"""Parameters of the shared adapter d -> hidden -> d."""
HEADER = ("head_w", "head_b")
"""Parameters of a client's header."""


class FedAKTConfig(fl.MethodConfig):
    """Hyper-parameters of FedAKT(C); FedOT's comparison states none, and there is no public code."""

    lr: fl.LearningRate = fl.hyper(1e-2, "Learning rate of local SGD (our choice, as FedGH's)")
    weighting: fl.Weighting = fl.hyper(
        "samples", "Server mean over clients: weighted by sample counts, or plain (our choice)"
    )
    hidden: int | None = fl.hyper(
        None,
        "Hidden width of the shared adapter; default: a quarter of the embedding (our choice)",
        title="adapter width",
        ge=1,
        le=65536,
        empty="a quarter of the embedding",
    )
    distillation_weight: fl.LossWeight = fl.hyper(
        1.0, "Weight of the distillation between the two features (our choice)", search=fl.TENFOLD
    )


@fl.method
class FedAKT(fl.Method[FedAKTConfig]):
    """W h + b and W A(h) + b: a client's header reads CLIP's feature and that of the shared adapter A."""

    name = "fedakt"
    about = fl.About(
        source="Liu et al., Adapter-guided Knowledge Transfer for Heterogeneous Federated Learning, Journal "
        "of Systems Architecture 159, 2025, with CLIP as every client's model",
        summary="FedAKT lets clients have different models, each with a small adapter of the same form. "
        "Here all models are CLIP, which stays frozen, and the adapter maps its embedding to another one. "
        "Each client's linear header learns to read both features, and distillation keeps them close. "
        "Only the adapter is sent, and the server averages it; it has no trained header. "
        "There is no public code, and FedOT's comparison states no settings; most of this is our "
        "interpretation.",
        charts=(
            fl.DiagnosticChart(
                "FedAKT's loss terms",
                {
                    "cross_entropy_model": "header on CLIP's feature",
                    "cross_entropy_adapter": "header on the adapter's feature",
                    "distillation": "distillation",
                },
                better="lower",
            ),
        ),
    )
    Config = FedAKTConfig
    class_axes = {"head_w": -2, "head_b": -1}
    shared = ADAPTER

    @classmethod
    def bound_to_classes(cls, config: FedAKTConfig) -> str:
        return "its header starts at random"

    def init(self, generator: fl.Generators) -> fl.State:
        """Draw adapter and header as torch.nn.Linear does; the server keeps the header as it was drawn.

        Shape: down_w (hidden, d), down_b (hidden,), up_w (d, hidden), up_b (d,), head_w (clients, K, d),
        head_b (clients, K), and without the client axis on the server.
        """
        d = self.problem.backbone.spec.embed_dim
        hidden = self.config.hidden or max(1, d // 4)
        layers = (
            *fl.draw_linear(hidden, d, generator("fedakt", "adapter", 1)),
            *fl.draw_linear(d, hidden, generator("fedakt", "adapter", 2)),
            *fl.draw_linear(len(self.problem.classes), d, generator("fedakt", "header")),
        )
        names = (*ADAPTER, *HEADER)
        first = self.place(dict(zip(names, layers, strict=True)))
        header = {name: first.pop(name) for name in HEADER}
        return fl.State(shared=first, local=self.repeat(header), server=header)

    def train_step(self, params: fl.Params, const: fl.Params, batch: fl.Batch) -> fl.Step:
        """Return CE(W h + b) + CE(W A(h) + b) + beta |A(h) - h|^2 / d."""
        adapted = self._adapt(params, batch.x)
        terms = {
            "cross_entropy_model": fl.cross_entropy(self._read(params, batch.x), batch.labels, batch.mask),
            "cross_entropy_adapter": fl.cross_entropy(self._read(params, adapted), batch.labels, batch.mask),
            "distillation": fl.masked_mean((adapted - batch.x).square().mean(-1), batch.mask),
        }
        fit = terms["cross_entropy_model"] + terms["cross_entropy_adapter"]
        loss = fit + self.config.distillation_weight * terms["distillation"]
        return fl.Step({(*ADAPTER, *HEADER): loss}, terms=terms)

    def models(self, state: fl.State) -> fl.Models:
        """Return the adapter with the untrained header as the global model, and each client's header."""
        common = {name: value[None] for name, value in (state.shared | state.server).items()}
        return fl.Models(common, state.local)

    def head(self, params: fl.Params, data: fl.LocalData | None) -> fl.Params:
        """Return the adapter, through which the global model looks at an image; nothing for a client."""
        return {name: params[name] for name in ADAPTER} if data is None else {}

    def logits(self, params: fl.Params, head: fl.Params, x: Tensor) -> Tensor:
        """Return the header's scores of CLIP's feature; of the adapter's for the global model."""
        return self._read(params, self._adapt(head, x) if head else x)

    def _read(self, params: fl.Params, feature: Tensor) -> Tensor:
        return fl.linear(feature, params["head_w"], params["head_b"])

    def _adapt(self, params: fl.Params, x: Tensor) -> Tensor:
        hidden = F.relu(fl.linear(x, params["down_w"], params["down_b"]))
        return fl.linear(hidden, params["up_w"], params["up_b"])
