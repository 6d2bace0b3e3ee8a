"""Results for other programs: a leaderboard that FedLens imports, the YAML of model hubs, and BibTeX."""

import csv
import json
import re
import time
from collections.abc import Iterable
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
from fedcore.results.metrics import METRICS, RULES, Metric
from fedcore.results.rows import ComparisonRow
from fedcore.results.summary import PrintedValues, Summary
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

    def rows() -> Iterable[list[object]]:
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
                        yield [
                            preset,
                            row.label,
                            result.run.seed,
                            c.round,
                            c.model,
                            c.test_set,
                            c.correct,
                            c.total,
                            c.domain or "",
                        ]

    return csv_text(BOARD_FIELDS, rows())


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
    found = [(t, r) for t in summary.tables for r in t.rows if r.row.label == label and metric in r.means]
    if len(found) != 1:
        labels = dict.fromkeys(r.row.label for t in summary.tables for r in t.rows if metric in r.means)
        raise FedLensError(
            f"{len(found)} rows are called '{label}' and have the metric '{metric}'; there are: "
            f"{', '.join(labels)}",
            "row",
        )
    ((table, row),) = found
    stat = row.means[metric].stat
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
        for backbone in backbones(row.config):
            of_openai = backbone.pretrained is None or backbone.pretrained.startswith("openai")
            entries += [papers["radford2021clip"], *([] if of_openai else [papers["openclip"]])]
    single = dict.fromkeys(
        e.strip() for several in entries for e in re.split(r"\n(?=@)", several) if e.strip()
    )
    return "\n\n".join(re.sub(r",\s+(\w+) = \{", r",\n  \1 = {", e) for e in single) + "\n"
