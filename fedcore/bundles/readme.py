"""The page that a reader finds in a bundle: what its files hold, and how to check them without FedLens."""

from __future__ import annotations

from collections.abc import Sequence

from fedcore.paths import ASSETS
from fedcore.reports.reproduce import Recipe
from fedcore.results.metrics import RULES


def readme(recipe: Recipe, without_predictions: Sequence[str]) -> str:
    """Return the page of a bundle.

    Args:
        without_predictions: the runs that have counts only, in one line each.
    """
    missing = ""
    if without_predictions:
        lines = "".join(f"- {line}\n" for line in without_predictions)
        missing = f"These have counts only, which follow from nothing in this archive:\n\n{lines}\n"
    text = (ASSETS / "bundle" / "README.md").read_text(encoding="utf-8")
    return text.format(title=" ".join(recipe.title.split()), rule=RULES[recipe.choices.rule], missing=missing)
