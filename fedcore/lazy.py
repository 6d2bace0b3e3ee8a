"""A stand-in for torch that imports it on first use, so that pages can read method files without loading it.

A plain proxy instead of ``importlib.util.LazyLoader``: the latter puts a half-loaded ``torch`` into
``sys.modules``, where other libraries find it and, by touching it, load it.
"""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any


class _Lazy(types.ModuleType):
    def __getattr__(self, name: str) -> object:
        value = getattr(importlib.import_module(self.__name__), name)
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

__all__ = ["Generator", "Tensor", "functional", "is_half_imported", "kept_out", "torch"]
