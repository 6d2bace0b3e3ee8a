"""The list of experiments: progress, state and best accuracies of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedcore.config.field_names import data_title
from fedcore.results.statistics import spread
from fedcore.store import ExperimentRow, RunRow, Store

NO_BEST = "none (no validation)"
"""Stands for the best method where several have test accuracies and none was validated."""
_ORDER = ("running", "stopping", "queued", "failed", "interrupted", "stopped", "done")


@dataclass(frozen=True)
class ExperimentSummary:
    """One row of the list of experiments.

    Accuracies are per cent, of the method that is best on validation, mean over seeds.

    Attributes:
        best_text: that method's label, or why there is none.
        state: the most important state of its runs: running, then waiting, then ended without success.
        share: of all rounds done, 0 to 1.
        curve: the method's mean personal accuracy by round.
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


def experiment_summaries(store: Store, archived: bool = False) -> list[ExperimentSummary]:
    """Return all experiments, newest first."""
    return summaries_of(store, store.experiments.all(include_archived=archived))


def summaries_of(store: Store, rows: Sequence[ExperimentRow]) -> list[ExperimentSummary]:
    """Return a summary of each of some experiments."""
    validated = store.rounds.validated(r.id for e in rows for r in e.runs)
    # runs from elsewhere may have been evaluated on other clients: they are shown where there are no others
    candidates = {e.id: [r for r in e.runs if r.origin == "engine"] or list(e.runs) for e in rows}
    labels = {e.id: _best_label(candidates[e.id], validated) for e in rows}
    best = {e.id: [r for r in candidates[e.id] if r.label == labels[e.id]] for e in rows}
    curves = store.rounds.personal_curves(r.id for runs in best.values() for r in runs)
    return [_summary(e, labels[e.id], best[e.id], curves) for e in rows]


def _best_label(runs: Sequence[RunRow], validated: Mapping[int, float]) -> str | None:
    """Return the method to show, selected on validation; without validation only if there is just one."""
    labels = tuple(dict.fromkeys(r.label for r in runs))
    if len(labels) == 1:
        return labels[0]
    stats = {label: spread(validated.get(r.id) for r in runs if r.label == label) for label in labels}
    known = {label: stat.mean for label, stat in stats.items() if stat is not None}
    return max(known, key=lambda label: known[label]) if known else None


def _mean(runs: Sequence[RunRow], field: str) -> float | None:
    """Return the mean over some runs, in per cent."""
    values = [getattr(r, field) for r in runs]
    stat = spread(None if v is None else 100 * v for v in values)
    return None if stat is None else stat.mean


def _summary(
    e: ExperimentRow, label: str | None, best: Sequence[RunRow], curves: dict[int, list[float]]
) -> ExperimentSummary:
    states = {s: sum(r.state == s for r in e.runs) for s in _ORDER}
    state = next((s for s in _ORDER if states[s]), "done")
    total = sum(r.rounds_total for r in e.runs)
    lines = [curves[r.id] for r in best if r.id in curves]
    return ExperimentSummary(
        row=e,
        state=state,
        states=states,
        methods=tuple(dict.fromkeys(r.label for r in e.runs)),
        data=data_title(e.config.data),
        seeds=", ".join(map(str, sorted({r.seed for r in e.runs}))),
        share=sum(r.rounds_done for r in e.runs) / total if total else float(state == "done"),
        done=states["done"],
        best_text=label or (NO_BEST if any(r.last_test is not None for r in e.runs) else ""),
        last=_mean(best, "last_test"),
        best=_mean(best, "best_test"),
        worst=_mean(best, "worst_client"),
        curve=tuple(100 * sum(values) / len(lines) for values in zip(*lines, strict=False)),
        seconds=sum(known) if (known := [s for r in e.runs if (s := r.elapsed()) is not None]) else None,
    )


def matches(item: ExperimentSummary, text: str, states: Sequence[str]) -> bool:
    """Return whether an experiment contains all words of ``text`` and a run in a state of ``states``."""
    content = " ".join([item.row.name, item.data, *item.methods, *item.row.tags, item.row.notes]).lower()
    return all(word in content for word in text.lower().split()) and (
        not states or any(item.states[s] for s in states)
    )
