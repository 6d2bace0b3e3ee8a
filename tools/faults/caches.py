"""Damage to caches that decide which images are trained on: file checks and DDR's brightness."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from unittest import mock

import numpy as np
from PIL import Image

from fedcore.base.files import new_digest
from fedcore.data import catalog, image_files, integrity
from tests.support.data.layouts import ddr
from tools.faults.bits import damage
from tools.faults.family import Family
from tools.faults.lab import Difference, Lab
from tools.faults.verdict import Outcome, Verdict

IMAGES = 24


def _pictures(root: Path) -> None:
    """Draw a folder of images, of which some cannot be used."""
    for number in range(IMAGES):
        file = root / "photo" / ("cat", "dog")[number % 2] / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (10 * number, 0, 0)).save(file)
        if number % 5 == 0:
            file.write_bytes(file.read_bytes()[:-8])


SETS: dict[str, Callable[[Path], object]] = {"folder": _pictures, "ddr": ddr}


@cache
def _whole(folder: Path, name: str) -> tuple[dict[Path, bytes], str]:
    """Write a data set and load it once; returns the files that this leaves, and what is trained on."""
    SETS[name](folder / "data")
    written = set(folder.rglob("*"))
    digest = trained_on(folder, name)
    return {p: p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file() and p not in written}, digest


def trained_on(folder: Path, name: str) -> str:
    """Return a digest of all that a run would train on."""
    integrity._checked.clear()  # as in another process
    variables = {"FEDLENS_CACHE": str(folder / "cache")}
    with mock.patch.dict(os.environ, variables), mock.patch.object(image_files, "MIN_CACHED", 1):
        images = catalog.load(name, str(folder / "data"))[0]
        values = (images.keys, images.classes, images.domains, images.labels, images.domain, images.split)
        digest = new_digest(repr([np.asarray(v).tolist() for v in values]).encode())
        for row in range(len(images)):
            digest.update(np.asarray(images.read(row)).tobytes())
    return str(digest.hexdigest())


def attempt(lab: Lab, folder: Path, rng: np.random.Generator) -> Verdict:
    """Damage one file of a cache, and load the data set again."""
    name = str(rng.choice(list(SETS)))
    place = lab.folder / f"cache-{name}"  # a cache knows files by their paths and times
    files, expected = _whole(place, name)
    chosen = list(files)[rng.integers(len(files))]
    said: list[str] = []
    log = logging.getLogger("fedcore.data")
    noticing = mock.patch.object(log, "handlers", [_Listener(said)])
    try:
        done = f"{name}: {damage(chosen, rng)}"
        with noticing, mock.patch.object(log, "propagate", False):
            found = trained_on(place, name)
    finally:
        for file, content in files.items():
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(content)
    if found != expected:
        raise Difference(f"{done}: other images would be trained on; said: {said or 'nothing'}")
    return Verdict(Outcome.MENDED if said else Outcome.UNAFFECTED, f"{done}: {'; '.join(said)}")


class _Listener(logging.Handler):
    def __init__(self, said: list[str]) -> None:
        super().__init__()
        self._said = said

    def emit(self, record: logging.LogRecord) -> None:
        self._said.append(record.getMessage())


FAMILIES = (Family("caches", "damage to file checks and DDR's measurements; loaded again", 200, attempt),)
