"""FedMGP gives clients groups of text and image prompts, some of which they share (Bo et al., NeurIPS 2025).

Group g of G has a context P_g before the class names and tokens V_g beside those of an image:

    l_g = s h(V_g) . t(P_g),  L = mean_g CE(l_g) - D,  D: mean L1 distance of two groups' features
    predict: mean_g l_g

    round 1:  a client sends s of its groups, drawn at random
    later:    group g is drawn with softmax_g(c_g / tau), without replacement; c_g is the largest cosine of
              the group's vectors, as one vector, with those of one of the server's groups
    server:   the groups that were drawn first are averaged over the clients, so are the second ones, ...;
              these s groups replace those that the client sent

Text and image prompts are drawn separately; a mean takes the place of the prompt that was drawn, beside the
same partner. Groups have no order in L and in predictions, so a client's prompts of each kind are held as the
s of the server ("text", "visual") followed by the G - s others ("own_text", "own_visual"), and "pairs" has
the image prompt of each context.

The published code minimises the distance between the groups instead (``diversity = published-code``).
"""

from typing import Literal, Self

from pydantic import model_validator

from fedcore import methods as fl
from fedcore.base.lazy import Tensor, torch
from fedcore.base.lazy import functional as F
from fedcore.clip.prompts import draw_context, encode_context
from fedcore.methods.baselines.prompts import WORDS, PromptedTowers

START_NOISE = 0.01
"""Standard deviation of what is added to the words from which each group's context starts (authors' code)."""
KINDS = ("text", "visual")


class FedMGPConfig(fl.MethodConfig):
    groups: int = fl.hyper(
        5, "Groups of a text and an image prompt that each client has (G; paper: 5)", ge=1, le=64
    )
    shared_groups: int = fl.hyper(
        2, "Groups that a client sends in a round, and that the server keeps (s; paper: 2)", ge=1, le=64
    )
    context_length: fl.PromptLength = fl.hyper(
        2,
        "Learned context vectors of a group before the class name, tokens (authors' code: 2, near the first "
        f"of '{WORDS}'); more than four start at random",
    )
    visual_length: int = fl.hyper(
        2,
        "Learned vectors of a group beside an image's tokens (authors' code: 2)",
        title="visual prompt length",
        ge=1,
        le=200,
    )
    diversity_weight: fl.LossWeight = fl.hyper(
        1.0, "Weight of the distance between the groups' features (authors' code: 1)", search=fl.TENFOLD
    )
    diversity: Literal["paper", "published-code"] = fl.hyper(
        "paper",
        "What the loss does with that distance: paper, a larger one is better, so groups move apart; "
        "published-code, a smaller one is better, so they move together, as in the authors' repository",
        words={"paper": "groups move apart", "published-code": "groups move together (published code)"},
    )
    temperature: float = fl.hyper(
        1.0,
        "Temperature tau of the draw of the groups that a client sends (authors' code: 1)",
        gt=0,
        le=100,
    )
    lr: fl.LearningRate = fl.hyper(1e-3, "Learning rate of local SGD (authors' code: 0.001)")
    batch_size: fl.BatchSize = fl.hyper(8, "Samples in a local batch (authors' code: 8)")
    local_epochs: fl.Epochs = fl.hyper(2, "Passes over a client's data in one round (authors' code: 2)")

    @model_validator(mode="after")
    def _groups_fit(self) -> Self:
        if self.shared_groups > self.groups:
            raise ValueError(
                f"a client has {self.groups} groups and cannot send {self.shared_groups}; choose "
                f"shared_groups of at most {self.groups}"
            )
        if self.optimiser_state == "kept":
            raise ValueError(
                "a client's groups change places after every round, and momentum would not follow them; "
                "choose optimiser_state = fresh"
            )
        return self


@fl.method
class FedMGP(PromptedTowers):
    """mean_g s cos(h(V_g), t(P_g)) over groups of prompts, some of which the server averages."""

    name = "fedmgp"
    about = fl.About(
        source="Bo et al., FedMGP: Personalized Federated Learning with Multi-Group Text-Visual Prompts, "
        "NeurIPS 2025",
        summary="CLIP stays frozen; every client has several groups of prompts, each of a few vectors before "
        "the class names and a few beside the image's tokens. "
        "Every group classifies by itself, and the client predicts with the mean of their scores. "
        "A second loss pushes the features of different groups apart. "
        "After training a client draws two of its groups, those that resemble the server's with higher "
        "probability, and sends them; the server averages what the clients sent, and the mean takes their "
        "place. The other groups never leave the client. "
        "Training passes through both encoders, once for each group.",
        charts=(
            fl.DiagnosticChart(
                "Cross-entropy of FedMGP's groups", {"group_cross_entropy": ""}, better="lower"
            ),
            fl.DiagnosticChart(
                "Distance between FedMGP's groups",
                {"group_distance": ""},
                note="Mean L1 distance of two groups' features, per dimension.",
            ),
        ),
        prompts={"text": "shared groups", "own_text": "own groups"},
    )
    Config = FedMGPConfig
    shared = KINDS

    def __init__(self, config: FedMGPConfig, problem: fl.Problem) -> None:
        super().__init__(config, problem)
        local = ("own_text", "own_visual") if config.groups > config.shared_groups else ()
        self._trained = (*KINDS, *local)

    @classmethod
    def plan_warnings(cls, config: FedMGPConfig, context: fl.RunContext) -> list[str]:
        """Warn about its cost, the paper's learning rate on the miniature CLIP, and the authors' sign."""
        cost = (
            "a round takes over a hundred times as long as PromptFL's: each of its "
            f"{config.groups} groups of prompts passes through both encoders in every step"
        )
        caveat = cls.result_caveat(config, context.embedded)
        return [cost, *super().plan_warnings(config, context), *filter(None, [caveat])]

    @classmethod
    def result_caveat(cls, config: FedMGPConfig, embedded: bool) -> str:
        if config.diversity == "paper" or not config.diversity_weight:
            return ""
        return (
            "trained as the published code does, whose diversity loss moves the groups together; the paper "
            "moves them apart"
        )

    def init(self, generator: fl.Generators) -> fl.State:
        """Draw all groups once, the same for all clients.

        A context is a photo prompt's first words with noise, or random vectors.

        Shape: text (s, M, m), visual (s, p, width); own_text and own_visual (clients, G - s, ...), pairs
        (clients, G) int64: the position of the image prompt that goes with each context.
        """
        spec, config = self.problem.backbone.spec, self.config
        draw = generator("fedmgp", "groups")
        size, words = (config.context_length, spec.token_width), self._first_words()
        if words is None:
            text = torch.stack([draw_context(*size, draw) for _ in range(config.groups)])
        else:
            noise = torch.randn(config.groups, *size, generator=draw, dtype=torch.float64)
            text = words.cpu().double() + START_NOISE * noise
        every = {
            "text": text,
            "visual": torch.stack(
                [draw_context(config.visual_length, spec.vision_width, draw) for _ in range(config.groups)]
            ),
        }
        placed, s = self.place(every), config.shared_groups
        local = {f"own_{name}": value[s:] for name, value in placed.items()}
        local = {name: value for name, value in local.items() if name in self._trained}
        if config.groups > 1:
            local["pairs"] = torch.arange(config.groups, device=self.problem.device)
        return fl.State(shared={name: value[:s] for name, value in placed.items()}, local=self.repeat(local))

    def train_step(self, params: fl.Params, const: fl.Params, batch: fl.Batch) -> fl.Step:
        h, text = self._group_features(params, self.head(params, None), batch.x)
        logits = self.problem.backbone.logit_scale * (h @ text.transpose(-1, -2))
        labels, mask = (
            v[:, None].expand(-1, logits.shape[1], -1).flatten(0, 1) for v in (batch.labels, batch.mask)
        )
        fit = fl.cross_entropy(logits.flatten(0, 1), labels, mask).view(logits.shape[:2]).mean(1)
        if self.config.groups == 1:
            return fl.Step({self._trained: fit}, terms={"group_cross_entropy": fit})
        everything = torch.ones_like(text[:, 0, :, 0], dtype=torch.bool)
        apart = (group_distance(text, everything) + group_distance(h, batch.mask)) / 2
        sign = -1.0 if self.config.diversity == "paper" else 1.0
        terms = {"group_cross_entropy": fit, "group_distance": apart}
        loss = fit + sign * self.config.diversity_weight * apart
        return fl.Step({self._trained: loss}, moved={"pairs": params["pairs"]}, terms=terms)

    def after_training(
        self, trained: fl.Params, received: fl.Params, data: fl.LocalData, round_: int
    ) -> fl.Params:
        """Return the prompts with those first that the client sends, in the order in which it drew them."""
        held: fl.Params = {}
        orders: fl.Params = {}
        s = self.config.shared_groups
        for kind in KINDS:
            every = self._every(trained, kind)
            orders[kind] = self._draw_groups(kind, every, received[kind], data, round_)
            arranged = _arranged(every, orders[kind])
            held |= {kind: arranged[:, :s], f"own_{kind}": arranged[:, s:]}
        if "pairs" in trained:  # partners keep together, wherever both have moved to
            partners = trained["pairs"].gather(1, orders["text"])
            held["pairs"] = orders["visual"].argsort(1).gather(1, partners)
        return {name: held[name] for name in trained}

    def _draw_groups(
        self, kind: str, groups: Tensor, common: Tensor, data: fl.LocalData, round_: int
    ) -> Tensor:
        """Draw all of each client's groups one after the other, without replacement.

        The largest values of log p + Gumbel noise, in descending order, are such a draw with probabilities p.

        Shape: groups (participants, G, ...), common (participants, s, ...) -> (participants, G).
        """
        names = [self.problem.clients[i] for i in data.clients.tolist()]
        uniform = torch.stack(
            [
                torch.rand(
                    groups.shape[1],
                    generator=self.problem.generator("fedmgp", "draw", kind, round_, name),
                    dtype=torch.float64,
                )
                for name in names
            ]
        )
        keys = -torch.log(-torch.log(uniform)).to(groups.device)
        if round_ > 1:  # before the first mean there is nothing to be similar to
            unit, other = (F.normalize(v.flatten(2), dim=-1) for v in (groups, common))
            keys = keys + (unit @ other.transpose(1, 2)).amax(-1) / self.config.temperature
        return keys.argsort(dim=1, descending=True)

    def head(self, params: fl.Params, data: fl.LocalData | None) -> fl.Params:
        """Return class features and image prompts of every group.

        The global model has the server's, those drawn first beside each other, and so on.

        Shape: text (models, G, classes, d) normalised, prompts (models, G, p, width).
        """
        contexts, visual = (self._every(params, kind) for kind in KINDS)
        visual = _arranged(visual, params["pairs"]) if "pairs" in params else visual
        text = encode_context(self.problem.backbone, contexts.flatten(0, 1), self.suffix)
        return {
            "text": F.normalize(text, dim=-1).unflatten(0, contexts.shape[:2]),
            "prompts": self._norm(visual),
        }

    def features(self, params: fl.Params, head: fl.Params, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return all groups' features side by side, whose cosine is the mean of the groups' cosines.

        Shape: x (models, samples, tokens, width) -> (models, samples or classes, G d).
        """
        h, text = self._group_features(params, head, x)
        return h.transpose(1, 2).flatten(2), text.transpose(1, 2).flatten(2)

    def _group_features(self, params: fl.Params, head: fl.Params, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return normalised features. Shape: -> (models, G, samples, d), (models, G, classes, d)."""
        prompts = head["prompts"]
        models, groups = prompts.shape[:2]
        each = x[:, None].expand(-1, groups, *x.shape[1:]).flatten(0, 1)
        h = self.problem.backbone.image.tail(each, 0, prompts=prompts.flatten(0, 1)[:, None])
        return F.normalize(h, dim=-1).unflatten(0, (models, groups)), head["text"]

    def numbers_per_sample(self) -> int:
        """Return the numbers of an image's tokens in all groups."""
        spec = self.problem.backbone.spec
        groups, tokens = self.config.groups, spec.patches + 1 + self.config.visual_length
        return int(groups * tokens * spec.vision_width)

    def prompts(self, params: fl.Params, clients: Tensor | None) -> fl.Values:
        """Return the contexts, one group's after the other's. Shape: (models, groups M, m) each."""
        return {name: params[name].flatten(1, 2) for name in ("text", "own_text") if name in params}

    @staticmethod
    def _every(params: fl.Params, kind: str) -> Tensor:
        """Return all groups of a kind of prompt. Shape: -> (models, G or s, length, width)."""
        local = params.get(f"own_{kind}")
        return params[kind] if local is None else torch.cat([params[kind], local], 1)


def _arranged(prompts: Tensor, order: Tensor) -> Tensor:
    """Return each model's prompts in another order. Shape: (models, G, length, width), (models, G)."""
    arranged: Tensor = prompts[torch.arange(len(prompts), device=prompts.device)[:, None], order]
    return arranged


def group_distance(features: Tensor, mask: Tensor) -> Tensor:
    """Return the mean L1 distance per dimension of two groups' features, over all pairs and samples.

    Shape: features (clients, G, n, d), mask (clients, n) -> (clients,).
    """
    one, other = torch.triu_indices(features.shape[1], features.shape[1], 1, device=features.device)
    apart = (features[:, one] - features[:, other]).abs().mean(-1)
    return fl.masked_mean(apart.mean(1), mask)
