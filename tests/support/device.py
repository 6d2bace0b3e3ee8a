"""A device that this machine does not have, for tests that count what would pass between it and the host.

Tensors "on the device" are computed on the CPU; every copy to them or from them is noted, and so is every
operation for which the host would have to wait.
"""

import copy
from collections import Counter
from dataclasses import replace
from typing import Any, Self

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from fedcore.clip.backbone import Backbone
from fedcore.methods.federation import Federation, Pool
from fedcore.share.gpu import READS

DEVICE = torch.device("lazy")
"""A name of torch for which nothing is installed here, and whose backward pass runs in this thread."""


class OnDevice(torch.Tensor):
    """A tensor that says it lies on the device."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, real: torch.Tensor) -> Self:
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            real.size(),
            strides=real.stride(),
            storage_offset=real.storage_offset(),
            dtype=real.dtype,
            device=DEVICE,
            requires_grad=False,
        )
        made.held = real
        return made

    def tolist(self) -> Any:
        """Copy it first."""
        return self.cpu().tolist()

    def untyped_storage(self) -> torch.UntypedStorage:
        """Return where it really lies; its own storage has no address."""
        return self.held.untyped_storage()

    def data_ptr(self) -> int:
        """Return where it really lies."""
        return self.held.data_ptr()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} of a tensor on the device, outside of the device")


class CountingDevice(TorchDispatchMode):
    """Makes the device exist.

    Attributes:
        noted: "to device", "to host" or "read", with the operation -> how often.
        launches: operations that compute something there, each of which is at least one kernel on a GPU.
    """

    def __init__(self) -> None:
        super().__init__()
        self.noted: Counter[str] = Counter()
        self.launches = 0
        self._lists = _FromLists()

    def __enter__(self) -> Self:
        self._lists.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._lists.__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = func.name().removeprefix("aten::")
        leaves = _tensors((*args, *kwargs.values()))
        on_host = [t for t in leaves if not isinstance(t, OnDevice)]
        on_device = [t for t in leaves if isinstance(t, OnDevice)]
        wanted = kwargs.get("device")
        if wanted is not None:
            kwargs["device"] = torch.device("cpu")
        self._note(name, args, on_host, on_device, wanted)
        if on_device and not any(r.alias_info and not r.alias_info.is_write for r in func._schema.returns):
            self.launches += 1  # the others are views
        result = func(*_mapped(_real, args), **{n: _mapped(_real, value) for n, value in kwargs.items()})
        by_identity = {id(t.held): t for t in on_device}
        stays = wanted.type == DEVICE.type if wanted is not None else bool(on_device)
        if name.startswith("copy_"):
            return args[0]
        return (
            _mapped(lambda t: by_identity[id(t)] if id(t) in by_identity else _there(t), result)
            if stays
            else result
        )

    def _note(self, name: str, args: Any, on_host: list[Any], on_device: list[Any], wanted: Any) -> None:
        to_device = wanted is not None and wanted.type == DEVICE.type
        if name.startswith("copy_"):
            to_device, to_host = isinstance(args[0], OnDevice) and bool(on_host), bool(on_host)
        else:
            to_host = wanted is not None and not to_device and bool(on_device)
        index = name.startswith("index")
        if to_device and on_host:
            self.noted[f"to device: {name}"] += 1
        elif to_host and on_device:
            self.noted[f"to host: {name}"] += 1
        elif on_device and [t for t in on_host if t.dim()]:
            if not index:  # torch itself would refuse it
                raise AssertionError(f"{name} of tensors here and on the device")
            self.noted[f"to device: {name}"] += 1
        masks = index and any(part.dtype == torch.bool for part in _tensors(args[1:2]))
        if on_device and (name.split(".")[0] in READS or name == "repeat_interleave.Tensor" or masks):
            self.noted[f"read: {name}"] += 1


class _FromLists(TorchFunctionMode):
    """Lets ``torch.tensor`` make its tensor here and copy it, and attention be one operation."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.tensor and kwargs.get("device") == DEVICE:
            del kwargs["device"]
            return func(*args, **kwargs).to(DEVICE)
        if func is functional.scaled_dot_product_attention and isinstance(args[0], OnDevice):
            mask, causal = kwargs.get("attn_mask"), kwargs.get("is_causal", False)
            return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
                *args, 0.0, causal, attn_mask=mask
            )[0]
        return func(*args, **kwargs)


def _tensors(values: Any) -> list[torch.Tensor]:
    """The tensors among an operation's arguments, which are flat but for lists."""
    found = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found += _tensors(value)
    return found


def _mapped(function: Any, value: Any) -> Any:
    if isinstance(value, list | tuple):
        return type(value)([_mapped(function, part) for part in value])
    return function(value)


def _real(value: Any) -> Any:
    return value.held if isinstance(value, OnDevice) else value


def _there(value: Any) -> Any:
    return OnDevice(value) if isinstance(value, torch.Tensor) else value


def move(backbone: Backbone) -> Backbone:
    """Return a copy of a backbone that lies on the device; call it while the device exists."""
    model = copy.deepcopy(backbone.model)
    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            tensors.update({name: OnDevice(t.detach()) for name, t in tensors.items() if t is not None})
    return replace(backbone, model=model, device=DEVICE)


def move_samples(federation: Federation, backbone: Backbone) -> Federation:
    """Return a federation whose samples lie on the device, with a backbone that does."""
    pool = federation.pool
    there = Pool(OnDevice(pool.values), OnDevice(pool.labels), DEVICE, pool.dtype)
    return replace(federation, pool=there, problem=replace(federation.problem, backbone=backbone))
