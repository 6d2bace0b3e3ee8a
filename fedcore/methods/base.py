"""The contract between a method and the engine: a few pure functions on plain dicts of tensors.

A method is made once per run from its config and the problem, and keeps no other state. Parameters of
several clients carry the client axis first. ``State`` and ``upload`` show everything that a method shares,
keeps and sends: whatever is not in an upload cannot leave a client. ``Method`` lists all hooks; the engine
calls no others, and ``@method`` refuses a class with public members that it does not know.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal

from pydantic import BaseModel
from typing_extensions import TypeVar

from fedcore.errors import FedLensError
from fedcore.lazy import torch
from fedcore.methods.hyperparameters import MethodConfig, Weighting
from fedcore.methods.tensors import weighted_mean
from fedcore.records.presentation import About

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from fedcore.clip.specs import BackboneSpec
    from fedcore.federation import LocalData, Problem

Params = dict[str, "Tensor"]
"""Tensors by name."""
Generators = Callable[..., "Generator"]
"""``generator("purpose", ...)`` gives the random generator of this run for one purpose."""


@dataclass(frozen=True)
class RunContext:
    """What is known of a run before anything is loaded (no torch): enough to refuse a bad config early.

    Attributes:
        client_domain: every client's index into ``domains``, -1 where it mixes them; None: one each.
        descriptions: written descriptions of those classes that have any; the file is read on first access.
        embedded: whether the data set and its descriptions come with FedLens and so never change.
    """

    spec: BackboneSpec
    classes: tuple[str, ...]
    clients: int
    domains: tuple[str, ...]
    template: str
    client_domain: tuple[int, ...] | None = None
    descriptions: Mapping[str, Sequence[str]] = field(default_factory=dict)
    embedded: bool = True


STATE_PARTS = ("shared", "personal", "local", "server")
"""Parts of ``State`` that hold parameters."""


@dataclass(frozen=True)
class State:
    """All that a run remembers between rounds.

    Attributes:
        shared: broadcast to every client. No client axis.
        personal: made by the server for each client and sent down to it (FedAlign). Shape: (clients, ...).
        local: never leaves its client. Shape: (clients, ...).
        server: never sent (FedAlign's text LoRA). No client axis.
        rounds_trained: number of rounds in which each client took part. Shape: (clients,) int64.
    """

    shared: Params = field(default_factory=dict)
    personal: Params = field(default_factory=dict)
    local: Params = field(default_factory=dict)
    server: Params = field(default_factory=dict)
    rounds_trained: Tensor | None = None

    def server_side(self) -> State:
        """Return the state that the server may see, without the clients' local part."""
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
    """The result of one training phase on one batch.

    Attributes:
        losses: names of the parameters that a loss moves -> that loss per client, shape (clients,).
            Each loss moves its own names only; all gradients are computed before anything moves.
        moved: new values of parameters that follow the batch and no gradient, such as the running statistics
            of batch normalisation. Shape: (clients, ...).
        record: per-sample values kept from the last local epoch for ``upload``. Shape: (clients, batch, ...).
        terms: parts of the loss to be stored as diagnostics (mean over the round's steps). Shape: (clients,).
    """

    losses: dict[tuple[str, ...], Tensor]
    moved: Params = field(default_factory=dict)
    record: Params = field(default_factory=dict)
    terms: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Ragged:
    """An upload whose size differs between clients: traffic counts lengths, not padding.

    Shape: values (clients, longest, ...), lengths (clients,) rows that a client really sends.
    """

    values: Tensor
    lengths: Tensor

    @classmethod
    def pack(cls, values: Tensor, keep: Tensor) -> Ragged:
        """Move the rows to keep to the front, in their order; all others become zero and cannot leave.

        Shape: values (clients, n, ...), keep (clients, n) bool.
        """
        lengths = keep.sum(1)
        order = keep.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, : int(lengths.max())]
        front = values[torch.arange(len(values), device=values.device)[:, None], order]
        real = torch.arange(order.shape[1], device=values.device) < lengths[:, None]
        return cls(front * real.view(*real.shape, *[1] * (values.dim() - 2)).to(values.dtype), lengths)

    def per_client(self) -> list[Tensor]:
        """Return one tensor per client, without padding."""
        return [v[:n] for v, n in zip(self.values, self.lengths.tolist(), strict=True)]


@dataclass(frozen=True)
class Uploads:
    """Everything that the server receives in one round, in client order.

    Attributes:
        values: exactly what ``upload`` returned. Shape: (participants, ...) each.
        clients: the participants, as indices into ``problem.clients``. Shape: (participants,).
        samples: their training sample counts. Shape: (participants,).
    """

    values: dict[str, Tensor | Ragged]
    clients: Tensor
    samples: Tensor

    def dense(self, name: str) -> Tensor:
        """Return an upload of equal size for all clients. Shape: (participants, ...)."""
        value = self.values[name]
        assert not isinstance(value, Ragged), f"'{name}' is ragged"
        return value

    def ragged(self, name: str) -> Ragged:
        """Return an upload whose size differs between clients."""
        value = self.values[name]
        assert isinstance(value, Ragged), f"'{name}' is not ragged"
        return value

    def weights(self, weighting: Literal["uniform", "samples"]) -> Tensor:
        """Return the participants' weights, which sum to one. Shape: (participants,) float64."""
        raw = torch.ones_like(self.samples) if weighting == "uniform" else self.samples
        raw = raw.to(torch.float64)
        return raw / raw.sum()

    def mean(self, name: str, weighting: Weighting) -> Tensor:
        """Return the weighted mean of an upload of equal size for all clients. Shape: (...)."""
        return weighted_mean(self.dense(name), self.weights(weighting))


@dataclass(frozen=True)
class Models:
    """The models that are evaluated, which need not be those that are trained.

    Shape: ``global_model`` (None if a method has none) with a leading axis of 1, ``clients`` with a
    leading axis of all clients.
    """

    global_model: Params | None
    clients: Params


Phase = Callable[[Params, Params, Batch], Step]
BatchOrder = Literal["shuffled", "sorted"]
ConfigT = TypeVar("ConfigT", bound=MethodConfig, default=Any)


class Method(Generic[ConfigT]):
    """Base of all methods: set ``name``, ``about``, ``Config``; define ``init``, ``train_step``, ``logits``.

    Everything else has a default, which a method overrides where its paper differs from federated averaging.
    """

    name: ClassVar[str]
    """Registry key, lower case: "fedot"."""
    about: ClassVar[About]
    """Title, source, summary and charts, as pages show them."""
    Config: ClassVar[type[BaseModel]] = MethodConfig
    """Its hyper-parameters."""
    trains: ClassVar[bool] = True
    """False for a method that trains nothing; its Config then needs none of ``MethodConfig``'s fields."""
    shared: tuple[str, ...] = ()
    """Names of the parameters that the default ``upload`` sends and the default ``aggregate`` averages."""
    clients_use_global: bool = False
    """True where every client predicts with the global model, which is then evaluated once for all."""
    backbones: ClassVar[Literal["one", "equal token widths", "any"]] = "one"
    """Whether clients may have different CLIPs: 'equal token widths' where only prompts in token space are
    learned; 'any' where nothing depends on the backbone. ``aggregate`` and ``diagnostics`` then run with the
    first cohort's backbone; a state that depends on it and diagnostics that read samples are refused."""

    def __init__(self, config: ConfigT, problem: Problem) -> None:
        self.config = config
        self.problem = problem

    @classmethod
    def check(cls, config: ConfigT, context: RunContext) -> None:
        """Refuse a config that cannot run in this context.

        Raises:
            FedLensError: with ``field`` naming the hyper-parameter, before anything is loaded.
        """

    @classmethod
    def freeze_config(cls, config: ConfigT, context: RunContext) -> ConfigT:
        """Return the config with what it takes from the data set written out (texts of classes, say).

        The run can then be repeated from its config alone. If ``check`` accepts a config, it accepts the
        frozen one.
        """
        return config

    @classmethod
    def plan_warnings(cls, config: ConfigT, context: RunContext) -> list[str]:
        """Return warnings about a config that can run but may not do what its user expects."""
        return []

    @classmethod
    def result_caveat(cls, config: ConfigT, embedded: bool) -> str:
        """Return a caution that is shown beside the results of a finished run; empty: none is needed.

        Args:
            embedded: whether its data set comes with FedLens.
        """
        return ""

    @classmethod
    def reads(cls, config: ConfigT, spec: BackboneSpec) -> str:
        """Return the cached encoding that the method trains on.

        Returns:
            "embedding"; "regions" (an embedding of every patch); "patches" (patch tokens before the class and
            positional embeddings are added); "layer:k" (activations entering layer k); or "pixels".
        """
        return "embedding"

    def init(self, generator: Generators) -> State:
        """Return the state before round 1."""
        return State()

    def drawn_texts(self) -> dict[str, str]:
        """Return the class texts that this run's seed has drawn, by class, for the run's log."""
        return {}

    def round_constants(self, params: Params, data: LocalData) -> Params:
        """Return values that stay constant for one round of local training, such as SDFed's projector.

        They are computed without gradient before the first step.

        Shape: params and result (participants, ...).
        """
        return {}

    def lr_factors(self) -> dict[str, float]:
        """Return multiples of the learning rate by parameter name, such as FedOT's; 1 for all others."""
        return {}

    def train_step(self, params: Params, const: Params, batch: Batch) -> Step:
        """Return the losses of one batch, as functions of ``params`` that torch can differentiate.

        Shape: params (clients, ...) everything the clients hold; const is what ``round_constants`` gave.
        """
        raise FedLensMethodError(f"{type(self).__name__} defines no train_step; define it, or trains = False")

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Training phases in order, one optimiser step each per batch (FedDEAP has two)."""
        return (self.train_step,)

    def upload(self, params: Params, record: Params, data: LocalData) -> dict[str, Tensor | Ragged]:
        """Return everything that the clients send after local training. Shape: (participants, ...)."""
        return {name: params[name] for name in self.shared}

    def aggregate(self, state: State, uploads: Uploads, generator: Generators) -> State:
        """Take the server's step, by default the shared parameters' mean; ``state.local`` is empty here.

        A method that overrides neither this nor ``diagnostics`` nor ``round_log`` has its uploads summed as
        they arrive, so that memory does not grow with the participants.
        """
        means = {name: uploads.mean(name, self.config.weighting) for name in self.shared}
        return replace(state, shared=means)

    def before_aggregation(self, trained: Params, received: Params) -> Params:
        """Return the participants' models as they are evaluated before aggregation.

        Args:
            trained: the participants' parameters after local training, their local ones included.
            received: what was sent to them at the start of the round.

        Shape: (participants, ...) each.
        """
        return trained

    def round_log(self, uploads: Uploads) -> list[str]:
        """Return log lines about this round, e.g. that a client fell back to the global model."""
        return []

    def models(self, state: State) -> Models:
        """Return the models that are evaluated after aggregation."""
        shared = {name: value[None] for name, value in state.shared.items()}
        return Models(shared, {**self.repeat(state.shared), **state.personal, **state.local})

    def head(self, params: Params, data: LocalData | None) -> Params:
        """Compute a model's constants of prediction, e.g. class features; data is None for the global model.

        Shape: params and result (models, ...).
        """
        return {}

    def logits(self, params: Params, head: Params, x: Tensor) -> Tensor:
        """Return class scores. Shape: x (models, samples, ...) -> (models, samples, classes)."""
        raise FedLensMethodError(f"{type(self).__name__} defines no logits")

    def batch_order(self) -> BatchOrder | None:
        """Return the order of test samples, if prediction depends on the other samples of a batch; else None.

        Samples of two test sets then never share a batch. "sorted" is by class, as in FedDEAP's code.
        """
        return None

    def numbers_per_sample(self) -> int:
        """Return how many numbers predicting one sample of one model holds at once, beside the sample.

        The engine predicts as many samples at once as it has room for. A method whose class features depend
        on the image needs many; for all others the sample decides.
        """
        return 0

    def features(self, params: Params, head: Params, x: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return the image and class features that ``logits`` compares, for plots; None if it compares none.

        Shape: x (models, samples, ...) -> images (models, samples, d), classes (models, classes, d), or
        (models, samples, classes, d) where each image has class features of its own.
        """
        return (x, head["text"]) if "text" in head else None

    def prompts(self, params: Params, clients: Tensor | None) -> dict[str, Tensor | Ragged]:
        """Return learned vectors in token space by name of the prompt; Run shows their nearest words.

        Shape: clients (models,), None for the global model -> (models, tokens, m), or (models, classes,
        tokens, m) for prompts of each class.
        """
        return {}

    def gradcam_scores(self, params: Params, head: Params, x: Tensor) -> dict[str, Tensor]:
        """Return scores that Grad-CAM shows beside the score of the predicted class.

        Shape: x (models, samples, ...) -> (models, samples) each.
        """
        return {}

    def diagnostics(
        self, before: State, trained: Params, uploads: Uploads, data: LocalData
    ) -> dict[str, Tensor]:
        """Return values of the round to store: scalars, (participants,) or (participants, participants)."""
        return {}

    def repeat(self, params: Params) -> Params:
        """Repeat parameters without a client axis for all clients (a view, not a copy)."""
        n = len(self.problem.clients)
        return {name: value.expand(n, *value.shape) for name, value in params.items()}


def overrides(cls: type[Method], *hooks: str) -> bool:
    """Return whether a method defines any of these hooks itself."""
    return any(getattr(cls, hook) is not getattr(Method, hook) for hook in hooks)


class FedLensMethodError(FedLensError):
    """A fault of a method, which every seed meets: it breaks the contract, or its own code raised."""
