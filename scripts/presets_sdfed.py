"""SDFed's published experiments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fedcore.papers.published import CATALOG, COHORTS
from scripts.presets_parts import SPLITS, Preset, method, rows

# SDFed: classes of the single-domain sets are dealt out to ten clients, leftover ones to nobody.
SDFED_CLASSES = {"Flowers102": 10, "DTD": 4, "Food101": 10, "OxfordPets": 3, "Caltech101": 10}
SDFED_NOTES = (
    "SDFed, Table {tables}: mean over clients on their own test sets, mean of the last ten rounds. "
    "All methods use prompts of eight tokens, as the paper says of its comparison; momentum 0.9 and weight "
    "decay 5e-4 are ours, the paper names none. Data sets without an official split are cut 80/20."
)
SDFED_FLOWERS = (
    " Flowers-102's official training part has ten images of a class, too few for 16 shots: its test and "
    "validation parts train here and its training part tests, as FedAlign has it."
)
SDFED = {"lr": 0.01, "batch_size": 16}
SDFED_MIXED = (
    " Two strong, three medium and five weak clients as in its Table 9, with their batch sizes and epochs; "
    "the step cap counts a client's steps in one round. SDFed's own prompts have 4 to 64 tokens instead, as "
    "the paper says of heterogeneous environments; Tables 4 and 9 name no lengths."
)
SDFED_UNTRAINED = (
    " Ten of a hundred clients a round leave about seven of them untrained: such a client predicts with the "
    "global prompt under SDFed (untrained = global), with its random first prompt under local CoOp."
)
COOP = method("coop", "CoOp (local)", context_length=8, **SDFED)
SDFED_ABLATION = {"none": "none", "pfhf": "PFHF", "pfhf+srlp": "PFHF+SRLP", "pfhf+irdc": "PFHF+IRDC"}


def _sdfed(path: str, dataset: str, tables: str, backbone: str, **parts: Any) -> Preset:
    content = {
        "name": f"SDFed, {dataset}, {backbone}",
        "notes": _sdfed_notes(dataset, tables),
        "tags": ["published", "sdfed"],
        "rounds": 50,
        "seeds": [1, 2, 3, 4, 5],
        "backbone": {"name": backbone, "pretrained": "openai"},
        **parts,
    }
    return Preset(f"sdfed/{path}", content)


def _sdfed_notes(dataset: str, tables: str) -> str:
    return SDFED_NOTES.format(tables=tables) + (SDFED_FLOWERS if dataset == "Flowers102" else "")


def _single_domain(dataset: str) -> dict[str, Any]:
    return {
        "name": CATALOG[dataset],
        "template": "a photo of a {}.",
        "split": SPLITS.get(dataset, "official"),
        "shots": 16,
    }


def sdfed() -> Iterator[Preset]:
    """Disjoint classes, domains, mixed backbones, and a hundred clients of which ten take part."""
    plain = [COOP, method("sdfed", "SDFed", local_length="fixed:8", **SDFED)]
    ablations = [
        method("sdfed", f"SDFed [{label}]", components=name, local_length="fixed:8", **SDFED)
        for name, label in SDFED_ABLATION.items()
    ]
    for backbone in ("ViT-B-16", "RN50"):
        suffix = "-rn50" if backbone == "RN50" else ""
        for dataset, classes in SDFED_CLASSES.items():
            ablated = backbone == "ViT-B-16"
            yield _sdfed(
                f"table1-{CATALOG[dataset]}{suffix}",
                dataset,
                "1 and 6" if ablated else "1",
                backbone,
                data=_single_domain(dataset),
                partition={"kind": "pathological", "clients": 10, "classes_per_client": classes},
                methods=plain + (ablations if ablated else []),
                reproduces=[rows("sdfed", t, dataset) for t in ((1, 6) if ablated else (1,))],
            )
        for table, dataset in ((2, "Office-Home"), (3, "Office31")):
            yield _sdfed(
                f"table{table}-{CATALOG[dataset]}{suffix}",
                dataset,
                str(table),
                backbone,
                data={"name": CATALOG[dataset], "template": "a photo of a {}.", "split": "80/20"},
                partition={"kind": "domain", "clients_per_domain": 2, "alpha": 0.3},
                methods=plain,
                reproduces=[rows("sdfed", table, dataset)],
            )
    (mixed,) = COHORTS.values()
    for dataset, classes in SDFED_CLASSES.items():
        yield _sdfed(
            f"table4-{CATALOG[dataset]}",
            dataset,
            "4",
            "ViT-B-16",
            name=f"SDFed, {dataset}, mixed backbones",
            notes=_sdfed_notes(dataset, "4") + SDFED_MIXED,
            data=_single_domain(dataset),
            partition={"kind": "pathological", "clients": 10, "classes_per_client": classes},
            cohorts=[cohort.model_dump(exclude_none=True) for cohort in mixed],
            methods=[COOP, method("sdfed", "SDFed", local_length="random:4-64", **SDFED)],
            reproduces=[rows("sdfed", 4, dataset)],
        )
    for dataset in ("CIFAR-10", "Tiny-ImageNet"):
        longer = method("sdfed", "SDFed (4 to 64)", local_length="random:4-64", **SDFED)
        yield _sdfed(
            f"table7-{CATALOG[dataset]}",
            dataset,
            "7",
            "ViT-B-16",
            notes=_sdfed_notes(dataset, "7") + SDFED_UNTRAINED,
            rounds=25,
            participation=0.1,
            data={"name": CATALOG[dataset], "template": "a photo of a {}.", "split": "official"},
            partition={"kind": "dirichlet", "clients": 100, "alpha": 0.3},
            methods=[*plain, longer],
            reproduces=[rows("sdfed", 7, dataset)],
        )
