"""SDFed trains a shared prompt and local prompts of any length, and keeps them apart deliberately (2026).

Client i holds the shared prompt G_s and a prompt G_c; d_k is the normalised text feature of class k.

    G_s = H Z X^T,   R = X_2 X_2^T without the first floor(lambda m) columns of X     Eq. 8-10, Definition 1
    L_str = mean_k |d_k(G_c) - d_k(G_c R)|^2                                          Eq. 12
    L_sep = mean_k relu(gamma - |d_k(G_c) - d_k(G_s)|)                                Eq. 13
    L = CE(G_c) + CE(G_s) + L_str + L_sep                                             Eq. 14
    server: G_s <- mean of the clients' G_s by sample counts                          Eq. 5

A client predicts with G_c, the global model with G_s.

Readings: both losses are means over classes of unit features, since only then does gamma = 0.8 mean anything.
How often R is made, which gradient L_str has and which directions R removes are fields of ``SDFedConfig``.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from functools import reduce
from typing import Literal

from pydantic import field_validator

from fedcore.clip import tokens
from fedcore.clip.prompts import check_prompts, check_room, class_suffix, draw_context, encode_context
from fedcore.errors import FedLensError
from fedcore.federation import LocalData, Problem
from fedcore.lazy import Tensor, torch
from fedcore.lazy import functional as F
from fedcore.methods.base import (
    Batch,
    Generators,
    Method,
    Models,
    Params,
    Ragged,
    RunContext,
    State,
    Step,
    Uploads,
)
from fedcore.methods.hyperparameters import (
    BatchSize,
    LearningRate,
    MethodConfig,
    PromptLength,
    Weighting,
    hyper,
)
from fedcore.methods.registry import method
from fedcore.methods.sdfed.subspaces import projectors, removed_directions, subspace_overlap
from fedcore.methods.tensors import cosine_logits, cross_entropy, masked_mean
from fedcore.records.presentation import About, DiagnosticChart

LONGEST = 75
"""[SOS] and [EOT] take two of CLIP's 77 places; class names need more (``check_room``)."""


class SDFedConfig(MethodConfig):
    """Hyper-parameters of SDFed."""

    lr: LearningRate = hyper(0.01, "Learning rate of local SGD (paper: 0.01)")
    batch_size: BatchSize = hyper(16, "Samples in a local batch (paper: 16)")
    weighting: Weighting = hyper(
        "samples", "Server mean over clients: weighted by sample counts (Eq. 5), or plain"
    )
    global_length: PromptLength = hyper(
        8, "Length of the shared prompt, tokens (S_s; paper: 8)", title="global prompt length"
    )
    local_length: str = hyper(
        "fixed:8",
        "Length of each client's own prompt, tokens (S_l): fixed:8, random:4-64 (by seed), or "
        "one number per client, e.g. 4,8,64 (paper: 8, or 4 to 64)",
        title="local prompt length",
    )
    truncation: float = hyper(
        0.6,
        "lambda: share of the global prompt's directions that are filtered out (paper: 0.6)",
        title="truncated share",
        gt=0,
        lt=1,
    )
    margin: float = hyper(
        0.8,
        "gamma: distance below which global and local class features repel (paper: 0.8)",
        title="repulsion margin",
        ge=0,
        le=2,
    )
    components: Literal["none", "pfhf", "pfhf+srlp", "pfhf+irdc", "all"] = hyper(
        "all",
        "Ablations of Table 6, from none (one shared prompt) to all; pfhf+srlp uses G_c R only",
        words={
            "none": "one shared prompt",
            "pfhf": "PFHF",
            "pfhf+srlp": "PFHF + SRLP",
            "pfhf+irdc": "PFHF + IRDC",
        },
    )
    refine_every: Literal["step", "round"] = hyper(
        "round",
        "How often R is made: once per round (Section 4.2.5) or every step (Algorithm 1)",
        words={"step": "every step", "round": "once per round"},
    )
    refined_gradient: bool = hyper(
        False, "Let the stretch loss also train the refined prompt (Appendix C.3; off: C.4)"
    )
    null_basis: Literal["svd", "seeded"] = hyper(
        "svd",
        "Directions beyond the global prompt's rank: chosen by the SVD, or a fixed random "
        "basis drawn by seed. The SVD's can jump with the last bits of the prompt; choose seeded to compare "
        "runs with and without --over, or from several machines",
        title="null space basis",
        words={"svd": "the SVD's", "seeded": "drawn by seed"},
    )
    projector: Literal["leading", "rank", "random"] = hyper(
        "leading",
        "Directions that R removes: leading, the first floor(lambda m) of the global prompt's "
        "full decomposition (paper); rank, the directions of the global prompt alone, at most as many as it "
        "has tokens; random, floor(lambda m) drawn by seed, whatever the global prompt is (a control)",
        words={
            "leading": "leading directions",
            "rank": "the global prompt's own",
            "random": "random directions",
        },
    )
    label_space: Literal["all", "client"] = hyper(
        "all",
        "Classes that a client's losses and predictions cover: all, or those it holds",
        words={"all": "all classes", "client": "the client's own"},
    )
    untrained: Literal["global", "local"] = hyper(
        "global",
        "Prompt used to evaluate clients that have never taken part",
        title="untrained clients use",
        words={"global": "the global prompt", "local": "their own prompt"},
    )

    @field_validator("local_length")
    @classmethod
    def _readable(cls, value: str) -> str:
        low, high, listed = parse_lengths(value)
        if not all(1 <= n <= LONGEST for n in (low, high, *listed)):
            raise ValueError(f"prompt lengths are 1 to {LONGEST} tokens")
        if low > high:
            raise ValueError("write the shorter length first, e.g. random:4-64")
        return value


def parse_lengths(text: str) -> tuple[int, int, tuple[int, ...]]:
    """Parse a text of lengths into the shortest, the longest and, for a list, the lengths themselves.

    Raises:
        ValueError: when the text is none of the three forms.
    """
    if match := re.fullmatch(r"fixed:(\d{1,4})", text):
        return int(match[1]), int(match[1]), ()
    if match := re.fullmatch(r"random:(\d{1,4})-(\d{1,4})", text):
        return int(match[1]), int(match[2]), ()
    if re.fullmatch(r"\d{1,4}( *, *\d{1,4})*", text):
        listed = tuple(int(n) for n in text.split(","))
        return min(listed), max(listed), listed
    raise ValueError("write fixed:8, random:4-64, or one length per client such as 4,8,64")


def client_lengths(text: str, problem: Problem) -> Tensor:
    """Return each client's S_l; random ones are drawn by seed and client name. Shape: -> (clients,) int64."""
    low, high, listed = parse_lengths(text)
    if listed:
        return torch.tensor(listed, device=problem.device)
    return problem.draw_per_client(lambda g: torch.randint(low, high + 1, (), generator=g), "sdfed", "length")


def stretch(local: Tensor, refined: Tensor, held: Tensor) -> Tensor:
    """Return L_str: mean over classes of |d(G_c) - d(G_c R)|^2.

    Shape: features (clients, classes, d), held (clients, classes) -> (clients,).  Source: Eq. 12.
    """
    return masked_mean((local - refined).square().sum(-1), held)


def separate(local: Tensor, common: Tensor, held: Tensor, margin: float) -> Tensor:
    """Return L_sep: mean over classes of relu(gamma - |d(G_c) - d(G_s)|).

    Shape: as ``stretch``.  Source: Eq. 13.
    """
    # vector_norm has gradient 0 at 0; a square root's would not be a number
    distance = torch.linalg.vector_norm(local - common, dim=-1)
    return masked_mean(F.relu(margin - distance), held)


@method
class SDFed(Method[SDFedConfig]):
    """A shared prompt G_s and a private G_c per client; only G_s is sent, only G_c predicts."""

    name = "sdfed"
    about = About(
        title="SDFed",
        source="SDFed: Bridging Local-Global Discrepancy via Subspace Refinement and Divergence Control in "
        "Federated Prompt Learning, 2026",
        bibtex="@misc{sdfed2026, title = {{SDFed}: Bridging Local-Global Discrepancy via Subspace "
        "Refinement and Divergence Control in Federated Prompt Learning}, year = {2026}}",
        summary="Every client learns two prompts: a shared one of one length, which the server averages, "
        "and its own, which never leaves it and has a length that suits the client. "
        "The shared prompt's dominant directions are filtered out of the local prompt (subspace "
        "refinement). "
        "A stretch loss keeps the local prompt's meaning close to its filtered version, and a separate "
        "loss keeps it at a distance from the shared prompt. "
        "Predictions use the local prompt only. "
        "Traffic depends on the shared length alone, whatever the local lengths are.",
        charts=(
            DiagnosticChart(
                "Subspace overlap of global and local prompt",
                {"subspace_overlap": ""},
                note="Mean squared cosine of the principal angles: 0 orthogonal, 1 one within the other.",
                default_visible=True,
            ),
            DiagnosticChart(
                "SDFed's loss terms",
                {
                    "ce_local": "local prompt",
                    "ce_global": "global prompt",
                    "stretch": "stretch",
                    "separate": "separate",
                },
                better="lower",
            ),
            DiagnosticChart("Length of the local prompt", {"local_length": ""}, unit="tokens"),
        ),
    )
    Config = SDFedConfig
    shared = ("global_prompt",)
    backbones = "equal token widths"

    def __init__(self, config: SDFedConfig, problem: Problem) -> None:
        """Prepare class names, lengths and the projector's fixed basis."""
        super().__init__(config, problem)
        backbone = problem.backbone
        self.suffix = class_suffix(backbone, problem.classes)
        check_room(backbone, config.global_length, self.suffix, "global_length")
        self.has_local = config.components != "none"
        self.lengths = client_lengths(config.local_length, problem)
        self.equal_lengths = bool((self.lengths == self.lengths.max()).all())
        if self.has_local:
            check_room(backbone, int(self.lengths.max()), self.suffix, "local_length")
        width = backbone.spec.token_width
        self.removed = removed_directions(config.truncation, width)
        self.noise = None
        if config.null_basis == "seeded" or config.projector == "random":
            generator = problem.generator("sdfed", "null-basis")
            self.noise = torch.randn(width, self.removed, generator=generator, dtype=torch.float64)
        held = problem.class_counts.to(problem.device) > 0
        self.held = held if config.label_space == "client" else torch.ones_like(held)

    @classmethod
    def check(cls, config: SDFedConfig, context: RunContext) -> None:
        """Refuse a list of lengths that does not fit the clients, and text towers without prompts."""
        check_prompts(context.spec)
        listed = parse_lengths(config.local_length)[2]
        if len(listed) not in (0, context.clients) and config.components != "none":
            raise FedLensError(
                f"{len(listed)} lengths for {context.clients} clients; give one per client, "
                f"or fixed:{listed[0]}",
                "local_length",
            )
        tokens.check_room(context.spec, context.classes, config.global_length, "global_length")
        if config.components != "none":  # random lengths may all be the shortest
            surely = max(listed, default=parse_lengths(config.local_length)[0])
            tokens.check_room(context.spec, context.classes, surely, "local_length")

    def init(self, generator: Generators) -> State:
        """Draw prompts from N(0, 0.02); local ones are padded with zeros, which are never read or moved.

        Shape: global_prompt (S_s, m), local_prompt (clients, longest S_l, m).
        """
        backbone = self.problem.backbone
        width = backbone.spec.token_width
        first = draw_context(self.config.global_length, width, generator("sdfed", "global"))
        state = State(shared=self.place({"global_prompt": first}))
        if not self.has_local:
            return state
        longest = int(self.lengths.max())
        prompts = [
            F.pad(draw_context(length, width, generator("sdfed", "local", name)), (0, 0, 0, longest - length))
            for name, length in zip(self.problem.clients, self.lengths.tolist(), strict=True)
        ]
        return replace(state, local=self.place({"local_prompt": torch.stack(prompts)}))

    def round_constants(self, params: Params, data: LocalData) -> Params:
        """Return the round's constants: R, or the features d(G_c R) if G_c R is frozen too (C.4).

        Shape: projector (clients, m, m), refined (clients, K, d).
        """
        if self.config.refine_every == "step" or self.config.components not in ("all", "pfhf+srlp"):
            return {}
        r = self._make_projectors(params["global_prompt"])
        if self.config.components == "pfhf+srlp" or self.config.refined_gradient:
            return {"projector": r}
        lengths = self.lengths[data.clients.to(self.lengths.device)]
        return {"refined": self._encode((params["local_prompt"] @ r, lengths))[0]}

    def train_step(self, params: Params, const: Params, batch: Batch) -> Step:
        """Move both prompts by their joint loss (Eq. 14); the ablation ``none`` has only the shared one."""
        if not self.has_local:
            text = encode_context(self.problem.backbone, params["global_prompt"], self.suffix)
            return Step({("global_prompt",): self._loss(text, batch)})
        common, local = params["global_prompt"], params["local_prompt"]
        lengths, held = self.lengths[batch.clients], self.held[batch.clients]
        if self.config.components == "pfhf+srlp":
            local = local @ self._projector(params, const)
        text_local, text_common = self._encode((local, lengths), (common, self._common_lengths(common)))
        terms = {"ce_local": self._loss(text_local, batch), "ce_global": self._loss(text_common, batch)}
        if self.config.components == "all":
            terms["stretch"] = stretch(text_local, self._refined(params, const, lengths), held)
        if self.config.components in ("all", "pfhf+irdc"):
            terms["separate"] = separate(text_local, text_common, held, self.config.margin)
        return Step({("global_prompt", "local_prompt"): reduce(torch.add, terms.values())}, terms=terms)

    def _projector(self, params: Params, const: Params) -> Tensor:
        return const["projector"] if "projector" in const else self._make_projectors(params["global_prompt"])

    def _make_projectors(self, prompt: Tensor) -> Tensor:
        """Return R of each global prompt. Shape: (clients, S_s, m) -> (clients, m, m)."""
        return projectors(prompt, self.removed, self.noise, self.config.projector)

    def _refined(self, params: Params, const: Params, lengths: Tensor) -> Tensor:
        """Return d(G_c R): frozen for the round, frozen for the step, or moving with G_c."""
        if "refined" in const:
            return const["refined"]
        prompt = params["local_prompt"] @ self._projector(params, const)
        if self.config.refined_gradient:
            return self._encode((prompt, lengths))[0]
        with torch.no_grad():
            return self._encode((prompt, lengths))[0]

    def _encode(self, *contexts: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
        """Return normalised class features of several batches of prompts in one pass of the text tower.

        Shape: (prompts (clients, longest, m), lengths (clients,)) each -> (clients, K, d) each.
        """
        longest = max(prompt.shape[1] for prompt, _ in contexts)
        prompts = torch.cat([F.pad(p, (0, 0, 0, longest - p.shape[1])) for p, _ in contexts])
        lengths = torch.cat([n for _, n in contexts])
        full = self.equal_lengths and all(prompt.shape[1] == longest for prompt, _ in contexts)
        text = encode_context(self.problem.backbone, prompts, self.suffix, None if full else lengths)
        return F.normalize(text, dim=-1).chunk(len(contexts))

    def _common_lengths(self, prompts: Tensor) -> Tensor:
        return torch.full((len(prompts),), self.config.global_length, device=prompts.device)

    def _loss(self, text: Tensor, batch: Batch) -> Tensor:
        logits = self._scores(batch.x, text, self.held[batch.clients])
        return cross_entropy(logits, batch.labels, batch.mask)

    def _scores(self, x: Tensor, text: Tensor, held: Tensor) -> Tensor:
        logits = cosine_logits(x, text, self.problem.backbone.logit_scale)
        return logits.masked_fill(~held[:, None], -math.inf)

    def models(self, state: State) -> Models:
        """Return G_s as the global model; a client predicts with its own prompt, or as ``untrained`` says.

        Shape: untrained (clients,) bool.
        """
        common = {"global_prompt": state.shared["global_prompt"][None]}
        clients = {**self.repeat(state.shared), **state.local}
        if self.has_local and self.config.untrained == "global" and state.rounds_trained is not None:
            clients["untrained"] = (state.rounds_trained == 0).to(self.problem.device)
        return Models(common, clients)

    def before_aggregation(self, trained: Params, received: Params) -> Params:
        """Return the models as trained; G_c R uses the R of training if that is made once per round."""
        if self.config.components != "pfhf+srlp" or self.config.refine_every == "step":
            return trained
        return {**trained, "refined_by": received["global_prompt"]}

    def head(self, params: Params, data: LocalData | None) -> Params:
        """Return class features of the predicting prompt. Shape: text (models, K, d), held (models, K)."""
        common = params["global_prompt"]
        owners = None if data is None else data.clients.to(self.lengths.device)
        held = self.held.new_ones(1, self.held.shape[1]) if owners is None else self.held[owners]
        if owners is None or not self.has_local:
            return {"text": self._encode((common, self._common_lengths(common)))[0], "held": held}
        local = params["local_prompt"]
        if self.config.components == "pfhf+srlp":
            local = local @ self._make_projectors(params.get("refined_by", common))
        text = self._encode((local, self.lengths[owners]))[0]
        if "untrained" in params and bool(params["untrained"].any()):
            global_text = self._encode((common[:1], self._common_lengths(common[:1])))[0]
            text = torch.where(params["untrained"][:, None, None], global_text, text)
        return {"text": text, "held": held}

    def logits(self, params: Params, head: Params, x: Tensor) -> Tensor:
        """Return s cos(prompted class, image)."""
        return self._scores(x, head["text"], head["held"])

    def prompts(self, params: Params, clients: Tensor | None) -> dict[str, Tensor | Ragged]:
        """Return G_s and G_c,l. Shape: (models, S_s, m) and (models, S_l, m)."""
        prompts: dict[str, Tensor | Ragged] = {"global prompt": params["global_prompt"]}
        if self.has_local and clients is not None:
            prompts["local prompt"] = Ragged(
                params["local_prompt"], self.lengths[clients.to(self.lengths.device)]
            )
        return prompts

    def diagnostics(
        self, before: State, trained: Params, uploads: Uploads, data: LocalData
    ) -> dict[str, Tensor]:
        """Return the length of each participant's prompt, and how much of it lies in the span of its G_s.

        Both prompts are those after local training; the paper's Figure 6 shows accuracy by length.
        """
        if not self.has_local:
            return {}
        return {
            "local_length": self.lengths[data.clients.to(self.lengths.device)],
            "subspace_overlap": subspace_overlap(trained["global_prompt"], trained["local_prompt"]),
        }
