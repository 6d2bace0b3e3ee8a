"""A paper's table with our values beside the printed ones, as CSV and LaTeX."""

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby

from fedcore.papers import library, published
from fedcore.papers.cells import TableCell
from fedcore.papers.layout import PrintedPanel, PrintedTable
from fedcore.papers.published import PublishedValue
from fedcore.results.sharing import tex

COLUMNS = (
    "paper", "table", "dataset", "setting", "backbone", "method", "target", "metric",
    "printed", "printed_std", "rule", "ours", "ours_std", "n", "difference", "comparability", "reasons",
    "rehearsed", "rehearsed_std", "rehearsed_n", "missing_runs", "seconds", "lacks",
)  # fmt: skip
"""Columns of the CSV file; a cell is empty if the number does not exist. ``rule`` is a key of ``RULES``."""


def csv_text(cells: Sequence[TableCell], cost: Callable[[TableCell], float | None]) -> str:
    """Return the cells of a table as CSV, a line per printed value in the order of the paper's file.

    Rehearsed values have separate columns, so that they are not mistaken for ours when files are combined.

    Args:
        cost: seconds that the missing runs of a cell take; None if that was never measured.
    """
    return library.csv_text([COLUMNS, *(_line(cell, cost(cell)) for cell in cells)])


def _line(cell: TableCell, seconds: float | None) -> list[object]:
    value, stat = cell.value, cell.stat
    reasons = [text for _, text in cell.comparability.reasons] or [cell.reason]
    nothing = [None] * 3
    numbers = nothing if stat is None else [stat.mean, stat.std, stat.n]
    rehearsed = cell.status == "rehearsed"
    return [
        library.find(value.paper).title,
        *(getattr(value, name) for name in published.COLUMNS),
        value.rule,
        *(nothing if rehearsed else numbers),
        cell.gap,
        cell.status,
        "; ".join(filter(None, reasons)),
        *(numbers if rehearsed else nothing),
        len(cell.missing),
        None if seconds is None or not cell.missing else round(seconds),
        "; ".join(lack.text for lack in cell.lacks),
    ]


def file_name(table: PrintedTable, rehearsal: bool, suffix: str) -> str:
    """Return the file name for an exported table; it tells a rehearsal apart."""
    return f"{table.name}{'-rehearsal' if rehearsal else ''}.{suffix}"


_MARKS = {"with a caveat": r"$^\dagger$", "not comparable": r"$^\ddagger$"}


def table_latex(table: PrintedTable, by_value: Mapping[PublishedValue, TableCell]) -> str:
    """Return a booktabs table for each panel, with the rows and columns of the paper.

    A cell has three lines: as printed; ours as mean, sample standard deviation and number of seeds; the
    difference. A rehearsed value is in italics and has no difference.
    """
    lines = [r"% needs \usepackage{booktabs}"]
    for number, panel in enumerate(table.panels, 1):
        lines += _latex_panel(table, panel, number, by_value)
    return "\n".join([*lines, ""])


def _latex_panel(
    table: PrintedTable, panel: PrintedPanel, number: int, by_value: Mapping[PublishedValue, TableCell]
) -> list[str]:
    width = len(panel.rows[0].heads)
    cells = [by_value[table.values[i]] for row in panel.rows for i in row.cells if i is not None]
    parts = (library.find(table.paper).title, table.title, panel.title)
    title = f"{tex(', '.join(filter(None, parts)))}: {tex(table.caption)}"
    ours = r" (mean $\pm$ sample standard deviation, number of seeds)"
    if any(c.status == "rehearsed" for c in cells):
        ours += r", \textit{in italics: a rehearsal with a miniature model, no evidence}"
    lines = [
        r"\begin{table}",
        rf"  \caption{{{title}. Each cell: as printed; ours{ours}; difference.}}",
        rf"  \label{{tab:{table.name}-{number}}}",
        rf"  \begin{{tabular}}{{{'l' * width}{'c' * len(panel.columns)}}}",
        r"    \toprule",
        *_heads(panel, width),
        r"    \midrule",
    ]
    before: tuple[str, ...] = ()
    for row in panel.rows:
        # A heading that spans several rows is printed once. In braces, LaTeX does not take a bracket at the
        # start of a row for an optional argument of the preceding line's end.
        heads = [
            "" if before[: i + 1] == row.heads[: i + 1] and i < width - 1 else f"{{{tex(head)}}}"
            for i, head in enumerate(row.heads)
        ]
        before = row.heads
        values = ["" if i is None else _latex_cell(by_value[table.values[i]]) for i in row.cells]
        lines.append("    " + " & ".join([*heads, *values]) + r" \\")
    lines += [r"    \bottomrule", r"  \end{tabular}"]
    reasons = [(c.status, text) for c in cells if c.stat is not None for _, text in c.comparability.reasons]
    for status, text in dict.fromkeys(reasons):
        lines.append(rf"  \par\smallskip{{\footnotesize {_MARKS.get(status, '')} {tex(text)}}}")
    return [*lines, r"\end{table}"]


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


def _latex_cell(cell: TableCell) -> str:
    lines = [tex(cell.value.text)]
    if cell.stat is None:
        lines.append("--")
    else:
        ours = tex(cell.stat.text(cell.value.digits))
        ours = rf"\textit{{{ours}}}" if cell.status == "rehearsed" else ours + _MARKS.get(cell.status, "")
        lines.append(f"{ours} ({cell.stat.n})")
    if cell.gap_text:
        lines.append(tex(cell.gap_text))
    stacked = r" \\ ".join(lines).replace("±", r"$\pm$")
    return rf"\shortstack{{{stacked}}}"
