"""FedDEAP refuses settings that its equations do not fit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedcore.clip.specs import backbone_spec
from fedcore.errors import FedLensError
from fedcore.methods.base import RunContext
from fedcore.methods.feddeap.method import FedDEAP, FedDEAPConfig
from tests.support.against import build
from tests.support.tiny import tiny_federation

SMALL = {"prompt_length": 2, "batch_size": 4, "lr": 0.02}


def wide(name: str = "ViT-B-32", classes: int = 3, client_domain: tuple[int, ...] = (0, 1, 0)) -> RunContext:
    names = tuple(map(str, range(classes)))
    return RunContext(
        backbone_spec(name), names, len(client_domain), ("photo", "sketch"), "a {}", client_domain
    )


@pytest.mark.parametrize(
    ("setting", "config", "message", "field"),
    [
        (wide("RN50"), {}, r"width 1024\) with prompt tokens \(width 512\).*choose", "personal_prompt"),
        (
            wide(classes=1),
            {},
            "two or more classes, not 1; turn semantic_alignment off",
            "semantic_alignment",
        ),
        (
            wide(client_domain=(1, 1)),
            {},
            "two or more domains .*; choose domain_etf = client, or turn",
            "domain_etf",
        ),
        (
            wide(client_domain=(0,)),
            {"domain_etf": "client"},
            "two or more clients .*; turn domain_alignment off",
            "domain_etf",
        ),
        (wide(classes=513), {}, "512 dimensions takes at most 512 classes, not 513", "semantic_alignment"),
        (
            wide(),
            {"prompt_length": 35},
            "a context of 70 leaves no room for class .* 77",
            "prompt_length",
        ),
        (
            wide(),
            {"prompt_length": 40, "personal_length": 30},
            "a context of 70 leaves no room for class .* 77",
            "prompt_length",
        ),
        (
            wide(),
            {"prompt_length": 12, "personal_length": 58},
            "a context of 70 leaves no room for class .* 77",
            "personal_length",
        ),
    ],
)
def test_settings_that_the_equations_do_not_fit_are_refused(setting, config, message, field):
    with pytest.raises(FedLensError, match=message) as error:
        FedDEAP.check(FedDEAPConfig(**config), setting)
    assert error.value.field == field


def test_ablations_lift_the_limits_they_cause():
    one = wide("RN50", classes=1, client_domain=(-1,))
    off = {"personal_prompt": False, "semantic_alignment": False, "domain_alignment": False}
    with pytest.raises(FedLensError):
        FedDEAP.check(FedDEAPConfig(), one)
    assert FedDEAP.check(FedDEAPConfig(**off), one) is None
    assert FedDEAP.check(FedDEAPConfig(**off, prompt_length=69), one) is None  # one prompt alone


def test_two_prompts_fill_the_text_tower_to_its_end():
    FedDEAP.check(FedDEAPConfig(prompt_length=9, personal_length=60), wide())
    with pytest.raises(FedLensError, match="a context of 70 leaves no room"):
        FedDEAP.check(FedDEAPConfig(prompt_length=10, personal_length=60), wide())


def test_a_foreign_text_tower_is_refused():
    odd = replace(backbone_spec("ViT-B-32"), prompts="its text tower is not CLIP's own transformer")
    with pytest.raises(FedLensError, match="ViT-B-32 takes no learned prompts"):
        FedDEAP.check(FedDEAPConfig(), RunContext(odd, ("a", "b"), 2, ("x", "y"), "a {}"))


def test_a_client_of_several_domains_needs_another_etf():
    federation = tiny_federation()
    mixed = replace(federation.problem, client_domain=torch.tensor([0, -1, 1]))
    with pytest.raises(
        FedLensError, match="client number 2 mixes domains.*choose domain_etf = client"
    ) as error:
        FedDEAP(FedDEAPConfig(), mixed)
    assert error.value.field == "domain_etf"
    with pytest.raises(FedLensError, match="client number 2 mixes domains"):
        FedDEAP.check(FedDEAPConfig(), wide(client_domain=(0, -1, 1)))
    FedDEAP.check(FedDEAPConfig(domain_etf="client"), wide(client_domain=(0, -1, 1)))
    single = replace(federation.problem, client_domain=torch.tensor([1, 1, 1]))  # one of two domains held out
    with pytest.raises(FedLensError, match="two or more domains to train on, not 1"):
        FedDEAP(FedDEAPConfig(), single)


def test_domains_that_do_not_train_take_no_column():
    problem = tiny_federation().problem
    held_out = replace(problem, domains=("a", "b", "c"), client_domain=torch.tensor([0, 2, 2]))
    method = FedDEAP(FedDEAPConfig(**SMALL), held_out)
    assert method.domain_of.tolist() == [0, 1, 1]
    assert method.etf["phi_d"].shape == (2, 16)


def test_prompts_without_room_name_the_class():
    federation = tiny_federation(classes=("cat", "snow owl in a tall tree"))
    with pytest.raises(FedLensError, match="no room for class 'snow owl in a tall tree'") as error:
        build("feddeap", federation, prompt_length=34)
    assert error.value.field == "prompt_length"
    with pytest.raises(FedLensError, match="a context of 68 leaves no room for class 'snow owl") as error:
        build("feddeap", federation, prompt_length=4, personal_length=64)
    assert error.value.field == "personal_length"
