"""What ``queries`` hands back: plain rows, named and typed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from fedcore.config import Experiment


@dataclass(frozen=True)
class RunRow:
    """One run as the pages show it. Times are seconds since 1970, accuracies shares of one.

    ``state`` is the truth: ``status`` as stored, except that a run whose process is gone shows as
    ``interrupted`` (``stopped`` where a stop had been asked for) even before anybody has written so.
    """

    id: int
    experiment_id: int
    method: str
    label: str
    seed: int
    held_out: str | None
    group_hash: str
    origin: str
    state: str
    status: str
    device: str | None
    attempt: int
    created_at: float
    started_at: float | None
    finished_at: float | None
    heartbeat_at: float | None
    rounds_total: int
    rounds_done: int
    last_test: float | None
    best_round: int | None
    best_test: float | None
    worst_client: float | None
    message: str | None
    notices: tuple[dict[str, Any], ...]
    reason: str | None

    @property
    def ended(self) -> bool:
        """Neither queued nor running."""
        return self.state in ("done", "failed", "stopped", "interrupted")


@dataclass(frozen=True)
class ExperimentRow:
    """One experiment with its runs, oldest first."""

    id: int
    token: str
    name: str
    created_at: float
    config: Experiment
    notes: str
    tags: tuple[str, ...]
    archived: bool
    runs: tuple[RunRow, ...]


class WaitingRow(NamedTuple):
    """A queued run. need: most bytes that a run of its setting has taken, None where none was measured."""

    id: int
    experiment: str
    label: str
    seed: int
    held_out: str | None
    device_asked: str
    rounds_total: int
    need: int | None


class EntityRow(NamedTuple):
    """A model or test set: global model (0), clients, domains, class sets. class_counts: training samples."""

    entity: int
    kind: str
    name: str
    domain: str | None
    samples: int | None
    class_counts: tuple[int, ...] | None


class HeatCell(NamedTuple):
    """One cell of a run's accuracy matrix; model and test_set are entity codes."""

    model: int
    test_set: int
    correct: int
    total: int
    loss: float | None


class CurvePoint(NamedTuple):
    """Means of one round (see ``rounds.SCORES``); shares of one, None where a method has no such model."""

    run_id: int
    round: int
    personal_mean: float | None
    personal_weighted: float | None
    personal_worst: float | None
    global_mean: float | None
    classes_mean: float | None


class OwnAccuracy(NamedTuple):
    """One client's own model on its own samples in one round."""

    round: int
    client: int
    correct: int
    total: int
    loss: float | None


class RoundRow(NamedTuple):
    """Loss, seconds and traffic of one round."""

    run_id: int
    round: int
    train_loss: float | None
    seconds_train: float | None
    seconds_aggregate: float | None
    seconds_evaluate: float | None
    scalars_up: int | None
    scalars_down: int | None
    bytes_up: int | None
    bytes_down: int | None


class ClientRoundRow(NamedTuple):
    """One participant of one round."""

    round: int
    client: int
    steps: int
    train_loss: float | None
    bytes_up: int | None
    bytes_down: int | None


class DiagnosticMean(NamedTuple):
    """One figure of one round over the clients that have it; ``count`` is 1 for a figure without an index."""

    run_id: int
    round: int
    mean: float
    low: float
    high: float
    count: int


class DiagnosticRow(NamedTuple):
    """One figure of one round; a and b are entity codes, -1 where it has fewer indices."""

    round: int
    a: int
    b: int
    value: float | None


class NamedCell(NamedTuple):
    """An accuracy cell with names, for tables and exports."""

    run_id: int
    split: int
    point: int
    round: int
    model: str
    model_kind: str
    test_set: str
    test_set_kind: str
    domain: str | None
    correct: int
    total: int
    loss: float | None
