"""Heavy libraries: torch is imported on first use, open_clip without what only other models need."""

import gc
import importlib
import sys
import types
from collections.abc import Iterator, Mapping
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
    """A stand-in for a library that is imported when one of its attributes is used.

    With one for torch, pages can read method files without loading it. It is a plain proxy instead of
    ``importlib.util.LazyLoader``, which puts a half-loaded ``torch`` into ``sys.modules``, where other
    libraries find it and, by touching it, load it.
    """

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:  # asked by the import system
            raise AttributeError(name)
        value = getattr(_imported(self.__name__), name)
        setattr(self, name, value)  # the next access is an ordinary attribute
        return value


@contextmanager
def replaced(modules: Mapping[str, types.ModuleType | None]) -> Iterator[None]:
    """Put other modules in place of libraries that are not loaded yet, for what is imported in the block.

    None makes a library look uninstalled. Use it only while no other thread imports anything.
    """
    missing: dict[str, Any] = {name: other for name, other in modules.items() if name not in sys.modules}
    sys.modules.update(missing)
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


def open_clip() -> Any:
    """Return the package open_clip, loaded without optional libraries unless something imported it before.

    CLIP's own towers need torch alone. The package also imports timm, the hub's client and, for one class,
    all of torchvision, which imports torch's compiler and sympy: together they take longer to import than
    torch itself. The modules ``timm_model``, ``hf_model`` and ``pretrained`` then need
    ``complete_open_clip`` before they are used.
    """
    if "open_clip" not in sys.modules:
        _imported("torch")
        misc = types.ModuleType("torchvision.ops.misc")
        misc.FrozenBatchNorm2d = type("FrozenBatchNorm2d", (), {})  # type: ignore[attr-defined]  # to lock towers
        postponed = {module.__name__: module for module in (*map(_Lazy, _POSTPONED), misc)}
        with replaced({**dict.fromkeys(_OPTIONAL), **({} if "torchvision" in sys.modules else postponed)}):
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


__all__ = [
    "Generator", "Tensor", "complete_open_clip", "functional", "is_half_imported", "open_clip",
    "replaced", "torch",
]  # fmt: skip
