"""Make the bundle of a comparison: predictions from checkpoints, splits from the data, and what follows."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedcore.base import devices
from fedcore.base.errors import FedLensError
from fedcore.base.files import ASSETS
from fedcore.base.progress import Progress, Work
from fedcore.config import RunConfig
from fedcore.engine.checkpoint import newest_intact
from fedcore.engine.environment import commits
from fedcore.jobs.analysis import why_no_checkpoint
from fedcore.results.metrics import RULES
from fedcore.share.archive import BundleManifest, as_json, packed, read_bundle
from fedcore.share.checked import CheckedComparison
from fedcore.share.evidence import (
    CLASS_SETS,
    COUNTS,
    EVIDENCE,
    README_NAME,
    RECIPE,
    CellKey,
    Count,
    EntityRecord,
    Evidence,
    LabelSpaceRecord,
    PredictionFile,
    PredictionRow,
    RoundEvidence,
    RunEvidence,
    Sample,
    counts_csv,
    samples_csv,
)
from fedcore.share.numbers import number_files
from fedcore.share.recipe import Recipe, numbered, recipe_of
from fedcore.share.samples import Hasher, samples_of, samples_of_transfer
from fedcore.share.verify import verify_numbers
from fedcore.store import Store

if TYPE_CHECKING:
    from fedcore.engine.inspect import RunSnapshot

ENGINE = "engine"


@dataclass(frozen=True)
class Made:
    """A bundle, and a line for each run without predictions."""

    content: bytes
    manifest: BundleManifest
    without_predictions: tuple[str, ...]


def make(checked: CheckedComparison, title: str = "") -> Work[Made]:
    """Make a bundle of finished runs, and verify it."""
    store, comparison = checked.store, checked.comparison
    ids = numbered(comparison)
    if not ids:
        raise FedLensError("no run of these experiments has finished; wait for one", "ids")
    recipe = recipe_of(checked, title)
    rounds = {r.run.id: r.rounds for row in comparison.rows for r in row.runs}
    texts: dict[str, str] = {}
    hasher = Hasher()
    runs: list[RunEvidence] = []
    counts: dict[CellKey, Count] = {}
    for number, run_id in enumerate(ids, 1):
        yield Progress("collecting the evidence of runs", number - 1, len(ids))
        maker = _RunMaker(store, run_id, number, rounds[run_id], hasher, texts)
        run_evidence, of_run = yield from maker.evidence()
        runs.append(run_evidence)
        counts |= of_run
    evidence = Evidence(runs=tuple(runs))
    texts |= number_files(recipe, evidence, counts)
    texts |= {
        RECIPE: as_json(recipe),
        EVIDENCE: as_json(evidence),
        COUNTS: counts_csv(evidence, counts),
        **{path: method.text for path, method in recipe.methods.items()},
    }
    lines = [
        f"{recipe_run.name}, round {r.round}: {r.reason}"
        for run, recipe_run in zip(runs, recipe.runs, strict=True)
        for r in run.rounds
        if r.predictions is None
    ]
    texts[README_NAME] = _readme(recipe, lines)
    files = {name: text.encode() for name, text in sorted(texts.items())}
    content, manifest = packed(recipe.title, commits(None).get("commit", ""), files)
    _, verdict = verify_numbers(read_bundle(content))
    if verdict.differences:
        raise FedLensError(f"the bundle does not follow from its evidence: {verdict.differences[0]}")
    return Made(content, manifest, tuple(lines))


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
    """Collects the evidence of one run."""

    store: Store
    run_id: int
    number: int
    rounds: tuple[int, ...]
    hasher: Hasher
    texts: dict[str, str]

    def evidence(self) -> Work[tuple[RunEvidence, dict[CellKey, Count]]]:
        config, (row,) = self.store.runs.config(self.run_id), self.store.runs.get([self.run_id])
        entities = self.store.cells.entities(self.run_id)
        adapted = {e.entity for e in entities if e.kind == "adapted"}
        counts: dict[CellKey, Count] = {}
        predictions: dict[int, str] = {}
        reasons: dict[int, str] = {}
        spaces: tuple[LabelSpaceRecord, ...] = ()
        space_of: dict[int, int] = {}
        for round_ in self.rounds:
            cells = self.store.cells.coded({self.run_id: [round_]})
            pairs = {(model, test_set): (right, total) for _, model, test_set, right, total in cells.tolist()}
            wanted = {pair: count for pair, count in pairs.items() if pair[0] not in adapted}
            if row.origin != ENGINE:
                reasons[round_] = "it was recorded elsewhere, so there is no model"
            elif config.test_sample is not None and 0 < round_ < config.rounds:
                reasons[round_] = (
                    f"it was tested on samples of the test sets (test_sample = {config.test_sample}), and a "
                    "bundle has predictions of whole test sets only"
                )
            else:
                found = yield from self._predicted(config, round_, wanted)
                if isinstance(found, str):
                    reasons[round_] = found
                else:
                    predictions[round_], snapshot = found
                    if not spaces:
                        spaces, space_of = yield from self._spaces(config, snapshot)
            backed = set(wanted) if round_ in predictions else set()
            for pair, (correct, total) in pairs.items():
                counts[self.number, round_, *pair] = Count(correct, total, pair in backed)
        if not spaces and row.origin == ENGINE:
            spaces = yield from self._spaces_without_models(config)
        class_counts = self.store.cells.class_counts(self.run_id)
        evidence = RunEvidence(
            number=self.number,
            entities=tuple(
                EntityRecord(
                    code=e.entity,
                    kind=e.kind,
                    name=e.name,
                    domain=e.domain,
                    samples=e.samples,
                    class_counts=class_counts.get(e.entity),
                    space=space_of.get(e.entity),
                )
                for e in entities
            ),
            spaces=spaces,
            rounds=tuple(
                RoundEvidence(round=r, predictions=predictions.get(r), reason=reasons.get(r, ""))
                for r in self.rounds
            ),
        )
        return evidence, counts

    def _predicted(
        self, config: RunConfig, round_: int, recorded: Mapping[tuple[int, int], tuple[int, int]]
    ) -> Work[tuple[str, RunSnapshot] | str]:
        """Predict a reported round again; returns the file and the round, or why there is no checkpoint."""
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
                    f"run {self.run_id}, round {round_}: the checkpoint gives {_count(again.get(pair))} of "
                    f"{names.get(pair[0])} on {names.get(pair[1])}, and {_count(count)} were recorded, so "
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
        name = f"predictions/run-{self.number}-round-{round_}.json"
        self.texts[name] = as_json(file, indent=None)
        return name, snapshot

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
        text = samples_csv(samples)
        splits = {of: name for name, of in self.texts.items() if name.startswith("splits/")}
        name = splits.get(text, f"splits/{len(splits) + 1}.csv")
        self.texts[name] = text
        return name


def _count(count: tuple[int, int] | None) -> str:
    return "no accuracy" if count is None else f"{count[0]} correct of {count[1]}"
