"""The samples of a run, by content, with their clients and sets, and the folders that hold their images.

Made without torch.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fedcore.base.errors import FedLensError
from fedcore.base.events import SPLITS, TEST, TRAIN, VALIDATION
from fedcore.base.files import user_path
from fedcore.base.progress import Progress, Work, counted, prepare_then
from fedcore.config import DataConfig, RunConfig
from fedcore.config.field_names import data_title
from fedcore.data import catalog
from fedcore.data.image_files import map_in_threads
from fedcore.data.images import ImageSet, pixel_hash
from fedcore.data.splits import split
from fedcore.engine.prepare import load_images, prepare_inputs
from fedcore.share.archive import LabelSpaceRecord, Sample
from fedcore.share.recipe import ConfigOfEither, relocated

_HASHED_AT_ONCE = 500
_SAMPLING = {"data", "further_data", "partition", "transfer", "held_out", "held_out_share", "seed"}
"""Fields of a run that decide the samples of its clients and test sets."""
Membership = Mapping[int, str]
"""Row of the data set -> the test sets that it belongs to, as in a bundle."""
Folders = Mapping[str, str]
"""Name of a data set, or of its folder in the bundle -> its folder on this machine."""


@dataclass
class Hasher:
    """Reads data sets and hashes their images, each once."""

    _sets: dict[str, ImageSet] = field(default_factory=dict)
    _hashes: dict[tuple[str, int], str] = field(default_factory=dict)

    def images(self, run: RunConfig) -> Work[ImageSet]:
        """Read the data set of a run, with its images at full size."""
        full = run.model_copy(update={"data": run.data.model_copy(update={"decode": "full"})})
        key = full.model_dump_json(include={"data", "further_data"})
        if key not in self._sets:
            self._sets[key], _ = yield from prepare_then(lambda: load_images(full))
        return self._sets[key]

    def hashes(self, images: ImageSet, rows: np.ndarray) -> Work[list[str]]:
        """Return the hash of some images. Shape: rows (samples,)."""
        name = images.fingerprint
        new = [row for row in rows.tolist() if (name, row) not in self._hashes]
        made: Iterator[str] = map_in_threads(lambda row: pixel_hash(images, row), new)
        for done, (row, each) in enumerate(zip(new, made, strict=True)):
            if done % _HASHED_AT_ONCE == 0:
                yield Progress(f"reading {images.name}", done, len(new))
            self._hashes[name, row] = each
        return [self._hashes[name, row] for row in rows.tolist()]


def samples_of(run: RunConfig, hasher: Hasher, test_sets: Membership | None = None) -> Work[list[Sample]]:
    """Return the samples of a run's clients, with their test sets if there are, in the data set's order."""
    images = yield from hasher.images(run)
    inputs = prepare_inputs(run, images)
    held: dict[int, tuple[str, str]] = {}
    unassigned = [*inputs.assignment.domain_test]
    halved = [inputs.halves] if inputs.halves is not None else []
    for half in (*halved, *(inputs.cross_class.halves if inputs.cross_class is not None else ())):
        unassigned += [half.base_test, half.new_test]
    for rows in unassigned:
        held |= dict.fromkeys(rows.tolist(), ("", SPLITS[TEST]))
    for assignment in filter(None, (inputs.unseen, inputs.assignment)):
        parts = {TRAIN: assignment.train, VALIDATION: assignment.validation, TEST: assignment.test}
        for code, of_clients in parts.items():
            for client, rows in zip(assignment.clients, of_clients, strict=True):
                held |= dict.fromkeys(rows.tolist(), (client, SPLITS[code]))
    return (yield from _described(images, hasher, held, test_sets or {}))


def samples_of_transfer(
    run: RunConfig, number: int, hasher: Hasher, test_sets: Membership | None = None
) -> Work[list[Sample]]:
    """Return the samples of another data set on which a run is tested, see ``samples_of``."""
    other = run.transfer[number]
    images = yield from hasher.images(run.model_copy(update={"data": other.data}))
    rows = np.flatnonzero(split(images, other.split, run.seed) == TEST)
    held = dict.fromkeys(rows.tolist(), ("", SPLITS[TEST]))
    return (yield from _described(images, hasher, held, test_sets or {}))


def _described(
    images: ImageSet, hasher: Hasher, held: Mapping[int, tuple[str, str]], test_sets: Membership
) -> Work[list[Sample]]:
    rows = sorted(held)
    hashes = yield from hasher.hashes(images, np.array(rows, dtype=np.int64))
    return [
        Sample(
            images.keys[row],
            sha256,
            images.domains[images.domain[row]],
            images.classes[images.labels[row]],
            *held[row],
            test_sets.get(row, ""),
        )
        for row, sha256 in zip(rows, hashes, strict=True)
    ]


def read_folders(runs: Iterable[RunConfig], given: Sequence[str]) -> Folders:
    """Return the folder of each data set that a reader has named.

    Args:
        given: ``NAME=FOLDER``, or ``FOLDER`` of the only data set on which the runs' clients train.
    """
    every: dict[str, None] = {}
    trained_on: dict[str, None] = {}
    for run in runs:
        trained_on |= dict.fromkeys(without_folder([run.data], {}))
        every |= dict.fromkeys(without_folder(data_of(run), {}))
    folders: dict[str, str] = {}
    for text in given:
        names = [n for n in every if text.startswith(f"{n}=")]
        name, equals, folder = text.partition("=")
        if names:  # it may have an equals sign itself, as the author's folder had
            name = max(names, key=len)
            folder = text.removeprefix(f"{name}=")
        elif not equals or user_path(text, "data").exists():
            name, equals, folder = next(iter(trained_on or every), ""), "", text
        listed = ", ".join(every)
        if not every:
            raise FedLensError(f"leave out {text}: FedLens has the images of this bundle itself", "data")
        if name not in every:
            raise FedLensError(f"no data set of this bundle is called '{name}'; there are: {listed}", "data")
        if not equals and len(trained_on or every) > 1:
            raise FedLensError(
                f"name the data set of {text}, as in {name}={text}; there are: {listed}", "data"
            )
        if name in folders:
            raise FedLensError(f"two folders are given for {name}; leave out one", "data")
        if not user_path(folder, "data").exists():
            raise FedLensError(f"there is no folder {folder}; give that of {name}", "data")
        folders[name] = str(user_path(folder, "data"))
    return folders


def data_of(run: RunConfig) -> list[DataConfig]:
    """Return all data sets of a run, its own first."""
    return [run.data, *(other.data for other in (*run.further_data, *run.transfer))]


def without_folder(data: Iterable[DataConfig], folders: Folders) -> list[str]:
    """Return the names of those data sets whose images are files, and whose folder is not known."""
    names = [_name(d) for d in data if not catalog.entry(d.name).embedded]
    return [name for name in names if name not in folders]


def _name(data: DataConfig) -> str:
    """Return the name of a data set, or of the folder or file of the author's own data."""
    return data_title(data).removesuffix(f" ({data.name})")


def with_folders(
    config: ConfigOfEither, folders: Folders, place: Callable[..., str] = lambda path, *_: path
) -> ConfigOfEither:
    """Return a config whose data sets are on this machine, or have no folder; see ``relocated``."""
    return relocated(config, lambda data: folders.get(_name(data)), place)


def image_differences(
    runs: Iterable[tuple[RunConfig, Sequence[LabelSpaceRecord]]],
    samples: Mapping[str, Sequence[Sample]],
    folders: Folders,
) -> Work[tuple[list[str], list[str]]]:
    """Compare the images of a bundle, and who holds them, with data on this machine.

    Returns: what was and was not compared, in one line each, and the differences.
    """
    hasher = Hasher()
    differences: list[str] = []
    compared: set[str] = set()
    absent: set[str] = set()
    images: set[str] = set()
    done: set[tuple[str, str]] = set()
    for recorded, spaces in runs:
        run = with_folders(recorded, folders)
        # the samples of transfer data sets are in their order, and several may have one file
        others = [space.samples for space in spaces if space.samples != spaces[0].samples]
        for name in dict.fromkeys(space.samples for space in spaces):
            of_samples = name, run.model_dump_json(include=_SAMPLING)
            if of_samples in done:
                continue
            done.add(of_samples)
            if name in others:
                number = others.index(name)
                needed, made = [recorded.transfer[number].data], samples_of_transfer(run, number, hasher)
            else:
                needed = [recorded.data, *(other.data for other in recorded.further_data)]
                made = samples_of(run, hasher)
            if lacking := without_folder(needed, folders):
                absent.update(lacking)
                continue
            follows = yield from made
            stated = [s._replace(test_sets="") for s in samples[name]]
            compared.add(name)
            images |= {s.sha256 for s in stated}
            if text := _sample_difference(stated, follows):
                differences.append(f"{name}: {text}")
    said = [f"images of {name} were not compared: give --data {name}=FOLDER" for name in sorted(absent)]
    if compared:
        said.insert(
            0,
            f"{counted(len(images), 'image')} and their clients and sets compared with the data "
            f"({counted(len(compared), 'file')})",
        )
    return said, differences


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
