"""torch without importing torch: the page process reads
method files but must not pay for (or hold) the library.

A plain proxy instead of ``importlib.util.LazyLoader``: the latter puts a half-loaded ``torch`` into
``sys.modules``, where other libraries find it and, by touching it, load it.
"""

from __future__ import annotations

import importlib
import types


class _Lazy(types.ModuleType):
    def __getattr__(self, name: str) -> object:
        value = getattr(importlib.import_module(self.__name__), name)
        setattr(self, name, value)  # the next access is an ordinary attribute
        return value


torch = _Lazy("torch")
functional = _Lazy("torch.nn.functional")
