"""When ours may stand beside a published value: by the file of reasons, and by the test sets of the runs."""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from fedcore.papers import published
from fedcore.papers.comparability import FILE, comparability, reasons
from fedcore.papers.equivalents import Equivalent, NoEquivalent, equivalent
from fedcore.papers.printed import printed_values
from fedcore.papers.reproductions import reproductions
from fedcore.results.comparison import compare
from fedcore.results.exports import latex, tables
from fedcore.results.printed import STATES, Comparability
from fedcore.store import Store
from tests.support.papers import find, preset, train, value_of

ROUNDED_UP = {"art_painting": 411, "cartoon": 471, "photo": 335, "sketch": 788}


def test_every_reason_of_the_file_is_about_some_published_value() -> None:
    """A misspelt method, data set or table would label nothing."""
    values = published.load_all()
    for line, reason in enumerate(reasons(), start=2):
        assert any(reason.is_about(value) for value in values), f"{FILE.name}:{line}"
        assert reason.text and reason.state != "comparable"


def test_femnist_and_impossible_protocols_are_not_comparable() -> None:
    femnist = [v for v in published.load_all() if v.dataset == "FEMNIST"]
    assert femnist and {comparability(v).state for v in femnist} == {"not comparable"}
    assert "LEAF" in comparability(femnist[0]).text
    assert {comparability(v).state for v in published.load("sdfed") if v.table == "7"} == {"not comparable"}


def test_zero_shot_clip_on_pacs_is_comparable_without_reservation() -> None:
    value = value_of("fedot", table="1", dataset="PACS", method="Zero-Shot CLIP")
    assert comparability(value) == Comparability()


@pytest.mark.parametrize(
    ("images", "state"),
    [
        (None, "with a caveat"),
        ({"location_38": 1953, "location_43": 803, "location_46": 1223, "location_100": 975}, "comparable"),
        (
            {"location_38": 1947, "location_43": 794, "location_46": 1176, "location_100": 948},
            "not comparable",
        ),
        ({"location_38": 1953}, "not comparable"),
    ],
    ids=["no run", "the paper's counts", "today's download", "three places missing"],
)
def test_terra_incognita_is_decided_by_the_counts_of_the_run(images, state) -> None:
    value = value_of("fedot", table="1", dataset="TerraIncognita", method="Zero-Shot CLIP")
    assert comparability(value, images).state == state


def test_the_averages_that_are_not_the_mean_of_their_row_are_marked_and_no_others() -> None:
    rows: dict[tuple, dict[str, float]] = defaultdict(dict)
    for v in published.load("fedot"):
        rows[v.table, v.dataset, v.setting, v.method, v.metric][v.target] = v.value
    odd = {
        key
        for key, row in rows.items()
        if "avg" in row
        and len(row) > 1
        and abs(row["avg"] - np.mean([x for target, x in row.items() if target != "avg"])) > 0.011
    }
    marked = {
        (v.table, v.dataset, v.setting, v.method, v.metric)
        for v in published.load_all()
        if "not the mean of its row" in comparability(v).text
    }
    assert marked == odd


def test_no_printed_number_belongs_to_two_methods() -> None:
    """Two names of one paper that share all their printed numbers are one method, and map to one config."""
    numbers: dict[tuple[str, str], dict[tuple, float]] = defaultdict(dict)
    mapped: dict[tuple[str, str], set[str]] = defaultdict(set)
    for v in published.load_all():
        own = equivalent(v)
        if isinstance(own, Equivalent):
            numbers[v.paper, v.method][v.dataset, v.backbone, v.target, v.metric] = v.value
            mapped[v.paper, v.method].add(repr(own))
    same = []
    for first, theirs in numbers.items():
        for second, others in numbers.items():
            common = theirs.keys() & others.keys()
            one_paper = first < second and first[0] == second[0]
            if one_paper and len(common) >= 3 and all(theirs[key] == others[key] for key in common):
                same.append((first, second))
                assert mapped[first] & mapped[second], f"{first} and {second} print the same numbers"
    assert same, "the papers do print some rows twice"


def test_methods_that_are_printed_only_say_why() -> None:
    for name in ("UOPP", "Powder", "GPT-FL"):
        own = equivalent(value_of("sdfed", table="4", dataset="DTD", method=name))
        assert isinstance(own, NoEquivalent) and own.reason.startswith("printed only: ")


def test_states_are_ordered_and_reasons_kept_once() -> None:
    both = Comparability().with_reason("with a caveat", "a").with_reason("not comparable", "b")
    assert both.state == "not comparable" and both.text == "not comparable: a; b"
    assert both.joined(both) == both and both.with_reason("comparable", "c") == both
    assert STATES == ("comparable", "with a caveat", "not comparable")


@pytest.fixture(scope="module")
def feddeap(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, object]:
    """FedDEAP on PACS, tested on 200 images of each domain."""
    db = tmp_path_factory.mktemp("comparable") / "runs.db"
    experiment = preset("feddeap/table1-pacs", ("FedDEAP", "Zero-shot CLIP"))
    train(db, experiment)
    return db, experiment


def test_a_run_is_judged_by_the_test_sets_that_it_recorded(feddeap) -> None:
    db, experiment = feddeap
    row = find(reproductions(Store(db), experiment), table="1", method="CLIP-zs", target="avg")
    assert comparability(row.published).state == "comparable"
    assert (row.status, row.comparability.state) == ("measured", "with a caveat"), (
        "200 images, not 411 and 788"
    )
    assert comparability(row.published, ROUNDED_UP).state == "comparable"
    assert row.measured_text.endswith(" †")


def test_a_value_that_is_not_comparable_has_no_difference(tmp_path: Path) -> None:
    db = tmp_path / "runs.db"
    experiment = preset("feddeap/table2-ddr", ("FedDEAP",))
    train(db, experiment)
    row = find(reproductions(Store(db), experiment), table="2", method="FedDEAP", target="avg")
    assert row.comparability.state == "not comparable" and row.measured is not None
    assert row.difference == "" and row.measured_text.endswith(" ‡")


def test_exports_name_the_state_and_the_reasons(feddeap) -> None:
    db, experiment = feddeap
    lookup = partial(printed_values, experiments=[experiment])
    table = csv.DictReader(io.StringIO(tables.table_csv(Store(db), [1], printed=lookup)))
    rows = {(r["label"], r["metric"]): r for r in table}
    row = rows["FedDEAP", "personal"]
    assert row["comparability"] == "with a caveat" and "rounded up" in row["reasons_against_comparing"]
    assert not rows["FedDEAP", "worst"]["comparability"]
    lines = latex.summary_latex(Store(db), [1], "last", printed=lookup)
    assert r"$^\dagger$" in lines and "FedDEAP printed: the printed accuracies fit" in lines


def test_another_rule_than_the_paper_s_is_a_caveat(feddeap) -> None:
    db, experiment = feddeap
    compared = compare(Store(db), [1], "best")
    found = printed_values(compared, [experiment])
    (group,) = [g for g in compared.groups if g.label == "FedDEAP"]
    reasons_against = [text for _, text in found.of(group, "personal")[0].comparability.reasons]
    assert "the paper reports last round, this table best on validation" in reasons_against
