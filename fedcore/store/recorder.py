"""Records the results of a user's own script, so that they appear in the same tables.

    from fedcore.store import Recorder

    with Recorder("runs.db", method="mine", seed=1, dataset="rotated-digits", experiment="Mine") as run:
        for t in range(1, 11):
            ...  # train
            counts = {("client_a", "client_a"): (correct, total), ("global", "client_a"): (correct, total)}
            run.round(t, accuracy=counts, loss=0.7)

The keys are (model, test set); ``global`` names the global model. If a method has no other model, every
client uses the global one, as in FedLens' own methods.
"""

import json
import sqlite3
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from math import inf, isfinite
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from fedcore.base.errors import FedLensError, first_line
from fedcore.base.events import SPLITS, STAGES, Diagnostic, Entity, RoundFinished, StageName
from fedcore.config import MethodEntry, RunConfig
from fedcore.config.experiment import named_errors
from fedcore.store.database import DatabaseFile, resolve
from fedcore.store.jobs import LostClaim
from fedcore.store.liveness import let_go, new_owner, state
from fedcore.store.own_results import (
    GLOBAL_TEST_SET,
    MAX_ROUND,
    Counts,
    OwnNames,
    checked_counts,
    whole_number,
    without_own_accuracy,
)
from fedcore.store.preparing import prepare_for_writing
from fedcore.store.writer import (
    GLOBAL_NAME,
    ExistingExperiment,
    RunWriter,
    claim_new,
    doubts,
    find_experiment,
    insert_own_runs,
    own_config,
    set_config,
)

MAX_BYTES = 10**15
"""Highest traffic of a round: sums over the rounds of a run stay within 64 bits."""
_FORM = "{(model, test set): (correct, total)}"


class Recorder:
    """One run of the user's own, written to ``runs.db`` round by round.

    Raises:
        FedLensError: if the database cannot be written, if data set or backbone differ from those of the
            joined experiment, or if it has this run already (see ``replace``).
    """

    def __init__(
        self,
        db: str | Path | None = None,
        *,
        method: str,
        seed: int,
        dataset: str | None = None,
        experiment: str | int | None = None,
        label: str | None = None,
        config: Mapping[str, object] | None = None,
        backbone: str | None = None,
        held_out: str | None = None,
        rounds_total: int | None = None,
        domain_sets: Iterable[str] = (),
        domains: Mapping[str, str] | None = None,
        replace: bool = False,
    ) -> None:
        """Begin a run, in a new experiment or in an existing one.

        Args:
            dataset, backbone: their names; default: those of the experiment that is joined.
            experiment: id or name of the experiment to join; an unknown name makes a new one.
            label: name in tables; default: the method's.
            config: hyper-parameters; runs with different ones are not averaged together.
            held_out: the domain that no client trained on, if one was left out.
            domain_sets: names of test sets that belong to a domain and not to a client.
            domains: domain of each client.
            rounds_total: planned number of rounds; default: the rounds recorded so far. When the run
                finishes, its last round becomes its length.
            replace: True if this run may count instead of one with the same method, label, config, seed and
                held-out domain that the experiment has already; the earlier one stays in the experiment.

        Warns:
            UserWarning: for an unknown data set, for a name that several experiments have, and later for
                numbers that are not finite and names that never appear; the run keeps them as notices.
        """
        if not isinstance(method, str) or not method.strip():
            raise FedLensError(f"a run needs the name of its method (got {method!r})", "method")
        for field, value in (("dataset", dataset), ("backbone", backbone)):
            if not isinstance(value, str | None):
                raise FedLensError(f"{value!r} is no name; give a text", field)
        rounds = 0 if rounds_total is None else _checked("rounds_total", rounds_total, MAX_ROUND)
        file = DatabaseFile(resolve(db))
        prepare_for_writing(file.path)
        with named_errors():
            entry = MethodEntry(name=method, label=label or method, config=dict(config or {}))
        owner = new_owner()
        self._names, self._last = OwnNames(_checked_names(domain_sets), _checked_domains(domains)), 0
        with file.writing() as database:
            existing = find_experiment(database, experiment)
            run_config = own_config(
                existing, dataset, backbone, method=entry, seed=seed, rounds=rounds, held_out=held_out
            )
            if existing is not None and not replace:
                _refuse_second(database, file.path, existing, run_config)
            name = None if experiment is None else str(experiment)
            created = insert_own_runs(database, existing, [run_config], name=name, origin="recorder")
            self.experiment_id, (self.run_id,) = created.experiment_id, created.run_ids
            (self._claim,) = claim_new(database, file.path, [self.run_id], owner, None)
        self._config, self._writer = run_config, RunWriter(self._claim)
        self._claim.begin()
        self._given: dict[tuple[int, str, str], frozenset[tuple[str, str]]] = {}
        self._pairs: dict[frozenset[tuple[str, str]], frozenset[tuple[str, str]]] = {}
        self._measured: dict[tuple[int, str], float] = {}
        self._unwritten: list[Entity] = []
        for doubt in doubts(existing, dataset):
            self._warn(doubt)

    def _warn(self, text: str, stacklevel: int = 3) -> None:
        """Warn the script, at its own line, and keep the warning with the run."""
        self._writer.notice(text, repeats_exactly=True)
        warnings.warn(text, stacklevel=stacklevel)

    def round(
        self,
        number: int,
        accuracy: Counts,
        *,
        loss: float | None = None,
        split: Literal["train", "validation", "test"] = "test",
        stage: StageName = "after_aggregation",
        diagnostics: Mapping[str, float] | None = None,
        bytes_up: int | None = None,
        bytes_down: int | None = None,
        seconds: float | None = None,
    ) -> None:
        """Record a round, or another part of it; None leaves a value unchanged.

        A pair of model and test set that the round has already, in this split and stage, is refused, and so
        is another value of a number.

        Args:
            number: round, from 0 (before training).
            accuracy: (model, test set) -> (correct, total); whole numbers, also numpy's or torch's.
            loss: mean training loss of the round.
            stage: whether the models were evaluated before or after the server aggregated them.
            bytes_up, bytes_down: traffic of all clients in this round; None if not measured.
            seconds: duration of the round's training; None if not measured.
        """
        for field, name, known in (("stage", stage, STAGES), ("split", split, SPLITS)):
            if name not in known:
                raise FedLensError(f"no {field} '{name}'; there are: {', '.join(known)}", field)
        try:
            number = whole_number("round", number, MAX_ROUND)
        except ValueError as error:
            raise FedLensError(f"{error}; round 0 is the evaluation before training", "round") from error
        counts = _checked_accuracy(accuracy)
        traffic = {
            name: _checked(name, value, MAX_BYTES)
            for name, value in (("bytes_up", bytes_up), ("bytes_down", bytes_down))
            if value is not None
        }
        measured = {
            name: _number(name, value)
            for name, value in (("loss", loss), ("seconds", seconds))
            if value is not None
        }
        if not 0 <= measured.get("seconds", 0) < inf:
            raise FedLensError(f"seconds is {seconds}; give a number from 0, or leave it out", "seconds")
        if not isinstance(diagnostics, Mapping | None):
            raise FedLensError(f"diagnostics is {diagnostics!r}; give {{name: number}}", "diagnostics")
        values = {name: _number(name, value) for name, value in (diagnostics or {}).items()}
        given: dict[str, float] = {**traffic, **measured}
        given |= {f"diagnostic '{name}'": value for name, value in values.items()}
        self._refuse_repeated((number, split, stage), counts, given)
        self._unwritten += self._names.add(name for pair in counts for name in pair)
        event = RoundFinished(
            round=number,
            cells=tuple(self._names.cells(split, stage, counts)),
            train_loss=measured.get("loss"),
            seconds_train=measured.get("seconds"),
            bytes_up=traffic.get("bytes_up"),
            bytes_down=traffic.get("bytes_down"),
            diagnostics=tuple(Diagnostic(name, value) for name, value in values.items()),
        )
        grown = self._of_length(number) if number > self._config.rounds else None
        with self._alive():
            self._writer.write_round(event, grown=grown, entities=self._unwritten)
            self._unwritten = []  # until then, a script may try again, of a locked database say
            if doubt := self._names.unequal_totals(number, counts):
                self._warn(doubt)
            if unknown := [f"{name} is {value}" for name, value in given.items() if not isfinite(value)]:
                self._warn(f"round {number}: {', '.join(unknown)}, which is recorded as unknown")
        self._config, self._last = grown or self._config, max(self._last, number)
        part = number, split, stage
        pairs = self._given.get(part, frozenset()).union(counts)
        self._given[part] = self._pairs.setdefault(pairs, pairs)  # kept once, as most rounds have the same
        self._measured |= {(number, name): value for name, value in given.items() if isfinite(value)}

    def _refuse_repeated(
        self,
        part: tuple[int, str, str],
        counts: Iterable[tuple[str, str]],
        measured: Mapping[str, float],
    ) -> None:
        for model, test_set in counts:
            if (model, test_set) in self._given.get(part, ()):
                raise FedLensError(
                    f"round {part[0]} has an accuracy of model '{model}' on '{test_set}' already; give each "
                    "cell of a round once",
                    "accuracy",
                )
        for name, value in measured.items():
            before = self._measured.get((part[0], name))
            if before is not None and before != value:
                raise FedLensError(f"round {part[0]}: {name} was {before} and is {value}; give it once")

    def finish(self) -> None:
        """Mark the run as complete: it shows as ``done``."""
        self._finish()

    def _finish(self) -> None:
        with self._alive():
            for doubt in self._doubts_at_end():
                self._warn(doubt, stacklevel=4)
            with self._claim.writing("rounds_total=:rounds", rounds=self._last) as database:
                set_config(database, self.run_id, self._of_length(self._last))
            self._claim.finish("done")
        let_go(self._claim.db, self._claim.owner)

    def fail(self, reason: str) -> None:
        """Mark the run as ``failed``; its rounds stay."""
        with self._alive():
            self._claim.finish("failed", reason)
        let_go(self._claim.db, self._claim.owner)

    @contextmanager
    def _alive(self) -> Iterator[None]:
        """Say in a sentence that the run can no longer be written."""
        try:
            yield
        except LostClaim as error:
            raise FedLensError(
                f"run {self.run_id} has ended, so nothing can be recorded for it: finish or fail was "
                "called, or it was stopped or deleted elsewhere; begin a new Recorder"
            ) from error

    def _doubts_at_end(self) -> Iterator[str]:
        """Yield what a finished run lacks, most likely because of a misspelt name.

        Names of others are no mistake where all recorded names are explained: a script that leaves one
        domain after the other out has one ``domain_sets`` and one ``domains`` for all of its runs.
        """
        names = self._names
        if not names.test_sets:
            yield "the run has ended without an accuracy; call round before finish"
            return
        lost = sorted(names.domain_sets - names.test_sets)
        if lost and names.test_sets - names.domain_sets - names.models:
            yield (
                f"domain_sets names {', '.join(lost)}, but the test sets were "
                f"{', '.join(sorted(names.test_sets))}; correct the name"
            )
        lost = sorted(names.domains.keys() - names.codes.keys())
        if lost and names.codes.keys() - names.domains.keys() - names.domain_sets - {GLOBAL_NAME}:
            yield f"domains names {', '.join(lost)}, but the recorded names were {', '.join(names.codes)}"
        if doubt := without_own_accuracy(names.models, names.test_sets):
            yield doubt

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._finish()
        else:
            self.fail(first_line(error))

    def _of_length(self, rounds: int) -> RunConfig:
        return self._config.model_copy(update={"rounds": rounds})


def _refuse_second(
    database: sqlite3.Connection, db: Path, existing: ExistingExperiment, run: RunConfig
) -> None:
    """Refuse a run of the row and seed of another one, since tables would count the newer one alone."""
    method, config = run.method, run.method.model_dump(mode="json")["config"]
    for row in database.execute(
        "SELECT id, status, owner, heartbeat_at, finished_at, status_text, "
        "json_extract(config, '$.method.config') AS config FROM runs "
        "WHERE experiment_id=? AND label=? AND method=? AND seed=? AND held_out IS ? AND origin<>'engine'",
        [existing.id, method.label, method.name, run.seed, run.held_out],
    ).fetchall():
        now = state(db, row)
        if now in ("running", "stopping", "done") and json.loads(row["config"] or "null") == config:
            raise FedLensError(
                f"experiment '{existing.name}' has '{method.label}' with seed {run.seed} already (run "
                f"{row['id']}, {now}), and tables would count the new run instead; give what has changed as "
                "config=, another label=, or replace=True",
                "method",
            )


def _checked_names(names: Iterable[str]) -> frozenset[str]:
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise FedLensError(f"{names!r} is no list; give the names of test sets, [...]", "domain_sets")
    found = frozenset(names)
    if odd := [name for name in found if not isinstance(name, str)]:
        raise FedLensError(f"{odd[0]!r} is no name; give texts", "domain_sets")
    return found


def _checked_domains(domains: Mapping[str, str] | None) -> dict[str, str]:
    given: object = {} if domains is None else domains
    if not isinstance(given, Mapping) or not all(isinstance(t, str) for pair in given.items() for t in pair):
        raise FedLensError(f"{given!r} is no table of names; give {{client: domain}}", "domains")
    return dict(given)


def _checked(name: str, value: Any, most: int) -> int:
    exact = int(value) if isinstance(value, float) and value.is_integer() else value  # 4.0 * elements, say
    try:
        return whole_number(name, exact, most)
    except ValueError as error:
        raise FedLensError(str(error), name) from error


def _number(name: str, value: Any) -> float:
    try:
        if isinstance(value, (bool, str)):
            raise TypeError("true, false and texts are not numbers")
        return float(value)
    except (
        TypeError,
        ValueError,
        OverflowError,
        RuntimeError,
    ) as error:  # a tensor of several raises the last
        raise FedLensError(f"{name} is {str(value)[:100]!r}; give a number", name) from error


def _checked_accuracy(
    accuracy: Mapping[tuple[str, str], tuple[int, int]],
) -> dict[tuple[str, str], tuple[int, int]]:
    if not isinstance(accuracy, Mapping):
        raise FedLensError(f"accuracy is {accuracy!r}; give {_FORM}", "accuracy")
    checked = {}
    for key, counts in accuracy.items():
        if not (isinstance(key, tuple) and len(key) == 2 and all(isinstance(name, str) for name in key)):
            raise FedLensError(f"{key!r} names no model and test set; give {_FORM}", "accuracy")
        if odd := [name for name in key if not name or name != name.strip()]:
            raise FedLensError(
                f"{odd[0]!r} is no name of a model or test set; give a text without spaces at its ends",
                "accuracy",
            )
        if key[1] == GLOBAL_NAME:
            raise FedLensError(GLOBAL_TEST_SET, "accuracy")
        where = f"model '{key[0]}' on '{key[1]}'"
        try:
            correct, total = counts
        except (TypeError, ValueError):  # a percentage, say
            raise FedLensError(f"{where}: {counts!r}; give counts: {_FORM}", "accuracy") from None
        try:
            checked[key] = checked_counts(correct, total)
        except ValueError as error:
            raise FedLensError(f"{where}: {error}", "accuracy") from error
    return checked
