"""Former names of hyper-parameters: files and stored runs that use them can still be read.

The identity of a run (its group, its checkpoints) is computed with the former names, so that it stays.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_METHODS = ("fedalign", "zero-shot")
_FORMER, _CURRENT = "style", "class_text"
_VALUES = {"gt": "description", "st": "template"}


def current_config(method: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a method's hyper-parameters with the names and values of this release."""
    return _renamed(method, config, _FORMER, _CURRENT, _VALUES)


def former_config(method: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a method's hyper-parameters with the names and values of the first release that had them."""
    return _renamed(method, config, _CURRENT, _FORMER, {new: old for old, new in _VALUES.items()})


def current_sweep(sweep: Mapping[str, Any]) -> dict[str, Any]:
    """Return a sweep of dotted paths with the names and values of this release."""
    paths = {f"methods.{method}.{_FORMER}": method for method in (*_METHODS, "*")}
    return {
        (path.removesuffix(_FORMER) + _CURRENT if path in paths else path): (
            [_VALUES.get(value, value) for value in values] if path in paths else values
        )
        for path, values in sweep.items()
    }


def current_label(method: str, label: str) -> str:
    """Return a stored label with the names of this release in the values of a sweep: ``(style st)``.

    Rows of a comparison are told apart by their labels, so runs of both releases must have the same ones.
    """
    before, bracket, values = label.rpartition("(")
    if method not in _METHODS or not bracket:
        return label
    for former, current in _VALUES.items():
        values = re.sub(rf"\b{_FORMER} {former}(?=[,)])", f"{_CURRENT} {current}", values)
    return before + bracket + values


def notice(content: Mapping[str, Any]) -> str:
    """Return a line that tells the user of former names in a file, or an empty text."""
    methods = content.get("methods")
    entries = methods if isinstance(methods, (list, tuple)) else ()
    configs = [e.get("config") for e in entries if isinstance(e, dict) and e.get("name") in _METHODS]
    if not any(isinstance(config, dict) and _FORMER in config for config in configs):
        return ""
    values = ", ".join(f"{old} is '{new}'" for old, new in _VALUES.items())
    return f"the field '{_FORMER}' is called '{_CURRENT}' now ({values}); the old name still reads"


def _renamed(
    method: str, config: Mapping[str, Any], before: str, after: str, values: Mapping[str, str]
) -> dict[str, Any]:
    if method not in _METHODS or before not in config:
        return dict(config)
    return {
        (after if name == before else name): (
            values.get(value, value) if name == before and isinstance(value, str) else value
        )
        for name, value in config.items()
    }
