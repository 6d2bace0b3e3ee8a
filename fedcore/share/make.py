"""Make the bundle of a comparison: a database of its runs, predictions, splits, and what follows.

Predictions come from checkpoints, and splits from the data.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from fedcore.base import devices
from fedcore.base.errors import FedLensError
from fedcore.base.files import ASSETS
from fedcore.base.progress import Progress, Work
from fedcore.config import RunConfig
from fedcore.engine.checkpoint import newest_intact
from fedcore.engine.environment import commits
from fedcore.jobs.analysis import why_no_checkpoint
from fedcore.jobs.handlers import Job
from fedcore.results import exports
from fedcore.results.metrics import RULES
from fedcore.share.archive import (
    CLASS_SETS,
    EVIDENCE,
    README_NAME,
    RUNS,
    SAMPLE_COLUMNS,
    BundleManifest,
    Evidence,
    LabelSpaceRecord,
    PredictionFile,
    PredictionRow,
    RunEvidence,
    Sample,
    packed,
    prediction_file,
    read_bundle,
)
from fedcore.share.checked import CheckedComparison, ComparisonChoices, checked_comparison
from fedcore.share.recipe import Recipe, numbered, recipe_of
from fedcore.share.samples import Hasher, samples_of, samples_of_transfer
from fedcore.share.verify import (
    Content,
    Counts,
    compared,
    count_text,
    make_tables,
    number_files,
    recorded,
    verify_numbers,
)
from fedcore.store import Store, TaskRow
from fedcore.store.backup import back_up

if TYPE_CHECKING:
    from fedcore.engine.inspect import RunSnapshot

ENGINE = "engine"
FILE = "bundle.zip"
"""Name of a bundle in the folder of the task that makes it."""


@dataclass(frozen=True)
class Made:
    """A bundle, what is read from it, and a line for each run without predictions."""

    content: bytes
    read: Content
    without_predictions: tuple[str, ...]

    @property
    def manifest(self) -> BundleManifest:
        return self.read.archive.manifest


def make(checked: CheckedComparison, title: str = "") -> Work[Made]:
    """Make a bundle of finished runs, and verify it."""
    store, comparison = checked.store, checked.comparison
    ids = numbered(comparison)
    if not ids:
        raise FedLensError("no run of these experiments has finished; wait for one", "ids")
    recipe = recipe_of(checked, title)
    rounds = {r.run.id: r.rounds for row in comparison.rows for r in row.runs}
    texts: dict[str, str] = {}
    hasher, runs = Hasher(), list[RunEvidence]()
    for number, run_id in enumerate(ids, 1):
        yield Progress("collecting the evidence of runs", number - 1, len(ids))
        runs.append((yield from _RunMaker(store, run_id, number, rounds[run_id], hasher, texts).evidence()))
    evidence = Evidence(choices=recipe.choices, metrics=comparison.metrics, runs=tuple(runs))
    database = _database(checked, recipe)
    with recorded(database) as copy:
        texts |= number_files(compared(copy, recipe.choices), evidence.metrics)
    lines = [
        f"{run.name}, round {round_}: {reason}"
        for run, found in zip(recipe.runs, runs, strict=True)
        for round_, reason in found.counts_only.items()
    ]
    texts |= {path: method.text for path, method in recipe.methods.items()}
    texts |= {EVIDENCE: evidence.model_dump_json(indent=1), README_NAME: _readme(recipe, lines)}
    files = {RUNS: database, **{name: text.encode() for name, text in sorted(texts.items())}}
    content = packed(recipe.title, commits(None).get("commit", ""), files)
    read, verdict = verify_numbers(read_bundle(content))
    if verdict.differences:
        raise FedLensError(f"the bundle does not follow from its evidence: {verdict.differences[0]}")
    return Made(content, read, tuple(lines))


def _database(checked: CheckedComparison, recipe: Recipe) -> bytes:
    """Return everything recorded of a comparison's runs as a database, without what concerns this machine."""
    ids = set(numbered(checked.comparison))
    experiments = [e for e in checked.comparison.experiments if any(run.id in ids for run in e.runs)]
    exported = json.loads(checked.store.experiments.to_json(e.id for e in experiments))
    nobody = {"notes": "", "tags": []}
    nowhere = nobody | {"error": None, "status_text": None, "requested_device": "auto", "device": None}
    for row, content, portable in zip(experiments, exported["experiments"], recipe.experiments, strict=True):
        behind = [c for c, run in zip(content["runs"], row.runs, strict=True) if run.id in ids]
        runs = [
            each | nowhere | {"config": run.config.model_dump(mode="json")}
            for each, run in zip(behind, portable.runs, strict=True)
        ]
        content |= nobody | {"config": portable.config.model_dump(mode="json"), "archived": 0, "runs": runs}
    with TemporaryDirectory(prefix="fedlens-bundle-") as folder:
        file, store = Path(folder) / "runs.json", Store(Path(folder) / RUNS)
        file.write_text(json.dumps(exported), "utf-8")
        with closing(sqlite3.connect(store.path)) as empty:
            make_tables(empty)
            empty.commit()
        store.imports.json(file)
        return back_up(store.path, Path(folder) / "one-file.db").read_bytes()


def _readme(recipe: Recipe, without_predictions: Sequence[str]) -> str:
    """Return the page that explains a bundle's files, and how to check them without FedLens."""
    missing = ""
    if without_predictions:
        lines = "".join(f"- {line}\n" for line in without_predictions)
        missing = f"These have counts only, which cannot be recomputed:\n\n{lines}\n"
    text = (ASSETS / "bundle" / "README.md").read_text(encoding="utf-8")
    return text.format(title=" ".join(recipe.title.split()), rule=RULES[recipe.choices.rule], missing=missing)


@dataclass
class _RunMaker:
    """Collects the evidence of one run; the files that it makes are added to ``texts``."""

    store: Store
    run_id: int
    number: int
    reported: tuple[int, ...]
    hasher: Hasher
    texts: dict[str, str]

    def evidence(self) -> Work[RunEvidence]:
        config, (row,) = self.store.runs.config(self.run_id), self.store.runs.get([self.run_id])
        kinds = {e.entity: e.kind for e in self.store.cells.entities(self.run_id)}
        counts_only: dict[int, str] = {}
        spaces: tuple[LabelSpaceRecord, ...] = ()
        space_of: dict[int, int] = {}
        for round_ in self.reported:
            cells = self.store.cells.coded({self.run_id: [round_]}).tolist()
            wanted = {(model, test): (right, total) for _, model, test, right, total in cells}
            found: RunSnapshot | str
            if row.origin != ENGINE:
                found = "it was recorded elsewhere, so there is no model"
            elif config.test_sample is not None and 0 < round_ < config.rounds:
                found = (
                    f"it was tested on samples of the test sets (test_sample = {config.test_sample}), and a "
                    "bundle has predictions of whole test sets only"
                )
            else:
                wanted = {pair: count for pair, count in wanted.items() if kinds[pair[0]] != "adapted"}
                found = yield from self._predicted(config, round_, wanted)
            if isinstance(found, str):
                counts_only[round_] = found
            elif not spaces:
                spaces, space_of = yield from self._spaces(config, found)
        if not spaces and row.origin == ENGINE:
            spaces = yield from self._spaces_without_models(config)
        of_entities = {code: space for code, space in space_of.items() if code in kinds}
        return RunEvidence(spaces=spaces, space_of=of_entities, counts_only=counts_only)

    def _predicted(self, config: RunConfig, round_: int, recorded: Counts) -> Work[RunSnapshot | str]:
        """Predict a reported round again; returns the round, or why there is no checkpoint."""
        from fedcore.engine import inspect
        from fedcore.engine.inspect import predict_round

        files = [(r, p) for r, p in self.store.runs.checkpoints(self.run_id) if r == round_]
        checkpoint, damaged = newest_intact(files)
        if checkpoint is None:
            others = [r for r, _ in self.store.runs.checkpoints(self.run_id)]
            if damaged:
                return f"its checkpoint is damaged ({'; '.join(damaged)})"
            if others:
                return f"no checkpoint of this round was kept (keep_checkpoints = {config.keep_checkpoints})"
            return why_no_checkpoint(self.store, self.run_id)
        environment = self.store.runs.environment(self.run_id)
        device = str(environment.get("device", devices.CPU))
        if device != devices.CPU:
            gpu = devices.default_device()
            if gpu == devices.CPU:
                return "it was trained on a GPU, and this machine has none"
            os.environ.update(devices.environment_for(gpu))  # before torch is loaded
        try:
            snapshot = yield from inspect.restore(
                config, checkpoint[1], self.store.artifacts, device, environment
            )
        except FedLensError as error:
            return f"it cannot be restored on this machine ({error})"
        chunk = int(environment.get("chunk") or 1)
        made, cells = predict_round(snapshot, config.rounds, chunk, recorded)
        again = {(c.model, c.test_set): (c.correct, c.total) for c in cells}
        for pair, count in recorded.items():
            if again.get(pair) != count:
                names = {e.entity: e.name for e in self.store.cells.entities(self.run_id)}
                raise FedLensError(
                    f"run {self.run_id}, round {round_}: the checkpoint gives "
                    f"{count_text(again.get(pair))} of {names.get(pair[0])} on {names.get(pair[1])}, and "
                    f"{count_text(count)} were recorded, so "
                    "the predictions are not those of the results; make the bundle on the machine that "
                    "trained the run, with the same versions, or train it again"
                )
        file = PredictionFile(
            rows=tuple(
                PredictionRow(
                    models=p.models,
                    test_sets=p.test_sets,
                    predicted=tuple(p.predicted.astype(np.int64).tolist()),
                )
                for p in made
            )
        )
        self.texts[prediction_file(self.number, round_)] = file.model_dump_json()
        return snapshot

    def _spaces(
        self, config: RunConfig, snapshot: RunSnapshot
    ) -> Work[tuple[tuple[LabelSpaceRecord, ...], dict[int, int]]]:
        """Write the samples of each label space: one file for the run's own data, one per transfer.

        Returns: the spaces, and the space of each test set by its code.
        """
        from fedcore.engine.inspect import label_spaces, samples_of_test_sets

        classes, test_sets = label_spaces(snapshot), samples_of_test_sets(snapshot)
        marks: list[dict[int, list[str]]] = [{} for _ in classes]
        for code, test in sorted(test_sets.items()):
            if code <= len(snapshot.federation.test_sets):
                for row in test.rows.tolist():
                    marks[test.space].setdefault(row, []).append(str(code))
        if (class_sets := snapshot.federation.class_sets) is not None:
            for row in class_sets.rows.tolist():
                marks[0].setdefault(row, []).append(CLASS_SETS)
        transfers = config.transfer if len(classes) > 1 else ()  # a method may have no value on other names
        first = len(classes) - len(transfers)  # of the transfers
        joined: dict[int, str] = {}
        for of_space in marks[:first]:
            for row, codes in of_space.items():
                joined[row] = " ".join(filter(None, (joined.get(row), *codes)))
        samples = yield from samples_of(config, self.hasher, joined)
        spaces = [LabelSpaceRecord(classes=names, samples=self._add(samples)) for names in classes[:first]]
        for i, (names, of_space) in enumerate(zip(classes[first:], marks[first:], strict=True)):
            texts = {row: " ".join(codes) for row, codes in of_space.items()}
            other = yield from samples_of_transfer(config, i, self.hasher, texts)
            spaces.append(LabelSpaceRecord(classes=names, samples=self._add(other)))
        return tuple(spaces), {code: test.space for code, test in test_sets.items()}

    def _spaces_without_models(self, config: RunConfig) -> Work[tuple[LabelSpaceRecord, ...]]:
        """Write the samples of a run that has counts only; none if its data is not on this machine."""
        from fedcore.engine.prepare import prepare_inputs

        try:
            images = yield from self.hasher.images(config)
            classes = prepare_inputs(config, images).trained_classes
            samples = yield from samples_of(config, self.hasher)
        except FedLensError:
            return ()
        return (LabelSpaceRecord(classes=classes, samples=self._add(samples)),)

    def _add(self, samples: Sequence[Sample]) -> str:
        """Add a file of samples, of which those of equal content are one, and return its name."""
        text = exports.csv_text(SAMPLE_COLUMNS, samples)
        splits = {of: name for name, of in self.texts.items() if name.startswith("splits/")}
        name = splits.get(text, f"splits/{len(splits) + 1}.csv")
        self.texts[name] = text
        return name


def submit(store: Store, experiments: Sequence[int], choice: ComparisonChoices) -> int:
    """Queue the making of a comparison's bundle, even if it was made before; returns the task's id.

    The bundle is deleted with the first experiment.
    """
    args = {"experiments": list(experiments), "choice": asdict(choice), "runs": _runs(store, experiments)}
    first = store.experiments.get(experiments[0]).runs[0].id
    return store.tasks.submit("bundle", _key(experiments, choice), args, first, again=True)


def find(store: Store, experiments: Sequence[int], choice: ComparisonChoices) -> TaskRow | None:
    """Return the task that makes a comparison's bundle, None if it was never submitted."""
    return store.tasks.find("bundle", _key(experiments, choice))


def made_file(store: Store, task: TaskRow) -> Path | None:
    """Return the bundle of a task; None if there is none, or if the runs have changed since."""
    file = task.folder / FILE
    is_current = task.status == "done" and task.args["runs"] == _runs(store, task.args["experiments"])
    return file if is_current and file.is_file() else None


def make_bundle(job: Job) -> Work[dict[str, Any]]:
    """Make a bundle. args: experiments; choice, the fields of ``ComparisonChoices``.

    Returns: its ``digest``, and ``counts_only``, a line for each run without predictions.
    """
    choice = ComparisonChoices(**job.args["choice"])
    with checked_comparison(job.store, job.args["experiments"], choice) as checked:
        made = yield from make(checked)
    job.folder.mkdir(parents=True, exist_ok=True)
    (job.folder / FILE).write_bytes(made.content)
    return {"digest": made.manifest.digest, "counts_only": list(made.without_predictions)}


def _key(experiments: Sequence[int], choice: ComparisonChoices) -> str:
    return json.dumps([list(experiments), asdict(choice)])


def _runs(store: Store, experiments: Sequence[int]) -> str:
    """Return a text that changes whenever one of the runs does."""
    return " ".join(store.runs.digest(i) for i in experiments)
