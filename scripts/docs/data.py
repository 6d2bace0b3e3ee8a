"""The blocks of docs/data.md: the facts that the catalog has about each data set."""

from __future__ import annotations

from fedcore.data import catalog
from fedcore.data.entry import Entry
from scripts.docs.blocks import FOLDER, fill

PAGE = FOLDER / "data.md"


def render(text: str) -> str:
    """The page with every block written from the catalog.

    Raises:
        FedLensError: for a marker that names no data set.
    """
    return fill(text, {"catalog": lambda _: overview(), "entry": about})


def overview() -> str:
    """A table of all data sets."""
    rows = ["| `data.name` | images | classes | domains | official split |", "|---|---|---|---|---|"]
    for entry in catalog.entries():
        if entry.embedded or entry.loader in ("folder", "manifest", "hf"):
            continue
        cells = (
            f"`{entry.name}`",
            _images(entry),
            _classes(entry),
            _domains(entry),
            "✓" if entry.official else "-",
        )
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows) + "\n"


def about(name: str) -> str:
    """The facts about one data set, one a line."""
    entry = catalog.entry(name)
    facts = {
        "What": f"{entry.source}. Images: {_images(entry)}. Classes: {_classes(entry)}.",
        "Domains": ", ".join(f"{d} ({entry.counts[d]:,})" if d in entry.counts else d for d in entry.domains)
        if len(entry.domains) > 1
        else "",
        "Official split": entry.official,
        "Prompt": f"`{entry.template}`",
        "Citation": entry.citation,
        "Licence": entry.licence,
        "Get it": entry.how,
    }
    return "\n".join(f"- {title}: {text}" for title, text in facts.items() if text) + "\n"


def _images(entry: Entry) -> str:
    return f"{sum(entry.counts.values()):,}" if entry.counts else "not agreed on"


def _classes(entry: Entry) -> str:
    return str(entry.class_count or len(entry.classes))


def _domains(entry: Entry) -> str:
    return ", ".join(entry.domains) if len(entry.domains) > 1 else "writers" if not entry.domains else "-"
