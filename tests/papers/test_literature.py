"""What several sources print for a baseline on a data set, and in what their settings differ."""

from __future__ import annotations

from fedcore.cli.main import main
from fedcore.papers import library, literature, published
from fedcore.papers.library import KINDS, Protocol
from tests.support.papers import value_of


def test_at_least_150_pairs_have_several_sources_and_editions_count_once(capsys, tmp_path) -> None:
    several = literature.several()
    assert len(several) == 200
    assert main(["papers", "pairs", "--db", str(tmp_path / "runs.db")]) == 0
    assert "200 pairs of baseline and data set" in capsys.readouterr().out
    plan = literature.pairs()["FedMaPLe", "OfficeHome"]
    assert {v.paper for v in plan.values} >= {"plan", "plam"} and "plam" not in plan.works
    by_hand = {
        (literature.baseline(v), literature.dataset(v)): set()
        for v in published.load_all()
        if literature.dataset(v)
    }
    for v in published.load_all():
        if literature.dataset(v):
            by_hand[literature.baseline(v), literature.dataset(v)].add(library.find(v.paper).work)
    assert sum(len(works) > 1 for works in by_hand.values()) == 200


def test_a_pair_names_its_sources_spread_and_reasons_and_averages_nothing() -> None:
    pair = literature.pairs()["PromptFL", "Food101"]
    assert pair.text.startswith(
        "PromptFL on Food101: five sources, 61.42 to 90.86, because the values differ in"
    )
    assert pair.kinds == {"paper": 4, "README": 1}
    differ = literature.differences(pair.comparable_values)
    assert differ["the backbone"] == ["RN50", "ViT-B-16", "ViT-B-32"]
    kinds = [list(KINDS).index(library.find(v.paper).kind) for v in pair.values]
    assert kinds == sorted(kinds), "the most reliable kind of source comes first"
    far = literature.pairs()["PromptFL", "DomainNet"]
    assert "although no stated part of their settings differs" in far.text


def test_a_protocol_takes_what_a_setting_leaves_open_from_its_table_and_paper() -> None:
    value = value_of("sdfed", table="7", dataset="CIFAR-10", method="SDFed (S_l=8)")
    stated = literature.protocol(value)
    assert (stated.clients, stated.rounds, stated.seeds, stated.partition) == ("100", "25", "5", "Dir(0.3)")
    assert Protocol(shots="1").over(Protocol(shots="16", clients="10")) == Protocol(shots="1", clients="10")
    zero = next(v for v in published.load("pfedmoap") if v.method == "ZS-CLIP")
    assert literature.protocol(zero).training == "zero-shot" and literature.protocol(zero).clients == ""
    assert literature.protocol(zero).runs == 1


def test_printed_names_have_one_normal_name() -> None:
    assert literature.normal("method", "FedOPT", "fedmgp") == "FedOTP"
    assert literature.normal("dataset", "Stanford Cars", "fedmgp") == "StanfordCars"
    assert literature.normal("method", "FedAVG", "fedot") == "FedOT (all global)", "the paper's own meaning"
    assert literature.dataset(next(v for v in published.load("apex") if v.dataset == "avg")) == ""
