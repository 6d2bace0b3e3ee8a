"""The data sets and weights on this machine, and which of them a config lacks."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from fedcore.clip import tags
from fedcore.clip.specs import MINI_MODELS
from fedcore.config import BackboneConfig, Experiment, RunConfig, backbones
from fedcore.data import catalog
from fedcore.store import Store

CHECKS = 1000
"""Number of newest folder checks that are read."""


@dataclass(frozen=True)
class Lack:
    """Data or weights that runs need and this machine lacks; ``how`` says how to get them."""

    kind: str
    text: str
    how: str


@dataclass
class Availability:
    """The data sets and weights on this machine.

    Attributes:
        roots: data set -> its folder, preferably one that was checked, else one that an experiment used.
    """

    roots: dict[str, str]
    _weights: dict[BackboneConfig, bool] = field(default_factory=dict)

    def lacks(self, config: RunConfig | Experiment) -> tuple[Lack, ...]:
        """Return the data and weights that a config needs and this machine lacks."""
        lacks = []
        entry = catalog.entry(config.data.name)
        if not entry.embedded and entry.name not in self.roots:
            lacks.append(Lack("data", f"the data set {entry.title}", entry.how_to_get))
        for backbone in backbones(config):
            if not self._has_weights(backbone):
                how = "A run downloads them from huggingface.co, or the page Data & models does."
                lacks.append(Lack("weights", f"the weights '{backbone.pretrained}' of {backbone.name}", how))
        return tuple(lacks)

    def _has_weights(self, backbone: BackboneConfig) -> bool:
        if backbone not in self._weights:
            tag = backbone.pretrained
            self._weights[backbone] = (
                backbone.name in MINI_MODELS or tag is None or tags.cached(backbone.name, tag) is not None
            )
        return self._weights[backbone]


def find_available(store: Store) -> Availability:
    """Find the data sets that were checked or used on this machine and still have a folder."""

    @cache
    def exists(root: str) -> bool:
        try:
            return Path(root).expanduser().exists()
        except OSError:  # the system does not accept this path
            return False

    roots: dict[str, str] = {}
    for task in store.tasks.recent("check", CHECKS):
        name, report = (task.result or {}).get("name"), (task.result or {}).get("report", {})
        root = report.get("root")
        if task.status == "done" and name and root and not report.get("error") and exists(root):
            roots.setdefault(name, root)
    for experiment in store.experiments.all():
        data = experiment.config.data
        if data.root and exists(data.root):
            roots.setdefault(data.name, data.root)
    return Availability(roots)
