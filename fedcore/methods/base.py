"""The contract between a method and the engine: a few pure functions on plain dicts of tensors.

A method is made once per run from its config and the problem, and keeps no other state. Parameters of
several clients carry the client axis first. What a method shares, keeps and sends is visible in ``State``
and ``upload``: what is not in an upload cannot leave a client.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from fedcore.lazy import functional as F
from fedcore.lazy import torch
from fedcore.methods.charts import DiagnosticChart, MatrixChart

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from fedcore.clip.facts import BackboneFacts
    from fedcore.federation import LocalData, Problem

Params = dict[str, "Tensor"]


class MethodConfig(BaseModel):
    """Hyper-parameters every trained method has; each method overrides the defaults with its paper's.

    What a field is called stands beside it: ``title``, as within a sentence ("learning rate"; else its
    name in words); in ``json_schema_extra`` its options' ``words`` ({"st": "from the prompt"}), and as
    ``empty`` what None stands for ("no limit"). A field that overrides another keeps what it does not say.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    optimiser: Literal["sgd", "adam", "adamw"] = Field(
        "sgd",
        description="Local optimiser",
        json_schema_extra={"words": {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW"}},
    )
    lr: float = Field(
        1e-3, ge=0, le=100, title="learning rate", description="Learning rate of the local optimiser"
    )
    momentum: float = Field(0.9, ge=0, lt=1, description="SGD momentum; Adam does not use it")
    weight_decay: float = Field(5e-4, ge=0, le=10, description="Weight decay of the local optimiser")
    batch_size: int = Field(32, ge=1, le=65536, description="Samples in a local batch")
    local_epochs: int = Field(1, ge=1, le=1000, description="Passes over a client's data in one round (E)")
    optimiser_state: Literal["fresh", "kept"] = Field(
        "fresh",
        description="Optimiser state: made anew each round, or kept by the client across rounds",
        json_schema_extra={"words": {"fresh": "new each round", "kept": "kept across rounds"}},
    )
    weighting: Literal["uniform", "samples"] = Field(
        "uniform",
        title="clients' weights",
        description="Server mean over clients: plain, or weighted by their sample counts",
        json_schema_extra={"words": {"uniform": "all alike", "samples": "by samples"}},
    )

    @property
    def adam(self) -> tuple[float, float, float]:
        """beta_1, beta_2 and epsilon of Adam and AdamW; a method whose paper has others overrides this."""
        return 0.9, 0.999, 1e-8


@dataclass(frozen=True)
class RunContext:
    """What is known about a run before anything is loaded (no torch): enough to refuse a bad config early.

    Attributes:
        client_domain: every client's index into ``domains``, -1 where it mixes them; None: one each.
        descriptions: written descriptions by class, of those that have any; read when looked into.
        embedded: whether data and descriptions come with FedLens, so that they stay as they are.
    """

    facts: BackboneFacts
    classes: tuple[str, ...]
    clients: int
    domains: tuple[str, ...]
    template: str
    client_domain: tuple[int, ...] | None = None
    descriptions: Mapping[str, Sequence[str]] = field(default_factory=dict)
    embedded: bool = True


@dataclass(frozen=True)
class State:
    """All that a run remembers between rounds.

    Attributes:
        shared: broadcast to every client. No client axis.
        personal: made by the server for each client and sent down to it (FedAlign). Shape: (clients, ...).
        local: never leaves its client. Shape: (clients, ...).
        server: never sent (FedAlign's text LoRA). No client axis.
        taken: rounds each client has taken part in. Shape: (clients,) int64.
    """

    shared: Params = field(default_factory=dict)
    personal: Params = field(default_factory=dict)
    local: Params = field(default_factory=dict)
    server: Params = field(default_factory=dict)
    taken: Tensor | None = None

    def server_side(self) -> State:
        """The state as the server sees it: without anything local."""
        return replace(self, local={})


@dataclass(frozen=True)
class Batch:
    """One local batch of several clients.

    Shape: x (clients, batch, ...) encoded samples; labels and mask (clients, batch), mask False on padding;
    clients (clients,) index into ``problem.clients``.
    """

    x: Tensor
    labels: Tensor
    mask: Tensor
    clients: Tensor


@dataclass(frozen=True)
class Step:
    """What one phase returns.

    Attributes:
        losses: names of the parameters that a loss moves -> that loss per client, shape (clients,).
            Each loss moves its own names only; all gradients are taken before anything moves.
        record: per-sample values kept from the last local epoch for ``upload``. Shape: (clients, batch, ...).
        terms: parts of the loss to be stored as diagnostics (mean over the round's steps). Shape: (clients,).
    """

    losses: dict[tuple[str, ...], Tensor]
    record: Params = field(default_factory=dict)
    terms: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Ragged:
    """An upload whose size differs between clients: traffic counts lengths, not padding.

    Shape: values (clients, longest, ...), lengths (clients,): how many of the rows a client really sends.
    """

    values: Tensor
    lengths: Tensor


@dataclass(frozen=True)
class Uploads:
    """What the server receives in one round, in client order.

    Attributes:
        values: exactly what ``upload`` returned. Shape: (participants, ...) each.
        clients: who took part, index into ``problem.clients``. Shape: (participants,).
        samples: their training sample counts. Shape: (participants,).
    """

    values: dict[str, Tensor | Ragged]
    clients: Tensor
    samples: Tensor

    def weights(self, weighting: Literal["uniform", "samples"]) -> Tensor:
        """Weights that sum to one. Shape: (participants,)."""
        raw = torch.ones_like(self.samples) if weighting == "uniform" else self.samples
        raw = raw.to(torch.float64)
        return raw / raw.sum()


@dataclass(frozen=True)
class Models:
    """What is evaluated, which need not be what is trained.

    Shape: ``common`` (the global model, None where a method has none) with a leading axis of 1;
    ``clients`` with a leading axis of all clients.
    """

    common: Params | None
    clients: Params


Phase = Callable[[Params, Params, Batch], Step]


class Method:
    """Base of all methods. Subclasses set the class attributes, ``init``, ``phases`` and ``logits``."""

    name: ClassVar[str]  # registry key, lower case: "fedot"
    title: ClassVar[str]  # as shown: "FedOT"
    source: ClassVar[str]  # paper and section
    about: ClassVar[str]  # the idea in a few sentences, shown beside the form
    family: ClassVar[Literal["method", "baseline"]] = "method"
    Config: ClassVar[type[MethodConfig]] = MethodConfig
    shared: ClassVar[tuple[str, ...]] = ()  # names averaged by the default upload and aggregate
    charts: ClassVar[tuple[DiagnosticChart, ...]] = ()  # how the figures it records are drawn
    matrices: ClassVar[tuple[MatrixChart, ...]] = ()  # and those of pairs of clients: one heatmap each
    clients_use_global: ClassVar[bool] = False  # every client predicts with the global model: evaluated once
    backbones: ClassVar[Literal["one", "equal token widths", "any"]] = "one"
    """Whether clients may have different CLIPs: 'equal token widths' where all that is learned are prompts in
    token space; 'any' where nothing depends on the backbone. ``aggregate`` and ``diagnostics`` then belong to
    the first cohort's backbone; a state that depends on it and diagnostics that read samples are refused."""

    def __init__(self, config: Any, problem: Problem) -> None:
        self.config = config
        self.problem = problem

    @classmethod
    def check(cls, config: Any, context: RunContext) -> None:
        """Refuse a config that cannot run in this context.

        Raises:
            FedLensError: with ``field`` naming the hyper-parameter, before anything is loaded.
        """

    @classmethod
    def plan_warnings(cls, config: Any, context: RunContext) -> list[str]:
        """What is odd in this setting but runs, told before anything is loaded."""
        return []

    @classmethod
    def freeze_config(cls, config: Any, context: RunContext) -> Any:
        """The config as it is kept with a run: what it would read elsewhere written out, so that the run can
        be repeated from it alone. It must be allowed wherever the config was."""
        return config

    @classmethod
    def result_caveat(cls, config: Any, embedded: bool) -> str:
        """How a finished run departs from what its config promises; empty: it does not. Shown beside its
        figures. embedded: whether its data come with FedLens."""
        return ""

    @classmethod
    def reads(cls, config: Any, facts: BackboneFacts) -> str:
        """Which cached encoding the method trains on: "embedding", "layer:k" (activations entering layer k),
        or "patches" (what the class and positional embeddings are added to).
        """
        return "embedding"

    @property
    def predicts_in_batches(self) -> bool:
        """Whether a prediction depends on the other samples of its batch; such test sets are never mixed."""
        return False

    def init(self, generator: Callable[..., Generator]) -> State:
        """The state before round 1. ``generator("purpose", ...)`` gives a generator for one purpose."""
        return State()

    def prepare(self, params: Params, data: LocalData) -> Params:
        """Constants of one round and client, computed once without gradient. Shape: (clients, ...)."""
        return {}

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Training phases, in order, one optimiser step each per batch; empty: nothing is trained."""
        return ()

    def upload(self, params: Params, record: Params, data: LocalData) -> dict[str, Tensor | Ragged]:
        """What leaves the clients after local training. Shape: (participants, ...)."""
        return {name: params[name] for name in self.shared}

    def aggregate(self, state: State, uploads: Uploads, generator: Callable[..., Generator]) -> State:
        """The server's step; ``state.local`` is empty here.
        Default: mean of the shared names in client order.
        """
        weights = uploads.weights(self.config.weighting)
        return replace(state, shared={n: weighted_mean(uploads.values[n], weights) for n in self.shared})

    def models(self, state: State) -> Models:
        """The models that are evaluated after aggregation (point ``broadcast``)."""
        common = {name: value[None] for name, value in state.shared.items()}
        return Models(common, {**self.spread(state.shared), **state.personal, **state.local})

    def before_aggregation(self, trained: Params, received: Params) -> Params:
        """The participants' models before aggregation (point ``local``). received: what was sent to them.

        Shape: (participants, ...) each; ``trained`` holds the participants' local parameters too.
        """
        return trained

    def head(self, params: Params, data: LocalData | None) -> Params:
        """Per-model constants for evaluation (text features), once
        per model; data is None for the global one.
        """
        return {}

    def logits(self, params: Params, head: Params, x: Tensor) -> Tensor:
        """Class scores. Shape: x (models, samples, ...) -> (models, samples, classes)."""
        raise FedLensMethodError(f"{type(self).__name__} defines no logits")

    def features(self, params: Params, head: Params, x: Tensor) -> tuple[Tensor, Tensor] | None:
        """Images and classes as ``logits`` compares them, for pictures of the feature space; None: no pair.

        Shape: x (models, samples, ...) -> images (models, samples, d), classes (models, classes, d).
        """
        return (x, head["text"]) if "text" in head else None

    def explained(self, params: Params, head: Params, x: Tensor) -> dict[str, Tensor]:
        """Scores whose evidence in the image Grad-CAM shows; default: that of the predicted class.

        Shape: x (models, samples, ...) -> (models, samples) each.
        """
        return {"prediction": self.logits(params, head, x).amax(-1)}

    def prompts(self, params: Params, clients: Tensor | None) -> dict[str, Tensor | Ragged]:
        """Learned vectors in the text tower's token space, for their nearest words; empty where none are.

        Shape: clients (models,), None for the global model -> (models, tokens, m), or (models, classes,
        tokens, m) for prompts of each class.
        """
        return {}

    def diagnostics(
        self, before: State, trained: Params, uploads: Uploads, data: LocalData
    ) -> dict[str, Tensor]:
        """Figures of the round to be stored: scalars, (participants,) or (participants, participants)."""
        return {}

    @property
    def drawn_texts(self) -> dict[str, str]:
        """Class -> the text drawn for it by seed, for the run's log; empty where nothing is drawn."""
        return {}

    def round_log(self, uploads: Uploads) -> list[str]:
        """What is worth a line in the run's log about this round, e.g. a client that fell back."""
        return []

    def spread(self, params: Params) -> Params:
        """Parameters without a client axis, repeated for all clients (a view, not a copy)."""
        n = len(self.problem.clients)
        return {name: value.expand(n, *value.shape) for name, value in params.items()}


class FedLensMethodError(TypeError):
    """A method file that does not keep the contract."""


def weighted_mean(values: Tensor, weights: Tensor) -> Tensor:
    """Mean over the client axis, summed in client order in float64. Shape: (clients, ...) -> (...)."""
    weights = weights.to(values.device).view(-1, *[1] * (values.dim() - 1))
    return (values.to(torch.float64) * weights).sum(0).to(values.dtype)


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean over a batch without its padding. Shape: values and mask (clients, batch) -> (clients,)."""
    return (values * mask).sum(1) / mask.sum(1).clamp(min=1)


def cross_entropy(logits: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
    """Mean cross-entropy per client. Shape: logits (clients, batch, classes) -> (clients,)."""
    loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
    return masked_mean(loss.view(labels.shape), mask)


def cosine_logits(image: Tensor, text: Tensor, scale: float | Tensor) -> Tensor:
    """scale * cosine. Shape: image (clients, samples, d), text
    (clients, classes, d) -> (clients, samples, classes).
    """
    image, text = F.normalize(image, dim=-1), F.normalize(text, dim=-1)
    return scale * (image @ text.transpose(-1, -2))
