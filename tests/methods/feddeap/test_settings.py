"""FedDEAP refuses settings that its equations do not fit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedcore.errors import FedLensError
from fedcore.methods.feddeap.method import FedDEAP, FedDEAPConfig
from tests.support.against import build
from tests.support.tiny import tiny_federation

SMALL = {"prompt_length": 2, "batch_size": 4, "lr": 0.02}


def test_a_client_of_several_domains_needs_another_etf():
    problem = tiny_federation().problem
    with pytest.raises(FedLensError, match="client number 2 mixes domains.*choose domain_etf = client"):
        FedDEAP(FedDEAPConfig(), replace(problem, client_domain=torch.tensor([0, -1, 1])))
    with pytest.raises(FedLensError, match="two or more domains to train on, not 1"):
        FedDEAP(FedDEAPConfig(), replace(problem, client_domain=torch.tensor([1, 1, 1])))


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
