"""The papers' figures as experiments: sweeps and matrices whose values are drawn, not printed in a table."""

from __future__ import annotations

from collections.abc import Iterator

from fedcore.papers.published import CATALOG, DOMAINS
from scripts.presets_parts import Preset, method, rows

LOCAL_EPOCHS = [1, 2, 4, 8]
WRITERS = [2, 5, 10, 15]
FIGURE4_NOTES = (
    "FedOT, Figure 4: 1, 2, 4 and 8 local epochs; comprehensive accuracy, the round chosen on validation. "
    "The figure prints no values; those of Table 9 are its first point, one local epoch. FedCLIP keeps its "
    "own learning rate. Seeds are the conference version's."
)
FIGURE5_NOTES = (
    "FedOT, Figure 5: 2, 5, 10 and 15 writers train. The paper prints an improvement over zero-shot CLIP of "
    "12.62, 22.36, 26.40 and 25.83 points on five test writers that it does not name; here the global model "
    "meets the test samples of all writers ('whole test set'), nearly all of whom do not train."
)
FIGURE3_NOTES = (
    "FedDEAP, Figure 3: the prompts of one domain on the images of another; the matrix of client models by "
    "domains in the last round. Its diagonal is the row of Table 1."
)


def protocols() -> Iterator[Preset]:
    """FedOT's local epochs and client counts, FedDEAP's prompt domains by image domains."""
    yield _local_epochs()
    yield _client_counts()
    for dataset in ("PACS", "DomainNet-126"):
        yield _prompt_domains(dataset)


def _local_epochs() -> Preset:
    domains = list(dict.fromkeys(DOMAINS["PACS"].values()))
    content = {
        "name": "FedOT, PACS, local epochs",
        "notes": FIGURE4_NOTES,
        "tags": ["published", "fedot", "sweep"],
        "rounds": 200,
        "seeds": [50, 77, 98],
        "held_out": domains,
        "data": {
            "name": CATALOG["PACS"],
            "domains": domains,
            "template": "a picture of a {}",
            "split": "60/20/20",
        },
        "backbone": {"name": "ViT-B-32", "pretrained": "openai"},
        "methods": [method("fedclip", "FedCLIP"), method("fedot", "FedOT", lr=5e-5)],
        "sweep": {"methods.*.local_epochs": LOCAL_EPOCHS},
        "reproduces": [rows("fedot", 9, "PACS", methods=["FedCLIP", "FedOT"])],
    }
    return Preset("fedot/figure4-pacs", content)


def _client_counts() -> Preset:
    content = {
        "name": "FedOT, FEMNIST, number of clients",
        "notes": FIGURE5_NOTES,
        "tags": ["published", "fedot", "sweep"],
        "rounds": 200,
        "seeds": [50, 77, 98],
        "data": {
            "name": CATALOG["FEMNIST"],
            "template": "a picture of the number: {}",
            "split": "60/20/20",
        },
        "partition": {"kind": "natural"},
        "backbone": {"name": "ViT-B-32", "pretrained": "openai"},
        "methods": [method("zero-shot", "Zero-shot CLIP"), method("fedot", "FedOT", lr=1e-3)],
        "sweep": {"partition.clients": WRITERS},
    }
    return Preset("fedot/figure5-femnist", content)


def _prompt_domains(dataset: str) -> Preset:
    large = dataset == "DomainNet-126"
    rate = {"lr": 1e-2 if large else 1e-3, "batch_size": 256 if large else 64}
    content = {
        "name": f"FedDEAP, {dataset}, prompt domains",
        "notes": FIGURE3_NOTES,
        "tags": ["published", "feddeap"],
        "rounds": 50 if large else 100,
        "seeds": [1],
        "data": {"name": CATALOG[dataset], "template": "a photo of a {}.", "split": "80/20"},
        "backbone": {"name": "ViT-B-32", "pretrained": "openai"},
        "methods": [method("feddeap", "FedDEAP", **rate)],
        "reproduces": [rows("feddeap", 1, dataset, methods=["FedDEAP"])],
    }
    return Preset(f"feddeap/figure3-{CATALOG[dataset]}", content)
