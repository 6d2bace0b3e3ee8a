"""A comparison as LaTeX: a booktabs table per setting."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from fedcore.results.comparison import Comparison, ComparisonRow, ranks, shown_metrics
from fedcore.results.metrics import METRIC_HEADINGS, RULES, Metric
from fedcore.results.printed import ComparabilityState, PrintedValue, PrintedValues

_MARKS: dict[ComparabilityState, str] = {
    "comparable": "",
    "with a caveat": r"$^\dagger$",
    "not comparable": r"$^\ddagger$",
}


def summary_latex(
    comparison: Comparison,
    printed: PrintedValues | None = None,
    digits: int = 2,
) -> str:
    """Return a booktabs table per setting: best bold, second underlined, spread in small type.

    Args:
        printed: the values of papers, which have columns of their own beside ours.
        digits: decimals of all accuracies; what they print alike is equally good.
    """
    values = printed or PrintedValues()
    return "\n".join(_table(comparison, setting, values, digits) for setting in comparison.settings)


def _table(comparison: Comparison, setting: str, printed: PrintedValues, digits: int) -> str:
    title, groups = comparison.settings[setting], comparison.rows_in(setting)
    metrics = shown_metrics(groups)
    with_printed = printed.metrics(groups)
    heads = [
        [METRIC_HEADINGS[m], *([f"{METRIC_HEADINGS[m]}, printed"] if m in with_printed else [])]
        for m in metrics
    ]
    columns = ["Method", *(tex(h) for pair in heads for h in pair), "$n$"]
    sources = (
        f" Printed: {tex('; '.join(printed.of_rows(groups).sources))}." if with_printed & set(metrics) else ""
    )
    marked = {m: ranks(groups, m, digits) for m in metrics}
    several = any(g.stats[m].std is not None for g in groups for m in metrics if m in g.stats)
    spread = r"mean $\pm$ sample standard deviation over seeds" if several else "one seed"
    lines = [
        r"% needs \usepackage{booktabs}",
        *(
            "% " + " ".join(note.split())
            for note in (*comparison.notes, *_printed_as(printed, groups, metrics))
        ),
        r"\begin{table}",
        rf"  \caption{{{tex(title)}: accuracy in \%, {tex(RULES[comparison.rule])}, {spread}.{sources}}}",
        rf"  \label{{tab:{_slug(title)}-{comparison.rule}}}",
        rf"  \begin{{tabular}}{{l{'r' * (len(columns) - 1)}}}",
        r"    \toprule",
        "    " + " & ".join(columns) + r" \\",
        r"    \midrule",
    ]
    for group in groups:
        cells = []
        for m in metrics:
            cells.append(_cell(group, m, marked[m], digits))
            cells += [_printed_cell(printed.of(group, m))] if m in with_printed else []
        # braces: after a line's end LaTeX takes a bracket or a star for an argument of it
        label = f"{{{tex(group.label)}}}" + (_MARKS[_state(group)] if group.remark else "")
        lines.append("    " + " & ".join([label, *cells, _seeds(group, metrics)]) + r" \\")
    lines += [r"    \bottomrule", r"  \end{tabular}"]
    caveats = [(_state(g), f"{g.label}: {g.remark}") for g in groups if g.remark]
    shown = [v for g in groups for m in metrics for v in printed.of(g, m)]
    against = [(s, f"{v.method} printed: {text}") for v in shown for s, text in v.comparability.reasons]
    for state, text in dict.fromkeys([*caveats, *against]):
        lines.append(rf"  \par\smallskip{{\footnotesize {_MARKS[state]} {tex(text)}}}")
    return "\n".join([*lines, r"\end{table}", ""])


def _state(group: ComparisonRow) -> ComparabilityState:
    """Return the state of a row with a remark, whose mark it has."""
    return "not comparable" if group.other_tests else "with a caveat"


def _slug(title: str) -> str:
    """Return a title as the key of a label, which LaTeX takes without special characters."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def _seeds(group: ComparisonRow, metrics: Sequence[Metric]) -> str:
    """Return the number of seeds in the means; if metrics differ, one per metric in the columns' order."""
    counts = [group.stats[m].n if m in group.stats else 0 for m in metrics]
    several = {n for n in counts if n}
    return "/".join(map(str, counts if len(several) > 1 else several)) or "0"


def _cell(group: ComparisonRow, metric: Metric, marked: tuple[set[str], set[str]], digits: int) -> str:
    stat = group.stats.get(metric)
    if stat is None:
        return "--"
    text = f"{stat.mean:.{digits}f}"
    if group.key in marked[0]:
        text = rf"\textbf{{{text}}}"
    elif group.key in marked[1]:
        text = rf"\underline{{{text}}}"
    return text if stat.std is None else rf"{text} {{\scriptsize $\pm$ {stat.std:.{digits}f}}}"


def _printed_as(
    printed: PrintedValues, groups: Sequence[ComparisonRow], metrics: Sequence[Metric]
) -> Iterable[str]:
    """Say which method each value belongs to, where one cell has several different ones."""
    for group in groups:
        for metric in metrics:
            names = {f"{f.value:.2f}": f.method for f in reversed(printed.of(group, metric))}
            if len(names) > 1:
                meanings = ", ".join(f"{value} is {name}" for value, name in reversed(names.items()))
                yield f"{group.label}, {METRIC_HEADINGS[metric]} printed: {meanings}"


def _printed_cell(values: Sequence[PrintedValue]) -> str:
    """Return the printed values of one cell; several if papers print different ones."""
    texts = [
        f"{v.value:.2f}"
        + ("" if v.std is None else rf" {{\scriptsize $\pm$ {v.std:.2f}}}")
        + _MARKS[v.comparability.state]
        for v in values
    ]
    return " / ".join(dict.fromkeys(texts)) or "--"


def tex(text: str) -> str:
    """Escape text for LaTeX."""
    special = {
        "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{",
        "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "·": r"$\cdot$", "°": r"$^\circ$",
        "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", '"': "''",
    }  # fmt: skip
    return "".join(special.get(c, c) for c in " ".join(text.split()))
