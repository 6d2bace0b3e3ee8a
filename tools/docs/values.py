"""The digests of the values that papers print, which are compared whenever they are read."""

from fedcore.files import read_text
from fedcore.papers import library, published


def digests() -> dict[str, str]:
    """Return the digest of the values of each paper that ships."""
    files = sorted(library.FOLDER.glob(f"*/{library.VALUES_FILE}"))
    return {file.parent.name: published.digest_of(read_text(file, "a table of values")) for file in files}
