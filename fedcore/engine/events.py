"""What a run tells whoever listens: the worker writes it to
SQLite, the command line draws it, a test collects it.

Torch-free: events hold plain numbers, so that the page process and the store can import them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from fedcore.progress import Progress

GLOBAL = 0
"""Entity code of the global model; clients are 1..C, domains C+1..C+D, and the class set of client c, where
there is one, C+D+c."""

Point = Literal["local", "broadcast"]


@dataclass(frozen=True)
class Entity:
    """A row or column of the accuracy matrix. ``code`` is unique within the run.

    kind ``classes``: a test set of all samples of the classes that one client trains on, see ``ClassSets``.
    """

    code: int
    kind: Literal["global", "client", "domain", "classes"]
    name: str
    domain: str | None = None
    samples: int | None = None
    class_counts: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Cell:
    """One cell of the accuracy matrix, with counts. split: 0
    train, 1 validation, 2 test. model, test_set: codes.
    """

    split: int
    point: Point
    model: int
    test_set: int
    correct: int
    total: int
    loss: float | None


@dataclass(frozen=True)
class ClientRound:
    """One participant of one round. client: entity code; bytes are per round."""

    client: int
    steps: int
    train_loss: float | None
    bytes_up: int
    bytes_down: int


@dataclass(frozen=True)
class Diagnostic:
    """One figure of one round; a and b are entity codes, -1 where it has fewer indices."""

    name: str
    value: float
    a: int = -1
    b: int = -1


@dataclass(frozen=True)
class Started:
    """The run is loaded and will train. ``environment`` is stored and reused on resume."""

    entities: tuple[Entity, ...]
    rounds_total: int
    environment: dict[str, object]


@dataclass(frozen=True)
class RoundFinished:
    """Everything of one round; written in one transaction. Round 0 is the evaluation before training.

    ``checkpoint`` is the file that resumes after this round (already on disk).
    """

    round: int
    train_loss: float | None
    seconds_train: float
    seconds_aggregate: float
    seconds_evaluate: float
    scalars_up: int
    scalars_down: int
    bytes_up: int
    bytes_down: int
    clients: tuple[ClientRound, ...]
    cells: tuple[Cell, ...]
    diagnostics: tuple[Diagnostic, ...] = ()
    checkpoint: str | None = None


@dataclass(frozen=True)
class Notice:
    """Something worth a line in the log, e.g. a client with no prototype, or a halved chunk.

    Attributes:
        detail: follows the message in the log, and there alone.
    """

    message: str
    repeats_exactly: bool = field(default=True)
    detail: str = ""


@dataclass(frozen=True)
class Finished:
    """All rounds are done."""

    rounds: int


Event = Started | Progress | RoundFinished | Notice | Finished
