"""ProDA learns many prompts, and with them a distribution of class features (Lu et al., CVPR 2022).

    t_k^n: unit text feature of class k with the context P_n, which has the name before, within or behind it
    mu_k = mean_n t_k^n,  c_k^n = t_k^n - mu_k,  C_kl,j = sum_n c_k,j^n c_l,j^n / (B + 1), over a step's B
    client: scores of an image with unit feature u and label y,
            s u . mu_k + (s^2 / 2) sum_j u_j^2 (C_yy,j + C_kk,j - 2 C_yk,j)
            L = CE(scores) + lambda mean_{n != n'} |cos(e_n, e_n')|,  e_n: text feature of P_n alone
    server: P_n <- sum_i n_i P_n,i / sum_i n_i

A model predicts with s u . mu_k, mu over all N prompts. The paper trains on one machine; here clients do.
Interpreted: a step's prompts have the places of the name in the same shares as all prompts have.
"""

import math
from typing import Self

from pydantic import model_validator

from fedcore import methods as fl
from fedcore.base.lazy import Tensor, torch
from fedcore.base.lazy import functional as F
from fedcore.clip.prompts import class_suffix, encode_around, encode_context, name_tokens
from fedcore.methods.baselines.prompts import HELD_PER_TOKEN, Prompted, PromptedConfig, most_steps


class ProDAConfig(PromptedConfig):
    prompts: int = fl.hyper(
        32,
        "Number of shared prompts (N; paper: 32); in a quarter, rounded down, the class name stands first, "
        "in as many in the middle, otherwise last",
        title="number of prompts",
        ge=1,
        le=128,
    )
    prompt_batch: int = fl.hyper(
        4, "Prompts of a training step (B; paper: 4)", title="prompts of a step", ge=1, le=128
    )
    diversity_weight: fl.LossWeight = fl.hyper(
        0.1, "lambda: weight of the cosines between the prompts (0.1; FLiP: 1)", search=fl.TENFOLD
    )
    lr: fl.LearningRate = fl.hyper(2e-3, "Learning rate of local SGD (as CoOp's)")

    @model_validator(mode="after")
    def _whole_batches(self) -> Self:
        n, b = self.prompts, self.prompt_batch
        if n % b or places(n)[0] * b != places(b)[0] * n:
            raise ValueError(
                f"{n} prompts do not make steps of {b} with the class name first in the same share; choose "
                f"prompt_batch = {n}, or multiples of four that divide each other, such as 32 and 4"
            )
        return self


def places(prompts: int) -> tuple[int, int, int]:
    """Return how many of some prompts have the class name first, in the middle, and last."""
    quarter = prompts // 4
    return quarter, quarter, prompts - 2 * quarter


def upper_bound(u: Tensor, texts: Tensor, labels: Tensor, scale: float) -> Tensor:
    """Return the scores of the surrogate loss, from the three slices of the covariance that it needs.

    C has classes x classes x d numbers. Weighted by u_j^2 its rows and its diagonal are products of matrices.

    Shape: u (clients, batch, d) of unit length, texts (clients, B, classes, d), labels (clients, batch)
    -> (clients, batch, classes).
    """
    mean = texts.mean(1)
    apart = texts - mean[:, None]
    weights = u.square()
    diagonal = weights @ apart.square().sum(1).mT
    rows = torch.arange(len(u), device=u.device)[:, None]
    of_label = apart.transpose(1, 2)[rows, labels].transpose(1, 2)  # (clients, B, batch, d)
    between = ((weights[:, None] * of_label) @ apart.mT).sum(1)
    at_label = diagonal.gather(-1, labels[..., None])
    spread = (at_label + diagonal - 2 * between) / (texts.shape[1] + 1)
    return scale * (u @ mean.mT) + scale**2 / 2 * spread


@fl.method
class ProDA(Prompted):
    """s h/|h| . mean_n t(P_n) of many shared prompts, trained with the covariance of their class features."""

    name = "proda"
    about = fl.About(
        source="Lu et al., Prompt Distribution Learning, CVPR 2022",
        summary="CLIP stays frozen; many contexts are learned, with the class name behind them, in their "
        "middle or before them. "
        "A class is then a distribution of text features, and training takes its covariance into account. "
        "Each step trains a few of the prompts, and a second loss keeps all of them apart. "
        "Predictions use the mean feature of each class over all prompts. "
        "The server averages the prompts.",
        charts=(
            fl.DiagnosticChart(
                "ProDA's loss terms",
                {"cross_entropy": "cross-entropy", "likeness": "cosine between prompts"},
                better="lower",
            ),
        ),
    )
    clients_use_global = True
    backbones = "equal token widths"
    Config = ProDAConfig
    shared = ("context",)

    @classmethod
    def plan_warnings(cls, config: ProDAConfig, context: fl.RunContext) -> list[str]:
        """Warn about its cost, and about the paper's learning rate on the miniature CLIP."""
        cost = "a round takes about twelve times as long as PromptFL's: it encodes many prompts of each class"
        return [cost, *super().plan_warnings(config, context)]

    def __init__(self, config: ProDAConfig, problem: fl.Problem) -> None:
        """Prepare the class names, their lengths, and the ending of a prompt without a name."""
        super().__init__(config, problem)
        self.names = name_tokens(problem.backbone, problem.classes)
        self.nameless = class_suffix(problem.backbone, ("",))

    def init(self, generator: fl.Generators) -> fl.State:
        """Draw all contexts from N(0, 0.02), the last as PromptFL's, and count no step of any client.

        Shape: context (N, M, m), steps (clients,) int64.
        """
        others = [self._draw(generator("proda", "context", n)) for n in range(self.config.prompts - 1)]
        last = self._draw(generator("promptfl", "context"))
        steps = torch.zeros(len(self.problem.clients), dtype=torch.int64, device=self.problem.device)
        return fl.State(shared={"context": torch.stack([*others, last])}, local={"steps": steps})

    def round_constants(self, params: fl.Params, data: fl.LocalData) -> fl.Params:
        """Return the prompts of each step of the round: all prompts once, in a new order, then again.

        Shape: chosen (clients, steps, B), begun (clients,).
        """
        c, begun = self.config, params["steps"]
        turns = c.prompts // c.prompt_batch
        drawn = []
        for client, before in zip(data.clients.tolist(), begun.tolist(), strict=True):
            generator = self.problem.generator("proda", "order", self.problem.clients[client], before)
            orders = []
            for _ in range(math.ceil(most_steps(c, data) / turns)):
                first, parts = 0, []
                for count, share in zip(places(c.prompts), places(c.prompt_batch), strict=True):
                    order = first + torch.randperm(count, generator=generator)
                    parts.append(order.view(turns, share))
                    first += count
                orders.append(torch.cat(parts, 1))
            drawn.append(torch.cat(orders))
        return {"chosen": torch.stack(drawn).to(begun.device), "begun": begun}

    def train_step(self, params: fl.Params, const: fl.Params, batch: fl.Batch) -> fl.Step:
        """Move the prompts of this step by their scores, and all prompts apart."""
        contexts, steps = params["context"], params["steps"]
        rows = torch.arange(len(contexts), device=contexts.device)
        chosen = const["chosen"][rows, steps - const["begun"]]
        u, scale = F.normalize(batch.x, dim=-1), self.problem.backbone.logit_scale
        scores = upper_bound(u, self._texts(contexts[rows[:, None], chosen]), batch.labels, scale)
        fit = fl.cross_entropy(scores, batch.labels, batch.mask)
        moved, terms = {"steps": steps + 1}, {"cross_entropy": fit}
        if self.config.prompts == 1:
            return fl.Step({("context",): fit}, moved=moved, terms=terms)
        likeness = self._likeness(contexts)
        loss = fit + self.config.diversity_weight * likeness
        return fl.Step({("context",): loss}, moved=moved, terms=terms | {"likeness": likeness})

    def _texts(self, contexts: Tensor) -> Tensor:
        """Return normalised class features of prompts whose ``places`` are those of their number.

        Shape: contexts (n, P, M, m) -> (n, P, classes, d).
        """
        middle = self.config.context_length // 2
        first, within, last = contexts.split(places(contexts.shape[1]), 1)
        texts = [
            encode_around(self.problem.backbone, part.flatten(0, 1), self.suffix, self.names, before)
            for part, before in ((first, 0), (within, middle))
            if part.shape[1]
        ]
        texts.append(self._text(last.flatten(0, 1)))
        return torch.cat([F.normalize(t, dim=-1).unflatten(0, (len(contexts), -1)) for t in texts], 1)

    def _likeness(self, contexts: Tensor) -> Tensor:
        """Return mean_{n != n'} |cos(e_n, e_n')|. Shape: contexts (clients, N, M, m) -> (clients,)."""
        alone = encode_context(self.problem.backbone, contexts.flatten(0, 1), self.nameless)
        unit = F.normalize(alone[:, 0], dim=-1).unflatten(0, contexts.shape[:2])
        n = contexts.shape[1]
        others = 1 - torch.eye(n, dtype=unit.dtype, device=unit.device)
        mean: Tensor = ((unit @ unit.mT).abs() * others).sum((1, 2)) / (n * (n - 1))
        return mean

    def head(self, params: fl.Params, data: fl.LocalData | None) -> fl.Params:
        """Return mu, the mean class features, not normalised again. Shape: text (models, classes, d)."""
        contexts = params["context"]
        tokens = contexts.shape[2] + self.suffix.longest[1]
        numbers = HELD_PER_TOKEN * tokens * contexts.shape[3] * len(self.problem.classes)
        size = fl.piece_size(numbers * contexts.element_size() * contexts.shape[1], contexts.device)
        return {"text": fl.in_pieces(lambda some: self._texts(some).mean(1), size, contexts)}

    def logits(self, params: fl.Params, head: fl.Params, x: Tensor) -> Tensor:
        """Return s h/|h| . mu."""
        return self.problem.backbone.logit_scale * (F.normalize(x, dim=-1) @ head["text"].mT)

    def prompts(self, params: fl.Params, clients: Tensor | None) -> fl.Values:
        """Return the contexts. Shape: (models, M, m) each."""
        return {f"context {n + 1}": context for n, context in enumerate(params["context"].unbind(1))}
