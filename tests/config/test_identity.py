"""Groups of runs and the identity of checkpoints outlive the fields that configs grow."""

import pytest
from pydantic import Field

from fedcore import config
from fedcore.config import models
from fedcore.config.identity import group_hash, stable_config
from fedcore.methods import registry

RUN = config.RunConfig(
    data=config.DataConfig(name="shapes", shots=8),
    partition=config.PartitionConfig(),
    backbone=config.BackboneConfig(),
    method=config.MethodEntry(name="fedot", label="Ours", config={"lr": 0.02, "blocks": 4}),
    rounds=10,
    participation=1.0,
    held_out=None,
    seed=1,
)
GROUP = "6deabee72cf38653"
"""As version 1.0 stored it; another hash would split the groups of every database."""


class _LaterData(config.DataConfig):
    sizes: tuple[int, ...] = Field((1, 2), description="a field of a later version")


class _LaterPart(models.Part):
    depth: int = 3


class _LaterRun(config.RunConfig):
    data: _LaterData
    extra: _LaterPart = _LaterPart()


def changed(run: config.RunConfig, part: str, **values: object) -> config.RunConfig:
    return run.model_copy(update={part: getattr(run, part).model_copy(update=values)})


def test_the_group_of_a_stored_run_stays():
    assert group_hash(RUN) == GROUP


def test_later_fields_count_only_where_they_differ_from_their_defaults():
    later = _LaterRun.model_validate(RUN.model_dump())
    assert group_hash(later) == GROUP and stable_config(later) == stable_config(RUN)
    assert group_hash(changed(later, "data", sizes=(1, 3))) != GROUP
    assert group_hash(changed(later, "extra", depth=4)) != GROUP


def test_a_later_hyper_parameter_counts_only_where_it_differs(monkeypatch):
    class Later(registry.get("fedot").Config):
        spice: float = Field(0.5, description="a field of a later version")

    monkeypatch.setattr(registry.get("fedot"), "Config", Later)
    whole = registry.build_config("fedot", RUN.method.config).model_dump(mode="json")
    assert group_hash(changed(RUN, "method", config=whole)) == GROUP, "planned again, it joins the group"
    assert group_hash(changed(RUN, "method", config=whole | {"spice": 0.6})) != GROUP


@pytest.mark.parametrize(
    ("part", "values"),
    [
        ("data", {"shots": 3}),
        ("partition", {"min_samples": 2}),
        ("backbone", {"precision": "bf16"}),
        ("method", {"config": {"lr": 0.5, "blocks": 4}}),
        ("method", {"file": "/mine.py", "sha256": "0" * 64}),
    ],
)
def test_a_field_that_differs_is_another_group(part, values):
    assert group_hash(changed(RUN, part, **values)) != GROUP


def test_seed_held_out_domain_limits_and_paths_are_no_part_of_a_group():
    update = {"seed": 2, "held_out": "a", "time_limit": 5.0, "keep_checkpoints": "all"}
    other = changed(changed(RUN.model_copy(update=update), "data", root="/x"), "method", label="Other")
    assert group_hash(other) == GROUP


def test_every_value_of_results_from_elsewhere_counts():
    recorded = changed(RUN, "method", name="mine", config={"batch_size": 32})
    assert group_hash(recorded) != group_hash(changed(recorded, "method", config={}))
