"""Presets: the demonstration, protocols of generalisation, and the papers' experiments, built on demand."""

import json
import re
from functools import cache
from typing import Any

from fedcore.config import Experiment, load
from fedcore.errors import FedLensError, did_you_mean
from fedcore.files import ASSETS
from fedcore.papers import library, printed_runs

DEMO = "demo"
"""Name of the preset that compares the four methods on embedded data."""
DEMO_TIME = "one to two minutes on two CPU cores"
"""As pages and docs/ say it; docs/embedded.md has the measured CPU-seconds."""
DEMO_FILE = ASSETS / "demo.toml"
_PLACE = re.compile(r"/(table|figure)(\d+)")
_FREE: dict[str, Any] = {
    "name": True, "seeds": True, "notes": True, "tags": True, "reproduces": True, "time_limit": True,
    "keep_checkpoints": True, "data": {"root"}, "transfer": {"__all__": {"root"}},
    "further_data": {"__all__": {"root"}}, "methods": {"__all__": {"label"}},
}  # fmt: skip
"""Fields in which the runs of a preset may differ from it."""


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


def names() -> list[str]:
    """Return the names of all presets."""
    return [DEMO, *protocols(), *published()]


def preset(name: str) -> Experiment:
    """Return the preset of this name: ``demo``, a protocol or an experiment of a paper."""
    if name == DEMO:
        return load(DEMO_FILE)
    if name in protocols():
        return protocols()[name]
    if name not in published():
        meant = did_you_mean(name, names(), "`fedlens presets` lists them", number=3)
        raise FedLensError(f"unknown preset '{name}'; {meant}", "preset")
    return published()[name]


def title(name: str) -> str:
    """Return a preset in words, such as ``FedOT, Table 1: PACS`` for ``fedot/table1-pacs``."""
    if name not in published():
        return preset(name).name
    paper, _, rest = published()[name].name.partition(", ")
    place = _PLACE.search(name)
    return f"{paper}, {place[1].capitalize()} {place[2]}: {rest}" if place else f"{paper}: {rest}"


def followed_by(experiment: Experiment, trained_by_fedlens: bool) -> tuple[str, ...]:
    """Return the presets that runs of an experiment follow, because it has their config.

    Args:
        trained_by_fedlens: False for results of other code. Only their file says which preset they
            followed; its name is a tag of the experiment. A tag that a user gives to runs of FedLens says
            nothing.
    """
    if trained_by_fedlens:
        return _by_config().get(_config(experiment), ())
    return tuple(tag for tag in experiment.tags if tag in names())


@library.cached
def _by_config() -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for name in names():
        content = _config(preset(name))
        found[content] = (*found.get(content, ()), name)
    return found


def _config(experiment: Experiment) -> str:
    content = experiment.model_dump(mode="json", exclude_defaults=True, exclude=_FREE)
    return json.dumps({n: v for n, v in content.items() if v != {}}, sort_keys=True)  # a root alone leaves {}
