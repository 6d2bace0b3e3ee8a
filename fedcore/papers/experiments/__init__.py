"""The papers' experiments as presets: FedLens makes each of them on demand from the papers' settings."""

from __future__ import annotations

import re
import warnings
from difflib import get_close_matches
from functools import cache
from pathlib import PurePath

from fedcore.config import Experiment, load
from fedcore.errors import FedLensError
from fedcore.papers.experiments import fedalign, feddeap, fedot, sdfed
from fedcore.paths import ASSETS

DEMO = "demo"
"""Name of the preset that compares the four methods on embedded data."""
DEMO_FILE = ASSETS / "demo.toml"

_PAPERS = {"fedot": fedot, "sdfed": sdfed, "fedalign": fedalign, "feddeap": feddeap}
_PLACE = re.compile(r"/(table|figure)(\d+)")


@cache
def published() -> dict[str, Experiment]:
    """Return the experiments of the four papers by name, such as ``fedot/table1-pacs``."""
    return {
        f"{paper}/{name}": experiment
        for paper, module in _PAPERS.items()
        for name, experiment in module.experiments().items()
    }


def preset(name: str) -> Experiment:
    """Return the preset of this name: ``demo`` or an experiment of a paper.

    Raises:
        FedLensError: ``preset``, when there is no such preset.
    """
    if name == DEMO:
        return load(DEMO_FILE)
    current = _current(name)
    if current != name:
        warnings.warn(f"the preset '{name}' is called '{current}' now", FutureWarning, stacklevel=2)
    name = current
    if name not in published():
        close = get_close_matches(name, [DEMO, *published()], n=3)
        meant = f"did you mean {' or '.join(close)}?" if close else "`fedlens presets` lists them"
        raise FedLensError(f"there is no preset '{name}'; {meant}", "preset")
    return published()[name]


def _current(name: str) -> str:
    """Return a preset's name in this release: FedAlign's baselines were PromptFL alone."""
    current = name.removesuffix("-promptfl") + "-baselines"
    return current if name.endswith("-promptfl") and current in published() else name


def title(name: str) -> str:
    """Return a paper's preset in words, such as ``FedOT, Table 1: PACS`` for ``fedot/table1-pacs``."""
    paper, _, rest = published()[name].name.partition(", ")
    place = _PLACE.search(name)
    return f"{paper}, {place[1].capitalize()} {place[2]}: {rest}" if place else f"{paper}: {rest}"


def former_file(path: PurePath) -> str | None:
    """Return the preset that replaces a file of the former folder ``experiments/``; else None."""
    folder, name = path.parent.name, path.stem
    candidate = DEMO if (folder, name) == ("experiments", DEMO) else _current(f"{folder}/{name}")
    return candidate if candidate == DEMO or candidate in published() else None
