"""Short constructors for the parts that the papers' experiments share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from fedcore.config import BackboneConfig, Experiment, MethodEntry, Reproduces

NOT_PRINTED = " The paper plots this figure without printing its values. "
SPLITS = {"EuroSAT": "80/20", "Caltech101": "80/20", "Flower102": "swapped", "Flowers102": "swapped"}
"""Data sets of one domain that do not use their official split -> their split."""


def clip(name: str) -> BackboneConfig:
    """Return the backbone of this architecture with OpenAI's weights."""
    return BackboneConfig(name=name, pretrained="openai")


def tables_text(tables: Sequence[int]) -> str:
    """Return the numbers of some tables in words: ``Table 1``, ``Tables 1, 2 and 8``."""
    first, last = ", ".join(map(str, tables[:-1])), tables[-1]
    return f"Tables {first} and {last}" if first else f"Table {last}"


def method(name: str, label: str, **config: Any) -> MethodEntry:
    """Return a method with its name in tables and the hyper-parameters that differ from its defaults."""
    return MethodEntry(name=name, label=label, config=config)


def printed(
    paper: str, table: int | str, dataset: str, *settings: str, methods: Iterable[str] = ()
) -> Reproduces:
    """Declare the published values that an experiment reproduces; no settings or methods: all of them."""
    return Reproduces(
        paper=paper, table=str(table), dataset=dataset, setting=settings, methods=tuple(methods)
    )


def figure(table: Experiment, labels: Sequence[str] = (), **changes: Any) -> Experiment:
    """Return a figure's experiment: the table's methods with these labels, and some fields changed."""
    shared = {name: value for name, value in table if name != "reproduces"}
    methods = tuple(entry for entry in table.methods if entry.label in labels)
    return Experiment(**{**shared, "methods": methods, "tags": (*table.tags, "sweep"), **changes})
