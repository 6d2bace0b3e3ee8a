"""The data sets that are known by name: their facts, how to get them, and loading them."""

from fedcore.data.catalog.sets import (
    DataFacts,
    LazyDescriptions,
    count_warnings,
    descriptions,
    descriptions_file,
    descriptions_of,
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
    "LazyDescriptions",
    "count_warnings",
    "descriptions",
    "descriptions_file",
    "descriptions_of",
    "descriptions_version",
    "download",
    "entries",
    "entry",
    "facts",
    "load",
    "load_checked",
    "read_descriptions",
]
