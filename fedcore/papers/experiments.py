"""Presets: the demonstration, protocols of generalisation, and the papers' experiments, built on demand."""

import re
from functools import cache

from fedcore.config import Experiment, identity, load
from fedcore.errors import FedLensError, did_you_mean
from fedcore.files import ASSETS
from fedcore.papers import library, printed_runs

DEMO = "demo"
"""Name of the preset that compares the four methods on embedded data."""
DEMO_TIME = "one to two minutes on two CPU cores"
"""As pages and docs/ say it; docs/embedded.md has the measured CPU-seconds."""
DEMO_FILE = ASSETS / "demo.toml"
_PLACE = re.compile(r"/(table|figure)(\d+)")


@cache
def protocols() -> dict[str, Experiment]:
    """Return an experiment on embedded data for each protocol of generalisation, such as ``base-to-new``."""
    return {path.stem: load(path) for path in sorted((ASSETS / "protocols").glob("*.toml"))}


@library.cached
def published() -> dict[str, Experiment]:
    """Return the experiments that reproduce papers' tables by name, such as ``fedot/table1-pacs``."""
    return {
        f"{work}/{name}": experiment
        for work in library.works()
        for name, experiment in printed_runs.experiments(library.find(work)).items()
    }


def preset(name: str) -> Experiment:
    """Return the preset of this name: ``demo``, a protocol or an experiment of a paper.

    A number after it, as in ``fedot/table1-pacs@1``, names it as it was frozen.
    """
    name, number = identity.split_number(name)
    if number is not None and (former := identity.former_protocol(name, number)) is not None:
        return former
    if name == DEMO:
        return load(DEMO_FILE)
    if name in protocols():
        return protocols()[name]
    if name not in published():
        names = [DEMO, *protocols(), *published()]
        meant = did_you_mean(name, names, "`fedlens presets` lists them", number=3)
        raise FedLensError(f"unknown preset '{name}'; {meant}", "preset")
    return published()[name]


def title(name: str) -> str:
    """Return a preset in words, such as ``FedOT, Table 1: PACS`` for ``fedot/table1-pacs``."""
    name, _ = identity.split_number(name)
    if name not in published():
        return preset(name).name
    paper, _, rest = published()[name].name.partition(", ")
    place = _PLACE.search(name)
    return f"{paper}, {place[1].capitalize()} {place[2]}: {rest}" if place else f"{paper}: {rest}"
