"""A comparison as the text of one file, through the door that the command and the pages use."""

import csv
import io
from collections.abc import Iterable

from fedcore.share import Format, TableName
from fedcore.share.checked import WRITERS, ComparisonChoices, checked_comparison
from fedcore.store import Store


def exported(
    store: Store, ids: Iterable[int], table: TableName = "summary", format: Format = "csv", **choice: object
) -> str:
    """Check, compare and write some experiments."""
    with checked_comparison(store, ids, ComparisonChoices(**choice)) as checked:
        return "".join(WRITERS[table, format](checked))


def table_of(text: str) -> list[dict[str, str]]:
    """Read a CSV file: column -> text, by row."""
    return list(csv.DictReader(io.StringIO(text)))
