"""Copies to and from a device do not grow with the steps of a round, nor its operations with the clients.

A GPU is not needed: a device that only counts takes its place (``tests/support/device.py``).
"""

from functools import cache

import pytest
import torch

from fedcore.clip.backbone import Backbone
from fedcore.engine.clients.local import train_clients
from fedcore.engine.clients.optimisers import ClientOptimiser
from fedcore.methods.federation import Federation
from tests.support import device
from tests.support.against import build_small, federation_for
from tests.support.method_cases import TRAINED, slow_but
from tests.support.tiny import tiny_backbone

ONCE = 12
"""Copies and reads of a whole round, more than any method needs."""
IN_STEPS = {
    "fedotp": "read: _local_scalar_dense",  # whether its transport has converged
    "plot": "read: _local_scalar_dense",  # the same
    "fedavg-vision": "read: index.Tensor",  # statistics over a client's own images, without padding
}
"""Methods whose steps have to read something, and what."""

LAUNCHES = {
    "fedalign": 269,
    "feddeap": 663,
    "fedot": 72,
    "sdfed": 286,
    "clip-adapter": 76,
    "clip-fc": 40,
    "cocoop": 216,
    "coop": 155,
    "dp-fpl": 197,
    "facmic": 307,
    "fedakt": 138,
    "fedapt": 179,
    "fedavg-lora": 186,
    "fedavg-vision": 810,
    "fedclip": 191,
    "fedgh": 40,
    "fedmaple": 289,
    "fedmgp": 344,
    "fedmvp": 389,
    "fedotp": 1592,
    "fedpgp": 221,
    "fedpha": 305,
    "fedprox-lora": 199,
    "fedtpg": 362,
    "ivlp": 271,
    "kgcoop": 192,
    "pfedmma": 243,
    "pfedmoap": 155,
    "plot": 384,
    "proda": 659,
    "prograd": 275,
    "promptfl": 155,
    "promptfolio": 288,
    "promptsrc": 360,
    "taskres": 74,
    "tip-adapter-f": 70,
    "vpt": 131,
}
"""Operations of a step on a device, each at least one kernel of a GPU; towers of three and two layers."""
MOST_LAUNCHES = 400
"""Of a method that is not listed."""


@cache
def small(layers: int) -> tuple[Backbone, Backbone]:
    """A backbone with so many layers of text and one more of vision, here and on the device."""
    backbone = tiny_backbone(torch.float32, vision_layers=layers + 1, text_layers=layers)
    with device.CountingDevice():
        return backbone, device.move(backbone)


def traffic(name: str, federation: Federation, moved: Backbone) -> tuple[list[dict[str, int]], int]:
    """Return what is noted of a round with one step and with two, after a first; and a step's launches."""
    everyone, noted, launches = torch.arange(len(federation.problem.clients)), [], []
    with device.CountingDevice() as counting:
        there = device.move_samples(federation, moved)
        method = build_small(name, there, batch_size=2)
        if name == "cocoop":
            method._piece = 64  # it measures memory, which the device does not have
        for steps in (1, 1, 2):
            with torch.no_grad():
                state = method.init(there.problem.generator)
                received = {n: v.clone() for n, v in method.sends(state, everyone).items()}
            params = {**received, **state.local}
            data, optimiser = there.local_data(everyone), ClientOptimiser(method.config, len(everyone))
            counting.noted.clear()
            counting.launches = 0
            train_clients(method, params, data, 1, optimiser, max_steps=steps)
            noted.append(dict(counting.noted))
            launches.append(counting.launches)
    return noted[1:], launches[2] - launches[1]


QUICK = ("fedot", "fedavg-lora", "plot")
"""A matrix, adapters of the image tower, and prompts that read in their steps."""


@pytest.mark.parametrize("name", slow_but(QUICK, TRAINED))
def test_traffic_does_not_grow_with_the_steps(name):
    backbone, moved = small(2)
    three = federation_for(name, backbone=backbone, samples=(7, 5, 6))
    (few, many), launches = traffic(name, three, moved)
    # a GPU waits for the launches of small towers, not for their arithmetic
    assert launches <= LAUNCHES.get(name, MOST_LAUNCHES), f"a step of {name} takes {launches} operations"
    if name != "fedavg-vision":  # its networks are called client by client
        more = federation_for(name, backbone=backbone, samples=(7, 5, 6, 7, 5))
        assert traffic(name, more, moved)[1] == launches, "clients are an axis, not a loop"
    check(name, few, many)


def check(name: str, few: dict[str, int], many: dict[str, int]) -> None:
    allowed = IN_STEPS.get(name)
    assert allowed is None or many.pop(allowed) > few.pop(allowed)
    assert many == few
    assert sum(few.values()) <= ONCE


@pytest.mark.parametrize("name", ["feddeap", "fedavg-vision"])
def test_nor_does_it_in_towers_of_one_layer(name):
    backbone, moved = small(1)
    federation = federation_for(name, backbone=backbone, samples=(3, 4))
    check(name, *traffic(name, federation, moved)[0])
