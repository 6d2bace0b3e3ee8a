"""A paper's table as HTML: in each cell the printed value, and below it ours or what is missing."""

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby

from fedcore.base.progress import about, counted
from fedcore.papers import library
from fedcore.papers.cells import TableCell, has_runs
from fedcore.papers.layout import Heads, PrintedPanel, PrintedTable
from fedcore.papers.library import Paper
from fedcore.papers.published import Finding, PublishedValue
from pages.widgets.markup import esc, scrolled_table

FULL_GAP, STRONGEST = 5.0, 38
"""Difference in points at which the colour of a cell is strongest, and its strength there in per cent."""


def source_html(paper: Paper) -> str:
    """Return a source's title, authors, venue and links, and from what its values were read, as HTML."""
    pages = {paper.identifier: paper.address, paper.link: paper.link}
    style = 'target="_blank" style="color: inherit"'
    links = [f'<a href="{esc(to)}" {style}>{esc(name)}</a>' for name, to in pages.items() if to]
    where = ", ".join(links) or "no address found"
    title, read = paper.full_title or paper.title, paper.read_from or library.KINDS[paper.kind]
    return f"<b>{esc(title)}</b>. {esc(paper.citation)}; {where}. Read from {esc(read)} ({paper.kind})."


def table_html(
    table: PrintedTable,
    by_value: Mapping[PublishedValue, TableCell],
    cost: Callable[[TableCell], float | None],
    found: Callable[[PublishedValue], Sequence[Finding]],
) -> str:
    """Return all panels of a table, each of which can be scrolled sideways, with what the audits found."""

    def cell_html(position: int, column: int, first: bool, named: Sequence[str]) -> str:
        cell = by_value[table.values[position]]
        return _cell(cell, position, column, first, named, cost(cell), found(cell.value))

    html = ""
    for number, panel in enumerate(table.panels):
        label = ", ".join(filter(None, (table.title, panel.title)))
        content = f"<thead>{_head(panel)}</thead><tbody>{''.join(_rows(number, panel, cell_html))}</tbody>"
        html += f"<h3>{esc(panel.title)}</h3>" if panel.title else ""
        html += scrolled_table(content, label, "scroll", "")
    return html


def _head(panel: PrintedPanel) -> str:
    """Return a row for each level of headings; a heading of several columns spans them."""
    width = len(panel.rows[0].heads)
    lines = []
    for level in range(len(panel.columns[0])):
        cells = f'<td colspan="{width}"></td>'
        for heads, group in groupby(panel.columns, key=lambda column: column[: level + 1]):
            span = len(list(group))
            scope = "colgroup" if span > 1 else "col"
            cells += f'<th scope="{scope}" colspan="{span}">{esc(heads[-1])}</th>'
        lines.append(f"<tr>{cells}</tr>")
    return "".join(lines)


def _rows(number: int, panel: PrintedPanel, cell_html: Callable[..., str]) -> Sequence[str]:
    lines, spans = [], _spans([row.heads for row in panel.rows])
    for i, row in enumerate(panel.rows):
        # the level keeps a row heading in view beside those of outer levels
        levels = [f'data-level="{n}" style="--left: var(--left-{n}, 0)"' for n in range(len(row.heads))]
        line = "".join(
            f'<th class="outer" scope="rowgroup" rowspan="{span}" {level}>{esc(head)}</th>'
            for level, head, span in zip(levels, row.heads, spans[i], strict=False)
            if span
        )
        line += (
            f'<th class="row" scope="row" data-column="head" {levels[-1]}>'
            f'<button data-choice="row {number} {i}" '
            f'tabindex="-1" title="All values of this row">{esc(row.heads[-1])}</button></th>'
        )
        for j, position in enumerate(row.cells):
            first = j > 0 and panel.columns[j][:1] != panel.columns[j - 1][:1]
            if position is None:
                line += f'<td class="{"first" if first else ""}" data-column="{j}"></td>'
            else:
                line += cell_html(position, j, first, (panel.title, *row.heads, *panel.columns[j]))
        lines.append(f"<tr>{line}</tr>")
    return lines


def _spans(heads: Sequence[Heads]) -> list[list[int]]:
    """Return the number of rows that each outer heading of a row spans; 0 if it began in a row above."""
    spans = [[0] * (len(head) - 1) for head in heads]
    for level in range(len(heads[0]) - 1):
        start = 0
        for _, group in groupby(heads, key=lambda head: head[: level + 1]):
            length = len(list(group))
            spans[start][level] = length
            start += length
    return spans


def _cell(
    cell: TableCell,
    position: int,
    column: int,
    first: bool,
    named: Sequence[str],
    seconds: float | None,
    found: Sequence[Finding],
) -> str:
    css, style = ["first"] if first else [], ""
    if cell.gap:
        css.append("higher" if cell.gap > 0 else "lower")
        style = f' style="--gap:{min(1.0, abs(cell.gap) / FULL_GAP) * STRONGEST:.0f}"'
    if cell.status == "rehearsed" or (cell.current is not None and _of_rehearsal(cell)):
        css.append("rehearsed")
    if cell.active:
        css.append("progress")
    more = cell.gap_text  # the difference to the paper, or the time that missing runs take if it is known
    if not more and seconds and cell.status in ("can be run", "needs weights") and not cell.active:
        more = about(seconds)
    where = ", ".join(filter(None, named))
    audited = [f"Audit, {finding.kind}: {finding.text}" for finding in found]
    warnings = dict.fromkeys(finding.kind for finding in found if finding.warns)
    said = ". ".join([f"{where}: printed {cell.value.text}; {spoken(cell, seconds)}", *audited])
    return (
        f'<td class="{" ".join(css)}"{style} data-column="{column}">'
        f'<button data-choice="cell {position}" tabindex="-1" aria-label="{esc(said)}" title="{esc(said)}">'
        f'<span class="printed">{esc(cell.value.text)}</span><span class="ours">{our_line(cell)}</span>'
        + (f'<span class="cost">{esc(more)}</span>' if more else "")
        + "".join(f'<span class="audit">⚠ {esc(kind)}</span>' for kind in warnings)
        + "</button></td>"
    )


def our_line(cell: TableCell) -> str:
    """Return the second line of a cell as HTML: our value, or the reason why it is missing."""
    if cell.stat is not None:
        value = cell.stat.text(cell.value.digits)
        if cell.status == "rehearsed":
            return f"<i>{esc(value)}</i> no evidence"
        return f"{cell.comparability.mark or '='} {esc(value)} ({cell.stat.n or cell.seeds_text})"
    if cell.active:
        value = "" if cell.current is None else f"<i>{cell.current:.{cell.value.digits}f}</i> "
        return value + ("no evidence, " if value and _of_rehearsal(cell) else "") + esc(progress_text(cell))
    if cell.source is None and not has_runs(cell.value.paper, cell.value.table):
        return ""  # the text above the table says why
    words = {
        "can be run": f"▷ {counted(len(cell.missing), 'run')}",
        "needs weights": "▷ needs weights",
        "needs data": "- no data",
        "not implemented": "- no method",
        "no single run": "- no run",
    }
    return esc(words[cell.status])


def _of_rehearsal(cell: TableCell) -> bool:
    return cell.source is not None and cell.source.rehearsal


def spoken(cell: TableCell, seconds: float | None) -> str:
    """Describe a cell in words, for screen readers and the hover text."""
    if cell.stat is not None:
        text = f"ours {cell.stat.text(cell.value.digits)}, {cell.seeds_text}"
        if cell.status == "rehearsed":
            return f"{text}, a rehearsal: no evidence"
        text += f", {cell.comparability.text or 'comparable'}"
        return f"{text}; difference {cell.gap_text}" if cell.gap_text else text
    if cell.active:
        return progress_text(cell)
    if cell.reason:
        return cell.reason
    lacking = "; ".join(f"this machine lacks {lack.text}" for lack in cell.lacks)
    time = "" if seconds is None else f", {about(seconds)}"
    needed = f"needs {counted(len(cell.missing), 'run')}{time}"
    return "; ".join(filter(None, (lacking, needed)))


def progress_text(cell: TableCell) -> str:
    """Return the progress of a cell: the round of a running run, and the number of finished runs."""
    training = next((r for r in cell.active if r.state != "queued"), None)
    total = cell.done + len(cell.active) + len(cell.missing)
    done = f"{cell.done}/{counted(total, 'run')} done" if total > 1 else ""
    now = "queued" if training is None else f"round {training.rounds_done}/{training.rounds_total}"
    return ", ".join(filter(None, (now, done)))
