"""Progress of runs and searches, and the list of experiments with the state and accuracies of each.

More draws give a higher expected maximum, so unequal budgets are named wherever rows are compared (Dodge et
al., "Show Your Work: Improved Reporting of Experimental Results", EMNLP 2019).
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedcore.base.errors import FedLensError
from fedcore.base.progress import about, counted, duration
from fedcore.config import RunConfig
from fedcore.config.field_names import data_titles, error_text, field_phrase, value_text
from fedcore.config.tuning import method_label
from fedcore.methods import registry
from fedcore.methods.hyperparameters import search_ranges
from fedcore.results.statistics import group_by, mean_or_none
from fedcore.store import ExperimentRow, RunRow, Store
from fedcore.store.experiments import Draw, best_draw

RECENT_ROUNDS = 5
LOG_BYTES = 16_384
MEGABYTE = 1_000_000


@dataclass(frozen=True)
class RunProgress:
    """The progress of a run.

    Attributes:
        share: of the rounds done, 0 to 1.
        seconds_left: None while unknown.
        queue_position: place in the queue, from 1; None if the run is not queued.
        seconds_per_round: mean of the last rounds; None before the first.
        megabytes_up, megabytes_down: of all clients so far; None if they were not measured.
        loading: seconds outside its rounds, above all of loading and encoding its images.
    """

    run: RunRow
    share: float
    seconds_left: float | None
    seconds: float | None
    queue_position: int | None
    seconds_per_round: float | None = None
    megabytes_up: float | None = None
    megabytes_down: float | None = None
    loading: float = 0.0

    @property
    def text(self) -> str:
        """The state in words: place in the queue, time left, time taken, or why the run ended."""
        run = self.run
        if run.state == "queued":
            return f"position {self.queue_position} in the queue" if self.queue_position else "queued"
        if run.state == "running":
            left = f"{about(self.seconds_left)} left" if self.seconds_left is not None else ""
            return " · ".join(t for t in (run.status_text or "", left) if t) or "starting"
        if run.state == "done":
            return f"took {duration(self.seconds - self.loading)}" if self.seconds is not None else ""
        return error_text(run.status_text or "")

    @property
    def line(self) -> str:
        """The state in one line: ``running · 92.4 % · about 19 s left``."""
        accuracy = f"{100 * self.run.last_test:.1f} %" if self.run.last_test is not None else ""
        words = "" if self.run.state == "queued" else str(self.run.state)
        return " · ".join(part for part in (words, accuracy, self.text) if part)


def run_progress(store: Store, runs: Sequence[RunRow]) -> list[RunProgress]:
    """Return the progress of some runs; the time left assumes the pace of the last rounds.

    Runs of one process train in turn, so that each waits for the others, at most for as long as it trains.
    """
    pace: dict[int, list[float]] = {}
    running = [r.id for r in runs if r.state == "running"]
    names = ("seconds_train", "seconds_aggregate", "seconds_evaluate")
    for run_id, round_, *parts in store.rounds.measured(running, *names):
        if round_ > 0 and any(p is not None for p in parts):
            pace.setdefault(run_id, []).append(sum(p or 0.0 for p in parts))
    sent = store.rounds.totals((r.id for r in runs), "bytes_up", "bytes_down")
    loading = seconds_outside_rounds(store, runs)
    queued = {run_id: i for i, run_id in enumerate(store.queue.ids(), start=1)}
    now = time.time()
    means = {
        run: sum(recent) / len(recent) for run, rows in pace.items() if (recent := rows[-RECENT_ROUNDS:])
    }
    own = {run.id: (run.rounds_total - run.rounds_done) * means[run.id] for run in runs if run.id in means}
    progress = []
    for run in runs:
        mean = means.get(run.id)
        beside = [own[other.id] for other in runs if other.owner == run.owner and other.id in own]
        up, down = (None if b is None else b / MEGABYTE for b in sent.get(run.id, (None, None)))
        progress.append(
            RunProgress(
                run,
                share=run.rounds_done / run.rounds_total if run.rounds_total else float(run.state == "done"),
                seconds_left=None if mean is None else sum(min(own[run.id], left) for left in beside),
                seconds=run.elapsed(now),
                queue_position=queued.get(run.id),
                seconds_per_round=mean,
                megabytes_up=up,
                megabytes_down=down,
                loading=loading[run.id],
            )
        )
    return progress


def seconds_outside_rounds(store: Store, runs: Iterable[RunRow]) -> dict[int, float]:
    """Return the seconds of each run outside its rounds; 0 where those of the rounds were not recorded.

    The first run of an experiment encodes the images for all others.
    """
    runs = list(runs)
    of_rounds = store.rounds.seconds(run.id for run in runs)
    return {
        run.id: max(0.0, (run.elapsed() or 0.0) - seconds) if (seconds := of_rounds.get(run.id)) else 0.0
        for run in runs
    }


def best_first(runs: Sequence[RunRow]) -> list[RunRow]:
    """Return runs by the mean accuracy of their method, highest first; unchanged until all have ended."""
    if any(not run.ended for run in runs):
        return list(runs)
    means = {
        of: mean_or_none(run.last_test for run in members)
        for of, members in group_by(runs, lambda run: (run.label, run.group_hash)).items()
    }
    return sorted(runs, key=lambda run: -(means[run.label, run.group_hash] or -1.0))


def log_tail(store: Store, run_id: int, lines: int = 40) -> str:
    """Return the last lines of a run's log; empty if it has written none."""
    path = store.runs.log_path(run_id)
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - LOG_BYTES))
        text = file.read().decode("utf-8", errors="replace")
    return "\n".join(text.splitlines()[-lines:])


RunIdentity = tuple[float, int]
"""Creation time and attempt: another database in the file's place may have a run of the same number."""
NewestRounds = tuple[tuple[int, int, RunIdentity], ...]
"""The round that is shown of each run: (run, round, identity), with round -1 before the first."""


def newest_snapshot(store: Store, run_ids: Iterable[int]) -> NewestRounds:
    """Return the newest snapshot of some runs, which changes only when a round has been recorded."""
    versions = store.runs.versions(run_ids)
    evaluated = store.rounds.last_evaluated(versions)
    return tuple(
        (
            run_id,
            max(version.rounds_done, evaluated[run_id][-1]) if run_id in evaluated else -1,
            (version.created_at, version.attempt),
        )
        for run_id, version in sorted(versions.items())
    )


def next_snapshot(
    shown: NewestRounds, now: NewestRounds, draws: Mapping[int, int], early: int
) -> NewestRounds:
    """Return the next snapshot to draw on the way from ``shown`` to ``now``.

    A very quick run is drawn at least ``early`` times, and not only at its end.

    Args:
        draws: run -> how often it has been drawn with a new round.
        early: number of drawings over which the first rounds of a run are spread.
    """
    snapshot = []
    for (run_id, old, _), (_, new, identity) in zip(shown, now, strict=True):
        left = early - draws.get(run_id, 0)
        step = -(-(new - old) // left) if left > 0 and new > old else new - old
        snapshot.append((run_id, old + step, identity))
    return tuple(snapshot)


NOT_SELECTED = " *"
"""Marks the method with the highest last test accuracy, where several have one and none was validated."""
_ORDER = ("running", "stopping", "queued", "failed", "interrupted", "stopped", "done")


@dataclass(frozen=True)
class ExperimentSummary:
    """One row of the list of experiments.

    Accuracies are per cent, of the method that is best on validation, mean over its finished runs, or over
    all while none has finished.

    Attributes:
        best_text: that method's label, perhaps with ``NOT_SELECTED``.
        state: the most important state of its runs: running, then waiting, then ended without success.
        share: of all rounds done, 0 to 1.
        curve: the method's mean personal accuracy by round.
        best_run: the method's first run that has recorded rounds.
    """

    row: ExperimentRow
    state: str
    states: dict[str, int]
    methods: tuple[str, ...]
    data: str
    seeds: str
    share: float
    done: int
    best_text: str
    last: float | None
    best: float | None
    worst: float | None
    curve: tuple[float, ...]
    seconds: float | None
    best_run: RunRow | None


def last_matrices(store: Store, runs: Iterable[RunRow]) -> dict[int, np.ndarray]:
    """Return by run the accuracies of its last round, shares by model and test set; nan if not measured.

    Runs whose last round was not evaluated are missing.
    """
    cells = store.cells.coded({run.id: [run.rounds_done] for run in runs})
    matrices = {}
    for run_id in np.unique(cells.run_id).tolist():  # a pivot of pandas takes five times as long
        of_run = cells[cells.run_id == run_id]
        models, rows = np.unique(of_run.model, return_inverse=True)
        test_sets, columns = np.unique(of_run.test_set, return_inverse=True)
        shares = np.full((len(models), len(test_sets)), np.nan)
        shares[rows, columns] = of_run.correct / of_run.total
        clients = np.isin(test_sets, models)  # as on Live
        matrices[run_id] = shares[:, clients] if clients.any() else shares
    return matrices


def summaries_of(store: Store, rows: Sequence[ExperimentRow]) -> list[ExperimentSummary]:
    """Return a summary of each of some experiments."""
    validated = store.rounds.validated(r.id for e in rows for r in e.runs)
    candidates = {}
    for e in rows:  # none of a search, whose draws are not results
        # imported runs may have been evaluated on other clients, so they are shown only without others
        ours = [r for r in e.runs if r.origin == "engine"] or list(e.runs)
        methods = group_by([] if e.config.tuning else ours, lambda r: r.label).values()
        # a run that failed early would lower the mean of those that have finished
        finished = ([r for r in of if r.state == "done"] or of for of in methods)
        candidates[e.id] = [r for of_method in finished for r in of_method]
    labels = {e.id: _best_label(candidates[e.id], validated) for e in rows}
    best = {e.id: [r for r in candidates[e.id] if r.label == labels[e.id][0]] for e in rows}
    curves = store.rounds.scores((r.id for runs in best.values() for r in runs), "personal_mean")
    summaries = []
    for e in rows:
        states = {s: sum(r.state == s for r in e.runs) for s in _ORDER}
        state = next((s for s in _ORDER if states[s]), "done")
        total = sum(r.rounds_total for r in e.runs)
        all_labels, shown = [r.label for r in e.runs], best[e.id]
        lines = [curves[r.id].values() for r in shown if r.id in curves]
        elapsed = [s for r in e.runs if (s := r.elapsed()) is not None]
        summaries.append(
            ExperimentSummary(
                row=e,
                state=state,
                states=states,
                methods=tuple(
                    dict.fromkeys(map(method_label, all_labels) if e.config.tuning else all_labels)
                ),
                data=data_titles(e.config),
                seeds=", ".join(map(str, sorted({r.seed for r in e.runs}))),
                share=sum(r.rounds_done for r in e.runs) / total if total else float(state == "done"),
                done=states["done"],
                best_text="".join(labels[e.id]),
                last=_mean(shown, "last_test"),
                best=_mean(shown, "best_test"),
                worst=_mean(shown, "worst_client"),
                curve=tuple(100 * sum(values) / len(lines) for values in zip(*lines, strict=False)),
                seconds=sum(elapsed) if elapsed else None,
                best_run=next((r for r in shown if r.rounds_done or r.state == "done"), None),
            )
        )
    return summaries


def _best_label(runs: Sequence[RunRow], validated: Mapping[int, float]) -> tuple[str, str]:
    """Return the method to show, best on validation or else at the last round, and the mark of the latter."""
    by_label = group_by(runs, lambda r: r.label)
    if len(by_label) == 1:
        return runs[0].label, ""
    for values, mark in ((validated, ""), ({r.id: r.last_test for r in runs}, NOT_SELECTED)):
        stats = {label: mean_or_none(values.get(r.id) for r in of) for label, of in by_label.items()}
        means = {label: mean for label, mean in stats.items() if mean is not None}
        if means:
            return max(means, key=means.__getitem__), mark
    return "", ""


def _mean(runs: Sequence[RunRow], field: str) -> float | None:
    return mean_or_none(None if (v := getattr(r, field)) is None else 100 * v for r in runs)


def matches(item: ExperimentSummary, text: str, states: Sequence[str], tag: str | None = None) -> bool:
    """Return whether an experiment has a tag, all words of ``text``, and a run in a state of ``states``."""
    if tag is not None and tag not in item.row.tags:
        return False
    content = " ".join([item.row.name, item.data, *item.methods, *item.row.tags, item.row.notes]).lower()
    return all(word in content for word in text.lower().split()) and (
        not states or any(item.states[s] for s in states)
    )


NOT_TUNED = "not tuned"
SEARCH_COLUMNS = ("tuning_draws", "search_rounds", "search_megabytes", "search_seconds")
"""Columns of exports with draws and cost of a row's search, which come on top of the cost of its runs."""


def budget_text(config: RunConfig) -> str:
    """Return the budget in words; empty if a method has nothing to search.

    ``8 draws``, ``8 draws on pacs`` if the values were selected on data that these runs do not have, or
    ``not tuned``.
    """
    tuned = config.method.tuned
    if tuned is not None:
        elsewhere = f" on {tuned.data}" if tuned.data not in (None, config.data.name) else ""
        return counted(tuned.draws, "draw") + elsewhere
    method = registry.find(config.method.name)  # None: a user's method, not loaded here
    return NOT_TUNED if method is None or search_ranges(method.Config) else ""


def budget_note(rows: Mapping[str, RunConfig]) -> str:
    """Say which budgets the rows of one setting had, by label; empty if none was tuned."""
    budgets = {label: text for label, config in rows.items() if (text := budget_text(config))}
    by_budget = group_by(budgets, budgets.__getitem__)
    if set(by_budget) <= {NOT_TUNED}:
        return ""
    if len(by_budget) == 1:
        return f"equal tuning budgets: {next(iter(by_budget))} for each method that has hyper-parameters"
    texts = "; ".join(f"{text}: {', '.join(labels)}" for text, labels in by_budget.items())
    return f"unequal tuning budgets, so that a difference may come from the search ({texts})"


def search_costs(config: RunConfig) -> dict[str, float | None]:
    """Return the ``SEARCH_COLUMNS`` of a row; None without a search."""
    tuned = config.method.tuned
    if tuned is None:
        return dict.fromkeys(SEARCH_COLUMNS)
    sent = None if tuned.bytes is None else tuned.bytes / MEGABYTE
    return dict(zip(SEARCH_COLUMNS, (tuned.draws, tuned.rounds, sent, tuned.seconds), strict=True))


@dataclass(frozen=True)
class SearchedMethod:
    """The search of one method.

    Attributes:
        draws: those that are queued or further, in order.
        budget: draws that the search will make; 1 if the method has nothing to search.
        fields: the hyper-parameters in which the draws differ, in the order of the method's config.
    """

    label: str
    draws: tuple[Draw, ...]
    budget: int
    fields: tuple[str, ...]

    @property
    def method(self) -> str:
        return self.draws[0].config.method.name

    @property
    def best(self) -> Draw | None:
        return best_draw(self.draws)

    @property
    def failed(self) -> int:
        return sum(draw.status == "failed" for draw in self.draws)

    @property
    def done(self) -> int:
        return sum(draw.status == "done" for draw in self.draws)

    def values(self, draw: Draw) -> dict[str, Any]:
        config = _resolved(draw)
        return {name: config.get(name) for name in self.fields}

    def values_text(self, draw: Draw) -> str:
        """Return the searched values of a draw in words: ``learning rate 0.003``."""
        paths = {f"methods.{self.method}.{name}": value for name, value in self.values(draw).items()}
        return ", ".join(f"{field_phrase(path)} {value_text(path, value)}" for path, value in paths.items())

    @property
    def text(self) -> str:
        """The draw that was selected, or is best so far: ``draw 3 of 8, learning rate 0.003, 91.2 %``."""
        if self.budget == 1:
            return "nothing to search"
        if self.best is None:
            return (
                f"all {counted(self.failed, 'draw')} failed"
                if self.failed == self.budget
                else "no draw is done"
            )
        return (
            f"draw {self.best.number} of {self.budget}, {self.values_text(self.best)}, "
            f"{100 * (self.best.validation or 0):.1f} % on validation samples"
        )


def methods_of(store: Store, experiment: ExperimentRow) -> list[SearchedMethod]:
    """Return the searches of an experiment's methods, in its order."""
    assert experiment.config.tuning is not None, "callers ask for searches"
    found = []
    for label, draws in store.searches.draws(experiment.id).items():
        configs = [_resolved(draw) for draw in draws]
        names = dict.fromkeys(name for config in configs for name in config)
        fields = [name for name in names if any(c.get(name) != configs[0].get(name) for c in configs)]
        budget = experiment.config.tuning.draws if draws[-1].number > 1 else 1
        found.append(SearchedMethod(label, tuple(draws), budget, tuple(fields)))
    return found


def _resolved(draw: Draw) -> Mapping[str, Any]:
    """Return a draw's hyper-parameters with their defaults; those of a method not known here as stored."""
    method = draw.config.method
    try:
        return registry.build_config(method.name, method.config).model_dump(mode="json")
    except FedLensError:
        return method.config
