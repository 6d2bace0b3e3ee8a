"""A comparison as LaTeX: a booktabs table per setting."""

import re
from collections.abc import Iterable, Sequence

from fedcore.results.finding import finding
from fedcore.results.metrics import METRICS, RULES
from fedcore.results.printed import MARKS, PrintedValue
from fedcore.results.rows import CAVEAT_MARK, NOT_COMPARABLE_MARK
from fedcore.results.summary import MARKS_NOTE, DifferenceCell, MeanCell, Summary, SummaryTable

_TEX_MARKS = {"": "", CAVEAT_MARK: r"$^\dagger$", NOT_COMPARABLE_MARK: r"$^\ddagger$"}


def summary_latex(summary: Summary) -> str:
    """Return a booktabs table per setting: best bold, second underlined, spread in small type."""
    return "\n".join(_table(summary, table) for table in summary.tables)


def _table(summary: Summary, table: SummaryTable) -> str:
    comparison = summary.comparison
    heads = []
    for m in table.metrics:
        unit = METRICS[m].unit
        heads.append(METRICS[m].heading + (f", {unit}" if unit != "%" else ""))
        heads += [f"{METRICS[m].heading}, printed"] if m in table.printed_metrics else []
    against = table.baseline is not None and all(summary.metric in row.differences for row in table.rows)
    compared = [rf"$\Delta$ {tex(METRICS[summary.metric].heading)}", "$p$"] if against else []
    columns = ["Method", *map(tex, heads), *compared, "$n$"]
    printed = ""
    if table.printed_metrics & set(table.metrics):
        printed = f" Printed: {tex('; '.join(table.printed.sources))}."
    if against and table.baseline is not None:
        printed += (
            rf" $\Delta$: difference from {tex(table.baseline.label)} in points. {tex(summary.notes[-1])}"
        )
    found = finding(summary, table)
    comments = (*([found] if found else []), *comparison.notes, *_methods_of_printed_values(table))
    lines = [
        r"% needs \usepackage{booktabs}",
        *("% " + " ".join(note.split()) for note in comments),
        r"\begin{table}",
        rf"  \caption{{{tex(table.title)}: accuracy in \%, {tex(RULES[comparison.rule])}, "
        rf"{tex(table.spread)}. {tex(MARKS_NOTE)}{printed}}}",
        rf"  \label{{tab:{slug(table.title)}-{comparison.rule}}}",
        rf"  \begin{{tabular}}{{l{'r' * (len(columns) - 1)}}}",
        r"    \toprule",
        "    " + " & ".join(columns) + r" \\",
        r"    \midrule",
    ]
    for row in table.rows:
        cells = []
        for m in table.metrics:
            cells.append(_mean(row.means.get(m), summary.digits))
            cells += [_printed(row.printed[m])] if m in table.printed_metrics else []
        cells += _difference(row.differences[summary.metric], summary.digits) if against else []
        # braces: after a line's end LaTeX takes a bracket or a star for an argument of it
        label = f"{{{tex(row.row.label)}}}{_TEX_MARKS[row.row.mark]}"
        lines.append("    " + " & ".join([label, *cells, row.seeds]) + r" \\")
    lines += [r"    \bottomrule", r"  \end{tabular}"]
    footnotes = [(r.row.mark, f"{r.row.label}: {r.row.remark}") for r in table.rows if r.row.remark]
    for value in (value for r in table.rows for m in table.metrics for value in r.printed[m]):
        reasons = value.comparability.reasons
        footnotes += [(MARKS[state], f"{value.method} printed: {text}") for state, text in reasons]
    for mark, text in dict.fromkeys(footnotes):
        lines.append(rf"  \par\smallskip{{\footnotesize {_TEX_MARKS[mark]} {tex(text)}}}")
    return "\n".join([*lines, r"\end{table}", ""])


def slug(title: str) -> str:
    """Return a title as the key of a label, which LaTeX takes without special characters."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def _mean(cell: MeanCell | None, digits: int) -> str:
    if cell is None:
        return "--"
    text = f"{cell.stat.mean:.{digits}f}"
    if cell.mark == "best":
        text = rf"\textbf{{{text}}}"
    elif cell.mark == "second":
        text = rf"\underline{{{text}}}"
    std = cell.stat.std
    return text if std is None else rf"{text} {{\scriptsize $\pm$ {std:.{digits}f}}}"


def _difference(cell: DifferenceCell, digits: int) -> list[str]:
    text = cell.text(digits)
    if cell.is_baseline or text is None or cell.test is None:
        return ["--", "--"]
    p = "--"
    if cell.test.adjusted is not None:
        p = "$<0.001$" if cell.test.adjusted < 0.001 else f"{cell.test.adjusted:.3f}"
    star = "$^*$" if cell.significant else ""
    return [f"${text}${star}", p]


def _methods_of_printed_values(table: SummaryTable) -> Iterable[str]:
    """Say which method each value belongs to if one cell has several different values."""
    for row in table.rows:
        for metric in table.metrics:
            names = {f"{value.value:.2f}": value.method for value in reversed(row.printed[metric])}
            if len(names) > 1:
                meanings = ", ".join(f"{value} is {name}" for value, name in reversed(names.items()))
                yield f"{row.row.label}, {METRICS[metric].heading} printed: {meanings}"


def _printed(values: Sequence[PrintedValue]) -> str:
    texts = [
        f"{v.value:.2f}"
        + ("" if v.std is None else rf" {{\scriptsize $\pm$ {v.std:.2f}}}")
        + _TEX_MARKS[v.comparability.mark]
        for v in values
    ]
    return " / ".join(dict.fromkeys(texts)) or "--"


def tex(text: str) -> str:
    """Escape text for LaTeX."""
    special = {
        "±": r"$\pm$", "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
        "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "·": r"$\cdot$",
        "°": r"$^\circ$", "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", '"': "''",
    }  # fmt: skip
    return "".join(special.get(c, c) for c in " ".join(text.split()))
