"""The values that papers print, and what several of them print of one method on one data set."""

import csv
import shutil
from collections import Counter

import pytest

from fedcore.base import files
from fedcore.base.errors import FedLensError
from fedcore.cli.main import main
from fedcore.data import catalog
from fedcore.papers import experiments, library, literature, published
from fedcore.papers.comparability import COVERAGE_COLUMNS, coverage
from fedcore.papers.equivalents import NoEquivalent, equivalent
from fedcore.papers.experiments import PrintedMethod, data_names
from fedcore.papers.library import KINDS, Protocol
from fedcore.papers.published import PublishedValue
from tests.support.papers import value_of
from tools.docs import values


def test_all_values_are_loaded_as_printed():
    counts = Counter(f.paper for f in published.load_all())
    for paper in library.shipped():
        with (library.FOLDER / paper / "values.csv").open(encoding="utf-8", newline="") as file:
            lines = list(csv.DictReader(file))
        assert counts[paper] == len(lines)
        assert [f.written for f in published.load(paper)] == [(r["value"], r["std"]) for r in lines]
    assert (
        sum(counts[paper] for paper in ("fedot", "fedot_conference", "sdfed", "fedalign", "feddeap")) == 3572
    )
    assert len(counts) == 36 and sum(counts.values()) == 9213
    row = value_of("sdfed", table="1", dataset="Flowers102", backbone="ViT-B-16", method="SDFed")
    assert (row.value, row.std) == (99.35, 0.07)
    assert value_of("fedot", table="1", dataset="PACS", method="FedOT", metric="generalization").std is None


def test_the_digests_of_the_values_that_ship_are_current():
    assert files.read_texts(published.DIGESTS) == values.digests(), "run python -m tools.docs"


def test_a_changed_file_of_a_paper_that_ships_is_named_and_not_shown(tmp_path, monkeypatch):
    """Another number was shown as what FedOT prints."""
    shutil.copytree(library.FOLDER / "fedot", tmp_path / "fedot")
    monkeypatch.setattr(library, "FOLDER", tmp_path)
    paper, file = library.read_paper(tmp_path / "fedot"), tmp_path / "fedot" / "values.csv"
    assert published.load(paper) == published.load("fedot")
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace("\n", "\r\n"), encoding="utf-8", newline="")
    assert published.load(paper) == published.load("fedot"), "as git writes it on Windows"
    file.write_text(text.replace("99.", "98.", 1), encoding="utf-8")
    with pytest.raises(FedLensError, match="fedot/values.csv is not the file that .* reinstall FedLens"):
        published.load(paper)


def test_a_printed_value_is_shown_with_no_more_decimals_than_it_has():
    shown = {v.text for paper in ("halora", "feddeap", "dp_fpl", "othoradapt") for v in published.load(paper)}
    assert shown >= {"66.7", "100", "99.63 ± 0.2"} and not shown & {"66.70", "100.00", "99.63 ± 0.20"}
    assert "28.95 ± 1.62" in shown, "a file of results has 28.952895 ± 1.622660"


MAPPED = (
    ("fedot", {"method": "Zero-Shot CLIP"}, "zero-shot", {}),
    ("fedot", {"method": "PromptFL"}, "promptfl", {"context_length": 4}),
    ("fedot", {"method": "CoOp (M=16)"}, "promptfl", {"context_length": 16}),
    ("fedot", {"method": "FedOT(+B)", "dataset": "TerraIncognita"}, "fedot", {"blocks": 16}),
    ("fedot", {"method": "FedOT+blockwise", "dataset": "PACS"}, "fedot", {"blocks": 1}),
    ("fedot", {"method": "FedOT(-o)"}, "fedot", {"local_transform": "linear"}),
    ("fedot", {"method": "FedAVG"}, "fedot", {"share": "all_global"}),
    ("fedot", {"method": "FedOT", "setting": "RandInit"}, "fedot", {"init": "random"}),
    ("fedot_conference", {"method": "FedLT", "table": "gradient conflict"}, "fedot",
     {"local_transform": "linear"}),
    ("sdfed", {"method": "CoOp"}, "coop", {}),
    ("sdfed", {"method": "SDFed[PFHF+SRLP]"}, "sdfed", {"components": "pfhf+srlp"}),
    ("sdfed", {"method": "SDFed[PFHF+SRLP+IRDC]"}, "sdfed", {"components": "all"}),
    ("sdfed", {"method": "SDFed (S_l in 4..64)"}, "sdfed", {"local_length": "random:4-64"}),
    ("fedalign", {"method": "PromptFL"}, "promptfl", {}),
    ("fedalign", {"setting": "Path, euclidean similarity"}, "fedalign", {"similarity": "euclidean"}),
    ("fedalign", {"method": "FedAlign w/o GT"}, "fedalign", {"class_text": "template"}),
    ("fedalign", {"setting": "zero-shot ST"}, "zero-shot", {"class_text": "template"}),
    ("fedalign", {"setting": "zero-shot GT"}, "zero-shot", {"class_text": "description"}),
    ("feddeap", {"method": "CLIP-zs"}, "zero-shot", {}),
    ("fedmgp", {"method": "FedOTP", "table": "2"}, "fedotp", {}),
    ("feddeap", {"method": "CLIP-FC"}, "clip-fc", {}),
    ("feddeap", {"method": "FedCLIP"}, "fedclip", {}),
    ("feddeap", {"method": "FedDEAP [w/ Personalized Prompt]"}, "feddeap", {"personal_prompt": True}),
)  # fmt: skip


def test_printed_names_and_variants_are_methods_with_their_config():
    for paper, fields, name, config in MAPPED:
        first = next(f for f in published.load(paper) if all(getattr(f, k) == v for k, v in fields.items()))
        found = equivalent(first)
        assert isinstance(found, PrintedMethod) and found.name == name, fields
        assert config.items() <= found.fields.items(), fields


def test_mixed_backbones_are_cohorts():
    """Table 9: 2 strong, 3 medium and 5 weak clients; an experiment without them has no such value."""
    preset = experiments.preset("sdfed/table4-dtd")
    assert [(c.clients, c.backbone.name, *c.overrides.values(), c.max_steps) for c in preset.cohorts] == [
        (2, "ViT-B-16", 32, 2, None),
        (3, "ViT-B-16", 16, 1, None),
        (5, "RN50", 8, 1, 50),
    ]
    printed = {f.method for f in published.values_of(preset)}
    assert printed == {"CoOp", "Powder", "FedOTP", "GPT-FL", "UOPP", "SDFed"}
    weaker = preset.cohorts[2].model_copy(update={"max_steps": 60})
    for cohorts in ((), (*preset.cohorts[:2], weaker)):
        with pytest.raises(FedLensError, match="no value in table 4 of sdfed matches"):
            published.values_of(preset.model_copy(update={"cohorts": cohorts}))
    ours = equivalent(value_of("sdfed", table="4", dataset="DTD", method="SDFed"))
    assert ours.name == "sdfed"
    assert ours.fields == {"components": "all", "local_length": "random:4-64"}


def test_coverage_counts_by_hand():
    counts = coverage()
    one = counts["fedot", "1"]  # 140 values: ten methods with fourteen values each
    assert one.total() == 140 and one["not implemented"] % 15 == 0
    assert one["not comparable"] >= 16, "FEMNIST's, of at least six methods"
    table4 = counts["sdfed", "4"]  # mixed backbones: six methods, three of them printed only, five data sets
    assert table4.total() == 30 and table4["not implemented"] >= 15
    assert counts["fedalign", "4"]["comparable"] == 20, "counted without a run"
    four = ("fedot", "fedot_conference", "sdfed", "fedalign", "feddeap")
    assert sum((of for (paper, _), of in counts.items() if paper in four), Counter()) == {
        "comparable": 76,
        "with a caveat": 2850,
        "not comparable": 541,
        "not implemented": 105,  # of three methods that are printed only
    }
    assert {column for c in counts.values() for column in c} <= set(COVERAGE_COLUMNS)


def test_a_value_can_be_run_only_with_method_and_data_set(monkeypatch, capsys):
    """A catalog without FEMNIST; UOPP is no method here, whatever the data."""
    names = tuple(name for name in catalog.names() if name != "femnist-digits")
    monkeypatch.setattr(catalog, "names", lambda: names)
    assert main(["published", "--coverage"]) == 0
    assert "the catalog lacks femnist-digits" in capsys.readouterr().err
    found = coverage()
    femnist = [f for f in published.load("fedot") if (f.table, f.dataset) == ("1", "FEMNIST")]
    with_method = [f for f in femnist if isinstance(equivalent(f), PrintedMethod)]
    assert found["fedot", "1"]["no data"] == len(with_method) > 0 and found["fedot", "1"]["with a caveat"]
    assert set(found["sdfed", "4"]) == {"not implemented", "with a caveat"}, "UOPP's table"


def test_every_printed_data_set_that_can_be_run_is_in_the_catalog():
    in_catalog = {entry.name for entry in catalog.entries()}
    printed = {f.dataset for f in published.load_all() if isinstance(equivalent(f), PrintedMethod)}
    assert printed - {""} <= set(data_names()) and set(data_names().values()) <= in_catalog
    for preset_name, experiment in experiments.published().items():
        name = experiment.data.name
        assert name in data_names().values() and name in in_catalog, preset_name


def test_an_unknown_method_is_never_taken_for_ours():
    odd = PublishedValue(
        "fedot", "1", "PACS", "leave-one-domain-out", "ViT-B-32", "FedXYZ", "avg", "generalization", 1.0, None
    )
    assert equivalent(odd) == NoEquivalent("not implemented", "FedXYZ is not implemented")


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
        "PromptFL on Food101: five sources; whole test set 71.69 to 85.47, own classes"
    )
    assert "90.86" not in pair.text.replace("new classes 90.86", ""), "no range spans two quantities"
    assert pair.kinds == {"paper": 4, "README": 1}
    differ = literature.differences(pair.comparable_values)
    assert differ["the backbone"] == ["RN50", "ViT-B-16", "ViT-B-32"]
    kinds = [list(KINDS).index(library.find(v.paper).kind) for v in pair.values]
    assert kinds == sorted(kinds), "the most reliable kind of source comes first"
    far = literature.pairs()["PromptFL", "DomainNet"]
    assert far.text.endswith("No stated part of the settings explains the spread.")


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


def test_every_source_that_ships_names_its_authors_year_and_address_or_says_that_it_was_not_found() -> None:
    for paper in library.shipped().values():
        assert paper.full_title and paper.read_from and "et al." not in paper.citation, paper.key
        assert paper.year or "year not found" in paper.citation, paper.key
        assert paper.identifier and (paper.address or paper.link or paper.identifier == "not found"), (
            paper.key
        )
    addressed = [paper for paper in library.shipped().values() if paper.address or paper.link]
    assert {p.key for p in library.shipped().values()} - {p.key for p in addressed} == {"discovl"}
    assert library.find("fedot").address == "https://arxiv.org/abs/2505.19888v2"
