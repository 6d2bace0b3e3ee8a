"""The charts of a comparison: a file for each, and its name in ``NAMES``, for Compare and the report."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from fedcore.reports.views.view import View

NAMES = (
    "matrices",
    "curves",
    "cost",
    "sweep",
)
"""Files of this folder, in the order of the tabs on Compare and of the figures in a report."""


@cache
def views() -> dict[str, View]:
    """Return the views by name."""
    return {name: import_module(f"{__name__}.{name}").VIEW for name in NAMES}
