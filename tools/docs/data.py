"""The blocks of docs/data.md: the facts that the catalog has about each data set."""

from __future__ import annotations

from fedcore.base.hub import address
from fedcore.data import catalog
from fedcore.data.images import Entry
from tools.docs.blocks import FOLDER, fill

PAGE = FOLDER / "data.md"
SECTIONS_END = "<!-- end of sections -->\n"


def render(text: str) -> str:
    """Return the page with every block written from the catalog, and a section for every data set.

    Raises:
        FedLensError: for a marker that names no data set.
    """
    missing = [entry for entry in named_entries() if f"<!-- entry: {entry.name} -->" not in text]
    sections = [f"### {entry.title}\n\n<!-- entry: {entry.name} -->\n<!-- end -->\n\n" for entry in missing]
    text = text.replace(SECTIONS_END, "".join([*sections, SECTIONS_END]))
    return fill(text, {"catalog": lambda what: {"all": overview, "hub": sources}[what](), "entry": about})


def named_entries() -> list[Entry]:
    """Return the data sets that users get elsewhere: neither embedded nor a format of users' own data."""
    of_user = ("folder", "manifest", "hf", "embeddings")
    return [entry for entry in catalog.entries() if not entry.embedded and entry.loader not in of_user]


def overview() -> str:
    """Return a table of all data sets."""
    rows = [
        "| `data.name` | images | classes | domains | official split | CoOp's split |",
        "|---|---|---|---|---|---|",
    ]
    for entry in named_entries():
        official = "✓" if entry.official_split else "-"
        coop = "✓" if entry.split_coop else "-"
        cells = f"`{entry.name}`", _images(entry), _classes(entry), _domains(entry), official, coop
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows) + "\n"


def sources() -> str:
    """Return a table of what ``data get`` downloads from the Hub."""
    rows = ["| `data.name` | repository | commit | size |", "|---|---|---|---|"]
    for entry in catalog.entries():
        if entry.hub is not None:
            where = f"[{entry.hub.repo}](https://{address(entry.hub.repo)})"
            where += f": {entry.hub.archive}" if entry.hub.archive else ""
            size = f"{entry.megabytes:,} MB" if entry.megabytes else "not found"
            rows.append(f"| `{entry.name}` | {where} | {entry.hub.revision[:12] or 'not found'} | {size} |")
    return "\n".join(rows) + "\n"


def about(name: str) -> str:
    """Return the facts about one data set, one per line."""
    entry = catalog.entry(name)
    facts = {
        "What": f"{entry.source}.",
        "Domains": ", ".join(f"{d} ({entry.counts[d]:,})" if d in entry.counts else d for d in entry.domains)
        if len(entry.domains) > 1
        else "",
        "Earlier releases": "; ".join(
            f"{name}, {sum(counts.values()):,} images ({', '.join(f'{d} {n:,}' for d, n in counts.items())})"
            for name, counts in entry.releases.items()
        ),
        "Official split": entry.official_split,
        "Prompt": f"`{entry.template}`",
        "In CoOp": ", ".join(
            f"`{text}`"
            for text in (entry.template_coop, "" if entry.loader == "coop" else entry.split_coop)
            if text
        ),
        "Citation": entry.citation,
        "Licence": entry.licence,
        "How to get it": entry.how_to_get,
    }
    return "\n".join(f"- {title}: {text}" for title, text in facts.items() if text) + "\n"


LISTED = "as its file lists"


def _images(entry: Entry) -> str:
    if entry.loader == "coop":
        return LISTED
    return f"{sum(entry.counts.values()):,}" if entry.counts else "not agreed on"


def _classes(entry: Entry) -> str:
    return str(entry.class_count or len(entry.classes) or LISTED)


def _domains(entry: Entry) -> str:
    return ", ".join(entry.domains) if len(entry.domains) > 1 else "writers" if not entry.domains else "-"
