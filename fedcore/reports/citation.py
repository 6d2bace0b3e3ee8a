"""How FedLens wants to be cited, and the papers behind the rows of a report."""

from __future__ import annotations

import fedcore


def fedlens_bibtex() -> str:
    """Return the BibTeX entry of this FedLens, as in CITATION.cff."""
    version = fedcore.__version__
    return (
        "@software{fedlens,\n"
        "  author  = {{The FedLens developers}},\n"
        "  title   = {{FedLens}: federated adaptation of {CLIP}, compared},\n"
        f"  version = {{{version}}},\n"
        "  year    = {2026},\n"
        "}\n"
    )
