"""Groups of runs outlive the fields that configs grow."""

import json
from pathlib import Path

import pytest
from pydantic import Field

from fedcore import config
from fedcore.config import former_names, grouping, models
from fedcore.config.grouping import group_hash
from fedcore.methods import registry

STORED = json.loads((Path(__file__).parent / "stored_runs.json").read_text())
"""Runs as the first release stored them, each with its group."""


@pytest.mark.parametrize("stored", STORED, ids=lambda s: f"{s['config']['method']['name']} {s['group_hash']}")
def test_a_run_of_the_first_release_keeps_its_group(stored):
    assert group_hash(config.RunConfig.model_validate(stored["config"])) == stored["group_hash"]


@pytest.mark.parametrize("stored", STORED, ids=lambda s: f"{s['config']['method']['name']} {s['group_hash']}")
def test_a_run_of_the_first_release_goes_on_from_its_checkpoint(stored):
    """The config is part of a checkpoint's identity, written as the first release wrote it."""
    assert grouping.stable_config(config.RunConfig.model_validate(stored["config"])) == stored["config"]


@pytest.mark.parametrize("name", sorted({s["config"]["method"]["name"] for s in STORED} - {"not-ours"}))
def test_planned_again_it_joins_the_same_group(name: str):
    """Every hyper-parameter is written out anew, later ones with their defaults."""
    for stored in (s for s in STORED if s["config"]["method"]["name"] == name):
        run = config.RunConfig.model_validate(stored["config"])
        whole = registry.build_config(name, run.method.config).model_dump(mode="json")
        entry = run.method.model_copy(update={"config": whole})
        if run.method.config:  # the one draft among them was never planned
            assert group_hash(run.model_copy(update={"method": entry})) == stored["group_hash"]


class _LaterData(config.DataConfig):
    sizes: tuple[int, ...] = Field((1, 2), description="a field of a later release")


class _LaterPart(models.Part):
    depth: int = 3


class _LaterRun(config.RunConfig):
    data: _LaterData
    extra: _LaterPart = _LaterPart()


@pytest.fixture
def later() -> _LaterRun:
    return _LaterRun.model_validate(STORED[0]["config"])


def test_a_later_field_counts_only_where_it_differs_from_its_default(later: _LaterRun):
    assert group_hash(later) == STORED[0]["group_hash"]
    assert "sizes" in later.model_dump()["data"], "it is there, and the model writes it as a list"
    changed = later.model_copy(update={"data": later.data.model_copy(update={"sizes": (1, 3)})})
    assert group_hash(changed) != STORED[0]["group_hash"]


def test_a_later_part_counts_only_where_it_differs_from_its_default(later: _LaterRun):
    changed = later.model_copy(update={"extra": _LaterPart(depth=4)})
    assert group_hash(changed) != group_hash(later)


def test_a_later_hyper_parameter_counts_only_where_it_differs(monkeypatch):
    stored = next(s for s in STORED if s["config"]["method"]["name"] == "fedot")
    run = config.RunConfig.model_validate(stored["config"])

    class Later(registry.get("fedot").Config):
        spice: float = Field(0.5, description="a field of a later release")

    monkeypatch.setattr(registry.get("fedot"), "Config", Later)

    def with_spice(value: float) -> str:
        entry = run.method.model_copy(update={"config": {**run.method.config, "spice": value}})
        return group_hash(run.model_copy(update={"method": entry}))

    assert with_spice(0.5) == stored["group_hash"] != with_spice(0.6)


def test_a_field_of_the_first_release_always_counts():
    run = config.RunConfig.model_validate(STORED[0]["config"])
    for part, change in (
        ("data", {"shots": 3}),
        ("partition", {"min_samples": 2}),
        ("backbone", {"precision": "bf16"}),
        ("method", {"config": {**run.method.config, "lr": 0.5}}),
    ):
        changed = run.model_copy(update={part: getattr(run, part).model_copy(update=change)})
        assert group_hash(changed) != group_hash(run), part
    assert group_hash(run.model_copy(update={"rounds": run.rounds + 1})) != group_hash(run)


def test_the_first_fields_still_exist():
    """A field that was renamed would leave every group of before it."""
    first = grouping._first_fields()
    parts = {"run": config.RunConfig, "data": config.DataConfig, "partition": config.PartitionConfig,
             "backbone": config.BackboneConfig, "method": config.MethodEntry}  # fmt: skip
    for part, model in parts.items():
        assert set(first[part]) <= set(model.model_fields), part
    for name, fields in first["methods"].items():
        now = registry.get(name).Config.model_fields
        assert set(fields) <= set(former_names.former_config(name, dict.fromkeys(now))), name


def test_a_renamed_field_keeps_the_group_and_its_former_name_reads():
    for name, values in (("fedalign", ("gt", "description")), ("zero-shot", ("st", "template"))):
        former, current = (
            config.MethodEntry(name=name, config={field: value})
            for field, value in zip(("style", "class_text"), values, strict=True)
        )
        assert former.config == current.config == {"class_text": values[1]}
        run = config.RunConfig.model_validate(STORED[0]["config"]).model_copy(update={"method": current})
        assert grouping.stable_config(run)["method"]["config"].get("style", values[0]) == values[0]
    assert config.MethodEntry(name="not-ours", config={"style": "gt"}).config == {"style": "gt"}


def test_a_file_with_a_former_name_reads_with_a_warning():
    entry = '[[methods]]\nname = "fedalign"\nconfig = {style = "st"}\n'
    text = entry + '[sweep]\nmethods.fedalign.style = ["st", "gt"]'
    with pytest.warns(FutureWarning, match="'style' is called 'class_text' now"):
        experiment = config.loads(text)
    assert experiment.sweep == {"methods.fedalign.class_text": ("template", "description")}
    assert {r.method.config["class_text"] for r in config.expand(experiment)} == {"template", "description"}


@pytest.mark.parametrize(
    ("method", "stored", "shown"),
    [
        ("fedalign", "FedAlign (style st)", "FedAlign (class_text template)"),
        ("zero-shot", "Zero (x) (shots 2, style gt)", "Zero (x) (shots 2, class_text description)"),
        ("fedalign", "my style st", "my style st"),
        ("fedalign", "FedAlign (style strict)", "FedAlign (style strict)"),
        ("fedot", "FedOT (style st)", "FedOT (style st)"),
    ],
)
def test_the_label_of_a_swept_run_has_the_current_names(method, stored, shown):
    assert former_names.current_label(method, stored) == shown
