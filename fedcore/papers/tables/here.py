"""The data sets and weights that are on this machine, as far as FedLens was told of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from fedcore.clip.specs import MINI_MODELS
from fedcore.clip.tags import cached
from fedcore.config import BackboneConfig, Experiment, RunConfig, backbones
from fedcore.data import catalog
from fedcore.store import Store

CHECKS = 1000
"""Newest checks of folders that are read."""


@dataclass(frozen=True)
class Lack:
    """Something that runs need and this machine lacks. text: what it is; how: how to get it."""

    kind: str
    text: str
    how: str


@dataclass
class Here:
    """What is on this machine.

    Attributes:
        roots: data set -> its folder: one that was checked, else one that an experiment used.
    """

    roots: dict[str, str]
    _weights: dict[BackboneConfig, bool] = field(default_factory=dict)

    def lacks(self, config: RunConfig | Experiment) -> tuple[Lack, ...]:
        """Return what the runs of a config need and this machine lacks; empty if they can start."""
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
                backbone.name in MINI_MODELS or tag is None or cached(backbone.name, tag) is not None
            )
        return self._weights[backbone]


class _Folders:
    """Whether folders exist; each is asked for once."""

    @cached_property
    def known(self) -> dict[str, bool]:
        return {}

    def has(self, root: str) -> bool:
        if root not in self.known:
            try:
                self.known[root] = Path(root).expanduser().exists()
            except OSError:  # a path that the system does not take
                self.known[root] = False
        return self.known[root]


def look(store: Store) -> Here:
    """Look for the data sets that were checked or used here, and whose folder still exists."""
    folders = _Folders()
    roots: dict[str, str] = {}
    for task in store.tasks.recent("check", CHECKS):
        name, report = (task.result or {}).get("name"), (task.result or {}).get("report", {})
        root = report.get("root")
        if task.status == "done" and name and root and not report.get("error") and folders.has(root):
            roots.setdefault(name, root)
    for experiment in store.experiments.all():
        data = experiment.config.data
        if data.root and folders.has(data.root):
            roots.setdefault(data.name, data.root)
    return Here(roots)
