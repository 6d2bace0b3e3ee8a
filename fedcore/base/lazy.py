"""Heavy libraries: torch is imported on first use, open_clip without what only other models need."""

import gc
import importlib
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any


def _imported(name: str) -> types.ModuleType:
    """Import a library while Python's garbage collector rests; what exists then is never searched again.

    Its hundreds of thousands of objects stay, and the collector would search them again and again.
    """
    if name in sys.modules:
        return importlib.import_module(name)
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        module = importlib.import_module(name)
        gc.freeze()
        return module
    finally:
        if was_enabled:
            gc.enable()


class _Lazy(types.ModuleType):
    """A stand-in for torch, so that pages can read method files without loading it.

    A plain proxy instead of ``importlib.util.LazyLoader``: the latter puts a half-loaded ``torch`` into
    ``sys.modules``, where other libraries find it and, by touching it, load it.
    """

    def __getattr__(self, name: str) -> object:
        value = getattr(_imported(self.__name__), name)
        setattr(self, name, value)  # the next access is an ordinary attribute
        return value


@contextmanager
def kept_out(*names: str) -> Iterator[None]:
    """Make libraries that are not loaded yet look uninstalled to a library that is imported in the block.

    It is for a library with optional imports, and only while no other thread imports anything.
    """
    missing = [name for name in names if name not in sys.modules]
    sys.modules.update(dict.fromkeys(missing))  # type: ignore[arg-type]  # None marks a module as missing
    try:
        yield
    finally:
        for name in missing:
            del sys.modules[name]


def is_half_imported(name: str) -> bool:
    """Return whether the import of a library has failed half-way; a second import would use its remains."""
    return name not in sys.modules and any(module.startswith(f"{name}.") for module in sys.modules)


if TYPE_CHECKING:
    import torch
    from torch import Generator, Tensor
    from torch.nn import functional
else:
    torch = _Lazy("torch")
    functional = _Lazy("torch.nn.functional")
    Generator = Tensor = Any  # for annotations; ``isinstance`` takes torch.Tensor

_OPTIONAL = ("timm", "transformers", "huggingface_hub")
"""Libraries that open_clip can do without."""
_POSTPONED = ("torchvision.models", "torchvision.ops")
"""Packages that ``import torchvision`` imports although CLIP does not use them."""
_incomplete: set[str] = set()
"""Modules of open_clip that were loaded without their libraries."""


class _Postponed(types.ModuleType):
    """A stand-in for a package that is imported when one of its attributes is used."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or sys.modules.get(self.__name__) is self:  # asked by the import system
            raise AttributeError(name)
        return getattr(importlib.import_module(self.__name__), name)


def open_clip() -> Any:
    """Return the package open_clip, loaded without optional libraries unless something imported it before.

    CLIP's own towers need torch alone. The package also imports timm, the hub's client and, for one class,
    all of torchvision, which imports torch's compiler and sympy: together they take longer to import than
    torch itself. The modules ``timm_model``, ``hf_model`` and ``pretrained`` then need
    ``complete_open_clip`` before they are used.
    """
    if "open_clip" not in sys.modules:
        _imported("torch")
        with kept_out(*_OPTIONAL), _torchvision_postponed():
            _imported("open_clip")
        _incomplete.update(("timm_model", "hf_model", "pretrained"))
    return sys.modules["open_clip"]


def complete_open_clip(module: str) -> None:
    """Load the libraries that a module of open_clip, such as ``timm_model``, was imported without.

    The module is executed again in place, so that functions which others imported from it find them too.
    """
    if module in _incomplete:
        importlib.reload(importlib.import_module(f"open_clip.{module}"))
        _incomplete.discard(module)


@contextmanager
def _torchvision_postponed() -> Iterator[None]:
    """Keep an import of torchvision from importing its models and operators, unless they are loaded."""
    if "torchvision" in sys.modules:
        yield
        return
    misc = types.ModuleType("torchvision.ops.misc")
    misc.FrozenBatchNorm2d = type("FrozenBatchNorm2d", (), {})  # type: ignore[attr-defined]  # to lock towers
    stand_ins = [*map(_Postponed, _POSTPONED), misc]
    sys.modules.update({module.__name__: module for module in stand_ins})
    try:
        yield
    finally:
        for module in stand_ins:
            del sys.modules[module.__name__]


__all__ = [
    "Generator", "Tensor", "complete_open_clip", "functional", "is_half_imported", "kept_out",
    "open_clip", "torch",
]  # fmt: skip
