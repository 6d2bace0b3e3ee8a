"""Printed figures at the rows of a comparison: at the right row, in the right column, and what is missing."""

import csv
import io
import json
from pathlib import Path
from typing import NamedTuple

import pytest

from fedcore.config import Experiment
from fedcore.papers import library, published
from fedcore.papers.reproductions import column_of, printed_values, reproductions
from fedcore.results import exports as tables
from fedcore.results import sharing
from fedcore.results.comparison import Comparison, compare
from fedcore.results.metrics import METRICS
from fedcore.results.summary import PrintedValues, summarise
from fedcore.store import Store
from fedcore.store.database import writing
from tests.support import papers as presets


class Pacs(NamedTuple):
    """A preset, its store, their comparison by the paper's rule, and what papers print of its rows."""

    store: Store
    experiment: Experiment
    comparison: Comparison
    found: PrintedValues


@pytest.fixture(scope="module")
def pacs(tmp_path_factory: pytest.TempPathFactory) -> Pacs:
    db = tmp_path_factory.mktemp("printed") / "runs.db"
    experiment = presets.preset("fedot/table1-pacs", ("FedOT", "FedOT(-o)", "Zero-shot CLIP"), seeds=(50,))
    presets.train(db, experiment)
    comparison = compare(Store(db), [1], "best")
    return Pacs(Store(db), experiment, comparison, printed_values(comparison, [experiment]))


def rows(found: PrintedValues, comparison: Comparison) -> dict[str, dict[str, list[str]]]:
    return {
        g.label: {m: [f.text() for f in found.of(g, m)] for m in METRICS if found.of(g, m)}
        for g in comparison.rows
    }


def test_a_row_has_what_its_paper_prints_of_it(pacs: Pacs) -> None:
    _, _, comparison, found = pacs
    shown = rows(found, comparison)
    # Table 1 prints FedOT and, with one block the same, FedOT(+B); Tables 2, 3 and 5 print them again
    assert shown["FedOT"]["generalisation"][:2] == ["94.68", "94.26"]
    assert set(shown["FedOT"]["generalisation"]) == {"94.68", "94.26"}
    assert shown["FedOT"]["personalisation"][0] == "96.74"
    assert shown["FedOT(-o)"] == {"generalisation": ["94.51"]}, "Table 2 prints nothing else of it"
    assert found.metrics(comparison.rows) == {"generalisation", "personalisation", "comprehensive"}
    assert found.sources == ["FedOT, Tables 1, 2, 3, 5, 9 (best on validation)"]
    assert found.missing["VPT"] == found.missing["FedCLIP"] == "not run"
    assert "FedOT" not in found.missing, "its random init has no row, but it has"


def test_they_are_those_of_the_published_tab(pacs: Pacs) -> None:
    """What the summary has by the paper's own rule is what ``reproductions`` reads, number by number."""
    store, experiment, comparison, found = pacs
    read = {
        (library.find(b.value.paper).title, b.value.table, b.value.method, column_of(b.value)): b
        for b in reproductions(store, experiment)
        if b.stat is not None and column_of(b.value) is not None
    }
    compared = 0
    for group in comparison.rows:
        for metric, stat in group.stats.items():
            for figure in found.of(group, metric):
                if (figure.method, metric) == ("Zero Shot", "comprehensive"):
                    continue  # printed by domain
                other = read[figure.paper, figure.table, figure.method, metric]
                assert other.stat.mean == pytest.approx(stat.mean)
                assert other.value.value == figure.value
                compared += 1
    assert compared > 15


def test_another_protocol_has_no_printed_value(pacs: Pacs) -> None:
    store, experiment, _, _ = pacs
    comparison = compare(store, [1])
    longer = experiment.model_copy(update={"rounds": 9})
    fewer = experiment.model_copy(update={"held_out": experiment.held_out[:3]})
    for other in (longer, fewer, experiment.model_copy(update={"reproduces": ()})):
        assert not printed_values(comparison, [other]).values
    assert printed_values(comparison, [longer]).missing["FedOT"] == "not run"


def test_kept_checkpoints_and_a_time_limit_change_no_number(tmp_path: Path) -> None:
    experiment = presets.preset("fedot/table1-pacs", ("FedOT",), seeds=(50,))
    changed = experiment.model_copy(update={"keep_checkpoints": "all", "time_limit": 10.0, "seeds": (77,)})
    for one in (experiment, changed):
        presets.train(tmp_path / "runs.db", one)
    comparison = compare(Store(tmp_path / "runs.db"), [1, 2], "best")
    (row,) = comparison.rows
    assert row.seeds == (50, 77)
    for number, printed in ((1, experiment), (2, changed)):
        (alone,) = compare(Store(tmp_path / "runs.db"), [number], "best").rows
        assert alone.key == row.key
        assert rows(printed_values(comparison, [printed]), comparison)["FedOT"]["generalisation"]
    found = reproductions(Store(tmp_path / "runs.db"), experiment)
    assert {row.stat.n for row in found if row.stat is not None} == {2}


def test_other_code_of_that_name_is_not_ours(db: Path) -> None:
    """What a script records as FedOT is no run of FedLens' FedOT with the paper's config."""
    experiment = presets.preset("fedot/table1-pacs", ("FedOT",), seeds=(50,))
    presets.train(db, experiment)
    assert any(b.stat for b in reproductions(Store(db), experiment))
    with writing(db) as database:
        database.execute("UPDATE runs SET origin='recorder'")
    assert not printed_values(compare(Store(db), [1], "best"), [experiment]).values
    assert not any(b.stat for b in reproductions(Store(db), experiment))


def test_values_of_single_domains_and_of_models_before_aggregation_have_no_column() -> None:
    local = {
        (f.setting, f.method): column_of(f)
        for f in published.load("fedalign")
        if (f.table, f.dataset, f.metric) == ("1", "CIFAR10", "local")
        and f.method in ("FedAlign", "PromptFL")
    }
    assert local == {
        ("IID", "FedAlign"): "classes",
        ("Dir", "FedAlign"): "classes",
        ("Path", "FedAlign"): None,
        ("IID", "PromptFL"): None,
        ("Dir", "PromptFL"): None,
        ("Path", "PromptFL"): None,
    }
    by_domain = presets.value_of("feddeap", table="1", dataset="DomainNet-126", method="FedDEAP", target="s")
    assert column_of(by_domain) is None
    assert (
        column_of(
            presets.value_of(
                "fedot", table="7", dataset="PACS", method="FedOT", setting="held out A", target="avg"
            )
        )
        is None
    )


def test_an_experiment_whose_values_do_not_exist_has_none(pacs: Pacs) -> None:
    store, experiment, _, _ = pacs
    odd = experiment.reproduces[0].model_copy(update={"table": "99"})
    other = experiment.model_copy(update={"reproduces": (odd,)})
    assert printed_values(compare(store, [1]), [other]) == PrintedValues()


def test_latex_has_what_papers_print_in_columns_of_their_own(pacs: Pacs) -> None:
    _, _, comparison, found = pacs
    lines = sharing.summary_latex(summarise(comparison, printed=found)).splitlines()
    head = next(line for line in lines if line.strip().startswith("Method"))
    names = [cell.strip() for cell in head.removesuffix(r"\\").split("&")]
    assert names[1:7] == ["G", "G, printed", "P", "P, printed", "C", "C, printed"]
    row = next(line for line in lines if line.strip().startswith("{FedOT} &")).split(" & ")
    assert row[names.index("G, printed")] == r"94.68$^\dagger$ / 94.26$^\dagger$"
    bare = next(line for line in lines if line.strip().startswith("{FedOT(-o)}")).split(" & ")
    assert bare[names.index("P, printed")] == "--"
    assert len(row) == len(names) and rf"{{l{'r' * (len(names) - 1)}}}" in "\n".join(lines)
    assert "Printed: FedOT, Tables 1, 2, 3, 5, 9 (best on validation).}" in "\n".join(lines)
    assert "% FedOT, G printed: 94.68 is FedOT, 94.26 is FedOT(+B)" in lines
    without = sharing.summary_latex(summarise(comparison))
    assert "rinted" not in without and "94.68" not in without


def test_files_have_what_the_screen_has(pacs: Pacs) -> None:
    store, _, comparison, found = pacs
    summary = summarise(comparison, printed=found)
    table = list(csv.DictReader(io.StringIO(tables.rows_csv(tables.summary_rows(summary)))))
    filed = {(r["label"], r["metric"]): r for r in table}
    for group in comparison.rows:
        for metric in group.stats:
            row, figures = filed[group.label, metric], found.of(group, metric)
            assert row["printed"] == (str(figures[0].value) if figures else "")
    assert filed["FedOT", "generalisation"]["printed_in"] == ("FedOT, Table 1: FedOT (best on validation)")
    assert filed["FedOT", "generalisation"]["comparability"] == "with a caveat"
    assert filed["FedOT", "generalisation"]["reasons_against_comparing"]
    rows = json.loads(tables.summary_json(store, summary))["summary"]
    assert [r["printed"] for r in rows] == [float(r["printed"]) if r["printed"] else None for r in table]
