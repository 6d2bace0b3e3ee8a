"""What lies on this machine: pictures of a data set, cached encodings, a run's config as a file."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from fedcore.config import Experiment, dumps
from fedcore.data.images import ImageSet
from fedcore.runs import queries
from fedcore.runs.database import artifacts_folder

SIDE = 56  # pixels of a picture on a contact sheet


@dataclass(frozen=True)
class DataCounts:
    """Images per domain and class. Shape: counts (domains, classes)."""

    domains: tuple[str, ...]
    classes: tuple[str, ...]
    counts: np.ndarray


def count(images: ImageSet) -> DataCounts:
    """Images per domain and class."""
    counts = np.zeros((len(images.domains), len(images.classes)), dtype=np.int64)
    np.add.at(counts, (np.asarray(images.domain), np.asarray(images.labels)), 1)
    return DataCounts(images.domains, images.classes, counts)


def contact_sheet(images: ImageSet, columns: int = 10, rows: int = 8) -> Image.Image:
    """A row of pictures per domain, a column per class: the first sample of each."""
    domains, classes = images.domains[:rows], images.classes[:columns]
    sheet = Image.new("RGB", (len(classes) * SIDE, len(domains) * SIDE), (127, 127, 127))
    for i in range(len(domains)):
        for j in range(len(classes)):
            found = np.flatnonzero((np.asarray(images.domain) == i) & (np.asarray(images.labels) == j))
            if found.size:
                picture = images.read(int(found[0])).convert("RGB").resize((SIDE - 2, SIDE - 2))
                sheet.paste(picture, (j * SIDE + 1, i * SIDE + 1))
    return sheet


@dataclass(frozen=True)
class Encoding:
    """A file of cached image features; made again when it is needed and not there."""

    name: str
    megabytes: float
    written: str


def encodings(db: str | Path) -> list[Encoding]:
    """Cached encodings beside the database, largest first."""
    folder = artifacts_folder(db) / "encodings"
    files = [p for p in folder.rglob("*") if p.is_file() and p.suffix != ".lock"] if folder.is_dir() else []
    found = []
    for path in files:
        facts = path.stat()
        day = time.strftime("%Y-%m-%d %H:%M", time.localtime(facts.st_mtime))
        found.append(Encoding(str(path.relative_to(folder)), facts.st_size / 1e6, day))
    return sorted(found, key=lambda e: -e.megabytes)


def run_toml(db: str | Path, run_id: int) -> str:
    """An experiment file that repeats one run, with all of its method's hyper-parameters written out."""
    run = queries.run_config(db, run_id)
    shared = run.model_dump(
        include={"data", "partition", "backbone", "rounds", "participation", "evaluate_every"}
    )
    held_out = (run.held_out,) if run.held_out is not None else ()
    experiment = Experiment(
        name=f"Run {run_id} again", methods=(run.method,), seeds=(run.seed,), held_out=held_out, **shared
    )
    return dumps(experiment)
