"""The report as one HTML file: it opens from disk, asks the network for nothing and runs only its own script.

Text of users is escaped by Jinja, and in the data of charts for JSON and for plotly. The file's Content
Security Policy forbids every request, and every script but the two that it holds and names by their digests.
"""

from __future__ import annotations

import base64
import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import jinja2
from markupsafe import Markup

import fedcore
from fedcore.paths import ASSETS
from fedcore.plots.chart import Chart
from fedcore.plots.theme import Theme, apply_theme
from fedcore.reports import tables
from fedcore.reports.content import Report
from fedcore.reports.reproduce import fedlens_bibtex
from fedcore.reports.tables import TextCell, TextTable
from fedcore.reports.views.view import Figure
from fedcore.results.exports import summary_rows
from fedcore.results.finding import finding
from fedcore.results.metrics import METRICS, RULES
from fedcore.results.run_files import trained_with

WIDTH = 1100
"""Width in pixels for which charts are laid out; they follow the window."""
DEFAULT_HEIGHT = 450
"""Height in pixels of a figure that has none of its own, which is plotly's default."""


@dataclass(frozen=True)
class DrawnChart:
    """A chart of the page with its text alternative and its numbers as a table."""

    title: str
    chart: Chart
    numbers: Sequence[TextTable]

    @property
    def json(self) -> Markup:
        """The figure as JSON within a script element, which no text in it can end."""
        return _json_in_script(self.chart.figure.to_json())

    @property
    def height(self) -> int:
        """The height in pixels, reserved until the chart is drawn."""
        return int(self.chart.figure.layout.height or DEFAULT_HEIGHT)


def report_html(report: Report) -> str:
    """Return the report as the text of one HTML file."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(ASSETS / "report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    scripts = [_plotly(), (ASSETS / "report" / "report.js").read_text(encoding="utf-8")]
    sections = [
        {
            "title": s.table.title,
            "finding": finding(report.summary, s.table),
            "summary": tables.summary_table(report.summary, s.table),
            "breakdowns": tables.breakdown_tables(s.table),
            "drawings": [draw(d) for d in s.figures],
        }
        for s in report.sections
    ]
    return environment.get_template("report.html.j2").render(
        policy=content_security_policy(scripts),
        style=Markup((ASSETS / "report" / "report.css").read_text(encoding="utf-8")),
        scripts=[Markup(s) for s in scripts],
        report=report,
        sections=sections,
        metric=METRICS[report.summary.metric],
        rule=RULES[report.comparison.rule],
        notices=tables.notices(report),
        configs=tables.config_tables(report),
        environment=tables.environment_table(report),
        runs=tables.runs_table(report),
        sources=tables.sources(report),
        bibtex=fedlens_bibtex(),
        trained=list(dict.fromkeys(trained_with(e) for e in report.environments.values() if e)),
        data=_json_in_script(json.dumps(summary_rows(report.summary), ensure_ascii=False, allow_nan=False)),
        version=fedcore.__version__,
        written=time.strftime("%Y-%m-%d %H:%M"),
    )


def draw(figure: Figure) -> DrawnChart:
    """Draw a figure in the light theme, which prints."""
    theme = Theme()
    chart = figure.chart(theme, WIDTH)
    apply_theme(chart.figure, theme)
    chart.figure.update_layout(template="none")
    return DrawnChart(figure.title, chart, [_numbers(title, table) for title, table in figure.numbers()])


def _numbers(title: str, columns: Mapping[str, Sequence[object]]) -> TextTable:
    rows = [
        [TextCell(tables.NONE if value is None else str(value)) for value in row]
        for row in zip(*columns.values(), strict=True)
    ]
    return TextTable(title, [(name, i > 0) for i, name in enumerate(columns)], rows)


def content_security_policy(scripts: Sequence[str]) -> str:
    """Return a policy that allows these scripts and inline styles, and no request at all."""
    digests = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in scripts
    )
    return (
        f"default-src 'none'; script-src {digests}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _json_in_script(text: str) -> Markup:
    """Return JSON that an HTML parser reads as it is: no text in it can end the element or open a comment."""
    return Markup(text.replace("<", "\\u003c"))


@cache
def _plotly() -> str:
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())
