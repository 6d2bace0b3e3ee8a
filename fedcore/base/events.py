"""The events of a run, and the codes of models, test sets, splits and stages, wherever one is stored.

A job writes events to SQLite, the command line prints them, a test collects them. They hold plain numbers and
need no torch, so that pages and the store can import them.
"""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field, fields
from typing import Literal, NamedTuple

from fedcore.base.progress import Progress

GLOBAL = 0
"""Entity code of the global model.

Clients are 1..C, the further test sets (domains, base and new classes) C+1..C+D; the class set of client c,
if there is one, is C+D+c."""
NO_VALUE = "no value "
"""Beginning of the notice why a run has no accuracy on new classes, or of unseen clients that adapt."""
COUNTS_ONLY = "counts only"
"""Beginning of the notice of an imported run whose accuracies have no predictions behind them."""
CROSS_CLASS_NOT_ANALYSED = (
    "The clients of this run predict among their own classes only. Analyses of single images show one set of "
    "classes for all models, so they are not available for it."
)
"""Reason why single images of a cross-class run cannot be analysed."""
TRAIN, VALIDATION, TEST = 0, 1, 2
SPLITS = ("train", "validation", "test")
"""Code -> name."""
PARTS = {
    "train": TRAIN, "training": TRAIN, "val": VALIDATION, "valid": VALIDATION, "validation": VALIDATION,
    "crossval": VALIDATION, "test": TEST, "testing": TEST,
}  # fmt: skip
"""Names of splits in data sets (folders, columns of a list, parts of a saved set) -> code."""
BEFORE_AGGREGATION, AFTER_AGGREGATION = 0, 1
"""Stages of a round at which models are evaluated."""
StageName = Literal["before_aggregation", "after_aggregation"]
STAGES: tuple[StageName, ...] = ("before_aggregation", "after_aggregation")
"""Code -> name, as files and the command line have it."""


FULL_MATRIX_CLIENTS = 16
"""Up to this many clients, every evaluation computes the full matrix of models by test sets.

With more clients, only the first and the last evaluation do. The others compute the row of the global model,
and every client's model on its own samples and on the domains' test sets."""
MAX_EVALUATED_CLIENTS = 200
"""Up to this many clients, all are evaluated; of more, this many are drawn (``evaluated_clients``)."""


@dataclass(frozen=True)
class Entity:
    """A row or column of the accuracy matrix.

    Attributes:
        code: unique within the run, see ``GLOBAL``.
        kind: ``classes`` is a test set of all samples of one client's classes, see ``ClassSets``; ``base``
            and ``new`` are those of the classes that the run trains on and of the others, see ``LabelSpace``.
            ``unseen`` is a test set of a client that never takes part, and ``adapted`` its own model;
            ``transfer`` is another data set.
        samples: training samples of a client, test samples of any other test set.
        class_counts: training samples of a client by class.
    """

    code: int
    kind: Literal["global", "client", "domain", "classes", "base", "new", "transfer", "unseen", "adapted"]
    name: str
    _: KW_ONLY
    domain: str | None = None
    samples: int | None = None
    class_counts: tuple[int, ...] | None = None


class Cell(NamedTuple):
    """One cell of the accuracy matrix, with counts: the values of one row of the table ``accuracy``.

    A round of 200 clients has 40,000 cells. A tuple is made in a third of a dataclass's time, and the store
    writes it as it is.

    Attributes:
        split, stage, model, test_set: codes, see above.
        loss: mean cross-entropy; None if it is infinite or was not measured.
    """

    split: int
    stage: int
    model: int
    test_set: int
    correct: int
    total: int
    loss: float | None


@dataclass(frozen=True, kw_only=True)
class ClientRound:
    """A participant in a round; ``client`` is its entity code, bytes are those of this round."""

    client: int
    steps: int
    train_loss: float | None
    bytes_up: int
    bytes_down: int


@dataclass(frozen=True)
class Diagnostic:
    """One value of one round, of the run, of a client or of a pair of clients.

    Attributes:
        client_a, client_b: entity codes; -1 if the value belongs to the run, or to one client only.
    """

    name: str
    value: float
    _: KW_ONLY
    client_a: int = -1
    client_b: int = -1


@dataclass(frozen=True, kw_only=True)
class Started:
    """The run is loaded and begins to train; ``environment`` is stored and reused when it resumes."""

    entities: tuple[Entity, ...]
    rounds_total: int
    environment: dict[str, object]


@dataclass(frozen=True, kw_only=True)
class RoundMeasures:
    """Loss, seconds and traffic of one round: the columns of the table ``rounds``; None: not measured."""

    train_loss: float | None = None
    seconds_train: float | None = None
    seconds_aggregate: float | None = None
    seconds_evaluate: float | None = None
    scalars_up: int | None = None
    scalars_down: int | None = None
    bytes_up: int | None = None
    bytes_down: int | None = None


MEASURES = tuple(field.name for field in fields(RoundMeasures))
"""Names of these columns, in the table's order, in which a round's digest covers them."""


@dataclass(frozen=True, kw_only=True)
class RoundFinished(RoundMeasures):
    """All results of one round, to be written in one transaction; round 0 evaluates before training.

    Attributes:
        checkpoint: the file that resumes after this round; it is on the disk already.
    """

    round: int
    clients: tuple[ClientRound, ...] = ()
    cells: tuple[Cell, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()
    checkpoint: str | None = None


@dataclass(frozen=True)
class Notice:
    """A line for the log, e.g. that a client has no prototype, or that the chunk was halved.

    Attributes:
        repeats_exactly: False if the cause may change the run's bits.
        detail: further text for the log only.
        fitted: what is computed at once since a GPU's memory was used up; it becomes part of the run's
            environment, which a resumed run and the next seed of the same setting reuse.
    """

    message: str
    repeats_exactly: bool = True
    detail: str = ""
    fitted: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Finished:
    """All rounds are done."""

    rounds: int


Event = Started | Progress | RoundFinished | Notice | Finished
