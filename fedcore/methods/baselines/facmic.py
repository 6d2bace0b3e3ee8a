"""FACMIC adds batch normalisation and an alignment of domains to FedCLIP's adapter (Wu et al., 2024).

    A(h) = softmax(W_2 LeakyReLU(BN(W_1 h + b_1)) + b_2),  scores s cos(A(h) * h, t_k)
    L = FedCLIP's loss + mu D,  D the local maximum mean discrepancy of a batch and images of a target domain
    server: averages the weights and the running statistics by sample counts

Changed from its code: D is off unless ``target = held_out``, because it reads unlabelled images of the domain
that the model is tested on. Target images are drawn once and move no running statistics.
"""

from typing import Any, Literal

from fedcore import methods as fl
from fedcore.base.errors import FedLensError
from fedcore.base.lazy import Tensor, torch
from fedcore.base.lazy import functional as F
from fedcore.methods.baselines.fedclip import FedCLIP, FedCLIPConfig

KERNELS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Widths of the five RBF kernels over the mean squared distance: powers of 2 (kernel_mul)."""
BN_MOMENTUM, BN_EPS = 0.1, 1e-5
SLOPE = 0.01
_WEIGHTS = ("w1", "b1", "gamma", "beta", "w2", "b2")
STATISTICS = ("running_mean", "running_var")


class FACMICConfig(FedCLIPConfig):
    """Hyper-parameters of FACMIC: FedCLIP's, and those of the alignment."""

    weight_decay: fl.WeightDecay = fl.hyper(0.02, "Weight decay of the clients (authors' code: 0.02)")
    optimiser_state: Literal["fresh", "kept"] = fl.hyper(
        "kept",
        "State of the local optimiser: kept by the client across rounds (authors' code), or new each round",
    )
    weighting: fl.Weighting = fl.hyper(
        "samples", "Server mean over clients: weighted by sample counts (authors' code), or plain"
    )
    target: Literal["none", "held_out"] = fl.hyper(
        "none",
        "Images that the alignment term adapts to; none: no such term; held_out: images of the "
        "held-out domain without their labels, outside its test set, as in the paper. The model has then "
        "seen the domain that it is tested on",
        title="aligned with",
        words={"none": "nothing", "held_out": "the held-out domain, unlabelled"},
    )
    alignment: fl.LossWeight = fl.hyper(
        1.0, "Weight of the alignment term (authors: 1)", title="alignment weight"
    )
    target_features: Literal["raw", "adapted"] = fl.hyper(
        "raw",
        "Target embeddings that the alignment term compares with the clients' adapted ones: raw, "
        "as the image encoder gives them (authors' code); adapted, by the same adapter (paper)",
        title="target features",
        words={"raw": "as encoded", "adapted": "adapted"},
    )
    target_images: int = fl.hyper(
        256,
        "Most unlabelled images that the alignment term reads, drawn once by the seed",
        title="target images",
        ge=1,
        le=100_000,
    )


def lmmd(source: Tensor, labels: Tensor, mask: Tensor, target: Tensor, probabilities: Tensor) -> Tensor:
    """Return the local maximum mean discrepancy: kernel distances of two domains, class by class.

    Classes count that are among the source's labels and among the target's likeliest classes. Kernel widths
    and class weights have no gradient.

    Shape: source (clients, n, d), labels and mask (clients, n), target (clients, t, d), probabilities
    (clients, t, classes) -> (clients,).  Source: Zhu et al., Deep Subdomain Adaptation Network, 2021.
    """
    classes = probabilities.shape[-1]
    guessed = probabilities.detach()
    one_hot = F.one_hot(labels, classes).to(source.dtype) * mask[..., None]
    likeliest = F.one_hot(guessed.argmax(-1), classes).amax(1)
    common = ((one_hot.sum(1) > 0) & (likeliest > 0)).to(source.dtype)  # (clients, classes)
    weights = torch.cat(
        [w / w.sum(1, keepdim=True).clamp(min=1e-12) * sign for w, sign in ((one_hot, 1), (guessed, -1))], 1
    )
    weights = weights * common[:, None]
    both = torch.cat([source, target], 1)
    real = torch.cat([mask, torch.ones_like(target[..., 0], dtype=torch.bool)], 1)
    distance = (both[:, :, None] - both[:, None]).square().sum(-1)
    pairs = real[:, :, None] & real[:, None]
    count = real.sum(1).to(source.dtype)
    width = (distance * pairs).detach().sum((1, 2)) / (count * (count - 1)).clamp(min=1)
    kernel = sum(torch.exp(-distance / (width * k).clamp(min=1e-12)[:, None, None]) for k in KERNELS)
    products = weights @ weights.transpose(1, 2)
    return (products * kernel).sum((1, 2)) / common.sum(1).clamp(min=1)


@fl.method
class FACMIC(FedCLIP):
    """cos(A(h) * h, class prompt) as FedCLIP, with batch normalisation in A and an alignment of domains."""

    name = "facmic"
    about = fl.About(
        source="Wu et al., FACMIC: Federated Adaptative CLIP Model for Medical Image Classification, MICCAI "
        "2024",
        summary="As FedCLIP: a small network weighs the dimensions of the image embeddings, and the server "
        "averages it. "
        "The network has batch normalisation; its running statistics are averaged too. "
        "A term of the loss can align each client's images, class by class, with those of a domain that no "
        "client has. "
        "That reads unlabelled images of the domain that the model is tested on: it is off by default, "
        "and a run that uses it says so.",
        charts=(
            fl.DiagnosticChart(
                "Loss terms",
                {"contrastive": "contrastive", "cross_entropy": "cross-entropy", "alignment": "alignment"},
                better="lower",
            ),
        ),
    )
    Config = FACMICConfig
    config: FACMICConfig
    shared = (*_WEIGHTS, *STATISTICS)

    @classmethod
    def check(cls, config: Any, context: fl.RunContext) -> None:
        owned = {*(context.client_domain or (-1,))}
        if config.target == "held_out" and (-1 in owned or len(owned) == len(context.domains)):
            raise FedLensError(
                "target = held_out aligns the clients with a held-out domain, and none is held out; hold one "
                'out (held_out = ["..."]), or choose target = none',
                "target",
            )
        if config.target == "held_out" and context.whole_domain:
            raise FedLensError(
                "models are tested on all images of the held-out domain, so none is left to align with; set "
                "held_out_share = test, or choose target = none",
                "target",
            )

    @classmethod
    def result_caveat(cls, config: Any, embedded: bool) -> str:
        if config.target == "none":
            return ""
        return "trained with unlabelled images of the held-out domain (outside its test set)"

    def init(self, generator: fl.Generators) -> fl.State:
        """Return two linear layers, drawn as in torch.nn.Linear, with a fresh batch normalisation between.

        Shape: w1, w2 (d, d), all others (d,).
        """
        backbone = self.problem.backbone
        d = backbone.spec.embed_dim
        (w1, b1), (w2, b2) = (fl.draw_linear(d, d, generator("facmic", "adapter", i)) for i in (1, 2))
        one, zero = torch.ones(d, dtype=torch.float64), torch.zeros(d, dtype=torch.float64)
        values = {"w1": w1, "b1": b1, "gamma": one, "beta": zero, "w2": w2, "b2": b2}
        values |= {"running_mean": zero, "running_var": one}
        return fl.State(shared={name: value.clone() for name, value in self.place(values).items()})

    def round_constants(self, params: fl.Params, data: fl.LocalData) -> fl.Params:
        """Return unlabelled embeddings of the held-out domain, the same for all clients.

        Shape: target (participants, t, d).
        """
        rows = data.unlabelled
        if self.config.target == "none" or rows is None or not len(rows):
            return {}
        order = torch.randperm(len(rows), generator=self.problem.generator("facmic", "target"))
        x = data.pool.x(rows[order[: self.config.target_images]])
        return {"target": x.expand(len(data.clients), *x.shape)}

    def train_step(self, params: fl.Params, const: fl.Params, batch: fl.Batch) -> fl.Step:
        h, moved = self._adapt_batch(params, batch.x, batch.mask)
        loss = self._loss(h, batch)
        terms = {"cross_entropy" if self.config.loss == "ce" else "contrastive": loss}
        if "target" in const:
            everything = torch.ones_like(const["target"][..., 0], dtype=torch.bool)
            target = self._adapt_batch(params, const["target"], everything)[0]
            guessed = self._scores(target).softmax(-1)
            compared = const["target"] if self.config.target_features == "raw" else target
            unit = F.normalize(h, dim=-1), F.normalize(compared, dim=-1)
            terms["alignment"] = lmmd(unit[0], batch.labels, batch.mask, unit[1], guessed)
            loss = loss + self.config.alignment * terms["alignment"]
        return fl.Step({_WEIGHTS: loss}, moved=moved, terms=terms)

    def _adapt(self, params: fl.Params, h: Tensor) -> Tensor:
        """Return A(h) * h with the running statistics. Shape: (models, samples, d) -> same."""
        hidden = fl.linear(h, params["w1"], params["b1"])
        return self._weigh(params, h, hidden, *(params[name] for name in STATISTICS))

    def _adapt_batch(self, params: fl.Params, h: Tensor, mask: Tensor) -> tuple[Tensor, fl.Params]:
        """Return A(h) * h with the batch's own statistics, and the running statistics as these move them.

        Shape: h (clients, samples, d), mask (clients, samples) -> like h, (clients, d) each.
        """
        hidden, real = fl.linear(h, params["w1"], params["b1"]), mask[..., None]
        mean = fl.masked_mean(hidden, real)
        var = fl.masked_mean((hidden - mean[:, None]).square(), real)
        n = mask.sum(1)[:, None]
        moved = {}
        for name, now in zip(STATISTICS, (mean, var * n / (n - 1).clamp(min=1)), strict=True):
            step = BN_MOMENTUM * (now.detach() - params[name].detach())
            moved[name] = params[name].detach() + torch.where(n > 1, step, 0)  # one sample has no variance
        return self._weigh(params, h, hidden, mean, var), moved

    def _weigh(self, params: fl.Params, h: Tensor, hidden: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        unit = (hidden - mean[:, None]) / (var[:, None] + BN_EPS).sqrt()
        hidden = F.leaky_relu(unit * params["gamma"][:, None] + params["beta"][:, None], SLOPE)
        return fl.linear(hidden, params["w2"], params["b2"]).softmax(-1) * h
