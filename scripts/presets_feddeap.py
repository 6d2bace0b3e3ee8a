"""FedDEAP's published experiments but its figures."""

from __future__ import annotations

from collections.abc import Iterator

from fedcore.papers.published import CATALOG, PROMPT_LENGTHS
from scripts.presets_parts import Preset, method, rows

# FedDEAP: one client per domain; Tables 1 to 5 are one experiment per data set.
FEDDEAP_TABLES = {"PACS": (1, 3), "Office-Caltech10": (1, 3), "DomainNet-126": (1, 3, 4, 5), "DDR": (2, 3)}
FEDDEAP_NOTES = (
    "FedDEAP, Table {tables}: one client per domain, 80/20, the last round. The paper gives the prompt "
    "methods' learning rate and batch size; SGD with momentum 0.9 and weight decay 1e-5 follow its authors' "
    "code, CLIP-FC and FedCLIP keep their own learning rates. The paper names no seeds."
)


def feddeap() -> Iterator[Preset]:
    """One client per domain on four data sets."""
    for dataset, tables in FEDDEAP_TABLES.items():
        large = dataset == "DomainNet-126"
        size = {"batch_size": 256 if large else 64}
        rate = {"lr": 1e-2 if large else 1e-3, **size}
        off = {"semantic_alignment": False, "domain_alignment": False}
        methods = [
            *([method("zero-shot", "Zero-shot CLIP")] if 1 in tables else []),
            method("clip-fc", "CLIP-FC", **size),
            method("fedclip", "FedCLIP", **size),
            method("promptfl", "PromptFL", context_length=16, weight_decay=1e-5, **rate),
            method("feddeap", "FedDEAP", **rate),
            method("feddeap", "FedDEAP, baseline", personal_prompt=False, **off, **rate),
            method("feddeap", "FedDEAP, with personal prompt", **off, **rate),
            method("feddeap", "FedDEAP w/o semantic alignment", semantic_alignment=False, **rate),
            method("feddeap", "FedDEAP w/o domain alignment", domain_alignment=False, **rate),
        ]
        for lengths in PROMPT_LENGTHS.values() if 5 in tables else ():
            own, shared = lengths["personal_length"], lengths["prompt_length"]
            label = f"FedDEAP, {own} domain and {shared} shared tokens"
            methods.append(method("feddeap", label, **lengths, **rate))
        content = {
            "name": f"FedDEAP, {dataset}",
            "notes": FEDDEAP_NOTES.format(tables=", ".join(map(str, tables))),
            "tags": ["published", "feddeap"],
            "rounds": 50 if large else 100,
            "seeds": [1],
            "data": {"name": CATALOG[dataset], "template": "a photo of a {}.", "split": "80/20"},
            "backbone": {"name": "ViT-B-32", "pretrained": "openai"},
            "methods": methods,
            "reproduces": [rows("feddeap", t, dataset) for t in tables],
        }
        yield Preset(f"feddeap/table{tables[0]}-{CATALOG[dataset]}", content)
