"""FedOT learns one classifier with all clients and a rotation of CLIP's features on each (Kong et al., 2025).

A round (Algorithm 1): client i starts from the server's w_g and its own X_i, and SGD moves both.

    P_i = (X_i - X_i^T) / 2,   Q_i = (I + P_i)(I - P_i)^-1     Section 3.3, the Cayley map
    scores tau w_g Q_i h / |Q_i h|,   L_i = CE(scores)
    server: w_g <- mean of the clients' w_g                    X_i never leaves its client

The global model is w_g with Q = I. With r > 1 blocks Q_i is block-diagonal (FedOT(+B), Section 4.3).

Changed from the paper: its algorithm moves w_g before X; here both gradients come from one forward pass.
"""

from dataclasses import replace
from functools import partial
from typing import Literal, Self

from pydantic import model_validator

from fedcore import methods as fl
from fedcore.base.errors import FedLensError
from fedcore.base.lazy import Tensor, torch
from fedcore.base.lazy import functional as F
from fedcore.base.linalg import Remembered, cayley, orthogonality, solve_skew
from fedcore.clip import specs
from fedcore.clip.prompts import check_prompts, class_suffix, draw_context, encode_context

PROMPT_LENGTH = 4
"""Tokens of the prompt behind the rotation; Appendix E.3 gives none, its CoOp has 4 or 16."""
SOME_ROUNDS = "After round 20, in every fifth and the last."
"""Says on a chart in which rounds ``measured`` holds."""


class FedOTConfig(fl.MethodConfig):
    """Hyper-parameters of FedOT and of the variants that its paper compares with."""

    left_open = (
        fl.OPTIMISER_STATE,
        fl.LeftOpen(
            "momentum",
            "the paper prints 5e-4 for momentum as well as for weight decay, probably a misprint",
            "0.9",
            {"5e-4, as printed": {"momentum": 0.0005}},
        ),
        fl.LeftOpen(
            "batch size", "the paper gives none", "32", {"16": {"batch_size": 16}, "64": {"batch_size": 64}}
        ),
        fl.LeftOpen(
            "logit temperature", "the paper gives no value of tau", "CLIP's own scale", {"1": {"tau": 1.0}}
        ),
        fl.LeftOpen(
            "server's mean",
            "the paper builds on FedAvg, which weights clients by their samples, and gives no weights",
            "a plain mean",
            {"by sample count": {"weighting": "samples"}},
        ),
        fl.LeftOpen(
            "step of the rotation",
            "at one learning rate a Cayley transform moves four times as far as a linear one, and the paper "
            "does not say whether it matches their steps",
            "one learning rate",
            {"one step length": {"skew": "quarter"}},
            unless={"local_transform": ("linear", "none", "adapter")},
        ),
        fl.LeftOpen(
            "random classifier",
            "the paper does not say how it is drawn",
            "rows of length 1",
            {"as a linear layer": {"init": "linear"}},
            values=("random",),
        ),
    )

    lr: fl.LearningRate = fl.hyper(5e-5, "Learning rate of local SGD (paper: 5e-5; FEMNIST: 1e-3)")
    blocks: int = fl.hyper(
        1,
        "Number of orthogonal blocks r, dividing the embedding width d; r > 1 is FedOT(+B) "
        "(paper's best: FEMNIST 256, PACS 1, Office-Home 1, VLCS 4, TerraIncognita 16)",
        ge=1,
    )
    local_transform: Literal["cayley", "linear", "none", "adapter"] = fl.hyper(
        "cayley",
        "A client's own transform: cayley (orthogonal, FedOT), linear (any matrix, FedOT(-o)), "
        "adapter (FedAdapter: h + W2 relu(W1 h), hidden d/4), none",
        words={"cayley": "orthogonal", "linear": "any matrix", "none": "none", "adapter": "residual adapter"},
    )
    share: Literal["split", "all_global", "all_local"] = fl.hyper(
        "split",
        "What the server averages: split, the classifier alone (FedOT); all_global, the "
        "classifier and the transform; all_local, nothing (there is no global model)",
        title="server averages",
        words={"split": "the classifier", "all_global": "classifier and transforms", "all_local": "nothing"},
    )
    classifier: Literal["weights", "prompt"] = fl.hyper(
        "weights",
        "What the clients learn together: the classifier's weights (paper), or a prompt of four tokens, "
        "drawn at random, whose class features are the classifier (Appendix E.3)",
        title="learned classifier",
        words={"weights": "its weights", "prompt": "a prompt"},
    )
    init: Literal["text", "random", "linear", "class_means"] = fl.hyper(
        "text",
        "Initial classifier: features of the class prompts (text), random rows of length 1 (random, "
        "our interpretation of RandInit), rows of length 0.58, as a linear layer draws them (linear), or "
        + fl.CLASS_MEANS,
        title="initial classifier",
        words={
            "text": "class prompts",
            "random": "random unit rows",
            "linear": "as a linear layer's",
            "class_means": "class means",
        },
    )
    tau: float | None = fl.hyper(
        None,
        "Logit temperature; default: CLIP's own scale (100)",
        title="logit temperature",
        gt=0,
        le=1000,
        empty="CLIP's own",
    )
    lr_transform: float | None = fl.hyper(
        None,
        "Learning rate of the client's own transform; default: that of the classifier. At one "
        "rate the orthogonal transform moves four times as far as any matrix, so a quarter of it matches "
        "their steps",
        title="learning rate of the transform",
        gt=0,
        le=100,
        empty="the classifier's",
    )
    skew: Literal["half", "quarter"] = fl.hyper(
        "half",
        "P of the Cayley map: half, (X - X^T)/2 (paper), or quarter, (X - X^T)/4, with which Q "
        "first moves as the skew part of any matrix would at the same learning rate",
        title="skew matrix",
        words={"half": "(X - Xᵀ)/2", "quarter": "(X - Xᵀ)/4"},
    )

    @model_validator(mode="after")
    def _rate_to_compare(self) -> Self:
        if self.lr_transform is not None and self.lr == 0:
            raise ValueError("lr_transform is applied as a multiple of lr, which is 0; give lr above 0")
        return self


def rotate(x: Tensor, h: Tensor, divisor: int = 2) -> Tensor:
    """Compute Q h without forming Q: as I + P = 2I - (I - P), Q h = 2 (I - P)^-1 h - h.

    A solve with a batch of samples on the right costs a fifth of one with n columns, forward and backward.

    Shape: x (clients, r, n, n), h (clients, samples, r n) -> like h.
    """
    blocks, n = x.shape[1:3]
    columns: Tensor = h.unflatten(-1, (blocks, n)).permute(0, 2, 3, 1)  # (clients, r, n, samples)
    turned = 2 * solve_skew(x, columns, divisor) - columns
    return turned.permute(0, 3, 1, 2).flatten(2).contiguous()  # memory order decides the last bits of sums


def apply_blocks(matrix: Tensor, h: Tensor) -> Tensor:
    """Multiply block-diagonal matrices by samples.

    Shape: matrix (clients, r, n, n), h (clients, samples, r n) -> like h.
    """
    rows: Tensor = h.unflatten(-1, matrix.shape[1:3]).transpose(1, 2)  # (clients, r, samples, n)
    return (rows @ matrix.transpose(-1, -2)).transpose(1, 2).flatten(2).contiguous()


@fl.method
class FedOT(fl.Method[FedOTConfig]):
    """tau w_g Q h / |Q h| with a shared classifier w_g and a rotation Q = cayley(X) of each client."""

    name = "fedot"
    about = fl.About(
        source="Kong et al., Generalized and Personalized Federated Learning with Black-Box Foundation "
        "Models via Orthogonal Transformations, 2025",
        summary="CLIP is a black box: only its image embeddings are used. "
        "All clients learn one classifier together, started from the class prompts. "
        "Each client also learns a rotation of the embedding space that never leaves it. "
        "Rotations keep lengths and angles, so a client adapts without spoiling what CLIP knows, and the "
        "clients' gradients of the shared classifier differ less (Theorem 1). "
        "With blocks r > 1 the rotation is block-diagonal: fewer degrees of freedom, faster steps.",
        charts=(
            fl.DiagnosticChart(
                "Condition number kappa of the transforms",
                {"condition_number": ""},
                better="lower",
                note=f"1 if the transform is orthogonal. {SOME_ROUNDS}",
                default_visible=True,
            ),
            fl.DiagnosticChart(
                "Gradient difference beside its bound",
                {"gradient_difference": "difference", "gradient_bound": "bound, never tight"},
                note="The bound 2 tau (kappa_i + kappa_j) of the pair that differs most is never tight: "
                f"normalised features alone give at most 2 sqrt(2) tau. {SOME_ROUNDS}",
            ),
            fl.GRADIENT_CONFLICT,
            fl.DiagnosticChart(
                "Orthogonality error of the transforms",
                {"orthogonality_error": ""},
                better="lower",
                note=SOME_ROUNDS,
            ),
            fl.DiagnosticChart("Degrees of freedom of a transform", {"degrees_of_freedom": ""}),
        ),
        field_charts=(
            fl.FieldChart(
                "Degrees of freedom",
                value="degrees_of_freedom",
                over="blocks",
                symbol="r",
                only={"local_transform": "cayley"},
            ),
        ),
    )
    Config = FedOTConfig
    class_axes = {"classifier": -2}
    shared: tuple[str, ...] = ("classifier",)

    def __init__(self, config: FedOTConfig, problem: fl.Problem) -> None:
        super().__init__(config, problem)
        self.d = problem.backbone.spec.embed_dim
        self.tau = config.tau or problem.backbone.logit_scale
        self.divisor = {"half": 2, "quarter": 4}[config.skew]
        self._cayley = Remembered(partial(cayley, divisor=self.divisor))
        transform = {"cayley": ("matrix",), "linear": ("matrix",), "adapter": ("down", "up"), "none": ()}
        first = "classifier"
        if config.classifier == "prompt":
            first, self.suffix = "prompt", class_suffix(problem.backbone, problem.classes)
        self.names = (first, *transform[config.local_transform])
        self.shared = {"split": (first,), "all_global": self.names, "all_local": ()}[config.share]

    plan_warnings = classmethod(fl.rate_warnings)

    @classmethod
    def check(cls, config: FedOTConfig, context: fl.RunContext) -> None:
        d = context.spec.embed_dim
        if d % config.blocks:
            divisors = [k for k in range(1, d + 1) if d % k == 0]
            below = max(k for k in divisors if k < config.blocks)
            near = " or ".join(map(str, [below, *[k for k in divisors if k > config.blocks][:1]]))
            raise FedLensError(
                f"{config.blocks} blocks do not divide {context.spec.name}'s embedding width {d}; use {near}",
                "blocks",
            )
        if config.classifier == "prompt":
            check_prompts(context.spec)
            specs.check_room(context.spec, context.classes, PROMPT_LENGTH, "classifier")

    @classmethod
    def bound_to_classes(cls, config: FedOTConfig) -> str:
        """Refuse new classes for a classifier that is not made of class prompts."""
        if config.classifier == "prompt":
            return ""
        return fl.UNTRAINED_CLASSES.get(config.init, "its classifier starts at random")

    def init(self, generator: fl.Generators) -> fl.State:
        """Return a classifier made of the class prompts, and identity transforms.

        Shape: classifier (K, d) or prompt (tokens, m), matrix (clients, r, d/r, d/r), down (clients, d/4, d),
        up (clients, d, d/4), without the client axis if they are shared.
        """
        first = {self.names[0]: self._first_classifier(generator)}
        if "matrix" in self.names:
            r = self.config.blocks
            first["matrix"] = torch.eye(self.d // r, dtype=torch.float64).expand(r, -1, -1)
        if "down" in self.names:
            hidden, bound = max(1, self.d // 4), self.d**-0.5  # as a linear layer of torch starts
            down = torch.empty(hidden, self.d, dtype=torch.float64)
            first["down"] = down.uniform_(-bound, bound, generator=generator("fedot", "adapter"))
            first["up"] = torch.zeros(self.d, hidden, dtype=torch.float64)
        first = self.place(first)
        shared = {name: first[name] for name in self.shared}
        local = {name: value for name, value in first.items() if name not in self.shared}
        return fl.State(shared=shared, local=self.repeat(local))

    def _first_classifier(self, generator: fl.Generators) -> Tensor:
        draws = generator("fedot", self.names[0])
        if self.config.classifier == "prompt":
            return draw_context(PROMPT_LENGTH, self.problem.backbone.spec.token_width, draws)
        if self.config.init == "text":
            return self.problem.class_features
        if self.config.init == "class_means":
            return self.problem.class_means
        rows = torch.empty(len(self.problem.classes), self.d, dtype=torch.float64)
        if self.config.init == "linear":
            return rows.uniform_(-(self.d**-0.5), self.d**-0.5, generator=draws)
        return F.normalize(rows.normal_(generator=draws), dim=-1)

    def train_step(self, params: fl.Params, const: fl.Params, batch: fl.Batch) -> fl.Step:
        if "matrix" not in params:
            h = self._adapt(params, batch.x)
        elif self.config.local_transform == "cayley":
            h = rotate(params["matrix"], batch.x, self.divisor)
        else:
            h = apply_blocks(params["matrix"], batch.x)
        return fl.Step({self.names: fl.cross_entropy(self._classify(params, h), batch.labels, batch.mask)})

    def lr_factors(self) -> dict[str, float]:
        """Return the learning rate of the transform's parameters as a multiple of the classifier's."""
        rate = self.config.lr_transform
        return {} if rate is None else dict.fromkeys(self.names[1:], rate / self.config.lr)

    def _adapt(self, params: fl.Params, h: Tensor) -> Tensor:
        if "up" not in params:
            return h
        return h + F.relu(h @ params["down"].transpose(-1, -2)) @ params["up"].transpose(-1, -2)

    def _classify(self, params: fl.Params, h: Tensor) -> Tensor:
        return self.tau * (F.normalize(h, dim=-1) @ self._classifier(params).transpose(-1, -2))

    def _classifier(self, params: fl.Params) -> Tensor:
        """Return w_g, or T(p), the class features of a prompt (E.3). Shape: -> (clients, K, d)."""
        if "classifier" in params:
            return params["classifier"]
        return F.normalize(encode_context(self.problem.backbone, params["prompt"], self.suffix), dim=-1)

    def head(self, params: fl.Params, data: fl.LocalData | None) -> fl.Params:
        """Return Q of every model, and T(p). Shape: q (models, r, d/r, d/r), classifier (models, K, d)."""
        q = {"q": self._transform(params["matrix"])} if "matrix" in params else {}
        return q | ({"classifier": self._classifier(params)} if "prompt" in params else {})

    def _transform(self, matrix: Tensor) -> Tensor:
        return self._cayley(matrix) if self.config.local_transform == "cayley" else matrix

    def logits(self, params: fl.Params, head: fl.Params, x: Tensor) -> Tensor:
        """Return tau w_g Q h / |Q h|. Shape: x (models, samples, d) -> (models, samples, classes)."""
        return self._classify(params | head, self.features(params, head, x)[0])

    def features(self, params: fl.Params, head: fl.Params, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return Q h and w_g. Shape: x (models, samples, d) -> (models, samples, d), (models, classes, d)."""
        h = apply_blocks(head["q"], x) if "q" in head else self._adapt(params, x)
        return h, (params | head)["classifier"]

    def diagnostics(
        self, before: fl.State, trained: fl.Params, uploads: fl.Uploads, data: fl.LocalData
    ) -> dict[str, Tensor]:
        """Measure how far the transforms are from orthogonal and how much classifier gradients disagree.

        Gradients are those of the ``compared`` participants. ``gradient_bound`` is Theorem 1's
        2 tau (kappa_i + kappa_j) for the pair that differs most. It is never tight: normalised features
        alone give at most 2 sqrt(2) tau. What takes as long as training is left out of most later rounds.
        """
        values = {"degrees_of_freedom": torch.tensor(float(self._degrees_of_freedom()))}
        is_measured = fl.measured(uploads.round, uploads.rounds)
        if "matrix" in trained and is_measured:
            values |= self._orthogonality(trained["matrix"])
        first = self.names[0]
        if first not in self.shared or len(data.clients) < 2:
            return values
        some = fl.compared(len(data.clients))
        if len(some) < len(data.clients):
            data = replace(data, rows=data.rows.select(some), clients=data.clients[some])
            trained = {first: trained[first][some.to(trained[first].device)]}
        values["gradient_conflict"] = fl.mean_cosine(before.shared[first] - trained[first])
        # E.3's bound has the Jacobians of the text tower, whose norms are not known
        if first == "prompt" or not is_measured:
            return values
        flat = self._full_gradients(before, data).flatten(1)
        gap = torch.cdist(flat, flat, compute_mode="donot_use_mm_for_euclid_dist")
        values["gradient_difference"] = gap.max()
        if self.config.local_transform != "adapter":  # not linear, so it has no condition number
            kappa = torch.ones(2, dtype=torch.float64)
            if "matrix" in self.names:
                place = gap.argmax()  # stays on the device, which a number would have to wait for
                pair = data.clients.to(gap.device)[torch.stack([place // len(gap), place % len(gap)])]
                kappa = self._orthogonality(self._of_clients(before, pair)["matrix"])["condition_number"]
            values["gradient_bound"] = 2 * self.tau * kappa.sum()
        return values

    def _orthogonality(self, matrices: Tensor) -> fl.Params:
        return orthogonality(matrices, self._transform, self.config.local_transform == "cayley")

    def _degrees_of_freedom(self) -> int:
        """Count a client transform's degrees of freedom, d (d/r - 1)/2 for rotations (FedOT, Section 4.3)."""
        d, r = self.d, self.config.blocks
        hidden = max(1, d // 4)
        free = {"cayley": d * (d // r - 1) // 2, "linear": d * d // r, "adapter": 2 * d * hidden, "none": 0}
        return free[self.config.local_transform]

    def _of_clients(self, state: fl.State, clients: Tensor) -> fl.Params:
        """Return what some clients hold. Shape: clients (n,) -> (n, ...)."""
        shared = {name: value.expand(len(clients), *value.shape) for name, value in state.shared.items()}
        return shared | {name: value[clients.to(value.device)] for name, value in state.local.items()}

    def _full_gradients(self, state: fl.State, data: fl.LocalData) -> Tensor:
        """Return each client's gradient of w_g on all its samples, the mean of tau (softmax - y) (h'/|h'|)^T.

        A few clients at a time, so that memory does not grow with their number.

        Shape: -> (participants, K, d), float64.
        """
        longest, classes = data.rows.index.shape[1], len(self.problem.classes)
        at_once = fl.piece_size(16 * longest * (self.d + classes), self.problem.device)
        gradients = []
        with torch.no_grad():
            for some in torch.arange(len(data.clients)).split(at_once):
                rows = data.rows.select(some)
                params = self._of_clients(state, data.clients[some])
                h = self.features(params, self.head(params, None), data.pool.x(rows.index))[0]
                error = self._classify(params, h).softmax(-1)
                error = error - F.one_hot(data.pool.y(rows.index), classes)
                error = error.double() * rows.mask.to(error.device)[..., None]
                gradient = error.transpose(-1, -2) @ F.normalize(h, dim=-1).double()
                count = rows.counts.clamp(min=1).to(error.device)
                gradients.append(self.tau * gradient / count[:, None, None])
        return torch.cat(gradients)
