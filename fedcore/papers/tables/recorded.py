"""What this machine has: recorded runs, found by their config, and the data sets and weights in reach."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from fedcore.clip import tags
from fedcore.clip.specs import MINI_MODELS
from fedcore.config import BackboneConfig, Experiment, RunConfig, backbones
from fedcore.data import catalog
from fedcore.errors import FedLensError
from fedcore.papers.measures import RunReader
from fedcore.papers.tables.sources import Part, content_key
from fedcore.results.metrics import Rule, RunResult, select_rounds, test_images
from fedcore.results.settings import result_caveat
from fedcore.results.statistics import group_by
from fedcore.store import NamedCell, RunRow, Store

ACTIVE = ("queued", "running", "stopping")
CHECKS = 1000
"""Number of newest folder checks that are read."""


class Recorded:
    """The runs of a store that FedLens trained on some data sets, by the content of their config.

    Runs of archived experiments are left out. If a seed was repeated, its newest run counts.

    Args:
        data: names of the data sets.
    """

    def __init__(self, store: Store, data: Collection[str]) -> None:
        self.store = store
        grouped: dict[tuple[int, str], list[RunRow]] = {}
        for experiment in store.experiments.all():
            if experiment.config.data.name in data:
                for run in experiment.runs:
                    if run.origin == "engine":
                        grouped.setdefault((experiment.id, run.group_hash), []).append(run)
        configs = store.runs.configs([runs[0].id for runs in grouped.values()], skip_damaged=True)
        self._runs: dict[str, list[RunRow]] = {}
        self._configs: dict[str, RunConfig] = {}
        for runs in grouped.values():
            config = configs.get(runs[0].id)
            key = _key(config) if config is not None else None
            if config is not None and key is not None:
                self._runs.setdefault(key, []).extend(runs)
                self._configs.setdefault(key, config)
        self._results: dict[tuple[str, Rule, bool], list[RunResult]] = {}
        self._cells: dict[tuple[int, int], list[NamedCell]] = {}
        self._versions: dict[str, str] = {}
        self._readers: dict[tuple[tuple[str, str], ...], RunReader] = {}

    def has(self, key: str) -> bool:
        return key in self._runs

    def done(self, key: str) -> dict[Part, RunRow]:
        """Return the finished runs of this content by seed and held-out domain."""
        return _newest(r for r in self._runs.get(key, ()) if r.state == "done")

    def active(self, key: str) -> dict[Part, RunRow]:
        """Return the runs of this content that are queued or running."""
        return _newest(r for r in self._runs.get(key, ()) if r.state in ACTIVE)

    def ended_early(self, key: str) -> dict[Part, RunRow]:
        """Return the newest runs of this content that failed or were stopped or interrupted."""
        newest = _newest(self._runs.get(key, ()))
        return {part: r for part, r in newest.items() if r.ended and r.state != "done"}

    def results(self, key: str, rule: Rule, unfinished: bool = False) -> list[RunResult]:
        """Return the results of the finished runs of this content.

        Args:
            unfinished: instead return results of the unfinished runs that have recorded a round.
        """
        if (key, rule, unfinished) not in self._results:
            started = (r for r in self.active(key).values() if r.rounds_done)
            runs = list(started if unfinished else self.done(key).values())
            self._results[key, rule, unfinished] = self._read(runs, rule)
        return self._results[key, rule, unfinished]

    def read_results(self, wanted: Iterable[tuple[str, Rule]]) -> None:
        """Read the results of the finished runs of several contents at once, as ``results`` returns them."""
        by_rule: dict[Rule, dict[int, str]] = {}
        for key, rule in dict.fromkeys(wanted):
            if (key, rule, False) not in self._results:
                self._results[key, rule, False] = []
                by_rule.setdefault(rule, {}).update({run.id: key for run in self.done(key).values()})
        for rule, keys in by_rule.items():
            runs = [run for key in dict.fromkeys(keys.values()) for run in self.done(key).values()]
            for result in self._read(runs, rule):
                self._results[keys[result.run.id], rule, False].append(result)

    def _read(self, runs: Sequence[RunRow], rule: Rule) -> list[RunResult]:
        """Read the cells of some runs in the rounds that a rule selects, with two queries for all of them.

        The results carry no metrics: readers compute those that the papers print from the same cells.
        """
        if not runs:
            return []
        selected = select_rounds(self.store, runs, rule)
        missing = {
            run: [r for r in rounds if (run, r) not in self._cells] for run, rounds in selected.items()
        }
        self._cells |= group_by(self.store.cells.own_and_global(missing), lambda c: (c.run_id, c.round))
        return [
            RunResult(
                run, rounds, {}, test_images=test_images([self._cells.get((run.id, r), []) for r in rounds])
            )
            for run in runs
            for rounds in [selected[run.id]]
        ]

    def reader(self, domains: Mapping[str, str]) -> RunReader:
        """Return a reader of metrics from the runs, which caches the cells that it has read.

        Args:
            domains: the paper's domains -> the runs' domains, if they differ.
        """
        return self._readers.setdefault(tuple(domains.items()), RunReader(self.store, domains, self._cells))

    def caveat(self, key: str) -> str:
        """Return how the runs of this content depart from their config; empty if they do not."""
        return result_caveat(self._configs[key])

    def version(self, key: str) -> str:
        """Return a text that changes when a run of this content finishes or is deleted."""
        if key not in self._versions:
            self._versions[key] = repr(sorted(r.version for r in self.done(key).values()))
        return self._versions[key]


def _key(config: RunConfig) -> str | None:
    try:
        return content_key(config)
    except FedLensError:  # a custom method whose file is not loaded
        return None


def _newest(runs: Iterable[RunRow]) -> dict[Part, RunRow]:
    newest: dict[Part, RunRow] = {}
    for run in sorted(runs, key=lambda r: r.id):
        newest[run.seed, run.held_out] = run
    return newest


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
