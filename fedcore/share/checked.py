"""A comparison that may leave FedLens, and the writers of its tables as files by name and format."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property

from fedcore.base.errors import FedLensError
from fedcore.papers.reproductions import printed_values
from fedcore.results import exports
from fedcore.results.comparison import Comparison, compare
from fedcore.results.metrics import METRICS, Metric, Rule
from fedcore.results.sharing import leaderboard_csv, summary_latex
from fedcore.results.statistics import Test
from fedcore.results.summary import PrintedValues, Summary, offered_metrics, summarise
from fedcore.share import Format, TableName
from fedcore.store import Store


@dataclass(frozen=True)
class ComparisonChoices:
    """The reader's choices, as above the tabs of the page Compare.

    Attributes:
        metric: of the differences; None: the first that the comparison has.
        baseline: label of the row from which differences are taken.
        unfinished: include runs that have not done all their rounds.
        where: keeps some runs only, see ``compare``.
        digits: decimals of the tables.
        as_launched: rows in the order of the experiments; default: by their means, highest first.
    """

    rule: Rule = "last"
    metric: Metric | None = None
    baseline: str | None = None
    test: Test = "t"
    unfinished: bool = False
    where: str = ""
    digits: int = 2
    as_launched: bool = False


@dataclass(frozen=True)
class CheckedComparison:
    """A comparison that may leave FedLens: every file is written from this one value.

    Attributes:
        store: the snapshot of the database that was checked and compared, open for ``checked_comparison``.
        printed: the values that papers print for its rows.
    """

    store: Store
    comparison: Comparison
    choice: ComparisonChoices
    printed: PrintedValues

    @cached_property
    def summary(self) -> Summary:
        choice = self.choice
        return summarise(
            self.comparison,
            choice.baseline,
            choice.test,
            self.printed,
            metric=choice.metric or first_metric(self.comparison),
            digits=choice.digits,
        )


def available_metrics(comparison: Comparison) -> list[Metric]:
    """Return the metrics by which the rows of at least one setting can be compared."""
    offered = {m for setting in comparison.settings for m in offered_metrics(comparison.rows_in(setting))}
    return [m for m in METRICS if m in offered]


def first_metric(comparison: Comparison) -> Metric:
    """Return the metric by which rows are compared where nobody has chosen one."""
    return next(iter(available_metrics(comparison)), "personal")


@contextmanager
def checked_comparison(
    store: Store, experiment_ids: Iterable[int], choice: ComparisonChoices | None = None, printed: bool = True
) -> Iterator[CheckedComparison]:
    """Check and compare some experiments once, for all files that are then written.

    Args:
        printed: whether the files show the values that papers print.
    """
    choice, ids = choice or ComparisonChoices(), list(experiment_ids)
    with store.checked(ids) as sound:
        compared = compare(sound, ids, choice.rule, unfinished=choice.unfinished, where=choice.where)
        if not choice.as_launched:
            compared = compared.best_first(choice.metric or first_metric(compared))
        if choice.baseline is not None and compared.rows:
            choice = replace(choice, baseline=_baseline_label(compared, choice.baseline))
        experiments = compared.experiments if printed else ()
        values = printed_values(compared, [e.config for e in experiments])
        yield CheckedComparison(sound, compared, choice, values)


def _baseline_label(comparison: Comparison, baseline: str) -> str:
    """Return the label of the rows that a baseline names by their label or by their method's name."""
    labels = dict.fromkeys(row.label for row in comparison.rows)
    if baseline in labels:
        return baseline
    named = list(dict.fromkeys(row.label for row in comparison.rows if row.method == baseline))
    if len(named) > 1:
        raise FedLensError(f"'{baseline}' may be {' or '.join(named)}; give one of these names", "baseline")
    if not named:
        raise FedLensError(f"no method '{baseline}' in the table; there are: {', '.join(labels)}", "baseline")
    return named[0]


WRITERS: dict[tuple[TableName, Format], Callable[[CheckedComparison], Iterable[str]]] = {
    ("summary", "csv"): lambda c: [exports.rows_csv(exports.summary_rows(c.summary))],
    ("summary", "latex"): lambda c: [summary_latex(c.summary)],
    ("summary", "json"): lambda c: [exports.summary_json(c.store, c.summary)],
    ("domains", "csv"): lambda c: [exports.rows_csv(exports.domain_rows(c.comparison))],
    ("configs", "csv"): lambda c: [exports.rows_csv(exports.config_rows(c.comparison))],
    ("breakdowns", "csv"): lambda c: [
        exports.rows_csv(exports.breakdown_rows(c.comparison), exports.BREAKDOWN_COLUMNS)
    ],
    ("costs", "csv"): lambda c: [exports.costs_csv(c.store, c.comparison, c.summary.metric)],
    ("rounds", "csv"): lambda c: exports.rounds_csv(c.store, c.comparison),
    ("clients", "csv"): lambda c: [exports.clients_csv(c.store, c.comparison)],
    ("diagnostics", "csv"): lambda c: [exports.diagnostics_csv(c.store, c.comparison)],
    ("leaderboard", "csv"): lambda c: [leaderboard_csv(c.store, c.comparison, c.printed)],
    ("experiment", "json"): lambda c: [c.store.experiments.to_json(e.id for e in c.comparison.experiments)],
}
"""The writer of each file, which gives its text in parts; ``experiment`` is all that was recorded, to import
elsewhere."""
