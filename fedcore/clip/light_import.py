"""Import open_clip without the libraries that only its other models, its training and its downloads need.

CLIP's own towers need torch alone. The package also imports timm, the hub's client and, for one class, all of
torchvision, which imports torch's compiler and sympy: together they take longer than torch itself.
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
"""Libraries that open_clip does without where they are missing."""
_POSTPONED = ("torchvision.models", "torchvision.ops")
"""Packages that ``import torchvision`` imports too; only some methods use them."""
_incomplete: set[str] = set()
"""Modules of open_clip that lack their libraries."""


class _Postponed(types.ModuleType):
    """The name of a package that is imported when an attribute of it is asked for."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or sys.modules.get(self.__name__) is self:  # asked by the import system
            raise AttributeError(name)
        return getattr(importlib.import_module(self.__name__), name)


def open_clip() -> Any:
    """Return the package open_clip, which is loaded light if nothing has imported it before.

    Its modules ``timm_model``, ``hf_model`` and ``pretrained`` then lack their libraries until ``complete``.
    """
    if "open_clip" not in sys.modules:
        importlib.import_module("torch")
        with kept_out(*_OPTIONAL), _torchvision_postponed():
            importlib.import_module("open_clip")
        _incomplete.update(("timm_model", "hf_model", "pretrained"))
    return sys.modules["open_clip"]


def complete(module: str) -> None:
    """Give a module of open_clip, such as ``timm_model``, the libraries that it was loaded without.

    It is executed again in place, so that functions which others took from it have the libraries too.
    """
    if module in _incomplete:
        importlib.reload(importlib.import_module(f"open_clip.{module}"))
        _incomplete.discard(module)


@contextmanager
def _torchvision_postponed() -> Iterator[None]:
    """Keep an import of torchvision from importing its models and operators, unless it is loaded already."""
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
