"""What to cite for a comparison, as BibTeX: FedLens, and the papers of its methods, data sets and models."""

from __future__ import annotations

from collections.abc import Iterable

import fedcore
from fedcore.config.models import BackboneConfig, backbones
from fedcore.data import catalog
from fedcore.methods import registry
from fedcore.results.comparison import ComparisonRow

_CLIP = """\
@inproceedings{radford2021clip,
  author    = {Radford, Alec and Kim, Jong Wook and Hallacy, Chris and others},
  title     = {Learning Transferable Visual Models From Natural Language Supervision},
  booktitle = {International Conference on Machine Learning},
  year      = {2021},
}"""
_OPEN_CLIP = """\
@software{openclip,
  author = {Ilharco, Gabriel and Wortsman, Mitchell and Wightman, Ross and others},
  title  = {OpenCLIP},
  year   = {2021},
  doi    = {10.5281/zenodo.5143773},
}"""


def bibtex(rows: Iterable[ComparisonRow]) -> str:
    """Return the entries for the rows of a comparison, that of FedLens first, as in CITATION.cff."""
    version = fedcore.__version__
    own = (
        "@software{fedlens,\n"
        "  author  = {{The FedLens developers}},\n"
        "  title   = {{FedLens}: federated adaptation of {CLIP}, compared},\n"
        f"  version = {{{version}}},\n"
        "  year    = {2026},\n"
        "}"
    )
    methods, data = registry.load_all(), {e.name: e for e in catalog.entries()}
    entries = [own]
    for row in rows:
        entries += [methods[row.method].about.bibtex] if row.method in methods else []
        entries += [data[row.config.data.name].bibtex] if row.config.data.name in data else []
        entries += [_weights(backbone) for backbone in backbones(row.config)]
    return "\n\n".join(dict.fromkeys(e.strip() for e in entries if e)) + "\n"


def _weights(backbone: BackboneConfig) -> str:
    """Return CLIP's entry, and that of open_clip for weights that are not OpenAI's."""
    of_openai = backbone.pretrained is None or backbone.pretrained.startswith("openai")
    return _CLIP if of_openai else f"{_CLIP}\n\n{_OPEN_CLIP}"
