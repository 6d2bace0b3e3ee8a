"""The content of a report: the tables and figures of a comparison, before anything is drawn."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedcore.base.errors import FedLensError
from fedcore.base.progress import Progress, Work
from fedcore.results.comparison import Comparison
from fedcore.results.rows import setting_paragraph
from fedcore.results.summary import Summary, SummaryTable
from fedcore.share import views
from fedcore.share.checked import CheckedComparison, ComparisonChoices, available_metrics
from fedcore.share.recipe import Recipe, recipe_of
from fedcore.share.views import Figure, ViewSource

PARTS = ("summary", *views.NAMES, "breakdowns", "configs", "environment", "runs", "reproduction", "citation")
"""The parts of a report that may be left out, in order; setting, finding and notices never may."""


@dataclass(frozen=True)
class Wording:
    """The decisions of a report's author beside the comparison.

    Attributes:
        title: default: the names of the experiments.
        notes: text below the title; an empty line begins a paragraph.
        parts: those of ``PARTS`` that the report has; None: all.
    """

    title: str = ""
    notes: str = ""
    parts: tuple[str, ...] | None = None

    def has(self, part: str) -> bool:
        return self.parts is None or part in self.parts


@dataclass(frozen=True)
class Section:
    """One setting (data, partition, backbone): its paragraph and table, and the figures of every view."""

    table: SummaryTable
    figures: tuple[Figure, ...]
    paragraph: str


@dataclass(frozen=True)
class Report:
    """Everything that a report shows; ``environments`` are the recorded conditions of each run."""

    summary: Summary
    choice: ComparisonChoices
    wording: Wording
    sections: tuple[Section, ...]
    environments: Mapping[int, Mapping[str, Any]]
    recipe: Recipe

    @property
    def comparison(self) -> Comparison:
        return self.summary.comparison

    @property
    def name(self) -> str:
        return self.wording.title or ", ".join(e.name for e in self.comparison.experiments)


def read_report(checked: CheckedComparison, wording: Wording | None = None) -> Work[Report]:
    """Read the figures of a comparison."""
    wording = wording or Wording()
    for part in wording.parts or ():
        if part not in PARTS:
            raise FedLensError(f"a report has no part '{part}'; choose from {', '.join(PARTS)}", "parts")
    store, compared, choice = checked.store, checked.comparison, checked.choice
    compared.check_rows()
    available = available_metrics(compared)
    if choice.metric is not None and choice.metric not in available:
        raise FedLensError(
            f"no row has the metric '{choice.metric}'; there are: {', '.join(available)}", "metric"
        )
    source = ViewSource(store, compared, checked.summary.metric, choice.baseline)
    sections: list[Section] = []
    chosen = [view for name, view in views.views().items() if wording.has(name)]
    for table in checked.summary.tables:
        figures: list[Figure] = []
        for view in chosen:
            done = len(sections) * len(chosen) + chosen.index(view)
            yield Progress("reading the results", done, len(chosen) * len(checked.summary.tables))
            figures += view.figures(source, table.setting)
        rows = compared.rows_in(table.setting)
        paragraph = f"{setting_paragraph(store, rows)} {checked.printed.presets_text(rows)}".rstrip()
        sections.append(Section(table, tuple(figures), paragraph))
    environments = {run.id: store.runs.environment(run.id) for run in compared.runs}
    recipe = recipe_of(checked, wording.title)
    return Report(checked.summary, choice, wording, tuple(sections), environments, recipe)
