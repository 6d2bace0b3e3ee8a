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
    return fill(text, {"entry": about})


def named_entries() -> list[Entry]:
    """Return the data sets that users get elsewhere: neither embedded nor a format of users' own data."""
    of_user = ("folder", "manifest", "hf", "embeddings")
    return [entry for entry in catalog.entries() if not entry.embedded and entry.loader not in of_user]


USUAL_PROMPT = "a photo of a {}."
USUAL_LICENCE = "no licence stated by its authors; research use"
"""The prompt and the licence of most data sets, which the page gives once and cards leave out."""
REPEATS_THE_LAYOUT = "Give the folder that holds"
"""Beginning of a sentence that a card leaves out, since the layout below it shows that folder."""


def about(name: str) -> str:
    """Return the card of a data set, without what the card above it says of the same files."""
    entry = catalog.entry(name)
    every = named_entries()
    above = every[max(every.index(entry) - 1, 0)]
    total = f"{sum(entry.counts.values()):,}" if entry.counts else ""
    what = entry.source if total in entry.source else f"{entry.source}; {total} images"
    source = entry.citation if entry.licence == USUAL_LICENCE else f"{entry.citation} ({entry.licence})"
    told, told_above = (_by_hand(e) for e in (entry, above))
    same = entry != above and (entry.citation, entry.licence) == (above.citation, above.licence)
    facts = {
        "Domains": ", ".join(f"{d} ({entry.counts[d]:,})" if d in entry.counts else d for d in entry.domains)
        if len(entry.domains) > 1
        else "",
        "Earlier releases": "; ".join(
            f"{name}, {sum(counts.values()):,} images ({', '.join(f'{d} {n:,}' for d, n in counts.items())})"
            for name, counts in entry.releases.items()
        ),
        "Official split": entry.official_split,
        "Prompt": f"`{entry.template}`" if entry.template != USUAL_PROMPT else "",
        "In CoOp": ", ".join(
            f"`{text}`"
            for text in (
                entry.template_coop if entry.template_coop != USUAL_PROMPT else "",
                "" if entry.loader == "coop" else entry.split_coop,
            )
            if text
        ),
        "Source": "" if same else source,
        "Get": _download(entry),
        "By hand": "" if same and told == told_above else told,
    }
    lines = [f"`{name}`: {what}.", "", *(f"- {title}: {text}" for title, text in facts.items() if text)]
    return "\n".join(lines) + "\n"


def _by_hand(entry: Entry) -> str:
    """Return how to get the files without ``data get``."""
    told = entry.how_to_get.rpartition("Or by hand: ")[2]
    return told.partition(REPEATS_THE_LAYOUT)[0].rstrip()


def _download(entry: Entry) -> str:
    """Return what ``data get`` brings and from where; empty if it cannot."""
    if not entry.torchvision and entry.hub is None:
        return ""
    size = [f"{entry.megabytes:,} MB"] if entry.megabytes else []
    if entry.hub is not None:
        archive = f", {entry.hub.archive}" if entry.hub.archive else ""
        size.append(f"[{entry.hub.repo}](https://{address(entry.hub.repo)}){archive}")
        size += [f"commit {entry.hub.revision[:12]}"] if entry.hub.revision else []
    return f"`data get` ({', '.join(size)})"
