"""Recorded runs of published experiments, found by their config, and the values that they measure."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedcore.base.errors import FedLensError
from fedcore.base.events import AFTER_AGGREGATION, BEFORE_AGGREGATION
from fedcore.papers.comparability import comparability_of_runs
from fedcore.papers.equivalents import (
    MEASURED,
    TIMES,
    RunSource,
    content_key,
    domains_of,
    local_performance,
)
from fedcore.papers.published import PublishedValue
from fedcore.results.frames import ROUND, cell_frame, client_shares, domain_shares, round_metrics
from fedcore.results.metrics import Rule, RunResult, select_rounds, test_images
from fedcore.results.rows import SeedAndDomain
from fedcore.results.settings import result_caveat
from fedcore.results.statistics import Stat, ValuesBySeed, group_by, mean_or_none, spread
from fedcore.results.summary import Comparability
from fedcore.store import RunRow, Store

if TYPE_CHECKING:
    import pandas as pd

ACTIVE = ("queued", "running", "stopping")
OTHER_TEST_SET = (
    "the paper tests on all test samples of the classes that a client holds; these runs tested on the "
    "client's own share only"
)
"""The reason why a run that was recorded without class sets has no FedAlign local performance."""


PHASES = {
    "Global Prompt Decomposition": "decomposition_ms",
    "Local Prompt Projection": "projection_ms",
}
"""Phase of SDFed's Table 5 -> the diagnostic that measures it (``SDFedConfig.timed``)."""
INFERENCE_BATCH = 256
"""Images in a batch of FedDEAP's on DomainNet, for the time of a batch in its Table 4."""
RoundShares = Mapping[tuple[int, int], Mapping[str, float]]
"""Run and round -> accuracies as shares of one, NaN without a value, see ``round_shares``."""


def round_shares(cells: pd.DataFrame) -> RoundShares:
    """Return the metrics of some rounds, and the means over clients that papers print.

    ``own`` is of own models on own test samples, ``own on art`` that of the domain art, and ``classes`` is of
    own models on all test samples of the client's classes.
    """
    table = round_metrics(cells).join(domain_shares(cells).unstack().add_prefix("own on "))
    table["own"] = client_shares(cells).groupby(ROUND).mean()
    table["classes"] = cells[cells.test_set_kind == "classes"].groupby(ROUND).share.mean()
    return dict(zip(table.index.tolist(), table.to_dict("records"), strict=True))


@dataclass(frozen=True)
class Measurement:
    """Our value for a published one, read from finished runs.

    Attributes:
        stat: mean over seeds in the value's unit; None if the runs do not measure it.
        runs: the runs that it was read from.
        reason: why the runs gave no value; else empty.
        by_seed: the value of each seed.
    """

    stat: Stat | None
    runs: tuple[int, ...]
    comparability: Comparability
    reason: str = ""
    by_seed: ValuesBySeed = field(default_factory=dict, hash=False)


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
        trained = store.runs.trained_on(data) if Path(store.path).exists() else []
        grouped = group_by(trained, lambda run: (run.experiment_id, run.group_hash))
        first = [runs[0].id for runs in grouped.values()]
        configs = store.runs.configs(first, skip_damaged=True) if first else {}
        self._runs: dict[str, list[RunRow]] = {}
        self._caveats: dict[int, str] = {}
        for runs in grouped.values():
            config = configs.get(runs[0].id)
            if config is None:  # it is damaged
                continue
            with suppress(FedLensError):  # a custom method whose file is not loaded
                self._runs.setdefault(content_key(config), []).extend(runs)
                self._caveats |= dict.fromkeys((run.id for run in runs), result_caveat(config))
        for runs in self._runs.values():
            runs.sort(key=lambda run: (run.created_at, run.id))  # merged runs have higher numbers
        self._results: dict[tuple[str, Rule, bool], list[RunResult]] = {}
        self.shares: dict[tuple[int, int], Mapping[str, float]] = {}  # of rounds after aggregation
        self._at_stage = cache(  # of all cells of a round
            lambda run, round_, stage: round_shares(
                cell_frame(store.cells.at_rounds({run: [round_]}, stage=stage), store.runs.get([run]))
            )
        )

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
        self.shares.update(round_shares(cells))
        images = test_images(cells)
        return [RunResult(r, selected[r.id], {}, test_images=images.get(r.id, {})) for r in runs]

    def by_seed(
        self,
        value: PublishedValue,
        runs: Iterable[RunResult],
        source: RunSource,
    ) -> dict[int, float]:
        """Return our value for each seed that has all runs of a source that it needs."""
        of_seed: dict[int, dict[str | None, RunResult]] = {}
        for result in runs:
            of_seed.setdefault(result.run.seed, {})[result.run.held_out] = result
        wanted = source.held_out_for(value)
        metric, domain = value.metric, domains_of(value).get(value.target)
        zero_shot = value.method == "Zero Shot" and source.held_out
        if zero_shot and metric == "comprehensive" and value.target != "avg":
            # Tables 9 and 10 print zero-shot CLIP by domain, the others by held-out domain
            metric = "generalization"
        ours = None if domain is None else source.domains.get(domain, domain)
        found = {}
        for seed, results in of_seed.items():
            measured = [self._measure(value, metric, results[d], ours) for d in wanted if d in results]
            numbers = [number for number in measured if number is not None]
            if len(numbers) == len(wanted):
                found[seed] = float(np.mean(numbers))
        return found

    def _measure(
        self, value: PublishedValue, metric: str, result: RunResult, domain: str | None
    ) -> float | None:
        """Return a metric of one run; ``domain`` is the value's as the runs name it, None for a mean."""
        run, diagnostics = result.run, self.store.diagnostics
        if metric == "condition number":  # of the clients' transforms in the last round
            rows = diagnostics.at_round(run.id, "condition_number", run.rounds_total)
            return mean_or_none(row.value for row in rows)
        if metric == "pseudo-gradient cosine":  # pairwise, averaged over all rounds
            return mean_or_none(row.value for row in diagnostics.of_run(run.id, "gradient_conflict"))
        if value.setting in PHASES:
            return mean_or_none(d.value for d in diagnostics.of_run(run.id, PHASES[value.setting]))
        if metric in TIMES:
            return self._seconds(value.setting, run)
        if metric == "local":  # on a client's own test samples, or on all samples of its classes
            local = local_performance(value)
            stage = AFTER_AGGREGATION if local.after_aggregation else BEFORE_AGGREGATION
            return self._mean_accuracy(result, "own" if local.own_samples else "classes", stage)
        column = MEASURED[metric]
        of_domain = column == "personal" or (column == "personalisation" and value.held_out)
        if of_domain and domain is not None:
            return self._mean_accuracy(result, f"own on {domain}")
        return self._mean_accuracy(result, "own" if column == "personal" else str(column))

    def _seconds(self, phase: str, run: RunRow) -> float | None:
        """Return the milliseconds of a phase of SDFed's Table 5, or else the seconds to test a batch."""
        rounds = [r for r in self.store.rounds.measured([run.id]) if r["round"] > 0]
        if phase == "Global Prompt Aggregation":
            seconds = mean_or_none(r["seconds_aggregate"] for r in rounds)
            return None if seconds is None else 1000 * seconds
        if phase == "Local Model Training":  # of one client; they are trained together
            clients = sum(e.kind == "client" for e in self.store.cells.entities(run.id))
            seconds = mean_or_none(r["seconds_train"] for r in rounds)
            return 1000 * seconds / clients if seconds is not None and clients else None
        tested = sum(cell.total for cell in self.store.cells.at_rounds({run.id: [run.rounds_done]}))
        seconds = rounds[-1]["seconds_evaluate"] if rounds else None
        return INFERENCE_BATCH * seconds / tested if seconds is not None and tested else None

    def _mean_accuracy(self, result: RunResult, name: str, stage: int | None = None) -> float | None:
        """Return the mean of an accuracy over the selected rounds, in per cent; None if a round lacks it.

        Args:
            name: see ``round_shares``.
            stage: read all cells of a round at this stage; default: ``shares``.
        """
        run = result.run.id
        rounds = [
            (self.shares if stage is None else self._at_stage(run, r, stage)).get((run, r), {}).get(name)
            for r in result.rounds
        ]
        measured = [share for share in rounds if share is not None and not math.isnan(share)]
        return 100 * float(np.mean(measured)) if measured and len(measured) == len(rounds) else None

    def measurement(self, value: PublishedValue, source: RunSource) -> Measurement | None:
        """Return our value for a published one, from runs without a caveat if possible; None without runs.

        Rehearsals are compared with nothing.
        """
        results = self.results(source.key, value.rule)
        exact = [r for r in results if not self._caveats[r.run.id]]
        for chosen in (exact, results):
            by_seed = self.by_seed(value, chosen, source)
            if by_seed:
                break
        if not chosen:
            return None
        parts = source.held_out_for(value)
        read = [r for r in chosen if r.run.held_out in parts]
        caveats = [self._caveats[r.run.id] for r in read]
        against = Comparability() if source.rehearsal else comparability_of_runs(value, read, caveats)
        elsewhere = not by_seed and value.metric == "local" and not source.rehearsal
        reason = OTHER_TEST_SET if elsewhere else ""
        ids = tuple(r.run.id for r in read)
        return Measurement(spread(by_seed.values()), ids, against, reason, by_seed)


def _by_part(runs: Iterable[RunRow]) -> dict[SeedAndDomain, RunRow]:
    """Return the last run of each seed and held-out domain."""
    return {(run.seed, run.held_out): run for run in runs}
