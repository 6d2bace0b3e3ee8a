"""What passes between the host and a device in local training does not grow with the steps of a round.

A GPU is not needed: a device that only counts takes its place (``tests/support/device.py``).
"""

import pytest
import torch

from fedcore.engine.clients.local import train_clients
from fedcore.engine.clients.optimisers import ClientOptimiser
from fedcore.methods import registry
from tests.methods.test_invariances import SMALL, TRAINED
from tests.support import device
from tests.support.against import build
from tests.support.tiny import tiny_backbone, tiny_federation

ONCE = 12
"""Copies and reads of a whole round, more than any method needs."""
IN_STEPS = {
    "fedotp": "read: _local_scalar_dense",  # whether its transport has converged
    "plot": "read: _local_scalar_dense",  # the same
    "fedavg-vision": "read: index.Tensor",  # statistics over a client's own images, without padding
}
"""Methods whose steps have to read something, and what."""


def traffic(name: str, federation, backbone) -> list[dict[str, int]]:
    """Return what is noted of a round with one step and with two, after a first one."""
    everyone, noted = torch.arange(len(federation.problem.clients)), []
    with device.CountingDevice() as counting:
        there = device.move_samples(federation, device.move(backbone))
        method = build(name, there, batch_size=2, **SMALL.get(name, {}))
        if name == "cocoop":
            method._piece = 64  # it measures memory, which the device does not have
        for steps in (1, 1, 2):
            with torch.no_grad():
                state = method.init(there.problem.generator)
                received = {n: v.expand(len(everyone), *v.shape).clone() for n, v in state.shared.items()}
            params = {**received, **state.personal, **state.local}
            data, optimiser = there.local_data(everyone), ClientOptimiser(method.config, len(everyone))
            counting.noted.clear()
            train_clients(method, params, data, 1, optimiser, max_steps=steps)
            noted.append(dict(counting.noted))
    return noted[1:]


QUICK = ("fedot", "promptfl", "fedavg-lora", "feddeap", *IN_STEPS)
"""A matrix, a prompt, adapters of the image tower, several losses, and those that read in their steps."""


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in TRAINED]
)
def test_traffic_does_not_grow_with_the_steps(name):
    backbone = tiny_backbone(torch.float32, vision_layers=3, text_layers=2)
    reads = registry.get(name).reads(registry.build_config(name, SMALL.get(name, {})), backbone.spec)
    few, many = traffic(name, tiny_federation(backbone, reads, samples=(7, 5, 6)), backbone)
    known = IN_STEPS.get(name)
    assert known is None or many.pop(known) > few.pop(known)
    assert many == few
    assert sum(few.values()) <= ONCE


def test_the_device_notes_copies_and_reads():
    with device.CountingDevice() as counting:
        there = torch.ones(3).to(device.DEVICE) * 2
        assert there.device == device.DEVICE
        assert there[torch.tensor([0, 2])].sum().item() == 4  # the positions are copied, the sum is read
        assert there.cpu().tolist() == [2, 2, 2]
        assert len(there[there > 1]) == 3
    assert counting.noted == {
        "to device: _to_copy": 1,
        "to device: index.Tensor": 1,
        "read: _local_scalar_dense": 1,
        "to host: _to_copy": 1,
        "read: index.Tensor": 1,
    }


def test_the_device_refuses_what_a_gpu_would():
    with device.CountingDevice(), pytest.raises(AssertionError, match="here and on the device"):
        torch.ones(3).to(device.DEVICE) + torch.ones(3)
