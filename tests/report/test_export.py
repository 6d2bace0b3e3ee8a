"""Files hold the numbers of the screen and of the database."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest

from fedcore.report import export, tables
from fedcore.runs import queries
from tests import fill


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_summary_has_the_numbers_of_the_comparison(filled: Path) -> None:
    found = tables.compare(filled, [1], "last")
    table = rows(export.summary_csv(filled, [1], ("last",), "PromptFL"))
    assert len(table) == sum(len(g.stats) for g in found.groups)
    for group in found.groups:
        for metric, stat in group.stats.items():
            (row,) = [
                r for r in table if r["method"] == group.label and r["metric"] == tables.METRICS[metric]
            ]
            assert float(row["mean"]) == pytest.approx(stat.mean, abs=0.005)
            assert float(row["std"]) == pytest.approx(stat.std, abs=0.005)
            assert row["n"] == "3"
            assert row["selection_rule"] == "last round"
            assert row["baseline"] == "PromptFL"


def test_all_rules_by_default(filled: Path) -> None:
    table = rows(export.summary_csv(filled, [1]))
    assert {r["selection_rule"] for r in table} == set(tables.RULES.values())


def test_rounds_hold_every_cell_with_counts(filled: Path) -> None:
    table = rows(export.rounds_csv(filled, [2]))
    runs = {r.id: r for r in queries.runs_of(filled, [2])}
    expected = sum(len(queries.cells(filled, runs, s, p)) for s, p in ((2, 1), (2, 0), (1, 1)))
    assert len(table) == expected > 1000
    for row in table[:: len(table) // 50]:
        assert float(row["accuracy"]) == pytest.approx(
            100 * int(row["correct"]) / int(row["total"]), abs=0.005
        )


def test_formulas_are_guarded_and_numbers_are_not() -> None:
    assert export.guarded("=HYPERLINK(1)") == "'=HYPERLINK(1)"
    assert export.guarded("@x") == "'@x"
    assert export.guarded("-cmd|' /C calc'!A0") == "'-cmd|' /C calc'!A0"
    assert export.guarded("-3.50") == "-3.50"
    assert export.guarded("+0.25") == "+0.25"
    assert export.guarded(5) == 5


def test_a_label_that_is_a_formula_leaves_as_text(tmp_path: Path) -> None:
    db = tmp_path / "runs.db"
    experiment = fill.an_experiment(methods=("fedot",), seeds=(1,), rounds=2)
    entry = experiment.methods[0].model_copy(update={"label": "=1+1"})
    number = fill.done(db, experiment.model_copy(update={"methods": (entry,), "name": "@evil"}))
    assert {r["method"] for r in rows(export.summary_csv(db, [number]))} == {"'=1+1"}
    table = rows(export.rounds_csv(db, [number]))
    assert {(r["label"], r["experiment"]) for r in table} == {("'=1+1", "'@evil")}


def test_latex_marks_best_and_second(filled: Path) -> None:
    text = export.summary_latex(filled, [1])
    found = {g.label: g.stats["personal"] for g in tables.compare(filled, [1]).groups}
    assert rf"\textbf{{{found['FedOT'].mean:.2f}}} {{\scriptsize $\pm$ {found['FedOT'].std:.2f}}}" in text
    assert rf"\underline{{{found['FedAlign'].mean:.2f}}}" in text
    assert text.count(r"\toprule") == text.count(r"\bottomrule") == 1
    assert export.tex("a_b & 5%") == r"a\_b \& 5\%"


def test_latex_and_csv_count_the_seeds_of_each_mean(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = tables.compare(filled, [1])
    group = next(g for g in found.groups if g.label == "FedOT")
    first, *rest = group.runs
    runs = (replace(first, values={**first.values, "global": None}), *rest)
    stats = {m: tables.spread(tables.per_seed(runs, m).values()) for m in ("personal", "global")}
    changed = replace(found, groups=(replace(group, runs=runs, stats=stats),))
    monkeypatch.setattr(export, "compare", lambda *args, **options: changed)
    last = next(line for line in export.summary_latex(filled, [1]).splitlines() if "FedOT" in line)
    assert last.endswith(r"& 3/2 \\")
    only = next(
        line
        for line in export.summary_latex(filled, [1], "last", ("global",)).splitlines()
        if "FedOT" in line
    )
    assert only.endswith(r"& 2 \\")
    table = rows(export.summary_csv(filled, [1], ("last",)))
    assert [(r["n"], r["seeds"]) for r in table] == [("3", "1 2 3"), ("2", "2 3")]


def test_json_has_configs_that_repeat_the_runs(filled: Path) -> None:
    content = json.loads(export.summary_json(filled, [1]))
    assert len(content["runs"]) == 15
    first = content["runs"][0]
    assert first["config"] == queries.run_config(filled, first["id"]).model_dump(mode="json")


def test_file_names_are_safe() -> None:
    name = export.file_name('../=<b>"Try it"</b> 😀', "summary", "csv")
    assert name.startswith("fedlens-b-try-it-b-summary-")
    assert name.endswith(".csv")
