"""The papers' tables: every value in its place, whether ours is comparable, and the runs that fill it."""

import csv
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from fedcore.engine.plan import plan
from fedcore.papers import layout
from fedcore.papers.cells import (
    Availability,
    TableCell,
    fillings,
    find_available,
    missing_parts,
    source_of,
    table_cells,
)
from fedcore.papers.comparability import Comparability
from fedcore.papers.equivalents import NoEquivalent, RunSource
from fedcore.papers.experiments import data_names
from fedcore.papers.layout import all_tables, tables
from fedcore.papers.mini import DATA
from fedcore.papers.published import PublishedValue, load_all
from fedcore.papers.recorded import Measurement, RecordedRuns
from fedcore.papers.reproductions import reproductions
from fedcore.results.statistics import Stat, spread
from fedcore.store import Store
from tests.support.papers import ROUNDS, finish, queue, train, value_of
from tests.support.papers import preset as cut

AVAILABLE = Availability(dict.fromkeys(data_names().values(), "/data"))
PACS = "fedot/table1-pacs"


def cells_of(
    db: Path, values: tuple[PublishedValue, ...], rehearsal: bool = False, available: Availability = AVAILABLE
) -> dict[PublishedValue, TableCell]:
    store = Store(db)
    recorded = RecordedRuns(store, {DATA} if rehearsal else set(data_names().values()))
    return table_cells(recorded, values, available, rehearsal)


def test_every_published_value_has_one_cell() -> None:
    placed = [
        table.values[i]
        for table in all_tables()
        for panel in table.panels
        for row in panel.rows
        for i in row.cells
        if i is not None
    ]
    assert sorted(map(repr, placed)) == sorted(map(repr, load_all()))
    assert len({table.name for table in all_tables()}) == len(all_tables())


def test_rows_and_columns_stand_as_printed() -> None:
    by_name = {table.name: table for table in all_tables()}
    (first,) = by_name["fedot-1"].panels
    assert first.rows[0].heads == ("generalization", "Zero-Shot CLIP")
    assert [row.heads[0] for row in first.rows][::9] == [
        "generalization",
        "generalization",
        "personalization",
        "comprehensive",
    ]
    assert [column[0] for column in first.columns] == [
        "FEMNIST",
        "PACS",
        "Office-Home",
        "VLCS",
        "TerraIncognita",
    ]
    (second,) = by_name["fedot-2"].panels
    assert [row.heads for row in second.rows][:2] == [("33 · A · L38",), ("0 · C · L43",)]
    seventh = by_name["fedot-7"].panels
    assert [panel.title for panel in seventh][:2] == ["held out 33, held out A", "held out 0, held out C"]
    ranks = by_name["fedalign-4"]
    assert [row.heads[0] for row in ranks.panels[0].rows][:2] == ["r = 2 | l = 0", "r = 3 | l = 2"]
    assert [ranks.values[i].value for i in ranks.panels[0].rows[0].cells] == [0.191, 0.5, 0.369, 0.623]


@pytest.mark.parametrize("rehearsal", [False, True])
def test_every_value_that_a_method_can_give_has_a_source(rehearsal: bool) -> None:
    for value in load_all():
        source = source_of(value, rehearsal)
        if isinstance(source, RunSource):
            assert source.parts(value), value
        else:
            assert isinstance(source, NoEquivalent)
            assert source.reason != "no preset has this method in this setting", value


def test_missing_seeds_of_a_measured_value_can_be_queued(db: Path) -> None:
    experiment = cut(PACS, ("FedOT",), seeds=(50, 77), rounds=200)
    train(db, experiment, rounds=ROUNDS)
    value = value_of("fedot", table="1", dataset="PACS", method="FedOT", metric="generalization")
    cell = cells_of(db, (value,))[value]
    (row,) = [row for row in reproductions(Store(db), experiment) if row.value == value]
    assert (cell.stat, cell.status, cell.gap_text) == (row.stat, "with a caveat", row.gap_text)
    assert {seed for seed, _ in cell.missing} == {98}
    assert len(cell.missing) == 4
    one = value_of("fedot", table="5", dataset="PACS", method="FedOT", target="C")
    assert cells_of(db, (one,))[one].missing == ((98, "cartoon"),)


def test_what_a_machine_lacks_is_said(db: Path) -> None:
    values = load_all()
    found = cells_of(db, values, available=find_available(Store(db)))
    counts = Counter(cell.status for cell in found.values())
    assert not counts["can be run"]
    lacking = counts["needs data"] + counts["not implemented"] + counts["no single run"]
    assert counts["computed"] == 22 and lacking + counts["computed"] == counts.total()
    pacs = found[value_of("fedot", table="1", dataset="PACS", method="FedOT", metric="generalization")]
    assert [lack.text for lack in pacs.lacks if lack.kind == "data"] == ["the data set PACS"]


def test_a_rehearsal_queues_exactly_the_runs_that_fill_a_cell(db: Path) -> None:
    value = value_of("fedot", table="5", dataset="PACS", method="FedOT", target="C")
    cells = cells_of(db, (value,), rehearsal=True)
    (filling,) = fillings(cells.values(), AVAILABLE)
    seeds = (50, 77, 98)
    assert filling.wanted == {("FedOT", seed, "painting-45") for seed in seeds}
    created = queue(Store(db), filling)
    runs = Store(db).runs.of_experiments([created.experiment_id])
    assert [(r.method, r.seed, r.held_out) for r in runs] == [("fedot", s, "painting-45") for s in seeds]
    again = cells_of(db, (value,), rehearsal=True)
    assert again[value].status == "in progress"
    assert not fillings(again.values(), AVAILABLE)
    assert cells_of(db, (value,))[value].status in ("can be run", "needs weights")
    assert not Store(db).experiments.get(created.experiment_id).config.reproduces


def test_a_run_that_several_cells_need_is_queued_once(db: Path) -> None:
    table = next(t for t in tables("fedot") if t.name == "fedot-1")
    cells = cells_of(db, table.values, rehearsal=True)
    every = fillings(cells.values(), AVAILABLE)
    keys = [key for filling in every for key in filling.wanted]
    planned = [plan(filling.experiment) for filling in every]
    assert [len(f.reduced(p).runs) for f, p in zip(every, planned, strict=True)] == [
        len(f.wanted) for f in every
    ]
    assert sum(len(filling.wanted) for filling in every) == len(keys)
    missing = missing_parts(cells.values())
    contents = [(source.key, part) for source, parts in missing.items() for part in parts]
    assert len(contents) == len(set(contents))


def test_a_rehearsal_is_no_evidence_in_the_export(db: Path) -> None:
    table = next(t for t in tables("feddeap") if t.name == "feddeap-5")
    cells = cells_of(db, table.values, rehearsal=True)
    (filling,) = fillings(cells.values(), AVAILABLE)
    created = queue(Store(db), filling)
    finish(db, created.experiment_id)
    after = cells_of(db, table.values, rehearsal=True)
    assert {cell.status for cell in after.values()} == {"rehearsed"}
    assert not any(cell.gap_text for cell in after.values())
    lines = layout.table_csv([after[v] for v in table.values], lambda cell: None).splitlines()
    read = list(csv.DictReader(lines))
    assert all(line["rehearsed"] and not line["ours"] and not line["n"] for line in read)
    assert {line["rule"] for line in csv.DictReader(lines)} == {"last"}, "FedDEAP reports the last round"
    assert layout.file_name(table, True, "csv").endswith("-rehearsal.csv")
    text = layout.table_latex(table, after)
    assert r"\textit{" in text, "a rehearsed value is set apart"
    assert "no evidence" in text
    assert layout.file_name(table, True, "tex").endswith("-rehearsal.tex")
    assert {c.status for c in cells_of(db, table.values).values()} <= {"can be run", "needs weights"}


def test_a_rehearsed_table_whose_rows_do_not_differ_shows_nothing() -> None:
    table = next(t for t in all_tables() if t.name == "feddeap-5")
    (rows,) = (panel.rows for panel in table.panels)

    def shows_nothing(shift: float, status: str = "rehearsed", waiting: bool = False) -> bool:
        by_seed = [{1: 50.0, 2: 60.0}, {1: 54.0, 2: 57.0}, {1: 50.0 + shift, 2: 60.0 + shift}]
        found = [Measurement(spread(of.values()), (1, 2), Comparability(), by_seed=of) for of in by_seed]
        cells = [TableCell(value, "can be run") for value in table.values]
        for row, measured in zip(rows, found, strict=True):
            for i in row.cells:
                cells[i] = TableCell(table.values[i], status, measurement=measured)
        cells[-1] = replace(cells[-1], missing=((1, None),) if waiting else ())
        return layout.shows_nothing(table, cells)

    assert shows_nothing(0) and not shows_nothing(1)
    assert not shows_nothing(0, "comparable"), "real runs are no rehearsal"
    assert not shows_nothing(0, waiting=True), "the rows that are still to come may differ"


def test_a_cell_that_the_paper_s_own_tables_contradict_says_so_in_the_export(db: Path) -> None:
    table = next(t for t in all_tables() if t.name == "fedot-9")
    cells = cells_of(db, table.values)
    text = layout.table_csv([cells[v] for v in table.values], lambda cell: None)
    said = {line["printed"]: line["reasons"] for line in csv.DictReader(text.splitlines())}
    assert "Tables 5 and 7 give 64.70 for this cell, which prints 71.40" in said["71.4"]


def test_a_table_as_latex_has_printed_own_and_difference_in_every_cell() -> None:
    table = next(t for t in tables("fedot") if len(t.panels[0].rows[0].heads) > 1)
    measured = Measurement(Stat(table.values[0].value - 1.5, 0.25, 3), (1, 2, 3), Comparability())
    cells = {v: TableCell(v, "can be run") for v in table.values}
    cells[table.values[0]] = TableCell(table.values[0], "comparable", measurement=measured)
    text = layout.table_latex(table, cells)
    measured_line = next(line for line in text.splitlines() if r"$\pm$" in line and "shortstack" in line)
    first = measured_line.split(r"\shortstack{")[1]
    assert first.startswith(cells[table.values[0]].value.text)
    assert "(3)" in first and "-1.5" in first
    assert text.count(r"\begin{tabular}") == text.count(r"\end{table}") == len(table.panels)
    columns = len(table.panels[0].rows[0].heads) + len(table.panels[0].columns)
    assert measured_line.replace(r"\&", "").count("&") == columns - 1
    assert all(line.count("{") == line.count("}") for line in text.splitlines())
    assert text.splitlines()[6] == (
        " &  & {FEMNIST} & {PACS} & {Office-Home} & {VLCS} & {TerraIncognita} " + r"\\"
    )
