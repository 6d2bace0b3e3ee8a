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

import jinja2
from markupsafe import Markup

import fedcore
from fedcore.base.errors import FedLensError
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

HIDING = "//textarea|//xmp|//iframe|//noembed|//noframes|//plaintext|//svg//style|//svg//script|//math"
"""Elements in which a browser may show a table where a parser reads text."""


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

    They are all of a setting, with the numbers that a pointer or a program finds, and the rows of all other
    tables but those of configs and environments. The numbers by which a database counts its runs and
    experiments are left out, and so are runs that are in no table.
    """
    import lxml.html  # here, since a report is written without it

    parser = lxml.html.HTMLParser(encoding="utf-8", huge_tree=True)
    tree = lxml.html.document_fromstring(page.encode(), parser)
    if cut := parser.error_log.filter_from_fatals():
        raise FedLensError(f"the page cannot be read to its end: {cut[0].message}", "bundle")
    if hiding := tree.xpath(HIDING):
        raise FedLensError(f"the page has an element <{hiding[0].tag}>, which no report has there", "bundle")
    parts: dict[str, list[str]] = {}
    section = part = ""
    for found in tree.xpath("//text() | //@title | //@data-value"):
        text, holder = " ".join(found.split()), found.getparent()
        if not text:
            continue
        if found.is_tail:  # it follows that element
            holder = holder.getparent()
        around = [holder, *holder.iterancestors()]
        row = next((element for element in around if element.tag == "tr"), None)
        of = next((element.get("id") or "" for element in around if element.tag in ("section", "script")), "")
        if of != section:
            section = part = of
        if holder.tag == "h3" or (holder.tag == "caption" and all(e.tag != "figure" for e in around)):
            part = f"{section}: {text}"
        texts = [text]
        if section == "summary":
            texts = re.sub(r'"runs": "[^"]*"', "", text).split("}, {")
        elif section == "runs" and row is not None:
            if holder in row[:2] or "left out" in row.itertext():
                continue
        elif not section.startswith("setting-") and (row is None or section in ("configs", "environment")):
            continue
        parts.setdefault(part, []).extend(filter(None, texts))
    return parts
