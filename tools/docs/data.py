"""The table of docs/data.md: the facts that the catalog has about each data set."""

from __future__ import annotations

import re

from fedcore.base.hub import address
from fedcore.data import catalog
from fedcore.data.images import Entry
from tools.docs.blocks import FOLDER, fill

PAGE = FOLDER / "data.md"
USUAL_PROMPT = "a photo of a {}."
USUAL_LICENCE = "no licence stated by its authors; research use"
"""The prompt and the licence of most data sets, which the page gives once and rows leave out."""
REPEATS_THE_LAYOUT = re.compile(r"Give (the folder|a folder with) .*")
"""What a row leaves out of how to get a data set, since the layout below the table shows that folder."""


def render(text: str) -> str:
    """Return the page with a row for every data set, written from the catalog."""
    return fill(text, {"data sets": lambda _: table()})


def named_entries() -> list[Entry]:
    """Return the data sets that users get elsewhere: neither embedded nor a format of users' own data."""
    of_user = ("folder", "manifest", "hf", "embeddings")
    return [entry for entry in catalog.entries() if not entry.embedded and entry.loader not in of_user]


def table() -> str:
    """Return a row for each data set, without what the row above it says of the same files."""
    lines = ["| data set | what it is | source (licence) | how to get it |", "|---|---|---|---|"]
    above: Entry | None = None
    for entry in named_entries():
        same = above is not None and (entry.citation, entry.licence) == (above.citation, above.licence)
        licence = "" if entry.licence == USUAL_LICENCE else f" ({entry.licence})"
        source = "as above" if same else f"{entry.citation}{licence}"
        by_hand = "" if same and above is not None and _by_hand(entry) == _by_hand(above) else _by_hand(entry)
        get = " ".join(filter(None, [_download(entry), by_hand]))
        lines.append(f"| {entry.title}: `{entry.name}` | {_content(entry)} | {source} | {get} |")
        above = entry
    return "\n".join(lines) + "\n"


def _content(entry: Entry) -> str:
    """Return what a data set is, with its images, domains and splits, and its prompts if they are unusual."""
    total = f"{sum(entry.counts.values()):,}" if entry.counts else ""
    what = entry.source if total in entry.source else f"{entry.source}; {total} images"
    domains = [f"{d} ({entry.counts[d]:,})" if d in entry.counts else d for d in entry.domains]
    releases = [
        f"{name}, {sum(counts.values()):,} images ({', '.join(f'{d} {n:,}' for d, n in counts.items())})"
        for name, counts in entry.releases.items()
    ]
    coop = [
        entry.template_coop if entry.template_coop != USUAL_PROMPT else "",
        "" if entry.loader == "coop" else entry.split_coop,
    ]
    facts = {
        "Domains": ", ".join(domains) if len(domains) > 1 else "",
        "Earlier": "; ".join(releases),
        "Official split": entry.official_split,
        "Prompt": f"`{entry.template}`" if entry.template != USUAL_PROMPT else "",
        "In CoOp": ", ".join(f"`{text}`" for text in coop if text),
    }
    sentences = [what, *(f"{title}: {text}" for title, text in facts.items() if text)]
    return " ".join(text if text.endswith(".") else f"{text}." for text in sentences)


def _by_hand(entry: Entry) -> str:
    """Return how to get the files without ``data get``."""
    told = entry.how_to_get.rpartition("Or by hand: ")[2]
    return REPEATS_THE_LAYOUT.sub("", told).rstrip()


def _download(entry: Entry) -> str:
    """Return what ``data get`` brings and from where; empty if it cannot."""
    if not entry.torchvision and entry.hub is None:
        return ""
    size = [f"{entry.megabytes:,} MB"] if entry.megabytes else []
    if entry.hub is not None:
        archive = f", {entry.hub.archive}" if entry.hub.archive else ""
        size.append(f"[{entry.hub.repo}](https://{address(entry.hub.repo)}){archive}")
        size += [f"commit {entry.hub.revision[:12]}"] if entry.hub.revision else []
    return f"`data get` ({', '.join(size)})."
