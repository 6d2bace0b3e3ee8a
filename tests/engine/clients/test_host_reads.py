"""The steps of local training never wait for the device: they read no number of a tensor that lies there.

A GPU is not needed: the samples, parameters and constants are marked, and with them all that is computed from
them; reads of marked tensors are counted. A few a round are right; their number must not grow with the steps.
"""

from dataclasses import fields, is_dataclass, replace
from typing import ClassVar

import pytest
import torch

from fedcore.engine.clients import local
from fedcore.engine.clients.optimisers import ClientOptimiser
from tests.support.against import build

READS = {"item", "tolist", "cpu", "numpy", "nonzero", "__bool__", "__int__", "__float__", "__index__"}
SETTINGS = {
    "fedot": {},
    "fedclip": {},
    "promptfl": {},
    "sdfed": {"local_length": "3,4,5", "global_length": 4},
    "feddeap": {},
    "fedalign": {"upload_ratio": 1.0},
}


class OnDevice(torch.Tensor):
    """A tensor that stands for one on a GPU."""

    reads: ClassVar[list[str]] = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", "")
        index = args[1] if name in ("__getitem__", "__setitem__") else ()
        masks = [i for i in (index if isinstance(index, tuple) else (index,)) if is_mask(i)]
        if name in READS or masks:  # how many numbers a mask chooses has to be read
            cls.reads.append(name)
        return super().__torch_function__(func, types, args, kwargs or {})


def is_mask(index) -> bool:
    return isinstance(index, torch.Tensor) and index.dtype == torch.bool


def marked(value):
    """Return a tensor, or a dataclass or dictionary of tensors, as on a device."""
    if isinstance(value, torch.Tensor):
        return value.as_subclass(OnDevice)
    if isinstance(value, dict):
        return {name: marked(v) for name, v in value.items()}
    if is_dataclass(value):
        tensors = {f.name: marked(getattr(value, f.name)) for f in fields(value) if f.init}
        return replace(value, **{n: v for n, v in tensors.items() if isinstance(v, torch.Tensor)})
    return value


def reads_of_a_round(method, federation, steps) -> list[str]:
    everyone = torch.arange(len(federation.problem.clients))
    with torch.no_grad():
        state = method.init(federation.problem.generator)
        received = {n: v.expand(len(everyone), *v.shape).clone() for n, v in state.shared.items()}
    params = marked({**received, **state.personal, **state.local})
    data = federation.local_data(everyone)
    data = replace(data, pool=marked(data.pool))
    OnDevice.reads.clear()
    optimiser = ClientOptimiser(method.config, len(everyone))
    local.train_clients(method, params, data, 1, optimiser, max_steps=steps)
    return list(OnDevice.reads)


@pytest.mark.parametrize("name", SETTINGS)
def test_reads_do_not_grow_with_the_steps(name, tiny_backbone, tiny_federation, monkeypatch):
    backbone = tiny_backbone(dtype=torch.float32)
    federation = tiny_federation(backbone, reads=build_reads(name, backbone))
    method = build(name, federation, batch_size=2, **SETTINGS[name])
    if hasattr(method, "suffix"):
        method.suffix = marked(method.suffix)
    batch = local.make_batch
    monkeypatch.setattr(local, "make_batch", lambda *args: marked(batch(*args)))
    _, few, many = (reads_of_a_round(method, federation, steps) for steps in (1, 1, 2))  # after a first round
    assert many == few


def build_reads(name, backbone) -> str:
    from fedcore.methods import registry

    cls = registry.get(name)
    return cls.reads(registry.build_config(name, SETTINGS[name]), backbone.spec)


def test_a_read_is_seen():
    OnDevice.reads.clear()
    value = marked(torch.ones(3)) * 2
    assert bool((value > 1).all()) and int(value.sum()) == 6
    assert OnDevice.reads
