"""What is stored with the printed values that ship: their digests, and what the audits find in them."""

from pathlib import Path

from fedcore.base.files import read_text
from fedcore.papers import audits, library, published


def digests() -> dict[str, str]:
    """Return the digest of the values of each paper that ships."""
    files = sorted(library.FOLDER.glob(f"*/{library.VALUES_FILE}"))
    return {file.parent.name: published.digest_of(read_text(file, "a table of values")) for file in files}


def audited() -> dict[Path, str]:
    """Return the ``findings.csv`` of each paper that ships."""
    return {
        library.find(paper).folder / library.FINDINGS_FILE: published.findings_text(found)
        for paper, found in audits.findings(library.papers()).items()
    }
