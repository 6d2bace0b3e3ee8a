"""SDFed's settings: backbones, lengths, and what is refused."""

from __future__ import annotations

import pytest

from fedcore.errors import FedLensError
from fedcore.methods.registry import build_config
from fedcore.methods.sdfed.method import SDFed, SDFedConfig
from tests.support.against import (
    build,
    cells,
    run_context,
)


def test_works_on_a_resnet(tiny_backbone, tiny_federation, run_rounds):
    federation = tiny_federation(tiny_backbone(vision="resnet"), samples=(4, 3))
    config = {"lr": 0.05, "batch_size": 4, "global_length": 3, "local_length": "random:2-6"}
    loop = run_rounds(build("sdfed", federation, **config), federation, 2)
    assert loop.finished[-1].train_loss is not None
    assert len(cells(loop)) == 3 * 4


@pytest.mark.parametrize("field", ["global_length", "local_length"])
def test_a_prompt_without_room_names_the_class(tiny_backbone, tiny_federation, field):
    federation = tiny_federation(tiny_backbone())
    value = {"global_length": 73, "local_length": "random:73-73"}[field]
    with pytest.raises(
        FedLensError, match=r"no room for class '(snow owl|fire engine)'.*use at most 72"
    ) as error:
        build("sdfed", federation, **{field: value})
    assert error.value.field == field


def test_a_list_of_lengths_must_fit_the_clients(tiny_backbone, tiny_federation):
    chosen = run_context(tiny_federation(tiny_backbone()))
    with pytest.raises(
        FedLensError, match="2 lengths for 3 clients; give one per client, or fixed:4"
    ) as error:
        SDFed.check(SDFedConfig(local_length="4, 8"), chosen)
    assert error.value.field == "local_length"
    SDFed.check(SDFedConfig(local_length="4, 8, 12"), chosen)


@pytest.mark.parametrize(
    ("values", "field", "message"),
    [
        ({"local_length": "long"}, "methods.local_length", "write fixed:8, random:4-64"),
        ({"local_length": "random:64-4"}, "methods.local_length", "shorter length first"),
        ({"local_length": "fixed:0"}, "methods.local_length", "1 to 75 tokens"),
        ({"local_length": "4,80"}, "methods.local_length", "1 to 75 tokens"),
        ({"global_length": 0}, "methods.global_length", "greater than or equal to 1"),
        ({"truncation": 1.0}, "methods.truncation", "less than 1"),
        ({"margin": 3}, "methods.margin", "less than or equal to 2"),
        ({"components": "irdc"}, "methods.components", "'none', 'pfhf'"),
        ({"refine_every": "epoch"}, "methods.refine_every", "'step' or 'round'"),
        ({"null_basis": "qr"}, "methods.null_basis", "'svd' or 'seeded'"),
        ({"gamma": 0.8}, "methods.gamma", "no such field"),
    ],
)
def test_bad_configs_say_what_is_allowed(values, field, message):
    with pytest.raises(FedLensError, match=message) as error:
        build_config("sdfed", values)
    assert error.value.field == field


def test_defaults_are_the_papers():
    config = SDFedConfig()
    assert (config.lr, config.batch_size, config.local_epochs, config.weighting) == (0.01, 16, 1, "samples")
    assert (config.global_length, config.local_length, config.truncation, config.margin) == (
        8,
        "fixed:8",
        0.6,
        0.8,
    )
    assert all(field.description for field in SDFedConfig.model_fields.values())
