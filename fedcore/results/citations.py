"""What to cite for a comparison, as BibTeX: FedLens, and the papers of its methods, data sets and models."""

from __future__ import annotations

import re
from collections.abc import Iterable

import fedcore
from fedcore.config.models import BackboneConfig, backbones
from fedcore.data import catalog
from fedcore.methods import registry
from fedcore.results.comparison import ComparisonRow

_CLIP = (
    "@inproceedings{radford2021clip, "
    "author = {Radford, Alec and Kim, Jong Wook and Hallacy, Chris and others}, "
    "title = {Learning Transferable Visual Models From Natural Language Supervision}, booktitle = {ICML}, "
    "year = {2021}}"
)
_OPEN_CLIP = (
    "@software{openclip, author = {Ilharco, Gabriel and Wortsman, Mitchell and Wightman, Ross and others}, "
    "title = {OpenCLIP}, doi = {10.5281/zenodo.5143773}, year = {2021}}"
)


def bibtex(rows: Iterable[ComparisonRow]) -> str:
    """Return the entries for the rows of a comparison, that of FedLens first, as in CITATION.cff."""
    methods, data = registry.load_all(), {e.name: e for e in catalog.entries()}
    entries = [
        "@software{fedlens, author = {{The FedLens developers}}, "
        "title = {{FedLens}: federated adaptation of {CLIP}, compared}, "
        f"version = {{{fedcore.__version__}}}, year = {{2026}}}}"
    ]
    for row in rows:
        entries += [methods[row.method].about.bibtex] if row.method in methods else []
        used = [row.config.data.name, *(other.name for other in row.config.further_data)]
        entries += [data[name].bibtex for name in used if name in data]
        entries += [_weights(backbone) for backbone in backbones(row.config)]
    single = dict.fromkeys(
        e.strip() for several in entries for e in re.split(r"\n(?=@)", several) if e.strip()
    )
    return "\n\n".join(re.sub(r",\s+(\w+) = \{", r",\n  \1 = {", e) for e in single) + "\n"


def _weights(backbone: BackboneConfig) -> str:
    """Return CLIP's entry, and that of open_clip for weights that are not OpenAI's."""
    of_openai = backbone.pretrained is None or backbone.pretrained.startswith("openai")
    return _CLIP if of_openai else f"{_CLIP}\n{_OPEN_CLIP}"
