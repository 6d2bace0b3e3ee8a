"""Recorded runs of published experiments, found by their config, and the values that they measure."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fedcore.base.errors import FedLensError
from fedcore.papers.comparability import comparability_of_runs
from fedcore.papers.equivalents import RunReader, content, content_key, held_out_of, round_shares
from fedcore.papers.published import PublishedValue
from fedcore.results.frames import cell_frame
from fedcore.results.metrics import Rule, RunResult, select_rounds, test_images
from fedcore.results.rows import SeedAndDomain
from fedcore.results.settings import result_caveat
from fedcore.results.statistics import Stat, spread
from fedcore.results.summary import Comparability
from fedcore.store import RunRow, Store

ACTIVE = ("queued", "running", "stopping")
OTHER_TEST_SET = (
    "the paper tests on all test samples of the classes that a client holds; these runs tested on the "
    "client's own share only"
)
"""The reason why a run that was recorded without class sets has no FedAlign local performance."""


@dataclass(frozen=True)
class Measurement:
    """Our value for a published one, read from finished runs.

    Attributes:
        stat: mean over seeds in the value's unit; None if the runs do not measure it.
        runs: the runs that it was read from.
        reason: why the runs gave no value; else empty.
    """

    stat: Stat | None
    runs: tuple[int, ...]
    comparability: Comparability
    reason: str = ""


class RecordedRuns:
    """The runs of a store that FedLens trained on some data sets, by the content of their config.

    Runs of archived experiments are left out. If a seed was repeated, its newest run counts, but a run that
    differs from its config (``Method.result_caveat``) only if there is no other.

    Args:
        store: its file need not exist yet.
        data: names of the data sets.
    """

    def __init__(self, store: Store, data: Collection[str]) -> None:
        self.store = store
        grouped: dict[tuple[int, str], list[RunRow]] = {}
        for experiment in store.experiments.all() if Path(store.path).exists() else ():
            if experiment.config.data.name in data:
                for run in experiment.runs:
                    if run.origin == "engine":
                        grouped.setdefault((experiment.id, run.group_hash), []).append(run)
        first = [runs[0].id for runs in grouped.values()]
        configs = store.runs.configs(first, skip_damaged=True) if first else {}
        self._runs: dict[str, list[RunRow]] = {}
        self._caveats: dict[int, str] = {}
        for runs in grouped.values():
            config = configs.get(runs[0].id)
            if config is None:  # it is damaged
                continue
            with suppress(FedLensError):  # a custom method whose file is not loaded
                self._runs.setdefault(content_key(content(config)), []).extend(runs)
                self._caveats |= dict.fromkeys((run.id for run in runs), result_caveat(config))
        for runs in self._runs.values():
            runs.sort(key=lambda run: (run.created_at, run.id))  # merged runs have higher numbers
        self._results: dict[tuple[str, Rule, bool], list[RunResult]] = {}
        self._shares: dict[tuple[int, int], Mapping[str, float]] = {}
        self._readers: dict[tuple[tuple[str, str], ...], RunReader] = {}

    def done(self, key: str) -> dict[SeedAndDomain, RunRow]:
        """Return the finished runs of this content by seed and held-out domain."""
        finished = (r for r in self._runs.get(key, ()) if r.state == "done")
        return _by_part(sorted(finished, key=lambda r: not self._caveats[r.id]))

    def active(self, key: str) -> dict[SeedAndDomain, RunRow]:
        """Return the queued and running runs of this content."""
        return _by_part(r for r in self._runs.get(key, ()) if r.state in ACTIVE)

    def ended_early(self, key: str) -> dict[SeedAndDomain, RunRow]:
        """Return the newest runs of this content that failed or were stopped or interrupted."""
        newest = _by_part(self._runs.get(key, ()))
        return {part: r for part, r in newest.items() if r.ended and r.state != "done"}

    def results(self, key: str, rule: Rule, unfinished: bool = False) -> list[RunResult]:
        """Return the results of this content's finished runs, or of unfinished ones that have a round."""
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
        cells = cell_frame(self.store.cells.own_and_global(selected), runs)
        self._shares.update(round_shares(cells))
        images = test_images(cells)
        return [RunResult(r, selected[r.id], {}, test_images=images.get(r.id, {})) for r in runs]

    def reader(self, domains: Mapping[str, str]) -> RunReader:
        """Return a reader of metrics for some domains, which caches the cells that it has read."""
        return self._readers.setdefault(tuple(domains.items()), RunReader(self.store, domains, self._shares))

    def measurement(
        self,
        value: PublishedValue,
        key: str,
        held_out: Sequence[str],
        domains: Mapping[str, str] | None = None,
        rehearsal: bool = False,
    ) -> Measurement | None:
        """Return our value for a published one, from runs without a caveat if possible; None without runs.

        Args:
            held_out: the domains that the paper's experiment holds out in turn.
            domains: the paper's domains -> the runs' domains, if they differ.
            rehearsal: whether the runs are rehearsals, which are compared with nothing.
        """
        results = self.results(key, value.rule)
        exact = [r for r in results if not self._caveats[r.run.id]]
        reader = self.reader(domains or {})
        for chosen in (exact, results):
            stat = spread(reader.by_seed(value, chosen, held_out).values())
            if stat is not None:
                break
        if not chosen:
            return None
        parts = {reader.domains.get(d, d) for d in held_out_of(value, held_out)} if held_out else {None}
        read = [r for r in chosen if r.run.held_out in parts]
        caveats = [self._caveats[r.run.id] for r in read]
        against = Comparability() if rehearsal else comparability_of_runs(value, read, caveats)
        elsewhere = stat is None and value.metric == "local" and not rehearsal
        return Measurement(stat, tuple(r.run.id for r in read), against, OTHER_TEST_SET if elsewhere else "")


def _by_part(runs: Iterable[RunRow]) -> dict[SeedAndDomain, RunRow]:
    """Return the last run of each seed and held-out domain."""
    return {(run.seed, run.held_out): run for run in runs}
