"""The report as one HTML file: it opens from disk, asks the network for nothing, and prints on A4.

Charts are still pictures in SVG, which need no script; a small script shows what the pointer is on. Text of
users is escaped by Jinja and by the writer of SVG. The file's Content Security Policy forbids every request,
and every script but the one that it holds and names by its digest.
"""

import base64
import hashlib
import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from html.parser import HTMLParser

import jinja2
from markupsafe import Markup

import fedcore
from fedcore.base.files import ASSETS
from fedcore.base.progress import Progress, Work
from fedcore.config import dumps
from fedcore.results.charts.still import MAX_ASPECT, still
from fedcore.results.charts.traces import PAPER
from fedcore.results.charts.vector import PIXELS_PER_INCH, Picture, inline_svg
from fedcore.results.exports import summary_rows
from fedcore.results.finding import finding
from fedcore.results.metrics import METRICS, RULES
from fedcore.results.run_files import trained_with
from fedcore.results.sharing import bibtex
from fedcore.share import content
from fedcore.share.content import Report, TextCell, TextTable
from fedcore.share.views import Figure, Heatmaps

PAGE_WIDTH = 6.9 * PIXELS_PER_INCH
"""Width of a page of A4 between its margins, and of both columns of a paper."""
HALF_WIDTH = 3.35 * PIXELS_PER_INCH
"""Width of a figure that has another one beside it."""


@dataclass(frozen=True)
class DrawnChart:
    """A chart of the page with its text alternative and its numbers as a table.

    Attributes:
        small: whether another one has room beside it.
    """

    title: str
    small: bool
    svg: Markup
    alt: str
    numbers: Sequence[TextTable]


def report_html(report: Report) -> Work[str]:
    """Return the report as the text of one HTML file."""
    total, drawn = sum(len(s.figures) for s in report.sections), list[list[DrawnChart]]()
    for section in report.sections:
        drawn.append([])
        for figure in section.figures:
            yield Progress("drawing the figures", sum(map(len, drawn)), total)
            drawn[-1].append(draw(figure))
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(ASSETS / "report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    script = (ASSETS / "report" / "report.js").read_text(encoding="utf-8")
    sections = [
        {
            "title": s.table.title,
            "paragraph": s.paragraph,
            "finding": finding(report.summary, s.table),
            "summary": content.summary_table(report.summary, s.table),
            "breakdowns": content.breakdown_tables(s.table),
            "drawings": drawings,
        }
        for s, drawings in zip(report.sections, drawn, strict=True)
    ]
    return environment.get_template("report.html.j2").render(
        policy=content_security_policy(script),
        style=Markup((ASSETS / "report" / "report.css").read_text(encoding="utf-8")),
        script=Markup(script),
        report=report,
        notes=[p for p in report.wording.notes.split("\n\n") if p.strip()],
        sections=sections,
        metric=METRICS[report.summary.metric].title,
        rule=RULES[report.comparison.rule],
        notices=content.notices(report),
        configs=content.config_tables(report),
        environment=content.environment_table(report),
        runs=content.runs_table(report),
        recipe=report.recipe,
        experiments={e.name: dumps(e.config) for e in report.recipe.experiments},
        recipe_data=_json_in_script(report.recipe.model_dump_json()),
        can_rerun=any(run.origin == "engine" for run in report.recipe.runs),
        sources=content.sources(report),
        bibtex=bibtex(report.comparison.rows),
        trained=list(dict.fromkeys(trained_with(e) for e in report.environments.values() if e)),
        data=_json_in_script(json.dumps(summary_rows(report.summary), ensure_ascii=False, allow_nan=False)),
        version=fedcore.__version__,
        written=time.strftime("%Y-%m-%d %H:%M"),
    )


def draw(figure: Figure) -> DrawnChart:
    """Draw a figure for the page."""
    small = figure.narrow or figure.name.startswith("cost-")
    small = small or (isinstance(figure, Heatmaps) and len(figure.panels) == 1)
    aspect = 0.4 if figure.name.startswith("curves-") else 0.5  # three rows of them fit onto a page
    drawn, alt = picture(figure, HALF_WIDTH, aspect) if small else picture(figure)
    numbers = []
    for title, columns in figure.numbers():
        values = zip(*columns.values(), strict=True)
        rows = [[TextCell(content.NONE if v is None else str(v)) for v in row] for row in values]
        numbers.append(TextTable(title, [(name, i > 0) for i, name in enumerate(columns)], rows))
    return DrawnChart(figure.title, small, Markup(inline_svg(drawn, alt)), alt, numbers)


def picture(figure: Figure, width: float = PAGE_WIDTH, aspect: float = MAX_ASPECT) -> tuple[Picture, str]:
    """Return a figure in the light theme, which prints, and its text alternative."""
    chart = figure.chart(PAPER, round(width))
    return still(chart.figure, width, figure.name, aspect), chart.alt


def content_security_policy(script: str) -> str:
    """Return a policy that allows this script, inline styles and embedded images, and no request at all."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _json_in_script(text: str) -> Markup:
    """Return JSON that an HTML parser reads as it is: no text in it can end the element or open a comment."""
    return Markup(text.replace("<", "\\u003c"))


def printed_parts(page: str) -> dict[str, list[str]]:
    """Return the texts that a page prints about its runs by the title of their table or figure.

    The numbers that a pointer or a program finds are among them. The numbers by which a database counts its
    runs and experiments are left out, and so are runs that are in no table.
    """
    reader = _Printed()
    reader.feed(page)
    return reader.parts


class _Printed(HTMLParser):
    """Reads every table but those of configs and environments, and all text of settings and their figures."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: dict[str, list[str]] = {}
        self.section, self.part, self.tag = "", "", ""
        self.in_figure = False
        self.row: list[str] | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tag, given = tag, dict(attrs)
        if tag in ("section", "script"):
            self.section = self.part = given.get("id") or ""
        self.in_figure |= tag == "figure"
        self.row = [] if tag == "tr" else self.row
        self._add([given[name] or "" for name in ("title", "data-value") if name in given])

    def handle_endtag(self, tag: str) -> None:
        self.in_figure &= tag != "figure"
        if tag == "tr" and self.row is not None:
            row, self.row = self.row, None
            if self.section == "runs":
                row = [] if "left out" in row else row[2:]
            if row and self.section not in ("configs", "environment"):
                self.parts.setdefault(self.part, []).extend(row)
        elif tag in ("section", "script"):
            self.section = self.part = ""

    def handle_data(self, data: str) -> None:
        text = " ".join(data.split())
        if text and (self.tag == "h3" or (self.tag == "caption" and not self.in_figure)):
            self.part = f"{self.section}: {text}"
        if self.section == "summary":
            self._add(re.sub(r'"runs": "[^"]*"', "", text).split("}, {"))
        elif text:
            self._add([text])

    def _add(self, texts: Sequence[str]) -> None:
        if self.row is not None:
            self.row += texts
        elif self.section == "summary" or self.section.startswith("setting-"):
            self.parts.setdefault(self.part, []).extend(texts)
