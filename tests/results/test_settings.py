"""Which runs are rows of one setting, and how settings are called."""

import json
from pathlib import Path
from typing import get_args

import pytest
from pydantic import Field

from fedcore.config import (
    BackboneConfig,
    DataConfig,
    Experiment,
    MethodEntry,
    PartitionConfig,
    RunConfig,
    TransferConfig,
    expand,
)
from fedcore.config.identity import group_hash
from fedcore.data.assigners import PartitionKind
from fedcore.methods import registry
from fedcore.results import settings
from fedcore.results.comparison import compare, config_differences, partial_fields, significance
from fedcore.results.rows import setting_paragraph
from fedcore.results.settings import setting_key
from fedcore.results.sweeps import sweep_families
from fedcore.store import Recorder, Store
from fedcore.store.database import writing
from tests.support import fill


def test_two_configs_of_one_method_are_two_rows_with_names_that_tell(db: Path) -> None:
    entries = [MethodEntry(name="fedot", label="FedOT", config={"blocks": b}) for b in (1, 4)]
    found = compare(Store(db), [fill.done(db, fill.an_experiment(methods=entries, seeds=(1,), rounds=2))])
    assert [g.label for g in found.rows] == ["FedOT (blocks 1)", "FedOT (blocks 4)"]
    assert config_differences(found.rows) == {"method.config.blocks": ["1", "4"]}
    assert partial_fields(found.rows) == {}


def test_names_tell_rows_apart_whichever_of_their_fields_differ(db: Path) -> None:
    """The first two fields that differ are equal in two of three rows: a third one is named."""
    configs = ({"blocks": 1, "lr": 0.1}, {"blocks": 1, "lr": 0.1, "tau": 3.0}, {"blocks": 2, "lr": 0.5})
    entries = [MethodEntry(name="fedot", label="A", config=c) for c in configs]
    found = compare(Store(db), [fill.done(db, fill.an_experiment(methods=entries, seeds=(1,), rounds=2))])
    assert len({g.label for g in found.rows}) == 3
    near = settings.distinguishing_texts([{"method.config.lr": 0.01234567}, {"method.config.lr": 0.01234568}])
    assert near == ["learning rate 0.01234567", "learning rate 0.01234568"]


def test_what_means_the_same_is_one_row(db: Path) -> None:
    """A default that is written out, and an alpha that an IID partition does not read."""
    stored = set()
    for seed, config, alpha in ((1, {}, None), (2, {"blocks": 1}, None), (3, {}, 0.1)):
        partition = {"kind": "iid", "clients": 6, "alpha": alpha}
        entries = [MethodEntry(name="fedot", label="FedOT", config=config)]
        experiment = fill.an_experiment(methods=entries, seeds=(seed,), rounds=1, partition=partition)
        stored.add(group_hash(expand(experiment)[0]))
        fill.done(db, experiment)
    assert len(stored) == 2, "a hash knows defaults, but not that an IID partition ignores alpha"
    found = compare(Store(db), [1, 2, 3])
    (group,) = found.rows
    assert (group.label, group.seeds, group.stats["personal"].n) == ("FedOT", (1, 2, 3), 3)
    assert len(found.settings) == 1 and found.notes == ()
    assert config_differences(found.rows) == partial_fields(found.rows) == {}


def test_other_code_is_no_further_seed_of_a_method_of_that_name(db: Path) -> None:
    """What a script does not say of its hyper-parameters is not FedLens' default, nor is it FedLens' code."""
    experiment = fill.an_experiment(methods=("fedot",), seeds=(1, 2), rounds=1)
    number = fill.done(db, experiment)
    for seed, config in ((2, {}), (3, {"lr": 0.1})):
        run = Recorder(
            db, method="fedot", label="FedOT", seed=seed, experiment=number, rounds_total=1, config=config
        )
        run.round(1, {(client, client): (1, 10) for client in fill.CLIENTS})
        run.finish()
    found = compare(Store(db), [number])
    ours = next(g for g in found.rows if g.trained_by_fedlens)
    assert (ours.label, ours.seeds) == ("FedOT", (1, 2))
    assert {r.run.id for r in ours.runs} == {1, 2}, "none is replaced by a seed of the script's"
    theirs = [g for g in found.rows if not g.trained_by_fedlens]
    assert [g.seeds for g in theirs] == [(2,), (3,)]
    assert all(g.label.startswith("FedOT (recorded elsewhere)") for g in theirs)
    assert len({g.label for g in found.rows}) == len(found.rows)
    assert "method.config.lr" not in theirs[0].fields, "nobody said so"
    assert ours.fields["method.config.lr"] == registry.get("fedot").Config().lr
    assert sweep_families(found, "personal")[0].fields == ("method.config.lr",), "theirs alone"


@pytest.mark.parametrize(
    ("partition", "read", "idle"),
    [
        (
            {"kind": "iid", "clients": 3},
            {"clients": 4},
            {"alpha": 0.1, "clients_per_domain": 2, "leftover": "spread"},
        ),
        ({"kind": "domain", "alpha": 0.5}, {"dirichlet_form": "per_client"}, {}),
        (
            {"kind": "domain"},
            {"clients_per_domain": 2},
            {"clients": 7, "dirichlet_form": "per_client", "classes_per_client": 2},
        ),
        ({"kind": "dirichlet", "clients": 3, "alpha": 0.5}, {"alpha": 0.1}, {"classes_per_client": 2}),
        (
            {"kind": "pathological", "clients": 3, "classes_per_client": 2},
            {"leftover": "spread"},
            {"alpha": 0.1},
        ),
        ({"kind": "natural"}, {}, {"alpha": 0.1, "dirichlet_form": "per_client"}),
    ],
)
def test_a_setting_has_the_fields_that_its_partition_reads(
    partition: dict[str, object], read: dict[str, object], idle: dict[str, object]
) -> None:
    plain, other, same = (a_run(partition | changes) for changes in ({}, read, idle))
    if read:
        assert setting_key(plain) != setting_key(other)
        assert len(set(settings.distinct_titles({"a": plain, "b": other}).values())) == 2
    assert setting_key(plain) == setting_key(same) and settings.row_key(plain) == settings.row_key(same)
    assert not any(f"partition.{name}" in settings.flatten(same) for name in idle)


def a_run(partition: dict[str, object]) -> RunConfig:
    experiment = fill.an_experiment(methods=("fedot",), seeds=(1,), rounds=1, partition=partition)
    return expand(experiment)[0]


def folder_at(root: str, method: str = "fedot") -> Experiment:
    data = DataConfig(name="folder", root=root)
    return fill.an_experiment(methods=(method,), seeds=(1,), rounds=2, data=data)


def test_of_several_settings_a_note_says_whose_row_it_marks(db: Path) -> None:
    """Labels are unique within a setting only: the embedded data's row of the same name lacks nothing."""
    embedded = fill.an_experiment(methods=("fedalign",), seeds=(1,), rounds=2)
    ids = [fill.done(db, e) for e in (embedded, folder_at("/a", "fedalign"))]
    found = compare(Store(db), ids)
    (note,) = found.notes
    marked = next(g for g in found.rows if g.caveat)
    assert note.startswith(f"† FedAlign ({found.settings[marked.setting]}): recorded before")
    (note,) = compare(Store(db), ids[1:]).notes
    assert note.startswith("† FedAlign: recorded before")


@pytest.mark.parametrize(
    ("roots", "contents", "settings"),
    [(("/a", "/b"), ("x", "x"), 1), (("/a", "/a"), ("x", "y"), 2), (("/a", "/b"), (None, None), 2)],
)
def test_what_is_in_a_folder_counts_not_where_it_lies_unless_nobody_has_looked(
    db: Path, roots: tuple[str, str], contents: tuple[str | None, str | None], settings: int
) -> None:
    ids = [fill.done(db, folder_at(root)) for root in roots]
    with writing(db) as database:
        for number, content in zip(ids, contents, strict=True):
            text = json.dumps({"device": "cpu"} | ({"data": content} if content else {}))
            database.execute("UPDATE runs SET environment=? WHERE experiment_id=?", [text, number])
    found = compare(Store(db), ids)
    assert len(found.settings) == settings
    if settings == 2:
        assert found.notes == (), "the same config on other data is no repeat"
        first, second = found.rows
        assert first.setting != second.setting and significance([first], second, "personal") == {}


def test_other_data_that_is_tested_differently_is_another_setting_and_its_place_no_other_row() -> None:
    def run(**other: object) -> RunConfig:
        plain = expand(fill.an_experiment(methods=("fedot",), seeds=(1,), rounds=1))[0]
        return plain.model_copy(update={"transfer": (TransferConfig(**{"name": "shapes", **other}),)})

    usual = setting_key(run())
    for other in ({"template": "a {}."}, {"split": "80/20"}, {"name": "folder", "root": "/a"}):
        assert setting_key(run(**other)) != usual, other
    one, second = run(name="folder", root="/a"), run(name="folder", root="/b")
    assert setting_key(one) != setting_key(second), "nothing says that these folders hold the same"
    assert setting_key(one, {"transfer": "x"}) == setting_key(second, {"transfer": "x"})
    assert setting_key(one, {"transfer": "x"}) != setting_key(one, {"transfer": "y"})
    assert settings.row_key(one) == settings.row_key(second)
    assert settings.distinguishing_texts([settings.flatten(r) for r in (one, second)]) == ["", ""]


def test_embedded_data_is_the_same_wherever_it_ran() -> None:
    config = expand(fill.an_experiment())[0]
    assert setting_key(config, {"data": "x"}) == setting_key(config)


ROW_KEYS = {
    "clip-fc": "25ddc8c33c9f388e",
    "cocoop": "bc7dbe0df2b0fd2f",
    "coop": "3c30ced4109d5a21",
    "facmic": "c8bd2f787354fdc1",
    "fedakt": "d7ed2243113f1c7b",
    "fedalign": "5e8dd6513c3c9884",
    "fedapt": "6231c06c572ca340",
    "fedavg-lora": "407e124a46deb808",
    "fedavg-vision": "7f7401a5a6b4aa7b",
    "fedclip": "0a024feca6b52a10",
    "feddeap": "b2ba2c8072d37b9d",
    "fedgh": "6076d831607633e7",
    "fedmaple": "ae17e872f8688eed",
    "fedot": "5561e79755b53ae9",
    "fedotp": "52fd272d3b88c999",
    "fedpgp": "565aea6ba59fb068",
    "fedprox-lora": "2c94a87152a8d97e",
    "promptfl": "01a0534b77e6e1a0",
    "sdfed": "fbbf1c851489b1dd",
    "vpt": "f9f0fa4b4a2c9607",
    "zero-shot": "0ffbbf9ca20b094b",
}
"""Keys of rows as links have them, by method."""


def run_of(method: str, **config: object) -> RunConfig:
    return RunConfig(
        data=DataConfig(name="shapes", shots=8),
        partition=PartitionConfig(),
        backbone=BackboneConfig(),
        method=MethodEntry(name=method, config=config),
        rounds=10,
        participation=1.0,
        held_out=None,
        seed=1,
    )


def test_the_keys_of_links_stay_as_they_are() -> None:
    runs = {method: run_of(method) for method in ROW_KEYS}
    assert {setting_key(run) for run in runs.values()} == {"ac0d71f9bb9b"}
    keys = {method: settings.row_key(run) for method, run in runs.items()}
    assert keys == ROW_KEYS, "the default of a field has changed"


class _LaterData(DataConfig):
    sizes: tuple[int, ...] = Field((1, 2), description="a field of a later version")


class _LaterRun(RunConfig):
    data: _LaterData
    depth: int = 3


def test_a_later_field_changes_a_key_only_where_it_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    class Later(registry.get("fedot").Config):
        spice: float = Field(0.5, description="a field of a later version")

    run = run_of("fedot")
    usual = setting_key(run), settings.row_key(run)
    monkeypatch.setattr(registry.get("fedot"), "Config", Later)
    later = _LaterRun.model_validate(run.model_dump())
    assert (setting_key(later), settings.row_key(later)) == usual
    changed = later.model_copy(update={"data": later.data.model_copy(update={"sizes": (1,)})})
    assert setting_key(changed) != usual[0]
    spiced = run_of("fedot", spice=0.6)
    others = [settings.row_key(r) for r in (changed, later.model_copy(update={"depth": 4}), spiced)]
    assert len({usual[1], *others}) == 4
    assert settings.row_key(run_of("fedot", spice=0.5)) == usual[1]


NEEDED = {"clients": 6, "alpha": 0.3, "classes_per_client": 1}


def paragraph(db: Path, **changes: object) -> str:
    experiment = fill.an_experiment(methods=("fedot",), seeds=(1,), rounds=1)
    found = compare(Store(db), [fill.done(db, experiment.model_copy(update=changes))])
    return setting_paragraph(Store(db), found.rows)


@pytest.mark.parametrize("kind", get_args(PartitionKind))
def test_every_partition_is_described(tmp_path: Path, kind: PartitionKind) -> None:
    text = paragraph(tmp_path / "runs.db", partition=PartitionConfig(kind=kind, **NEEDED))
    assert "The federation has 6 clients " in text


def test_protocol_and_shots_are_described(tmp_path: Path) -> None:
    data = DataConfig(training_classes="base", class_order="name", shots=4, shots_scope="federation")
    text = paragraph(tmp_path / "runs.db", data=data)
    assert "train on the base classes, the first half in alphabetical order." in text
    assert "All clients together train on 4 images of each class." in text
    text = paragraph(tmp_path / "runs.db", data=data.model_copy(update={"shots_scope": "client"}))
    assert "Each client trains on 4 images of each class." in text
    skewed = data.model_copy(update={"shots_scope": "client", "shots": 100})
    text = paragraph(tmp_path / "runs.db", data=skewed)
    assert "Each client trains on at most 100 images of each class." in text, "no client has as many"


def test_the_domains_without_a_client_are_named(tmp_path: Path) -> None:
    one = paragraph(tmp_path / "one.db", held_out=("0°",))
    assert "The domain 0° has no client and is the unseen test set." in one
    two = paragraph(tmp_path / "two.db", held_out=("0°", "15°"))
    assert "Each of the domains 0°, 15° in turn has no client and is the unseen test set." in two


@pytest.mark.parametrize(
    ("caveat", "said"),
    [
        (lambda config, embedded: 1 / 0, "FedOT.result_caveat raised ZeroDivisionError: division by zero"),
        (lambda config, embedded: None, "FedOT.result_caveat returns None, and not a text"),
    ],
)
def test_a_method_whose_caveat_fails_leaves_its_results_readable(
    monkeypatch: pytest.MonkeyPatch, caveat, said
) -> None:
    """No table of an experiment could be shown or exported."""
    monkeypatch.setattr(registry.get("fedot"), "result_caveat", caveat)
    assert settings.result_caveat(expand(fill.an_experiment(methods=("fedot",)))[0]) == said
