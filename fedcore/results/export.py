"""Comparison files: summary, rounds and clients as CSV, LaTeX and JSON, with the numbers of the screen.

Each file is made of a database that was checked a moment before; a damaged one is refused (``FedLensError``,
field ``db``). The LaTeX table is drawn on the page too, so its callers check before they write it to a file.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
import time
from collections.abc import Iterable, Sequence
from typing import Any

from fedcore.data.split_codes import SPLITS, TEST, VALIDATION
from fedcore.errors import FedLensError
from fedcore.results.comparison import (
    Comparison,
    Group,
    compare,
    difference,
    ranks,
    shown_metrics,
    significance,
)
from fedcore.results.metrics import BREAKDOWNS, METRIC_HEADINGS, METRICS, RULES, Metric, Rule, value_per_seed
from fedcore.results.printed import PrintedLookup, PrintedValue, PrintedValues, nothing_printed
from fedcore.results.statistics import TESTS, PairedTest, Stat, Test, signed
from fedcore.store import AFTER_AGGREGATION, BEFORE_AGGREGATION, ExperimentRow, Store

SUMMARY_FIELDS = (
    "setting", "method", "metric", "of", "selection_rule", "mean", "std", "n", "seeds", "runs",
    "difference_to_baseline", "baseline", "test", "pairs", "p", "p_holm", "remark", "rounds", "method_name",
    "printed", "printed_std", "printed_in", "comparability", "reasons_against_comparing",
)  # fmt: skip
ROUND_FIELDS = (
    "experiment", "run", "method", "label", "seed", "held_out", "round", "split", "point", "model",
    "model_kind", "test_set", "test_set_kind", "correct", "total", "accuracy", "loss",
)  # fmt: skip
CLIENT_FIELDS = (
    "experiment", "run", "method", "label", "seed", "held_out", "round", "client", "domain",
    "training_samples", "took_part", "steps", "train_loss", "bytes_up", "bytes_down", "own_correct",
    "own_total", "own_accuracy",
)  # fmt: skip
STAGES = {BEFORE_AGGREGATION: "local", AFTER_AGGREGATION: "broadcast"}
"""Stages as the column ``point`` of the rounds names them."""
EXPORTED = ((TEST, AFTER_AGGREGATION), (TEST, BEFORE_AGGREGATION), (VALIDATION, AFTER_AGGREGATION))
"""Splits and stages of the rounds' file, in its order."""
_LATEX_MARKS = {"comparable": "", "with a caveat": r"$^\dagger$", "not comparable": r"$^\ddagger$"}
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\Z")


def guarded(value: object) -> object:
    """Put an apostrophe before text that a spreadsheet would run as a formula; numbers stay numbers."""
    if isinstance(value, str) and value.lstrip(" ").startswith(_FORMULA) and not _NUMBER.match(value):
        return "'" + value
    return value


def summary_rows(
    comparison: Comparison,
    baseline: str | None = None,
    test: Test = "t",
    printed: PrintedValues | None = None,
) -> list[dict[str, Any]]:
    """Return a row per setting, method and metric, then per domain, client and held-out domain.

    The column ``of`` names the latter. Accuracies have two decimals, p-values three significant digits.

    Args:
        baseline: label of the row from which differences are taken.
        printed: values of papers; of several for one cell the first is written.
    """
    rows, printed = [], printed or PrintedValues()
    for setting, title in comparison.settings.items():
        groups = comparison.groups_in(setting)
        pinned = next((g for g in groups if g.label == baseline), None)
        tested = {m: significance(groups, pinned, m, test) for m in METRICS} if pinned else {}
        for group in groups:
            for metric, stat in group.stats.items():
                gap = difference(group, pinned, metric)
                row = _summary_row(comparison, title, group, METRICS[metric], stat)
                row["seeds"] = " ".join(map(str, value_per_seed(group.runs, metric)))
                row["difference_to_baseline"] = "" if gap is None else signed(gap, 2)
                row["baseline"] = pinned.label if pinned else ""
                row |= _printed_columns(printed.of(group, metric))
                rows.append(row | _tested(tested.get(metric, {}).get(group.key), group.caveat))
            for part, stats in group.breakdowns.items():
                for name, stat in stats.items():
                    rows.append(_summary_row(comparison, title, group, BREAKDOWNS[part], stat) | {"of": name})
    return rows


def _summary_row(comparison: Comparison, title: str, group: Group, metric: str, stat: Stat) -> dict[str, Any]:
    return dict.fromkeys(SUMMARY_FIELDS, "") | {
        "setting": title,
        "method": group.label,
        "metric": metric,
        "selection_rule": RULES[comparison.rule],
        "mean": _two(stat.mean),
        "std": _two(stat.std),
        "n": stat.n,
        "seeds": " ".join(map(str, group.seeds)),
        "runs": " ".join(str(v.run.id) for v in group.runs),
        "rounds": group.config.rounds,
        "method_name": group.method,
        "remark": group.caveat,
    }


def _printed_columns(values: Sequence[PrintedValue]) -> dict[str, Any]:
    """Return the columns of the first printed value, with the round that its paper reports."""
    if not values:
        return {}
    first = values[0]
    where = f"{first.source}: {first.method} ({RULES[first.rule]})"
    return {
        "printed": _two(first.value),
        "printed_std": _two(first.std),
        "printed_in": where,
        "comparability": first.comparability.state,
        "reasons_against_comparing": "; ".join(text for _, text in first.comparability.reasons),
    }


def _tested(test: PairedTest | None, caveat: str) -> dict[str, Any]:
    """Return the columns of a test; its remark is joined with the row's caveat."""
    if test is None:
        return {}
    p, adjusted = ("" if p is None else f"{p:.3g}" for p in (test.p, test.adjusted))
    remark = "; ".join(filter(None, (test.remark, caveat)))
    return {"test": TESTS[test.test], "pairs": test.n, "p": p, "p_holm": adjusted, "remark": remark}


def _two(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def summary_csv(
    store: Store,
    experiment_ids: Iterable[int],
    rules: Sequence[Rule] = tuple(RULES),
    baseline: str | None = None,
    *,
    test: Test = "t",
    unfinished: bool = False,
    printed: PrintedLookup = nothing_printed,
) -> str:
    """Return mean, spread and n of every method and metric, for each rule that selects a round.

    Raises:
        FedLensError: field ``baseline``, when no row has that label.
    """
    ids = list(experiment_ids)
    store.integrity.require(ids)
    comparisons = [compare(store, ids, rule, unfinished=unfinished) for rule in rules]
    labels = dict.fromkeys(g.label for c in comparisons for g in c.groups)
    if baseline is not None and baseline not in labels:
        raise FedLensError(f"no method '{baseline}' in the table; there are: {', '.join(labels)}", "baseline")
    rows = [row for c in comparisons for row in summary_rows(c, baseline, test, printed(c))]
    return _csv(SUMMARY_FIELDS, ([row[f] for f in SUMMARY_FIELDS] for row in rows))


def rounds_csv(store: Store, experiment_ids: Iterable[int]) -> str:
    """Return a row per run, round, split, stage, model and test set, with counts."""
    ids = list(experiment_ids)
    store.integrity.require(ids)
    runs = {r.id: r for r in store.runs.of_experiments(ids)}
    names = {e.id: e.name for e in store.experiments.all(include_archived=True)}

    def rows() -> Iterable[list[object]]:
        for split, stage in EXPORTED:
            for c in store.cells.of_runs(runs, split, stage):
                run = runs[c.run_id]
                yield [
                    names[run.experiment_id], run.id, run.method, run.label, run.seed, run.held_out or "",
                    c.round, SPLITS[split], STAGES[stage], c.model, c.model_kind, c.test_set,
                    c.test_set_kind, c.correct, c.total, f"{100 * c.correct / c.total:.2f}",
                    "" if c.loss is None else f"{c.loss:.4f}",
                ]  # fmt: skip

    return _csv(ROUND_FIELDS, rows())


def clients_csv(store: Store, experiment_ids: Iterable[int]) -> str:
    """Return a row per run, round and client: participation, loss, traffic and own test accuracy."""
    ids = list(experiment_ids)
    store.integrity.require(ids)
    runs = store.runs.of_experiments(ids)
    names = {e.id: e.name for e in store.experiments.all(include_archived=True)}

    def rows() -> Iterable[list[object]]:
        for run in runs:
            took_part = {(c.round, c.client): c for c in store.rounds.clients(run.id)}
            own = {(o.round, o.client): o for o in store.cells.own_accuracy(run.id)}
            clients = {e.entity: e for e in store.cells.entities(run.id) if e.kind == "client"}
            for round_, code in sorted(key for key in took_part.keys() | own.keys() if key[1] in clients):
                part, score, client = took_part.get((round_, code)), own.get((round_, code)), clients[code]
                yield [
                    names[run.experiment_id], run.id, run.method, run.label, run.seed, run.held_out or "",
                    round_, client.name, client.domain or "", _blank(client.samples), int(part is not None),
                    *([part.steps, _blank(part.train_loss, ".4f"), _blank(part.bytes_up),
                       _blank(part.bytes_down)] if part else [""] * 4),
                    *([score.correct, score.total, f"{100 * score.correct / score.total:.2f}"]
                      if score else [""] * 3),
                ]  # fmt: skip

    return _csv(CLIENT_FIELDS, rows())


def _blank(value: float | None, digits: str = "") -> str:
    return "" if value is None else f"{value:{digits}}"


def _csv(fields: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(fields)
    writer.writerows([guarded(value) for value in row] for row in rows)
    return out.getvalue()


def summary_latex(
    store: Store,
    experiment_ids: Iterable[int],
    rule: Rule = "last",
    metrics: Sequence[Metric] | None = None,
    *,
    unfinished: bool = False,
    printed: PrintedLookup = nothing_printed,
) -> str:
    """Return a booktabs table per setting: best bold, second underlined, spread in small type.

    Args:
        printed: finds the values of papers, which have columns of their own beside ours.
    """
    comparison = compare(store, experiment_ids, rule, unfinished=unfinished)
    values, tables = printed(comparison), []
    for setting, title in comparison.settings.items():
        shown = shown_metrics(comparison.groups_in(setting))
        chosen = shown if metrics is None else [m for m in metrics if m in comparison.metrics]
        tables.append(_latex_table(comparison, setting, title, chosen, values))
    return "\n".join(tables)


def _latex_table(
    comparison: Comparison, setting: str, title: str, metrics: Sequence[Metric], printed: PrintedValues
) -> str:
    groups = comparison.groups_in(setting)
    with_printed = printed.metrics(groups)
    heads = [
        [METRIC_HEADINGS[m], *([f"{METRIC_HEADINGS[m]}, printed"] if m in with_printed else [])]
        for m in metrics
    ]
    columns = ["Method", *(tex(h) for pair in heads for h in pair), "$n$"]
    sources = (
        f" Printed: {tex('; '.join(printed.of_rows(groups).sources))}." if with_printed & set(metrics) else ""
    )
    marked = {m: ranks(groups, m, 2) for m in metrics}
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
        rf"  \begin{{tabular}}{{l{'r' * (len(columns) - 1)}}}",
        r"    \toprule",
        "    " + " & ".join(columns) + r" \\",
        r"    \midrule",
    ]
    for group in groups:
        cells = []
        for m in metrics:
            cells.append(_latex_cell(group, m, marked[m]))
            cells += [_latex_printed(printed.of(group, m))] if m in with_printed else []
        # braces: after a line's end LaTeX takes a bracket or a star for an argument of it
        label = f"{{{tex(group.label)}}}" + (r"$^\dagger$" if group.caveat else "")
        lines.append("    " + " & ".join([label, *cells, _latex_n(group, metrics)]) + r" \\")
    lines += [r"    \bottomrule", r"  \end{tabular}"]
    caveats = [("with a caveat", f"{g.label}: {g.caveat}") for g in groups if g.caveat]
    shown = [v for g in groups for m in metrics for v in printed.of(g, m)]
    against = [(s, f"{v.method} printed: {text}") for v in shown for s, text in v.comparability.reasons]
    for state, text in dict.fromkeys([*caveats, *against]):
        lines.append(rf"  \par\smallskip{{\footnotesize {_LATEX_MARKS[state]} {tex(text)}}}")
    return "\n".join([*lines, r"\end{table}", ""])


def _latex_n(group: Group, metrics: Sequence[Metric]) -> str:
    """Return the number of seeds in the means; if metrics differ, one per metric in the columns' order."""
    counts = [group.stats[m].n if m in group.stats else 0 for m in metrics]
    several = {n for n in counts if n}
    return "/".join(map(str, counts if len(several) > 1 else several)) or "0"


def _latex_cell(group: Group, metric: Metric, marked: tuple[set[str], set[str]]) -> str:
    stat = group.stats.get(metric)
    if stat is None:
        return "--"
    text = f"{stat.mean:.2f}"
    if group.key in marked[0]:
        text = rf"\textbf{{{text}}}"
    elif group.key in marked[1]:
        text = rf"\underline{{{text}}}"
    return text if stat.std is None else rf"{text} {{\scriptsize $\pm$ {stat.std:.2f}}}"


def _printed_as(printed: PrintedValues, groups: Sequence[Group], metrics: Sequence[Metric]) -> Iterable[str]:
    """Say which method each value belongs to, where one cell has several different ones."""
    for group in groups:
        for metric in metrics:
            names = {f"{f.value:.2f}": f.method for f in reversed(printed.of(group, metric))}
            if len(names) > 1:
                meanings = ", ".join(f"{value} is {name}" for value, name in reversed(names.items()))
                yield f"{group.label}, {METRIC_HEADINGS[metric]} printed: {meanings}"


def _latex_printed(values: Sequence[PrintedValue]) -> str:
    """Return the printed values of one cell; several if papers print different ones."""
    texts = [
        f"{v.value:.2f}"
        + ("" if v.std is None else rf" {{\scriptsize $\pm$ {v.std:.2f}}}")
        + _LATEX_MARKS[v.comparability.state]
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


def summary_json(
    store: Store,
    experiment_ids: Iterable[int],
    rules: Sequence[Rule] = tuple(RULES),
    *,
    unfinished: bool = False,
    printed: PrintedLookup = nothing_printed,
) -> str:
    """Return the summary with the config and environment of every run."""
    ids = list(experiment_ids)
    store.integrity.require(ids)
    comparisons = [compare(store, ids, rule, unfinished=unfinished) for rule in rules]
    runs = store.runs.of_experiments(ids)
    configs = store.runs.configs([r.id for r in runs])
    content = {
        "format": "fedlens-summary-1",
        "summary": [row for c in comparisons for row in summary_rows(c, printed=printed(c))],
        "runs": [
            {
                "id": r.id, "experiment": r.experiment_id, "method": r.method, "label": r.label,
                "seed": r.seed, "held_out": r.held_out, "state": r.state, "rounds_done": r.rounds_done,
                "config": configs[r.id].model_dump(mode="json"), "environment": store.runs.environment(r.id),
            }
            for r in runs
        ],
    }  # fmt: skip
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def file_name(name: str, table: str, suffix: str, mark: str = "") -> str:
    """Return a file name such as ``fedlens-digits-summary-20261121-1f0c2a7b.csv``, safe on every system.

    Args:
        mark: fingerprint of the data in the file, see ``fingerprint``.
    """
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:60].strip("-") or "experiments"
    return (
        "-".join(["fedlens", slug, table, time.strftime("%Y%m%d"), *([mark] if mark else [])]) + f".{suffix}"
    )


def fingerprint(experiments: Iterable[ExperimentRow]) -> str:
    """Return eight letters that change with the recorded data."""
    content = [
        [e.uuid, *([r.group_hash, r.label, r.seed, r.held_out, r.state, r.rounds_done] for r in e.runs)]
        for e in experiments
    ]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:8]
