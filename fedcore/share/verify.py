"""Verify a bundle: every count from predictions and splits, every number of the report from the counts.

Neither weights nor torch are needed. What is compared with what is written down in docs/checkable.md.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedcore.base.errors import DAMAGE, FedLensError, first_line
from fedcore.base.events import SPLITS, TRAIN
from fedcore.base.progress import Work, counted
from fedcore.share.archive import Archive
from fedcore.share.evidence import (
    CLASS_SETS,
    COUNTS,
    EVIDENCE,
    RECIPE,
    CellKey,
    Count,
    EntityRecord,
    Evidence,
    PredictionFile,
    RunEvidence,
    Sample,
    counts_csv,
    first_difference,
    read_counts,
    read_samples,
)
from fedcore.share.folders import Folders, read_folders, with_folders, without_folder
from fedcore.share.numbers import number_files, recorded
from fedcore.share.recipe import Recipe
from fedcore.store import Store
from fedcore.store.imports import Merged

_SAMPLING = {"data", "further_data", "partition", "transfer", "held_out", "held_out_share", "seed"}
"""Fields of a run that decide the samples of its clients and test sets."""


@dataclass(frozen=True)
class Verification:
    """The result of a verification.

    Attributes:
        checked: what was recomputed or compared, in one line each.
        unchecked: what the bundle does not allow to be checked, and why.
        differences: what does not follow from the evidence; empty for a bundle that is true to it.
    """

    checked: tuple[str, ...]
    unchecked: tuple[str, ...]
    differences: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Return whether every number was recomputed and none differs."""
        return not self.differences and not self.unchecked


@dataclass(frozen=True)
class Content:
    """The parsed files of a bundle: the samples by file, the predictions by run and round."""

    recipe: Recipe
    evidence: Evidence
    samples: Mapping[str, list[Sample]]
    predictions: Mapping[tuple[int, int], PredictionFile]


def _read_content(archive: Archive) -> Content:
    """Parse a bundle; raises FedLensError, field ``bundle``, for one that contradicts itself."""
    recipe, evidence = archive.read(RECIPE, Recipe), archive.read(EVIDENCE, Evidence)
    numbers = list(range(1, len(recipe.runs) + 1))
    if [r.number for r in recipe.runs] != numbers or [r.number for r in evidence.runs] != numbers:
        raise archive.fault(f"the runs of {RECIPE} and {EVIDENCE} are not numbered alike")
    for path, method in recipe.methods.items():
        if archive.text(path) != method.text:
            raise archive.fault(f"{path} is not the method file that {RECIPE} names")
    samples: dict[str, list[Sample]] = {}
    predictions = {}
    for run in evidence.runs:
        codes = [e.code for e in run.entities]
        if len(set(codes)) < len(codes) or any(
            e.space is not None and e.space >= len(run.spaces) for e in run.entities
        ):
            raise archive.fault(f"the test sets of run {run.number} contradict each other")
        config = recipe.runs[run.number - 1].config
        others = {space.samples for space in run.spaces[1:]} - {space.samples for space in run.spaces[:1]}
        if len(others) > len(config.transfer):
            raise archive.fault(f"run {run.number} has samples of more data sets than its config names")
        reported_rounds = [reported.round for reported in run.rounds]
        if len(set(reported_rounds)) < len(run.rounds) or max(reported_rounds, default=0) > config.rounds:
            raise archive.fault(f"the rounds of run {run.number} contradict each other, or its config")
        for name in {space.samples for space in run.spaces} - samples.keys():
            try:
                samples[name] = read_samples(archive.text(name))
            except ValueError as error:
                raise archive.fault(f"{name}: {error}") from error
        for reported in run.rounds:
            if reported.predictions is not None:
                predictions[run.number, reported.round] = archive.read(reported.predictions, PredictionFile)
    return Content(recipe, evidence, samples, predictions)


def import_bundle(archive: Archive, store: Store) -> Merged:
    """Record the runs of a bundle, with their reported rounds; an earlier import of it is left as it is."""
    content, counts = sound_content(archive), read_counts(archive.text(COUNTS))
    with recorded(content.recipe, content.evidence, counts, archive.manifest.digest) as bundled:
        return store.imports.database(bundled.path)


def verify(archive: Archive, data: Sequence[str] = ()) -> Work[Verification]:
    """Check the numbers of a bundle, and its images against these folders, see ``read_folders``."""
    runs = archive.read(RECIPE, Recipe).runs
    folders = read_folders((run.config for run in runs), data)  # first, as the numbers may take minutes
    content, verdict = verify_numbers(archive)
    return (yield from _with_images(content, verdict, folders))


def verify_numbers(archive: Archive) -> tuple[Content, Verification]:
    """Read a bundle and check its numbers; raises FedLensError, field ``bundle``, as ``verify`` does."""
    content = _read_content(archive)
    try:
        return content, _verdict(archive, content)
    except FedLensError as error:
        raise archive.fault(str(error)) from error
    except (*DAMAGE, OverflowError) as error:
        raise archive.fault(first_line(error)) from error


def sound_content(archive: Archive) -> Content:
    """Return the content of a bundle whose numbers follow; raises FedLensError, field ``bundle``."""
    content, verdict = verify_numbers(archive)
    if verdict.differences:
        raise archive.fault(verdict.differences[0])
    return content


def _verdict(archive: Archive, content: Content) -> Verification:
    stated = read_counts(archive.text(COUNTS))
    differences: list[str] = []
    unchecked: list[str] = []
    counts: dict[CellKey, Count] = {}
    predicted = 0
    for run in content.evidence.runs:
        differences += [f"run {run.number}: {text}" for text in _entity_differences(run, content.samples)]
        for reported in run.rounds:
            at = run.number, reported.round
            found: dict[tuple[int, int], Count] = {}
            if at in content.predictions:
                file = content.predictions[at]
                found = recounted(run, file, content.samples)
                predicted += sum(len(row.predicted) for row in file.rows)
            codes = run.by_code()
            counts_only = {
                key: count._replace(predicted=False)
                for key, count in stated.items()
                if key[:2] == at
                and key[2] in codes
                and key[3] in codes
                and (at not in content.predictions or codes[key[2]].kind == "adapted")
            }
            counts |= {(*at, *pair): count for pair, count in found.items()} | counts_only
            if counts_only:
                what = "adapted models have" if found else "it has"
                why = reported.reason or "they are trained at the end of the run and not stored"
                unchecked.append(f"run {run.number}, round {reported.round}: {what} counts only, since {why}")
    checked = [
        f"{counted(len(archive.files), 'file')}: unchanged, digest {archive.manifest.digest}",
        f"{counted(sum(c.predicted for c in counts.values()), 'count')} recomputed from "
        f"{counted(predicted, 'prediction')}",
    ]
    if text := first_difference(archive.text(COUNTS), counts_csv(content.evidence, counts)):
        differences.append(f"{COUNTS}: {text}")
    lines = 0
    for name, made in number_files(content.recipe, content.evidence, counts).items():
        lines += made.count("\n") - 1
        if text := first_difference(archive.text(name), made):
            differences.append(f"{name}: {text}")
    checked.append(f"{counted(lines, 'row')} of the report recomputed from the counts")
    return Verification(tuple(checked), tuple(unchecked), tuple(differences))


def recounted(
    run: RunEvidence, file: PredictionFile, samples: Mapping[str, Sequence[Sample]]
) -> dict[tuple[int, int], Count]:
    """Count the correct predictions of each model on each test set.

    Raises:
        ValueError: for predictions that are not those of the test sets' samples.
    """
    codes = run.by_code()
    members = _Members(run, samples)
    found: dict[tuple[int, int], Count] = {}
    for row in file.rows:
        spaces = {codes[t].space if t in codes else None for t in row.test_sets}
        if len(spaces) != 1 or None in spaces or not set(row.models) <= codes.keys():
            raise ValueError(f"run {run.number}: predictions for unknown models or test sets")
        (space,) = (s for s in spaces if s is not None)
        sets = {t: members.of(codes[t]) for t in row.test_sets}
        place = np.unique(np.concatenate(list(sets.values())))
        predicted = np.array(row.predicted, dtype=np.int64)
        classes = len(run.spaces[space].classes)
        if len(predicted) != len(place):
            raise ValueError(f"run {run.number}: {len(predicted)} predictions for {len(place)} samples")
        if len(predicted) and not 0 <= predicted.min() <= predicted.max() < classes:
            raise ValueError(f"run {run.number}: a predicted class is none of the {classes}")
        right = predicted == members.labels(space)[place]
        for test_set, rows in sets.items():
            if not len(rows):
                raise ValueError(
                    f"run {run.number}: no sample is in the test set {codes[test_set].name!r:.60}"
                )
            correct = int(right[np.searchsorted(place, rows)].sum())
            for model in row.models:
                if (model, test_set) in found:
                    raise ValueError(f"run {run.number}: two predictions for model {model}")
                found[model, test_set] = Count(correct, len(rows), predicted=True)
    return found


class _Members:
    """The samples of each test set, as places in the file of its label space."""

    def __init__(self, run: RunEvidence, samples: Mapping[str, Sequence[Sample]]) -> None:
        self._run = run
        self._samples = [samples[space.samples] for space in run.spaces]
        self._labels: dict[int, np.ndarray] = {}
        self._marked: list[dict[str, list[int]]] = []
        for listed in self._samples:
            marks: dict[str, list[int]] = {}
            for place, sample in enumerate(listed):
                for mark in sample.test_sets.split():
                    marks.setdefault(mark, []).append(place)
            self._marked.append(marks)

    def labels(self, space: int) -> np.ndarray:
        """Return the class of each sample in a label space, -1 for a class of another. Shape: (samples,)."""
        if space not in self._labels:
            place = {name: i for i, name in enumerate(self._run.spaces[space].classes)}
            self._labels[space] = np.array(
                [place.get(s.label, -1) for s in self._samples[space]], dtype=np.int64
            )
        return self._labels[space]

    def of(self, test_set: EntityRecord) -> np.ndarray:
        """Return the places of a test set's samples, ascending. Shape: -> (samples,)."""
        space = test_set.space or 0
        marked = self._marked[space]
        if test_set.kind != "classes":
            return np.array(marked.get(str(test_set.code), []), dtype=np.int64)
        (held,) = [
            e.class_counts or ()
            for e in self._run.entities
            if e.kind == "client" and test_set.name == f"classes of {e.name}"
        ] or [()]
        rows = np.array(marked.get(CLASS_SETS, []), dtype=np.int64)
        return rows[np.isin(self.labels(space)[rows], [i for i, n in enumerate(held) if n])]


def _entity_differences(run: RunEvidence, samples: Mapping[str, Sequence[Sample]]) -> Iterable[str]:
    """Yield where the recorded clients and test sets of a run contradict its samples."""
    if not run.spaces:
        return
    members = _Members(run, samples)
    trained_on = samples[run.spaces[0].samples]
    classes = {name: i for i, name in enumerate(run.spaces[0].classes)}
    trained: dict[str, list[int]] = {}
    held: dict[str, set[int]] = {}
    for place, sample in enumerate(trained_on):
        if sample.part == SPLITS[TRAIN] and sample.label in classes:
            trained.setdefault(sample.client, [0] * len(classes))[classes[sample.label]] += 1
        elif sample.client and sample.part == "test":
            held.setdefault(sample.client, set()).add(place)
    has_test_sets = any(s.test_sets for s in trained_on)
    for e in run.entities:
        name = e.name.removesuffix(", adapted") if e.kind == "adapted" else e.name
        if e.kind in ("client", "adapted"):
            counts = tuple(trained.get(name, [0] * len(classes)))
            if e.class_counts is not None and e.class_counts != counts:
                yield f"{e.name} has {list(counts)} training samples by class, not {list(e.class_counts)}"
            if e.samples is not None and e.samples != sum(counts):
                yield f"{e.name} has {sum(counts)} training samples, not {e.samples}"
        elif (
            e.kind != "global" and has_test_sets and e.samples is not None and len(members.of(e)) != e.samples
        ):
            yield f"{e.name} has {len(members.of(e))} test samples, not {e.samples}"
        if e.kind in ("client", "unseen") and has_test_sets:
            name = e.name.removeprefix("unseen ") if e.kind == "unseen" else e.name
            if set(members.of(e).tolist()) != held.get(name, set()):
                yield f"the test set of {e.name} is not that of its test samples"


def _with_images(content: Content, verdict: Verification, folders: Folders) -> Work[Verification]:
    """Compare the images, and who holds them, with data on this machine."""
    from fedcore.share.samples import Hasher, samples_of, samples_of_transfer

    hasher, configs = Hasher(), {run.number: run.config for run in content.recipe.runs}
    differences: list[str] = []
    compared: set[str] = set()
    absent: set[str] = set()
    images: set[str] = set()
    done: set[tuple[str, str]] = set()
    for run in content.evidence.runs:
        recorded = configs[run.number]
        config = with_folders(recorded, folders)
        for space in run.spaces:
            of_samples = space.samples, config.model_dump_json(include=_SAMPLING)
            if of_samples in done:
                continue
            done.add(of_samples)
            if space.samples == run.spaces[0].samples:
                needed = [recorded.data, *(other.data for other in recorded.further_data)]
                made = samples_of(config, hasher)
            else:
                trained_on = run.spaces[0].samples  # the samples of transfer data sets follow, in order
                number = [s.samples for s in run.spaces if s.samples != trained_on].index(space.samples)
                needed = [recorded.transfer[number].data]
                made = samples_of_transfer(config, number, hasher)
            if lacking := without_folder(needed, folders):
                absent.update(lacking)
                continue
            follows = yield from made
            stated = [s._replace(test_sets="") for s in content.samples[space.samples]]
            compared.add(space.samples)
            images |= {s.sha256 for s in stated}
            if text := _sample_difference(stated, follows):
                differences.append(f"{space.samples}: {text}")
    checked = list(verdict.checked)
    if compared:
        checked.append(
            f"{counted(len(images), 'image')} and their clients and sets compared with the data "
            f"({counted(len(compared), 'file')})"
        )
    notes = [f"images of {name} were not compared: give --data {name}=FOLDER" for name in sorted(absent)]
    return replace(verdict, checked=(*checked, *notes), differences=(*verdict.differences, *differences))


def _sample_difference(stated: Sequence[Sample], follows: Sequence[Sample]) -> str:
    """Return how the samples of a bundle differ from those on this machine; empty if they do not."""
    remaining = {s.sample: s for s in follows}
    for sample in stated:
        other = remaining.pop(sample.sample, None)
        if other is None:
            return f"{sample.sample[:100]!r} is not in the data of these clients"
        if sample != other:
            field = next(f for f in Sample._fields if getattr(sample, f) != getattr(other, f))
            return (
                f"{field} of {sample.sample[:100]!r} is {getattr(sample, field)[:64]!r}, and "
                f"{getattr(other, field)[:64]!r} in the data"
            )
    return f"it lacks {next(iter(remaining))[:100]!r}" if remaining else ""
