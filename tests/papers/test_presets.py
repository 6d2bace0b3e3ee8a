"""The published experiments: they parse, name the values they reproduce, and have small versions that run."""

import csv
import math
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from fedcore import config
from fedcore.base.errors import FedLensError
from fedcore.cli import main as cli
from fedcore.config import Experiment, expand
from fedcore.config.identity import group_hash
from fedcore.engine.plan import plan
from fedcore.methods import registry
from fedcore.papers import experiments, published
from fedcore.papers.equivalents import equivalent, find_variant, variant_runs
from fedcore.papers.experiments import PrintedMethod, data_names
from fedcore.papers.mini import DOMAINS, rehearsal
from fedcore.store import Store

PUBLISHED = experiments.published()
DRAWN = {
    "fedot/figure5-femnist": "26.40",
    "fedot/clients-femnist": "71.18",
    "fedot/prompts-pacs": "which prints no runs",
    "sdfed/figure5-office31-unequal": "all combinations of eight lengths",
    "feddeap/figure2-pacs": "Three clients per domain",
    "feddeap/figure2-domainnet-126": "Three clients per domain",
    **{name: "none of them belongs to this" for name in PUBLISHED if name.endswith("-dinov2")},
}
"""Figures without a point in any table, and tables with another encoder -> a text of their notes."""


def shortest(small: Experiment) -> Experiment:
    """One round of a rehearsal, with two images of a class, one seed and one held-out domain."""
    few = {"rounds": 1, "seeds": (1,), "held_out": small.held_out[:1]}
    return small.model_copy(update=few | {"data": small.data.model_copy(update={"shots": 2})})


@cache
def small_versions() -> dict[str, Experiment]:
    """Every distinct rehearsal, shortened: many presets differ only by their data set, which it replaces."""
    found: dict[str, tuple[str, Experiment]] = {}
    for name, experiment in PUBLISHED.items():
        small = shortest(rehearsal(experiment))
        content = small.model_copy(update={"name": "any"}).model_dump_json()
        found.setdefault(content, (name, small))
    return dict(found.values())


def test_they_expand_to_the_right_number_of_runs():
    """Counted by hand from the tables: methods x seeds x held-out domains."""
    counted, in_tables = Counter(), Counter()
    for name, experiment in PUBLISHED.items():
        paper, _, place = name.partition("/")
        counted[paper] += len(expand(experiment))
        in_tables[paper] += len(experiment.methods) if place.startswith("table") else 0
    local_epochs, writers, blocks = 2 * 4 * 3 * 4, 2 * 4 * 3, 2 * 10 * 3 * 4
    scaled, behind_rotation = 3 * 6 * 3, 3 * 3 * 4
    expected = in_tables["fedot"] * 3 * 4 + local_epochs + writers + blocks + scaled + behind_rotation
    assert counted["fedot"] == expected
    shots, lengths = 5 * 2 * 5, 8 + 8 * 8
    assert counted["sdfed"] == 5 * (in_tables["sdfed"] + shots + lengths)
    swept, ratios = 4 * (1 + 4 + 5 + 4 + 4), 5 * 3 * 5
    assert counted["fedalign"] == in_tables["fedalign"] + swept + ratios
    imbalance, weights = 2 * 4 * 5, 4 * 5 * 5
    assert counted["feddeap"] == in_tables["feddeap"] + 2 + imbalance + weights


def test_every_preset_is_complete() -> None:
    for experiment in PUBLISHED.values():
        assert experiment.notes and "published" in experiment.tags
        without_texts = experiment.backbone.name == "timm:vit_base_patch14_dinov2"
        assert experiment.backbone.pretrained == ("lvd142m" if without_texts else "openai")
        labels = [entry.label for entry in experiment.methods]
        assert len(set(labels)) == len(labels)
        for entry in experiment.methods:
            registry.build_config(entry.name, entry.config)
        runs = expand(experiment)
        combinations = math.prod(len(values) for values in experiment.sweep.values())
        expected = (
            len(experiment.methods) * len(experiment.seeds) * max(1, len(experiment.held_out)) * combinations
        )
        assert len(runs) == expected
        assert len({(group_hash(r), r.seed, r.held_out) for r in runs}) == expected, "no run twice"


def test_every_preset_names_published_values_and_has_a_method_for_each() -> None:
    for name, experiment in PUBLISHED.items():
        figures = published.values_of(experiment)
        if name in DRAWN:
            assert not figures and DRAWN[name] in experiment.notes
            continue
        assert figures
        used, variants = set(), variant_runs(experiment)
        for figure in figures:
            if figure.dataset:  # a time is of no data set
                dataset = figure.dataset.replace("OfficeHome", "Office-Home")
                assert data_names()[dataset] == experiment.data.name
            if isinstance(equivalent(figure), PrintedMethod):
                variant = find_variant(variants, figure)
                assert variant is not None, figure
                used.add(variant.index)
        spare = {m.label for i, m in enumerate(experiment.methods) if i not in used}
        drawn = "/figure" in name  # besides the printed value, those of the figure's axis
        assert drawn or spare <= {"FedOT, all local", "FedOT, momentum 5e-4"}, (
            "a method that no published value asks for"
        )


def test_every_value_that_can_be_repeated_is_named_by_a_preset():
    named = {figure for e in PUBLISHED.values() for figure in published.values_of(e)}
    repeatable = {f for f in published.load_all() if isinstance(equivalent(f), PrintedMethod)}
    assert repeatable and repeatable <= named


def test_what_a_preset_repeats_is_no_part_of_its_runs():
    experiment = PUBLISHED["fedot/table1-pacs"]
    bare = experiment.model_copy(update={"reproduces": ()})
    assert [group_hash(r) for r in expand(bare)] == [group_hash(r) for r in expand(experiment)]
    assert "reproduces" not in config.dumps(bare)


def test_settings_of_the_papers():
    """Spot checks against METHODS as published: rounds, rates, seeds, partitions."""
    pacs = PUBLISHED["fedot/table1-pacs"]
    assert (pacs.rounds, pacs.seeds, pacs.data.split) == (200, (50, 77, 98), "60/20/20")
    assert {e.label: e.config.get("lr") for e in pacs.methods}["FedOT"] == 5e-5
    terra = PUBLISHED["fedot/table1-terra-incognita"]
    assert terra.rounds == 50
    assert {e.label: e.config for e in terra.methods}["FedOT(+B)"] == {"lr": 5e-5, "blocks": 16}
    assert {e.label: e.config for e in terra.methods}["FedOT, random init"]["lr"] == 1e-4
    cifar = PUBLISHED["sdfed/table7-cifar10"]
    assert (cifar.rounds, cifar.participation, cifar.partition.clients) == (25, 0.1, 100)
    path = PUBLISHED["fedalign/table1-oxford-pets-path"]
    assert (path.rounds, path.partition.clients, path.partition.classes_per_client) == (10, 5, 7)
    domainnet = PUBLISHED["feddeap/table1-domainnet-126"]
    assert domainnet.rounds == 50
    assert {e.label: e.config for e in domainnet.methods}["FedDEAP"] == {"lr": 1e-2, "batch_size": 256}
    assert {e.label: e.config for e in domainnet.methods}["CLIP-FC"] == {"lr": 1e-2, "batch_size": 256}
    table5 = [e.config for e in domainnet.methods if "tokens" in e.label]
    assert [(c["personal_length"], c["prompt_length"]) for c in table5] == [(12, 20), (20, 12)]


def test_figures_sweep_their_axes():
    epochs = PUBLISHED["fedot/figure4-pacs"]
    assert epochs.sweep == {"methods.*.local_epochs": (1, 2, 4, 8)}
    runs = plan(shortest(rehearsal(epochs))).runs
    assert {(r.method.name, r.method.config["local_epochs"]) for r in runs} == {
        (name, e) for name in ("fedot", "fedclip") for e in (1, 2, 4, 8)
    }
    writers = PUBLISHED["fedot/figure5-femnist"]
    assert (writers.partition.kind, writers.sweep) == ("natural", {"partition.clients": (2, 5, 10, 15)})
    assert [
        r.partition.clients for r in plan(shortest(rehearsal(writers))).runs if r.method.name == "fedot"
    ] == [2, 3, 4, 5]


def test_swept_values_fit_the_miniature():
    large = config.parse(
        {
            "methods": [{"name": "fedot"}, {"name": "promptfl"}],
            "partition": {"kind": "dirichlet", "clients": 50, "alpha": 0.5},
            "sweep": {
                "methods.fedot.blocks": [4, 256],
                "methods.promptfl.context_length": [4, 16, 32],
                "partition.clients": [10, 50, 100],
                "partition.alpha": [0.1, 1],
                "rounds": [1, 50, 100],
                "data.shots": [1, 16],
                "backbone.name": ["ViT-B-32", "RN50"],
            },
        }
    )
    assert rehearsal(large).sweep == {
        "methods.fedot.blocks": (4, 192),
        "methods.promptfl.context_length": (4, 8),
        "partition.clients": (2, 3, 4),
        "partition.alpha": (0.1, 1),
        "rounds": (1, 8),
        "data.shots": (1, 5),
        "backbone.name": ("mini-vit", "mini-rn"),
    }


def test_mixed_backbones_stay_mixed_in_the_small_version():
    small = rehearsal(PUBLISHED["sdfed/table4-dtd"])
    assert [(c.clients, c.backbone.name, c.max_steps) for c in small.cohorts] == [
        (1, "mini-vit", None),
        (1, "mini-vit", None),
        (2, "mini-rn", 50),
    ]
    assert plan(small).runs[0].cohorts == small.cohorts


def test_small_versions_are_small_and_keep_what_distinguishes_the_methods():
    assert len(small_versions()) < len(PUBLISHED) / 2
    for large in PUBLISHED.values():
        small = rehearsal(large)
        assert [m.label for m in small.methods] == [m.label for m in large.methods]
        assert (len(small.seeds), small.rounds, small.reproduces) == (3, 8, ())
        assert bool(small.held_out) == bool(large.held_out)
        kind = large.partition.kind
        assert small.partition.kind == ("iid" if kind == "natural" else kind)
        assert set(small.sweep) == set(large.sweep)
        assert small.backbone.name == ("mini-rn" if large.backbone.name == "RN50" else "mini-vit")


def test_blocks_and_lengths_fit_the_miniature():
    entries = [
        {"name": "fedot", "config": {"blocks": 256}},
        {"name": "fedot", "config": {"blocks": 5}},
        {"name": "sdfed", "config": {"local_length": "4, 8, 16"}},
        {"name": "feddeap"},
        {"name": "feddeap", "config": {"prompt_length": 20, "personal_length": 12}},
        {"name": "feddeap", "config": {"prompt_length": 1, "personal_length": 30}},
        {"name": "feddeap", "config": {"prompt_length": 4, "personal_length": 6}},
    ]
    methods = rehearsal(config.parse({"methods": entries})).methods
    assert [m.config.get("blocks") for m in methods[:2]] == [192, 4]
    assert methods[2].config["local_length"] == "random:4-64"
    assert methods[3].config == {"batch_size": 32, "prompt_length": 8, "lr": 0.005}
    lengths = [(m.config["prompt_length"], m.config["personal_length"]) for m in methods[4:]]
    assert lengths == [(8, 5), (1, 8), (4, 6)]


def test_every_small_version_can_be_planned():
    for name, small in small_versions().items():
        planned = plan(small)
        combinations = math.prod(len(values) for values in small.sweep.values())
        assert len(planned.runs) == len(small.methods) * combinations, name
        assert 2 <= len(planned.clients) <= 8, name


def test_an_entry_that_fits_no_value_is_refused():
    wrong = {"paper": "fedot", "table": "1", "dataset": "Pacs"}
    experiment = config.parse({"methods": [{"name": "fedot"}], "reproduces": [wrong]})
    with pytest.raises(FedLensError, match="no value in table 1 of fedot matches") as caught:
        published.values_of(experiment)
    assert caught.value.field == "reproduces.0"
    with pytest.raises(FedLensError, match="no published values of 'fedott'"):
        published.load("fedott")


@pytest.mark.slow
def test_the_command_runs_a_small_version(tmp_path, capsys):
    """Real training, the quickest of them; then nothing of it counts as the published experiment."""
    db, named = tmp_path / "runs.db", ["--preset", "fedalign/table5-cifar10-dir0.3"]
    assert cli.main(["run", *named, "--scale", "mini", "--db", str(db)]) == 0
    (row,) = Store(db).experiments.all()
    assert row.name == "FedAlign, CIFAR10, Dir(0.3) (rehearsal)"
    assert [r.state for r in row.runs] == ["done"] * 3
    capsys.readouterr()
    assert cli.main(["published", *named, "--db", str(db)]) == 0
    assert capsys.readouterr().err.endswith("2 values: 2 not run, with a caveat\n")


def test_a_rehearsal_in_which_nothing_differs_says_so(tmp_path, capsys):
    file, db = tmp_path / "alike.toml", str(tmp_path / "runs.db")
    methods = [{"name": "zero-shot"}, {"name": "fedot", "config": {"lr": 0.0}}]
    file.write_text(config.dumps(config.parse({"methods": methods})), encoding="utf-8")
    assert cli.main(["run", str(file), "--scale", "mini", "--seed", "1", "--db", db]) == 0
    assert "This rehearsal cannot show the ablation" in capsys.readouterr().err
    (row,) = Store(db).experiments.all()
    assert [run.seed for run in row.runs] == [1, 1]
    assert row.config.data.domains == DOMAINS, "for six domains there are five"


def test_they_are_listed_by_name_and_title(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["presets"]) == 0
    _, *listed = csv.reader(capsys.readouterr().out.splitlines())
    assert [name for name, _ in listed] == ["demo", *experiments.protocols(), *PUBLISHED]
    assert ["sdfed/table4-dtd", "SDFed, Table 4: DTD, mixed backbones"] in listed


def test_they_are_written_as_files_that_are_the_same_experiments(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    assert cli.main(["presets", "--write", str(folder)]) == 0
    for name in ["demo", *experiments.protocols(), *PUBLISHED]:
        assert config.load(folder / f"{name}.toml") == experiments.preset(name)


def test_a_file_that_exists_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["presets", "fedot/table1-pacs", "--write", str(tmp_path)]
    assert cli.main(command) == 0
    file = tmp_path / "fedot" / "table1-pacs.toml"
    file.write_text("# edited")
    assert cli.main(command) == 2
    assert "exists; choose another folder" in capsys.readouterr().err
    assert file.read_text() == "# edited" and not (tmp_path / "demo.toml").exists()


def test_an_experiment_is_a_file_or_a_preset_and_not_both(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (
        ["run"],
        ["run", "mine.toml", "--preset", "demo"],
        ["published"],
        ["data", "partition"],
    ):
        assert cli.main(arguments) == 2
        assert "give either an experiment file or --preset NAME" in capsys.readouterr().err
    assert cli.main(["run", "--demo", "--preset", "fedot/table1-pacs"]) == 2
    assert cli.main(["run", "--preset", "fedot/table1-pac"]) == 2
    assert "preset: unknown preset 'fedot/table1-pac'; did you mean 'fedot/table1-pacs" in (
        capsys.readouterr().err
    )
    with pytest.raises(FedLensError, match="`fedlens presets` lists them"):
        experiments.preset("nothing like it")


def test_a_preset_takes_its_data_from_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    db = str(tmp_path / "runs.db")
    missing = str(tmp_path / "no-such-folder")
    assert cli.main(["run", "--preset", "fedot/table1-pacs", "--db", db]) == 2
    assert "PACS is not on this machine" in capsys.readouterr().err
    assert cli.main(["run", "--preset", "fedot/table1-pacs", "--root", missing, "--db", db]) == 2
    assert missing in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("small", small_versions().items(), ids=lambda item: item[0])
def test_all_small_versions_run(small, tmp_path_factory, tmp_path):
    """With one folder of encodings for all of them, as one database has."""
    file = tmp_path / "small.toml"
    file.write_text(config.dumps(small[1]), encoding="utf-8")
    db = tmp_path_factory.getbasetemp() / "small-versions.db"
    assert cli.main(["run", str(file), "--db", str(db)]) == 0
    newest = Store(db).experiments.all()[0]
    assert {r.state for r in newest.runs} == {"done"}
    assert all(r.last_test is not None and 0 <= r.last_test <= 1 for r in newest.runs)
