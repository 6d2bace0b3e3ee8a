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

import math
import time
from functools import reduce
from typing import Literal

from fedcore import methods as fl
from fedcore.base.lazy import Tensor, torch
from fedcore.base.lazy import functional as F
from fedcore.clip.prompts import encode_context
from fedcore.methods.sdfed.two_prompts import (
    LENGTH_CHART,
    LENGTH_FORMS,
    OVERLAP_CHART,
    TwoPrompts,
    TwoPromptsConfig,
    distances,
    projectors,
    removed_directions,
)

UNREFINED = {"components": ("none", "pfhf", "pfhf+irdc")}


class SDFedConfig(TwoPromptsConfig):
    left_open = (
        fl.OPTIMISER_STATE,
        fl.LeftOpen(
            "momentum",
            "the paper names SGD and its learning rate only",
            "0.9, as in CoOp's code",
            {"none": {"momentum": 0.0}},
        ),
        fl.LeftOpen(
            "weight decay",
            "the paper names SGD and its learning rate only",
            "5e-4, as in CoOp's code",
            {"none": {"weight_decay": 0.0}},
        ),
        fl.LeftOpen(
            "refinement",
            "Algorithm 1 refines in every step, Section 4.2.5 once per round",
            "once per round",
            {"in every step": {"refine_every": "step"}},
            unless=UNREFINED,
        ),
        fl.LeftOpen(
            "refined prompt in the stretch loss",
            "Appendix C.3 differentiates the stretch loss through it, C.4 does not",
            "fixed (C.4)",
            {"trained (C.3)": {"refined_gradient": True}},
            unless={"components": ("pfhf+srlp", *UNREFINED["components"])},
        ),
        fl.LeftOpen(
            "directions beyond the prompt's rank",
            "the prompt has fewer tokens than directions are removed, and the paper does not say how the "
            "others are chosen",
            "by the SVD",
            {"at random": {"null_basis": "seeded"}},
            unless=UNREFINED,
        ),
        fl.LeftOpen(
            "scored classes",
            "the paper does not say whether a client that holds some of the classes scores all of them",
            "all",
            {"the client's own": {"label_space": "client"}},
        ),
        fl.LeftOpen(
            "clients that never train",
            "the paper does not say with which prompt they are tested",
            "the shared one",
            {"their own, as drawn": {"untrained": "local"}},
            unless={"participation": (1.0,)},
        ),
    )

    lr: fl.LearningRate = fl.hyper(0.01, "Learning rate of local SGD (paper: 0.01)")
    batch_size: fl.BatchSize = fl.hyper(16, "Samples in a local batch (paper: 16)")
    weighting: fl.Weighting = fl.hyper(
        "samples", "Server mean over clients: weighted by sample counts (Eq. 5), or plain"
    )
    global_length: fl.PromptLength = fl.hyper(8, "Length of the shared prompt, tokens (S_s; paper: 8)")
    local_length: str = fl.hyper(
        "fixed:8", f"Length of each client's own prompt, tokens (S_l): {LENGTH_FORMS} (paper: 8, or 4 to 64)"
    )
    truncation: float = fl.hyper(
        0.6,
        "lambda: share of the global prompt's directions that are filtered out (paper: 0.6)",
        title="truncated share",
        gt=0,
        lt=1,
        search=fl.SearchRange(low=0.1, high=0.9),
    )
    margin: float = fl.hyper(
        0.8,
        "gamma: distance below which global and local class features repel (paper: 0.8)",
        title="repulsion margin",
        ge=0,
        le=2,
        search=fl.SearchRange(low=0.2, high=1.4),
    )
    components: Literal["none", "pfhf", "pfhf+srlp", "pfhf+irdc", "all"] = fl.hyper(
        "all",
        "Ablations of Table 6, from none (one shared prompt) to all; pfhf+srlp uses G_c R only",
        words={
            "none": "one shared prompt",
            "pfhf": "PFHF",
            "pfhf+srlp": "PFHF + SRLP",
            "pfhf+irdc": "PFHF + IRDC",
        },
    )
    refine_every: Literal["step", "round"] = fl.hyper(
        "round",
        "How often R is made: once per round (Section 4.2.5) or every step (Algorithm 1)",
        words={"step": "every step", "round": "once per round"},
    )
    refined_gradient: bool = fl.hyper(
        False, "Let the stretch loss also train the refined prompt (Appendix C.3; off: C.4)"
    )
    null_basis: Literal["svd", "seeded"] = fl.hyper(
        "svd",
        "Directions beyond the global prompt's rank: chosen by the SVD, or a fixed random "
        "basis drawn by seed. The SVD's can jump with the last bits of the prompt; choose seeded to compare "
        "runs with and without --over, or from several machines",
        title="null space basis",
        words={"svd": "the SVD's", "seeded": "drawn by seed"},
    )
    projector: Literal["leading", "economy", "rank", "random"] = fl.hyper(
        "leading",
        "Directions that R removes: leading, the first floor(lambda m) of the global prompt's "
        "full decomposition (paper); economy, all but the weaker directions of the global prompt itself, of "
        "which the first floor(lambda S_s) go too (FedPHA's); rank, the directions of the global prompt "
        "alone, at most as many as it has tokens; random, floor(lambda m) drawn by seed, whatever the global "
        "prompt is (a control)",
        words={
            "leading": "leading directions",
            "economy": "all but its own weaker ones",
            "rank": "the global prompt's own",
            "random": "random directions",
        },
    )
    label_space: Literal["all", "client"] = fl.hyper(
        "all",
        "Classes that a client's losses and predictions cover: all, or those it holds",
        words={"all": "all classes", "client": "the client's own"},
    )
    stretch_mean: Literal["classes", "elements"] = fl.hyper(
        "classes",
        "What the stretch loss averages its squares over: classes (paper), or elements, that is classes and "
        "coordinates, which makes it d times weaker (FedPHA's)",
        title="stretch loss is a mean over",
    )
    timed: bool = fl.hyper(
        False,
        "Record the milliseconds of the decomposition and the projection in each round (Table 5); unlike all "
        "else, these differ when a run is repeated",
        title="time the refinement",
    )


def stretch(local: Tensor, refined: Tensor, held: Tensor) -> Tensor:
    """Return L_str: mean over classes of |d(G_c) - d(G_c R)|^2.

    Shape: features (clients, classes, d), held (clients, classes) -> (clients,).  Source: Eq. 12.
    """
    return fl.masked_mean((local - refined).square().sum(-1), held)


def separate(local: Tensor, common: Tensor, held: Tensor, margin: float) -> Tensor:
    """Return L_sep: mean over classes of relu(gamma - |d(G_c) - d(G_s)|).

    Shape: as ``stretch``.  Source: Eq. 13.
    """
    return fl.masked_mean(F.relu(margin - distances(local, common)), held)


@fl.method
class SDFed(TwoPrompts):
    """A shared prompt G_s and a private G_c per client; only G_s is sent, only G_c predicts."""

    name = "sdfed"
    about = fl.About(
        source="SDFed: Bridging Local-Global Discrepancy via Subspace Refinement and Divergence Control in "
        "Federated Prompt Learning, 2026",
        summary="Every client learns two prompts: a shared one of one length, which the server averages, "
        "and its own, which never leaves it and has a length that suits the client. "
        "The shared prompt's dominant directions are filtered out of the local prompt (subspace "
        "refinement). "
        "A stretch loss keeps the local prompt's meaning close to its filtered version, and a separate "
        "loss keeps it at a distance from the shared prompt. "
        "Predictions use the local prompt only. "
        "Traffic depends on the shared length alone, whatever the local lengths are.",
        charts=(
            OVERLAP_CHART,
            fl.DiagnosticChart(
                "SDFed's loss terms",
                {
                    "ce_local": "local prompt",
                    "ce_global": "global prompt",
                    "stretch": "stretch",
                    "separate": "separate",
                },
                better="lower",
            ),
            LENGTH_CHART,
            fl.DiagnosticChart(
                "Energy that the refinement keeps (Theorem 1)",
                {"energy_kept": ""},
                unit="%",
                note="|G_c R|^2 of |G_c|^2 at the start of the round; G_c R is the nearest prompt in the "
                "span of R. A prompt that knows nothing of the global one keeps 1 - lambda.",
            ),
            fl.DiagnosticChart(
                "Squared gradient norm of the global prompt (Theorem 2)",
                {"squared_gradient": "of all samples", "descent_bound": "2 F_0 / (beta Z O)"},
                better="lower",
                note="The norm is of single rounds; Theorem 2 bounds its mean over the rounds so far, for "
                "plain SGD. The line is the first term of its bound, with F* = 0, the least it can be. The "
                "others, 4 beta L' sigma^2 / M and 8 beta^2 L'^2 O^2 delta^2, need unknown constants: the "
                "norm may lie above it.",
            ),
        ),
    )
    Config = SDFedConfig

    def __init__(self, config: SDFedConfig, problem: fl.Problem) -> None:
        super().__init__(config, problem)
        width = problem.backbone.spec.token_width
        within = config.global_length if config.projector == "economy" else width
        self.removed = removed_directions(config.truncation, within)
        self.noise = None
        if config.null_basis == "seeded" or config.projector == "random":
            generator = problem.generator("sdfed", "null-basis")
            self.noise = torch.randn(width, self.removed, generator=generator, dtype=torch.float64)
        held = problem.class_counts.to(problem.device) > 0
        self.held = held if config.label_space == "client" else torch.ones_like(held)
        self._first_loss: float | None = None

    @classmethod
    def _has_local(cls, config: SDFedConfig) -> bool:
        return config.components != "none"

    def round_constants(self, params: fl.Params, data: fl.LocalData) -> fl.Params:
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

    def train_step(self, params: fl.Params, const: fl.Params, batch: fl.Batch) -> fl.Step:
        """Move both prompts by their joint loss (Eq. 14); the ablation ``none`` has only the shared one."""
        if not self.has_local:
            text = encode_context(self.problem.backbone, params["global_prompt"], self.suffix)
            return fl.Step({("global_prompt",): self._loss(text, batch)})
        common, local = params["global_prompt"], params["local_prompt"]
        lengths, held = self.lengths[batch.clients], self.held[batch.clients]
        if self.config.components == "pfhf+srlp":
            local = local @ self._projector(params, const)
        text_local, text_common = self._encode((local, lengths), (common, self._common_lengths(common)))
        terms = {"ce_local": self._loss(text_local, batch), "ce_global": self._loss(text_common, batch)}
        if self.config.components == "all":
            terms["stretch"] = stretch(text_local, self._refined(params, const, lengths), held)
            if self.config.stretch_mean == "elements":
                terms["stretch"] = terms["stretch"] / text_local.shape[-1]
        if self.config.components in ("all", "pfhf+irdc"):
            terms["separate"] = separate(text_local, text_common, held, self.config.margin)
        return fl.Step({("global_prompt", "local_prompt"): reduce(torch.add, terms.values())}, terms=terms)

    def _projector(self, params: fl.Params, const: fl.Params) -> Tensor:
        return const["projector"] if "projector" in const else self._make_projectors(params["global_prompt"])

    def _make_projectors(self, prompt: Tensor) -> Tensor:
        """Return R of each global prompt. Shape: (clients, S_s, m) -> (clients, m, m)."""
        return projectors(prompt, self.removed, self.noise, self.config.projector)

    def _refined(self, params: fl.Params, const: fl.Params, lengths: Tensor) -> Tensor:
        """Return d(G_c R): frozen for the round, frozen for the step, or moving with G_c."""
        if "refined" in const:
            return const["refined"]
        prompt = params["local_prompt"] @ self._projector(params, const)
        if self.config.refined_gradient:
            return self._encode((prompt, lengths))[0]
        with torch.no_grad():
            return self._encode((prompt, lengths))[0]

    def _loss(self, text: Tensor, batch: fl.Batch) -> Tensor:
        logits = self._scores(batch.x, text, self.held[batch.clients])
        return fl.cross_entropy(logits, batch.labels, batch.mask)

    def _scores(self, x: Tensor, text: Tensor, held: Tensor) -> Tensor:
        logits = fl.cosine_logits(x, text, self.problem.backbone.logit_scale)
        return logits.masked_fill(~held[:, None], -math.inf)

    def _times(self, before: fl.State, trained: fl.Params) -> fl.Params:
        """Return the milliseconds of one decomposition and one projection, repeated after training."""
        began = time.perf_counter()
        projector = self._make_projectors(before.shared["global_prompt"][None])
        decomposed = time.perf_counter()
        (trained["local_prompt"][:1] @ projector).cpu()  # waits for a GPU
        seconds = decomposed - began, time.perf_counter() - decomposed
        times = (torch.tensor(1000 * s) for s in seconds)
        return dict(zip(("decomposition_ms", "projection_ms"), times, strict=True))

    def before_aggregation(self, trained: fl.Params, received: fl.Params) -> fl.Params:
        """Return the models as trained; G_c R uses the R of training if that is made once per round."""
        if self.config.components != "pfhf+srlp" or self.config.refine_every == "step":
            return trained
        return {**trained, "refined_by": received["global_prompt"]}

    def head(self, params: fl.Params, data: fl.LocalData | None) -> fl.Params:
        """Return class features of the predicting prompt. Shape: text (models, K, d), held (models, K)."""
        everything = self.held.new_ones(1, self.held.shape[1])
        held = everything if data is None else self.held[data.clients.to(self.held.device)]
        return super().head(params, data) | {"held": held}

    def _predicting(self, params: fl.Params) -> Tensor:
        """Return G_c, or G_c R. Shape: -> (models, longest S_l, m)."""
        local = params["local_prompt"]
        if self.config.components != "pfhf+srlp":
            return local
        return local @ self._make_projectors(params.get("refined_by", params["global_prompt"]))

    def logits(self, params: fl.Params, head: fl.Params, x: Tensor) -> Tensor:
        """Return s cos(prompted class, image), of the classes that a client's losses cover."""
        return self._scores(x, head["text"], head["held"])

    def diagnostics(
        self, before: fl.State, trained: fl.Params, uploads: fl.Uploads, data: fl.LocalData
    ) -> dict[str, Tensor]:
        """Return the energy that R keeps of each G_c (Theorem 1) and what is known of Theorem 2.

        All are at the start of the round. Theorem 2 assumes that all clients take part, and needs their
        samples, which are missing here if backbones differ. O is the mean number of steps, with the weights
        of Eq. 5.
        """
        values = super().diagnostics(before, trained, uploads, data)
        if self.config.timed and self.has_local:
            values |= self._times(before, trained)
        if self.config.components in ("all", "pfhf+srlp"):
            local = before.local["local_prompt"][data.clients.to(self.problem.device)]
            refined = local @ self._make_projectors(before.shared["global_prompt"][None])
            values["energy_kept"] = refined.square().sum((1, 2)) / local.square().sum((1, 2))
        if len(data.clients) == len(self.problem.clients) and len(data.pool.values):
            values |= self._stationarity(before, uploads, data)
        return values

    def _stationarity(self, before: fl.State, uploads: fl.Uploads, data: fl.LocalData) -> fl.Params:
        """Return |grad F|^2 by G_s (Eq. 16, 20), for which all clients share one text pass, and its bound."""
        batch = fl.Batch.whole(data)
        weights = uploads.weights(self.config.weighting).to(self.problem.device)
        common = before.shared["global_prompt"][None].clone().requires_grad_()
        with torch.enable_grad():
            text = self._encode((common, self._common_lengths(common)))[0].expand(len(weights), -1, -1)
            losses = self._loss(text, batch)
            if self.config.components in ("all", "pfhf+irdc"):
                with torch.no_grad():
                    (local,) = self._encode((before.local["local_prompt"], self.lengths))
                losses = losses + separate(local, text, self.held, self.config.margin)
            (gradient,) = torch.autograd.grad(weights @ losses.double(), common)
        if self._first_loss is None:  # in round 1, and again after a resumption
            first = self.init(self.problem.generator)
            params = {**self.repeat(first.shared), **first.local}
            step = self.train_step(params, self.round_constants(params, data), batch)
            self._first_loss = float(weights @ next(iter(step.losses.values())).double())
        values = {"squared_gradient": gradient.double().square().sum()}
        if self.config.optimiser == "sgd":
            steps = self.config.local_epochs * (data.rows.counts / self.config.batch_size).ceil().double()
            moved = self.config.lr * uploads.round * (weights.cpu() @ steps)
            values["descent_bound"] = 2 * self._first_loss / moved
        return values
