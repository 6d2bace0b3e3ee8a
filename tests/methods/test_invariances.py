"""What holds for every trained method: who is computed beside whom, and in what order, changes nothing."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from fedcore.federation import Federation
from fedcore.methods import registry
from tests.support import tiny
from tests.support.against import build

SMALL = {
    "fedot": {"lr": 0.01},
    "sdfed": {"global_length": 2, "local_length": "random:2-4", "lr": 0.05},
    "fedpha": {"global_length": 6, "local_length": "random:2-4", "lr": 0.05},
    "fedalign": {"rank": 2, "class_text": "template", "lr": 0.01, "server_lr": 0.01, "average": "factors"},
    "feddeap": {"prompt_length": 2, "lr": 0.02},
    "promptfl": {"context_length": 2, "lr": 0.05},
    "coop": {"context_length": 2, "lr": 0.05},
    "promptfolio": {"context_length": 2, "lr": 0.05},
    "dp-fpl": {"context_length": 2, "rank": 1, "lr": 0.05},
    "pfedmoap": {"context_length": 2, "lr": 0.05, "local_epochs": 1},
    "kgcoop": {"context_length": 2, "init": "random", "lr": 0.05, "schedule": "constant"},
    "prograd": {"context_length": 2, "init": "random", "lr": 0.05, "schedule": "constant"},
    "fedotp": {"context_length": 2, "lr": 0.05},
    "plot": {"context_length": 2, "prompts": 2, "lr": 0.05, "schedule": "constant"},
    "proda": {"context_length": 2, "prompts": 4, "lr": 0.05},
    "fedpgp": {"context_length": 2, "rank": 2, "lr": 0.05, "local_epochs": 1},
    "fedapt": {"context_length": 2, "lr": 0.05},
    "fedmgp": {"groups": 3, "lr": 0.05, "local_epochs": 1},
    "pfedmma": {"width": 4, "alpha": 0.3},
    "fedtpg": {"context_length": 2, "lr": 0.05},
    "fedavg-lora": {"rank": 2, "lr": 0.01},
    "fedavg-vision": {"network": "vit_tiny"},
    "fedprox-lora": {"rank": 2, "lr": 0.01},
}
"""Prompts and ranks that the tiny CLIP has room for; methods that are not named run as they are."""
BY_CLIENT = {"shared.query_w", "server.prompts"}
"""Parameters of the server with a row for each client: FedAPT's query, pFedMoAP's last prompts."""
TRAINED = [
    name
    for name, cls in registry.load_all().items()
    if cls.__module__.startswith("fedcore.methods.") and cls.trains
]


@cache
def backbone(dtype: torch.dtype = torch.float64):
    return tiny.tiny_backbone(dtype)


def federation(name: str, dtype: torch.dtype = torch.float64, **options: object) -> Federation:
    cls = registry.get(name)
    config = registry.build_config(name, SMALL.get(name, {}))
    return tiny.tiny_federation(backbone(dtype), cls.reads(config, backbone(dtype).spec), **options)


def trained(name: str, held: Federation, **options: object):
    method = build(name, held, batch_size=4, **SMALL.get(name, {}))
    return tiny.run_rounds(method, held, 2, **options)


@cache
def usual(name: str):
    """A run that several checks compare with another."""
    return trained(name, federation(name))


def parts(loop) -> dict[str, torch.Tensor]:
    return {
        f"{part}.{n}": v
        for part in ("shared", "personal", "local", "server")
        for n, v in getattr(loop.state, part).items()
    }


def same_up_to(one, other, near: float) -> None:
    for key, value in parts(one).items():
        torch.testing.assert_close(parts(other)[key], value, atol=near, rtol=0, msg=key)


@pytest.mark.parametrize("name", TRAINED)
def test_client_batched_and_one_by_one_agree(name):
    together = usual(name)
    same_up_to(together, trained(name, federation(name), chunk=1), 1e-9)
    start = together.method.init(together.federation.problem.generator)
    moved = [
        not torch.equal(v, getattr(start, k.partition(".")[0])[k.partition(".")[2]])
        for k, v in parts(together).items()
    ]
    assert any(moved), "it trained"


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAINED)
def test_client_batched_and_one_by_one_agree_in_single_precision(name):
    held = federation(name, torch.float32)
    same_up_to(trained(name, held), trained(name, held, chunk=1), 1e-5)


@pytest.mark.parametrize("name", TRAINED)
def test_two_runs_of_one_seed_agree_exactly(name):
    one, again = usual(name), trained(name, federation(name))
    for key, value in parts(one).items():
        assert torch.equal(parts(again)[key], value), key
    assert [e.cells for e in one.finished] == [e.cells for e in again.finished]


def test_another_seed_draws_other_batches_and_first_values():
    for name in ("fedot", "promptfl"):
        other = parts(trained(name, federation(name, seed=2)))
        assert any(not torch.equal(other[key], value) for key, value in parts(usual(name)).items())


@pytest.mark.parametrize("name", TRAINED)
def test_the_order_of_clients_does_not_matter(name):
    order = (2, 0, 1)
    other = trained(name, federation(name, order=order))
    for key, value in parts(usual(name)).items():
        clients = len(value) == 3 and key.split(".")[0] in ("personal", "local")
        clients = clients or key.startswith("server.serving") or key in BY_CLIENT
        expected = value[list(order)] if clients else value
        torch.testing.assert_close(parts(other)[key], expected, atol=1e-6, rtol=0, msg=key)


@pytest.mark.parametrize("name", TRAINED)
def test_local_parameters_that_start_alike_are_one_row_for_all_clients(name):
    given = federation(name)
    local = build(name, given, **SMALL.get(name, {})).init(given.problem.generator).local
    alike = {n: v for n, v in local.items() if v.dim() > 1 and bool((v == v[:1]).all())}
    assert [n for n, value in alike.items() if value.stride(0)] == []
