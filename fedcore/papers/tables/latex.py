"""A paper's table as LaTeX: in each cell the printed value, ours and the difference."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby

from fedcore.papers.published import PAPERS, PublishedValue
from fedcore.papers.tables.layout import PrintedPanel, PrintedTable
from fedcore.papers.tables.standing import CellStanding
from fedcore.results.exports.latex import tex

_MARKS = {"with a caveat": r"$^\dagger$", "not comparable": r"$^\ddagger$"}


def table_latex(table: PrintedTable, standings: Mapping[PublishedValue, CellStanding]) -> str:
    """Return a booktabs table for each panel, with the rows and columns of the paper.

    A cell has three lines: as printed; ours as mean, sample standard deviation and number of seeds; the
    difference. A rehearsed value is in italics and has no difference.
    """
    lines = [r"% needs \usepackage{booktabs}"]
    for number, panel in enumerate(table.panels, 1):
        lines += _panel(table, panel, number, standings)
    return "\n".join([*lines, ""])


def file_name(table: PrintedTable, rehearsal: bool) -> str:
    """Return the name of a table's LaTeX file; a rehearsal's says so."""
    return f"{table.name}{'-rehearsal' if rehearsal else ''}.tex"


def _panel(
    table: PrintedTable, panel: PrintedPanel, number: int, standings: Mapping[PublishedValue, CellStanding]
) -> list[str]:
    width = len(panel.rows[0].heads)
    cells = [standings[table.values[i]] for row in panel.rows for i in row.cells if i is not None]
    parts = (PAPERS[table.paper].title, table.title, panel.title)
    title = f"{tex(', '.join(filter(None, parts)))}: {tex(table.caption)}"
    lines = [
        r"\begin{table}",
        rf"  \caption{{{title}. Each cell: as printed; ours{_ours_are(cells)}; difference.}}",
        rf"  \label{{tab:{table.name}-{number}}}",
        rf"  \begin{{tabular}}{{{'l' * width}{'c' * len(panel.columns)}}}",
        r"    \toprule",
        *_heads(panel, width),
        r"    \midrule",
    ]
    before: tuple[str, ...] = ()
    for row in panel.rows:
        # a heading that goes on is printed once; in braces a bracket is no argument of the line's end
        heads = [
            "" if before[: i + 1] == row.heads[: i + 1] and i < width - 1 else f"{{{tex(head)}}}"
            for i, head in enumerate(row.heads)
        ]
        before = row.heads
        values = ["" if i is None else _cell(standings[table.values[i]]) for i in row.cells]
        lines.append("    " + " & ".join([*heads, *values]) + r" \\")
    lines += [r"    \bottomrule", r"  \end{tabular}"]
    reasons = [(c.standing, text) for c in cells if c.stat is not None for _, text in c.comparability.reasons]
    for standing, text in dict.fromkeys(reasons):
        lines.append(rf"  \par\smallskip{{\footnotesize {_MARKS.get(standing, '')} {tex(text)}}}")
    return [*lines, r"\end{table}"]


def _ours_are(cells: list[CellStanding]) -> str:
    measured = r" (mean $\pm$ sample standard deviation, number of seeds)"
    if any(c.standing == "rehearsed" for c in cells):
        return measured + r", \textit{in italics: a rehearsal with a miniature model, no evidence}"
    return measured


def _heads(panel: PrintedPanel, width: int) -> list[str]:
    """Return a line for each level of column headings."""
    lines = []
    for level in range(len(panel.columns[0])):
        cells = [""] * width
        for heads, group in groupby(panel.columns, key=lambda column: column[: level + 1]):
            span = len(list(group))
            text = tex(heads[-1])
            cells.append(rf"\multicolumn{{{span}}}{{c}}{{{text}}}" if span > 1 else f"{{{text}}}")
        lines.append("    " + " & ".join(cells) + r" \\")
    return lines


def _cell(cell: CellStanding) -> str:
    lines = [tex(cell.printed_text)]
    if cell.stat is None:
        lines.append("--")
    else:
        ours = tex(cell.stat.text(cell.digits))
        ours = rf"\textit{{{ours}}}" if cell.standing == "rehearsed" else ours + _MARKS.get(cell.standing, "")
        lines.append(f"{ours} ({cell.stat.n})")
    if cell.gap_text:
        lines.append(tex(cell.gap_text))
    stacked = r" \\ ".join(lines).replace("±", r"$\pm$")
    return rf"\shortstack{{{stacked}}}"
