"""Write what the catalog knows of each data set into docs/data.md, between its markers.

python -m scripts.data_doc
"""

from __future__ import annotations

import re
from pathlib import Path

from fedcore.data import catalog
from fedcore.data.entry import Entry

PAGE = Path(__file__).resolve().parent.parent / "docs" / "data.md"
BLOCK = re.compile(r"(<!-- (catalog|entry): ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def render(text: str) -> str:
    """The page with every block between markers as the catalog has it.

    Raises:
        FedLensError: for a marker that names no data set.
    """
    return BLOCK.sub(lambda m: m[1] + (overview() if m[2] == "catalog" else about(m[3])) + m[4], text)


def overview() -> str:
    """A table of all data sets."""
    rows = ["| `data.name` | images | classes | domains | official split |", "|---|---|---|---|---|"]
    for found in catalog.entries():
        if found.embedded or found.loader in ("folder", "manifest", "hf"):
            continue
        cells = (
            f"`{found.name}`",
            _images(found),
            _classes(found),
            _domains(found),
            "✓" if found.official else "-",
        )
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows) + "\n"


def about(name: str) -> str:
    """What is known of one data set."""
    found = catalog.entry(name)
    facts = {
        "What": f"{found.source}. Images: {_images(found)}. Classes: {_classes(found)}.",
        "Domains": ", ".join(f"{d} ({found.counts[d]:,})" if d in found.counts else d for d in found.domains)
        if len(found.domains) > 1
        else "",
        "Official split": found.official,
        "Prompt": f"`{found.template}`",
        "Citation": found.citation,
        "Licence": found.licence,
        "Get it": found.how,
    }
    return "\n".join(f"- {title}: {text}" for title, text in facts.items() if text) + "\n"


def _images(entry: Entry) -> str:
    return f"{sum(entry.counts.values()):,}" if entry.counts else "not agreed on"


def _classes(entry: Entry) -> str:
    return str(entry.class_count or len(entry.classes))


def _domains(entry: Entry) -> str:
    return ", ".join(entry.domains) if len(entry.domains) > 1 else "writers" if not entry.domains else "-"


def main() -> None:
    """Rewrite the page."""
    PAGE.write_text(render(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
