"""pFedMoAP mixes a client's prompt with prompts of other clients, image by image (Luo et al., ICLR 2025).

    t_k(P): normalised text feature of [SOS] P class name . [EOT]
    P_i is the client's prompt, T_jk = t_k(P_j) for E - 1 prompts of others, which stay as received
    q = pool(h/|h|),  keys = values = {pool(t_k(P_i)), pool(T_jk)},  pool(x) = x[::d/a]
    o_k = MHA_i(q, keys, values), whose scores are multiplied by 10
    client: scores lambda s h/|h| . t_k(P_i) + s pool(h/|h|) . o_k,  L = CE(scores)
    server: keeps each client's last P_i; a participant starts from their mean

The attention MHA_i (the gate) never leaves its client. In its first round a client has no experts: it trains
and predicts with s h/|h| . t_k(P_i) alone, as PromptFL does. There is no global model.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from fedcore import methods as fl
from fedcore.base.errors import FedLensError
from fedcore.base.lazy import Tensor, torch
from fedcore.base.lazy import functional as F
from fedcore.methods.baselines.prompts import Prompted, PromptedConfig

HEADS, SHARPNESS = 8, 10.0
"""Heads of the attention, and the factor of its scores in the place of 1/sqrt(width)."""
LAYERS = ("q", "k", "v", "o")
GATE = tuple(f"gate_{layer}_{part}" for layer in LAYERS for part in "wb")
"""Parameters of the attention."""
AT_ONCE = 32
"""Prompts of others that are encoded together."""
COMPARED = 1000
"""Prompts whose distances from all others are computed together; a run of more clients compares those alone
that have been sent."""


class PFedMoAPConfig(PromptedConfig):
    lr: fl.LearningRate = fl.hyper(2e-3, "Learning rate of a client's prompt (authors' code: 0.002)")
    schedule: fl.RateSchedule = fl.hyper("cosine", fl.HALF_COSINE)
    local_epochs: fl.Epochs = fl.hyper(5, "Passes over a client's data in one round (authors' code: 5)")
    experts: int = fl.hyper(
        10, "Prompts that a client mixes, its own one included (E; paper: 10)", title="experts", ge=1, le=100
    )
    selection: Literal["nearest", "random", "one_order"] = fl.hyper(
        "nearest",
        "Prompts of others that a client gets: nearest to its own one (paper), drawn at random for each "
        "client and round, or the first in one order of the clients, drawn once (authors' code)",
        title="choice of experts",
    )
    local_weight: float = fl.hyper(
        0.5,
        "Weight lambda of the scores of the client's own prompt (paper: 0.5)",
        ge=0,
        le=100,
        search=fl.SearchRange(low=0.1, high=0.9),
    )
    gate_width: int = fl.hyper(
        128, "Width a of the attention; at most the width of CLIP's embedding (paper: 128)", ge=8, le=4096
    )
    gate_lr: fl.LearningRate = fl.hyper(0.01, "Learning rate of the attention (authors' code: 0.01)")


@fl.method
class PFedMoAP(Prompted):
    """lambda s h . t(P_i) + s pool(h) . MHA(pool(h), own and other clients' class features)."""

    name = "pfedmoap"
    about = fl.About(
        source="Luo et al., Mixture of Experts Made Personalized: Federated Prompt Learning for "
        "Vision-Language Models, ICLR 2025",
        summary="CLIP stays frozen and every client learns a prompt. "
        "The server keeps each client's last prompt and sends a client some of the others, the nearest to "
        "its own. "
        "They stay fixed: a small attention network, which never leaves the client, weighs for each image "
        "and class how much the client's own prompt and each of the others count. "
        "A round starts from the mean of all prompts. "
        "Clients see prompts of single other clients, and there is no global model.",
        prompts={"context": "own"},
    )
    Config = PFedMoAPConfig
    backbones = "equal token widths"
    shared = ("context",)
    client_rows = ("prompts",)

    def __init__(self, config: PFedMoAPConfig, problem: fl.Problem) -> None:
        super().__init__(config, problem)
        width = problem.backbone.spec.embed_dim
        self.width = min(config.gate_width, width)
        self.stride = width // self.width

    @classmethod
    def check(cls, config: PFedMoAPConfig, context: fl.RunContext) -> None:
        super().check(config, context)
        width = min(config.gate_width, context.spec.embed_dim)
        if width % HEADS:
            raise FedLensError(
                f"the attention has {HEADS} heads, which cannot share a width of {width}; use a multiple of "
                f"{HEADS}, at most the {context.spec.embed_dim} of {context.spec.name}",
                "gate_width",
            )

    @classmethod
    def result_caveat(cls, config: PFedMoAPConfig, embedded: bool) -> str:
        return (
            "Clients receive the prompts of single other clients, not only a mean: a prompt can tell what "
            "its client's images are"
        )

    def init(self, generator: fl.Generators) -> fl.State:
        """Draw PromptFL's first prompt for all clients, and one attention that each of them copies.

        personal: the clients whose prompts the server sends to a client, -1 if it gets none: the prompts
        themselves, E - 1 for each of 10,000 clients, would take 3 GB. server: the last prompt of each client
        that has sent one, and whose attention has been trained.

        Shape: context (M, m), chosen (clients, n) int64 with n = 0 at first, prompts (clients, M, m),
        gated (clients,) int64, gate_*_w (clients, a, a), gate_*_b (clients, a).
        """
        context, clients = self._draw(generator("promptfl", "context")), len(self.problem.clients)
        gate: fl.Params = {}
        for layer in LAYERS:
            weight, bias = fl.draw_linear(self.width, self.width, generator("pfedmoap", layer))
            gate |= {f"gate_{layer}_w": weight, f"gate_{layer}_b": bias}
        none = torch.zeros(clients, dtype=torch.int64, device=context.device)
        return fl.State(
            shared={"context": context},
            personal={"chosen": none[:, None][:, :0]},
            local=self.repeat(self.place(gate)),
            server={**self.repeat({"prompts": context}), "gated": none},
        )

    def sends(self, state: fl.State, clients: Tensor) -> fl.Params:
        """Return the mean prompt, and the experts of each participant, zeros if it gets none."""
        sent = super().sends(replace(state, personal={}), clients)
        return {**sent, "experts": self._experts(state, clients)}

    @staticmethod
    def _experts(state: fl.State, clients: Tensor) -> Tensor:
        """Return the prompts of others that were chosen for some clients. Shape: -> (some, n, M, m)."""
        prompts = state.server["prompts"]
        chosen = state.personal["chosen"][clients.to(prompts.device)]
        experts = prompts[chosen.clamp(min=0)]
        experts[chosen < 0] = 0
        return experts

    def round_constants(self, params: fl.Params, data: fl.LocalData) -> fl.Params:
        """Return the class features of the experts, and who has some if not all have.

        Shape: experts (clients, n, classes, a), present and some (clients,).
        """
        const = self._encoded(params["experts"])
        return const if const["present"].all() else {**const, "some": const["present"]}

    def train_step(self, params: fl.Params, const: fl.Params, batch: fl.Batch) -> fl.Step:
        head = {**const, "text": F.normalize(self._text(params["context"]), dim=-1)}
        loss = fl.cross_entropy(self.logits(params, head, batch.x), batch.labels, batch.mask)
        if const["experts"].shape[1]:
            return fl.Step({("context", *GATE): loss}, only={GATE: const["some"]} if "some" in const else {})
        return fl.Step({("context",): loss}, moved={name: params[name].detach() for name in GATE})

    def lr_factors(self) -> dict[str, float]:
        """Return the learning rate of the attention as a multiple of the prompt's."""
        return dict.fromkeys(GATE, self.config.gate_lr / self.config.lr) if self.config.lr else {}

    def aggregate(self, state: fl.State, uploads: fl.Uploads, generator: fl.Generators) -> fl.State:
        """Average the prompts, keep each, and choose experts for the clients that have taken part.

        Returns the participants' rows of the prompts (``client_rows``).
        """
        sent, sending = super().aggregate(state, uploads, generator), uploads.clients
        assert state.rounds_trained is not None, "set by the engine"
        taking = state.rounds_trained > 0
        taking[sending] = True
        (taken,) = taking.nonzero(as_tuple=True)
        uploaded = uploads.dense("context")
        latest = state.server["prompts"][taken.to(uploaded.device)]
        latest[torch.searchsorted(taken, sending).to(uploaded.device)] = uploaded
        chosen = torch.full((len(taking), min(self.config.experts, len(taken)) - 1), -1)
        chosen[taken] = self._choose(latest, taken, chosen.shape[1], generator)
        gated = state.server["gated"].clone()
        gated[sending] |= _present(self._experts(state, sending)).to(gated)
        return replace(
            sent,
            personal={"chosen": chosen.to(uploaded.device)},
            server={"prompts": uploaded, "gated": gated},
        )

    def _choose(self, prompts: Tensor, taken: Tensor, count: int, generator: fl.Generators) -> Tensor:
        """Return the clients whose prompts are the experts of each client that has taken part.

        Shape: prompts (senders, M, m), taken (senders,) -> (senders, count).
        """
        everyone = torch.arange(len(self.problem.clients))
        # The number of rows decides the last bits of their distances, and so which of two equal ones is less.
        compared = everyone if len(everyone) <= COMPARED else taken
        place = torch.searchsorted(compared, taken)
        absent = torch.ones(len(compared), dtype=torch.bool).index_fill_(0, place, False)
        if self.config.selection == "nearest":
            pieces = _distances(prompts, place, len(compared))
        else:
            pieces = self._drawn(compared, generator)
        chosen = torch.empty(len(compared), count, dtype=torch.int64)
        for rows, apart in pieces:
            apart[:, absent] = torch.inf  # a prompt that was never sent is not an expert
            apart[torch.arange(len(rows)), rows] = torch.inf
            chosen[rows] = apart.topk(count, largest=False).indices
        return compared[chosen[place]]

    def _drawn(self, compared: Tensor, generator: fl.Generators) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield random numbers in the place of distances, see ``_distances``; for one order, equal rows.

        They are drawn in the order of the names, so that the order of the clients does not matter.
        """
        names, draw = self.problem.clients, generator("experts")
        order = torch.rand(len(names), generator=self.problem.generator("experts"), dtype=torch.float64)
        in_order = torch.tensor(sorted(range(len(names)), key=names.__getitem__))
        rank = in_order.argsort()[compared]
        place = {client: row for row, client in enumerate(compared.tolist())}
        for client in in_order.tolist():
            drawn = order
            if self.config.selection == "random":
                drawn = torch.rand(len(names), generator=draw, dtype=torch.float64)
            if client in place:
                yield torch.tensor([place[client]]), drawn[rank][None]

    def downloads(self, state: fl.State, clients: Tensor, received: fl.Params) -> fl.Values:
        """Return the mean prompt, and the experts of the clients that get some."""
        experts = received["experts"]
        got = _present(experts) * experts.shape[1]
        return {"context": received["context"], "experts": fl.Ragged(experts, got)}

    def models(self, state: fl.State) -> fl.Models:
        """Return each client's last prompt with the experts of its next round; there is no global model.

        A client that never took part has the mean prompt. One that has had no experts has an untrained
        attention, and predicts without it.
        """
        trained, mean = state.rounds_trained, state.shared["context"]

        def made(clients: Tensor) -> fl.Params:
            experts, some = self._experts(state, clients), clients.to(mean.device)
            gated = state.server["gated"][some].to(experts)[:, None, None, None]
            if trained is None:
                context = mean.expand(len(clients), -1, -1)
            else:
                took_part = (trained[clients] > 0).to(mean.device)[:, None, None]
                context = torch.where(took_part, state.server["prompts"][some], mean)
            return {"context": context, "experts": experts * gated}

        return fl.Models(None, state.local, made)

    def head(self, params: fl.Params, data: fl.LocalData | None) -> fl.Params:
        """Return class features of the own prompt and, pooled, of the experts.

        Shape: text (models, classes, d), experts (models, n, classes, a), present (models,).
        """
        text = F.normalize(self._text(params["context"]), dim=-1)
        return {"text": text, **self._encoded(params["experts"])}

    def _encoded(self, experts: Tensor) -> fl.Params:
        """Return pooled class features of the experts, and which clients have some.

        Equal prompts, which several clients have got, are encoded once.

        Shape: experts (clients, n, M, m) -> experts (clients, n, classes, a), present (clients,).
        """
        clients, count = experts.shape[:2]
        present = _present(experts)
        if not count or not present.any():
            return {
                "experts": experts.new_zeros(clients, 0, len(self.problem.classes), self.width),
                "present": present,
            }
        different, place = experts.flatten(0, 1).unique(dim=0, return_inverse=True)
        text = fl.in_pieces(
            lambda some: self._pool(F.normalize(self._text(some), dim=-1)), AT_ONCE, different
        )
        return {"experts": text[place].unflatten(0, (clients, count)), "present": present}

    def _pool(self, x: Tensor) -> Tensor:
        """Take every (d/a)-th coordinate. Shape: (..., d) -> (..., a)."""
        return x[..., :: self.stride][..., : self.width]

    def logits(self, params: fl.Params, head: fl.Params, x: Tensor) -> Tensor:
        """Return the scores of the own prompt and of the mixture.

        Shape: x (models, samples, d) -> (models, samples, classes).
        """
        scale = self.problem.backbone.logit_scale
        h = F.normalize(x, dim=-1)
        local: Tensor = scale * (h @ head["text"].transpose(1, 2))
        if not head["experts"].shape[1]:
            return local
        texts = torch.cat([self._pool(head["text"])[:, None], head["experts"]], 1)
        mixed = self.config.local_weight * local + scale * self._attended(params, self._pool(h), texts)
        return torch.where(head["present"][:, None, None], mixed, local)

    def _attended(self, params: fl.Params, h: Tensor, texts: Tensor) -> Tensor:
        """Return pool(h) . MHA(pool(h), texts, texts).

        h . W_o v = (W_o^T h) . v: every value becomes a number before the sum over the experts.

        Shape: h (models, samples, a), texts (models, E, classes, a) -> (models, samples, classes).
        """
        weight = {layer: (params[f"gate_{layer}_w"], params[f"gate_{layer}_b"]) for layer in LAYERS}
        flat, (experts, classes) = texts.flatten(1, 2), texts.shape[1:3]

        def by_head(values: Tensor) -> Tensor:
            """Shape: (models, n, a) -> (models, heads, n, a / heads)."""
            heads: Tensor = values.unflatten(-1, (HEADS, -1)).transpose(1, 2)
            return heads

        q, k, v = (by_head(fl.linear(t, *weight[n])) for n, t in (("q", h), ("k", flat), ("v", flat)))
        shape = (experts, classes)
        share = (SHARPNESS * (q @ k.transpose(2, 3))).unflatten(-1, shape).softmax(-2)
        out = by_head(h @ weight["o"][0])
        agreed = (out @ v.transpose(2, 3)).unflatten(-1, shape)
        voted: Tensor = (share * agreed).sum((1, 3))
        return voted + h @ weight["o"][1][..., None]

    def features(self, params: fl.Params, head: fl.Params, x: Tensor) -> None:
        """Return nothing, since a score does not compare one image feature with one class feature."""

    def numbers_per_sample(self) -> int:
        """Return the scores, shares and values of the attention."""
        experts: int = self.config.experts
        return 3 * HEADS * experts * len(self.problem.classes)


def _present(experts: Tensor) -> Tensor:
    """Return which clients have experts; zeros mean none. Shape: (clients, n, M, m) -> (clients,)."""
    return experts.flatten(1).any(1)


def _distances(prompts: Tensor, place: Tensor, count: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield some of ``count`` rows, and their distances from all of them, on the CPU.

    Shape: prompts (senders, M, m), place (senders,) their rows -> (some,), (some, count).
    """
    flat = prompts.new_zeros(count, prompts[0].numel(), dtype=torch.float64)
    flat[place.to(flat.device)] = prompts.flatten(1).double()
    for rows in torch.arange(len(flat)).split(COMPARED):
        yield rows, torch.cdist(flat[rows.to(flat.device)], flat).cpu()
