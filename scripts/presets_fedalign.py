"""FedAlign's published experiments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fedcore.papers.published import CATALOG
from scripts.presets_parts import SPLITS, Preset, method, rows

# FedAlign: five clients. Its prompt baselines ran 50 rounds, FedAlign itself 10: files of their own.
FEDALIGN_CLASSES = {
    "CIFAR10": 2,
    "CIFAR100": 20,
    "EuroSAT": 2,
    "OxfordPet": 7,
    "Food101": 20,
    "Flower102": 20,
}
FEDALIGN_ABLATED = ("CIFAR10", "CIFAR100", "OxfordPet", "Flower102")
FEDALIGN_ALPHAS = (0.3, 0.5, 0.7, 0.9)
FEDALIGN_NOTES = (
    "FedAlign, Table {tables}: five clients; global model on the whole test set, the clients' models on all "
    "test samples of the classes that they hold (before aggregation, but FedAlign's under IID and Dirichlet "
    "after it). The paper names no seeds and prints one of its written descriptions (GT): write your own, "
    "under descriptions or in a descriptions.json in the data set's folder; a class without one takes the "
    "prompt, and such a run is told apart."
)
FEDALIGN_FLOWERS = (
    " Clients hold Flowers-102's official test and validation parts, 7,169 images; its training part, 1,020, "
    "is the test set (the counts of the paper's Table 3)."
)
PROMPTS_FIRST = (
    " The paper runs prompt methods for 50 rounds and FedAlign for 10, hence this file of its own."
)
ZERO_SHOT = [
    method("zero-shot", "Zero-shot CLIP"),
    method("zero-shot", "Zero-shot CLIP, GT", style="gt"),
]
NO_PROMPT = ["FedAlign", "FedMaPLe", "FedOTP", "FedPGP"]


def _fedalign_partition(dataset: str, setting: str) -> dict[str, Any]:
    if setting == "IID":
        return {"kind": "iid", "clients": 5}
    if setting == "Path":
        return {"kind": "pathological", "clients": 5, "classes_per_client": FEDALIGN_CLASSES[dataset]}
    alpha = float(setting[4:-1]) if "(" in setting else 0.1
    return {"kind": "dirichlet", "clients": 5, "alpha": alpha}


def _fedalign(path: str, dataset: str, setting: str, tables: str, **parts: Any) -> Preset:
    prompts = parts.get("rounds") == 50
    notes = FEDALIGN_NOTES.format(tables=tables) + (FEDALIGN_FLOWERS if dataset == "Flower102" else "")
    content = {
        "name": f"FedAlign, {dataset}, {setting}" + (", PromptFL" if prompts else ""),
        "notes": notes + (PROMPTS_FIRST if prompts else ""),
        "tags": ["published", "fedalign"],
        "rounds": 10,
        "seeds": [1],
        "data": {
            "name": CATALOG[dataset],
            "template": "a photo of a {}.",
            "split": SPLITS.get(dataset, "official"),
        },
        "partition": _fedalign_partition(dataset, setting),
        "backbone": {"name": "ViT-B-32", "pretrained": "openai"},
        **parts,
    }
    return Preset(f"fedalign/{path}", content)


def _fedalign_main(dataset: str, setting: str) -> Preset:
    """Tables 1, 2, 6 and 8 on one partition."""
    methods = [method("fedalign", "FedAlign")]
    found = [rows("fedalign", 1, dataset, setting, methods=NO_PROMPT)]
    tables = ["1"]
    if dataset in FEDALIGN_ABLATED:
        methods += [
            method("fedalign", "FedAlign w/o GT", style="st"),
            method("fedalign", "FedAlign w/o L_orth", orthogonality=0.0),
            method("fedalign", "FedAlign w/o ex-query", ex_query=False),
        ]
        found.append(rows("fedalign", 2, dataset, setting))
        tables.append("2")
    if dataset != "Food101":
        similarities = ("dot", "euclidean")
        methods += [method("fedalign", f"FedAlign, {s}", similarity=s) for s in similarities]
        settings = [f"{setting}, {s} similarity" for s in ("cosine", *similarities)]
        found.append(rows("fedalign", 8, dataset, *settings))
        tables.append("8")
        if setting == "IID":
            methods = [*ZERO_SHOT, *methods]
            found.append(rows("fedalign", 6, dataset))
            tables.append("6")
    path = f"table1-{CATALOG[dataset]}-{setting.lower()}"
    return _fedalign(path, dataset, setting, ", ".join(tables), methods=methods, reproduces=found)


def fedalign() -> Iterator[Preset]:
    """IID, Dirichlet and disjoint classes on six data sets."""
    prompt = {"rounds": 50, "methods": [method("promptfl", "PromptFL", batch_size=64)]}
    aligned = [method("fedalign", "FedAlign")]
    for dataset in FEDALIGN_CLASSES:
        name = CATALOG[dataset]
        for setting in ("IID", "Dir", "Path"):
            yield _fedalign_main(dataset, setting)
            one = [rows("fedalign", 1, dataset, setting, methods=["PromptFL"])]
            path = f"table1-{name}-{setting.lower()}-promptfl"
            yield _fedalign(path, dataset, setting, "1", reproduces=one, **prompt)
            if dataset != "Food101":
                yield _fedalign_b16(dataset, setting)
        for alpha in FEDALIGN_ALPHAS if dataset != "Food101" else ():
            setting, path = f"Dir({alpha})", f"table5-{name}-dir{alpha}"
            five = [rows("fedalign", 5, dataset, setting, methods=NO_PROMPT)]
            yield _fedalign(path, dataset, setting, "5", methods=aligned, reproduces=five)
            five = [rows("fedalign", 5, dataset, setting, methods=["PromptFL"])]
            yield _fedalign(f"{path}-promptfl", dataset, setting, "5", reproduces=five, **prompt)


def _fedalign_b16(dataset: str, setting: str) -> Preset:
    """Table 7, and the zero-shot figures of Table 6, on ViT-B-16."""
    first = setting == "IID"
    zero_shot = ZERO_SHOT if first else []
    return _fedalign(
        f"table7-{CATALOG[dataset]}-{setting.lower()}",
        dataset,
        setting,
        "7, 6" if first else "7",
        backbone={"name": "ViT-B-16", "pretrained": "openai"},
        methods=[*zero_shot, method("fedalign", "FedAlign")],
        reproduces=[
            rows("fedalign", 7, dataset, setting),
            *([rows("fedalign", 6, dataset)] if first else []),
        ],
    )
