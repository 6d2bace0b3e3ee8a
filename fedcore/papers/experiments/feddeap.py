"""FedDEAP's published experiments: one client per domain, and its Figures 2, 3 and 6."""

from __future__ import annotations

from typing import Any

from fedcore.config import DataConfig, Experiment, MethodEntry
from fedcore.papers.experiments.parts import NOT_PRINTED, clip, figure, method, printed, tables_text
from fedcore.papers.published import CATALOG, PROMPT_LENGTHS, VISION_NETWORKS

TABLES = {"PACS": (1, 3), "Office-Caltech10": (1, 3), "DomainNet-126": (1, 3, 4, 5), "DDR": (2, 3)}
"""Tables that one experiment per data set gives."""
LARGE = "DomainNet-126"

WEIGHTS = [1.0, 0.01, 0.1, 0.5, 2.0]
ALPHAS = [0.01, 0.1, 0.5, 1.0, 10.0]

SETTINGS = (
    "{clients}. Each class is split 80/20 and rounded, as the printed accuracies imply (PACS: 411 test "
    "images of Art, 788 of Sketch), and the last round is reported. The learning rate and batch size of the "
    "prompt methods, CLIP-FC and the vision networks are the paper's; the prompt methods' momentum of 0.9 "
    "and weight decay of 1e-5 are those of its authors' code. FedCLIP and FACMIC keep their own learning "
    "rates. The paper gives no seeds; one seed is used here, so values have no spread."
)
ONE_CLIENT = SETTINGS.format(clients="One client per domain")
UNGRADABLE = (
    " The paper's test sets on DDR are a fifth of all 13,673 images, so they include the ungradable ones, "
    "which are a sixth class here."
)
THREE_CLIENTS = SETTINGS.format(
    clients="Three clients per domain, among which a Dirichlet distribution divides the classes"
)
FIGURE2 = (
    f"FedDEAP, Figure 2. {THREE_CLIENTS}{NOT_PRINTED}Its text names two of the five alphas, 0.01 and 0.1, "
    "and none of the four baselines; the others are our choice."
)
FIGURE3 = (
    "FedDEAP, Figure 3. The prompts of each domain are applied to the images of every other domain: the "
    "matrix of client models by domains in the last round. Its diagonal is the row of Table 1."
)
FIGURE6 = (
    f"FedDEAP, Figure 6. {ONE_CLIENT}{NOT_PRINTED}A weight of 1 is the paper's choice; the others are ours."
)


def experiments() -> dict[str, Experiment]:
    """Return the experiments by name: a table per data set, and the figures."""
    tables = {dataset: _table(dataset) for dataset in TABLES}
    return {
        **{f"table{TABLES[d][0]}-{_short(d)}": table for d, table in tables.items()},
        **{f"figure3-{_short(d)}": _prompt_domains(tables[d], d) for d in ("PACS", LARGE)},
        **{f"figure2-{_short(d)}": _label_imbalance(tables[d], d) for d in ("PACS", LARGE)},
        **{f"figure6-{_short(d)}": _loss_weights(table, d) for d, table in tables.items()},
    }


def _short(dataset: str) -> str:
    return CATALOG[dataset].removesuffix("-all")  # the preset is called feddeap/table2-ddr


def _table(dataset: str) -> Experiment:
    """Return the experiment of the main table and of FedDEAP's ablations on one data set."""
    return Experiment(
        name=f"FedDEAP, {dataset}",
        notes=f"FedDEAP, {tables_text(TABLES[dataset])}. {ONE_CLIENT}" + UNGRADABLE * (dataset == "DDR"),
        tags=("published", "feddeap"),
        rounds=50 if dataset == LARGE else 100,
        seeds=(1,),
        data=DataConfig(
            name=CATALOG[dataset],
            template="a photo of a {}.",
            split="80/20",
            split_rounding="per_class",
        ),
        backbone=clip("ViT-B-32"),
        methods=_methods(dataset),
        reproduces=tuple(printed("feddeap", table, dataset) for table in TABLES[dataset]),
    )


def _methods(dataset: str) -> tuple[MethodEntry, ...]:
    size: dict[str, Any] = {"batch_size": 256 if dataset == LARGE else 64}
    rate = {"lr": 1e-2 if dataset == LARGE else 1e-3, **size}
    unaligned = {"semantic_alignment": False, "domain_alignment": False, **rate}
    zero_shot = [method("zero-shot", "Zero-shot CLIP")] if 1 in TABLES[dataset] else []
    networks = VISION_NETWORKS.items()
    other_lengths = [
        method(
            "feddeap",
            f"FedDEAP, {lengths['personal_length']} domain and {lengths['prompt_length']} shared tokens",
            **lengths,
            **rate,
        )
        for lengths in (PROMPT_LENGTHS.values() if 5 in TABLES[dataset] else ())
    ]
    return (
        *zero_shot,
        *(method("fedavg-vision", label, **fields, **rate) for label, fields in networks),
        method("clip-fc", "CLIP-FC", **rate),
        method("fedclip", "FedCLIP", **size),
        method("facmic", "FACMIC", **size),
        method(
            "promptfl",
            "PromptFL",
            context_length=16,
            class_specific=True,
            suffix="sentence",
            weighting="uniform",
            weight_decay=1e-5,
            **rate,
        ),
        method("fedapt", "FedAPT", weight_decay=1e-5, **rate),
        method("feddeap", "FedDEAP", **rate),
        method("feddeap", "FedDEAP, with personal prompt", **unaligned),
        method("feddeap", "FedDEAP w/o semantic alignment", semantic_alignment=False, **rate),
        method("feddeap", "FedDEAP w/o domain alignment", domain_alignment=False, **rate),
        *other_lengths,
    )


def _prompt_domains(table: Experiment, dataset: str) -> Experiment:
    return figure(
        table,
        ["FedDEAP"],
        name=f"FedDEAP, {dataset}, prompt domains",
        notes=FIGURE3,
        tags=table.tags,
        reproduces=[printed("feddeap", 1, dataset, methods=["FedDEAP"])],
    )


def _label_imbalance(table: Experiment, dataset: str) -> Experiment:
    return figure(
        table,
        ["CLIP-FC", "FedCLIP", "PromptFL", "FedDEAP"],
        name=f"FedDEAP, {dataset}, label imbalance",
        notes=FIGURE2,
        partition={"kind": "domain", "clients_per_domain": 3, "alpha": ALPHAS[0]},
        sweep={"partition.alpha": ALPHAS},
    )


def _loss_weights(table: Experiment, dataset: str) -> Experiment:
    return figure(
        table,
        ["FedDEAP"],
        name=f"FedDEAP, {dataset}, lambda and eta",
        notes=FIGURE6,
        sweep={"methods.feddeap.semantic_weight": WEIGHTS, "methods.feddeap.domain_weight": WEIGHTS},
        reproduces=[printed("feddeap", TABLES[dataset][0], dataset, methods=["FedDEAP"])],
    )
