"""FedAlign's settings: class texts, adapted layers, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedcore.clip.lora import first_adapted_layer, scaled_layer
from fedcore.clip.specs import backbone_spec
from fedcore.errors import FedLensError
from fedcore.methods.base import RunContext
from fedcore.methods.fedalign.config import FedAlignConfig
from fedcore.methods.fedalign.method import FedAlign
from fedcore.methods.registry import build_config
from tests.support.against import build


def test_descriptions_are_drawn_by_seed_and_fall_back_to_the_prompt(tiny_backbone, tiny_federation):
    written = {"cat": ["a small furry animal.", "a pet that purrs."], "snow owl": ["a white bird of prey."]}
    federation = tiny_federation(tiny_backbone(), "layer:1", descriptions=written)
    gt = build("fedalign", federation)
    assert gt.texts == build("fedalign", federation).texts
    assert gt.texts[0] in written["cat"]
    assert gt.texts[1:] == ["a white bird of prey.", "a photo of a fire engine."]
    assert build("fedalign", federation, class_text="template").texts[0] == "a photo of a cat."
    problems = [replace(federation.problem, seed=s) for s in range(20)]
    assert {FedAlign(gt.config, p).texts[0] for p in problems} == set(written["cat"])


def test_layers_scale_with_the_depth():
    config = FedAlignConfig()
    assert [first_adapted_layer(config.start_layer, n) for n in (4, 12, 24)] == [1, 2, 4]
    assert [scaled_layer(config.boundary_layer, n) for n in (4, 12, 24)] == [3, 9, 18]
    assert (
        first_adapted_layer(FedAlignConfig(start_layer=11, boundary_layer=12).start_layer, 4) == 3
    )  # something is always adapted
    assert FedAlign.reads(config, backbone_spec("ViT-B-32")) == "layer:2"
    assert FedAlign.reads(FedAlignConfig(trainable="table4"), backbone_spec("ViT-B-32")) == "patches"


def test_a_resnet_is_refused():
    run_context = RunContext(backbone_spec("RN50"), ("a", "b"), 2, ("x",), "a {}")
    with pytest.raises(FedLensError, match=r"RN50 is not; choose e\.g\. ViT-B-32") as error:
        FedAlign.check(FedAlignConfig(), run_context)
    assert error.value.field == "start_layer"


def test_a_foreign_text_tower_is_refused():
    odd = replace(backbone_spec("ViT-B-32"), prompts="its text tower is not CLIP's own transformer")
    with pytest.raises(FedLensError, match="cannot adapt the text tower of ViT-B-32") as error:
        FedAlign.check(FedAlignConfig(), RunContext(odd, ("a", "b"), 2, ("x",), "a {}"))
    assert error.value.field == "start_layer"


def test_a_rank_beyond_the_width_is_refused():
    small = replace(backbone_spec("ViT-B-32"), token_width=100)
    with pytest.raises(FedLensError, match=r"rank 128 is more than .* use at most 100") as error:
        FedAlign.check(FedAlignConfig(rank=128), RunContext(small, ("a", "b"), 2, ("x",), "a {}"))
    assert error.value.field == "rank"


@pytest.mark.parametrize(
    ("values", "message", "field"),
    [
        ({"boundary_layer": 1}, "boundary_layer 1 is below start_layer; use 2 or more", "config"),
        ({"scale": 0}, "scale is a number above 0 up to 1000, or 'clip'", "config"),
        ({"scale": "own"}, "must be a number", "config.scale.float"),
        ({"rank": 0}, "greater than or equal to 1", "config.rank"),
        ({"upload_ratio": 1.5}, "less than or equal to 1", "config.upload_ratio"),
        ({"similarity": "manhattan"}, "'cosine', 'dot' or 'euclidean'", "config.similarity"),
        ({"blocks": 2}, "no such field", "config.blocks"),
    ],
)
def test_bad_configs_say_what_is_allowed(values, message, field):
    with pytest.raises(FedLensError, match=message) as error:
        build_config("fedalign", values, "config")
    assert error.value.field == field
