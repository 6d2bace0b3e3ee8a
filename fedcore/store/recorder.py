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
import operator
import sqlite3
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import inf, isfinite
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from fedcore.base.errors import FedLensError, did_you_mean, first_line, reading_stored
from fedcore.base.events import GLOBAL, SPLITS, STAGES, Cell, Diagnostic, Entity, RoundFinished, StageName
from fedcore.base.progress import first_few
from fedcore.config import BackboneConfig, DataConfig, Experiment, MethodEntry, PartitionConfig, RunConfig
from fedcore.config.experiment import named_errors
from fedcore.config.values import LARGEST_INTEGER
from fedcore.data import catalog
from fedcore.store.database import DatabaseFile, resolve, writing
from fedcore.store.jobs import LostClaim
from fedcore.store.liveness import let_go, new_owner, state
from fedcore.store.preparing import prepare_for_writing
from fedcore.store.runs import Runs
from fedcore.store.writer import (
    Created,
    RunWriter,
    claim_new,
    insert_entities,
    insert_experiment,
    insert_runs,
    set_config,
)

OWN_DATA = "own data"
"""The data set of results without one; if they join an experiment, they take that of the experiment."""
OWN_BACKBONE = "own backbone"
MAX_ROUND = 100_000
GLOBAL_NAME = "global"
"""Name of the global model in a script and in a CSV file."""
NAMED = 5
"""Names that a sentence repeats."""
MAX_COUNT = 10**12
"""Highest count of samples: sums over all cells of a database stay within 64 bits."""
MAX_NAME = 1000
"""Maximum length of the name of a method, a model or a test set, in characters."""


@dataclass(frozen=True)
class ExistingExperiment:
    """An experiment of the store; runs that join it take the setting of ``model``, its first run.

    Attributes:
        namesakes: ids of older experiments with the same name, if it was found by name.
    """

    id: int
    name: str
    model: RunConfig
    namesakes: tuple[int, ...] = ()


def find_experiment(database: sqlite3.Connection, experiment: str | int | None) -> ExistingExperiment | None:
    """Return the experiment with a name (the newest of several) or an id, which may be given as text."""
    if experiment is None:
        return None
    row = _find_by(database, "e.name", experiment) if isinstance(experiment, str) else None
    if row is None and (isinstance(experiment, int) or experiment.isdecimal()):
        row = _find_by(database, "e.id", min(int(experiment), LARGEST_INTEGER))
    if row is None and isinstance(experiment, int):
        raise FedLensError(f"no experiment {experiment}; `fedlens list` shows them", "experiment")
    return row


def _find_by(database: sqlite3.Connection, column: str, value: str | int) -> ExistingExperiment | None:
    rows = database.execute(
        "SELECT e.id, e.name, r.config FROM experiments e JOIN runs r ON r.id = "
        f"(SELECT min(id) FROM runs WHERE experiment_id = e.id) WHERE {column}=? ORDER BY e.id DESC",
        [value],
    ).fetchall()
    if not rows:
        return None
    row, older = rows[0], tuple(other["id"] for other in rows[1:])
    with reading_stored(f"experiment {row['id']}"):
        return ExistingExperiment(row["id"], row["name"], RunConfig.model_validate_json(row["config"]), older)


def whole_number(name: str, value: Any, most: int) -> int:
    """Convert a whole number from 0 to ``most`` to a Python integer; it may be of numpy or a tensor.

    Raises:
        ValueError: for any other value, also for a float such as 93.0, which may be a percentage.
    """
    number = -1
    if str(getattr(value, "dtype", type(value).__name__)).removeprefix("torch.") != "bool":
        with suppress(TypeError, ValueError):
            number = operator.index(value)
    if not 0 <= number <= most:
        raise ValueError(f"{name} is '{value}'; give a whole number from 0 to {most:,}")
    return number


def checked_counts(correct: Any, total: Any) -> tuple[int, int]:
    """Return counts of correct samples and all samples as whole numbers.

    Raises:
        ValueError: unless 0 <= correct <= total and 1 <= total.
    """
    right = whole_number("correct", correct, MAX_COUNT)
    of = whole_number("total", total, MAX_COUNT)
    if of < 1 or right > of:
        raise ValueError(f"{right} correct of {of}; total is at least 1, and correct from 0 to total")
    return right, of


def doubts(existing: ExistingExperiment | None, dataset: str | None) -> list[str]:
    """Return a sentence for each name that may not be the one that the user meant.

    An unknown data set is not refused, because FedLens cannot know the names of the user's own data sets.
    """
    found = []
    if existing is None and dataset is not None and dataset not in (OWN_DATA, *catalog.names()):
        hint = did_you_mean(dataset, catalog.names(), "`fedlens data list` shows those that it knows")
        found.append(
            f"FedLens knows no data set '{dataset}', so these results compare only with others under this "
            f"name; {hint}"
        )
    if existing is not None and existing.namesakes:
        found.append(
            f"{len(existing.namesakes) + 1} experiments are called '{existing.name}'; the newest was chosen, "
            f"number {existing.id} (the others: {', '.join(map(str, existing.namesakes))}). Give a number "
            "instead of the name to choose another one"
        )
    return found


def without_own_accuracy(models: Iterable[str], test_sets: Iterable[str]) -> str | None:
    """Return a sentence if no model can have an accuracy on its own test set; None if one can."""
    of_models, of_sets = (sorted(set(names)) for names in (models, test_sets))
    if {GLOBAL_NAME, *of_sets} & set(of_models):
        return None
    return (
        "no model has the name of a test set, so there is no personal accuracy: the models were "
        f"{first_few(of_models, NAMED)}, the test sets {first_few(of_sets, NAMED)}; '{GLOBAL_NAME}' is the "
        "name of the global model"
    )


def unequal_totals(cells: Iterable[tuple[str, str, int]]) -> str | None:
    """Return a sentence if two models were tested on different numbers of samples of one test set.

    Args:
        cells: model, test set and total of an evaluation.
    """
    seen: dict[str, tuple[str, int]] = {}
    for model, test_set, total in cells:
        first, samples = seen.setdefault(test_set, (model, total))
        if samples != total:
            return (
                f"test set '{test_set}' has {samples} samples for model '{first}' and {total} for '{model}', "
                "so their accuracies are of different samples"
            )
    return None


def insert_own_runs(
    database: sqlite3.Connection,
    existing: ExistingExperiment | None,
    configs: Sequence[RunConfig],
    *,
    name: str | None,
    origin: Literal["recorder", "import"],
    identity: str | None = None,
    tag: str | None = None,
) -> Created:
    """Insert runs into an existing experiment, or into a new one.

    Args:
        configs: see ``own_config``.
        name, identity, tag: name, uuid and tag of the new experiment.
    """
    with named_errors():
        if existing is None:  # all of its runs have the first one's setting
            first = configs[0]
            experiment = Experiment(
                name=name or f"{first.method.name} on {first.data.name}",
                data=first.data,
                partition=first.partition,
                backbone=first.backbone,
                methods=tuple({run.method.name: run.method for run in configs}.values()),
                rounds=max(run.rounds for run in configs),
                seeds=tuple(dict.fromkeys(run.seed for run in configs)),
                tags=(tag,) if tag else (),
            )
            experiment_id = insert_experiment(database, experiment, identity)
        else:
            experiment_id = existing.id
    return Created(experiment_id, insert_runs(database, experiment_id, configs, origin=origin))


def own_config(
    existing: ExistingExperiment | None,
    dataset: str | None = None,
    backbone: str | None = None,
    **given: object,
) -> RunConfig:
    """Return the config of a run that was trained elsewhere, with the setting of an existing experiment.

    Args:
        dataset, backbone: names; None (or ``OWN_DATA``) if the user gave none.
        given: method, seed, rounds (the last one, or their number) and held-out domain.
    """
    if existing is None:
        data, model = DataConfig(name=dataset or OWN_DATA), BackboneConfig(name=backbone or OWN_BACKBONE)
        setting = {"data": data, "partition": PartitionConfig(), "backbone": model, "participation": 1.0}
    else:
        setting = dict(existing.model)
        for field, name, default in (("dataset", dataset, OWN_DATA), ("backbone", backbone, OWN_BACKBONE)):
            needed = existing.model.data.name if field == "dataset" else existing.model.backbone.name
            if name not in (None, default, needed):
                raise FedLensError(
                    f"'{name}', but experiment '{existing.name}' is on '{needed}': they would not compare; "
                    "leave it out, or name another experiment",
                    field,
                )
    with named_errors():
        return RunConfig.model_validate({**setting, **given})


Counts = tuple[int, int]
GLOBAL_TEST_SET = (
    f"a test set cannot be called '{GLOBAL_NAME}', which is the global model's name: the pair would count as "
    "a client's own model and test set; rename it"
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
        origin: Literal["recorder", "import"] = "recorder",
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
        self._domain_sets, self._domains = _checked_names(domain_sets), _checked_domains(domains)
        self._codes: dict[str, int] = {GLOBAL_NAME: GLOBAL}
        self._models: set[str] = set()
        self._last = 0
        with file.writing() as database:
            existing = find_experiment(database, experiment)
            run_config = own_config(
                existing, dataset, backbone, method=entry, seed=seed, rounds=rounds, held_out=held_out
            )
            if existing is not None and not replace:
                _refuse_second(database, file.path, existing, run_config)
            name = None if experiment is None else str(experiment)
            created = insert_own_runs(database, existing, [run_config], name=name, origin=origin)
            self.experiment_id, (self.run_id,) = created.experiment_id, created.run_ids
            (self._claim,) = claim_new(database, file.path, [self.run_id], owner, None)
            insert_entities(database, self.run_id, (Entity(GLOBAL, "global", GLOBAL_NAME),))
        self._config = Runs(file).config(self.run_id)
        self._writer = RunWriter(self._claim)
        self._claim.begin()
        self._test_sets, self._doubted = set[str](), False
        self._given: dict[tuple[int, str, str], list[frozenset[tuple[str, str]]]] = {}
        self._pairs: dict[frozenset[tuple[str, str]], frozenset[tuple[str, str]]] = {}
        self._measured: dict[tuple[int, str], float] = {}
        for doubt in doubts(existing, dataset):
            self._warn(doubt)

    def _warn(self, text: str, stacklevel: int = 3) -> None:
        """Warn the script, at its own line, and keep the warning with the run."""
        self._writer.notice(text, repeats_exactly=True)
        warnings.warn(text, stacklevel=stacklevel)

    def round(
        self,
        number: int,
        accuracy: Mapping[tuple[str, str], Counts],
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
        if stage not in STAGES:
            raise FedLensError(f"no stage '{stage}'; there are: {', '.join(STAGES)}", "stage")
        if split not in SPLITS:
            raise FedLensError(f"no split '{split}'; there are: {', '.join(SPLITS)}", "split")
        try:
            number = whole_number("round", number, MAX_ROUND)
        except ValueError as error:
            raise FedLensError(f"{error}; round 0 is the evaluation before training", "round") from error
        counts = _checked_accuracy(accuracy)
        up, down = (
            None if value is None else _checked(name, value, MAX_BYTES)
            for name, value in (("bytes_up", bytes_up), ("bytes_down", bytes_down))
        )
        mean, seconds = (
            None if value is None else _number(name, value)
            for name, value in (("loss", loss), ("seconds", seconds))
        )
        if seconds is not None and not 0 <= seconds < inf:
            raise FedLensError(f"seconds is {seconds}; give a number from 0, or leave it out", "seconds")
        if not isinstance(diagnostics, Mapping | None):
            raise FedLensError(f"diagnostics is {diagnostics!r}; give {{name: number}}", "diagnostics")
        values = tuple(Diagnostic(name, _number(name, value)) for name, value in (diagnostics or {}).items())
        numbers = {"loss": mean, **{f"diagnostic '{value.name}'": value.value for value in values}}
        unknown = [f"{name} is {value}" for name, value in numbers.items() if not isfinite(value or 0.0)]
        measured = {"seconds": seconds, "bytes_up": up, "bytes_down": down, **numbers}
        self._refuse_repeated((number, split, stage), counts, measured)
        new = self._name_all(counts)
        place = SPLITS.index(split), STAGES.index(stage)
        cells = [
            Cell(*place, self._codes[m], self._codes[t], correct, total, None)
            for (m, t), (correct, total) in self._with_personal(counts).items()
        ]
        if new:
            with writing(self._claim.db) as database:
                insert_entities(database, self.run_id, tuple(new))
        event = RoundFinished(
            round=number,
            cells=tuple(cells),
            train_loss=mean,
            seconds_train=seconds,
            bytes_up=up,
            bytes_down=down,
            diagnostics=values,
        )
        grown = self._of_length(number) if number > self._config.rounds else None
        with self._alive():
            self._writer.write_round(event, grown=grown)
            doubt = unequal_totals(
                (model, test_set, total) for (model, test_set), (_, total) in counts.items()
            )
            if doubt and not self._doubted:
                self._doubted = True
                self._warn(f"round {number}: {doubt}")
            if unknown:
                self._warn(f"round {number}: {', '.join(unknown)}, which is recorded as unknown")
        self._config, self._last = grown or self._config, max(self._last, number)
        self._test_sets.update(test_set for _, test_set in counts)
        pairs = frozenset(counts)  # kept once, as most rounds have the same ones
        self._given.setdefault((number, split, stage), []).append(self._pairs.setdefault(pairs, pairs))
        self._measured |= {(number, n): v for n, v in measured.items() if v is not None and isfinite(v)}

    def _refuse_repeated(
        self,
        part: tuple[int, str, str],
        counts: Iterable[tuple[str, str]],
        measured: Mapping[str, float | None],
    ) -> None:
        for model, test_set in counts:
            if any((model, test_set) in given for given in self._given.get(part, ())):
                raise FedLensError(
                    f"round {part[0]} has an accuracy of model '{model}' on '{test_set}' already; give each "
                    "cell of a round once",
                    "accuracy",
                )
        for name, value in measured.items():
            before = self._measured.get((part[0], name))
            if None not in (before, value) and before != value:
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
        if not self._test_sets:
            yield "the run has ended without an accuracy; call round before finish"
            return
        names = ", ".join(sorted(self._test_sets))
        lost = sorted(self._domain_sets - self._test_sets)
        if lost and self._test_sets - self._domain_sets - self._models:
            yield f"domain_sets names {', '.join(lost)}, but the test sets were {names}; correct the name"
        lost = sorted(self._domains.keys() - self._codes.keys())
        if lost and self._codes.keys() - self._domains.keys() - self._domain_sets - {GLOBAL_NAME}:
            yield f"domains names {', '.join(lost)}, but the recorded names were {', '.join(self._codes)}"
        if doubt := without_own_accuracy(self._models, self._test_sets):
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

    def _with_personal(self, accuracy: Mapping[tuple[str, str], Counts]) -> dict[tuple[str, str], Counts]:
        """Use the global model for every client if there is no other, as FedLens' own methods do."""
        found = dict(accuracy)
        if self._models <= {GLOBAL_NAME}:
            found.update({(t, t): n for (_, t), n in accuracy.items() if t not in self._domain_sets})
        return found

    def _name_all(self, accuracy: Mapping[tuple[str, str], Counts]) -> list[Entity]:
        """Give new names the next entity codes, in order of appearance."""
        self._models.update(model for model, _ in accuracy)
        names = dict.fromkeys(name for pair in accuracy for name in pair if name not in self._codes)
        new = []
        for code, name in enumerate(names, len(self._codes)):
            self._codes[name] = code
            if name in self._domain_sets:
                new.append(Entity(code, "domain", name, domain=name))
            else:
                new.append(Entity(code, "client", name, domain=self._domains.get(name)))
        return new


def _refuse_second(
    database: sqlite3.Connection, db: Path, existing: ExistingExperiment, run: RunConfig
) -> None:
    """Refuse a run of the row and seed of another one, since tables would count the newer one alone."""
    method, config = run.method, run.method.model_dump(mode="json")["config"]
    for row in database.execute(
        "SELECT id, status, owner, heartbeat_at, json_extract(config, '$.method.config') AS config FROM runs "
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


def _checked_accuracy(accuracy: Mapping[tuple[str, str], Counts]) -> dict[tuple[str, str], Counts]:
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
