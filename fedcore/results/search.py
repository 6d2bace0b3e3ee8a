"""Searches for hyper-parameters as a reader sees them: the draws of each method, and the budgets of rows.

More draws give a higher expected maximum, so unequal budgets are named wherever rows are compared (Dodge et
al., "Show Your Work: Improved Reporting of Experimental Results", EMNLP 2019).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedcore.base.errors import FedLensError
from fedcore.base.progress import counted
from fedcore.config import RunConfig
from fedcore.config.field_names import field_phrase, value_text
from fedcore.methods import registry
from fedcore.methods.hyperparameters import search_ranges
from fedcore.results.progress import MEGABYTE
from fedcore.results.statistics import group_by
from fedcore.store import ExperimentRow, Store
from fedcore.store.experiments import Draw, best_draw

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
