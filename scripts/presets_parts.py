"""What the published experiments are written with: one file, an entry of its methods, what it reproduces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedcore.config import Experiment, dumps, parse

HEAD = "# Written by `python -m scripts.presets`; change it there.\n"
SPLITS = {"EuroSAT": "80/20", "Caltech101": "80/20", "Flower102": "swapped", "Flowers102": "swapped"}
"""Single-domain sets that are not cut by their official split -> how they are cut."""


@dataclass(frozen=True)
class Preset:
    """One file: ``experiments/<path>.toml``."""

    path: str
    content: dict[str, Any]

    def experiment(self) -> Experiment:
        """The checked experiment."""
        return parse(self.content)

    def text(self) -> str:
        """What the file holds."""
        return HEAD + dumps(self.experiment())


def method(name: str, label: str, **config: Any) -> dict[str, Any]:
    """An entry of ``methods``."""
    return {"name": name, "label": label, "config": config}


def rows(paper: str, table: int | str, dataset: str, *setting: str, **more: list[str]) -> dict[str, Any]:
    """An entry of ``reproduces``."""
    return {"paper": paper, "table": str(table), "dataset": dataset, "setting": setting, **more}
