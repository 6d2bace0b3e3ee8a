"""The one printer of tables: aligned on a terminal, CSV in a pipe, JSON on request."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, groupby
from typing import Annotated

from typer import Option

Row = Mapping[str, object]
"""A value per column; None where the row has none."""
AsJson = Annotated[bool, Option("--json", help="Print the table as JSON, a list with an object per row")]


def print_table(rows: Iterable[Row], as_json: bool, under: Sequence[str] = ()) -> None:
    """Print the rows of a table on standard output.

    On a terminal, columns without a value are left out, numbers have two decimals, and rows that agree in the
    columns ``under`` stand below a line with these.
    """
    from fedcore.results.exports import rows_csv

    table = list(rows)
    if as_json:
        print(json.dumps(table, indent=2, default=str))  # in ASCII: what a terminal obeys is escaped
    elif not sys.stdout.isatty():
        print(rows_csv(table, ()) if table else "", end="")
    else:
        names = [name for name in dict.fromkeys(chain(*table)) if any(_text(row.get(name)) for row in table)]
        for heading, part in groupby(table, lambda row: [f"{n}: {row[n]}" for n in under if row[n]]):
            if heading:
                print("  ".join(heading))
            for line in _lines(list(part), [name for name in names if name not in under]):
                print("  " * bool(heading) + line)


def _lines(rows: Sequence[Row], names: Sequence[str]) -> Iterable[str]:
    """Yield a table's lines, the names of its columns first; columns of numbers are aligned to the right."""
    columns = []
    for name in names:
        values = [row.get(name) for row in rows]
        texts = [name, *map(_text, values)]
        width, is_text = max(map(len, texts)), any(isinstance(value, str) for value in values)
        columns.append([text.ljust(width) if is_text else text.rjust(width) for text in texts])
    return ("  ".join(line).rstrip() for line in zip(*columns, strict=True))


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.2f}" if value == 0 or abs(value) >= 0.01 else f"{value:.2g}"
    return "" if value is None else " ".join(str(value).split())
