"""Data sets known by name: their facts, how to get them, and loading them."""

from fedcore.data.catalog.sets import (
    DataFacts,
    Described,
    count_warnings,
    described,
    descriptions,
    descriptions_file,
    descriptions_version,
    download,
    entries,
    entry,
    facts,
    load,
    load_checked,
    read_descriptions,
)

__all__ = [
    "DataFacts",
    "Described",
    "count_warnings",
    "described",
    "descriptions",
    "descriptions_file",
    "descriptions_version",
    "download",
    "entries",
    "entry",
    "facts",
    "load",
    "load_checked",
    "read_descriptions",
]
