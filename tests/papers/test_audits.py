"""The audits find every contradiction that is known of the printed values, and nothing in sound ones."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from fedcore.papers import agreements, audits, library, literature, published
from fedcore.papers.published import PublishedValue, findings_of
from tests.support.papers import value_of
from tools.docs import values


def texts(kind: str, paper: str, **fields: str) -> list[str]:
    """The sentences of one kind of finding about the values of a source with these fields."""
    return [
        finding.text
        for value in published.load(paper)
        if all(getattr(value, name) == text for name, text in fields.items())
        for finding in findings_of(value)
        if finding.kind == kind
    ]


def test_the_stored_findings_are_those_of_the_audits() -> None:
    for file, text in values.audited().items():
        assert file.read_text(encoding="utf-8") == text, f"{file}: run python -m tools.docs"


FAR = (
    ("apex", {"table": "9", "dataset": "FGVCAircraft", "method": "CoCoOp", "target": "new"},
     "26.49", "32.77"),
    ("licocoop_reproduction", {"dataset": "EuroSAT", "setting": "quoted from the CoCoOp paper",
     "method": "CoCoOp", "target": "new"}, "60.04", "63.04"),
)  # fmt: skip


@pytest.mark.parametrize(("paper", "fields", "mine", "theirs"), FAR)
def test_values_far_apart_under_equal_stated_shots_are_named(paper, fields, mine, theirs) -> None:
    (text,) = set(texts("far apart", paper, **fields))
    assert f"prints {mine}" in text and theirs in text and "both with 16 images per class" in text


def test_values_are_not_far_apart_where_a_source_states_no_shots_or_most_others_agree() -> None:
    assert not texts("far apart", "sdfed") and not texts("far apart", "transagent")
    zero_shot = {"dataset": "Food101", "method": "CLIP", "metric": "harmonic mean"}
    (text,) = set(texts("far apart", "apex", table="2", **zero_shot))
    assert "prints 74.83" in text and "both with no training" in text
    assert not any(texts("far apart", paper, **zero_shot) for paper in ("rmadapter", "vacsr", "onpokd"))


def test_a_copied_row_is_quoted_and_an_equality_of_one_cell_is_not() -> None:
    for paper, other in (("trip", "PLAN"), ("plan", "TRIP")):
        copied = texts("quoted from", paper, method="FedCLIP")
        assert len(copied) == 4 and all(other in text and "4 of 4 cells" in text for text in copied)
    for paper, fields in (
        ("sdfed", {"dataset": "Caltech101", "method": "FedOTP", "backbone": "ViT-B-16", "table": "1"}),
        ("pfedmoap", {"dataset": "Caltech101", "method": "FedOTP", "table": "1"}),
        ("feddeap", {"dataset": "PACS", "method": "FedCLIP", "target": "p", "table": "1"}),
    ):
        assert not texts("quoted from", paper, **fields)


def test_rows_that_differ_by_a_constant_are_shifted() -> None:
    for paper, direction in (("plan", "below"), ("plam", "above")):
        shifted = texts("shifted", paper, method="FedMaPLe")
        assert len(shifted) == 4 and all(f"is 0.28 {direction}" in text for text in shifted)
        assert not texts("shifted", paper, method="PromptFL")


FOLLOWS = (
    ("promptsrc_readme", {"method": "ProDA", "metric": "harmonic mean"},
     "README 2 prints 76.65 for ProDA, and the harmonic mean of 81.56, 75.83 is 78.59"),
    ("apex", {"table": "9", "dataset": "Caltech101", "method": "MaPLe"},
     "its base accuracy 95.61 is also that of OxfordPets, perhaps a copied cell"),
    ("fedmgp", {"table": "3", "method": "FedMGP"},
     "prints 88.34 for FedMGP, and the combined metric of the means over OxfordPets, Flowers102, DTD, "
     "Caltech101, Food101 is 88.92"),
    ("fast_pt", {"dataset": "DomainNet (top 10 classes)", "method": "FaST-PT"},
     "Table 2 prints 89.17 for FaST-PT, and the mean of the 6 domains of its row is 89.34"),
    ("normfit", {"table": "A.5", "method": "CoOp"},
     "Table A.5 prints 63.95 for CoOp, and the mean of the 10 data sets of its row is 63.75"),
    ("rmadapter", {"dataset": "Flowers102", "method": "PromptSRC"},
     "prints 85.71 for PromptSRC, and the harmonic mean of 97.27, 76.00 is 85.33; 90 other"),
)  # fmt: skip


@pytest.mark.parametrize(("paper", "fields", "said"), FOLLOWS)
def test_averages_that_do_not_follow_from_their_parts_are_named(paper, fields, said) -> None:
    assert any(said in text for text in texts("does not follow", paper, **fields))


def test_rules_are_held_only_against_cells_whose_table_follows_them() -> None:
    """SAMPLe lacks four data sets, DMC and pFedMMA print means of harmonic means, CLIPOOD one decimal."""
    assert not any(texts("does not follow", paper) for paper in ("sample", "dmc", "pfedmma"))
    assert not texts("does not follow", "vacsr", method="CLIPOOD")
    assert not texts("does not follow", "rmadapter", table="1(a)", method="MMA"), "a data set is left out"


def test_only_what_was_compared_with_its_source_is_a_warning_and_provenance_is_none() -> None:
    every = [f for paper in library.papers() for v in published.load(paper) for f in findings_of(v)]
    assert not {f.kind for f in every if f.warns} & {"other rule", "quoted from"}
    assert sum(f.kind == "quoted from" for f in every) > 150
    claims = [f for f in every if f.kind not in ("other rule", "quoted from")]
    warned = {(f.value.paper, f.value.table) for f in claims if f.warns}
    listed = {(paper.key, table) for paper in library.papers().values() for table in paper.compared}
    assert warned == listed and len(listed) == 36
    unseen = [(f.value.paper, f.value.table) for f in claims if not f.warns]
    assert unseen == [("transagent", "1")] * 6, "nobody has seen the paper's own Table 1"
    assert len(claims) - len(unseen) == 95


def test_averages_by_another_rule_and_values_printed_twice() -> None:
    assert len(texts("other rule", "fedmgp", table="1a", metric="CM")) == 6
    assert texts("printed twice", "normfit", table="A.4", method="CoOp") == [
        "prints 63.75 in this table and 63.95 in Table A.5"
    ]
    assert "97.07 in Table 9" in texts("printed twice", "fedmgp", table="1e", metric="CM", method="FedMGP")[0]


@pytest.mark.parametrize("by", [0.03, -0.03])
def test_a_mean_that_is_moved_by_three_last_digits_is_found(by) -> None:
    rows = [v for v in published.load("fedot") if v.table == "10"]
    odd = {f.value for f in audits.derived(rows)}
    sound = [v for v in rows if v.target == "avg" and v not in odd]
    for average in sound:
        moved = [replace(v, value=round(v.value + by, 2)) if v == average else v for v in rows]
        assert len({f.value for f in audits.derived(moved)} - odd) == 1
    assert len(sound) > 40


def test_a_share_is_possible_exactly_if_some_number_of_right_answers_gives_it() -> None:
    """Compared with counting, for every value of two decimals and test sets of 97, 408 and 1,053 images."""
    value = next(v for v in published.load("maple_readme"))
    for images, runs in product((97, 408, 1053), (1,)):
        possible = {round(100 * right / images, 2) for right in range(images + 1)}
        for number in np.round(np.arange(50, 60, 0.01), 2):
            printed = replace(value, value=float(number))
            neighbours = {number, round(number - 0.01, 2), round(number + 0.01, 2)}
            if number in possible:
                assert audits.nearest_shares(printed, images, runs) is None
            elif not neighbours & possible:
                low, high = audits.nearest_shares(printed, images, runs)
                assert low < number < high and high - low == pytest.approx(100 / images)
    assert audits.nearest_shares(value, 50_000, 1) is None, "any value of two decimals is possible"


def test_zero_shot_accuracies_fit_the_test_sets_and_a_changed_digit_does_not() -> None:
    sizes = audits.test_sets()
    checked = [
        v
        for v in published.load("apex")
        if v.setting == "zero-shot" and ("coop", v.dataset, literature.quantity(v), "") in sizes
    ]
    assert len(checked) > 60 and not list(audits.impossible_shares(checked))
    flowers = next(v for v in checked if v.dataset == "Flowers102" and v.target == "base")
    assert flowers.value == 72.08, "759 of 1,053"
    (finding,) = audits.impossible_shares([replace(flowers, value=72.12)])
    assert "72.12 for CLIP, which is not the accuracy of a run on 1,053 test images" in finding.text
    assert "72.08 and 72.17" in finding.text


def test_spreads_that_the_number_of_runs_cannot_have() -> None:
    value = value_of("pfedmoap", table="1", dataset="DTD", method="CoOp")
    assert value.std is not None and not list(audits.impossible_spreads([value]))
    (finding,) = audits.impossible_spreads([replace(value, value=99.0, std=20.0)])
    assert (
        "3 accuracies between 0 and 100 with this mean have a standard deviation of at most 12.19"
        in finding.text
    )
    alone = next(v for v in published.load("licocoop_reproduction") if v.setting == "seed 1")
    (finding,) = audits.impossible_spreads([replace(alone, std=0.3)])
    assert "a single run" in finding.text
    assert "6.29 ± 6.45" in texts("impossible ±", "fedmgp", table="11", target="Sketch", method="PromptFL")[0]


def test_the_chance_of_equal_cells_is_the_binomial_tail() -> None:
    assert agreements._tail(3, 0, 0.2) == pytest.approx(1)
    assert agreements._tail(3, 1, 0.2) == pytest.approx(1 - 0.8**3)
    assert agreements._tail(3, 3, 0.2) == pytest.approx(0.2**3)


def test_sound_values_give_no_finding() -> None:
    """A made-up table whose averages and harmonic means are computed, not printed wrong."""
    paper = library.find("apex")
    made = []
    for method, base, new in (("A", 80.11, 70.22), ("B", 90.33, 60.44)):
        harmonic = round(2 / (1 / base + 1 / new), 2)
        for target, metric, number in (
            ("base", "base accuracy", base),
            ("new", "new accuracy", new),
            ("avg", "harmonic mean", harmonic),
        ):
            made.append(
                PublishedValue(paper.key, "X", "DTD", "x", "ViT-B-16", method, target, metric, number, None)
            )
    assert audits.inside(made) == []
    wrong = [replace(v, value=v.value + 0.05) if v.metric == "harmonic mean" else v for v in made]
    assert {f.kind for f in audits.inside(wrong)} == {"does not follow"}
