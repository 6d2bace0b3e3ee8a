"""The contract between a method and the engine: the hooks of ``Method``, and the values that they exchange.

A method is a few functions on plain dicts of tensors. The engine makes one object of it per run, from its
config and the ``Problem`` (``fedcore/methods/federation.py``: the frozen CLIP, the classes, the clients'
names), and calls its hooks in this order:

==================  ===================================================================================
when                hooks
==================  ===================================================================================
planning            ``check``, ``plan_warnings``, ``bound_to_classes``, ``bound_to_clients``, ``reads``:
                    nothing is loaded yet
start of a run      ``__init__``, ``init``
a round, clients    ``sends``; ``round_constants``, ``lr_factors``; for each batch every one of ``phases``
                    (``train_step``); ``after_training``; ``upload``; ``before_aggregation``
a round, server     ``needs_only_means``, ``aggregate``; ``diagnostics``, ``round_log``; ``downloads``, from
                    which traffic is counted
evaluation          ``models``, then ``head`` and ``logits`` for as many models and samples at once as
                    ``numbers_per_sample`` allows; for test sets with other class names ``retarget`` first
afterwards          ``features``, ``prompts``, ``gradcam_scores``, ``result_caveat``, for pages and tables
==================  ===================================================================================

``init`` has to be defined, and ``logits`` unless ``head`` or ``features`` gives what CLIP compares. Every
other hook has a default: clients train by the cross-entropy of their scores, and the server averages the
parameters that ``shared`` names.

Parameters of several clients or models carry the client axis first, and "participants" are the clients of
the chunk that is trained or evaluated. A method keeps nothing between rounds: what is remembered is in
``State``, and what leaves a client is in ``upload``. ``@method`` refuses a class that has a public member
which is not part of the contract, or a hook that takes other arguments; names of helpers begin with an
underscore.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, Literal, Self, get_args

from pydantic import BaseModel
from typing_extensions import TypeVar

from fedcore.base.errors import FedLensError
from fedcore.base.lazy import Generator, Tensor, torch
from fedcore.base.presentation import About
from fedcore.clip.specs import MINI_MODELS, BackboneSpec
from fedcore.methods.federation import LocalData, Problem
from fedcore.methods.hyperparameters import MethodConfig, Weighting
from fedcore.methods.tensors import cosine_logits, cross_entropy, weighted_mean

Params = dict[str, "Tensor"]
"""Tensors by name."""
Values = dict[str, "Tensor | Ragged"]
"""Tensors by name, some of them with a size for each client: what crosses the network, or prompts."""
Generators = Callable[..., "Generator"]
"""``generator("purpose", ...)`` returns a random generator that is seeded by the run and that purpose."""
Phase = Callable[["Params", "Params", "Batch"], "Step"]
"""One training phase, with the signature of ``Method.train_step``."""
MINI_RATE = 0.01
"""The demonstration's rate of SGD, with which FedOT and prompts learn within ten rounds."""
BatchOrder = Literal["shuffled", "sorted"]
ConfigT = TypeVar("ConfigT", bound=MethodConfig, default=Any)


class Method(Generic[ConfigT]):
    """Base of all methods: set ``name``, ``about`` and ``Config``, and define the hooks named above."""

    # Declarations

    name: ClassVar[str]
    """Name in TOML files and tables of the database, in lower case: "fedot"."""
    about: ClassVar[About]
    """Title, source, summary and charts, as pages show them."""
    Config: ClassVar[type[BaseModel]] = MethodConfig
    """Its hyper-parameters, a subclass of ``MethodConfig``."""
    trains: ClassVar[bool] = True
    """False if the method trains nothing; its ``Config`` then needs none of ``MethodConfig``'s fields."""
    shared: tuple[str, ...] = ()
    """Names of the parameters that the default ``upload`` sends and the default ``aggregate`` averages."""
    client_rows: tuple[str, ...] = ()
    """Names of personal and server parameters with a row for each client, of which ``aggregate`` returns the
    participants' rows alone. The engine keeps all rows as it keeps local ones: those of absent clients stay
    in place, and those of clients that have neither taken part nor are evaluated may be zeros."""
    clients_use_global: bool = False
    """True if every client predicts with the global model, which is then evaluated once for all."""
    backbones: ClassVar[Literal["one", "equal token widths", "any"]] = "one"
    """The CLIPs that the clients of a run may have: "equal token widths" if only prompts in token
    space are learned, "any" if nothing depends on the backbone. ``aggregate`` and ``diagnostics`` then run
    with the first cohort's backbone; the engine refuses a state whose shapes depend on the backbone, and
    diagnostics that read samples."""
    class_axes: Mapping[str, int] = {}
    """Parameters that have an entry for each class, with the axis of the classes from the end, for example
    ``{"classifier": -2, "bias": -1}``. ``retarget`` moves these entries to other class names."""
    batch_order: BatchOrder | None = None
    """The order of test samples if a prediction depends on the other samples of its batch. Samples of two
    test sets then never share a batch; "sorted" is by class, as in FedDEAP's code."""

    # Planning: class methods, called in the browser too, before torch, weights or images are loaded

    @classmethod
    def check(cls, config: ConfigT, context: RunContext) -> None:
        """Refuse a config that cannot run in this context, once per cohort. Default: accepts everything.

        Raises:
            FedLensError: with ``field`` naming the hyper-parameter to change.
        """

    @classmethod
    def plan_warnings(cls, config: ConfigT, context: RunContext) -> list[str]:
        """Return warnings about a config that can run but may not do what its user expects. Default: none.

        They are shown before launch, after the method's name, and repeated in the run's log.
        """
        return []

    @classmethod
    def bound_to_classes(cls, config: ConfigT) -> str:
        """Return why a model has no value on classes that it was not trained on; default: "", it has one.

        For example "its classifier starts at random". It is shown where the value would be.
        """
        return ""

    @classmethod
    def bound_to_clients(cls, config: ConfigT) -> str:
        """Return why a client that never took part cannot adapt the trained model; default: "", it can.

        Such a client gets the shared parameters, begins its local ones as ``init`` does, and trains.
        """
        return ""

    @classmethod
    def reads(cls, config: ConfigT, spec: BackboneSpec) -> str:
        """Return the encoding of images that the method trains on; each is computed once and cached.

        Returns:
            "embedding" (default); "regions" (an embedding of every patch); "patches" (patch tokens before
            the class and positional embeddings are added); "layer:k" (activations that enter layer k); or
            "pixels".
        """
        return "embedding"

    # Start of a run

    def __init__(self, config: ConfigT, problem: Problem) -> None:
        """Prepare constants of the run, such as tokens of the class names. Called once per cohort.

        With several devices each process makes its own object, so anything random is drawn from
        ``problem.generator``.
        """
        self.config = config
        self.problem = problem

    def init(self, generator: Generators) -> State:
        """Return the state before round 1. Default: an empty one, for a method that trains nothing.

        Shape: shared without a client axis, personal and local (clients, ...), server any.
        """
        if self.trains:
            raise FedLensMethodError(f"{type(self).__name__} defines no init; define it, or trains = False")
        return State()

    # A round on the clients

    def sends(self, state: State, clients: Tensor) -> Params:
        """Return what the server sends to the participants at the start of a round.

        Default: the shared parameters, and of the personal ones each participant's row. A method overrides it
        if the server makes what it sends only now, such as prompts of which it keeps the numbers (pFedMoAP).

        Shape: clients (participants,) -> (participants, ...).
        """
        shared = {n: v.expand(len(clients), *v.shape) for n, v in state.shared.items()}
        return {**shared, **{n: v[clients.to(v.device)] for n, v in state.personal.items()}}

    def round_constants(self, params: Params, data: LocalData) -> Params:
        """Return values that stay constant during one round of local training, such as SDFed's projector.

        Called once before the first step, without gradient. Default: none.

        Shape: params and result (participants, ...).
        """
        return {}

    def lr_factors(self) -> dict[str, float]:
        """Return multiples of the learning rate by parameter name, once per round. Default: 1 for all."""
        return {}

    def train_step(self, params: Params, const: Params, batch: Batch) -> Step:
        """Return the losses of one batch as functions of ``params``; the engine differentiates and steps.

        Default: the cross-entropy of the clients' scores moves all that they hold. Called for every batch of
        every local epoch. A client without samples left is not in the batch, so the leading axis may be
        shorter than the number of participants: ``batch.clients`` says who is in it.

        Args:
            params: all that the clients hold: the shared, personal and local parameters, by name.
            const: what ``round_constants`` returned.

        Shape: params and const (clients, ...).
        """
        return Step({tuple(params): self.prediction_loss(params, batch)})

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Training phases in order, each with an optimiser step per batch. Default: ``train_step`` alone.

        A later phase sees the parameters that an earlier one has moved (FedDEAP and Ditto have two).
        """
        return (self.train_step,)

    def after_training(self, trained: Params, received: Params, data: LocalData, round_: int) -> Params:
        """Return what the participants hold after their last step. Default: as trained.

        For example a client that chooses which of its prompts it sends and which it keeps (FedMGP).

        Args:
            trained: the parameters after local training.
            received: what the server sent at the start of the round.
            round_: from 1 on, for draws such as ``problem.generator("purpose", round_, client's name)``.

        Shape: trained, received and result (participants, ...), with the names and shapes of ``trained``.
        """
        return trained

    def upload(self, params: Params, record: Params, data: LocalData) -> Values:
        """Return everything that the clients send after local training. Default: the ``shared`` parameters.

        Traffic is counted from the result.

        Args:
            params: what ``after_training`` returned.
            record: ``Step.record`` of every sample in the last local epoch, in the order of ``data``.

        Shape: params and result (participants, ...), record (participants, longest, ...).
        """
        return {name: params[name] for name in self.shared}

    def before_aggregation(self, trained: Params, received: Params) -> Params:
        """Return the participants' models for the evaluation before aggregation. Default: as trained.

        Args:
            trained: the parameters after local training, the local ones included.
            received: what the server sent at the start of the round.

        Shape: (participants, ...) each.
        """
        return trained

    # A round on the server

    def aggregate(self, state: State, uploads: Uploads, generator: Generators) -> State:
        """Take the server's step. Default: ``shared`` becomes the uploads' mean, weighted by ``weighting``.

        ``state.local`` is empty: the server never sees it. A method that overrides neither this hook nor
        ``diagnostics`` nor ``round_log`` has its uploads summed as they arrive, so that memory does not grow
        with the number of participants.
        """
        means = {name: uploads.mean(name, self.config.weighting) for name in self.shared}
        return replace(state, shared=means)

    @property
    def needs_only_means(self) -> bool:
        """True if the server reads only the mean of the uploads, so that none has to be stored.

        Default: True unless ``aggregate``, ``diagnostics`` or ``round_log`` is overridden. A method that does
        so and still reads no more than the means of ``shared``, weighted by ``config.weighting``, overrides
        this too, as a server with momentum would.
        """
        return not overrides(type(self), "aggregate", "diagnostics", "round_log")

    def diagnostics(
        self, before: State, trained: Params, uploads: Uploads, data: LocalData
    ) -> dict[str, Tensor]:
        """Return values of the round to be stored; ``about.charts`` says how to draw them. Default: none.

        Called after ``aggregate``, without gradient; ``Step.terms`` are stored without it.

        Args:
            before: the state at the start of the round.
            trained: the participants' parameters after local training.

        Shape: trained (participants, ...); results (), (participants,) or (participants, participants).
        """
        return {}

    def round_log(self, uploads: Uploads) -> list[str]:
        """Return lines for the log of this round, such as a client without a prototype. Default: none."""
        return []

    def downloads(self, state: State, clients: Tensor, received: Params) -> Values:
        """Return what crosses the network to the participants, from which traffic is counted.

        Default: all that they receive. A method overrides it if its clients hold a part of that already, or
        get rows of padding.

        Args:
            state: at the start of the round, without the local part.

        Shape: clients (participants,); received and result (participants, ...).
        """
        return dict(received)

    # Evaluation, without gradient

    def models(self, state: State) -> Models:
        """Return the models that are evaluated, before round 1 and after every evaluated aggregation.

        Default: the shared parameters are the global model, and a client has its own parts beside them. A
        method with such parts alone has no global model.
        """
        shared = {name: value[None] for name, value in state.shared.items()}
        clients = {**self.repeat(state.shared), **state.personal, **state.local}
        return Models(shared if shared or not clients else None, clients)

    def retarget(self, state: State, to: Self) -> State:
        """Return the state of the same models for other class names, from which ``to`` makes its ``models``.

        Default: entries of ``class_axes`` follow the names of their classes, and a class that was not trained
        on gets its entry in ``to.init``; everything else stays.

        Args:
            to: the same method and config, made for the other names.
        """
        axes, classes = self.class_axes, to.problem.classes
        if not axes or classes == self.problem.classes:
            return state
        first = to.init(to.problem.generator)
        place = {name: i for i, name in enumerate(self.problem.classes)}
        trained_on = [i for i, name in enumerate(classes) if name in place]
        entries = torch.tensor([place[classes[i]] for i in trained_on], dtype=torch.int64)
        positions = torch.tensor(trained_on, dtype=torch.int64)

        def moved(part: str) -> Params:
            values: Params = dict(getattr(state, part))
            for name in values.keys() & axes.keys():
                trained = values[name].index_select(axes[name], entries.to(values[name].device))
                start = getattr(first, part)[name].to(trained)
                values[name] = start.index_copy(axes[name], positions.to(trained.device), trained)
            return values

        parts: dict[str, Any] = {part: moved(part) for part in STATE_PARTS}
        return replace(state, **parts)

    def head(self, params: Params, data: LocalData | None) -> Params:
        """Return constants of prediction, such as class features, once for many calls of ``logits``.

        Args:
            params: some of the ``models``.
            data: their clients' training data; None for the global model.

        Shape: params and result (models, ...). Default: none.
        """
        return {}

    def logits(self, params: Params, head: Params, x: Tensor) -> Tensor:
        """Return class scores. Shape: x (models, samples, ...) -> (models, samples, classes).

        Default: CLIP's, the cosines of the two ``features`` times the backbone's scale.
        """
        compared = self.features(params, head, x)
        if compared is None:
            raise FedLensMethodError(f"{type(self).__name__} defines neither logits nor features")
        return cosine_logits(*compared, self.problem.backbone.logit_scale)

    def numbers_per_sample(self) -> int:
        """Return how many numbers the prediction of one sample by one model holds, beside the sample.

        The engine predicts as many samples at once as fit into memory. A method with class features that
        depend on the image holds many. Default: 0.
        """
        return 0

    # Analyses of a finished run

    def features(self, params: Params, head: Params, x: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return the image and class features that ``logits`` compares; None if it compares none.

        Default: the samples, and ``head["text"]`` if there is one.

        Shape: x (models, samples, ...) -> images (models, samples, d), classes (models, classes, d), or
        (models, samples, classes, d) if class features depend on the image.
        """
        return (x, head["text"]) if "text" in head else None

    def prompts(self, params: Params, clients: Tensor | None) -> Values:
        """Return learned vectors in token space by prompt; the page shows their nearest words. Default: none.

        Shape: clients (models,), None for the global model -> (models, tokens, m), or (models, classes,
        tokens, m) if each class has a prompt.
        """
        return {}

    def gradcam_scores(self, params: Params, head: Params, x: Tensor) -> dict[str, Tensor]:
        """Return scores that Grad-CAM shows beside that of the predicted class. Default: none.

        Shape: x (models, samples, ...) -> (models, samples) each.
        """
        return {}

    @classmethod
    def result_caveat(cls, config: ConfigT, embedded: bool) -> str:
        """Return a caution to show beside the results of a finished run. Default: empty, none is needed.

        Args:
            embedded: whether its data set comes with FedLens.
        """
        return ""

    # Helpers for methods, not hooks

    def place(self, params: Params) -> Params:
        """Move parameters, drawn on the CPU in float64, to the run's device and precision."""
        backbone = self.problem.backbone
        return {name: value.to(backbone.device, backbone.dtype) for name, value in params.items()}

    def prediction_loss(self, params: Params, batch: Batch) -> Tensor:
        """Return CE(scores), the cross-entropy of the clients' scores on a batch. Shape: -> (clients,)."""
        logits = self.logits(params, self.head(params, None), batch.x)
        return cross_entropy(logits, batch.labels, batch.mask)

    def repeat(self, params: Params) -> Params:
        """Repeat parameters without a client axis for all clients (a view, not a copy)."""
        n = len(self.problem.clients)
        return {name: value.expand(n, *value.shape) for name, value in params.items()}


STATE_PARTS = ("shared", "personal", "local", "server")
"""Parts of ``State`` that hold parameters."""


@dataclass(frozen=True)
class State:
    """All that a run remembers between rounds.

    Attributes:
        shared: broadcast to every client. No client axis.
        personal: made by the server for each client and sent to it (FedAlign). Shape: (clients, ...).
        local: never leaves its client. Shape: (clients, ...).
        server: never sent (FedAlign's text LoRA). Any shape.
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
    clients (clients,) index into ``problem.clients``; places (clients, batch) index into a client's samples.
    """

    x: Tensor
    labels: Tensor
    mask: Tensor
    clients: Tensor
    places: Tensor

    @classmethod
    def whole(cls, data: LocalData) -> Self:
        """Make one batch of all samples of each client."""
        places = torch.arange(data.mask.shape[1], device=data.pool.device).expand(data.mask.shape)
        return cls(data.x, data.labels, data.mask, data.clients.to(data.pool.device), places)


def _added(gradients: Params, guides: Params) -> Params:
    return {name: gradient + guides[name] for name, gradient in gradients.items()}


@dataclass(frozen=True)
class Step:
    """The result of one training phase on one batch.

    Attributes:
        losses: names of the parameters that a loss moves -> that loss per client, shape (clients,).
            Each loss moves its own names only; all gradients are computed before anything moves.
        guides: second losses of some of these names, as ``losses``; ``combine`` makes what the optimiser
            takes of the gradients of both (ProGrad).
        combine: a function of the gradients of ``losses`` and of ``guides`` by parameter, called without
            gradient; default: their sum. Shape: arguments and result (clients, ...).
        only: names of these parameters -> which clients they move, for those that not all clients train yet;
            nothing else of the others' optimiser moves either. Shape: (clients,) bool.
        moved: new values of parameters that follow the batch and no gradient, such as the running statistics
            of batch normalisation. Shape: (clients, ...).
        record: per-sample values kept from the last local epoch for ``upload``. Shape: (clients, batch, ...).
        terms: parts of the loss to be stored as diagnostics (mean over the round's steps). Shape: (clients,).
    """

    losses: dict[tuple[str, ...], Tensor]
    guides: dict[tuple[str, ...], Tensor] = field(default_factory=dict)
    # a plain default is a function without a name to torch.compile, which then leaves the step as it is
    combine: Callable[[Params, Params], Params] = field(default_factory=lambda: _added)
    only: dict[tuple[str, ...], Tensor] = field(default_factory=dict)
    moved: Params = field(default_factory=dict)
    record: Params = field(default_factory=dict)
    terms: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Ragged:
    """An upload of unequal size per client; traffic counts the lengths, without padding.

    Shape: values (clients, longest, ...), lengths (clients,) rows that a client sends.
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
        round, rounds: this round, from 1 on, and the number of rounds of the run.
    """

    values: Values
    clients: Tensor
    samples: Tensor
    round: int = 1
    rounds: int = 1

    def dense(self, name: str) -> Tensor:
        """Return an upload of equal size for all clients. Shape: (participants, ...)."""
        value = self.values[name]
        assert not isinstance(value, Ragged), f"'{name}' is ragged"
        return value

    def ragged(self, name: str) -> Ragged:
        """Return an upload of unequal size per client."""
        value = self.values[name]
        assert isinstance(value, Ragged), f"'{name}' is not ragged"
        return value

    def weights(self, weighting: Weighting) -> Tensor:
        """Return the participants' weights, which sum to one. Shape: (participants,) float64."""
        if weighting not in get_args(Weighting):
            raise ValueError(
                f"no weighting {weighting!r}; give self.config.weighting, 'uniform' or 'samples'"
            )
        raw = torch.ones_like(self.samples) if weighting == "uniform" else self.samples
        raw = raw.to(torch.float64)
        return raw / raw.sum()

    def mean(self, name: str, weighting: Weighting) -> Tensor:
        """Return the weighted mean of an upload of equal size for all clients. Shape: (...)."""
        return weighted_mean(self.dense(name), self.weights(weighting))


@dataclass(frozen=True)
class Models:
    """The models that are evaluated, which need not be those that are trained.

    Attributes:
        made: returns further parameters of some clients' models, which would be too large for all clients at
            once. Shape: clients (some,) -> (some, ...).

    Shape: ``global_model`` (None if a method has none) with a leading axis of 1, ``clients`` with a
    leading axis of all clients.
    """

    global_model: Params | None
    clients: Params
    made: Callable[[Tensor], Params] = lambda clients: {}

    def of(self, clients: Tensor) -> Params:
        """Return some clients' models; values that are broadcast stay so. Shape: -> (some, ...)."""
        rows = {
            name: value[:1].expand(len(clients), *value.shape[1:])
            if value.stride(0) == 0
            else value[clients.to(value.device)]
            for name, value in self.clients.items()
        }
        return rows | self.made(clients)


@dataclass(frozen=True)
class RunContext:
    """The facts about a run before anything is loaded: enough to refuse a bad config early.

    Attributes:
        client_domain: every client's index into ``domains``, -1 if it mixes them; None: one each.
        descriptions: written descriptions by class, if there are any; the file is read on first access.
        embedded: whether the data set and its descriptions come with FedLens and so never change.
        whole_domain: whether every image of the held-out domain is a test image.
    """

    spec: BackboneSpec
    classes: tuple[str, ...]
    clients: int
    domains: tuple[str, ...]
    template: str
    client_domain: tuple[int, ...] | None = None
    descriptions: Mapping[str, Sequence[str]] = field(default_factory=dict)
    embedded: bool = True
    whole_domain: bool = False


class FedLensMethodError(FedLensError):
    """A fault of a method that every seed meets: it breaks the contract, or its code raised an error."""


def overrides(cls: type[Method], *hooks: str) -> bool:
    """Return whether a method defines any of these hooks itself."""
    return any(getattr(cls, hook) is not getattr(Method, hook) for hook in hooks)


def rate_warnings(method: type[Method], config: Any, context: RunContext) -> list[str]:
    """Warn that a paper's learning rate is too small for the miniature CLIP; serves as ``plan_warnings``."""
    paper: float = method.Config.model_fields["lr"].default
    if context.spec.name not in MINI_MODELS or config.lr != paper or paper >= MINI_RATE:
        return []
    return [
        f"the paper's learning rate {paper:g} suits full-size models; with it the method learns slowly on "
        f"{context.spec.name}. Set lr = {MINI_RATE:g}, as in the demonstration"
    ]
