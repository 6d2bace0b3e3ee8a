"""Freeze the presets of papers: a new one gets the number 1, a corrected one the next, with an erratum.

It also writes the digests of the values that papers print, which are compared whenever they are read.

    python -m tools.freeze                                         # numbers new presets; digests of values
    python -m tools.freeze "what was wrong" fedot/table1-pacs ...  # after a correction; needs the former TOML

Each former experiment has to lie in ``fedcore/assets/frozen/NAME@NUMBER.toml``: write it with
``fedlens presets NAME --write FOLDER`` before the correction.
"""

from __future__ import annotations

import json
import sys

from fedcore.config import identity, load
from fedcore.files import read_text, write_texts
from fedcore.papers import experiments, library, published


def value_digests() -> dict[str, str]:
    """Return the digest of the values of each paper that ships."""
    files = sorted(library.FOLDER.glob(f"*/{library.VALUES_FILE}"))
    return {file.parent.name: published.digest_of(read_text(file, "a table of values")) for file in files}


def main(arguments: list[str]) -> int:
    """Write ``digests.json`` and ``frozen.json``; returns an exit status."""
    write_texts(published.DIGESTS, value_digests())
    erratum, *corrected = arguments or [""]
    content = (
        json.loads(identity.PROTOCOLS.read_text(encoding="utf-8")) if identity.PROTOCOLS.is_file() else {}
    )
    for name in (experiments.DEMO, *experiments.published()):
        digest = identity.protocol_digest(experiments.preset(name))
        listed = content.setdefault(name, [])
        if not listed:
            listed.append({"digest": digest})
        elif listed[-1]["digest"] != digest:
            if name not in corrected:
                print(f"{name} has changed: give an erratum and its name", file=sys.stderr)
                return 1
            former = identity.FORMER_PROTOCOLS / f"{name}@{len(listed)}.toml"
            if not former.is_file() or identity.protocol_digest(load(former)) != listed[-1]["digest"]:
                print(f"{former} is not the experiment as it was before", file=sys.stderr)
                return 1
            listed.append({"digest": digest, "erratum": erratum})
    identity.PROTOCOLS.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
