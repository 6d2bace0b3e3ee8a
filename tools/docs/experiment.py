"""The tables of docs/experiment.md: every field of an experiment file, from the models that check it."""

from __future__ import annotations

from pydantic import BaseModel

from fedcore.config.models import (
    BackboneConfig,
    CohortConfig,
    DataConfig,
    Experiment,
    FurtherDataConfig,
    MethodEntry,
    PartitionConfig,
    Reproduces,
    TransferConfig,
    TuningConfig,
)
from fedcore.methods.hyperparameters import SearchRange
from tools.docs.blocks import FOLDER, fill
from tools.docs.methods import table

PAGE = FOLDER / "experiment.md"
TABLES: dict[str, type[BaseModel]] = {
    "experiment": Experiment,
    "data": DataConfig,
    "partition": PartitionConfig,
    "backbone": BackboneConfig,
    "methods": MethodEntry,
    "cohorts": CohortConfig,
    "transfer": TransferConfig,
    "further_data": FurtherDataConfig,
    "reproduces": Reproduces,
    "tuning": TuningConfig,
    "space": SearchRange,
}
"""Name of a block -> the model of this table of a file."""


def render(text: str) -> str:
    """Return the page with the fields of every table written from its model, rows of several tables once."""
    seen: set[str] = set()

    def written(name: str) -> str:
        rows = _rows(name)
        own = [row for row in rows if row not in seen]
        repeated = ", ".join(row.split("|")[1].strip() for row in rows[2:] if row in seen)
        seen.update(rows[2:])
        return "".join(own) + (f"\nAlso {repeated}, as above.\n" if repeated else "")

    return fill(text, {"table": written})


def _rows(name: str) -> list[str]:
    """Return the table of one part of a file, without the fields that are tables themselves."""
    rows = table(TABLES[name], {}).splitlines(keepends=True)
    parts = [f"| `{part}` |" for part in (*TABLES, "sweep")] if name == "experiment" else []
    return [row for row in rows if not row.startswith(tuple(parts))]
