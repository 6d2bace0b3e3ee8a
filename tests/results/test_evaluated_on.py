"""Rows from elsewhere that measure something else are shown with a remark, and compared with nothing."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from fedcore.base.progress import result_of
from fedcore.config import PartitionConfig
from fedcore.results.comparison import compare, reason_not_comparable, significance
from fedcore.results.costs import pareto_front, row_costs
from fedcore.results.leaderboard import board, board_settings
from fedcore.results.progress import summaries_of
from fedcore.results.rows import ComparisonRow
from fedcore.results.sharing import summary_latex
from fedcore.results.summary import best_and_second, summarise
from fedcore.share.checked import ComparisonChoices, checked_comparison
from fedcore.share.content import breakdown_tables, read_report, summary_table
from fedcore.share.page import report_html
from fedcore.share.views import Heatmaps
from fedcore.store import Recorder, Store
from fedcore.store.database import writing
from tests.support import fill
from tests.support.exported import exported, table_of

ROUNDS = 2
TWO = fill.CLIENTS[:2]
FOREIGN: dict[str, tuple[dict[str, int], str]] = {
    "two": (dict.fromkeys(TWO, 60), "evaluated on 2 of 6 clients"),
    "foo": ({"Foo": 60, "Bar": 60}, "evaluated on other clients (Foo, Bar)"),
    "hundred": (
        dict.fromkeys(fill.CLIENTS, 100),
        "100 instead of 60 test samples of 0° (and 5 more clients like it)",
    ),
}
"""Method -> the totals of its test sets, and the remark on it."""


def imported(
    store: Store, tmp_path: Path, experiment: int, totals: Mapping[str, Mapping[str, int]], seeds=(1, 2, 3)
) -> None:
    """Import rows that are better than any of FedLens', but measure what ``totals`` says: method -> set."""
    file = tmp_path / f"{'-'.join(totals)}.csv"
    lines = ["method,seed,round,model,test_set,correct,total,split"]
    lines += [
        f"{method},{seed},{ROUNDS},{name},{name},{total - 1 - seed},{total},{split}"
        for method, sets in totals.items()
        for seed in seeds
        for name, total in sets.items()
        for split in ("validation", "test")
    ]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    store.imports.csv(file, experiment)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """FedOT and PromptFL on six clients of 60 test samples, beside the rows of ``FOREIGN``."""
    tmp_path = tmp_path_factory.mktemp("elsewhere")
    store = Store(tmp_path / "runs.db")
    number = fill.done(store.path, fill.an_experiment(methods=("fedot", "promptfl"), rounds=ROUNDS))
    imported(store, tmp_path, number, {name: sets for name, (sets, _) in FOREIGN.items()})
    return store


def rows_of(store: Store) -> dict[str, ComparisonRow]:
    return {g.label: g for g in compare(store, [1]).rows}


def test_what_differs_is_said_and_nothing_is_best_or_compared(store: Store) -> None:
    rows = rows_of(store)
    assert len({g.setting for g in rows.values()}) == 1
    found = {label: g.other_tests for label, g in rows.items()}
    assert found == {"FedOT": "", "PromptFL": ""} | {name: text for name, (_, text) in FOREIGN.items()}
    assert max(rows.values(), key=lambda g: g.stats["personal"].mean).label in FOREIGN, "they look better"
    marks = best_and_second(list(rows.values()), "personal")
    assert marks == {rows["FedOT"].key: "best", rows["PromptFL"].key: "second"}
    tested = significance(list(rows.values()), rows["PromptFL"], "personal")
    assert set(tested) == {rows["FedOT"].key}
    for name, (_, text) in FOREIGN.items():
        assert reason_not_comparable(rows[name], rows["PromptFL"]) == text
        assert reason_not_comparable(rows["PromptFL"], rows[name]) == f"{name}: {text}"
        assert significance([rows["PromptFL"]], rows[name], "personal") == {}
    assert [n for n in compare(store, [1]).notes if n.startswith("‡")] == [
        f"‡ {name}: {text}, so it is not compared with the other rows" for name, (_, text) in FOREIGN.items()
    ]


def test_every_file_has_the_remark_and_no_claim(store: Store) -> None:
    latex = summary_latex(summarise(compare(store, [1])))
    (fedot,) = [line for line in latex.splitlines() if line.startswith("    {FedOT}")]
    assert r"\textbf" in fedot and latex.count(r"\textbf") == fedot.count(r"\textbf")
    assert not any(
        r"\underline" in line
        for line in latex.splitlines()
        if line.startswith(("    {two}", "    {foo}", "    {hundred}"))
    )
    rows = table_of(exported(store, [1], baseline="PromptFL"))
    content = json.loads(exported(store, [1], "summary", "json"))["summary"]
    for name, (_, text) in FOREIGN.items():
        assert rf"{{{name}}}$^\ddagger$" in latex and f"$^\\ddagger$ {name}: {text[:20]}" in latex
        of_method = [r for r in rows if r["label"] == name]
        assert of_method and all(text in r["remark"] for r in of_method)
        assert {r[c] for r in of_method for c in ("difference", "p", "p_holm", "pairs", "test")} == {""}
        assert all(text in r["remark"] for r in content if r["label"] == name)
        for table in ("breakdowns", "domains"):
            lines = [r for r in table_of(exported(store, [1], table)) if r["label"] == name]
            assert all(text in r["remark"] for r in lines) and (lines or table == "domains")
    assert all(not r["remark"] for r in content if r["label"] == "FedOT")


def test_the_report_marks_them_and_takes_no_difference(store: Store) -> None:
    with checked_comparison(store, [1], ComparisonChoices(baseline="PromptFL")) as checked:
        report = result_of(read_report(checked))
    (section,) = report.sections
    table = summary_table(report.summary, section.table)
    cells = {row[0].text: row for row in table.rows}
    for name, (_, text) in FOREIGN.items():
        row = cells[f"{name} ‡"]
        assert row[0].help.startswith(text) and not any(c.mark for c in row)
        assert "not comparable" in [c.text for c in row] and text in [c.help for c in row]
    assert [c.mark for c in cells["FedOT"]].count("best") == len(section.table.metrics)
    assert any(r[0].text == "two ‡" for t in breakdown_tables(section.table) for r in t.rows)
    gaps = [f for f in section.figures if isinstance(f, Heatmaps) and f.kind == "difference"]
    assert gaps and all(p.title.startswith("FedOT") for f in gaps for p in f.panels)
    page = result_of(report_html(report))
    assert all(text in page for _, text in FOREIGN.values())


def test_they_have_no_rank(store: Store) -> None:
    (setting,) = board_settings(store, store.runs.of_experiments([1]))
    made = board(store, setting, "personal")
    assert [g.label for g in made.rows[:2]] == ["FedOT", "PromptFL"] and len(made.rows) == 5
    assert {g.label for g in made.ranked} == {"FedOT", "PromptFL"} and len(made.tests) == 1
    for g in made.rows[2:]:
        assert made.rank_text(g) == f"not ranked: {FOREIGN[g.label][1]}"
    assert "3 rows are not ranked" in made.finding and not any(name in made.finding for name in FOREIGN)


def test_the_list_of_experiments_shows_a_method_that_fedlens_trained(store: Store) -> None:
    (item,) = summaries_of(store, store.experiments.all())
    trained = {g.label: g.stats["personal"].mean for g in rows_of(store).values() if g.trained_by_fedlens}
    assert item.last == pytest.approx(trained[item.best_text])


def test_rows_that_measure_the_same_are_compared_wherever_they_come_from(
    store: Store, tmp_path: Path
) -> None:
    store = Store(shutil.copy(store.path, tmp_path / "runs.db"))
    imported(store, tmp_path, 1, {"mine": dict.fromkeys(fill.CLIENTS, fill.TOTAL)})
    with Recorder(store.path, method="few", seed=1, experiment=1, rounds_total=ROUNDS) as run:
        run.round(ROUNDS, accuracy={(c, c): (59, 60) for c in TWO}, bytes_up=1, seconds=0.001)
    rows = rows_of(store)
    comparison = compare(store, [1])
    costs = {c.label: c for c in row_costs(store, comparison, rows["few"].setting)}
    assert pareto_front(list(costs.values()), "seconds") == [costs["FedOT"]], (
        "few costs less and reaches more"
    )
    assert (rows["mine"].other_tests, rows["mine"].mark) == ("", "")
    assert best_and_second(list(rows.values()), "personal")[rows["mine"].key] == "best"
    assert rows["few"].other_tests == "evaluated on 2 of 6 clients"
    alike = reason_not_comparable(rows["few"], rows["two"])
    assert alike == "", "two rows on the same two clients compare with each other"


def test_without_a_row_of_fedlens_most_rows_decide(db: Path, tmp_path: Path) -> None:
    store = Store(db)
    sets = {"a": {"x": 10}, "b": {"x": 10, "y": 10}, "c": {"x": 10, "y": 10}}
    imported(store, tmp_path, "Own", sets)  # type: ignore[arg-type]
    assert {g.label: g.other_tests for g in compare(store, [1]).rows} == {
        "a": "evaluated on 1 of 2 clients",
        "b": "",
        "c": "",
    }


def test_totals_that_are_drawn_with_the_seed_are_compared_seed_by_seed(tmp_path: Path) -> None:
    """FedLens' clients of a Dirichlet partition have 60 + seed test samples here."""
    store = Store(tmp_path / "runs.db")
    partition = PartitionConfig(kind="dirichlet", clients=2, alpha=0.5)
    fill.done(
        store.path, fill.an_experiment(methods=("fedot",), seeds=(1, 2), rounds=ROUNDS, partition=partition)
    )
    with writing(store.path) as database:
        database.execute("UPDATE accuracy SET total = total + (SELECT seed FROM runs WHERE id = run_id)")
    for method, seeds, extra in (("same", (1, 2, 3), 0), ("more", (1, 2), 1), ("unknown", (8,), 0)):
        for seed in seeds:
            with Recorder(store.path, method=method, seed=seed, experiment=1, rounds_total=ROUNDS) as run:
                run.round(ROUNDS, accuracy={(c, c): (50, 60 + seed + extra) for c in fill.CLIENTS})
    found = {g.label: g.other_tests for g in compare(store, [1]).rows}
    assert (found["FedOT"], found["same"]) == ("", "")
    assert "62 instead of 61 test samples of 0°" in found["more"] and "(seed 1" in found["more"]
    assert found["unknown"].startswith("no seed in common with the other rows")


def test_a_mean_over_fewer_held_out_domains_is_another_quantity(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs.db")
    for method, domains in (("fedot", TWO), ("promptfl", TWO), ("fedalign", TWO[:1])):
        fill.done(store.path, fill.an_experiment(methods=(method,), rounds=ROUNDS, held_out=domains))
    rows = {g.label: g for g in compare(store, [1, 2, 3]).rows}
    assert len({g.setting for g in rows.values()}) == 1
    assert {label: g.other_tests for label, g in rows.items()} == {
        "FedOT": "",
        "PromptFL": "",
        "FedAlign": "evaluated on 1 of 2 held-out domains",
    }


def test_a_merged_run_on_other_clients_is_outvoted(tmp_path: Path) -> None:
    other, store = Store(tmp_path / "other.db"), Store(tmp_path / "runs.db")
    fill.done(store.path, fill.an_experiment(methods=("fedot", "promptfl"), seeds=(1,), rounds=ROUNDS))
    _, (writer,) = fill.start(
        other.path, fill.an_experiment(methods=("fedalign",), seeds=(1,), rounds=ROUNDS)
    )
    fill.train(writer, clients=TWO)
    fill.let_go(other.path, writer.claim.owner)
    store.imports.database(other.path)
    rows = {g.label: g for g in compare(store, [1, 2]).rows}
    assert rows["FedAlign"].trained_by_fedlens and len({g.setting for g in rows.values()}) == 1
    assert {label: g.other_tests for label, g in rows.items() if g.other_tests} == {
        "FedAlign": "evaluated on 2 of 6 clients"
    }


def test_rows_of_fedlens_raise_no_alarm(tmp_path: Path, filled: Path) -> None:
    """Zero-shot rows, other seeds, other rounds and rules: the test sets are the same by construction."""
    store = Store(tmp_path / "runs.db")
    fill.done(store.path, fill.an_experiment(methods=("fedot", "zero-shot"), seeds=(1, 2), rounds=ROUNDS))
    fill.done(store.path, fill.an_experiment(methods=("promptfl",), seeds=(7,), rounds=ROUNDS + 1))
    for rule in ("last", "best", "mean10"):
        assert not any(g.other_tests for g in compare(store, [1, 2], rule).rows)
        assert not any(g.other_tests for g in compare(Store(filled), [1, 2], rule, unfinished=True).rows)


def test_rounds_tested_on_samples_say_so_and_are_not_compared_with_whole_test_sets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the domains' 60 test samples 20 are tested in between; the last round is as without the field."""
    db, made = tmp_path / "runs.db", fill.a_round

    def sampled(method: str, seed: int, round_: int, rounds: int, clients: tuple[str, ...]) -> object:
        event = made(method, seed, round_, rounds, clients)
        if not 0 < round_ < rounds:
            return event
        cells = [
            c._replace(correct=c.correct // 3, total=20) if c.test_set > len(clients) else c
            for c in event.cells
        ]
        return replace(event, cells=tuple(cells))

    whole = fill.done(db, fill.an_experiment(methods=("fedot",), seeds=(1,), rounds=3))
    monkeypatch.setattr(fill, "a_round", sampled)
    wanted = fill.an_experiment(methods=("fedot", "sdfed"), seeds=(1,), rounds=3, test_sample=20)
    some = fill.done(db, wanted)
    text = "at most 20 samples of a test set are tested, except of clients' own"
    error = "standard error of √(p (1 - p) / 20), at most 11.2 points"

    alone = compare(Store(db), [some], "mean10")
    assert not any(row.other_tests for row in alone.rows), "rows of one sample are compared"
    (note,) = (n for n in alone.notes if text in n)
    assert error in note and note.endswith("Such rounds are in the table: FedOT, SDFed.")

    last = compare(Store(db), [whole, some], "last")
    assert not any(row.other_tests for row in last.rows), "the last round is tested in full"
    (note,) = (n for n in last.notes if text in n)
    assert note.endswith("The rounds in the table are not among them; curves show them.")
    assert not any(text in n for n in compare(Store(db), [whole], "mean10").notes)

    both = compare(Store(db), [whole, some], "mean10")
    marked = {row.config.test_sample: row for row in both.rows if row.method == "fedot"}
    assert marked[20].other_tests == "" and marked[None].other_tests == (
        "tested between the first and the last round on whole test sets instead of samples of 20 of a "
        "test set"
    )
    assert significance([marked[None]], marked[20], "whole") == {}
    assert significance([marked[20]], marked[None], "whole") == {}
