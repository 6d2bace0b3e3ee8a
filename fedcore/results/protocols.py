"""The numbered protocols that the rows of a comparison follow, such as ``fedot/table1-pacs@1``."""

from __future__ import annotations

from collections.abc import Sequence

from fedcore.config import frozen
from fedcore.results.comparison import Comparison, ComparisonRow


def row_protocols(comparison: Comparison, rows: Sequence[ComparisonRow]) -> list[tuple[str, ...]]:
    """Return the numbered protocols of the experiments of each row."""
    configs = {e.id: e.config for e in comparison.experiments}
    behind = [
        dict.fromkeys((r.run.experiment_id, r.run.origin == "engine") for r in row.runs) for row in rows
    ]
    followed = {
        (number, trained_here): frozen.protocols_of(configs[number], trained_here)
        for number, trained_here in {one for of_row in behind for one in of_row}
    }
    return [tuple(dict.fromkeys(name for one in of_row for name in followed[one])) for of_row in behind]


def protocol_text(comparison: Comparison, rows: Sequence[ComparisonRow]) -> str:
    """Return which rows follow which numbered protocol, in sentences; empty if none does."""
    labels: dict[tuple[str, ...], list[str]] = {}
    for row, names in zip(rows, row_protocols(comparison, rows), strict=True):
        labels.setdefault(names, []).append(row.label)
    return " ".join(
        f"Protocol {' and '.join(map(_with_erratum, names))}: "
        f"{'all rows' if len(of_it) == len(rows) else ', '.join(of_it)}."
        for names, of_it in labels.items()
        if names
    )


def _with_erratum(name: str) -> str:
    base, number = frozen.split_number(name)
    later = [version for version in frozen.versions()[base] if version.number > (number or 0)]
    return f"{name} (@{later[0].number} corrects it: {later[0].erratum})" if later else name
