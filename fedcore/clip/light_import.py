"""Import open_clip without the libraries that only other models, training and downloads need.

CLIP's own towers need torch alone. The package also imports timm, the hub's client and, for one class, all of
torchvision, which imports torch's compiler and sympy: together they take longer to import than torch itself.
"""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fedcore.lazy import kept_out

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

    Its modules ``timm_model``, ``hf_model`` and ``pretrained`` then need ``complete`` before they are used.
    """
    if "open_clip" not in sys.modules:
        importlib.import_module("torch")
        with kept_out(*_OPTIONAL), _torchvision_postponed():
            importlib.import_module("open_clip")
        _incomplete.update(("timm_model", "hf_model", "pretrained"))
    return sys.modules["open_clip"]


def complete(module: str) -> None:
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
