"""What papers leave open: their files, the readings, and runs that several readings share."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedcore.base.errors import FedLensError
from fedcore.base.files import ASSETS
from fedcore.cli.common import INTERRUPTED
from fedcore.cli.main import main
from fedcore.clip.specs import MINI_MODELS
from fedcore.config import Experiment
from fedcore.methods import registry
from fedcore.papers import adding, choices, library, mini
from fedcore.papers.cells import Availability, fillings, missing_parts, source_of
from fedcore.papers.choices import Alternative, Choice, Multiverse, Ranking
from fedcore.papers.equivalents import RunSource
from fedcore.papers.experiments import preset
from fedcore.papers.mini import DATA
from fedcore.papers.published import PublishedValue, load
from fedcore.papers.recorded import RecordedRuns
from fedcore.store import Store
from tests.support.papers import HEAD, finish_readings, paper_folder, value_of
from tools.docs.methods import PAGES

VALUES = HEAD + "1,PACS,,ViT-B-32,PromptFL,avg,accuracy,80.5,\n"
RUNS = """
[data]
PACS = "pacs"
[[methods]]
method = ["PromptFL"]
name = "promptfl"
[presets.table1]
data = { name = "pacs" }
backbone = { name = "ViT-B-32", pretrained = "openai" }
methods = [{ name = "promptfl" }]
reproduces = [{ table = "1", dataset = "PACS" }]
"""
CHOICE = """
[[choice]]
name = "momentum"
why = "The paper does not say."
methods = ["PromptFL"]
alternatives = [{ label = "0.9" }, { label = "none", set = { "methods.*.momentum" = 0.0 } }]
"""


def folder(tmp_path: Path, text: str) -> library.Paper:
    return library.read_paper(paper_folder(tmp_path / "mine", values=VALUES, runs=RUNS, choices=text))


def check(paper: library.Paper) -> None:
    adding.check(paper.folder)


@pytest.mark.parametrize(
    "work",
    [
        "feddeap",
        pytest.param("sdfed", marks=pytest.mark.slow),
        pytest.param("fedot", marks=pytest.mark.slow),
        pytest.param("fedalign", marks=pytest.mark.slow),
    ],
)
def test_every_alternative_fits_every_experiment_of_its_tables(work: str) -> None:
    values = [value for paper in library.editions(work) for value in load(paper.key)]
    assert len(choices.choices(work)) > 4
    choices.check(library.find(work), values)


def test_a_paper_of_a_user_may_name_what_it_leaves_open(tmp_path: Path) -> None:
    paper = folder(tmp_path, CHOICE)
    check(paper)
    (choice,) = choices.choices(paper)
    assert [a.label for a in choice.alternatives] == ["0.9", "none"]
    assert choice.alternatives[1].set == {"methods.*.momentum": 0.0}


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("[[choice]]", "[[choice]", "choices.toml: "),
        ('"none"', '"0.9"', "two alternatives have the same label"),
        ('{ label = "0.9" }', '{ label = "0.9", rule = "best" }', "is the reading of FedLens"),
        ('name = "momentum"', 'name = "momentun"\nof = "sdfed"', "'sdfed' declares no 'momentun'"),
        ("why", "because", "docs/papers.md has the fields"),
        ('momentum" = 0.0', 'momentun" = 0.0', "'momentum', 'none': no experiment of its tables has"),
        ('methods.*.momentum" = 0.0', 'methods.promptfl.momentum" = 7', "'momentum', 'none': "),
        ("methods.*.momentum", "data.name", "make an experiment for each value"),
        ('methods.*.momentum" = 0.0', "partition.leftover\" = 'drop'", "does not use leftover"),
        ('["PromptFL"]', '["CoOp"]', "it is about no printed value"),
        ('momentum" = 0.0', 'momentum" = nan', "'momentum', 'none': "),
        ('methods.*.momentum" = 0.0', "backbone.name\" = '../../x'", "'momentum', 'none': "),
        (
            '{ label = "none"',
            ", ".join(f'{{ label = "{i}" }}' for i in range(16)) + ', { label = "none"',
            "at most 16",
        ),
        ("why =", 'reasons = ["no such"]\nwhy =', "no reason in reasons.csv begins with 'no such'"),
    ],
)
def test_a_bad_file_is_refused_with_its_place_and_remedy(
    tmp_path: Path, before: str, after: str, expected: str
) -> None:
    assert before in CHOICE
    with pytest.raises(FedLensError) as error:
        check(folder(tmp_path, CHOICE.replace(before, after)))
    assert expected in str(error.value)
    assert "choices.toml" in str(error.value)


def test_two_choices_do_not_set_one_field_of_the_same_values(tmp_path: Path) -> None:
    again = CHOICE.replace('name = "momentum"', 'name = "again"').replace("= 0.0", "= 0.5")
    with pytest.raises(FedLensError, match=r"'again': 'momentum' sets methods\.\*\.momentum of the same"):
        check(folder(tmp_path, CHOICE + again))
    of_rounds = CHOICE.replace('set = { "methods.*.momentum" = 0.0 }', 'rule = "best"')
    check(folder(tmp_path, of_rounds + again))


def test_reasons_are_checked_without_choices_too(tmp_path: Path) -> None:
    paper = folder(tmp_path, "")
    (paper.folder / "reasons.csv").write_text("wrong\n", encoding="utf-8")
    with pytest.raises(FedLensError, match="the columns must be"):
        check(paper)


def test_readings_are_all_of_them_or_a_seeded_sample_with_each_single_change() -> None:
    two, three = (
        Choice(
            name=str(n),
            why="-",
            alternatives=[Alternative(label=str(i), set={"rounds": i} if i else {}) for i in range(n)],
        )
        for n in (2, 3)
    )
    assert choices.readings([two, three]) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    sample = choices.readings([two, three, three, three], most=12)
    assert sample[0] == (0, 0, 0, 0)
    assert {r for r in sample if sum(map(bool, r)) == 1} == set(sample[1:8])
    assert len(set(sample)) == len(sample) == 12
    assert sample == choices.readings([two, three, three, three], most=12)
    assert len(choices.readings([two, three, three, three], most=1)) == 8, "each single change is there"


def ranking() -> Ranking:
    """FedDEAP beside CLIP-FC on DomainNet-126."""
    of = {"table": "1", "dataset": "DomainNet-126", "target": "avg"}
    proposed, other = (value_of("feddeap", method=name, **of) for name in ("FedDEAP", "CLIP-FC"))
    return Ranking("both", proposed, (proposed, other))


def test_runs_that_several_readings_share_are_trained_once(tmp_path: Path) -> None:
    space = choices.multiverse(ranking(), rehearsal=True)
    assert [len(c.alternatives) for c in space.choices] == [2] * 7
    assert len(space.readings) == 128
    recorded = RecordedRuns(Store(tmp_path / "none.db"), {DATA})
    parts = missing_parts(space.cells(recorded, Availability({})))
    # FedDEAP has six choices of its own, CLIP-FC one
    assert {source.config.method.name: 0 for source in parts} == {"feddeap": 0, "clip-fc": 0}
    assert sum(source.config.method.name == "feddeap" for source in parts) == 64
    assert sum(source.config.method.name == "clip-fc" for source in parts) == 2
    assert {len(of_source) for of_source in parts.values()} == {3}
    (experiment,) = fillings(space.cells(recorded, Availability({})), Availability({}))
    assert len(experiment.wanted) == 198
    assert len({entry.label for entry in experiment.experiment.methods}) == 66
    assert not experiment.experiment.reproduces


def test_alternatives_that_a_rehearsal_cannot_tell_apart_are_left_out() -> None:
    of = {"table": "1", "dataset": "FEMNIST", "target": "avg", "metric": "generalization"}
    value = value_of("fedot", method="FedOT", **of)
    one = Ranking("one", value, (value,))
    real, small = (choices.multiverse(one, rehearsal) for rehearsal in (False, True))
    large, capped = (
        next([a.label for a in c.alternatives] for c in space.choices if c.name == "batch size")
        for space in (real, small)
    )
    assert large == ["32", "16", "64"]
    assert capped == ["32", "16"], "64 is capped at 32"


@pytest.fixture(scope="module")
def readings_of_table5(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, Multiverse]:
    """A store with made-up runs of each single change to the reading of a row of FedDEAP's Table 5."""
    db = tmp_path_factory.mktemp("readings") / "runs.db"
    return Store(db), finish_readings(db)


def test_recorded_runs_are_read_under_each_reading(readings_of_table5: tuple[Store, Multiverse]) -> None:
    store, space = readings_of_table5
    runs = choices.recorded_runs(store, True)
    shown = space.read(runs)
    assert len(shown.found) == len(space.readings) == 7
    assert shown.missing == 0
    assert {len(of) for of in shown.values().values()} == {3}, "seeds are no readings"
    text = "\n".join(choices.report(shown))
    assert "7 readings run, 0 not (in rehearsal: no evidence about the paper)" in text
    weights = choices.caveat_weights(runs, space.ranking.proposed, True)
    assert len(weights) == 6, "each caveat that its method declares"
    assert all(text.startswith("in rehearsal: up to ") for text in weights.values())


def test_a_mean_of_ten_rounds_is_a_reading_of_more_than_ten() -> None:
    def rules(value: PublishedValue, rehearsal: bool) -> set[str]:
        space = choices.multiverse(Ranking("one", value, (value,)), rehearsal)
        return {space.rule(value, reading) for reading in space.readings}

    long, ten = (
        value_of(paper, table="1", dataset=data, setting=setting, target="avg", method=method, metric=metric)
        for paper, data, setting, method, metric in (
            ("feddeap", "PACS", "one client per domain", "FedDEAP", "accuracy"),
            ("fedalign", "CIFAR10", "IID", "FedAlign", "global"),
        )
    )
    assert [rules(long, False), rules(long, True), rules(ten, False)] == [
        {"last", "mean10"},
        {"last"},
        {"last"},
    ]


def test_every_documented_reading_of_a_field_is_a_choice() -> None:
    """A field that a page calls a reading is declared, and what is declared is a choice of some value."""
    for name in ("fedot", "sdfed", "fedalign", "feddeap"):
        config: Any = registry.get(name).Config
        declared = {field for point in config.left_open for field in point.fields}
        page = (PAGES / f"{name}.md").read_text(encoding="utf-8")
        texts = [text for text in page.split("\n\n") if text.startswith("**Reading")]
        named = {field for text in texts for field in re.findall(r"`([a-z_]+)", text)}
        assert named & config.model_fields.keys() <= declared, name
        assert declared <= config.model_fields.keys()
        values = [value for paper in library.editions(name) for value in load(paper.key)]
        found = {choice.name for choice in choices.choices(name) if any(map(choice.is_about, values))}
        of_federation = {"participation", "held_out", "client_per_domain"}
        assert {p.name for p in config.left_open if not of_federation & p.unless.keys()} <= found, name


def test_a_caveat_weighs_what_the_choices_about_its_own_value_move() -> None:
    of = {"table": "1", "dataset": "FEMNIST", "target": "avg", "metric": "generalization"}
    proposed, clip, prompts, absent = (
        value_of("fedot", method=name, **of) for name in ("FedOT", "FedCLIP", "PromptFL", "FedGH(C)")
    )
    named = [c for c in choices.choices("fedot") if c.name in ("batch size", "schedule of prompts")]
    means = {(0, 0): (5.0, 3.0, 4.0), (1, 0): (5.0, 3.4, 4.0), (0, 1): (5.0, 3.0, 2.0)}
    space = Multiverse(Ranking("all", proposed, (proposed, clip, prompts)), tuple(named), tuple(means))
    found = {r: {v: {1: m} for v, m in zip(space.ranking.values, of, strict=True)} for r, of in means.items()}
    shown = replace(space, found=found)
    assert list(shown.weights(clip).values()) == ["up to 0.4 points, no rank changes"]
    (weight,) = shown.weights(prompts).values()
    assert weight == "up to 2.0 points, the order of methods changes in 1 of 2 pairs of readings"
    assert shown.weights(absent) == {}, "it has no runs"
    even = {
        proposed: {1: 0.1, 2: 0.2, 3: 0.3},
        clip: {1: 0.3, 2: 0.2, 3: 0.1},
        prompts: dict.fromkeys((1, 2, 3), 0.1),
    }
    assert replace(space, found={(0, 0): even}).survival.first == 0, "the last bits put no method ahead"


def test_values_without_runs_are_left_out_of_a_ranking(readings_of_table5: tuple[Store, Multiverse]) -> None:
    store, space = readings_of_table5
    proposed, other = (
        space.ranking.proposed,
        value_of("feddeap", table="1", dataset="PACS", target="avg", method="FedCLIP"),
    )
    both = choices.multiverse(Ranking("both", proposed, (other, proposed)), rehearsal=True)
    assert "learning rate of FedCLIP and FACMIC" in [choice.name for choice in both.choices]
    shown = both.read(choices.recorded_runs(store, True))
    assert shown.ranking.values == (proposed,)
    assert shown.choices == space.choices
    assert len(shown.found) == 7, "those whose runs are there"
    assert shown.missing == 64 - 7
    nothing = choices.multiverse(Ranking("both", other, (other, proposed)), rehearsal=True)
    assert not nothing.read(choices.recorded_runs(store, True)).found


def test_the_command_reads_a_table(
    readings_of_table5: tuple[Store, Multiverse], capsys: pytest.CaptureFixture[str]
) -> None:
    store, space = readings_of_table5
    command = ["papers", "readings", "feddeap-5", "--setting", space.ranking.proposed.setting, "--rehearsal"]
    command += ["--most", "1"]
    assert main([*command, "--db", str(store.path)]) == 0
    shown = capsys.readouterr().out
    assert "optimiser of the prompts: momentum and decay of the authors' code, plain SGD" in shown
    assert "35 readings, 0 runs missing" in shown
    assert "FedDEAP is first in 7 of 7 readings" in shown
    assert main(["papers", "readings", "feddeap-55", "--db", str(store.path)]) == 2
    assert "no table 'feddeap-55'; " in capsys.readouterr().err
    assert main(["papers", "readings", "feddeap-5", "--method", "FedDEEP", "--db", str(store.path)]) == 2
    assert "feddeap-5 has no method 'FedDEEP'; did you mean 'FedDEAP" in capsys.readouterr().err


def test_an_interrupted_command_trains_no_further_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = []

    def interrupted(store: Store, experiment: Experiment, *_: object) -> tuple[dict[int, str], int]:
        trained.append(experiment)
        return {1: "stopped"}, INTERRUPTED

    monkeypatch.setattr("fedcore.cli.experiments.train_in_process", interrupted)
    command = [
        "papers",
        "readings",
        "feddeap-1",
        "--dataset",
        "PACS",
        "--method",
        "CLIP-zs",
        "--rehearsal",
        "--run",
    ]
    assert main([*command, "--db", str(tmp_path / "runs.db")]) == INTERRUPTED
    assert len(trained) == 1, "of three prompts"


def test_a_rehearsal_of_a_preset_fills_its_table_and_the_reading_of_fedlens() -> None:
    """Also where the paper has one seed, and the runs are those of ``--scale mini``."""
    proposed = ranking().proposed
    space = choices.multiverse(ranking(), rehearsal=True, most=1)
    of_table, of_reading = source_of(proposed, True), space.source(proposed, space.readings[0])
    assert isinstance(of_table, RunSource) and of_reading.changes == ()
    assert of_table.key == of_reading.key
    assert of_table.parts(proposed) == of_reading.parts(proposed)
    assert preset(of_table.preset).seeds == (1,) and of_table.experiment.seeds == (1, 2, 3)
    assert of_table.experiment == mini.rehearsal(preset(of_table.preset))


def test_rehearsals_learn_faster_on_domains_that_are_not_solved_before() -> None:
    large = preset("fedalign/table1-cifar10-dir-baselines")
    config = {e.label: e.config for e in mini.rehearsal(large).methods}
    assert config["PromptFL"]["lr"] == pytest.approx(5 * 0.001)
    untrained = json.loads((ASSETS / "mini-zero-shot.json").read_text())
    for name in MINI_MODELS:
        assert all(30 < untrained[name]["shapes"][domain] < 70 for domain in mini.DOMAINS)
