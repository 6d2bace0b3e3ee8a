"""Tuning budgets of rows that stand side by side: who was tuned, with how many draws, and at what cost.

More draws give a higher expected maximum, so unequal budgets are named wherever rows are compared (Dodge et
al., "Show Your Work: Improved Reporting of Experimental Results", EMNLP 2019).
"""

from __future__ import annotations

from collections.abc import Mapping

from fedcore.config import RunConfig
from fedcore.config.field_names import load_methods
from fedcore.methods import registry
from fedcore.methods.hyperparameters import search_ranges
from fedcore.progress import counted
from fedcore.results.progress import MEGABYTE
from fedcore.results.statistics import group_by

NOT_TUNED = "not tuned"
SEARCH_COLUMNS = ("tuning_draws", "search_rounds", "search_megabytes", "search_seconds")
"""Columns of exports with draws and cost of a row's search, which come on top of the cost of its runs."""


def budget_text(config: RunConfig) -> str:
    """Return the budget in words, ``8 draws`` or ``not tuned``; empty if a method has nothing to search."""
    tuned = config.method.tuned
    if tuned is not None:
        return counted(tuned.draws, "draw")
    load_methods()
    method = registry.registered().get(config.method.name)  # None: a method of one's own, not loaded here
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
