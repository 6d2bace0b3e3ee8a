"""Hyper-parameters: how a method declares them, and those that every trained method has."""

from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal, Self, TypedDict, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from typing_extensions import Unpack

T = TypeVar("T")

Optimiser = Literal["sgd", "adam", "adamw"]
Weighting = Literal["uniform", "samples"]
RateSchedule = Literal["constant", "cosine"]
Arithmetic = Literal["fp32", "tf32", "bf16"]
LearningRate = Annotated[float, Field(ge=0, le=100)]
WeightDecay = Annotated[float, Field(ge=0, le=10)]
Momentum = Annotated[float, Field(ge=0, lt=1)]
LossWeight = Annotated[float, Field(ge=0, le=1000)]
BatchSize = Annotated[int, Field(ge=1, le=65536)]
Epochs = Annotated[int, Field(ge=1, le=1000)]
Rank = Annotated[int, Field(ge=1, le=256)]
PromptLength = Annotated[int, Field(ge=1, le=75)]
"""Types of fields that several methods declare, with their bounds. CLIP's [SOS] and [EOT] leave a prompt
75 places of 77, and the class names need some of those (``check_room``)."""

HALF_COSINE = "Learning rate over the rounds: constant, or falling to 0 as half a cosine (authors' code)"
"""Description of ``schedule`` in methods whose authors' code has CoOp's schedule."""


FROM_TEXTS = "text"
"""Start of a classifier that needs a vector of each class, from a text encoder or given with the data."""
LEARNED_PROMPT = "prompt"
"""Option that needs a text tower."""
UNTRAINED_CLASSES = {FROM_TEXTS: "", "class_means": "its classifier starts from means of training embeddings"}
"""Start of a classifier -> why it has no value on other classes; any other start is drawn at random."""
CLASS_MEANS = (
    "class_means, the unit vectors of the classes' mean training embeddings, which each client sends once "
    "with its counts (ours; it needs no text tower, and this upload is not in the traffic)"
)


class Bounds(TypedDict, total=False):
    """Bounds of a number or a length, as pydantic names them."""

    ge: float
    gt: float
    le: float
    lt: float
    min_length: int
    max_length: int


def check_number(value: Any, annotation: Any) -> None:
    """Refuse true, false and quoted numbers, also in a list, for numbers: pydantic would convert them."""
    for item in value if isinstance(value, (list, tuple)) else (value,):
        if not (isinstance(item, bool) or (isinstance(item, str) and _is_number(item))):
            continue
        if _holds(annotation, int, float) and not _holds(annotation, type(item)):
            if isinstance(item, str):
                raise ValueError("a text is not a number; give a number, without quotes")
            raise ValueError(f"{str(item).lower()} is not a number; give a number")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _holds(annotation: Any, *kinds: type) -> bool:
    """Return whether an annotation names one of some types, or a value of one within ``Literal``."""
    is_one = annotation in kinds or type(annotation) in kinds
    return is_one or any(_holds(part, *kinds) for part in get_args(annotation))


class SearchRange(BaseModel):
    """Values among which a search draws a hyper-parameter: a range, a factor, or choices."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    low: int | float | None = Field(None, description="Lowest value of a range")
    high: int | float | None = Field(None, description="Highest value of a range")
    log: bool = Field(False, description="Draw the logarithm of the value uniformly, not the value")
    factor: float | None = Field(
        None,
        gt=1,
        description="A logarithmic range around the value as written, from value / factor to value * factor",
    )
    choices: tuple[bool | int | float | str, ...] = Field(
        (), description="Values of which each is drawn as often as any other"
    )

    @field_validator("low", "high", "factor", mode="before")
    @classmethod
    def _number(cls, value: Any) -> Any:
        check_number(value, float)
        return value

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        between = self.low is not None and self.high is not None
        partly = (self.low is None) != (self.high is None)
        if partly or between + (self.factor is not None) + bool(self.choices) != 1:
            raise ValueError("give either low and high, or factor, or choices")
        if self.low is not None and self.high is not None:
            if not self.low < self.high:
                raise ValueError("low must be below high")
            if self.log and self.low <= 0:
                raise ValueError("a logarithmic range begins above 0; give a larger low, or log = false")
        elif self.log:
            raise ValueError("log belongs to a range; give low and high, or leave it out")
        return self


TENFOLD = SearchRange(factor=10)
"""From a tenth of the value as written to ten times it: for learning rates and weights of losses."""


def hyper(
    default: T,
    description: str,
    *,
    title: str | None = None,
    words: dict[str, str] | None = None,
    empty: str | None = None,
    search: SearchRange | None = None,
    **bounds: Unpack[Bounds],
) -> T:
    """Declare a hyper-parameter: ``strength: float = hyper(0.5, "How far ...", ge=0, le=1)``.

    It is a pydantic field, and ``pydantic.Field`` serves as well. Forms, tables, docs/methods/ and the
    schema of TOML files are made from it.

    Args:
        default: the paper's value, if it states one.
        description: the help text. Name the source of the default and what each option does.
        title: its name within a sentence ("learning rate"); the field's name if omitted.
        words: how options read in tables ({"fresh": "new each round"}).
        empty: the meaning of None ("no limit").
        search: where a search looks for its best value; without one it keeps its value.
    """
    ranged = None if search is None else search.model_dump(mode="json", exclude_defaults=True)
    options: dict[str, Any] = {"words": words, "empty": empty, "search": ranged}
    extra = {name: value for name, value in options.items() if value is not None}
    info: T = Field(default, title=title, description=description, json_schema_extra=extra or None, **bounds)
    return info


@dataclass(frozen=True)
class LeftOpen:
    """What a paper leaves open about its method: FedLens reads it in one way, and others are admissible.

    The table on the method's page, a caveat of printed values and a choice of readings are made from it.

    Attributes:
        why: what the paper says or does not say, as a clause.
        ours: the reading of FedLens in words.
        others: label -> fields of the config in another reading. The first field is the one that is open.
        values: those of that field with which it is open; empty for its default.
        unless: field -> values; with one of them in each of these fields, no reading changes anything. Of the
            federation these are ``participation``, ``held_out`` (bool) and ``client_per_domain`` (bool: each
            domain is one client).
    """

    name: str
    why: str
    ours: str
    others: dict[str, dict[str, Any]]
    values: tuple[Any, ...] = ()
    unless: dict[str, tuple[Any, ...]] = field(default_factory=dict)

    @property
    def caveat(self) -> str:
        """The reason against comparing a printed value with runs of our reading."""
        return f"{self.name}: {self.why}; here {self.ours}"

    @property
    def fields(self) -> list[str]:
        return list(dict.fromkeys(name for of in self.others.values() for name in of))

    def concerns(self, config: dict[str, Any]) -> bool:
        """Return whether a variant of the method, by all of its fields, leaves it open."""
        idle = self.unless and all(config.get(name) in values for name, values in self.unless.items())
        changes = any(config | of != config for of in self.others.values())
        return changes and not idle and config[self.fields[0]] in self.values


OPTIMISER_STATE = LeftOpen(
    "optimiser state",
    "the paper does not say whether it survives a round",
    "new each round",
    {"kept across rounds": {"optimiser_state": "kept"}},
)


class MethodConfig(BaseModel):
    """Hyper-parameters that every trained method has; each method overrides defaults with its paper's.

    A field that overrides another inherits the title, words and search range that it leaves out.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    left_open: ClassVar[tuple[LeftOpen, ...]] = ()
    """What the method's paper does not say about its fields."""

    optimiser: Optimiser = hyper(
        "sgd", "Local optimiser", words={"sgd": "SGD", "adam": "Adam", "adamw": "AdamW"}
    )
    lr: LearningRate = hyper(
        1e-3,
        "Learning rate of the local optimiser",
        title="learning rate",
        search=TENFOLD,
    )
    schedule: RateSchedule = hyper(
        "constant",
        "Learning rate over the rounds: constant, or falling to 0 as half a cosine (CoOp's code)",
        title="learning rate schedule",
        words={"cosine": "cosine decay"},
    )
    warmup_rounds: int = hyper(
        0,
        "First rounds, trained at a learning rate of at most 1e-5 (CoOp's code: one epoch)",
        title="warm-up rounds",
        ge=0,
        le=100_000,
    )
    momentum: Momentum = hyper(0.9, "SGD momentum; Adam does not use it")
    weight_decay: WeightDecay = hyper(5e-4, "Weight decay of the local optimiser")
    batch_size: BatchSize = hyper(32, "Samples in a local batch")
    local_epochs: Epochs = hyper(1, "Passes over a client's data in one round (E)")
    optimiser_state: Literal["fresh", "kept"] = hyper(
        "fresh",
        "State of the local optimiser: new each round, or kept by the client across rounds",
        words={"fresh": "new each round", "kept": "kept across rounds"},
    )
    weighting: Weighting = hyper(
        "uniform",
        "How the server averages clients: equally, or weighted by their sample counts",
        title="client weights",
        words={"uniform": "all alike", "samples": "by sample count"},
    )
    proximal: LossWeight = hyper(
        0.0,
        "FedProx's mu: the term (mu/2) |w - w_t|^2 holds a client near the parameters w_t that "
        "it received; 0 turns it off",
        title="proximal weight",
    )
    arithmetic: Arithmetic = hyper(
        "fp32",
        "Precision of matrix products in local training: fp32; tf32 (GPUs only) and bf16 are faster but "
        "less accurate, most of all in FedDEAP and SDFed; evaluation is in fp32",
    )
    compiled: bool = hyper(
        False,
        "Compile the training step of full batches with torch.compile, on a GPU into CUDA graphs: fewer "
        "launches after a minute or two, and other last digits",
        title="compiled steps",
    )

    @property
    def adam(self) -> tuple[float, float, float]:
        """beta_1, beta_2 and epsilon of Adam and AdamW; a method with others overrides this."""
        return 0.9, 0.999, 1e-8


def search_ranges(config: type[BaseModel]) -> dict[str, SearchRange]:
    """Return the fields of a method that a search varies, with the ranges that it or its bases declare."""
    found: dict[str, SearchRange] = {}
    for model in reversed(config.__mro__):  # the last to declare one is the nearest
        for name, info in getattr(model, "model_fields", {}).items():
            if isinstance(extra := info.json_schema_extra, dict) and "search" in extra:
                found[name] = SearchRange.model_validate(extra["search"])
    return found


def left_open(config: type[BaseModel], given: dict[str, Any]) -> list[LeftOpen]:
    """Return what a variant of a method leaves open; ``given``: its fields that differ from the defaults."""
    defaults = {name: info.default for name, info in config.model_fields.items()}
    points: tuple[LeftOpen, ...] = getattr(config, "left_open", ())
    at_default = (replace(p, values=p.values or (defaults[p.fields[0]],)) for p in points)
    return [point for point in at_default if point.concerns(defaults | given)]
