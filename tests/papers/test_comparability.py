"""When ours may stand beside a published value: by the file of reasons, and by the test sets of the runs."""

import csv
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedcore.cli.main import main
from fedcore.methods import registry
from fedcore.papers import library, published
from fedcore.papers.comparability import (
    NO_EVIDENCE,
    comparability,
    comparability_of_runs,
    coverage,
    evidence,
    evidence_for,
    reasons,
    reasons_for,
)
from fedcore.papers.equivalents import NoEquivalent, equivalent
from fedcore.papers.experiments import PrintedMethod, domain_names
from fedcore.papers.reproductions import printed_values, reproductions
from fedcore.results.comparison import compare
from fedcore.results.summary import STATES, Comparability
from fedcore.store import Store
from tests.support.papers import find, preset, train, value_of

FOUR = ("fedot", "sdfed", "fedalign", "feddeap")
ROUNDED_UP = {"art_painting": 411, "cartoon": 471, "photo": 335, "sketch": 788}


def test_every_reason_of_the_file_is_about_some_published_value() -> None:
    """A misspelt method, data set or table would label nothing."""
    for work in library.works():
        values = (value for edition in library.editions(work) for value in published.load(edition.key))
        about = {reason for value in values for reason in reasons_for(value)}
        for line, reason in enumerate(reasons(work), start=2):
            assert reason in about, reason.place
            assert reason.text and reason.place.endswith(f", line {line}")
    assert [len(reasons(work)) for work in FOUR] == [34, 12, 7, 14], "and the rest have none"


def test_femnist_and_impossible_protocols_are_not_comparable() -> None:
    femnist = [v for v in published.load_all() if v.dataset == "FEMNIST"]
    assert femnist and {comparability(v).state for v in femnist} == {"not comparable"}
    assert "LEAF" in comparability(femnist[0]).text
    assert {comparability(v).state for v in published.load("sdfed") if v.table == "7"} == {"not comparable"}


def test_zero_shot_clip_on_pacs_is_comparable_without_reservation() -> None:
    value = value_of("fedot", table="1", dataset="PACS", method="Zero-Shot CLIP")
    assert comparability(value) == Comparability()
    assert ["409, 468, 334 or 785" in line.text for line in evidence_for(value)] == [True]


def test_every_comparable_value_has_evidence_which_its_printed_digits_bear_out() -> None:
    """Fails closed: of each value called comparable, a line says why, and its test sets give the digits."""
    supported = evidence()
    comparable = {v for v in published.load_all() if comparability(v).state == "comparable"}
    assert comparable and {v for values in supported.values() for v in values} == comparable
    twice = 2  # FedAlign's Table 4 prints the counts of its default two times
    assert sum(counts["comparable"] for counts in coverage().values()) == len(comparable) + twice
    for line, values in supported.items():
        if all(published.computed(value) is not None for value in values):
            assert all(f"{published.computed(value):.3f}" == value.text for value in values)
            continue
        assert line.test_images, f"{line.place} has no test sets to check the values by"
        for value in values:
            if value.target == "avg" and len(line.test_images) > 1:
                continue  # a mean of several fractions fits any number
            domain = domain_names()[value.dataset][value.target] if len(line.test_images) > 1 else "all"
            total = line.test_images[domain]
            right = round(value.value * total / 100)
            assert f"{100 * right / total:.2f}" == f"{value.value:.2f}", (line.line, value)


def test_a_value_without_evidence_is_not_comparable() -> None:
    unheard = replace(value_of("fedot", table="1", dataset="PACS", method="Zero-Shot CLIP"), method="New")
    assert comparability(unheard) == Comparability((("with a caveat", NO_EVIDENCE),))
    assert comparability_of_runs(unheard, [], []) == comparability(unheard), "nor is it without any run"


def test_evidence_of_test_sets_supports_runs_on_these_only() -> None:
    value = value_of("fedot", table="1", dataset="VLCS", method="Zero-Shot CLIP")
    (line,) = evidence_for(value)
    assert comparability(value, line.test_images).state == "comparable"
    other = comparability(value, {**line.test_images, "VOC2007": 676})
    assert other.state == "with a caveat" and "not tested on as many images as the paper" in other.text


def test_the_command_lists_every_comparable_value_below_its_evidence(capsys) -> None:
    assert main(["published", "--evidence"]) == 0
    printed, notes = capsys.readouterr()
    places = {(row["place"], row["evidence"]) for row in csv.DictReader(printed.splitlines())}
    comparable = {v for v in published.load_all() if evidence_for(v)}
    assert notes.endswith(f"{len(comparable)} comparable values\n")
    assert places == {(line.place, line.text) for line in evidence()}
    assert main(["published", "--evidence", "--preset", "demo"]) == 2


@pytest.mark.parametrize(
    ("method", "said", "fields"),
    [
        (
            "fedgh",
            "momentum 0.9, weight decay 1e-3 and ten local epochs are its public code's",
            {"momentum": 0.9, "weight_decay": 1e-3, "local_epochs": 10, "batch_size": 32},
        ),
        (
            "facmic",
            "which weights clients by their samples and keeps Adam's state",
            {"weighting": "samples", "optimiser_state": "kept", "optimiser": "adam", "target": "none"},
        ),
        ("fedapt", "random keys that are never trained or sent", {"keys": "frozen"}),
        ("clip-fc", "momentum 0.9 and weight decay 5e-4", {"momentum": 0.9, "weight_decay": 5e-4}),
    ],
)
def test_what_a_reason_says_of_a_baseline_is_what_it_trains_with(
    method: str, said: str, fields: dict
) -> None:
    assert any(said in reason.text for work in FOUR for reason in reasons(work))
    full = registry.build_config(method, {}).model_dump()
    assert {name: full[name] for name in fields} == fields


def test_the_comprehensive_cells_that_the_paper_s_own_tables_contradict_are_flagged_and_no_others() -> None:
    """A comprehensive cell is the mean of a generalisation cell and the personalisation cells of its row."""
    parts: dict[tuple, list[float]] = defaultdict(list)
    cells: dict[tuple, published.PublishedValue] = {}
    for v in published.load("fedot"):
        if v.target == "avg" or v.method == "Zero Shot":
            continue
        if v.table in ("5", "6") and v.metric == "generalization":
            parts[v.dataset, v.method, v.target].append(v.value)
        elif v.table in ("7", "8") and v.metric == "personalization":
            parts[v.dataset, v.method, v.setting.removeprefix("held out ")].append(v.value)
        elif v.table in ("9", "10") and v.metric == "comprehensive":
            cells[v.dataset, v.method, v.target] = v
    assert len(cells) == 320 and all(len(parts[key]) == 4 for key in cells)
    odd = {key: np.mean(parts[key]) for key, v in cells.items() if abs(v.value - np.mean(parts[key])) > 0.011}
    flags = {key: comparability(v).text for key, v in cells.items() if "this cell" in comparability(v).text}
    assert len(odd) == 8 and flags.keys() == odd.keys()
    for key, follows in odd.items():
        assert f"give {follows:.2f} for this cell, which prints {cells[key].value:.2f}" in flags[key]


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
    assert marked == odd and len(odd) == 11
    value = rows["8", "VLCS", "held out V", "FedAKT (CLIP)", "personalization"]
    assert value["avg"] == 62.99, "as printed, although the mean of its row is 73.99"


def test_no_printed_number_belongs_to_two_methods() -> None:
    """Two names of one paper that share all their printed numbers are one method, and map to one config."""
    numbers: dict[tuple[str, str], dict[tuple, float]] = defaultdict(dict)
    mapped: dict[tuple[str, str], set[str]] = defaultdict(set)
    for v in published.load_all():
        ours = equivalent(v)
        if isinstance(ours, PrintedMethod):
            numbers[v.paper, v.method][v.dataset, v.backbone, v.target, v.metric] = v.value
            mapped[v.paper, v.method].add(repr(ours))
    repeated = []
    for first, theirs in numbers.items():
        for second, others in numbers.items():
            common = theirs.keys() & others.keys()
            one_paper = first < second and first[0] == second[0]
            if one_paper and len(common) >= 3 and all(theirs[key] == others[key] for key in common):
                repeated.append((first, second))
                assert mapped[first] & mapped[second], f"{first} and {second} print the same numbers"
    assert repeated, "the papers do print some rows twice"


def test_methods_that_are_printed_only_say_why() -> None:
    for name in ("UOPP", "Powder", "GPT-FL"):
        ours = equivalent(value_of("sdfed", table="4", dataset="DTD", method=name))
        assert isinstance(ours, NoEquivalent) and ours.status == "not implemented"
        assert (
            "public" in ours.reason or "which FedLens does not have" in ours.reason or "adapts" in ours.reason
        )


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
    rounded = "fit test sets of a fifth of each class"
    assert rounded not in comparability(row.value).text
    assert row.outcome == "measured" and rounded in row.comparability.text, "200 images, not 411 and 788"
    assert rounded not in comparability(row.value, ROUNDED_UP).text
    assert row.outcome_text.endswith(" †")


def test_a_value_that_is_not_comparable_has_no_difference(db: Path) -> None:
    experiment = preset("feddeap/table2-ddr", ("FedDEAP",))
    train(db, experiment)
    row = find(reproductions(Store(db), experiment), table="2", method="FedDEAP", target="avg")
    assert row.comparability.state == "not comparable" and row.stat is not None
    assert row.gap_text == "" and row.outcome_text.endswith(" ‡")


def test_another_rule_than_the_paper_s_is_a_caveat(feddeap) -> None:
    db, experiment = feddeap
    compared = compare(Store(db), [1], "best")
    found = printed_values(compared, [experiment])
    (group,) = [g for g in compared.rows if g.label == "FedDEAP"]
    reasons_against = [text for _, text in found.of(group, "personal")[0].comparability.reasons]
    assert "the paper reports last round, this table best on validation" in reasons_against
