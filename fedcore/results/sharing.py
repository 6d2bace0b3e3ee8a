"""Results for papers and other programs: LaTeX, BibTeX, a leaderboard that FedLens imports, YAML of hubs."""

import csv
import json
import re
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import fedcore
from fedcore.base.errors import FedLensError
from fedcore.base.files import read_text
from fedcore.base.presentation import built_in, references
from fedcore.config import backbones
from fedcore.data import catalog
from fedcore.methods import registry
from fedcore.results.comparison import Comparison
from fedcore.results.exports import csv_text
from fedcore.results.finding import finding
from fedcore.results.metrics import METRICS, RULES, Metric
from fedcore.results.rows import CAVEAT_MARK, NOT_COMPARABLE_MARK, ComparisonRow
from fedcore.results.summary import (
    MARKS,
    MARKS_NOTE,
    DifferenceCell,
    PrintedValue,
    PrintedValues,
    Summary,
    SummaryRow,
    SummaryTable,
)
from fedcore.store import Store

BOARD_FIELDS = (
    "preset", "method", "seed", "round", "model", "test_set", "correct", "total", "domain",
)  # fmt: skip


def leaderboard_csv(store: Store, comparison: Comparison, printed: PrintedValues) -> str:
    """Return the counts of the reported round of each row, in the columns that an import reads."""
    comparison.check_rows()
    if comparison.rule == "mean10" or any(r.run.held_out for row in comparison.rows for r in row.runs):
        raise FedLensError(
            "a leaderboard as CSV holds one round of each run and no held-out domain; write a bundle", "ids"
        )
    if len(comparison.settings) != 1:
        raise FedLensError(
            f"a leaderboard has one setting, and these runs have {len(comparison.settings)}; choose one with "
            "--where",
            "where",
        )
    rows: list[list[object]] = []
    for row in comparison.rows:
        preset = "; ".join(printed.presets_of(row))
        for result in row.runs:
            cells = store.cells.own_and_global({result.run.id: result.rounds})
            clients = {c.test_set for c in cells if c.test_set_kind == "client"}
            for c in cells:
                # the domain of a client that has its name would be read as the client again
                twice = c.test_set_kind == "domain" and c.test_set in clients
                # the file has no place for the size of a test set of which a sample was tested
                sampled = c.size not in (None, c.total)
                if c.test_set_kind in ("client", "domain") and not twice and not sampled:
                    about = [preset, row.label, result.run.seed, c.round]
                    rows.append([*about, c.model, c.test_set, c.correct, c.total, c.domain or ""])
    return csv_text(BOARD_FIELDS, rows)


def preset_of_board(file: Path) -> str:
    """Return the preset that all lines of a CSV file share; empty if they share none."""
    lines = csv.DictReader(read_text(file, "a UTF-8 CSV file").splitlines())
    try:
        names = {(line.get("preset") or "").partition(";")[0].strip() for line in lines}
    except csv.Error as error:
        raise FedLensError(f"{file}, line {lines.line_num + 1}: {error}; mend that line", "file") from error
    if len(names) > 1:
        raise FedLensError(f"{file} names {len(names)} presets; import those of each by themselves", "file")
    return next(iter(names), "")


def eval_results(summary: Summary, label: str, metric: Metric, dataset: str, task: str, url: str = "") -> str:
    """Return one row of a summary in the YAML form in which model hubs keep results (``.eval_results/``).

    Source: Hugging Face, "Evaluation Results", https://huggingface.co/docs/hub/eval-results.

    Args:
        label, metric: the row and the column of the value, an accuracy in per cent.
        dataset, task: id of the benchmark on the hub, and of the task in its ``eval.yaml``.
        url: of the evidence, such as a bundle.
    """
    summary.comparison.check_rows()
    found = [(t, r) for t in summary.tables for r in t.rows if r.row.label == label and metric in r.row.stats]
    if len(found) != 1:
        labels = dict.fromkeys(r.row.label for t in summary.tables for r in t.rows if metric in r.row.stats)
        raise FedLensError(
            f"{len(found)} rows are called '{label}' and have the metric '{metric}'; there are: "
            f"{', '.join(labels)}",
            "row",
        )
    ((table, row),) = found
    stat = row.row.stats[metric]
    seeds = "1 seed" if stat.n == 1 else f"mean over {stat.n} seeds"
    spread = "" if stat.std is None else f" ± {stat.std:.2f}"
    notes = [
        f"{METRICS[metric].title} of {label}, {RULES[summary.comparison.rule]}, {seeds}{spread}",
        table.title,
        *(f"preset {name}" for name in summary.printed.presets_of(row.row)),
        *row.remarks,
        f"FedLens {fedcore.__version__}",
    ]
    # a string of JSON is one of YAML
    lines = [
        "- dataset:",
        f"    id: {json.dumps(dataset, ensure_ascii=False)}",
        f"    task_id: {json.dumps(task, ensure_ascii=False)}",
        f"  value: {round(stat.mean, 4)}",
        f'  date: "{time.strftime("%Y-%m-%d")}"',
        *(["  source:", f"    url: {json.dumps(url)}", '    name: "Bundle of FedLens"'] if url else []),
        f"  notes: {json.dumps('; '.join(notes), ensure_ascii=False)}",
    ]
    return "\n".join(lines) + "\n"


def bibtex(rows: Iterable[ComparisonRow]) -> str:
    """Return the entries for the rows of a comparison, that of FedLens first, as in CITATION.cff."""
    papers, data = references(), {e.name: e for e in catalog.entries()}
    entries = [
        "@software{fedlens, author = {{The FedLens developers}}, "
        "title = {{FedLens}: federated adaptation of {CLIP}, compared}, "
        f"version = {{{fedcore.__version__}}}, year = {{2026}}}}"
    ]
    for row in rows:
        if row.method in built_in():
            entries += [papers[key] for key in built_in()[row.method].cites]
        elif (own := registry.find(row.method)) is not None:
            entries.append(own.about.bibtex)
        used = [row.config.data.name, *(other.name for other in row.config.further_data)]
        entries += [data[name].bibtex for name in used if name in data]
        clip = [b for b in backbones(row.config) if b.name.split(":")[0] not in ("timm", "callable", "given")]
        for backbone in clip:
            of_openai = backbone.pretrained is None or backbone.pretrained.startswith("openai")
            entries += [papers["radford2021clip"], *([] if of_openai else [papers["openclip"]])]
    single = dict.fromkeys(
        e.strip() for several in entries for e in re.split(r"\n(?=@)", several) if e.strip()
    )
    return "\n\n".join(re.sub(r",\s+(\w+) = \{", r",\n  \1 = {", e) for e in single) + "\n"


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
            cells.append(_mean(row, m, summary.digits))
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


def _mean(row: SummaryRow, metric: Metric, digits: int) -> str:
    if metric not in row.row.stats:
        return "--"
    stat = row.row.stats[metric]
    macro = {"": "", "best": r"\textbf", "second": r"\underline"}[row.marks[metric]]
    mean = f"{stat.mean:.{digits}f}"
    return _with_spread(f"{macro}{{{mean}}}" if macro else mean, stat.std, digits)


def _with_spread(mean: str, std: float | None, digits: int = 2) -> str:
    return mean if std is None else rf"{mean} {{\scriptsize $\pm$ {std:.{digits}f}}}"


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
    texts = [_with_spread(f"{v.value:.2f}", v.std) + _TEX_MARKS[v.comparability.mark] for v in values]
    return " / ".join(dict.fromkeys(texts)) or "--"


def tex(text: str) -> str:
    """Escape text for LaTeX."""
    special = {
        "±": r"$\pm$", "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
        "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "·": r"$\cdot$",
        "°": r"$^\circ$", "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", '"': "''",
    }  # fmt: skip
    return "".join(special.get(c, c) for c in " ".join(text.split()))
