"""FedOT's published experiments but its figures."""

from __future__ import annotations

from collections.abc import Iterator

from fedcore.papers.published import BEST_BLOCKS, CATALOG, DOMAINS
from scripts.presets_parts import Preset, method, rows

# FedOT: one experiment per data set gives Tables 1, 2, 3, 5 to 10 and the conference version's cosines.
FEDOT_ROUNDS = {"FEMNIST": 200, "PACS": 200, "VLCS": 200, "Office-Home": 50, "TerraIncognita": 50}
FEDOT_RATE = {"FEMNIST": 1e-3}
FEDOT_RANDOM_RATE = {"FEMNIST": 1e-3, "Office-Home": 1e-3, "TerraIncognita": 1e-4}
FEDOT_TABLES = {
    "FEMNIST": (1, 2, 3, 5, 7, 9),
    "PACS": (1, 2, 3, 5, 7, 9),
    "TerraIncognita": (1, 2, 3, 6, 8, 10),
}
FEDOT_NOTES = (
    "FedOT, Tables 1 to 3 and 5 to 10: one domain held out in turn, the round chosen on validation. "
    "The paper prints one learning rate per data set; here the prompts and FedCLIP keep their own. "
    "Seeds are the conference version's."
)


def fedot() -> Iterator[Preset]:
    """Leave-one-domain-out on five data sets."""
    for dataset, rounds in FEDOT_ROUNDS.items():
        rate = FEDOT_RATE.get(dataset, 5e-5)
        random_rate = FEDOT_RANDOM_RATE.get(dataset, 5e-5)
        blocks = BEST_BLOCKS[dataset]
        domains = list(dict.fromkeys(DOMAINS[dataset].values()))
        methods = [
            method("zero-shot", "Zero-shot CLIP"),
            method("promptfl", "PromptFL (M=4)", context_length=4),
            method("promptfl", "PromptFL (M=16)", context_length=16),
            method("fedclip", "FedCLIP"),
            method("fedot", "FedOT", lr=rate),
            *([method("fedot", "FedOT(+B)", lr=rate, blocks=blocks)] if blocks > 1 else []),
            method("fedot", "FedOT(-o)", lr=rate, local_transform="linear"),
            method("fedot", "FedOT, random init", lr=random_rate, init="random"),
            method("fedot", "FedAdapter", lr=rate, local_transform="adapter"),
            method("fedot", "FedOT, all global", lr=rate, share="all_global"),
            method("fedot", "FedOT, all local", lr=rate, share="all_local"),
        ]
        conference = {"Office-Home": "OfficeHome"}.get(dataset, dataset)
        content = {
            "name": f"FedOT, {dataset}",
            "notes": FEDOT_NOTES,
            "tags": ["published", "fedot"],
            "rounds": rounds,
            "seeds": [50, 77, 98],
            "held_out": domains,
            "data": {
                "name": CATALOG[dataset],
                "domains": domains,
                "template": "a picture of the number: {}" if dataset == "FEMNIST" else "a picture of a {}",
                "split": "60/20/20",
            },
            "backbone": {"name": "ViT-B-32", "pretrained": "openai"},
            "methods": methods,
            "reproduces": [
                *(rows("fedot", t, dataset) for t in FEDOT_TABLES.get(dataset, (1, 3, 6, 8, 10))),
                rows("fedot_conference", "gradient conflict", conference),
            ],
        }
        yield Preset(f"fedot/table1-{CATALOG[dataset].removesuffix('-digits')}", content)
